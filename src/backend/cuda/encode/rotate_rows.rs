//! `RotateRows` → one launch.

use super::super::super::BackendError;
use super::rope_store_kv::{HeadParams, lanes};
use super::{Kernel, Recorder, params, weight_offset};
use crate::plan::RotateRows;

params! {
    Params { heads: HeadParams, out: u64, metadata: u64 }
}

/// Threads per block, as in the kernel's file.
const THREADS: u32 = 128;

/// Records the launch.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &RotateRows) -> Result<(), BackendError> {
    let (lanes, runs) = (lanes(step.head_dim), step.head_dim / 8);
    // Nothing is stored: the format of the pool does not matter.
    let kernel = Kernel::new("rotate_rows")
        .define_type("OUT_TYPE", recorder.storage(step.out))
        .define_type("X_TYPE", recorder.storage(step.qkv))
        .define("LANES", lanes)
        .define("RUNS", runs.div_ceil(lanes));
    let [q, k] = [0, 1].map(|at| step.norms.map(|norms| norms[at]));
    let params = Params {
        heads: HeadParams {
            qkv: recorder.row_buffer(step.qkv),
            keys: 0,
            values: 0,
            q_weight: recorder.optional(q.map(|norm| norm.weight)),
            k_weight: recorder.optional(k.map(|norm| norm.weight)),
            frequencies: recorder.vector(step.rope.frequencies),
            query_heads: step.query_heads,
            kv_heads: step.kv_heads,
            runs,
            rotary_dim: step.rope.rotary_dim,
            interleaved: u32::from(step.rope.interleaved),
            rope_scale: step.rope.scale,
            whole_row: 0,
            q_epsilon: q.map_or(0.0, |norm| norm.epsilon),
            q_offset: q.map_or(0.0, |norm| weight_offset(norm.one_plus)),
            k_epsilon: k.map_or(0.0, |norm| norm.epsilon),
            k_offset: k.map_or(0.0, |norm| weight_offset(norm.one_plus)),
            norm_after: 0,
            v_norm: 0,
            v_epsilon: 0.0,
            q_slope: 0.0,
            q_positions: 1,
            q_ahead: 0,
            stored: 0,
            row_columns: recorder.columns(step.qkv),
            by_axis: u32::from(step.rope.by_axis),
        },
        out: recorder.row_buffer(step.out),
        metadata: recorder.arena.metadata,
    };
    let units = recorder.rows(step.qkv) * (step.query_heads + step.kv_heads);
    let blocks = (units * lanes).div_ceil(THREADS);
    recorder.launch(&kernel, &params, [blocks, 1, 1], THREADS, 0)
}
