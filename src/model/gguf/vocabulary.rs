//! Translates a file's vocabulary to a `tokenizer.json`: byte-level BPE with merges, or SentencePiece BPE with scores
//! and byte fallback.

use super::metadata::Metadata;
use crate::model::LoadError;
use hashbrown::HashMap;
use serde::{Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// Value in `tokenizer.ggml.token_type` of control tokens, which never come from a user's text.
const CONTROL: u32 = 3;
/// Value in `tokenizer.ggml.token_type` of user-defined tokens, which are matched in text before anything else.
const USER_DEFINED: u32 = 4;

/// Longer tokens are not searched for merges.
const MERGED_BYTES_MAX: usize = 192;

/// The split pattern of GPT-4 and similar models: letters, numbers and the rest; `{}` is how many digits stay together.
const SPLIT_GPT4: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// The split pattern of GPT-4o.
const SPLIT_O200K: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// The split pattern of Mistral's Tekken.
const SPLIT_TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// [`SPLIT_GPT4`] as in Qwen 3.5: marks belong to the letters before them.
const SPLIT_MARKS: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// How text is split before merging.
enum Split {
    /// By a regular expression.
    Pattern(String),
    /// Like GPT-2.
    Gpt2,
    /// Like GPT-2, with each digit separate.
    Gpt2Digits,
}

/// The settings that a name in `tokenizer.ggml.pre` stands for.
struct Style {
    split: Split,
    /// Whether whole words of the vocabulary skip merging.
    ignore_merges: bool,
    /// Whether texts start with a BOS token by default.
    adds_bos: bool,
}

/// The style for a name; several names may share one.
fn style(name: &str) -> Option<Style> {
    let gpt4 = |digits: &str| Split::Pattern(SPLIT_GPT4.replace("{}", digits));
    let plain = |split| Some(Style { split, ignore_merges: false, adds_bos: false });
    let with_words = |split| Some(Style { split, ignore_merges: true, adds_bos: true });
    match name {
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2" => {
            with_words(gpt4("{1,3}"))
        }
        "tekken" => with_words(Split::Pattern(SPLIT_TEKKEN.into())),
        "dbrx" | "smaug-bpe" | "chatglm-bpe" => plain(gpt4("{1,3}")),
        "qwen2" | "deepseek-r1-qwen" | "megrez" | "stablelm2" | "hunyuan" | "solar-open" | "grok-2" | "kormo" => {
            plain(gpt4(""))
        }
        "qwen35" => plain(Split::Pattern(SPLIT_MARKS.into())),
        "gpt-4o" | "llama4" | "kanana2" => plain(Split::Pattern(SPLIT_O200K.into())),
        "gpt-2" | "phi-2" | "olmo" | "mpt" | "jais" | "trillion" | "granite-docling" | "default" => plain(Split::Gpt2),
        "smollm" | "starcoder" | "refact" | "codeshell" | "command-r" | "exaone" | "minerva-7b" => {
            plain(Split::Gpt2Digits)
        }
        _ => None,
    }
}

/// The tokens of a vocabulary.
struct Tokens<'a> {
    texts: Vec<Cow<'a, str>>,
    kinds: Vec<u32>,
}

/// Ids by text. Serialized as `model.vocab` of a tokenizer.json.
struct Ids<'a>(HashMap<&'a str, u32>);

impl Serialize for Ids<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(&self.0)
    }
}

/// `model` of a tokenizer.json. It has up to a million strings, so it is written without a [`Value`] for each.
#[derive(Serialize)]
struct Bpe<'a, Merge> {
    r#type: &'a str,
    unk_token: Option<&'a str>,
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    vocab: Ids<'a>,
    merges: Vec<Merge>,
}

impl<'a> Tokens<'a> {
    fn read(metadata: &'a Metadata) -> Result<Self, LoadError> {
        let key = "tokenizer.ggml.tokens";
        let texts = metadata.required(key, metadata.texts(key)?)?;
        let kinds = metadata.kinds("tokenizer.ggml.token_type")?.unwrap_or_else(|| vec![1; texts.len()]);
        same_length(metadata, "tokenizer.ggml.token_type", kinds.len(), texts.len())?;
        Ok(Self { texts, kinds })
    }

    /// Ids by text; the first id if several tokens have the same text.
    fn ids(&self) -> Ids<'_> {
        let mut ids = HashMap::with_capacity(self.texts.len());
        for (id, text) in (0..).zip(&self.texts) {
            ids.entry(text.as_ref()).or_insert(id);
        }
        Ids(ids)
    }

    fn added(&self) -> Value {
        let added = self.texts.iter().zip(&self.kinds).enumerate();
        let added = added.filter(|(_, (text, kind))| matches!(**kind, CONTROL | USER_DEFINED) && !text.is_empty());
        let entry = |(id, (text, kind)): (usize, (&Cow<'_, str>, &u32))| {
            json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": *kind == CONTROL})
        };
        Value::Array(added.map(entry).collect())
    }
}

