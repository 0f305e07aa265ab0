//! Hostile tokenizers, and those that must go on as they are in the library.

use crate::text::charsmap::tests::one;
use crate::text::{TextError, Tokenizer, TokenizerError};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// A tokenizer of all bytes, with some parts.
fn tokenizer(parts: &Value) -> Value {
    let vocab: Vec<_> = (0_u32..0x180)
        .filter_map(char::from_u32)
        .map(String::from)
        .collect();
    let vocab: Value = vocab.into_iter().zip((0..).map(Value::from)).collect();
    let mut json = json!({
        "added_tokens": [],
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": false},
    });
    json.as_object_mut()
        .expect("an object")
        .extend(parts.as_object().expect("an object").clone());
    json
}

/// Bytes of a text that a tokenizer makes longer.
const TEXT_BYTES: usize = 20_000;
/// Bytes of memory per byte of such a text at most, with what the library remembers of where each byte came from.
const BYTES_PER_BYTE_MAX: u64 = 1000;

fn load(parts: &Value) -> Result<Tokenizer, TextError> {
    Tokenizer::from_json(tokenizer(parts).to_string().as_bytes())
}

fn encode(parts: &Value, text: &str) -> Result<Vec<u32>, TokenizerError> {
    load(parts)
        .expect("it is not refused before a text needs it")
        .encode(text, true)
}

fn refusal(parts: &Value) -> String {
    load(parts)
        .map(drop)
        .expect_err("it is refused")
        .to_string()
}

fn replace(pattern: &Value, content: &str) -> Value {
    json!({"type": "Replace", "pattern": pattern, "content": content})
}

fn sequence(parts: &[Value]) -> Value {
    json!({"type": "Sequence", "normalizers": parts})
}

#[test]
fn a_normalizer_that_makes_texts_long_is_an_error_of_the_text() {
    let long = "b".repeat(500_000);
    let doubling = |pattern: Value| sequence(&vec![replace(&pattern, "aa"); 40]);
    let nested = sequence(&vec![
        sequence(&vec![
            replace(&json!({"String": "a"}), "aaaa");
            8
        ]);
        4
    ]);
    let prepend = |text: &str| json!({"type": "Prepend", "prepend": text});
    let table = json!({"type": "Precompiled", "precompiled_charsmap": STANDARD.encode(one(b'a', &"b".repeat(1000)))});
    let hostile = [
        doubling(json!({"String": "a"})),
        doubling(json!({"Regex": "a"})),
        // Between all characters.
        doubling(json!({"Regex": ""})),
        doubling(json!({"String": ""})),
        nested,
        replace(&json!({"String": "a"}), &long),
        replace(&json!({"Regex": "(?<=a{1000})a"}), &long),
        prepend(&long),
        sequence(&vec![prepend(&"b".repeat(10_000)); 60]),
        sequence(&[
            replace(&json!({"String": "a"}), "\u{fdfa}\u{fdfa}\u{fdfa}"),
            json!({"type": "NFKC"}),
        ]),
        table,
    ];
    for normalizer in hostile {
        let parts = json!({"normalizer": normalizer});
        let (tokenizer, text) = (
            load(&parts).expect("no text has grown yet"),
            "a".repeat(TEXT_BYTES),
        );
        let mut answer = Ok(Vec::new());
        let taken =
            allocation_counter::measure(|| answer = tokenizer.encode(&text, true)).bytes_max;
        let error = answer.expect_err("it grows").to_string();
        assert!(
            error.contains("its normalizer makes the text more than 16 times as long"),
            "{error}"
        );
        assert!(
            taken < BYTES_PER_BYTE_MAX * TEXT_BYTES as u64,
            "{taken} bytes: {:.200}",
            parts.to_string()
        );
        assert!(
            encode(&parts, "").is_ok(),
            "nothing grows: {:.200}",
            parts.to_string()
        );
    }
}

#[test]
fn parts_of_a_text_grow_together() {
    let token = json!({
        "id": 65, "content": "A", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": true,
    });
    let prepend = json!({"type": "Prepend", "prepend": "b".repeat(1000)});
    let parts = json!({"normalizer": prepend, "added_tokens": [token]});
    assert_eq!(
        encode(&parts, "a").map(|ids| ids.len()),
        Ok(1001),
        "a short text has some room"
    );
    assert!(
        encode(&parts, &"aA".repeat(1000)).is_err(),
        "each part would get a thousand bytes"
    );
}

