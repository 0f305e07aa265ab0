//! Bounds what a tokenizer makes of a text before it looks up tokens: normalizers and pre-tokenizers may make a text
//! longer, and a chain of them, or one with a long replacement, could take all memory for a short prompt.

use super::charsmap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize as _;
use serde_json::Value;
use std::sync::{Arc, Mutex, PoisonError};
use tokenizers::utils::SysRegex;
use tokenizers::{
    Decoder, Model, NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType,
    PostProcessor, PreTokenizedString, PreTokenizer as _, PreTokenizerWrapper, Result,
    TokenizerImpl,
};

/// How many times longer a text may become, and bytes besides.
pub(super) const GROWTH_MAX: usize = 16;
const GROWTH_BYTES: usize = 4 << 10;
/// No normalizer without a text of its own makes a text more than this many times longer; NFKC comes close.
const UNICODE_GROWTH_MAX: usize = 12;
/// Bytes that are normalized at once to learn how long a text becomes.
const MEASURED_BYTES: usize = 256;
/// Maximum normalizers of a tokenizer.
const STEPS_MAX: usize = 64;

/// A text became too long while it was encoded.
#[derive(Debug, thiserror::Error)]
#[error("its {0} makes the text more than {GROWTH_MAX} times as long")]
struct TooLong(&'static str);

/// The normalizers of a tokenizer, one after the other.
#[derive(Clone)]
pub(super) struct Normalizers(Arc<[Step]>);

enum Step {
    /// Replaces what matches.
    Replace { regex: SysRegex, content: String },
    /// Puts something before a text.
    Prepend(String),
    /// Makes a text at most so many times longer, each part of it apart.
    Local(NormalizerWrapper, usize),
}

impl Normalizers {
    /// From the `normalizer` of a tokenizer.json.
    pub(super) fn from_json(normalizer: &Value) -> Result<Option<Self>> {
        if normalizer.is_null() {
            return Ok(None);
        }
        let mut steps = Vec::new();
        add_steps(normalizer, &mut steps)?;
        Ok(Some(Self(steps.into())))
    }

    /// Normalizes a text that may have `room` bytes at most, at any time.
    fn apply(&self, text: &mut NormalizedString, room: usize) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        if let [Step::Local(library, _)] = &*self.0 {
            self.0[0].check(text.get(), room)?;
            return library.normalize(text);
        }
        // The library panics when it loses track of where text came from that was put in. Nobody asks it.
        let mut whole = text.get().to_owned();
        for step in &*self.0 {
            step.check(&whole, room)?;
            whole = step.run(whole)?;
        }
        *text = NormalizedString::from(whole);
        Ok(())
    }
}

impl Normalizer for Normalizers {
    /// For tokens that are looked for in normalized texts.
    fn normalize(&self, text: &mut NormalizedString) -> Result<()> {
        let room = room(text.get());
        self.apply(text, room)
    }
}

/// Bytes that a text may have while it is encoded.
fn room(text: &str) -> usize {
    text.len()
        .saturating_mul(GROWTH_MAX)
        .saturating_add(GROWTH_BYTES)
}

fn add_steps(normalizer: &Value, steps: &mut Vec<Step>) -> Result<()> {
    if let Some(parts) = normalizer["normalizers"].as_array() {
        return parts.iter().try_for_each(|part| add_steps(part, steps));
    }
    if steps.len() == STEPS_MAX {
        return Err(format!("more than {STEPS_MAX} normalizers").into());
    }
    // The library trusts the table.
    let growth = match normalizer["precompiled_charsmap"].as_str() {
        Some(text) => {
            charsmap_growth(text).map_err(|error| format!("`precompiled_charsmap`: {error}"))?
        }
        None => UNICODE_GROWTH_MAX,
    };
    let library = NormalizerWrapper::deserialize(normalizer)?;
    steps.push(match library {
        NormalizerWrapper::Replace(_) => replace(normalizer)?,
        NormalizerWrapper::Prepend(prepend) => Step::Prepend(prepend.prepend),
        _ => Step::Local(library, growth),
    });
    Ok(())
}

fn charsmap_growth(text: &str) -> Result<usize> {
    Ok(charsmap::growth(&STANDARD.decode(text)?)?)
}

