//! How many tokens of a sequence a step computes, and what its blocks may be shared for.
//!
//! A device computes a row with different kernels, and so with different rounding, depending on how many rows of the
//! same sequence are in the step. With [`super::Limits::deterministic`], the number must therefore not depend on
//! anything but the request:
//!
//! - A prompt is cut at multiples of a fixed number of tokens, and at its end. A step has room for the whole chunk, or
//!   computes none of it.
//! - A token of an answer has a step of its own, also when it is forced, or computed again after a preemption.
//! - Only whole chunks of prompts are shared, and those of prompts whose logprobs are reported are not, because their
//!   chunks are smaller. What follows from the cache is then cut as without it.

use super::prompt_outputs::scorable;
use super::{Draft, Scheduler};
use crate::engine::faults::InjectedFault;
use crate::engine::sequence::Sequence;

impl Scheduler {
    /// Number of tokens to compute for this sequence in this step.
    pub(super) fn chunk(&self, sequence: &Sequence, draft: &Draft) -> u32 {
        let (missing, left) = (sequence.missing(), draft.tokens_left.min(scorable(sequence, draft)));
        if !self.limits.deterministic {
            return missing.min(left);
        }
        let wanted = self.fixed_chunk(sequence);
        debug_assert!(wanted <= missing, "only existing tokens are computed");
        match wanted <= left {
            true => wanted,
            false if self.faults.has(InjectedFault::GridFollowsCompany) => left,
            false => 0,
        }
    }

    /// The next chunk of this sequence, whatever else the step computes.
    fn fixed_chunk(&self, sequence: &Sequence) -> u32 {
        let in_chunks = match self.faults.has(InjectedFault::AnswerRecomputedInChunks) {
            true => sequence.tokens_total(),
            false => sequence.prompt_len(),
        };
        let scores = sequence.params().prompt_logprobs.is_some();
        let grid = if scores { self.grid().min(self.limits.scores_max) } else { self.grid() };
        let rest = in_chunks.saturating_sub(sequence.computed).max(1);
        rest.min(grid - sequence.computed % grid)
    }

    /// Length of a prompt's chunks: whole blocks.
    fn grid(&self) -> u32 {
        let blocks = self.limits.tokens_max / 4 / self.limits.block_size;
        blocks.max(1) * self.limits.block_size
    }

    /// A prompt can share multiples of this number of tokens.
    pub(super) fn sharing_unit(&self) -> u32 {
        let any = !self.limits.deterministic || self.faults.has(InjectedFault::PartChunksShared);
        if any { self.limits.block_size } else { self.grid() }
    }

    /// Number of leading tokens of a sequence that other sequences can share, once they are computed.
    pub(super) fn shareable(&self, sequence: &Sequence) -> u32 {
        if !self.limits.deterministic || self.faults.has(InjectedFault::PartChunksShared) {
            return u32::MAX;
        }
        let scores = sequence.params().prompt_logprobs.is_some();
        if scores { 0 } else { sequence.prompt_len() / self.grid() * self.grid() }
    }
}