#[test]
fn a_pre_tokenizer_that_makes_texts_long_is_an_error_of_the_text() {
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let chain =
        |count| json!({"type": "Sequence", "pretokenizers": vec![byte_level.clone(); count]});
    let text = "\u{e9}".repeat(1000);
    assert!(encode(&json!({"pre_tokenizer": chain(2)}), &text).is_ok());
    let error = encode(&json!({"pre_tokenizer": chain(30)}), &text)
        .expect_err("it grows")
        .to_string();
    assert!(
        error.contains("its pre-tokenizer makes the text more than 16 times as long"),
        "{error}"
    );
}

#[test]
fn an_added_token_that_the_normalizer_makes_long_is_refused() {
    let token = |content: &str| {
        json!({
            "id": 65, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": true,
            "special": false,
        })
    };
    let chain = sequence(&vec![replace(&json!({"String": "a"}), "aa"); 40]);
    let message = refusal(&json!({"normalizer": chain, "added_tokens": [token("a")]}));
    assert!(
        message.contains("tokenizer.json") && message.contains("its normalizer"),
        "{message}"
    );
    let message = refusal(&json!({"added_tokens": [token(&"a".repeat(1 << 20))]}));
    assert!(message.contains("`added_tokens`"), "{message}");
}

#[test]
fn a_table_of_replacements_that_leads_outside_is_refused() {
    let table = |table: &[u8]| {
        let part = json!({"type": "Precompiled", "precompiled_charsmap": STANDARD.encode(table)});
        let nested = sequence(&[
            json!({"type": "NFC"}),
            sequence(std::slice::from_ref(&part)),
        ]);
        [part, nested].map(|normalizer| json!({"normalizer": normalizer}))
    };
    for parts in table(&one(b'a', "bcd")) {
        assert_eq!(
            encode(&parts, "xa"),
            Ok("xbcd".bytes().map(u32::from).collect())
        );
    }
    let sound = one(b'a', "bcd");
    let mut cases = vec![Vec::new(), vec![0; 4], vec![0xff; 4], vec![0xff; 400]];
    // Any unit that leads elsewhere.
    for unit in [0, 1, 256 ^ 97] {
        let mut damaged = sound.clone();
        damaged[4 + 4 * unit + 1..][..3].fill(0x7f);
        cases.push(damaged);
    }
    for case in &cases {
        for parts in table(case) {
            let message = refusal(&parts);
            let expected = "tokenizer.json: `normalizer`: `precompiled_charsmap`: ";
            assert!(message.starts_with(expected), "{message}");
        }
    }
}

#[test]
fn a_post_processor_adds_few_ids_and_those_that_there_are() {
    let special = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
    let text = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
    let template = |single: Value, ids: Value, tokens: Value| {
        json!({
            "type": "TemplateProcessing", "single": single, "pair": [text("A"), text("B")],
            "special_tokens": {"s": {"id": "s", "ids": ids, "tokens": tokens}},
        })
    };
    let sound = template(
        json!([special("s"), text("A"), special("s")]),
        json!([7, 8]),
        json!(["s", "s"]),
    );
    let several =
        |part: &Value, count| json!({"type": "Sequence", "processors": vec![part.clone(); count]});
    let parts = |part: &Value| json!({"post_processor": part});
    assert_eq!(encode(&parts(&sound), "a"), Ok(vec![7, 8, 97, 7, 8]));
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true});
    let both = json!({"type": "Sequence", "processors": [byte_level, sound]});
    assert_eq!(encode(&parts(&both), "a"), Ok(vec![7, 8, 97, 7, 8]));
    let bert = json!({"type": "BertProcessing", "cls": ["s", 7], "sep": ["s", 8]});
    assert_eq!(
        encode(&parts(&several(&bert, 2)), "a"),
        Ok(vec![7, 7, 97, 8, 8])
    );
    let many = |count: usize| {
        template(
            json!([special("s")]),
            json!(vec![7; count]),
            json!(vec!["s"; count]),
        )
    };
    let hostile = [
        template(json!([special("t"), text("A")]), json!([7]), json!(["s"])),
        template(
            json!([special("s"), text("A")]),
            json!([7, 8]),
            json!(["s"]),
        ),
        template(json!([text("A"), text("A")]), json!([7]), json!(["s"])),
        template(json!([text("B")]), json!([7]), json!(["s"])),
        template(
            json!(vec![special("s"); 600]),
            json!([7, 8]),
            json!(["s", "s"]),
        ),
        many(1025),
        many(100_000),
        several(&sound, 2),
        several(&bert, 300),
    ];
    for part in hostile {
        let message = refusal(&parts(&part));
        assert!(
            message.starts_with("tokenizer.json: `post_processor`"),
            "{message}"
        );
    }
}

