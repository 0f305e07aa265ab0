//! `RopeStoreLatent` → one launch.

use super::super::super::BackendError;
use super::super::super::metadata::group_header;
use super::rope_store_kv::kv_number;
use super::{Kernel, Recorder, params};
use crate::plan::RopeStoreLatent;

params! {
    Params {
        query: u64, absorbed: u64, latent: u64, q: u64, keys: u64, weight: u64, frequencies: u64, metadata: u64,
        group_header: u32,
        heads: u32,
        runs: u32,
        rank_runs: u32,
        query_runs: u32,
        block_shift: u32,
        interleaved: u32,
        rope_scale: f32,
        epsilon: f32,
        q_slope: f32,
        q_positions: u32,
        q_ahead: u32,
    }
}

/// Threads per block, as in the kernel's file.
const THREADS: u32 = 128;

/// Records the launch.
pub(super) fn encode(
    recorder: &mut Recorder<'_>,
    step: &RopeStoreLatent,
) -> Result<(), BackendError> {
    let arena = recorder.arena;
    let layer = recorder.plan.kv_layers[step.layer as usize];
    let runs = layer.head_dim / 8;
    debug_assert!(
        step.rope.rotary_dim < layer.head_dim,
        "a latent has elements that are not rotated"
    );
    let lanes = runs.next_power_of_two().min(32);
    let kernel = Kernel::new("rope_store_latent")
        .define_type("X_TYPE", recorder.storage(step.query))
        .define_type("OUT_TYPE", recorder.storage(step.q))
        .define("KV", kv_number(recorder.capacity.kv_format))
        .define("LANES", lanes)
        .define("RUNS", runs.div_ceil(lanes));
    let [keys, _] = arena.kv(step.layer);
    let params = Params {
        query: recorder.row_buffer(step.query),
        absorbed: recorder.row_buffer(step.absorbed),
        latent: recorder.row_buffer(step.latent),
        q: recorder.row_buffer(step.q),
        keys,
        weight: recorder.vector(step.norm),
        frequencies: recorder.vector(step.rope.frequencies),
        metadata: arena.metadata,
        group_header: group_header(layer.group),
        heads: step.query_heads,
        runs,
        rank_runs: runs - step.rope.rotary_dim / 8,
        query_runs: recorder.columns(step.query) / step.query_heads / 8,
        block_shift: recorder.capacity.block_size.trailing_zeros(),
        interleaved: u32::from(step.rope.interleaved),
        rope_scale: step.rope.scale,
        epsilon: step.epsilon,
        q_slope: step.query_growth.map_or(0.0, |growth| growth.slope),
        q_positions: step.query_growth.map_or(1, |growth| growth.positions),
        q_ahead: step.query_growth.map_or(0, |growth| growth.ahead),
    };
    let units = recorder.rows(step.q) * (step.query_heads + 1);
    recorder.launch(
        &kernel,
        &params,
        [(units * lanes).div_ceil(THREADS), 1, 1],
        THREADS,
        0,
    )
}
