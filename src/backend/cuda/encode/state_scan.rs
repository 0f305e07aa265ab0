//! `StateScan` → a launch for sequences of few rows, token by token, and one for those of many, in chunks. Both have a
//! block per sequence, head and a few columns of its values.
//!
//! How a sequence is cut into batches decides where its chunks begin, and so how it is rounded. With
//! [`Capacity::deterministic`](super::Capacity), all sequences run token by token; so do those whose rows do not fit in
//! shared memory.

use super::super::super::BackendError;
use super::super::super::scan_shape::{CHUNK, CHUNKED_MIN, ScanShape};
use super::{Kernel, Recorder, params};
use crate::plan::{StateScan, Storage};

params! {
    Params {
        convolved: u64, mixed: u64, decay: u64, bias: u64, skip: u64, state: u64, out: u64, metadata: u64,
        heads: u32, shared_by: u32, key_heads: u32, key_dim: u32, value_dim: u32, channels: u32,
        query_start: u32, key_start: u32, value_start: u32, mixed_columns: u32, gates: u32,
        beta_scale: f32, query_scale: f32, chunked_min: u32,
    }
}

/// Threads per block of `state_scan`, as in the kernel's file.
const THREADS: u32 = 128;
/// Keys that a thread of `state_scan` can hold in registers.
const KEYS_MAX: u32 = 32;

/// Of `state_scan_chunks`, as in its file: threads of a block, warps of it that hold the state, and chunks whose rows
/// are in shared memory.
const CHUNK_THREADS: u32 = 256;
const STATE_WARPS: u32 = 4;
const STAGES: u32 = 3;
/// Bytes of shared memory that hold all but the rows, and more.
const OTHER_BYTES: u32 = 24 << 10;

/// Records the launches.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &StateScan) -> Result<(), BackendError> {
    let ScanShape { few, many } = recorder.shape.scan;
    let chunks = Chunks::of(step.key_dim, recorder.storage(step.convolved));
    let fits = chunks.shared_bytes() + OTHER_BYTES <= recorder.device.shared_bytes_max;
    if !fits || recorder.capacity.deterministic {
        return by_token(recorder, step, u32::MAX);
    }
    if few {
        by_token(recorder, step, CHUNKED_MIN)?;
    }
    if many {
        in_chunks(recorder, step, &chunks)?;
    }
    Ok(())
}

/// Records the launch for sequences of fewer rows than `chunked_min`.
fn by_token(
    recorder: &mut Recorder<'_>,
    step: &StateScan,
    chunked_min: u32,
) -> Result<(), BackendError> {
    // Threads that share a column of the values.
    let slices = if step.key_dim > 4 * KEYS_MAX { 8 } else { 4 };
    let kernel = Kernel::new("state_scan")
        .define("SLICES", slices)
        .define("KEYS_EACH", step.key_dim.div_ceil(slices));
    launch(
        recorder,
        step,
        kernel,
        chunked_min,
        (THREADS / slices, THREADS, 0),
    )
}

/// How `state_scan_chunks` divides keys among warps.
struct Chunks {
    /// Warps that share columns of the values.
    slices: u32,
    /// Steps of 16 keys of each.
    steps: u32,
    /// Parts of an element, each of which has 2 bytes.
    parts: u32,
}

impl Chunks {
    fn of(key_dim: u32, storage: Storage) -> Self {
        let slices = if key_dim > 128 { 4 } else { 2 };
        let parts = if storage == Storage::F32 { 3 } else { 1 };
        Self {
            slices,
            steps: key_dim.div_ceil(16 * slices),
            parts,
        }
    }

    /// Bytes of the rows: keys and queries, each with 8 elements of padding.
    fn shared_bytes(&self) -> u32 {
        STAGES * self.parts * 2 * CHUNK * (16 * self.slices * self.steps + 8) * 2
    }
}

/// Records the launch for all other sequences.
fn in_chunks(
    recorder: &mut Recorder<'_>,
    step: &StateScan,
    chunks: &Chunks,
) -> Result<(), BackendError> {
    let Chunks { slices, steps, .. } = *chunks;
    let kernel = Kernel::new("state_scan_chunks")
        .define("SLICES", slices)
        .define("STEPS", steps);
    let columns = STATE_WARPS / slices * 16;
    launch(
        recorder,
        step,
        kernel,
        CHUNKED_MIN,
        (columns, CHUNK_THREADS, chunks.shared_bytes()),
    )
}

/// Records a launch of blocks with so many columns of the values, threads, and bytes of shared memory.
fn launch(
    recorder: &mut Recorder<'_>,
    step: &StateScan,
    kernel: Kernel,
    chunked_min: u32,
    (columns, threads, shared_bytes): (u32, u32, u32),
) -> Result<(), BackendError> {
    let StateScan {
        heads,
        key_heads,
        key_dim,
        value_dim,
        gates,
        ..
    } = *step;
    let arena = recorder.arena;
    let [query_start, key_start, value_start] = step.starts();
    let kernel = kernel
        .define("DELTA", u32::from(step.rule.is_delta()))
        .define_type("X_TYPE", recorder.storage(step.convolved))
        .define_type("MIXED_TYPE", recorder.storage(step.mixed))
        .define_type("OUT_TYPE", recorder.storage(step.out));
    let params = Params {
        convolved: recorder.row_buffer(step.convolved),
        mixed: recorder.row_buffer(step.mixed),
        decay: recorder.vector(step.decay),
        bias: recorder.vector(step.dt_bias),
        skip: recorder.optional(step.skip),
        state: arena.states[step.layer as usize],
        out: recorder.row_buffer(step.out),
        metadata: arena.metadata,
        heads,
        shared_by: step.shared_by(),
        key_heads,
        key_dim,
        value_dim,
        channels: step.channels(),
        query_start,
        key_start,
        value_start,
        mixed_columns: recorder.columns(step.mixed),
        gates,
        beta_scale: step.rule.beta_scale(),
        query_scale: 1.0 / (key_dim as f32).sqrt(),
        chunked_min,
    };
    let blocks = recorder.shape.sequences * heads * value_dim.div_ceil(columns);
    recorder.launch(&kernel, &params, [blocks, 1, 1], threads, shared_bytes)
}

#[cfg(all(test, unix))]
mod tests;
