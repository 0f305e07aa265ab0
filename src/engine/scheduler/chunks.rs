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
use super::{BatchBuilder, Claim, Demand, Limits, Scheduler};
use crate::engine::request::Request;
use crate::engine::sequence::Sequence;

impl Scheduler {
    /// Number of tokens to compute for this sequence in this step.
    pub(super) fn chunk(&self, sequence: &Sequence, builder: &BatchBuilder) -> u32 {
        let missing = sequence.missing();
        let left = builder.tokens_left.min(scorable(sequence, builder));
        if !self.limits.deterministic {
            let next = self.memory.tokens_to_snapshot(&sequence.holding);
            return missing.min(left).min(next);
        }
        let wanted = self.fixed_chunk(sequence);
        debug_assert!(wanted <= missing, "only existing tokens are computed");
        if wanted <= left { wanted } else { 0 }
    }

    /// The next chunk of this sequence, whatever else the step computes.
    fn fixed_chunk(&self, sequence: &Sequence) -> u32 {
        let in_chunks = sequence.prompt_len();
        let computed = sequence.holding.computed;
        let grid = self.limits.grid();
        let grid = if sequence.params().prompt_logprobs.is_some() {
            grid.min(self.limits.scores_max)
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
mod tests {
    use super::*;
    use crate::engine::memory::{MemoryLimits, TierLimits};
    use crate::engine::request::{Request, SamplingParams};
    use crate::engine::scheduler::Limits;
    use crate::engine::sequence::StreamId;
    use std::sync::Arc;

    fn scheduler(deterministic: bool, tokens_max: u32) -> Scheduler {
        let limits = Limits {
            tokens_max,
            max_num_seqs: 4,
            sequences_max: 4,
            feed_slots: 8,
            table_entries_max: 400,
            history_max: 16,
            bias_max: 16,
            scores_max: 16,
            max_model_len: 4000,
            vocab: 100,
            deterministic,
            speculation: None,
            eos_token_ids: Vec::new(),
            memory: MemoryLimits {
                state_slots: 0,
                block_size: 32,
                windows: vec![None],
                blocks: vec![400],
                prefix_caching: true,
                hash_key: [3; 32],
                shared_key: [3; 32],
                tiers: TierLimits::default(),
            },
        };
        Scheduler::new(limits)
    }

    /// A prompt of 600 tokens, as it is queued.
    fn queued(scheduler: &mut Scheduler, prompt_logprobs: Option<u32>) -> Sequence {
        let params = SamplingParams {
            prompt_logprobs,
            ..SamplingParams::default()
        };
        let request = Request {
            prompt: vec![1; 600].into(),
            params,
            ..Request::default()
        };
        scheduler.add(Arc::new(request), &[StreamId(0)], 0, false);
        scheduler
            .sequences
            .iter()
            .next()
            .expect("it is queued")
            .clone()
    }

    #[test]
    fn fixed_chunks_are_whole_blocks_of_a_quarter_of_a_step() {
        for (tokens_max, grid) in [(2048, 512), (2047, 480), (300, 64), (255, 32), (32, 32)] {
            assert_eq!(
                scheduler(true, tokens_max).limits.grid(),
                grid,
                "{tokens_max} tokens in a step"
            );
        }
    }

    #[test]
    fn a_prompt_is_cut_at_multiples_of_the_chunk_and_at_its_end_and_an_answer_everywhere() {
        let mut scheduler = scheduler(true, 1024);
        let mut sequence = queued(&mut scheduler, None);
        sequence.tokens.extend([1; 9]);
        let mut chunk = |computed| {
            sequence.holding.computed = computed;
            scheduler.chunk(&sequence, &scheduler.builder(1024))
        };
        assert_eq!(
            [0, 256, 300, 512, 599, 600, 607, 608].map(&mut chunk),
            [256, 256, 212, 88, 1, 1, 1, 1]
        );
        sequence.holding.computed = 256;
        assert_eq!(scheduler.chunk(&sequence, &scheduler.builder(256)), 256);
        assert_eq!(
            scheduler.chunk(&sequence, &scheduler.builder(255)),
            0,
            "a chunk is not cut further"
        );
    }

    #[test]
    fn only_whole_fixed_chunks_are_shared() {
        for (deterministic, prompt_logprobs, unit, shareable) in [
            (false, None, 32, u32::MAX),
            (false, Some(0), 32, u32::MAX),
            (true, None, 256, 512),
            (true, Some(0), 256, 0),
        ] {
            let mut scheduler = scheduler(deterministic, 1024);
            let sequence = queued(&mut scheduler, prompt_logprobs);
            assert_eq!(
                (scheduler.limits.sharing_unit(), sequence.holding.shareable),
                (unit, shareable)
            );
        }
    }
}
