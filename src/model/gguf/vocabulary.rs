//! Translates a file's vocabulary to tables and a `tokenizer.json` around them: byte-level BPE with merges, or
//! SentencePiece BPE with scores and byte fallback.

use super::metadata::Metadata;
use crate::model::error::LoadError;
use hashbrown::{DefaultHashBuilder, HashTable};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::hash::BuildHasher as _;

/// Value in `tokenizer.ggml.token_type` of the token for what has no other.
const UNKNOWN: u32 = 2;
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

/// [`SPLIT_GPT4`] as in Seed-Coder: line breaks do not belong to the signs before them.
const SPLIT_SEED: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// The split patterns of DeepSeek V3: numbers, Chinese and Japanese, and the rest.
const SPLIT_DEEPSEEK3: [&str; 3] = [
    r"\p{N}{1,3}",
    r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+",
    concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
];

/// [`SPLIT_O200K`] as in Kimi K2: Chinese characters stay apart from other letters.
const SPLIT_KIMI: &str = concat!(
    r"\p{Han}+",
    r"|[^\r\n\p{L}\p{N}]?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]*[[\p{Ll}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]+[[\p{Ll}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// Chinese, Japanese and Korean text of DeepSeek's first models.
const SPLIT_CJK: &str = r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+";
/// The split patterns of DeepSeek LLM: lines, cased letters, signs, spaces at the end, and numbers.
const SPLIT_DEEPSEEK: [&str; 6] = [
    r"[\r\n]",
    r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
    r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
    r"\s+$",
    SPLIT_CJK,
    r"\p{N}+",
];
/// The split patterns of DeepSeek Coder.
const SPLIT_DEEPSEEK_CODER: [&str; 5] =
    [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", SPLIT_CJK, r"\p{N}"];
/// The split pattern of Poro and Viking: words up to punctuation.
const SPLIT_PORO: &str = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{0964}\x{06D4}\x{060C})]+";

/// Korean, punctuation, Bopomofo, Chinese and Japanese of Youtu's models, before the words of [`SPLIT_O200K`].
const SPLIT_YOUTU_CJK: &str = concat!(
    r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+",
    r"|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}\x{3001}-\x{303F}",
    r"\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+|[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+",
);

/// How text is split before merging.
enum Split {
    /// By regular expressions, each applied to the parts that the one before has left.
    Patterns(Vec<String>),
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
    let patterns = |patterns: &[&str]| {
        Split::Patterns(
            patterns
                .iter()
                .map(|pattern| (*pattern).to_owned())
                .collect(),
        )
    };
    let plain = |split| {
        Some(Style {
            split,
            ignore_merges: false,
            adds_bos: false,
        })
    };
    let with_words = |split| {
        Some(Style {
            split,
            ignore_merges: true,
            adds_bos: false,
        })
    };
    let words_and_bos = |split| {
        Some(Style {
            split,
            ignore_merges: true,
            adds_bos: true,
        })
    };
    match name {
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0"
        | "lfm2" => words_and_bos(gpt4("{1,3}")),
        "tekken" => words_and_bos(Split::Patterns(vec![SPLIT_TEKKEN.into()])),
        "dbrx" | "smaug-bpe" | "chatglm-bpe" | "glm4" | "glm5" => plain(gpt4("{1,3}")),
        "qwen2" | "deepseek-r1-qwen" | "megrez" | "stablelm2" | "hunyuan" | "solar-open"
        | "grok-2" | "kormo" | "f2llmv2" => plain(gpt4("")),
        "deepseek-v3" | "hunyuan-dense" => {
            plain(Split::Patterns(SPLIT_DEEPSEEK3.map(String::from).into()))
        }
        "seed-coder" => plain(Split::Patterns(vec![SPLIT_SEED.into()])),
        "qwen35" => plain(Split::Patterns(vec![SPLIT_MARKS.into()])),
        "gpt-4o" | "llama4" | "kanana2" | "talkie" => {
            plain(Split::Patterns(vec![SPLIT_O200K.into()]))
        }
        "kimi-k2" => plain(patterns(&[SPLIT_KIMI])),
        "minicpm5" => with_words(patterns(&[r"\p{N}{1,3}", &SPLIT_GPT4.replace("{}", "+")])),
        // Each digit is a part of its own.
        "youtu" => with_words(patterns(&[
            SPLIT_YOUTU_CJK,
            &SPLIT_O200K.replace("{1,3}", ""),
        ])),
        "deepseek-llm" => plain(patterns(&SPLIT_DEEPSEEK)),
        "deepseek-coder" => plain(patterns(&SPLIT_DEEPSEEK_CODER)),
        "poro-chat" => plain(patterns(&[SPLIT_PORO])),
        "viking" => plain(patterns(&[SPLIT_PORO, r"\p{N}"])),
        // The second splits a number into groups of three digits from its end.
        "superbpe" => plain(patterns(&[r"\p{N}+", r"(?=(\d{3})+(?!\d))"])),
        "a.x-4.0" | "mellum" | "gigachat" | "gpt-2" | "phi-2" | "olmo" | "mpt" | "jais"
        | "trillion" | "granite-docling" | "exaone4" | "default" => plain(Split::Gpt2),
        "smollm" | "starcoder" | "refact" | "codeshell" | "command-r" | "exaone" | "minerva-7b" => {
            plain(Split::Gpt2Digits)
        }
        _ => None,
    }
}