fn same_length(metadata: &Metadata, key: &str, found: usize, tokens: usize) -> Result<(), LoadError> {
    if found == tokens {
        return Ok(());
    }
    Err(metadata.invalid(key, format!("has {found} entries for {tokens} tokens")))
}

/// A tokenizer.json.
#[derive(Serialize)]
struct File {
    version: &'static str,
    added_tokens: Value,
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    decoder: Value,
    model: Box<RawValue>,
}

/// The equivalent `tokenizer.json`; `None` if the file has no vocabulary.
pub(super) fn tokenizer_json(metadata: &Metadata) -> Result<Option<Vec<u8>>, LoadError> {
    let key = "tokenizer.ggml.model";
    let Some(kind) = metadata.text(key)?.filter(|kind| !matches!(*kind, "none" | "no_vocab")) else {
        return Ok(None);
    };
    let tokens = Tokens::read(metadata)?;
    let (model, normalizer, pre_tokenizer, decoder) = match kind {
        "gpt2" => byte_level(metadata, &tokens)?,
        "llama" => sentence_piece(metadata, &tokens)?,
        other => return Err(metadata.invalid(key, format!("is {other:?}, not gpt2 or llama"))),
    };
    let pre = metadata.text("tokenizer.ggml.pre")?.and_then(style);
    let adds_bos = kind == "llama" || pre.is_some_and(|style| style.adds_bos);
    let post_processor = post_processor(metadata, &tokens, adds_bos)?;
    let added_tokens = tokens.added();
    let file = File { version: "1.0", added_tokens, normalizer, pre_tokenizer, post_processor, decoder, model };
    Ok(Some(serde_json::to_vec(&file).expect("strings and numbers")))
}

/// Model, normalizer, pre-tokenizer and decoder.
type Parts = (Box<RawValue>, Value, Value, Value);

