//! Explains why a prompt's cached prefix was not longer: compares the prompt with the tokens of sequences that are
//! remembered for this purpose.
//!
//! The cache knows only hashes of blocks; finding where a prompt differs from all others needs their tokens. So the
//! tokens of the sequences that ended last are kept, up to a bound, and running sequences are compared too. A report
//! contains only tokens of the client's own prompt, and says nothing of where it differs from prompts of others.

use super::Scheduler;
use crate::engine::request::{PrefixEnd, PrefixReport};
use crate::engine::sequence::{Sequence, SequenceId};
use std::collections::VecDeque;

/// Maximum number of remembered sequences.
const PAST_MAX: usize = 64;
/// Maximum total tokens of the remembered sequences.
const PAST_TOKENS_MAX: usize = 1 << 20;

/// Ended sequences, the most recent last.
#[derive(Debug, Default)]
pub(super) struct Past {
    sequences: VecDeque<Remembered>,
    tokens: usize,
}

#[derive(Debug)]
struct Remembered {
    /// Tokens whose keys and values were computed and can be shared.
    tokens: Vec<u32>,
    salt: Option<String>,
    client: u32,
}

/// A sequence that a prompt may share a prefix with.
struct Candidate<'a> {
    tokens: &'a [u32],
    salt: Option<&'a str>,
    client: u32,
}

impl Past {
    /// Stores the tokens of a sequence that has ended, as far as others can share them.
    pub(super) fn remember(&mut self, sequence: Sequence) {
        // Its blocks are already released. All its tokens but the last were computed.
        let mut tokens = sequence.tokens;
        tokens.pop();
        tokens.truncate(sequence.holding.shareable as usize);
        if sequence.holding.cached.is_none() || tokens.len() > PAST_TOKENS_MAX {
            return;
        }
        self.tokens += tokens.len();
        let (salt, client) = (sequence.request.cache_salt.clone(), sequence.request.client);
        self.sequences.push_back(Remembered {
            tokens,
            salt,
            client,
        });
        while self.sequences.len() > PAST_MAX || self.tokens > PAST_TOKENS_MAX {
            self.tokens -= self
                .sequences
                .pop_front()
                .map_or(0, |past| past.tokens.len());
        }
        debug_assert!(
            !self.sequences.is_empty(),
            "what was just remembered is kept"
        );
    }
}

impl Scheduler {
    /// Counts why not more of a sequence's prompt was found, and reports it if requested. Called right after admission.
    pub(super) fn explain_prefix(&mut self, id: SequenceId) {
        let report = self.prefix_report(id);
        self.queues.counts.prefix_ends[report.end as usize] += 1;
        let sequence = &mut self.queues.sequences[id];
        sequence.prefix_report = sequence.request.explain_prefix.then_some(report);
    }

    fn prefix_report(&self, id: SequenceId) -> PrefixReport {
        let sequence = &self.queues.sequences[id];
        let cached = sequence.cached().all;
        let size = self.queues.limits.sharing_unit();
        debug_assert!(
            cached <= sequence.tokens_known(),
            "only tokens of the sequence were found"
        );
        let report = |common_tokens, end| {
            let differing = sequence.tokens.get(common_tokens as usize).copied();
            PrefixReport {
                cached: sequence.cached(),
                common_tokens,
                differing,
                end,
            }
        };
        if !self.queues.limits.memory.prefix_caching {
            return report(cached, PrefixEnd::Disabled);
        }
        let next = cached + size;
        if next >= sequence.tokens_known() && !sequence.request.explain_prefix {
            return report(cached, PrefixEnd::EndOfPrompt);
        }
        let salt = sequence.request.cache_salt.as_deref();
        let (mut own, mut foreign) = (cached, cached);
        for candidate in self.candidates(id) {
            if candidate.client != sequence.request.client {
                continue;
            }
            if candidate.salt == salt {
                own = own.max(common_tokens(&sequence.tokens, candidate.tokens, cached));
            } else {
                foreign = foreign.max(common_tokens(&sequence.tokens, candidate.tokens, cached));
            }
        }
        let end = match () {
            () if next >= sequence.tokens_known() => PrefixEnd::EndOfPrompt,
            () if sequence.holding.branch() >= next => PrefixEnd::NoSnapshot,
            () if own >= next => PrefixEnd::Eviction,
            () if foreign >= next => PrefixEnd::Salt,
            () => PrefixEnd::Difference,
        };
        report(own, end)
    }

    /// All sequences with computed tokens, except `but`.
    fn candidates(&self, but: SequenceId) -> impl Iterator<Item = Candidate<'_>> {
        let past = self.queues.past.sequences.iter();
        let past = past.map(|past| Candidate {
            tokens: &past.tokens,
            salt: past.salt.as_deref(),
            client: past.client,
        });
        let running = self
            .queues
            .running
            .iter()
            .filter(move |&&id| id != but)
            .map(|&id| {
                let sequence = &self.queues.sequences[id];
                let computed = sequence
                    .holding
                    .computed
                    .min(sequence.tokens_known())
                    .min(sequence.holding.shareable) as usize;
                let (salt, client) = (
                    sequence.request.cache_salt.as_deref(),
                    sequence.request.client,
                );
                Candidate {
                    tokens: &sequence.tokens[..computed],
                    salt,
                    client,
                }
            });
        past.chain(running)
    }
}

/// Number of leading tokens that both share, but at least `least`.
fn common_tokens(ours: &[u32], theirs: &[u32], least: u32) -> u32 {
    let start = least as usize;
    debug_assert!(
        start <= ours.len(),
        "only own tokens are known to be shared"
    );
    if theirs.len() <= start || ours[..start] != theirs[..start] {
        return least;
    }
    let more = ours[start..]
        .iter()
        .zip(&theirs[start..])
        .take_while(|(a, b)| a == b)
        .count();
    least + u32::try_from(more).expect("a sequence fits the context")
}

#[cfg(test)]
mod tests;
