//! `RopeStoreKv` → one launch.

use super::super::super::BackendError;
use super::super::super::metadata::group_header;
use super::{Kernel, Recorder, params, weight_offset};
use crate::plan::check::HEAD_DIM_MAX;
use crate::plan::{HeadNorm, KvFormat, RopeStoreKv, StoreOptions};

params! {
    Params {
        heads: HeadParams,
        q: u64, metadata: u64,
        group_header: u32,
        block_shift: u32,
    }
}

params! {
    /// `Heads` of `cuda/common/heads.cuh`.
    HeadParams {
        qkv: u64, keys: u64, values: u64, q_weight: u64, k_weight: u64, frequencies: u64,
        query_heads: u32,
        kv_heads: u32,
        runs: u32,
        rotary_dim: u32,
        interleaved: u32,
        rope_scale: f32,
        whole_row: u32,
        q_epsilon: f32,
        q_offset: f32,
        k_epsilon: f32,
        k_offset: f32,
        norm_after: u32,
        v_norm: u32,
        v_epsilon: f32,
        q_slope: f32,
        q_positions: u32,
        q_ahead: u32,
        stored: u32,
        row_columns: u32,
        by_axis: u32,
    }
}

/// Threads per block, as in the kernel's file.
const THREADS: u32 = 128;

/// The number that identifies a KV format in kernels.
pub(super) fn kv_number(format: KvFormat) -> u32 {
    match format {
        KvFormat::F32 => 0,
        KvFormat::F16 => 1,
        KvFormat::Q8 => 2,
        KvFormat::Fp8 => 3,
    }
}

/// Lanes that share a head: a lane has one run of 8 elements, or two of heads beyond 256.
pub(super) fn lanes(head_dim: u32) -> u32 {
    (head_dim / 8).next_power_of_two().min(32)
}

/// The kernel with the defines of `cuda/common/heads.cuh`.
pub(super) fn with_heads(recorder: &Recorder<'_>, step: &RopeStoreKv, kernel: Kernel) -> Kernel {
    let head_dim = recorder.plan.kv_layers[step.layer as usize].head_dim;
    let lanes = lanes(head_dim);
    kernel
        .define_type("X_TYPE", recorder.storage(step.qkv))
        .define("KV", kv_number(recorder.capacity.kv_format))
        .define("LANES", lanes)
        .define("RUNS", (head_dim / 8).div_ceil(lanes))
}

/// Records the launch.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &RopeStoreKv) -> Result<(), BackendError> {
    let layer = recorder.plan.kv_layers[step.layer as usize];
    if !layer.head_dim.is_multiple_of(8) || !(8..=HEAD_DIM_MAX).contains(&layer.head_dim) {
        return Err(BackendError::head_dim("rope_store_kv", layer.head_dim));
    }
    let kernel = Kernel::new("rope_store_kv").define_type("OUT_TYPE", recorder.storage(step.q));
    let kernel = with_heads(recorder, step, kernel);
    let params = Params {
        heads: head_params(recorder, step),
        q: recorder.row_buffer(step.q),
        metadata: recorder.arena.metadata,
        group_header: group_header(layer.group),
        block_shift: recorder.capacity.block_size.trailing_zeros(),
    };
    let heads = step.query_heads
        + if step.options.q_only {
            0
        } else {
            2 * layer.heads
        };
    let units = recorder.rows(step.qkv) * heads;
    recorder.launch(
        &kernel,
        &params,
        [(units * lanes(layer.head_dim)).div_ceil(THREADS), 1, 1],
        THREADS,
        0,
    )
}

/// What becomes of the heads of the step's rows.
pub(super) fn head_params(recorder: &Recorder<'_>, step: &RopeStoreKv) -> HeadParams {
    let layer = recorder.plan.kv_layers[step.layer as usize];
    debug_assert!(
        step.query_heads.is_multiple_of(layer.heads),
        "every KV head has the same number of query heads"
    );
    let [keys, values] = recorder.arena.kv(step.layer);
    let norm = |norm: Option<HeadNorm>| {
        norm.map_or((0, 0.0, 0.0, 0), |norm| {
            (
                recorder.vector(norm.weight),
                norm.epsilon,
                weight_offset(norm.one_plus),
                u32::from(norm.whole_row),
            )
        })
    };
    let (q_weight, q_epsilon, q_offset, q_whole) = norm(step.q_norm);
    let (k_weight, k_epsilon, k_offset, k_whole) = norm(step.k_norm);
    let StoreOptions {
        v_epsilon,
        query_growth,
        q_only,
    } = step.options;
    let after = [step.q_norm, step.k_norm]
        .into_iter()
        .flatten()
        .any(|norm| norm.after_rotation);
    HeadParams {
        qkv: recorder.row_buffer(step.qkv),
        keys,
        values,
        q_weight,
        k_weight,
        frequencies: recorder.optional(step.rope.map(|rope| rope.frequencies)),
        query_heads: step.query_heads,
        kv_heads: layer.heads,
        runs: layer.head_dim / 8,
        rotary_dim: step.rope.map_or(0, |rope| rope.rotary_dim),
        interleaved: u32::from(step.rope.is_some_and(|rope| rope.interleaved)),
        rope_scale: step.rope.map_or(1.0, |rope| rope.scale),
        whole_row: q_whole | k_whole << 1,
        q_epsilon,
        q_offset,
        k_epsilon,
        k_offset,
        norm_after: u32::from(after),
        v_norm: u32::from(v_epsilon.is_some()),
        v_epsilon: v_epsilon.unwrap_or(0.0),
        q_slope: query_growth.map_or(0.0, |growth| growth.slope),
        q_positions: query_growth.map_or(1, |growth| growth.positions),
        q_ahead: query_growth.map_or(0, |growth| growth.ahead),
        stored: u32::from(!q_only),
        row_columns: recorder.columns(step.qkv),
        by_axis: 0,
    }
}
