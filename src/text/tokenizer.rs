//! [`Tokenizer`] turns text into ids and ids into bytes, as a tokenizer.json defines.
//!
//! Decoding works on bytes, not on strings: each token contributes a byte string that does not depend on its neighbors,
//! so an incremental decoder is exact and cheap. This holds for byte-level and byte-fallback vocabularies, which
//! language models use. With any other decoder, a token is decoded together with its predecessor.

use super::TextError;
use super::chunks;
use super::growth;
use super::literal::Literals;
use super::tokenizer_file::{Inner, TokenizerFile};
use super::tokenizer_parts::check_library_decoder;
use serde_json::Value;
use std::sync::OnceLock;
use tokenizers::{AddedToken, Encoding, Model as _, OffsetType, PostProcessor as _};

/// A tokenizer of one model.
pub struct Tokenizer {
    inner: Inner,
    /// Treats special strings as text and aliases as special tokens. Built when a conversation first needs it.
    literal: OnceLock<LiteralTokenizer>,
    literals: Literals,
    decoding: Decoding,
    /// Spaces that the start of a whole text loses: the tokenizer put them there.
    leading_spaces: usize,
    /// Whether long texts can be encoded in chunks.
    in_chunks: bool,
}

struct LiteralTokenizer {
    inner: Inner,
    /// Alias id → the special token it stands for.
    alias_ids: std::collections::HashMap<u32, u32>,
}

/// The tokenizer could not encode.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("the tokenizer failed: {0}")]
pub struct TokenizerError(String);

impl TokenizerError {
    pub(super) fn new(error: impl std::fmt::Display) -> Self {
        Self(error.to_string())
    }
}

/// A pair of texts as token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairIds {
    /// All ids.
    pub ids: Vec<u32>,
    /// The first one of type 1, if the tokenizer knows types.
    pub second: Option<usize>,
}

/// Maximum tokens of a pair of texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairLimits {
    /// Of the pair with its special tokens.
    pub whole: usize,
    /// Of the second text alone.
    pub second: usize,
    /// The end of a text that is too long is kept, not its beginning.
    pub keeps_end: bool,
}

/// How a token's string becomes bytes.
#[derive(Clone, Debug, PartialEq)]
enum Decoding {
    /// Each character stands for a byte (GPT-2's table).
    ByteLevel,
    /// Text, with a replacement for spaces and tokens `<0xAB>` for single bytes.
    Pieces {
        replace: Vec<(String, String)>,
        byte_fallback: bool,
    },
    /// Decoded by the tokenizers library, together with the previous token.
    Library,
}

impl Tokenizer {
    /// Reads a tokenizer.json. Truncation and padding in the file are ignored: a prompt is never cut silently.
    pub fn from_json(bytes: &[u8]) -> Result<Self, TextError> {
        Self::with_added(bytes, Vec::new())
    }

    /// [`Self::from_json`], with tokens that the file may lack.
    pub(super) fn with_added(bytes: &[u8], added: Vec<AddedToken>) -> Result<Self, TextError> {
        let mut file = TokenizerFile::from_json(bytes).map_err(wrong)?;
        file.added_tokens.extend(added);
        Self::new(&file, file.tokenizer().map_err(wrong)?)
    }

    /// Reads a tokenizer.json whose model, of type BPE, has neither `vocab` nor `merges`, which are given apart: the
    /// texts of tokens with their ids, and pairs of tokens that merge with what they become, by id, and their rank. Of
    /// two merges of one rank, the leftmost in a text goes first. Two texts must not have the same id.
    pub fn from_tables<'t>(
        json: &[u8],
        tokens: impl Iterator<Item = (&'t str, u32)> + Clone,
        merges: &[[u32; 4]],
    ) -> Result<Self, TextError> {
        let file = TokenizerFile::from_json(json).map_err(wrong)?;
        Self::new(&file, file.with_tables(tokens, merges).map_err(wrong)?)
    }

    fn new(file: &TokenizerFile<'_>, inner: Inner) -> Result<Self, TextError> {
        let added = inner.get_added_tokens_decoder();
        let special = added
            .values()
            .filter(|token| token.special)
            .map(|token| token.content.clone())
            .collect();
        let literals = Literals::new(
            special,
            added.values().map(|token| token.content.clone()).collect(),
        );
        let decoding = Decoding::of(&file.decoder);
        if decoding == Decoding::Library {
            check_library_decoder(&file.decoder).map_err(wrong)?;
        }
        let (leading_spaces, in_chunks) = (leading_spaces(&file.decoder), chunks::is_local(file));
        Ok(Self {
            inner,
            literal: OnceLock::new(),
            literals,
            decoding,
            leading_spaces,
            in_chunks,
        })
    }