fn replace(normalizer: &Value) -> Result<Step> {
    let pattern = &normalizer["pattern"];
    let regex = match (pattern["String"].as_str(), pattern["Regex"].as_str()) {
        (Some(text), _) => SysRegex::new(&regex_syntax::escape(text))?,
        (_, regex) => {
            SysRegex::new(regex.ok_or("a pattern that is neither `String` nor `Regex`")?)?
        }
    };
    Ok(Step::Replace {
        regex,
        content: normalizer["content"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
    })
}

impl Step {
    fn run(&self, text: String) -> Result<String> {
        match self {
            // Nothing is put into an empty text.
            Self::Replace { .. } | Self::Prepend(_) if text.is_empty() => Ok(text),
            Self::Replace { regex, content } => Ok(replaced(&text, regex, content)),
            Self::Prepend(before) => Ok([before, &text[..]].concat()),
            Self::Local(library, _) => {
                let mut text = NormalizedString::from(text);
                library.normalize(&mut text)?;
                Ok(text.get().to_owned())
            }
        }
    }

    /// Fails if a text will have more than `room` bytes after this step.
    fn check(&self, text: &str, room: usize) -> Result<()> {
        if self.length(text, room)? > room {
            Err(TooLong("normalizer").into())
        } else {
            Ok(())
        }
    }

    /// Bytes of a text after this step, or a bound that is not above `room`. Needs little memory.
    fn length(&self, text: &str, room: usize) -> Result<usize> {
        match self {
            Self::Replace { regex, content } => {
                let bound = text
                    .len()
                    .saturating_add((text.len() + 1).saturating_mul(content.len()));
                if bound <= room {
                    Ok(bound)
                } else {
                    Ok(replaced_length(text, regex, content, room))
                }
            }
            Self::Prepend(before) => Ok(text.len().saturating_add(before.len())),
            Self::Local(library, growth) => {
                let bound = text.len().saturating_mul(*growth);
                if bound <= room {
                    Ok(bound)
                } else {
                    local_length(text, library, room)
                }
            }
        }
    }
}

/// A text with `content` in place of what matches.
fn replaced(text: &str, regex: &SysRegex, content: &str) -> String {
    let (mut whole, mut rest) = (String::with_capacity(text.len()), 0);
    for (start, end) in regex.find_iter(text) {
        whole.push_str(&text[rest..start]);
        whole.push_str(content);
        rest = end;
    }
    whole.push_str(&text[rest..]);
    whole
}

/// Bytes of a text after a replacement; counted only until they cannot be within `room` any more.
fn replaced_length(text: &str, regex: &SysRegex, content: &str, room: usize) -> usize {
    let (mut added, mut rest) = (0_usize, text.len());
    for (start, end) in regex.find_iter(text) {
        added = added.saturating_add(content.len());
        rest -= end - start;
        if added > room {
            break;
        }
    }
    added.saturating_add(rest)
}

/// Bytes of a text after a normalizer that looks at no more than the neighborhood of a character; counted only until
/// they are not within `room` any more.
fn local_length(text: &str, library: &NormalizerWrapper, room: usize) -> Result<usize> {
    let (mut length, mut rest) = (0, text);
    while !rest.is_empty() && length <= room {
        let end = (MEASURED_BYTES..rest.len())
            .find(|&at| rest.is_char_boundary(at))
            .unwrap_or(rest.len());
        let (part, after) = rest.split_at(end);
        let mut part = NormalizedString::from(part);
        library.normalize(&mut part)?;
        length += part.get().len();
        rest = after;
    }
    Ok(length)
}

/// The normalizers while one text is encoded, which the library hands over in parts. It ignores their errors, and wants
/// something that threads could share.
struct OneText<'t> {
    normalizers: &'t Normalizers,
    /// Bytes that the next parts may have, or why there are none.
    room: Mutex<Result<usize>>,
}

impl Normalizer for OneText<'_> {
    fn normalize(&self, text: &mut NormalizedString) -> Result<()> {
        let mut state = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(room) = *state {
            let done = self.normalizers.apply(text, room);
            *state = done.map(|()| room.saturating_sub(text.get().len()));
        }
        Ok(())
    }
}

/// A text cut into words, as the tokenizer's model wants them.
pub(super) fn words(
    tokenizer: &TokenizerImpl<
        impl Model,
        Normalizers,
        PreTokenizerWrapper,
        impl PostProcessor,
        impl Decoder,
    >,
    text: &str,
) -> Result<PreTokenizedString> {
    let (room, added) = (room(text), tokenizer.get_added_vocabulary());
    let mut words = match tokenizer.get_normalizer() {
        None => added.extract_and_normalize::<Normalizers>(None, text),
        Some(normalizers) => {
            let one = OneText {
                normalizers,
                room: Mutex::new(Ok(room)),
            };
            let words = added.extract_and_normalize(Some(&one), text);
            one.room
                .into_inner()
                .unwrap_or_else(PoisonError::into_inner)?;
            words
        }
    };
    if let Some(pre_tokenizer) = tokenizer.get_pre_tokenizer() {
        pre_tokenize(pre_tokenizer, &mut words, room)?;
    }
    Ok(words)
}

fn pre_tokenize(
    part: &PreTokenizerWrapper,
    words: &mut PreTokenizedString,
    room: usize,
) -> Result<()> {
    if let PreTokenizerWrapper::Sequence(parts) = part {
        return parts
            .as_ref()
            .iter()
            .try_for_each(|part| pre_tokenize(part, words, room));
    }
    part.pre_tokenize(words)?;
    // The others only cut.
    let grows = matches!(
        part,
        PreTokenizerWrapper::ByteLevel(_) | PreTokenizerWrapper::Metaspace(_)
    );
    if grows && length(words) > room {
        Err(TooLong("pre-tokenizer").into())
    } else {
        Ok(())
    }
}

/// The bytes of all words.
fn length(words: &PreTokenizedString) -> usize {
    let splits = words.get_splits(OffsetReferential::Normalized, OffsetType::Byte);
    splits.iter().map(|(word, ..)| word.len()).sum()
}

#[cfg(test)]
mod tests;
