//! Byte-pair encoding whose tables are built quickly.
//!
//! The tokenizers library finds merges by the texts of their tokens and keeps each text twice. For 262,144 tokens and
//! half a million merges that takes longer than loading the weights of a small model. Here all texts are one string,
//! tokens are numbers everywhere else, and copies of a tokenizer share the tables. The ids are those of the library's
//! model, which the tests take as the reference. It also does what is rare: see [`Vocabulary::new`].

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::BuildHasher as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokenizers::models::{TrainerWrapper, bpe::BpeTrainer};
use tokenizers::{Model, ModelWrapper, Result, Token};

/// Ids up to this many times the number of tokens have a place in the list of texts.
const SPREAD_MAX: u32 = 4;

/// The model of a tokenizer.
#[derive(Clone)]
pub(super) enum TokenModel {
    Bpe(Bpe),
    Library(Box<ModelWrapper>),
}

/// How text without a token of its own is encoded, and the like.
#[derive(Clone, Debug, Default)]
pub(super) struct BpeOptions {
    /// The token of an unknown character.
    pub(super) unknown: Option<String>,
    /// Several unknown characters in a row are one token.
    pub(super) fuse_unknown: bool,
    /// An unknown character is encoded as its bytes, if they all have tokens like `<0xAB>`.
    pub(super) byte_fallback: bool,
    /// A word that is a token is not split.
    pub(super) ignore_merges: bool,
}

/// Tokens by text and by id.
pub(super) struct Vocabulary {
    /// All texts, one after another.
    texts: String,
    /// By id: where its text begins and ends; both are 0 for an id without a token, and nowhere else.
    places: Vec<(u32, u32)>,
    /// Ids of tokens, with a part of the hash of their texts.
    by_text: HashTable<(u32, u32)>,
    hasher: DefaultHashBuilder,
}

/// A vocabulary, and which of its tokens merge.
#[derive(Clone)]
pub(super) struct Bpe(Arc<Tables>);

struct Tables {
    vocabulary: Vocabulary,
    /// By the pair's ids: its rank, and what it becomes.
    merges: HashMap<u64, (u32, u32)>,
    /// Ids of the tokens `<0x00>` to `<0xFF>`.
    bytes: Vec<Option<u32>>,
    options: BpeOptions,
}

impl Vocabulary {
    /// `None` if an id is shared by several texts, or far above the number of tokens. If a text occurs several times,
    /// its last id counts.
    pub(super) fn new<'a>(tokens: impl Iterator<Item = (&'a str, u32)> + Clone) -> Option<Self> {
        let count = tokens.clone().count();
        let bytes = tokens.clone().map(|(text, _)| text.len()).sum::<usize>();
        let ids = tokens
            .clone()
            .map(|(_, id)| id)
            .max()
            .map_or(0, |id| id.saturating_add(1));
        // The first character is a place for the empty text.
        if u32::try_from(bytes).is_err()
            || ids > u32::try_from(count).ok()?.saturating_mul(SPREAD_MAX)
        {
            return None;
        }
        let mut texts = String::with_capacity(bytes + 1);
        texts.push(' ');
        let mut vocabulary = Self {
            texts,
            places: vec![(0, 0); ids as usize],
            by_text: HashTable::with_capacity(count),
            hasher: DefaultHashBuilder::default(),
        };
        tokens
            .into_iter()
            .try_for_each(|(text, id)| vocabulary.insert(text, id))?;
        Some(vocabulary)
    }

    fn insert(&mut self, text: &str, id: u32) -> Option<()> {
        let hash = self.hasher.hash_one(text);
        let (texts, places) = (&self.texts, &self.places);
        if let Ok(entry) = self.by_text.find_entry(hash, |entry: &(u32, u32)| {
            entry.0 == part(hash) && text_at(texts, places, entry.1) == Some(text)
        }) {
            let ((_, before), _) = entry.remove();
            self.places[before as usize] = (0, 0);
        }
        let start = u32::try_from(self.texts.len()).ok()?;
        self.texts.push_str(text);
        let end = u32::try_from(self.texts.len()).ok()?;
        let place = &mut self.places[id as usize];
        if *place != (0, 0) {
            return None;
        }
        *place = (start, end);
        let (texts, places, hasher) = (&self.texts, &self.places, &self.hasher);
        self.by_text
            .insert_unique(hash, (part(hash), id), |entry: &(u32, u32)| {
                hasher.hash_one(text_at(texts, places, entry.1).unwrap_or_default())
            });
        Some(())
    }

    /// The id of the token with this text.
    pub(super) fn id(&self, text: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(text);
        // Comparing a part of the hash first spares nearly all look-ups of texts that differ.
        self.by_text
            .find(hash, |entry| {
                entry.0 == part(hash) && self.text(entry.1) == Some(text)
            })
            .map(|&(_, id)| id)
    }

    /// The text of a token.
    pub(super) fn text(&self, id: u32) -> Option<&str> {
        text_at(&self.texts, &self.places, id)
    }

    fn len(&self) -> usize {
        self.by_text.len()
    }
}

