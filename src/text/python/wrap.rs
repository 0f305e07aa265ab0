//! `textwrap.wrap`: a text in lines of at most some characters.

/// White space of lines, as `textwrap` has it.
const SPACES: [char; 6] = ['\t', '\n', '\u{b}', '\u{c}', '\r', ' '];

/// How lines are broken.
#[derive(Clone, Copy)]
pub(in crate::text) struct Wrapping {
    /// Maximum characters of a line.
    pub(in crate::text) width: usize,
    /// Whether words that are longer than a line are broken.
    pub(in crate::text) breaks_long_words: bool,
    /// Whether words are broken behind hyphens.
    pub(in crate::text) breaks_on_hyphens: bool,
}

/// The lines of one line of text.
pub(in crate::text) fn wrap(text: &str, wrapping: Wrapping) -> Vec<String> {
    let characters: Vec<char> = text.chars().collect();
    let mut chunks: Vec<&[char]> = chunks(&characters, wrapping.breaks_on_hyphens);
    chunks.reverse();
    let mut lines = Vec::new();
    while !chunks.is_empty() {
        if !lines.is_empty() && chunks.last().is_some_and(|chunk| is_blank(chunk)) {
            chunks.pop();
        }
        let line = next_line(&mut chunks, wrapping);
        if !line.is_empty() {
            lines.push(line.concat().into_iter().collect());
        }
    }
    lines
}

/// Takes the chunks of one line from the end of `chunks`.
fn next_line<'a>(chunks: &mut Vec<&'a [char]>, wrapping: Wrapping) -> Vec<&'a [char]> {
    let (mut line, mut len) = (Vec::new(), 0);
    while let Some(chunk) = chunks.pop_if(|chunk| len + chunk.len() <= wrapping.width) {
        len += chunk.len();
        line.push(chunk);
    }
    if let Some(chunk) = chunks.pop_if(|chunk| chunk.len() > wrapping.width) {
        if wrapping.breaks_long_words {
            let (first, rest) = chunk.split_at(break_of(
                chunk,
                wrapping.width - len,
                wrapping.breaks_on_hyphens,
            ));
            line.push(first);
            chunks.push(rest);
        } else if line.is_empty() {
            line.push(chunk);
        } else {
            chunks.push(chunk);
        }
    }
    line.pop_if(|chunk| is_blank(chunk));
    line
}

/// Where a long word is broken: at the end of the line, or behind its last hyphen there.
fn break_of(chunk: &[char], space: usize, breaks_on_hyphens: bool) -> usize {
    if !breaks_on_hyphens {
        return space;
    }
    let hyphen = chunk[..space].iter().rposition(|c| *c == '-');
    let hyphen = hyphen.filter(|at| chunk[..*at].iter().any(|c| *c != '-'));
    hyphen.map_or(space, |at| at + 1)
}

fn is_blank(chunk: &[char]) -> bool {
    chunk.iter().all(|c| c.is_whitespace())
}

/// Words and the white space between them; a word may be several chunks.
fn chunks(text: &[char], breaks_on_hyphens: bool) -> Vec<&[char]> {
    let mut chunks = Vec::new();
    for run in text.chunk_by(|left, right| SPACES.contains(left) == SPACES.contains(right)) {
        let mut start = 0;
        if breaks_on_hyphens && !SPACES.contains(&run[0]) {
            for at in 1..run.len() {
                if ends_chunk(run, start, at) {
                    chunks.push(&run[start..at]);
                    start = at;
                }
            }
        }
        chunks.push(&run[start..]);
    }
    chunks
}

/// Whether a chunk that begins at `start` ends before `at`: behind a hyphen between letters, or beside a dash, which
/// is several hyphens between words.
fn ends_chunk(word: &[char], start: usize, at: usize) -> bool {
    let is_letter = |at: usize| word.get(at).is_some_and(|c| c.is_alphabetic() || *c == '_');
    let is_word = |at: usize| {
        word.get(at)
            .is_some_and(|c| c.is_alphanumeric() || *c == '_')
    };
    let is_punctuation = |at: usize| word.get(at).is_some_and(|c| "!\"'&.,?".contains(*c));
    let is_hyphen = |at: usize| word.get(at) == Some(&'-');
    let dash_end = |from: usize| (from..).find(|at| !is_hyphen(*at)).unwrap_or(from);
    let begins_dash = |at: usize| is_hyphen(at) && dash_end(at) >= at + 2 && is_word(dash_end(at));
    let follows_word = |at: usize| at > 0 && (is_word(at - 1) || is_punctuation(at - 1));
    let is_dash = is_hyphen(start) && follows_word(start) && begins_dash(start);
    if is_dash {
        return at == dash_end(start);
    }
    if follows_word(at) && begins_dash(at) {
        return true;
    }
    let follows_letters = at >= 3
        && is_hyphen(at - 1)
        && (is_letter(at - 2) && is_letter(at - 3)
            || at >= 4
                && is_letter(at - 4)
                && is_hyphen(at - 3)
                && (is_word(at - 2) || is_punctuation(at - 2)));
    let precedes_letters =
        is_letter(at) && (is_letter(at + 1) || is_hyphen(at + 1) && is_letter(at + 2));
    at > start + 1 && follows_letters && precedes_letters
}
