//! `StateScan` → one launch.

use super::super::super::BackendError;
use super::{Kernel, Recorder, params};
use crate::plan::{ScanRule, StateScan};

params! {
    Params {
        convolved: u64, mixed: u64, decay: u64, bias: u64, skip: u64, state: u64, out: u64, metadata: u64,
        heads: u32, shared_by: u32, key_heads: u32, key_dim: u32, value_dim: u32, channels: u32,
        query_start: u32, key_start: u32, value_start: u32, mixed_columns: u32, gates: u32,
        beta_scale: f32, query_scale: f32, unused: u32,
    }
}

/// Threads per block, as in the kernel's file.
const THREADS: u32 = 128;
/// Keys that a thread can hold in registers.
const KEYS_MAX: u32 = 32;

/// Records the launch.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &StateScan) -> Result<(), BackendError> {
    let StateScan { heads, key_heads, key_dim, value_dim, gates, .. } = *step;
    let (arena, keys) = (recorder.arena, key_heads * key_dim);
    let (beta_scale, [query_start, key_start, value_start]) = match step.rule {
        ScanRule::Delta { beta_scale } => (beta_scale, [0, keys, 2 * keys]),
        ScanRule::Mamba2 => (0.0, [heads * value_dim + keys, heads * value_dim, 0]),
    };
    // Threads that share a column of the values.
    let slices = if key_dim > 4 * KEYS_MAX { 8 } else { 4 };
    let kernel = Kernel::new("state_scan")
        .define("SLICES", slices)
        .define("KEYS_EACH", key_dim.div_ceil(slices))
        .define("DELTA", u32::from(matches!(step.rule, ScanRule::Delta { .. })))
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
        beta_scale,
        query_scale: 1.0 / (key_dim as f32).sqrt(),
        unused: 0,
    };
    let blocks = recorder.shape.sequences * heads * value_dim.div_ceil(THREADS / slices);
    recorder.launch(&kernel, &params, [blocks, 1, 1], THREADS, 0)
}
