//! Reads a `tokenizer.json`.
//!
//! The library's own reader keeps a vocabulary in a general form before it builds its tables, which takes more than a
//! second for 262,144 tokens. BPE, which nearly all models use, is read straight into the tables of [`bpe`] here; only
//! its rare options are left to the library.

use super::bpe::{self, BpeOptions, TokenModel, Vocabulary};
use super::growth::Normalizers;
use super::tokenizer_parts as parts;
use serde::de::{DeserializeOwned, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use tokenizers::models::bpe::{BpeBuilder, Vocab};
use tokenizers::{
    AddedToken, DecoderWrapper, PostProcessorWrapper, PreTokenizerWrapper, Result, TokenizerImpl,
};

/// The library's tokenizer, with a model that may be ours.
pub(super) type Inner = TokenizerImpl<
    TokenModel,
    Normalizers,
    PreTokenizerWrapper,
    PostProcessorWrapper,
    DecoderWrapper,
>;

/// A `tokenizer.json`, except for its model's vocabulary. Truncation and padding are ignored: a prompt is never cut
/// silently.
pub(super) struct TokenizerFile<'a> {
    pub(super) added_tokens: Vec<AddedToken>,
    pub(super) normalizer: Value,
    pub(super) pre_tokenizer: Value,
    post_processor: Value,
    pub(super) decoder: Value,
    model: &'a RawValue,
}

/// The same, before its parts are read.
#[derive(Deserialize)]
struct Unread<'a> {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(borrow)]
    normalizer: Option<&'a RawValue>,
    #[serde(borrow)]
    pre_tokenizer: Option<&'a RawValue>,
    #[serde(borrow)]
    post_processor: Option<&'a RawValue>,
    #[serde(borrow)]
    decoder: Option<&'a RawValue>,
    #[serde(borrow)]
    model: &'a RawValue,
}

impl<'a> TokenizerFile<'a> {
    pub(super) fn from_json(json: &'a [u8]) -> Result<Self> {
        let file: Unread<'_> = serde_json::from_slice(json)?;
        Ok(Self {
            added_tokens: file.added_tokens,
            normalizer: parts::read("normalizer", file.normalizer)?,
            pre_tokenizer: parts::read("pre_tokenizer", file.pre_tokenizer)?,
            post_processor: parts::read("post_processor", file.post_processor)?,
            decoder: parts::read("decoder", file.decoder)?,
            model: file.model,
        })
    }

    /// The tokenizer that it describes.
    pub(super) fn tokenizer(&self) -> Result<Inner> {
        let kind = self.model_kind()?;
        if kind.as_deref() != Some("BPE") {
            return self.with_model(TokenModel::Library(Box::new(serde_json::from_str(
                self.model.get(),
            )?)));
        }
        let model: Bpe<'_> = serde_json::from_str(self.model.get())?;
        let vocab = model.vocab.as_ref().ok_or("its model has no vocab")?;
        let merges: Vec<_> = model
            .merges
            .iter()
            .flatten()
            .filter_map(|Merge(pair)| pair.as_ref())
            .collect();
        if !model.is_rare()
            && let Some(vocabulary) =
                Vocabulary::new(vocab.0.iter().map(|(text, id)| (text.as_ref(), *id)))
        {
            let ranked = (0..).zip(merges);
            let merges = ranked.map(|(rank, (left, right))| by_id(&vocabulary, left, right, rank));
            let merges = merges.collect::<Result<Vec<_>>>()?;
            return self.with_model(TokenModel::Bpe(bpe::Bpe::new(
                vocabulary,
                &merges,
                model.options(),
            )));
        }
        let vocab: Vocab = vocab
            .0
            .iter()
            .map(|(text, id)| (text.to_string(), *id))
            .collect();
        let merges = merges
            .into_iter()
            .map(|(left, right)| (left.to_string(), right.to_string()))
            .collect();
        let model = model.builder().vocab_and_merges(vocab, merges).build()?;
        self.with_model(TokenModel::Library(Box::new(model.into())))
    }

    /// The tokenizer that it describes, with a vocabulary and merges that are not in the file. A merge is two tokens
    /// and what they become, by id, and its rank.
    pub(super) fn with_tables<'t>(
        &self,
        tokens: impl Iterator<Item = (&'t str, u32)> + Clone,
        merges: &[[u32; 4]],
    ) -> Result<Inner> {
        let model: Bpe<'_> = serde_json::from_str(self.model.get())?;
        let vocabulary = Vocabulary::new(tokens).ok_or("its ids are not those of a list")?;
        self.with_model(TokenModel::Bpe(bpe::Bpe::new(
            vocabulary,
            merges,
            model.options(),
        )))
    }

    fn with_model(&self, model: TokenModel) -> Result<Inner> {
        let mut tokenizer = Inner::new(model);
        let at = |part: &'static str| move |error: tokenizers::Error| format!("`{part}`: {error}");
        let normalizers = Normalizers::from_json(&self.normalizer);
        tokenizer.with_normalizer(normalizers.map_err(at("normalizer"))?)?;
        let pre_tokenizer =
            part::<PreTokenizerWrapper>(&self.pre_tokenizer, parts::check_pre_tokenizer);
        tokenizer.with_pre_tokenizer(pre_tokenizer.map_err(at("pre_tokenizer"))?);
        let post_processor =
            part::<PostProcessorWrapper>(&self.post_processor, parts::check_post_processor);
        tokenizer.with_post_processor(post_processor.map_err(at("post_processor"))?);
        let decoder = part::<DecoderWrapper>(&self.decoder, parts::check_decoder);
        tokenizer.with_decoder(decoder.map_err(at("decoder"))?);
        if let Some(long) = self
            .added_tokens
            .iter()
            .find(|token| token.content.len() > parts::ADDED_TOKEN_BYTES_MAX)
        {
            let (bytes, most) = (long.content.len(), parts::ADDED_TOKEN_BYTES_MAX);
            return Err(format!("`added_tokens`: one has {bytes} bytes, of at most {most}").into());
        }
        tokenizer.add_tokens(self.added_tokens.iter().cloned())?;
        Ok(tokenizer)
    }

