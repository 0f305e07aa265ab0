//! Checks the `precompiled_charsmap` of a tokenizer.json: SentencePiece's table of what is replaced by what.
//!
//! It is a trie in an array of units, each the place of its children, and the texts that its leaves name. The library
//! follows it without looking, so here every place that some text leads to is visited once before.

use std::collections::VecDeque;

/// Bytes of UTF-8 are not above this one.
const BYTE_MAX: usize = 0xf4;
/// Maximum bytes that replace a text.
const REPLACEMENT_BYTES_MAX: usize = 1 << 10;

/// How many times longer a text may become, rounded up. An error says what is wrong with the table.
pub(super) fn growth(charsmap: &[u8]) -> Result<usize, &'static str> {
    let (size, rest) = charsmap.split_first_chunk().ok_or("it is too short")?;
    let bytes = u32::from_le_bytes(*size) as usize / 4 * 4;
    let (units, texts) = rest
        .split_at_checked(bytes)
        .ok_or("its trie is longer than the whole")?;
    let units: Vec<Unit> = units
        .as_chunks()
        .0
        .iter()
        .map(|unit| Unit(u32::from_le_bytes(*unit)))
        .collect();
    let texts = str::from_utf8(texts).map_err(|_| "its texts are not UTF-8")?;
    growth_of(&units, texts)
}

fn growth_of(units: &[Unit], texts: &str) -> Result<usize, &'static str> {
    let outside = "its trie leads outside of itself";
    let root = units.first().ok_or("its trie is empty")?;
    let (mut seen, mut growth) = (vec![false; units.len()], 1);
    // The shortest texts come first. With each is where the units of its continuations are.
    let mut waiting = VecDeque::from([(1, root.offset())]);
    while let Some((length, at)) = waiting.pop_front() {
        for byte in 1..=BYTE_MAX {
            let unit = units.get(at ^ byte).ok_or(outside)?;
            if unit.label() != byte || std::mem::replace(&mut seen[at ^ byte], true) {
                continue;
            }
            let below = at ^ byte ^ unit.offset();
            if unit.has_leaf() {
                let leaf = units.get(below).ok_or(outside)?;
                growth = growth.max(replacement(texts, leaf.value())?.div_ceil(length));
            }
            waiting.push_back((length + 1, below));
        }
    }
    Ok(growth)
}

/// Bytes of the text that starts at `start`.
fn replacement(texts: &str, start: usize) -> Result<usize, &'static str> {
    let text = texts
        .get(start..)
        .ok_or("its trie leads outside of its texts")?;
    let length = text
        .bytes()
        .take(REPLACEMENT_BYTES_MAX + 1)
        .take_while(|&byte| byte != 0)
        .count();
    if length > REPLACEMENT_BYTES_MAX {
        Err("it has a replacement of more than 1024 bytes")
    } else {
        Ok(length)
    }
}

/// A unit of the trie.
#[derive(Clone, Copy)]
struct Unit(u32);

impl Unit {
    /// The byte that leads here; more than a byte for a leaf.
    fn label(self) -> usize {
        (self.0 & (1 << 31 | 0xff)) as usize
    }

    fn has_leaf(self) -> bool {
        self.0 >> 8 & 1 == 1
    }

    /// Of a leaf, where its text starts.
    fn value(self) -> usize {
        (self.0 & !(1 << 31)) as usize
    }

    fn offset(self) -> usize {
        ((self.0 >> 10) << ((self.0 & 1 << 9) >> 6)) as usize
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A table that replaces `from`, one byte, by `to`.
    pub(in crate::text) fn one(from: u8, to: &str) -> Vec<u8> {
        let mut units = vec![0_u32; 512];
        let from = u32::from(from);
        // The root's children are at 256, and the leaf of `from` is below it, at 0 ^ 256 ^ from ^ 1 ^ ...
        units[0] = 256 << 10;
        let child = 256 ^ from;
        let leaf = 1;
        units[child as usize] = (child ^ leaf) << 10 | 1 << 8 | from;
        units[leaf as usize] = 1 << 31;
        let bytes: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        let size = u32::try_from(bytes.len()).expect("it is small");
        [&size.to_le_bytes()[..], &bytes, to.as_bytes(), b"\0"].concat()
    }

    #[test]
    fn a_sound_table_tells_how_texts_grow() {
        assert_eq!(growth(&one(b'a', "")), Ok(1));
        assert_eq!(growth(&one(b'a', "bcdef")), Ok(5));
        assert_eq!(growth(&one(b'a', &"b".repeat(1024))), Ok(1024));
    }

    #[test]
    fn a_table_that_leads_outside_is_refused() {
        let sound = one(b'a', "b");
        let with = |unit: usize, value: u32| {
            let mut table = sound.clone();
            table[4 + 4 * unit..8 + 4 * unit].copy_from_slice(&value.to_le_bytes());
            growth(&table)
        };
        assert_eq!(
            with(1, 1 << 31 | 1),
            Ok(1),
            "an empty text at the end of the texts"
        );
        assert!(with(1, 1 << 31 | 3).is_err(), "a text after the end");
        assert!(with(0, u32::MAX).is_err(), "children after the end");
        assert!(
            with(256 ^ 97, 1000 << 10 | 1 << 8 | 97).is_err(),
            "a leaf after the end"
        );
        assert!(
            growth(&one(b'a', &"b".repeat(1025))).is_err(),
            "a long text"
        );
        assert!(growth(&[]).is_err());
        assert!(growth(&[0; 4]).is_err(), "no units");
        assert!(growth(&[0xff; 4]).is_err(), "a length that is not there");
        assert!(growth(&sound[..100]).is_err());
        assert!(
            growth(&[&sound[..], &[0xff]].concat()).is_err(),
            "not UTF-8"
        );
        let mut inside = sound.clone();
        inside.splice(sound.len() - 2.., "\u{e9}\0".bytes());
        inside[4 + 4..8 + 4].copy_from_slice(&(1_u32 << 31 | 1).to_le_bytes());
        assert!(growth(&inside).is_err(), "within a character");
    }
}