    /// Ids of `text`. Special-token strings become special tokens. With `add_special`, includes the ids that the
    /// tokenizer adds around a text (a BOS, for many models).
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        self.encode_by(&self.inner, text, add_special)
    }

    /// Ids of a pair of texts with the special tokens that the tokenizer adds, and where the second text begins for
    /// models that tell the two apart. With `most`, both are cut until the pair has so many tokens: the longer one
    /// first, as the libraries of Hugging Face do it (`longest_first`).
    ///
    /// # Errors
    /// A text that cannot be encoded, or a tokenizer without a form for pairs.
    pub fn encode_pair(
        &self,
        texts: [&str; 2],
        most: Option<PairLimits>,
    ) -> Result<PairIds, TokenizerError> {
        let [first, second] = texts;
        let (mut first, mut second) = (self.encode(first, false)?, self.encode(second, false)?);
        let adder = self.inner.get_post_processor();
        if let Some(limits) = most {
            cut(&mut second, limits.second, limits.keeps_end);
            let added = adder.map_or(0, |adder| adder.added_tokens(true));
            let room = limits.whole.saturating_sub(added);
            let (to_first, to_second) = longest_first([first.len(), second.len()], room);
            cut(&mut first, to_first, limits.keeps_end);
            cut(&mut second, to_second, limits.keeps_end);
        }
        let part = |ids: Vec<u32>, kind| {
            let token = |id| tokenizers::Token::new(id, String::new(), (0, 0));
            Encoding::from_tokens(ids.into_iter().map(token).collect(), kind)
        };
        let whole = self
            .inner
            .post_process(part(first, 0), Some(part(second, 1)), true)
            .map_err(TokenizerError::new)?;
        let types = whole.get_type_ids();
        let of_second = types.iter().position(|kind| *kind == 1);
        let is_split = of_second.is_none_or(|at| types[at..].iter().all(|kind| *kind == 1));
        if adder.is_none() || !is_split || types.iter().any(|kind| *kind > 1) {
            let message = "it has no form for pairs of texts, one after the other";
            return Err(TokenizerError::new(message));
        }
        Ok(PairIds {
            ids: whole.get_ids().to_vec(),
            second: of_second,
        })
    }

    fn encode_by(
        &self,
        tokenizer: &Inner,
        text: &str,
        add_special: bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        if self.in_chunks && text.len() > chunks::SIZES.chunk {
            if add_special
                && tokenizer
                    .get_post_processor()
                    .is_some_and(|adder| adder.added_tokens(false) > 0)
            {
                return self.encode_with_added(tokenizer, text);
            }
            if let Some(ids) =
                chunks::encode(tokenizer, text, chunks::SIZES).map_err(TokenizerError::new)?
            {
                return Ok(ids);
            }
        }
        encode_whole(tokenizer, text, add_special)
    }

    /// Adds the special ids around those of `text`, as found by encoding a short text.
    fn encode_with_added(&self, tokenizer: &Inner, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let own = encode_whole(tokenizer, "a", false)?;
        let with = encode_whole(tokenizer, "a", true)?;
        let found = if own.is_empty() {
            None
        } else {
            with.windows(own.len()).position(|ids| ids == own)
        };
        let Some(at) = found else {
            return encode_whole(tokenizer, text, true);
        };
        let ids = self.encode_by(tokenizer, text, false)?;
        Ok([&with[..at], &ids, &with[at + own.len()..]].concat())
    }

    /// Ids of a text rendered from a marked conversation: see [`Literals`].
    pub(super) fn encode_marked(&self, rendered: &str) -> Result<Vec<u32>, TokenizerError> {
        let literal = self.literal.get_or_init(|| self.literal_tokenizer());
        let text = self.literals.alias_text(rendered);
        let ids = self.encode_by(&literal.inner, &text, false)?;
        Ok(ids
            .iter()
            .map(|id| *literal.alias_ids.get(id).unwrap_or(id))
            .collect())
    }

    /// [`Self::encode`], with special-token strings treated as ordinary text.
    pub(crate) fn encode_literal(
        &self,
        text: &str,
        add_special: bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        let literal = self.literal.get_or_init(|| self.literal_tokenizer());
        self.encode_by(&literal.inner, text, add_special)
    }

    pub(super) fn literals(&self) -> &Literals {
        &self.literals
    }

    fn literal_tokenizer(&self) -> LiteralTokenizer {
        let mut inner = self.inner.clone();
        let added = self.inner.get_added_tokens_decoder();
        let mut alias_ids = std::collections::HashMap::new();
        for (index, content) in self.literals.special().iter().enumerate() {
            let Some((id, token)) = added.iter().find(|(_, token)| &token.content == content)
            else {
                continue;
            };
            let alias = Literals::alias(index);
            let stand_in = AddedToken::from(alias.clone(), false)
                .lstrip(token.lstrip)
                .rstrip(token.rstrip);
            if inner.add_tokens([stand_in.normalized(false)]).is_ok()
                && let Some(alias_id) = inner.token_to_id(&alias)
            {
                alias_ids.insert(alias_id, *id);
            }
        }
        inner.set_encode_special_tokens(true);
        LiteralTokenizer { inner, alias_ids }
    }

    /// Vocabulary size: the highest id plus one.
    pub fn vocabulary(&self) -> u32 {
        let model = self.inner.get_vocab_size(false) as u32;
        let added = self
            .inner
            .get_added_tokens_decoder()
            .keys()
            .max()
            .map_or(0, |id| id + 1);
        model.max(added)
    }

    /// The lowest id that is another token here than there, if the two differ.
    pub fn difference(&self, other: &Self) -> Option<u32> {
        let vocabulary = self.vocabulary().max(other.vocabulary());
        (0..vocabulary).find(|&id| self.inner.id_to_token(id) != other.inner.id_to_token(id))
    }

    /// The id of the token with this content, special or not.
    pub fn id_of(&self, content: &str) -> Option<u32> {
        self.inner.token_to_id(content)
    }

    /// Whether `id` is a special token, which has no text in an answer.
    pub fn is_special(&self, id: u32) -> bool {
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        added.get(&id).is_some_and(|token| token.special)
    }

    /// The bytes that `id` adds to an answer, possibly a part of a character. Empty for an unknown id. `previous`
    /// matters only for decoders that depend on neighbors.
    pub fn token_bytes(&self, id: u32, previous: Option<u32>) -> Vec<u8> {
        let added = self.inner.get_added_vocabulary();
        if let Some(token) = added
            .get_added_tokens_decoder()
            .get(&id)
            .filter(|token| token.special)
        {
            return token.content.clone().into_bytes();
        }
        let Some(token) = added
            .simple_id_to_token(id)
            .or_else(|| self.inner.id_to_token(id))
        else {
            return Vec::new();
        };
        match &self.decoding {
            Decoding::ByteLevel => byte_level(&token).unwrap_or_else(|| token.into_bytes()),
            Decoding::Pieces {
                replace,
                byte_fallback,
            } => {
                if *byte_fallback && let Some(byte) = fallback_byte(&token) {
                    return vec![byte];
                }
                replace
                    .iter()
                    .fold(token, |token, (from, to)| token.replace(from.as_str(), to))
                    .into_bytes()
            }
            Decoding::Library => self.library_bytes(id, previous),
        }
    }

    /// A text that was decoded from its first token on, without the space that the tokenizer puts before every text. An
    /// answer keeps it, because it continues its prompt.
    pub fn whole_text<'a>(&self, text: &'a str) -> &'a str {
        let spaces = text.bytes().take_while(|byte| *byte == b' ').count();
        &text[spaces.min(self.leading_spaces)..]
    }

    fn library_bytes(&self, id: u32, previous: Option<u32>) -> Vec<u8> {
        // The library's decoders want a token that there is.
        let Some(previous) = previous.filter(|&id| self.inner.id_to_token(id).is_some()) else {
            return self.decode(&[id]).into_bytes();
        };
        let both = self.decode(&[previous, id]);
        both.strip_prefix(&self.decode(&[previous]))
            .map_or_else(|| self.decode(&[id]), str::to_owned)
            .into_bytes()
    }

    fn decode(&self, ids: &[u32]) -> String {
        self.inner.decode(ids, false).unwrap_or_default()
    }
}