    fn model_kind(&self) -> Result<Option<String>> {
        #[derive(Deserialize)]
        struct Kind {
            r#type: Option<String>,
        }
        Ok(serde_json::from_str::<Kind>(self.model.get())?.r#type)
    }
}

/// Builds a part of a tokenizer, if the file has it.
fn part<T: DeserializeOwned>(
    json: &Value,
    check: fn(&Value) -> std::result::Result<(), String>,
) -> Result<Option<T>> {
    check(json)?;
    Ok(Option::deserialize(json)?)
}

fn by_id(vocabulary: &Vocabulary, left: &str, right: &str, rank: u32) -> Result<[u32; 4]> {
    let id = |text: &str| {
        vocabulary
            .id(text)
            .ok_or_else(|| format!("the merge token {text:?} is not in the vocabulary"))
    };
    Ok([id(left)?, id(right)?, id(&[left, right].concat())?, rank])
}

/// A `model` of type BPE.
#[derive(Deserialize)]
struct Bpe<'a> {
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    #[serde(borrow)]
    vocab: Option<Texts<'a>>,
    /// In order of rank.
    #[serde(borrow)]
    merges: Option<Vec<Merge<'a>>>,
}

impl Bpe<'_> {
    /// Whether it has an option that only the library knows.
    fn is_rare(&self) -> bool {
        let affixes = [&self.continuing_subword_prefix, &self.end_of_word_suffix];
        self.dropout.is_some_and(|dropout| dropout != 0.0)
            || affixes.into_iter().flatten().any(|text| !text.is_empty())
    }

    fn options(&self) -> BpeOptions {
        BpeOptions {
            unknown: self.unk_token.clone(),
            fuse_unknown: self.fuse_unk.unwrap_or_default(),
            byte_fallback: self.byte_fallback.unwrap_or_default(),
            ignore_merges: self.ignore_merges.unwrap_or_default(),
        }
    }

    fn builder(&self) -> BpeBuilder {
        let BpeOptions {
            unknown,
            fuse_unknown,
            byte_fallback,
            ignore_merges,
        } = self.options();
        let builder = BpeBuilder::new()
            .fuse_unk(fuse_unknown)
            .byte_fallback(byte_fallback);
        let mut builder = builder.ignore_merges(ignore_merges);
        if let Some(dropout) = self.dropout {
            builder = builder.dropout(dropout);
        }
        if let Some(token) = unknown {
            builder = builder.unk_token(token);
        }
        if let Some(prefix) = self.continuing_subword_prefix.clone() {
            builder = builder.continuing_subword_prefix(prefix);
        }
        if let Some(suffix) = self.end_of_word_suffix.clone() {
            builder = builder.end_of_word_suffix(suffix);
        }
        builder
    }
}

/// A text of the file, copied only if the file escapes a character of it.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Tokens with their ids, in the file's order.
struct Texts<'a>(Vec<(Cow<'a, str>, u32)>);

impl<'de: 'a, 'a> Deserialize<'de> for Texts<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Tokens;
        impl<'de> Visitor<'de> for Tokens {
            type Value = Vec<(Cow<'de, str>, u32)>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("ids by token")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Self::Value, A::Error> {
                let mut tokens = Vec::new();
                while let Some((Text(text), id)) = map.next_entry()? {
                    tokens.push((text, id));
                }
                Ok(tokens)
            }
        }
        deserializer.deserialize_map(Tokens).map(Texts)
    }
}

/// Two tokens, as a list or as text with a space between them; `None` for a line with the format's version.
struct Merge<'a>(Option<(Cow<'a, str>, Cow<'a, str>)>);

impl<'de: 'a, 'a> Deserialize<'de> for Merge<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Pair;
        impl<'de> Visitor<'de> for Pair {
            type Value = Merge<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("two tokens")
            }

            fn visit_borrowed_str<E: serde::de::Error>(
                self,
                text: &'de str,
            ) -> std::result::Result<Merge<'de>, E> {
                let pair = split(text).map_err(E::custom)?;
                Ok(Merge(pair.map(|(left, right)| (left.into(), right.into()))))
            }

            fn visit_str<E: serde::de::Error>(
                self,
                text: &str,
            ) -> std::result::Result<Merge<'de>, E> {
                let pair = split(text).map_err(E::custom)?;
                Ok(Merge(pair.map(|(left, right)| {
                    (left.to_owned().into(), right.to_owned().into())
                })))
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut list: A,
            ) -> std::result::Result<Merge<'de>, A::Error> {
                match (
                    list.next_element()?,
                    list.next_element()?,
                    list.next_element::<Text<'de>>()?,
                ) {
                    (Some(Text(left)), Some(Text(right)), None) => Ok(Merge(Some((left, right)))),
                    _ => Err(A::Error::custom("a merge is not two tokens")),
                }
            }
        }
        deserializer.deserialize_any(Pair)
    }
}

fn split(text: &str) -> std::result::Result<Option<(&str, &str)>, String> {
    if text.starts_with("#version") {
        return Ok(None);
    }
    match text.split_once(' ') {
        Some(pair) if !pair.1.contains(' ') => Ok(Some(pair)),
        _ => Err(format!("the merge {text:?} is not two tokens")),
    }
}

#[cfg(test)]
mod tests;