fn gpt4(digits: &str) -> Split {
    Split::Patterns(vec![SPLIT_GPT4.replace("{}", digits)])
}

/// The tokens of a vocabulary.
struct Tokens<'a> {
    texts: Vec<Cow<'a, str>>,
    kinds: Vec<u32>,
}

/// Tokenizer of a GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub struct Vocabulary<'a> {
    /// A `tokenizer.json` whose model, of type BPE, lacks `vocab` and `merges`.
    pub tokenizer_json: Vec<u8>,
    /// Texts of tokens with their ids; the first id if several tokens have the same text.
    pub tokens: Vec<(Cow<'a, str>, u32)>,
    /// Two tokens and what they become, by id, and the rank of this merge; the lowest goes first, of equal ones the
    /// leftmost in a text.
    pub merges: Vec<[u32; 4]>,
}

/// Ids by text.
struct Ids<'a> {
    texts: &'a [Cow<'a, str>],
    /// Ids, with a part of the hash of their texts: nearly all texts that differ are told apart without a look at them.
    table: HashTable<(u32, u32)>,
    hasher: DefaultHashBuilder,
}

impl<'a> Ids<'a> {
    /// The first id if several tokens have the same text.
    fn new(texts: &'a [Cow<'a, str>]) -> Self {
        let mut ids = Self {
            texts,
            table: HashTable::with_capacity(texts.len()),
            hasher: DefaultHashBuilder::default(),
        };
        for (id, text) in (0..).zip(texts) {
            if ids.get(text).is_none() {
                let (hash, hasher) = (ids.hasher.hash_one(text.as_ref()), &ids.hasher);
                ids.table
                    .insert_unique(hash, (hash_part(hash), id), |entry: &(u32, u32)| {
                        hasher.hash_one(texts[entry.1 as usize].as_ref())
                    });
            }
        }
        ids
    }

    fn get(&self, text: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(text);
        self.table
            .find(hash, |&(part, id)| {
                part == hash_part(hash) && self.texts[id as usize] == text
            })
            .map(|&(_, id)| id)
    }
}

/// The bits of a hash that the table itself uses least.
fn hash_part(hash: u64) -> u32 {
    (hash >> 16) as u32
}

