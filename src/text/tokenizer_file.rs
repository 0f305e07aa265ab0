//! Reads a `tokenizer.json`.
//!
//! The library's own reader keeps a vocabulary in a general form before it builds its tables, which takes more than a
//! second for 262,144 tokens. BPE, which nearly all models use, is read straight into the form of its builder here.

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;
use std::fmt;
use tokenizers::models::bpe::{BpeBuilder, Vocab};
use tokenizers::{
    AddedToken, DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Tokenizer,
};

/// A `tokenizer.json`, except for its model's vocabulary. Truncation and padding are ignored: a prompt is never cut
/// silently.
#[derive(Deserialize)]
pub(super) struct TokenizerFile<'a> {
    #[serde(default)]
    pub(super) added_tokens: Vec<AddedToken>,
    #[serde(default)]
    pub(super) normalizer: Value,
    #[serde(default)]
    pub(super) pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    pub(super) decoder: Value,
    #[serde(borrow)]
    model: &'a RawValue,
}

impl<'a> TokenizerFile<'a> {
    pub(super) fn from_json(json: &'a [u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(json)
    }

    /// The tokenizer that it describes.
    pub(super) fn tokenizer(&self) -> tokenizers::Result<Tokenizer> {
        let mut tokenizer = Tokenizer::new(model(self.model)?);
        tokenizer.with_normalizer(Option::<NormalizerWrapper>::deserialize(&self.normalizer)?)?;
        tokenizer.with_pre_tokenizer(Option::<PreTokenizerWrapper>::deserialize(&self.pre_tokenizer)?);
        tokenizer.with_post_processor(Option::<PostProcessorWrapper>::deserialize(&self.post_processor)?);
        tokenizer.with_decoder(Option::<DecoderWrapper>::deserialize(&self.decoder)?);
        tokenizer.add_tokens(self.added_tokens.iter().cloned())?;
        Ok(tokenizer)
    }
}

fn model(json: &RawValue) -> tokenizers::Result<ModelWrapper> {
    #[derive(Deserialize)]
    struct Kind {
        r#type: Option<String>,
    }
    let Kind { r#type: kind } = serde_json::from_str(json.get())?;
    if kind.as_deref() != Some("BPE") {
        return Ok(serde_json::from_str(json.get())?);
    }
    let file: Bpe = serde_json::from_str(json.get())?;
    let merges = file.merges.into_iter().filter_map(|Merge(pair)| pair).collect();
    let builder = BpeBuilder::new().vocab_and_merges(file.vocab, merges);
    let builder = builder.fuse_unk(file.fuse_unk.unwrap_or_default());
    let builder = builder.byte_fallback(file.byte_fallback.unwrap_or_default());
    let mut builder = builder.ignore_merges(file.ignore_merges.unwrap_or_default());
    if let Some(dropout) = file.dropout {
        builder = builder.dropout(dropout);
    }
    if let Some(token) = file.unk_token {
        builder = builder.unk_token(token);
    }
    if let Some(prefix) = file.continuing_subword_prefix {
        builder = builder.continuing_subword_prefix(prefix);
    }
    if let Some(suffix) = file.end_of_word_suffix {
        builder = builder.end_of_word_suffix(suffix);
    }
    Ok(builder.build()?.into())
}

/// A `model` of type BPE.
#[derive(Deserialize)]
struct Bpe {
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    vocab: Vocab,
    /// In order of rank.
    merges: Vec<Merge>,
}

/// Two tokens, as a list or as text with a space between them; `None` for a line with the format's version.
struct Merge(Option<(String, String)>);

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pair;
        impl<'de> Visitor<'de> for Pair {
            type Value = Merge;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("two tokens")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Merge, E> {
                if text.starts_with("#version") {
                    return Ok(Merge(None));
                }
                match text.split_once(' ') {
                    Some((left, right)) if !right.contains(' ') => Ok(Merge(Some((left.into(), right.into())))),
                    _ => Err(E::custom(format_args!("the merge {text:?} is not two tokens"))),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merge, A::Error> {
                match (list.next_element()?, list.next_element()?, list.next_element::<String>()?) {
                    (Some(left), Some(right), None) => Ok(Merge(Some((left, right)))),
                    _ => Err(A::Error::custom("a merge is not two tokens")),
                }
            }
        }
        deserializer.deserialize_any(Pair)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::demo;
    use serde_json::json;

    /// The library's own reader is the reference.
    #[test]
    fn a_file_is_read_as_the_library_reads_it() {
        let demo: Value = serde_json::from_slice(demo::TOKENIZER_JSON).expect("the demo's tokenizer is JSON");
        let mut with_pairs = demo.clone();
        let merges = with_pairs["model"]["merges"].as_array_mut().expect("it has merges");
        for merge in merges.iter_mut() {
            let pair: Vec<&str> = merge.as_str().map_or_else(Vec::new, |text| text.split(' ').collect());
            *merge = if pair.is_empty() { merge.clone() } else { json!(pair) };
        }
        let small = json!({
            "type": "BPE", "dropout": 0.5, "unk_token": "?", "continuing_subword_prefix": "##",
            "end_of_word_suffix": "</w>", "fuse_unk": true, "byte_fallback": true, "ignore_merges": true,
            "vocab": {"?": 0, "a": 1, "##b": 2, "ab": 3}, "merges": ["#version: 0.2", "a ##b"],
        });
        let pieces = json!({"type": "WordLevel", "vocab": {"?": 0, "a": 1}, "unk_token": "?"});
        let with_model = |model: Value| json!({"version": "1.0", "added_tokens": [], "model": model});
        for json in [demo, with_pairs, with_model(small), with_model(pieces)] {
            let text = json.to_string();
            let expected = Tokenizer::from_bytes(text.as_bytes()).expect("the library reads it");
            let found = TokenizerFile::from_json(text.as_bytes()).expect("it is a tokenizer.json");
            let found = found.tokenizer().expect("it describes a tokenizer");
            let value = |tokenizer: &Tokenizer| serde_json::to_value(tokenizer).expect("it is JSON");
            assert!(value(&found) == value(&expected), "{text:.300}");
        }
        for merge in [json!("ab"), json!("a b c"), json!(["a"]), json!(["a", "b", "c"]), json!(7)] {
            let model = json!({"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [merge]});
            let text = with_model(model).to_string();
            let file = TokenizerFile::from_json(text.as_bytes()).expect("it is a tokenizer.json");
            assert!(file.tokenizer().is_err(), "{text}");
        }
    }
}