fn text_at<'a>(texts: &'a str, places: &[(u32, u32)], id: u32) -> Option<&'a str> {
    let &(start, end) = places.get(id as usize).filter(|place| **place != (0, 0))?;
    texts.get(start as usize..end as usize)
}

/// The bits of a hash that the table itself uses least.
fn part(hash: u64) -> u32 {
    (hash >> 16) as u32
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// A part of a word, in a list linked both ways; its neighbors are indices.
#[derive(Clone, Copy)]
struct Symbol {
    id: u32,
    /// 0 for a symbol that was merged with the one before it.
    bytes: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

impl Bpe {
    /// A merge is two tokens and what they become, by id, and its rank. Lower ranks take precedence; of equal pairs,
    /// the last counts.
    pub(super) fn new(vocabulary: Vocabulary, merges: &[[u32; 4]], options: BpeOptions) -> Self {
        let mut by_pair = HashMap::with_capacity(merges.len());
        for &[left, right, merged, rank] in merges {
            by_pair.insert(pair(left, right), (rank, merged));
        }
        let bytes = (0..=255)
            .map(|byte: u8| vocabulary.id(&format!("<{byte:#04X}>")))
            .collect();
        Self(Arc::new(Tables {
            vocabulary,
            merges: by_pair,
            bytes,
            options,
        }))
    }

    /// The characters of a word: tokens, bytes, or unknown.
    fn symbols(&self, word: &str) -> Result<Vec<Symbol>> {
        let Tables {
            vocabulary,
            bytes,
            options,
            ..
        } = &*self.0;
        let mut symbols = Vec::with_capacity(word.len());
        let mut push = |id, bytes| {
            symbols.push(Symbol {
                id,
                bytes,
                previous: None,
                next: None,
            });
        };
        // An unknown character is added when the next one is known, because it may grow until then.
        let mut unknown: Option<(u32, usize)> = None;
        for (at, character) in word.char_indices() {
            let text = &word[at..at + character.len_utf8()];
            if let Some(id) = vocabulary.id(text) {
                unknown
                    .take()
                    .into_iter()
                    .for_each(|(id, bytes)| push(id, bytes));
                push(id, text.len());
                continue;
            }
            let ids = || {
                text.bytes()
                    .map(|byte| bytes[usize::from(byte)])
                    .collect::<Option<Vec<_>>>()
            };
            if options.byte_fallback
                && let Some(ids) = ids()
            {
                // As in the library, these come before unknown characters that precede them.
                ids.into_iter().for_each(|id| push(id, 1));
                continue;
            }
            let Some(name) = &options.unknown else {
                continue;
            };
            let id = || {
                vocabulary
                    .id(name)
                    .ok_or_else(|| format!("the unknown token {name:?} is not in the vocabulary"))
            };
            unknown = Some(match unknown {
                Some((id, bytes)) if options.fuse_unknown => (id, bytes + text.len()),
                before => {
                    before.into_iter().for_each(|(id, bytes)| push(id, bytes));
                    (id()?, text.len())
                }
            });
        }
        unknown.into_iter().for_each(|(id, bytes)| push(id, bytes));
        let count = symbols.len();
        for (index, symbol) in symbols.iter_mut().enumerate() {
            (symbol.previous, symbol.next) = (
                index.checked_sub(1),
                Some(index + 1).filter(|next| *next < count),
            );
        }
        Ok(symbols)
    }

    /// Merges pairs, the one of lowest rank first, of equal ones the leftmost.
    fn merge(&self, symbols: &mut Vec<Symbol>) {
        let merge = |left: u32, right: u32| self.0.merges.get(&pair(left, right)).copied();
        let pairs = symbols.windows(2).enumerate();
        let candidates = pairs.filter_map(|(at, pair)| {
            let (rank, merged) = merge(pair[0].id, pair[1].id)?;
            Some(Reverse((rank, at, merged)))
        });
        let mut queue: BinaryHeap<_> = candidates.collect();
        while let Some(Reverse((_, at, merged))) = queue.pop() {
            let left = symbols[at];
            let Some(right_at) = left.next else { continue };
            if left.bytes == 0 {
                continue;
            }
            let right = symbols[right_at];
            // One of them may have been merged with another since.
            if merge(left.id, right.id).is_none_or(|(_, now)| now != merged) {
                continue;
            }
            symbols[at] = Symbol {
                id: merged,
                bytes: left.bytes + right.bytes,
                next: right.next,
                ..left
            };
            symbols[right_at].bytes = 0;
            if let Some(next) = right.next {
                symbols[next].previous = Some(at);
            }
            for (first, second) in [left.previous.zip(Some(at)), Some(at).zip(right.next)]
                .into_iter()
                .flatten()
            {
                if let Some((rank, merged)) = merge(symbols[first].id, symbols[second].id) {
                    queue.push(Reverse((rank, first, merged)));
                }
            }
        }
        symbols.retain(|symbol| symbol.bytes > 0);
    }

    fn encode(&self, word: &str) -> Result<Vec<Token>> {
        // Only ids and places are used, so a token's text is not copied.
        let token = |id, start, end| Token::new(id, String::new(), (start, end));
        if word.is_empty() {
            return Ok(Vec::new());
        }
        if self.0.options.ignore_merges
            && let Some(id) = self.0.vocabulary.id(word)
        {
            return Ok(vec![token(id, 0, word.len())]);
        }
        let mut symbols = self.symbols(word)?;
        self.merge(&mut symbols);
        let mut start = 0;
        let tokens = symbols.iter().map(|symbol| {
            let place = (start, start + symbol.bytes);
            start = place.1;
            token(symbol.id, place.0, place.1)
        });
        Ok(tokens.collect())
    }
}

impl Model for TokenModel {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, word: &str) -> Result<Vec<Token>> {
        match self {
            Self::Bpe(bpe) => bpe.encode(word),
            Self::Library(model) => model.tokenize(word),
        }
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        match self {
            Self::Bpe(bpe) => bpe.0.vocabulary.id(token),
            Self::Library(model) => model.token_to_id(token),
        }
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        match self {
            Self::Bpe(bpe) => bpe.0.vocabulary.text(id).map(str::to_owned),
            Self::Library(model) => model.id_to_token(id),
        }
    }

    fn get_vocab(&self) -> std::collections::HashMap<String, u32> {
        match self {
            Self::Bpe(bpe) => {
                let ids = 0..u32::try_from(bpe.0.vocabulary.places.len()).unwrap_or(u32::MAX);
                ids.filter_map(|id| Some((bpe.0.vocabulary.text(id)?.to_owned(), id)))
                    .collect()
            }
            Self::Library(model) => model.get_vocab(),
        }
    }

    fn get_vocab_size(&self) -> usize {
        match self {
            Self::Bpe(bpe) => bpe.0.vocabulary.len(),
            Self::Library(model) => model.get_vocab_size(),
        }
    }

    fn save(&self, _: &Path, _: Option<&str>) -> Result<Vec<PathBuf>> {
        Err("a tokenizer that runs is not written".into())
    }

    fn get_trainer(&self) -> TrainerWrapper {
        match self {
            Self::Bpe(_) => BpeTrainer::default().into(),
            Self::Library(model) => model.get_trainer(),
        }
    }
}

#[cfg(test)]
mod tests;
