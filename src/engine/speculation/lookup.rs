//! A text in which the continuation of its own last tokens, or of another text's, can be looked up: prompt lookup.
//!
//! Every run of `min` tokens is a key of a hash map to its most recent place; each place links to the one before.
//! Adding a token and finding the places of a run cost O(1), however long the text is.
//! Source: Saxena, "Prompt Lookup Decoding", 2023 (vLLM's method `ngram`).

use std::collections::HashMap;

/// Places that a lookup compares, most recent first.
const PLACES_MAX: usize = 4;

/// Tokens with an index of their n-grams.
#[derive(Clone, Debug, Default)]
pub(super) struct Text {
    tokens: Vec<u32>,
    /// Length of the runs that are indexed.
    min: usize,
    /// Where the token after the most recent occurrence of a run is, by the run's hash.
    last: HashMap<u64, u32>,
    /// Per position: the same of the occurrence before the one that ends there; 0 for none.
    before: Vec<u32>,
}

impl Text {
    /// An empty text that indexes runs of `min` tokens.
    pub(super) fn new(min: u32) -> Self {
        assert!(min > 0, "a run has a token");
        Self {
            min: min as usize,
            ..Self::default()
        }
    }

    /// Adds a token.
    pub(super) fn push(&mut self, token_id: u32) {
        self.tokens.push(token_id);
        self.before.push(0);
        let end = self.tokens.len();
        let Some(start) = end.checked_sub(self.min) else {
            return;
        };
        let place = u32::try_from(end).expect("a text fits the context");
        let previous = self.last.insert(hash(&self.tokens[start..]), place);
        self.before[end - 1] = previous.unwrap_or(0);
    }

    /// Number of tokens.
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The tokens.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The place after the run that is most like the end of `recent`, and the length of what is equal, at most
    /// `recent`'s. The most recent of the longest wins. A run at this text's own end has nothing to continue with.
    pub(super) fn find(&self, recent: &[u32]) -> Option<(usize, usize)> {
        let start = recent.len().checked_sub(self.min)?;
        let mut place = self
            .last
            .get(&hash(&recent[start..]))
            .map_or(0, |&place| place as usize);
        let mut best: Option<(usize, usize)> = None;
        for _ in 0..PLACES_MAX {
            if place == 0 {
                break;
            }
            let equal = self.tokens[..place]
                .iter()
                .rev()
                .zip(recent.iter().rev())
                .take_while(|(a, b)| a == b)
                .count();
            let longer = best.is_none_or(|(_, length)| equal > length);
            if place < self.tokens.len() && equal >= self.min && longer {
                best = Some((place, equal));
            }
            place = self.before[place - 1] as usize;
        }
        best
    }

    /// The `index`-th token from `place` on. A text that repeats itself is taken to go on so after its end.
    pub(super) fn ahead(&self, place: usize, index: usize) -> u32 {
        debug_assert!(place < self.tokens.len(), "a place has a token");
        self.tokens[place + index % (self.tokens.len() - place)]
    }
}

fn hash(run: &[u32]) -> u64 {
    run.iter().fold(0, |hash: u64, &id| {
        (hash ^ u64::from(id))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
    })
}

#[cfg(test)]
mod tests;