impl<'a> Tokens<'a> {
    fn read(metadata: &'a Metadata) -> Result<Self, LoadError> {
        let key = "tokenizer.ggml.tokens";
        let texts = metadata.required(key, metadata.texts(key)?)?;
        let mut kinds = metadata
            .kinds("tokenizer.ggml.token_type")?
            .unwrap_or_else(|| vec![1; texts.len()]);
        same_length(
            metadata,
            "tokenizer.ggml.token_type",
            kinds.len(),
            texts.len(),
        )?;
        // An end is never text of an answer.
        for id in named_ends(&texts) {
            kinds[id as usize] = CONTROL;
        }
        Ok(Self { texts, kinds })
    }

    /// Tokens that are matched in a text before it is split. Those of Phi-3 also take the white space behind them,
    /// for which a file has no field.
    fn added(&self, metadata: &Metadata) -> Result<Value, LoadError> {
        let name = metadata
            .text("general.name")?
            .unwrap_or_default()
            .to_ascii_lowercase();
        let is_phi3 = name.contains("phi-3") || name.contains("phi3");
        let rstrip = |text: &str, kind: u32| {
            is_phi3 && kind != USER_DEFINED && !matches!(text, "<unk>" | "<s>" | "<|endoftext|>")
        };
        let added = self.texts.iter().zip(&self.kinds).enumerate();
        let added = added.filter(|(_, (text, kind))| {
            matches!(**kind, UNKNOWN | CONTROL | USER_DEFINED) && !text.is_empty()
        });
        Ok(Value::Array(added.map(|(id, (text, kind))| {
            json!({"id": id, "content": text, "single_word": false, "lstrip": false,
                   "rstrip": rstrip(text, *kind), "normalized": false, "special": *kind != USER_DEFINED})
        }).collect()))
    }
}

fn same_length(
    metadata: &Metadata,
    key: &str,
    found: usize,
    tokens: usize,
) -> Result<(), LoadError> {
    if found == tokens {
        return Ok(());
    }
    Err(metadata.invalid(key, format!("has {found} entries for {tokens} tokens")))
}

/// The file's vocabulary; `None` if it has none.
pub(super) fn vocabulary(metadata: &Metadata) -> Result<Option<Vocabulary<'_>>, LoadError> {
    let key = "tokenizer.ggml.model";
    let Some(kind) = metadata
        .text(key)?
        .filter(|kind| !matches!(*kind, "none" | "no_vocab"))
    else {
        return Ok(None);
    };
    let tokens = Tokens::read(metadata)?;
    let ids = Ids::new(&tokens.texts);
    let (
        Parts {
            model,
            normalizer,
            pre_tokenizer,
            decoder,
        },
        merges,
    ) = match kind {
        "gpt2" => byte_level(metadata, &ids)?,
        "llama" => {
            let merges = merges_by_score(&tokens, &ids, &scores(metadata, &tokens)?);
            let has_prefix = metadata
                .boolean("tokenizer.ggml.add_space_prefix")?
                .unwrap_or(true);
            (sentence_piece(metadata, &tokens, has_prefix)?, merges)
        }
        // As SentencePiece, but with a list of merges.
        "gemma4" => (
            sentence_piece(metadata, &tokens, false)?,
            listed_merges(metadata, &ids)?,
        ),
        other => {
            return Err(metadata.invalid(key, format!("is {other:?}, not gpt2, llama or gemma4")));
        }
    };
    let post_processor = post_processor(metadata, &tokens, adds_bos(metadata, kind)?)?;
    let json = json!({
        "version": "1.0", "added_tokens": tokens.added(metadata)?,
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor, "decoder": decoder, "model": model,
    });
    let mut is_first = vec![false; tokens.texts.len()];
    ids.table
        .iter()
        .for_each(|&(_, id)| is_first[id as usize] = true);
    let all = (0..).zip(tokens.texts).zip(is_first);
    let tokens = all
        .filter_map(|((id, text), is_first)| is_first.then_some((text, id)))
        .collect();
    Ok(Some(Vocabulary {
        tokenizer_json: json.to_string().into_bytes(),
        tokens,
        merges,
    }))
}

