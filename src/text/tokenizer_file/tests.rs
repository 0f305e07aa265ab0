//! Tests of `text/tokenizer_file.rs`.

use super::*;
use crate::model::demo;
use serde_json::json;
use tokenizers::{Model as _, ModelWrapper, Tokenizer};

const SAMPLES: [&str; 4] = [
    "Once upon a time, there",
    " a  b\n\n12345 it's",
    "<|im_start|>user\nh\u{e9}<|im_end|>",
    "abaab",
];

/// The library's own reader is the reference.
#[test]
fn a_file_is_read_as_the_library_reads_it() {
    let demo: Value =
        serde_json::from_slice(demo::TOKENIZER_JSON).expect("the demo's tokenizer is JSON");
    let mut with_pairs = demo.clone();
    let merges = with_pairs["model"]["merges"]
        .as_array_mut()
        .expect("it has merges");
    for merge in merges.iter_mut() {
        let pair: Vec<&str> = merge
            .as_str()
            .map_or_else(Vec::new, |text| text.split(' ').collect());
        *merge = if pair.is_empty() {
            merge.clone()
        } else {
            json!(pair)
        };
    }
    let small = json!({
        "type": "BPE", "dropout": 0.5, "unk_token": "?", "continuing_subword_prefix": "##",
        "end_of_word_suffix": "</w>", "fuse_unk": true, "byte_fallback": true, "ignore_merges": true,
        "vocab": {"?": 0, "a": 1, "##b": 2, "ab": 3}, "merges": ["#version: 0.2", "a ##b"],
    });
    let escaped = json!({
        "type": "BPE", "unk_token": "?", "fuse_unk": true, "byte_fallback": false, "ignore_merges": false,
        "vocab": {"?": 0, "a": 1, "b": 9, "ab": 3, "\n\u{e9}": 4, "\n": 5, "\u{e9}": 7},
        "merges": ["#version: 0.2", "a b", "\n \u{e9}"],
    });
    let pieces = json!({"type": "WordLevel", "vocab": {"?": 0, "a": 1}, "unk_token": "?"});
    let with_model = |model: Value| json!({"version": "1.0", "added_tokens": [], "model": model});
    for json in [
        demo,
        with_pairs,
        with_model(small),
        with_model(escaped),
        with_model(pieces),
    ] {
        let text = json.to_string();
        let expected = Tokenizer::from_bytes(text.as_bytes()).expect("the library reads it");
        let found = TokenizerFile::from_json(text.as_bytes()).expect("it is a tokenizer.json");
        let found = found.tokenizer().expect("it describes a tokenizer");
        assert_eq!(
            found.get_model().get_vocab(),
            expected.get_model().get_vocab(),
            "{text:.300}"
        );
        if let TokenModel::Library(found) = found.get_model() {
            let value = |model: &ModelWrapper| serde_json::to_value(model).expect("it is JSON");
            assert!(value(found) == value(expected.get_model()), "{text:.300}");
            // With dropout, ids are drawn.
            continue;
        }
        for sample in SAMPLES {
            let ids = expected
                .encode_fast(sample, true)
                .map(|encoding| encoding.get_ids().to_vec());
            let found = found
                .encode_fast(sample, true)
                .map(|encoding| encoding.get_ids().to_vec());
            assert_eq!(found.ok(), ids.ok(), "{sample}: {text:.300}");
        }
    }
    for merge in [
        json!("ab"),
        json!("a b c"),
        json!(["a"]),
        json!(["a", "b", "c"]),
        json!(7),
    ] {
        let model = json!({"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [merge]});
        let text = with_model(model).to_string();
        let file = TokenizerFile::from_json(text.as_bytes()).expect("it is a tokenizer.json");
        assert!(file.tokenizer().is_err(), "{text}");
    }
}