fn byte_level(metadata: &Metadata, tokens: &Tokens<'_>) -> Result<Parts, LoadError> {
    let key = "tokenizer.ggml.pre";
    let name = metadata.text(key)?.unwrap_or("default");
    let Style { split, ignore_merges, .. } = style(name)
        .ok_or_else(|| metadata.invalid(key, format!("is {name:?}, a pre-tokenizer that is not supported")))?;
    let key = "tokenizer.ggml.merges";
    let merges = metadata.required(key, metadata.texts(key)?)?;
    let ids = tokens.ids();
    for merge in &merges {
        // The first character of a token may be the one that stands for a space, but never a space.
        let whole = merge.split_once(' ').map(|(left, right)| (left, right, format!("{left}{right}")));
        let known =
            whole.is_some_and(|(left, right, both)| [left, right, &both].iter().all(|t| ids.0.contains_key(*t)));
        if !known {
            return Err(metadata.invalid(key, format!("has the merge {merge:?}, which is not two tokens")));
        }
    }
    let (r#type, unk_token) = ("BPE", None);
    let model = Bpe { r#type, unk_token, fuse_unk: false, byte_fallback: false, ignore_merges, vocab: ids, merges };
    let model = to_raw_value(&model).expect("strings and numbers");
    let bytes = |use_regex: bool| {
        let kind = "ByteLevel";
        json!({"type": kind, "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
    };
    let sequence = |first: Value, second: Value| json!({"type": "Sequence", "pretokenizers": [first, second]});
    let splitter = match split {
        Split::Pattern(pattern) => sequence(
            json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false}),
            bytes(false),
        ),
        Split::Gpt2 => bytes(true),
        Split::Gpt2Digits => sequence(json!({"type": "Digits", "individual_digits": true}), bytes(true)),
    };
    let normalizer = if name == "qwen2" { json!({"type": "NFC"}) } else { Value::Null };
    Ok((model, normalizer, splitter, bytes(true)))
}

fn sentence_piece(metadata: &Metadata, tokens: &Tokens<'_>) -> Result<Parts, LoadError> {
    let key = "tokenizer.ggml.scores";
    let scores = metadata.required(key, metadata.numbers(key)?)?;
    same_length(metadata, key, scores.len(), tokens.texts.len())?;
    let unknown = metadata.integer("tokenizer.ggml.unknown_token_id", 0..=u32::MAX)?.unwrap_or(0);
    let unk_token = tokens.texts.get(unknown as usize).map(AsRef::as_ref);
    let vocab = tokens.ids();
    let merges = merges_by_score(tokens, &vocab, &scores);
    let (r#type, ignore_merges) = ("BPE", false);
    let model = Bpe { r#type, unk_token, fuse_unk: true, byte_fallback: true, ignore_merges, vocab, merges };
    let model = to_raw_value(&model).expect("strings and numbers");
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
    let has_prefix = metadata.boolean("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let mut normalizers = Vec::new();
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if has_prefix {
        normalizers.push(json!({"type": "Prepend", "prepend": "\u{2581}"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    normalizers.push(replace);
    let normalizer = json!({"type": "Sequence", "normalizers": normalizers});
    Ok((model, normalizer, Value::Null, json!({"type": "Sequence", "decoders": decoders})))
}

/// Every way to make a token of two others, the highest-scored token first. Merging by this rank is equivalent to
/// SentencePiece's merging by score.
fn merges_by_score<'a>(tokens: &'a Tokens<'_>, ids: &Ids<'_>, scores: &[f32]) -> Vec<[&'a str; 2]> {
    let mut merges = Vec::with_capacity(2 * tokens.texts.len());
    for (text, (&score, &kind)) in tokens.texts.iter().zip(scores.iter().zip(&tokens.kinds)) {
        if kind == CONTROL || text.len() > MERGED_BYTES_MAX {
            continue;
        }
        for (at, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(at);
            if let Some(&left) = ids.0.get(left)
                && let Some(&right) = ids.0.get(right)
            {
                merges.push((score, left, right));
            }
        }
    }
    merges.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let text = |id: u32| tokens.texts[id as usize].as_ref();
    merges.into_iter().map(|(_, left, right)| [text(left), text(right)]).collect()
}

/// Adds BOS and EOS around a text, if the file says so.
fn post_processor(metadata: &Metadata, tokens: &Tokens<'_>, bos_default: bool) -> Result<Value, LoadError> {
    let wanted = |flag: &str, id: &str, default: bool| -> Result<Option<(u32, String)>, LoadError> {
        if !metadata.boolean(flag)?.unwrap_or(default) {
            return Ok(None);
        }
        let id = metadata.integer(id, 0..=u32::MAX)?;
        Ok(id.and_then(|id| Some((id, tokens.texts.get(id as usize)?.to_string()))))
    };
    let bos = wanted("tokenizer.ggml.add_bos_token", "tokenizer.ggml.bos_token_id", bos_default)?;
    let eos = wanted("tokenizer.ggml.add_eos_token", "tokenizer.ggml.eos_token_id", false)?;
    if bos.is_none() && eos.is_none() {
        return Ok(Value::Null);
    }
    let mut specials = Map::new();
    for (id, text) in bos.iter().chain(&eos) {
        specials.insert(text.clone(), json!({"id": text, "ids": [id], "tokens": [text]}));
    }
    let part = |token: &Option<(u32, String)>, kind: u32| {
        token.as_ref().map(|(_, text)| json!({"SpecialToken": {"id": text, "type_id": kind}}))
    };
    let around = |sequence: &str, kind: u32| -> Vec<Value> {
        let text = json!({"Sequence": {"id": sequence, "type_id": kind}});
        part(&bos, kind).into_iter().chain([text]).chain(part(&eos, kind)).collect()
    };
    let pair: Vec<Value> = [around("A", 0), around("B", 1)].concat();
    Ok(json!({"type": "TemplateProcessing", "single": around("A", 0), "pair": pair, "special_tokens": specials}))
}

/// The equivalent `tokenizer_config.json`.
pub(super) fn tokenizer_config_json(metadata: &Metadata) -> Result<Value, LoadError> {
    let mut config = Map::new();
    if let Some(template) = metadata.text("tokenizer.chat_template")? {
        config.insert("chat_template".into(), template.into());
    }
    let texts = metadata.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
    for (key, name) in [
        ("tokenizer.ggml.bos_token_id", "bos_token"),
        ("tokenizer.ggml.eos_token_id", "eos_token"),
        ("tokenizer.ggml.unknown_token_id", "unk_token"),
        ("tokenizer.ggml.padding_token_id", "pad_token"),
    ] {
        let id = metadata.integer(key, 0..=u32::MAX)?;
        if let Some(text) = id.and_then(|id| texts.get(id as usize)) {
            config.insert(name.into(), text.as_ref().into());
        }
    }
    Ok(Value::Object(config))
}

/// Names of control tokens that end a turn, even if the metadata does not list them.
const END_NAMES: [&str; 8] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|return|>",
    "<end_of_turn>",
];

/// Ids that end an answer.
pub(super) fn end_tokens(metadata: &Metadata, vocab: u64) -> Result<Vec<u32>, LoadError> {
    let mut ids = Vec::new();
    for key in ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"] {
        if let Some(id) = metadata.integer(key, 0..=u32::MAX)? {
            if u64::from(id) >= vocab {
                return Err(metadata.invalid(key, format!("is {id}, not a token id below the vocabulary of {vocab}")));
            }
            ids.push(id);
        }
    }
    let key = "tokenizer.ggml.tokens";
    let texts = metadata.texts(key)?.unwrap_or_default();
    if texts.len() as u64 > vocab {
        let message = format!("has {} entries, but token_embd.weight has {vocab} rows", texts.len());
        return Err(metadata.invalid(key, message));
    }
    let kinds = metadata.kinds("tokenizer.ggml.token_type")?.unwrap_or_default();
    for ((id, text), kind) in (0..).zip(&texts).zip(kinds) {
        if kind == CONTROL && END_NAMES.contains(&text.as_ref()) && u64::from(id) < vocab {
            ids.push(id);
        }
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}
