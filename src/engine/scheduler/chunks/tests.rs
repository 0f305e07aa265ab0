//! Tests of `engine/scheduler/chunks.rs`.

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
        adapter_slots: 0,
        image_rows: 0,
        patches_max: 0,
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
        .queues
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
            scheduler(true, tokens_max).queues.limits.grid(),
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
            (
                scheduler.queues.limits.sharing_unit(),
                sequence.holding.shareable
            ),
            (unit, shareable)
        );
    }
}
