//! Beam search: which continuations of a request's beams survive a step, and which are finished answers. Pure: no
//! blocks, no device.
//!
//! The rules are those of `generate(num_beams=…)` of Hugging Face's transformers, so that its results are reproduced.
//! The score of a beam is the sum of the raw logprobs of its generated tokens. A step ranks the continuations of all
//! beams by score. Those that end (end token, stop, length) become hypotheses if they rank among the best `width`; of
//! the others, the best `width` are the next beams. A hypothesis is scored once, by its sum divided by its length to
//! the power of `length_penalty`; the best `width` are kept. The search is over when no beam is left, or when there are
//! `width` hypotheses and either `early_stopping` is set or the best beam, scored as if it ended now, is not better
//! than the worst of them.

use super::request::{BeamParams, FinishReason, SamplingParams};
use crate::plan::inputs::TOP_LOGPROBS_MAX;

/// A beam continued by one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Continuation {
    /// Index of the beam.
    pub(super) beam: usize,
    pub(super) token_id: u32,
    /// Logprob of the token.
    pub(super) logprob: f32,
    /// Score of the beam with the token.
    pub(super) score: f64,
}

/// A finished answer.
#[derive(Clone, Debug)]
pub(super) struct Hypothesis<T> {
    pub(super) answer: T,
    /// Normalized by length.
    pub(super) score: f64,
    pub(super) reason: FinishReason,
}

/// What becomes of a continuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Continues,
    Ends(FinishReason),
    /// The grammar does not allow it after all.
    Forbidden,
}

/// The state of a search; `T` is an answer.
#[derive(Clone, Debug)]
pub(super) struct BeamSearch<T> {
    params: BeamParams,
    /// At most `width`, best first.
    finished: Vec<Hypothesis<T>>,
}

/// Number of continuations of each beam that a step considers; `eos` is the number of the model's end tokens.
/// max(2, 1 + end ids) · width, as in transformers, but no more than a device reports. That is enough even for the most
/// end and stop ids: no more than `width` others of a beam can survive.
pub(super) fn candidates(params: &SamplingParams, width: u32, eos: usize) -> u32 {
    let eos = if params.ignore_eos { 0 } else { eos };
    let ends = u32::try_from(eos + params.stop_token_ids.len()).unwrap_or(u32::MAX);
    let wanted = width.saturating_mul(ends.saturating_add(1).max(2));
    wanted
        .max(params.logprobs.unwrap_or(0))
        .min(TOP_LOGPROBS_MAX)
}

/// The continuations of all beams, best first; ties by beam, then as the device lists them. `beams` has the score of
/// each beam and its candidates.
pub(super) fn ranked<'a>(
    beams: impl Iterator<Item = (f64, &'a [(u32, f32)])>,
) -> Vec<Continuation> {
    let continuations = beams.enumerate().flat_map(|(beam, (score, candidates))| {
        candidates
            .iter()
            .map(move |&(token_id, logprob)| Continuation {
                beam,
                token_id,
                logprob,
                score: score + f64::from(logprob),
            })
    });
    let mut ranked: Vec<_> = continuations.collect();
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score));
    ranked
}

impl<T> BeamSearch<T> {
    pub(super) fn new(params: BeamParams) -> Self {
        Self {
            params,
            finished: Vec::new(),
        }
    }

    pub(super) fn width(&self) -> u32 {
        self.params.width
    }

    /// The hypotheses, best first.
    pub(super) fn into_finished(self) -> Vec<Hypothesis<T>> {
        self.finished
    }

    /// Takes the ranked continuations of a step, in which answers become `length` tokens long, and returns the next
    /// beams, best first: none if the search is over.
    pub(super) fn select(
        &mut self,
        ranked: &[Continuation],
        length: u32,
        fate: impl Fn(&Continuation) -> Fate,
        answer: impl Fn(&Continuation) -> T,
    ) -> Vec<Continuation> {
        let width = self.params.width as usize;
        let norm = f64::from(length).powf(f64::from(self.params.length_penalty));
        let is_closed = self.params.early_stopping && self.finished.len() == width;
        let mut next = Vec::with_capacity(width);
        let mut rank = 0;
        for continuation in ranked {
            if rank >= width && next.len() == width {
                break;
            }
            let fate = fate(continuation);
            if fate == Fate::Continues && next.len() < width {
                next.push(*continuation);
            }
            if let Fate::Ends(reason) = fate
                && rank < width
                && !is_closed
            {
                let score = continuation.score / norm;
                let at = self.finished.partition_point(|other| other.score >= score);
                self.finished.insert(
                    at,
                    Hypothesis {
                        answer: answer(continuation),
                        score,
                        reason,
                    },
                );
            }
            rank += usize::from(fate != Fate::Forbidden);
        }
        self.finished.truncate(width);
        if next
            .first()
            .is_some_and(|best| self.is_over(best.score / norm))
        {
            next.clear();
        }
        next
    }

    /// Whether no beam can improve the hypotheses any more; `best` is the best beam's score as if it ended now.
    fn is_over(&self, best: f64) -> bool {
        let is_full = self.finished.len() == self.params.width as usize;
        is_full
            && (self.params.early_stopping
                || self
                    .finished
                    .last()
                    .is_some_and(|worst| best <= worst.score))
    }
}

#[cfg(test)]
mod tests;
