//! Any parts of a tokenizer.json must give a tokenizer that encodes and decodes, or an error. The input is lines:
//! normalizer, pre-tokenizer, post-processor and decoder as JSON, then a text. What follows it is SentencePiece's table of
//! replacements, in place of the normalizer.
#![no_main]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use folio::text::Tokenizer;
use libfuzzer_sys::fuzz_target;
use std::fmt::Write as _;

/// More ids than a text has room for.
const IDS_PER_BYTE_MAX: usize = 16;
const IDS_BESIDES_MAX: usize = 8 << 10;

fuzz_target!(|bytes: &[u8]| {
    let mut lines = bytes.splitn(6, |byte| *byte == b'\n');
    let mut line = || String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
    let [normalizer, pre_tokenizer, post_processor, decoder, text] =
        std::array::from_fn(|_| line());
    let table = lines.next().unwrap_or_default();
    let with_table = || {
        format!(
            r#"{{"type":"Precompiled","precompiled_charsmap":"{}"}}"#,
            STANDARD.encode(table)
        )
    };
    let normalizer = if table.is_empty() {
        normalizer
    } else {
        with_table()
    };
    let mut json = vocabulary();
    let names = ["normalizer", "pre_tokenizer", "post_processor", "decoder"];
    for (name, part) in names
        .into_iter()
        .zip([normalizer, pre_tokenizer, post_processor, decoder])
    {
        if !part.is_empty() {
            let _ = write!(json, r#","{name}":{part}"#);
        }
    }
    json.push('}');
    let Ok(tokenizer) = Tokenizer::from_json(json.as_bytes()) else {
        return;
    };
    for add_special in [false, true] {
        let Ok(ids) = tokenizer.encode(&text, add_special) else {
            continue;
        };
        assert!(
            ids.len() <= IDS_PER_BYTE_MAX * text.len() + IDS_BESIDES_MAX,
            "{} ids",
            ids.len()
        );
        let mut previous = None;
        for id in ids.into_iter().take(100) {
            tokenizer.token_bytes(id, previous);
            previous = Some(id);
        }
    }
});

/// The beginning of a tokenizer.json with a token for each of some characters, and one that is found first.
fn vocabulary() -> String {
    let plain = (' '..='~').filter(|character| !['"', '\\'].contains(character));
    let tokens = plain.chain('\u{a1}'..='\u{180}').chain(['\u{2581}']);
    let tokens = tokens
        .zip(1..)
        .map(|(character, id)| format!(r#","{character}":{id}"#))
        .collect::<String>();
    let added = r#"{"id":0,"content":"<s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false}"#;
    let added = added.replace("false}", r#"false,"special":true}"#);
    format!(
        r#"{{"added_tokens":[{added}],"model":{{"type":"BPE","vocab":{{"<s>":0{tokens}}},"merges":[]}}"#
    )
}
