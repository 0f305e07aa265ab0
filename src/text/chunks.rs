//! Encodes long texts in chunks on several threads. On one thread, a megabyte takes a second or two.
//!
//! Most tokenizers first cut a text into words by a regular expression that scans from left to right and never looks
//! back. So a scan that starts at a word boundary finds the same words from there on, and a scan that starts anywhere
//! else soon reaches such a boundary. Chunks overlap: where the words of two neighbors start at the same place, the ids
//! of the first chunk end and those of the second continue. The result is exact. If neighbors never agree (a word of
//! kilobytes), or the tokenizer is of another kind ([`is_local`]), the text is encoded in one piece.

use super::growth;
use super::tokenizer_file::{Inner, TokenizerFile};
use serde_json::Value;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokenizers::{Model as _, OffsetReferential, OffsetType};

/// Bytes of a chunk, and bytes of the next chunk that it also encodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) chunk: usize,
    pub(super) overlap: usize,
}

/// A chunk is about 40 ms of work; starting a thread takes a thousandth of that.
pub(super) const SIZES: Sizes = Sizes {
    chunk: 32 << 10,
    overlap: 4 << 10,
};
const THREADS_MAX: usize = 8;
/// Words that start this close to a chunk's end are not trusted: with more text they might start elsewhere.
const DOUBT_BYTES: usize = 64;

/// The words of a chunk and their ids.
struct Chunk {
    range: Range<usize>,
    /// For each word: its byte offset in the whole text, and the index of its first id in `ids`.
    words: Vec<(usize, usize)>,
    ids: Vec<u32>,
}

/// Whether a tokenizer.json splits text into words independently of the preceding text.
pub(super) fn is_local(file: &TokenizerFile<'_>) -> bool {
    let normalizer = file.normalizer["type"].as_str();
    let is_unicode_form =
        normalizer.is_none_or(|kind| ["NFC", "NFD", "NFKC", "NFKD"].contains(&kind));
    let pre_tokenizer = &file.pre_tokenizer;
    let parts = match pre_tokenizer["pretokenizers"].as_array() {
        Some(parts) => parts.as_slice(),
        None => std::slice::from_ref(pre_tokenizer),
    };
    let scans = parts
        .iter()
        .filter(|part| part["type"] == "Split" || part["use_regex"] != false)
        .count();
    is_unicode_form
        && !file.added_tokens.iter().any(|token| token.single_word)
        && scans == 1
        && parts.iter().all(is_local_part)
}

fn is_local_part(part: &Value) -> bool {
    match part["type"].as_str() {
        Some("ByteLevel") => part["add_prefix_space"] == false,
        Some("Split") => {
            let isolated = part["behavior"] == "Isolated" && part["invert"] == false;
            isolated
                && part["pattern"]["Regex"]
                    .as_str()
                    .is_some_and(looks_ahead_one_character)
        }
        _ => false,
    }
}

/// Whether a pattern depends only on what it matches, the run of white space around it, and one more character.
fn looks_ahead_one_character(pattern: &str) -> bool {
    let looks_back = ["(?<", "(?=", "\\b", "\\B", "\\A", "\\G", "\\K"]
        .iter()
        .any(|part| pattern.contains(part));
    let anchored = pattern.replace("[^", "").contains('^');
    let looks_far = pattern
        .split("(?!")
        .skip(1)
        .any(|rest| !rest.starts_with("\\S)"));
    !looks_back && !anchored && !looks_far
}

/// Ids of `text`, without the special ids that a tokenizer adds around it. `None` if it has to be encoded in one piece.
pub(super) fn encode(
    tokenizer: &Inner,
    text: &str,
    sizes: Sizes,
) -> tokenizers::Result<Option<Vec<u32>>> {
    let threads = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(THREADS_MAX);
    let ranges = ranges(text, sizes);
    if threads == 1 || ranges.len() == 1 {
        return Ok(None);
    }
    let chunks = encode_all(tokenizer, text, &ranges, threads)?;
    Ok(join(text, &chunks))
}