/// Cuts a list of ids to this length.
fn cut(ids: &mut Vec<u32>, most: usize, keeps_end: bool) {
    if keeps_end {
        ids.drain(..ids.len().saturating_sub(most));
    } else {
        ids.truncate(most);
    }
}

/// The lengths to which two texts are cut so that both fit into the room: the longer one is cut first.
fn longest_first([first, second]: [usize; 2], room: usize) -> (usize, usize) {
    if first + second <= room {
        return (first, second);
    }
    let shorter = first.min(second);
    let longer = if shorter > room {
        shorter
    } else {
        shorter.max(room - shorter)
    };
    let (shorter, longer) = if shorter + longer > room {
        (room / 2, room / 2 + room % 2)
    } else {
        (shorter, longer)
    };
    if first > second {
        (longer, shorter)
    } else {
        (shorter, longer)
    }
}

/// Ids of a text in one piece, as the library's `encode_fast` finds them, within the limits of [`growth`].
fn encode_whole(
    tokenizer: &Inner,
    text: &str,
    add_special: bool,
) -> Result<Vec<u32>, TokenizerError> {
    let encoding = encoding(tokenizer, text, add_special).map_err(TokenizerError::new)?;
    Ok(encoding.get_ids().to_vec())
}

fn encoding(tokenizer: &Inner, text: &str, add_special: bool) -> tokenizers::Result<Encoding> {
    let mut words = growth::words(tokenizer, text)?;
    words.tokenize(|word| tokenizer.get_model().tokenize(word.get()))?;
    let encoding = words.into_encoding(None, 0, OffsetType::None)?;
    tokenizer.post_process(encoding, None, add_special)
}