/// What a tokenizer.json says of a kind of vocabulary.
struct Parts {
    model: Value,
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
}

fn byte_level(metadata: &Metadata, ids: &Ids<'_>) -> Result<(Parts, Vec<[u32; 4]>), LoadError> {
    let key = "tokenizer.ggml.pre";
    let name = metadata.text(key)?.unwrap_or_else(|| {
        tracing::warn!("{key} is missing: text is split as for GPT-2, which may not be how the model was trained");
        "default"
    });
    let Style {
        split,
        ignore_merges,
        ..
    } = style(name).ok_or_else(|| {
        metadata.invalid(
            key,
            format!("is {name:?}, a pre-tokenizer that is not supported"),
        )
    })?;
    let merges = listed_merges(metadata, ids)?;
    let model = json!({"type": "BPE", "fuse_unk": false, "byte_fallback": false, "ignore_merges": ignore_merges});
    let sequence = |mut parts: Vec<Value>, last: Value| {
        parts.push(last);
        json!({"type": "Sequence", "pretokenizers": parts})
    };
    let splitter = match split {
        Split::Patterns(patterns) => {
            sequence(patterns.into_iter().map(|pattern| {
        let pattern = json!({"Regex": pattern});
        json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false})
    }).collect(), bytes(false))
        }
        Split::Gpt2 => bytes(true),
        Split::Gpt2Digits => sequence(
            vec![json!({"type": "Digits", "individual_digits": true})],
            bytes(true),
        ),
    };
    let normalizer = if name == "qwen2" {
        json!({"type": "NFC"})
    } else {
        Value::Null
    };
    Ok((
        Parts {
            model,
            normalizer,
            pre_tokenizer: splitter,
            decoder: bytes(true),
        },
        merges,
    ))
}

