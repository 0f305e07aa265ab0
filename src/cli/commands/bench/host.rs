//! Host time of a step: scheduling and flattening a full batch, and encoding and submitting a small one.
//!
//! Measures CPU time of the calling thread, which excludes other programs and the driver's threads. Reports the best of
//! several rounds; a round is the median over many steps.

use super::Subject;
use super::report::{Report, percentile, rounded};
use crate::cli::device::Device;
use crate::cli::terminal::output::note;
use anyhow::Result;
#[cfg(feature = "cuda")]
use folio::backend::cuda::CudaBackend;
use folio::backend::wgpu::WgpuBackend;
use folio::backend::{Backend, Capacity};
use folio::config::Config;
use folio::engine::memory::{MemoryLimits, TierLimits};
use folio::engine::request::{Request, SamplingParams};
use folio::engine::scheduler::{Limits, Scheduler};
use folio::engine::sequence::StreamId;
use folio::plan::inputs::{BatchInputs, Results, Sampled};
use folio::platform::{self, Instant};
use serde_json::json;
use std::sync::Arc;

/// Number of sequences in the scheduling benchmark.
const SEQUENCES: u32 = 256;
/// Tokens of each sequence when timing begins.
const PROMPT_LEN: u32 = 200;
/// Number of sequences in the submission benchmark.
const SUBMIT_BATCH: u32 = 8;
/// Steps per round, and number of rounds.
const STEPS: usize = 1000;
const ROUNDS: usize = 5;
/// Maximum time of a round, in seconds; a large model on a slow device runs fewer steps.
const ROUND_SECONDS: f64 = 10.0;

pub(super) fn measure(
    device: &Device,
    subject: &Subject<'_>,
    config: &Config,
    report: &mut Report,
) -> Result<()> {
    note("steps, host time …");
    let rounds: Vec<f64> = (0..ROUNDS)
        .filter_map(|_| schedule_round(config.block_size))
        .collect();
    report.set(&format!("schedule_{SEQUENCES}_us"), json!(best(&rounds)));
    let us = match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(options) => submit(CudaBackend::open(options)?, subject, config)?,
        Device::Wgpu(options) => submit(
            platform::block_on(WgpuBackend::open(options))?,
            subject,
            config,
        )?,
        Device::Cpu(_) | Device::Reference | Device::Fake(_) => return Ok(()),
    };
    report.set(&format!("submit_{SUBMIT_BATCH}_us"), json!(us));
    Ok(())
}

/// CPU seconds of this thread so far.
#[cfg(unix)]
fn thread_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Where a thread's CPU time is not available: seconds since the first call.
#[cfg(not(unix))]
fn thread_seconds() -> f64 {
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    START.elapsed().as_secs_f64()
}

fn best(rounds: &[f64]) -> Option<f64> {
    rounds.iter().copied().min_by(f64::total_cmp).map(rounded)
}

fn scheduler(sequences: u32, block_size: u32, tokens_max: u32, blocks_each: u32) -> Scheduler {
    let mut scheduler = Scheduler::new(Limits {
        tokens_max,
        max_num_seqs: sequences,
        sequences_max: sequences,
        adapter_slots: 0,
        image_rows: 0,
        patches_max: 0,
        feed_slots: 2 * sequences,
        table_entries_max: blocks_each * sequences,
        history_max: 1,
        bias_max: 1,
        scores_max: 1,
        max_model_len: blocks_each * block_size,
        vocab: 1 << 16,
        deterministic: false,
        speculation: None,
        eos_token_ids: Vec::new(),
        memory: MemoryLimits {
            state_slots: 0,
            block_size,
            windows: vec![None],
            blocks: vec![blocks_each * sequences + 16],
            prefix_caching: true,
            hash_key: [7; 32],
            shared_key: [7; 32],
            tiers: TierLimits::default(),
        },
    });
    for stream in 0..sequences {
        // Prompts have no common prefix, so that every sequence has its own blocks.
        let prompt = (0..PROMPT_LEN)
            .map(|position| stream * 251 + position)
            .collect();
        let params = SamplingParams {
            ignore_eos: true,
            ..SamplingParams::default()
        };
        let request = Request {
            prompt,
            params,
            ..Request::default()
        };
        scheduler.add(Arc::new(request), &[StreamId(u64::from(stream))], 1, false);
    }
    scheduler
}