fn wrong(error: impl std::fmt::Display) -> TextError {
    TextError::Tokenizer(error.to_string())
}

/// The parts of a tokenizer.json's `decoder`.
fn decoder_parts(decoder: &Value) -> &[Value] {
    match decoder["type"].as_str() {
        Some("Sequence") => decoder["decoders"]
            .as_array()
            .map_or(&[][..], Vec::as_slice),
        _ => std::slice::from_ref(decoder),
    }
}

/// Spaces that a `decoder` strips from the start of a text.
fn leading_spaces(decoder: &Value) -> usize {
    decoder_parts(decoder)
        .iter()
        .map(|part| match part["type"].as_str() {
            Some("Strip") if part["content"] == " " => part["start"].as_u64().unwrap_or(0) as usize,
            Some("Metaspace") => usize::from(
                part["prepend_scheme"] != "never"
                    && part["add_prefix_space"].as_bool() != Some(false),
            ),
            _ => 0,
        })
        .sum()
}

impl Decoding {
    /// From the `decoder` of a tokenizer.json.
    fn of(decoder: &Value) -> Self {
        let mut pieces = Vec::new();
        let mut byte_fallback = false;
        for part in decoder_parts(decoder) {
            match part["type"].as_str() {
                Some("ByteLevel") => return Self::ByteLevel,
                Some("ByteFallback") => byte_fallback = true,
                // A leading space is stripped from a whole text only; an answer continues its prompt.
                Some("Fuse" | "Strip") => {}
                Some("Metaspace") => {
                    pieces.push((
                        part["replacement"]
                            .as_str()
                            .unwrap_or("\u{2581}")
                            .to_owned(),
                        " ".to_owned(),
                    ));
                }
                Some("Replace") => {
                    match (part["pattern"]["String"].as_str(), part["content"].as_str()) {
                        (Some(from), Some(to)) => pieces.push((from.to_owned(), to.to_owned())),
                        _ => return Self::Library,
                    }
                }
                _ => return Self::Library,
            }
        }
        Self::Pieces {
            replace: pieces,
            byte_fallback,
        }
    }
}

/// `<0xAB>` → 0xAB.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2)
        .then(|| u8::from_str_radix(digits, 16).ok())
        .flatten()
}

/// A byte-level token's bytes; `None` if a character maps to no byte (an added token that was not mapped).
fn byte_level(token: &str) -> Option<Vec<u8>> {
    token.chars().map(byte_of).collect()
}

/// GPT-2's table, inverted: printable Latin-1 characters map to their own byte, U+0100 and following to the other 68
/// bytes.
fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character);
    if matches!(code, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) {
        return u8::try_from(code).ok();
    }
    let index = code.checked_sub(0x100)?;
    match index {
        0..=0x20 => u8::try_from(index).ok(),
        0x21..=0x42 => u8::try_from(index - 0x21 + 0x7F).ok(),
        0x43 => Some(0xAD),
        _ => None,
    }
}
