//! Host time per step: scheduling, flattening and committing 256 running sequences.
//!
//! Prints the median of 1,000 steps, best of five rounds, with the limit from DESIGN.md (200 µs for scheduling and
//! flattening), and fails above the limit. `cargo bench --bench scheduling`.

use folio::engine::memory::{MemoryLimits, TierLimits};
use folio::engine::request::{DrawParams, Request, SamplingParams};
use folio::engine::scheduler::{Limits, Scheduler};
use folio::engine::sequence::StreamId;
use folio::plan::inputs::{Results, Sampled};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SEQUENCES: u32 = 256;
const PROMPT_LEN: u32 = 1000;
const STEPS: usize = 1000;
const LIMIT: Duration = Duration::from_micros(200);

fn main() {
    let rounds: Vec<_> = (0..5).map(|_| round()).collect();
    let best = rounds
        .iter()
        .min_by_key(|(schedule, _)| *schedule)
        .expect("there are rounds");
    let (schedule, commit) = best;
    println!(
        "{SEQUENCES} running sequences: schedule + flatten {schedule:?} (limit {LIMIT:?}), commit {commit:?}"
    );
    assert!(
        cfg!(debug_assertions) || *schedule <= LIMIT,
        "scheduling stays within its limit"
    );
}

/// Median times of scheduling with flattening, and of committing.
fn round() -> (Duration, Duration) {
    let mut scheduler = Scheduler::new(limits());
    for index in 0..SEQUENCES {
        let params = SamplingParams {
            draw: DrawParams {
                frequency_penalty: 0.1,
                ..DrawParams::default()
            },
            ..SamplingParams::default()
        };
        let prompt = (0..PROMPT_LEN)
            .map(|position| (position * 31 + index) % 32_000)
            .collect();
        let request = Request {
            prompt,
            params,
            ..Request::default()
        };
        scheduler.add(Arc::new(request), &[StreamId(u64::from(index))], 1, false);
    }
    while scheduler.waiting_len() > 0 {
        step(&mut scheduler);
    }
    step(&mut scheduler);
    let (mut schedules, mut commits): (Vec<_>, Vec<_>) =
        (0..STEPS).map(|_| step(&mut scheduler)).unzip();
    schedules.sort_unstable();
    commits.sort_unstable();
    (schedules[STEPS / 2], commits[STEPS / 2])
}

fn step(scheduler: &mut Scheduler) -> (Duration, Duration) {
    let start = Instant::now();
    let batch = scheduler
        .schedule(limits().tokens_max)
        .expect("sequences run on");
    let inputs = scheduler.flatten(&batch);
    let schedule = start.elapsed();
    let token = |row: &folio::plan::inputs::SampleRow| Sampled {
        token_id: row.position % 997,
        ..Sampled::default()
    };
    let sampled = inputs.samples.iter().map(token).collect();
    let start = Instant::now();
    let events = scheduler.commit(
        &batch,
        Results {
            sampled,
            ..Results::default()
        },
    );
    let commit = start.elapsed();
    drop((events, inputs));
    (schedule, commit)
}

fn limits() -> Limits {
    Limits {
        tokens_max: 4096,
        max_num_seqs: SEQUENCES,
        sequences_max: SEQUENCES,
        adapter_slots: 0,
        image_rows: 0,
        patches_max: 0,
        feed_slots: 2 * SEQUENCES,
        table_entries_max: 1 << 20,
        history_max: 1 << 20,
        bias_max: 1 << 16,
        scores_max: 32,
        max_model_len: 4096,
        vocab: 32_000,
        deterministic: false,
        speculation: None,
        eos_token_ids: vec![31_999],
        memory: MemoryLimits {
            block_size: 16,
            windows: vec![None],
            blocks: vec![40_000],
            state_slots: 0,
            prefix_caching: true,
            hash_key: [3; 32],
            shared_key: [3; 32],
            tiers: TierLimits::default(),
        },
    }
}