fn drawn(inputs: &BatchInputs) -> Results {
    let sampled = inputs.samples.iter().map(|row| Sampled {
        token_id: row.position,
        ..Sampled::default()
    });
    Results {
        sampled: sampled.collect(),
        ..Results::default()
    }
}

/// Median microseconds of scheduling and flattening a step in which every sequence decodes.
fn schedule_round(block_size: u32) -> Option<f64> {
    let room = PROMPT_LEN + STEPS as u32 + 2;
    let mut scheduler = scheduler(SEQUENCES, block_size, 8192, room.div_ceil(block_size) + 1);
    let mut times = Vec::with_capacity(STEPS);
    while times.len() < STEPS {
        let start = thread_seconds();
        let batch = scheduler.schedule(8192)?;
        let inputs = scheduler.flatten(&batch);
        let seconds = thread_seconds() - start;
        if inputs.samples.len() == SEQUENCES as usize
            && inputs.token_ids.len() == SEQUENCES as usize
        {
            times.push(1e6 * seconds);
        }
        drop(scheduler.commit(&batch, drawn(&inputs)));
    }
    percentile(&mut times, 0.5)
}

/// Microseconds of `submit` for one decode step of the model: flattening to words, encoding, submission to the driver.
fn submit<B: Backend>(
    mut backend: B,
    subject: &Subject<'_>,
    config: &Config,
) -> Result<Option<f64>> {
    let model = subject.model()?;
    let plan = Arc::new(model.record(backend.caps().activations));
    let blocks_each = (PROMPT_LEN + 2).div_ceil(config.block_size) + 1;
    let capacity = Capacity {
        tokens_max: SUBMIT_BATCH * PROMPT_LEN,
        sequences_max: SUBMIT_BATCH,
        samples_max: SUBMIT_BATCH,
        feed_slots: 2 * SUBMIT_BATCH,
        state_slots: 0,
        table_entries_max: SUBMIT_BATCH * blocks_each,
        history_max: 1,
        bias_max: 1,
        mask_words_max: 1,
        copies_max: 1,
        block_size: config.block_size,
        kv_format: config.kv_format,
        deterministic: false,
    };
    backend.load(plan.clone(), &capacity)?;
    platform::block_on(model.upload(&plan, |weight, first_row, rows| {
        backend.write_weight(weight, first_row, rows)
    }))?;
    backend.allocate_pool(&vec![SUBMIT_BATCH * blocks_each + 16; plan.kv_groups.len()])?;
    let inputs = decode_step(config.block_size, blocks_each, plan.kv_groups.len());
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let mut times = Vec::with_capacity(STEPS);
        let begin = Instant::now();
        while times.len() < STEPS && begin.elapsed().as_secs_f64() < ROUND_SECONDS {
            let start = thread_seconds();
            let ticket = backend.submit(&inputs)?;
            times.push(1e6 * (thread_seconds() - start));
            platform::block_on(backend.read(ticket))?;
        }
        rounds.extend(percentile(&mut times, 0.5));
    }
    Ok(best(&rounds))
}

/// The scheduler's inputs of a step in which eight sequences decode.
fn decode_step(block_size: u32, blocks_each: u32, groups: usize) -> BatchInputs {
    let mut scheduler = scheduler(
        SUBMIT_BATCH,
        block_size,
        SUBMIT_BATCH * PROMPT_LEN,
        blocks_each,
    );
    let first = scheduler
        .schedule(SUBMIT_BATCH * PROMPT_LEN)
        .expect("there are prompts to compute");
    let prompts = scheduler.flatten(&first);
    drop(scheduler.commit(&first, drawn(&prompts)));
    let second = scheduler
        .schedule(SUBMIT_BATCH)
        .expect("there are tokens to compute");
    let mut inputs = scheduler.flatten(&second);
    // Every KV group of a model with sliding windows gets the same tables here, because only their sizes matter.
    let group = inputs.groups[0].clone();
    inputs.groups = vec![group; groups];
    inputs
}
