//! Tests of `text/chunks.rs`.

use super::*;
use proptest::prelude::*;
use serde_json::json;

use crate::model::demo::TOKENIZER_JSON;
const SMALL: Sizes = Sizes {
    chunk: 1024,
    overlap: 512,
};

fn demo_json() -> Value {
    serde_json::from_slice(TOKENIZER_JSON).expect("the demo's tokenizer is JSON")
}

fn is_local(json: &Value) -> bool {
    let json = json.to_string();
    super::is_local(&TokenizerFile::from_json(json.as_bytes()).expect("it is a tokenizer.json"))
}

fn split(pattern: &str) -> Value {
    json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]})
}

/// The demo's tokenizer with the word patterns of GPT-2, Llama 3, Qwen and GPT-4o.
fn tokenizers() -> Vec<Inner> {
    let contractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
    let (letters, digits) = (r"[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{N}{1,3}");
    let (signs, blanks) = (r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+|\s+(?!\S)|\s+");
    let llama = [contractions, letters, digits, signs, blanks].join("|");
    let (upper, lower) = (
        r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]",
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]",
    );
    let small = format!(r"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{contractions}?");
    let large = format!(r"[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{contractions}?");
    let gpt = [small.as_str(), &large, digits, signs, blanks].join("|");
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false,
        "trim_offsets": true, "use_regex": true});
    let kinds = [
        byte_level,
        split(&llama),
        demo_json()["pre_tokenizer"].clone(),
        split(&gpt),
    ];
    let build = |pre_tokenizer| {
        let mut json = demo_json();
        json["pre_tokenizer"] = pre_tokenizer;
        assert!(is_local(&json), "{json:.200}");
        let json = json.to_string();
        let file = TokenizerFile::from_json(json.as_bytes()).expect("it is a tokenizer.json");
        file.tokenizer().expect("the pattern compiles")
    };
    kinds.into_iter().map(build).collect()
}

fn whole(tokenizer: &Inner, text: &str) -> Vec<u32> {
    tokenizer
        .encode_fast(text, false)
        .expect("it encodes")
        .get_ids()
        .to_vec()
}

/// Runs of all kinds of characters that the patterns treat differently.
fn text() -> impl Strategy<Value = String> {
    let atoms = [
        "a",
        "Hello",
        " world",
        "HTTPServer",
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "7",
        "1234",
        ",",
        "...",
        "'s",
        "'LL",
        "é",
        "e\u{301}",
        "\u{301}\u{323}",
        "漢字",
        "かが",
        "\u{3099}",
        "한글",
        "\u{1100}\u{1161}",
        "🦊",
        "\u{a0}",
        "<|im_end|>",
        "<|im_",
        "नि",
        "\u{200d}",
        "/",
        "don't",
    ];
    let run = (0..atoms.len(), 0..6_u32).prop_map(move |(atom, length)| {
        // Mostly short, sometimes longer than an overlap.
        atoms[atom].repeat(if length == 5 {
            300
        } else {
            1 + length as usize
        })
    });
    prop::collection::vec(run, 200..900).prop_map(|runs| runs.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn chunks_give_the_ids_of_the_whole(text in text()) {
        for (kind, tokenizer) in tokenizers().iter().enumerate() {
            if let Some(ids) = encode(tokenizer, &text, SMALL).expect("it encodes") {
                prop_assert_eq!(ids, whole(tokenizer, &text), "pattern {}", kind);
            }
        }
    }
}

#[test]
fn ordinary_texts_are_cut_and_endless_words_are_not() {
    if std::thread::available_parallelism().map_or(1, usize::from) == 1 {
        return;
    }
    let prose =
        "It was a dark night; 12 foxes (or 13?) slept.\n\n\"Who?\" asked HTTPServer's dog. "
            .repeat(100);
    for (kind, tokenizer) in tokenizers().iter().enumerate() {
        let ids = encode(tokenizer, &prose, SMALL).expect("it encodes");
        assert_eq!(ids, Some(whole(tokenizer, &prose)), "pattern {kind}");
        assert_eq!(
            encode(tokenizer, &"a".repeat(9000), SMALL).expect("it encodes"),
            None,
            "pattern {kind}"
        );
    }
    let digits = "7".repeat(9000);
    let qwen = &tokenizers()[2];
    assert_eq!(
        encode(qwen, &digits, SMALL).expect("it encodes"),
        Some(whole(qwen, &digits))
    );
}

#[test]
fn tokenizers_that_look_around_are_left_alone() {
    let check = |change: fn(&mut Value)| {
        let mut json = demo_json();
        change(&mut json);
        assert!(!is_local(&json));
    };
    assert!(is_local(&demo_json()));
    check(|json| json["normalizer"] = json!({"type": "Prepend", "prepend": "▁"}));
    check(|json| json["pre_tokenizer"] = json!({"type": "Metaspace"}));
    check(|json| json["pre_tokenizer"] = Value::Null);
    check(|json| json["added_tokens"][0]["single_word"] = true.into());
    check(|json| json["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true.into());
    check(|json| json["pre_tokenizer"]["pretokenizers"][1]["use_regex"] = true.into());
    for pattern in [r"(?<!a)b", r"^a", r"a(?=b)", r"a(?!b)", r"\ba"] {
        assert!(!looks_ahead_one_character(pattern), "{pattern}");
    }
}