#[test]
fn a_decoder_makes_tokens_hardly_longer() {
    let decoder = |parts: Vec<Value>| json!({"decoder": {"type": "Sequence", "decoders": parts}});
    let doubling = replace(&json!({"String": "a"}), "aa");
    let two = load(&decoder(vec![doubling.clone(); 2])).expect("that is no harm");
    assert_eq!(two.token_bytes(97, None), b"aaaa");
    let strip = json!({"type": "Strip", "content": " ", "start": 0, "stop": 2});
    let word_piece = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
    let hostile = [
        vec![doubling; 40],
        vec![replace(&json!({"Regex": "a"}), "aa"); 40],
        vec![replace(&json!({"String": ""}), "b"); 40],
        vec![replace(&json!({"String": "a"}), &"b".repeat(1000))],
        vec![json!({"type": "BPEDecoder", "suffix": ""}); 40],
        vec![word_piece, strip],
    ];
    for parts in hostile {
        let message = refusal(&decoder(parts));
        assert!(
            message.starts_with("tokenizer.json: `decoder`: "),
            "{message}"
        );
    }
}

#[test]
fn other_parts_that_the_library_would_not_survive_are_refused() {
    let message = refusal(&json!({"pre_tokenizer": {"type": "FixedLength", "length": 0}}));
    assert!(
        message.starts_with("tokenizer.json: `pre_tokenizer`: "),
        "{message}"
    );
    let huge = json!({"normalizer": {"type": "Prepend", "prepend": "a".repeat(2 << 20)}});
    let message = refusal(&huge);
    assert!(
        message.starts_with("tokenizer.json: `normalizer` has "),
        "{message}"
    );
    let many = json!({"normalizer": sequence(&vec![json!({"type": "NFC"}); 1000])});
    assert!(refusal(&many).starts_with("tokenizer.json: `normalizer`: more than 64"));
}

/// After such a replacement the library panics when it normalizes further.
#[test]
fn text_that_is_put_in_at_the_edges_may_be_normalized_further() {
    let between = replace(&json!({"Regex": " {0,}"}), " ");
    let others = ["Lowercase", "NFKC", "StripAccents", "Nmt"].map(|kind| json!({"type": kind}));
    for other in others {
        let normalizer = sequence(&[
            between.clone(),
            other.clone(),
            between.clone(),
            other.clone(),
        ]);
        let metaspace = json!({"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": true});
        let parts = json!({"normalizer": normalizer, "pre_tokenizer": metaspace});
        assert!(encode(&parts, "Hello  w\u{e9}rld abc").is_ok(), "{other}");
    }
}

/// The library is the reference for what is within the limits.
#[test]
fn usual_normalizers_give_the_ids_of_the_library() {
    let space = replace(&json!({"String": " "}), "\u{17f}");
    let normalizers = [
        sequence(&[
            json!({"type": "Prepend", "prepend": "\u{17f}"}),
            space.clone(),
        ]),
        sequence(&[
            json!({"type": "NFKC"}),
            replace(&json!({"Regex": " {2,}"}), " "),
            space.clone(),
        ]),
        sequence(&[
            json!({"type": "NFKD"}),
            json!({"type": "StripAccents"}),
            json!({"type": "Lowercase"}),
        ]),
        json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "lowercase": true}),
        json!({"type": "Precompiled", "precompiled_charsmap": STANDARD.encode(one(b'a', "bcd"))}),
        replace(&json!({"Regex": "(?i)a|(?=b)"}), "..."),
        json!({"type": "Strip", "strip_left": true, "strip_right": true}),
        sequence(&[]),
    ];
    let metaspace = json!({"type": "Metaspace", "replacement": "\u{17e}", "prepend_scheme": "always", "split": true});
    let samples = [
        "  A cab,  \u{c9}cole ",
        "\u{fdfa}",
        "",
        "a",
        "\u{130}\u{1e9b}\u{323} b",
        &"caba ".repeat(300),
    ];
    for normalizer in normalizers {
        for pre_tokenizer in [Value::Null, metaspace.clone()] {
            let json =
                tokenizer(&json!({"normalizer": normalizer, "pre_tokenizer": pre_tokenizer}))
                    .to_string();
            let reference =
                tokenizers::Tokenizer::from_bytes(json.as_bytes()).expect("the library reads it");
            let own = Tokenizer::from_json(json.as_bytes()).expect("it is not refused");
            for sample in samples {
                let expected = reference
                    .encode_fast(sample, true)
                    .expect("the library encodes it");
                assert_eq!(
                    own.encode(sample, true).as_deref(),
                    Ok(expected.get_ids()),
                    "{sample:.20} {normalizer}"
                );
            }
        }
    }
}