fn bytes(use_regex: bool) -> Value {
    let kind = "ByteLevel";
    json!({"type": kind, "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

/// The file's list of merges.
fn listed_merges(metadata: &Metadata, ids: &Ids<'_>) -> Result<Vec<[u32; 4]>, LoadError> {
    let key = "tokenizer.ggml.merges";
    let merges = metadata.required(key, metadata.texts(key)?)?;
    let by_id = |rank: u32, merge: &Cow<'_, str>| {
        // The first character of a token may be the one that stands for a space, but never a space.
        let (left, right) = merge.split_once(' ')?;
        Some([
            ids.get(left)?,
            ids.get(right)?,
            ids.get(&[left, right].concat())?,
            rank,
        ])
    };
    (0..)
        .zip(&merges)
        .map(|(rank, merge)| {
            by_id(rank, merge).ok_or_else(|| {
                metadata.invalid(
                    key,
                    format!("has the merge {merge:?}, which is not two tokens"),
                )
            })
        })
        .collect()
}

/// The scores from which merges of SentencePiece follow.
fn scores(metadata: &Metadata, tokens: &Tokens<'_>) -> Result<Vec<f32>, LoadError> {
    let key = "tokenizer.ggml.scores";
    let scores = metadata.required(key, metadata.numbers(key)?)?;
    same_length(metadata, key, scores.len(), tokens.texts.len())?;
    Ok(scores)
}

/// `has_prefix`: a space is put before a text.
fn sentence_piece(
    metadata: &Metadata,
    tokens: &Tokens<'_>,
    has_prefix: bool,
) -> Result<Parts, LoadError> {
    let unknown = metadata
        .integer("tokenizer.ggml.unknown_token_id", 0..=u32::MAX)?
        .unwrap_or(0);
    let unknown = tokens.texts.get(unknown as usize);
    let model =
        json!({"type": "BPE", "unk_token": unknown, "fuse_unk": true, "byte_fallback": true});
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
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
    let decoder = json!({"type": "Sequence", "decoders": decoders});
    Ok(Parts {
        model,
        normalizer,
        pre_tokenizer: Value::Null,
        decoder,
    })
}

/// Every way to make a token of two others, the highest-scored token first; those of equal scores have one rank.
/// Merging by this rank is equivalent to SentencePiece's merging by score, where of equal scores the leftmost goes
/// first.
fn merges_by_score(tokens: &Tokens<'_>, ids: &Ids<'_>, scores: &[f32]) -> Vec<[u32; 4]> {
    let mut merges = Vec::with_capacity(2 * tokens.texts.len());
    for (text, (&score, &kind)) in tokens.texts.iter().zip(scores.iter().zip(&tokens.kinds)) {
        if kind == CONTROL || text.len() > MERGED_BYTES_MAX {
            continue;
        }
        let mut merged = None;
        for (at, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(at);
            if let Some(left) = ids.get(left)
                && let Some(right) = ids.get(right)
                && let Some(merged) = *merged.get_or_insert_with(|| ids.get(text))
            {
                merges.push((score, [left, right, merged]));
            }
        }
    }
    merges.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut rank = 0;
    let mut ranked = Vec::with_capacity(merges.len());
    let mut last = merges.first().map_or(0.0, |(score, _)| *score);
    for (score, [left, right, merged]) in merges {
        rank += u32::from(score != last);
        last = score;
        ranked.push([left, right, merged, rank]);
    }
    ranked
}

/// Whether a text starts with the BOS.
fn adds_bos(metadata: &Metadata, kind: &str) -> Result<bool, LoadError> {
    let given = metadata.boolean("tokenizer.ggml.add_bos_token")?;
    // Files of Gemma 4 say no, but the model expects it; llama.cpp overrides them too.
    if kind == "gemma4" {
        return Ok(true);
    }
    let pre = metadata.text("tokenizer.ggml.pre")?.and_then(style);
    Ok(given.unwrap_or(kind == "llama" || pre.is_some_and(|style| style.adds_bos)))
}

/// Adds BOS and EOS around a text, if there are such tokens.
fn post_processor(
    metadata: &Metadata,
    tokens: &Tokens<'_>,
    adds_bos: bool,
) -> Result<Value, LoadError> {
    let wanted = |adds: bool, id: &str| -> Result<Option<(u32, String)>, LoadError> {
        if !adds {
            return Ok(None);
        }
        let id = metadata.integer(id, 0..=u32::MAX)?;
        Ok(id.and_then(|id| Some((id, tokens.texts.get(id as usize)?.to_string()))))
    };
    let adds_eos = metadata
        .boolean("tokenizer.ggml.add_eos_token")?
        .unwrap_or(false);
    let bos = wanted(adds_bos, "tokenizer.ggml.bos_token_id")?;
    let eos = wanted(adds_eos, "tokenizer.ggml.eos_token_id")?;
    if bos.is_none() && eos.is_none() {
        return Ok(Value::Null);
    }
    let mut specials = Map::new();
    for (id, text) in bos.iter().chain(&eos) {
        specials.insert(
            text.clone(),
            json!({"id": text, "ids": [id], "tokens": [text]}),
        );
    }
    let part = |token: &Option<(u32, String)>, kind: u32| {
        token
            .as_ref()
            .map(|(_, text)| json!({"SpecialToken": {"id": text, "type_id": kind}}))
    };
    let around = |sequence: &str, kind: u32| -> Vec<Value> {
        let text = json!({"Sequence": {"id": sequence, "type_id": kind}});
        part(&bos, kind)
            .into_iter()
            .chain([text])
            .chain(part(&eos, kind))
            .collect()
    };
    let pair: Vec<Value> = [around("A", 0), around("B", 1)].concat();
    Ok(
        json!({"type": "TemplateProcessing", "single": around("A", 0), "pair": pair, "special_tokens": specials}),
    )
}

/// The chat template, or a list of named ones.
fn chat_template(metadata: &Metadata) -> Result<Option<Value>, LoadError> {
    let default = metadata.text("tokenizer.chat_template")?;
    let names = metadata
        .texts("tokenizer.chat_templates")?
        .unwrap_or_default();
    let mut named: Vec<Value> = default
        .map(|text| json!({"name": "default", "template": text}))
        .into_iter()
        .collect();
    for name in names.iter().filter(|name| *name != "default") {
        let template = metadata.text(&format!("tokenizer.chat_template.{name}"))?;
        named.extend(template.map(|text| json!({"name": name, "template": text})));
    }
    Ok(match (default, named.len()) {
        (_, 0) => None,
        (Some(text), 1) => Some(text.into()),
        _ => Some(named.into()),
    })
}

/// The equivalent `tokenizer_config.json`.
pub(super) fn tokenizer_config_json(metadata: &Metadata) -> Result<Value, LoadError> {
    let mut config = Map::new();
    if let Some(template) = chat_template(metadata)? {
        config.insert("chat_template".into(), template);
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

/// Names of tokens that end an answer, even if the metadata does not list them: those that llama.cpp knows.
const END_NAMES: [&str; 31] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<end_of_turn>",
    "<turn|>",
    "<|tool_response>",
    "<end_of_utterance>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
    "<eos>",
    "</s>",
    // Of files with gaps: padding, a repository's name, and the next file.
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// Ids of tokens whose names say that they end an answer, whatever type the file gives them: converters write plain
/// added tokens of a `tokenizer.json` as user-defined.
fn named_ends(texts: &[Cow<'_, str>]) -> Vec<u32> {
    let found = (0..)
        .zip(texts)
        .filter(|(_, text)| END_NAMES.contains(&text.as_ref()));
    let found: Vec<(u32, &str)> = found.map(|(id, text)| (id, text.as_ref())).collect();
    let has = |name: &str| found.iter().any(|(_, found)| *found == name);
    // Where an answer consists of several messages, this ends one of them.
    let ends_a_message =
        (has("<|return|>") && has("<|call|>")) || (has("<|flush|>") && has("<|calls|>"));
    // Gemma's vocabularies have tags of HTML: this one ends a line through a text.
    let is_markup = has("<end_of_turn>") || has("<|tool_response>");
    let is_end = |name: &str| match name {
        "<|end|>" => !ends_a_message,
        "</s>" => !is_markup,
        _ => true,
    };
    found
        .iter()
        .filter(|(_, name)| is_end(name))
        .map(|(id, _)| *id)
        .collect()
}

/// Ids that end an answer.
pub(super) fn end_tokens(metadata: &Metadata, vocab: u64) -> Result<Vec<u32>, LoadError> {
    let mut ids = Vec::new();
    // As llama.cpp does, with a warning.
    let mut add = |key: &str, id: u32| match u64::from(id) < vocab {
        true => ids.push(id),
        false => tracing::warn!(
            "{key} is {id}, not a token id below the vocabulary of {vocab}; it is ignored"
        ),
    };
    for key in [
        "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.eom_token_id",
        "tokenizer.ggml.fim_pad_token_id",
        "tokenizer.ggml.fim_rep_token_id",
        "tokenizer.ggml.fim_sep_token_id",
    ] {
        if let Some(id) = metadata.integer(key, 0..=u32::MAX)? {
            add(key, id);
        }
    }
    let key = "tokenizer.ggml.eos_token_ids";
    for id in metadata.kinds(key)?.unwrap_or_default() {
        add(key, id);
    }
    let key = "tokenizer.ggml.tokens";
    let texts = metadata.texts(key)?.unwrap_or_default();
    if texts.len() as u64 > vocab {
        let message = format!(
            "has {} entries, but token_embd.weight has {vocab} rows",
            texts.len()
        );
        return Err(metadata.invalid(key, message));
    }
    ids.extend(named_ends(&texts));
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}
