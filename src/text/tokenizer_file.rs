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
    let builder = BpeBuilder::new().vocab_and_merges(file.vocab, file.merges.0);
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
    merges: Merges,
}

/// Pairs of tokens to merge, in order of rank.
struct Merges(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Merges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Merges;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list of merges")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merges, A::Error> {
                let mut merges = Vec::new();
                while let Some(Merge(merge)) = list.next_element()? {
                    merges.extend(merge);
                }
                Ok(Merges(merges))
            }
        }
        deserializer.deserialize_seq(List)
    }
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
