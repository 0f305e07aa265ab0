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
        let (missing, left) = (
            sequence.missing(),
            draft.tokens_left.min(scorable(sequence, draft)),
        );
        if !self.limits.deterministic {
            return missing.min(left).min(self.tokens_to_snapshot(sequence));
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
        let grid = if scores {
            self.grid().min(self.limits.scores_max)
        } else {
            self.grid()
        };
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
        if any {
            self.limits.block_size
        } else {
            self.grid()
        }
    }

    /// Number of leading tokens of a sequence that other sequences can share, once they are computed.
    pub(super) fn shareable(&self, sequence: &Sequence) -> u32 {
        if !self.limits.deterministic || self.faults.has(InjectedFault::PartChunksShared) {
            return u32::MAX;
        }
        let scores = sequence.params().prompt_logprobs.is_some();
        if scores {
            0
        } else {
            sequence.prompt_len() / self.grid() * self.grid()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::faults::InjectedFaults;
    use crate::engine::request::{Request, SamplingParams};
    use crate::engine::scheduler::Limits;
    use crate::engine::sequence::StreamId;
    use crate::engine::tiers::TierLimits;
    use std::sync::Arc;

    fn scheduler(deterministic: bool, tokens_max: u32) -> Scheduler {
        let limits = Limits {
            tokens_max,
            max_num_seqs: 4,
            draws_max: 4,
            feed_slots: 8,
            state_slots: 0,
            table_entries_max: 400,
            history_max: 16,
            bias_max: 16,
            scores_max: 16,
            block_size: 32,
            max_model_len: 4000,
            vocab: 100,
            windows: vec![None],
            blocks: vec![400],
            prefix_caching: true,
            deterministic,
            speculation: None,
            eos_token_ids: Vec::new(),
            hash_key: [3; 32],
            shared_key: [3; 32],
            tiers: TierLimits::default(),
        };
        Scheduler::new(limits, InjectedFaults::default())
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
                scheduler(true, tokens_max).grid(),
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
            sequence.computed = computed;
            scheduler.chunk(&sequence, &scheduler.draft(1024))
        };
        assert_eq!(
            [0, 256, 300, 512, 599, 600, 607, 608].map(&mut chunk),
            [256, 256, 212, 88, 1, 1, 1, 1]
        );
        sequence.computed = 256;
        assert_eq!(scheduler.chunk(&sequence, &scheduler.draft(256)), 256);
        assert_eq!(
            scheduler.chunk(&sequence, &scheduler.draft(255)),
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
                (scheduler.sharing_unit(), scheduler.shareable(&sequence)),
                (unit, shareable)
            );
        }
    }
}