fn ranges(text: &str, sizes: Sizes) -> Vec<Range<usize>> {
    let boundary = |at: usize| {
        (at..text.len())
            .find(|&at| text.is_char_boundary(at))
            .unwrap_or(text.len())
    };
    let starts = (0..text.len()).step_by(sizes.chunk).map(boundary);
    let mut ranges: Vec<_> = starts
        .map(|start| start..boundary(start + sizes.chunk + sizes.overlap))
        .collect();
    // Drops a last chunk that the previous one encodes completely.
    while ranges.len() > 1 && ranges[ranges.len() - 2].end == text.len() {
        ranges.pop();
    }
    ranges
}

/// Encodes all chunks and returns them in order. Every thread takes the next unclaimed one.
fn encode_all(
    tokenizer: &Inner,
    text: &str,
    ranges: &[Range<usize>],
    threads: usize,
) -> tokenizers::Result<Vec<Chunk>> {
    let next = AtomicUsize::new(0);
    let work = || -> tokenizers::Result<Vec<Chunk>> {
        let mut done = Vec::new();
        while let Some(range) = ranges.get(next.fetch_add(1, Ordering::Relaxed)) {
            done.push(encode_chunk(tokenizer, text, range)?);
        }
        Ok(done)
    };
    let mut chunks = std::thread::scope(|scope| -> tokenizers::Result<Vec<Chunk>> {
        let others: Vec<_> = (1..threads)
            .filter_map(|_| {
                std::thread::Builder::new()
                    .name("encode".into())
                    .spawn_scoped(scope, work)
                    .ok()
            })
            .collect();
        let mut chunks: Vec<Chunk> = work()?;
        for other in others {
            chunks.extend(
                other
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?,
            );
        }
        Ok(chunks)
    })?;
    chunks.sort_by_key(|chunk| chunk.range.start);
    Ok(chunks)
}

fn encode_chunk(tokenizer: &Inner, text: &str, range: &Range<usize>) -> tokenizers::Result<Chunk> {
    let mut split = growth::words(tokenizer, &text[range.clone()])?;
    split.tokenize(|word| tokenizer.get_model().tokenize(word.get()))?;
    let mut chunk = Chunk {
        range: range.clone(),
        words: Vec::new(),
        ids: Vec::new(),
    };
    for (_, (start, _), tokens) in split.get_splits(OffsetReferential::Original, OffsetType::Byte) {
        chunk.words.push((range.start + start, chunk.ids.len()));
        chunk
            .ids
            .extend(tokens.iter().flatten().map(|token| token.id));
    }
    Ok(chunk)
}

/// The ids of the whole text; `None` if two neighbors do not agree on any word.
fn join(text: &str, chunks: &[Chunk]) -> Option<Vec<u32>> {
    let mut ids = Vec::with_capacity(chunks.iter().map(|chunk| chunk.ids.len()).sum());
    // Index of the first word and of the first id to use from the current chunk.
    let mut from = (0, 0);
    for (chunk, next) in chunks.iter().zip(&chunks[1..]) {
        let (word, next_word) = meeting(text, &chunk.words[from.0..], chunk.range.end, next)?;
        ids.extend_from_slice(&chunk.ids[from.1..word.1]);
        from = (next_word, next.words[next_word].1);
    }
    ids.extend_from_slice(&chunks.last()?.ids[from.1..]);
    Some(ids)
}

/// The first word that starts at the same place in both chunks: its entry in `words`, and its index in `next`.
fn meeting(
    text: &str,
    words: &[(usize, usize)],
    end: usize,
    next: &Chunk,
) -> Option<((usize, usize), usize)> {
    let first = words.partition_point(|&(start, _)| start <= next.range.start);
    words[first..].iter().find_map(|&(start, id)| {
        let sure = start + DOUBT_BYTES <= end && is_certain(&text[start..end]);
        let index = next
            .words
            .binary_search_by_key(&start, |&(start, _)| start)
            .ok()?;
        // An empty word starts at the same place as the next one.
        let alone = next
            .words
            .get(index + 1)
            .is_none_or(|&(other, _)| other != start);
        (sure && alone).then_some(((start, id), index))
    })
}

/// Whether a word that starts here would also start here in a longer text: its run of white space ends within this
/// text, and its first character neither combines nor reorders with the preceding one.
fn is_certain(rest: &str) -> bool {
    rest.starts_with(|c: char| {
        c.is_ascii()
            || matches!(c, '\u{c0}'..='\u{24f}' | '\u{400}'..='\u{481}' | '\u{4e00}'..='\u{9fff}')
    }) && !rest.trim_start().is_empty()
}

#[cfg(test)]
mod tests;
