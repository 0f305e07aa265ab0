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
//!
//! A model whose rows see those after them computes each sequence in one step, always.

use super::prompt_outputs::scorable;
use super::{BatchBuilder, Claim, Demand, Limits, Scheduler};
use crate::engine::request::Request;
use crate::engine::sequence::Sequence;

impl Scheduler {
    /// Number of tokens to compute for this sequence in this step.
    pub(super) fn chunk(&self, sequence: &Sequence, builder: &BatchBuilder) -> u32 {
        let missing = sequence.missing();
        let left = builder.tokens_left.min(scorable(sequence, builder));
        if self.queues.limits.is_whole() {
            return if missing <= left { missing } else { 0 };
        }
        if !self.queues.limits.deterministic {
            let next = self.queues.memory.tokens_to_snapshot(&sequence.holding);
            let images = self.tokens_before_images(sequence, builder);
            return missing.min(left).min(next).min(images);
        }
        let wanted = self.fixed_chunk(sequence);
        debug_assert!(wanted <= missing, "only existing tokens are computed");
        if wanted <= left { wanted } else { 0 }
    }

    /// The next chunk of this sequence, whatever else the step computes.
    fn fixed_chunk(&self, sequence: &Sequence) -> u32 {
        let in_chunks = sequence.prompt_len();
        let computed = sequence.holding.computed;
        let grid = self.queues.limits.grid();
        let grid = if sequence.params().prompt_logprobs.is_some() {
            grid.min(self.queues.limits.scores_max)
        } else {
            grid
        };
        let rest = in_chunks.saturating_sub(computed).max(1);
        rest.min(grid - computed % grid)
    }
}

impl Limits {
    /// Length of a prompt's chunks: whole blocks.
    fn grid(&self) -> u32 {
        let block_size = self.memory.block_size;
        let blocks = self.tokens_max / 4 / block_size;
        blocks.max(1) * block_size
    }

    /// A prompt can share multiples of this number of tokens.
    pub(super) fn sharing_unit(&self) -> u32 {
        if self.deterministic {
            self.grid()
        } else {
            self.memory.block_size
        }
    }

    /// Number of leading tokens of a request's sequences that others can share, once they are computed.
    fn shareable(&self, request: &Request) -> u32 {
        if !self.deterministic {
            return u32::MAX;
        }
        if request.params.prompt_logprobs.is_some() {
            return 0;
        }
        let prompt_len = u32::try_from(request.prompt.len()).expect("a prompt fits the context");
        prompt_len / self.grid() * self.grid()
    }

    /// What memory must know of a request.
    pub(super) fn claim<'a>(&self, request: &'a Request) -> Claim<'a> {
        Claim {
            salt: request.cache_salt.as_deref(),
            owner: request.cache_owner.as_ref(),
            adapter: request.adapter.as_ref().map(|content| &content.digest),
            tiles: &request.tiles,
            prompt_len: u32::try_from(request.prompt.len()).expect("a prompt fits the context"),
            shareable: self.shareable(request),
            takes_snapshots: request.pooling.is_none(),
        }
    }

    /// What sequences ask of memory at most.
    pub(super) fn demand(&self) -> Demand {
        Demand {
            step_tokens_max: self.tokens_max,
            max_num_seqs: self.max_num_seqs,
            max_model_len: self.max_model_len,
            sharing_unit: self.sharing_unit(),
        }
    }
}

#[cfg(test)]
mod tests;
