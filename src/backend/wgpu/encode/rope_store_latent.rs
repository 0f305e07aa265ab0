//! `RopeStoreLatent` → one dispatch.

use super::super::super::BackendError;
use super::super::super::metadata::group_header;
use super::super::device::{Class, Profile};
use super::super::pipelines::Kernel;
use super::attend_paged::for_kv;
use super::{Recorder, Variant, params};
use crate::plan::{KvFormat, RopeStoreLatent};

params! {
    Params {
        tokens: u32,
        group_header: u32,
        heads: u32,
        block_shift: u32,
        lanes: u32,
        runs: u32,
        rank_runs: u32,
        query_runs: u32,
        interleaved: u32,
        rope_scale: f32,
        epsilon: f32,
        q_slope: f32,
        q_positions: u32,
        q_ahead: u32,
    }
}

/// Invocations of a workgroup.
const WORKGROUP: u32 = 64;

fn kernel(format: KvFormat, profile: &Profile) -> Kernel {
    for_kv(
        Kernel::new("rope_store_latent").define("LATENT"),
        format,
        profile,
    )
}

/// Records the dispatch.
pub(super) fn encode(
    recorder: &mut Recorder<'_>,
    step: &RopeStoreLatent,
) -> Result<(), BackendError> {
    let arena = recorder.arena;
    let layer = recorder.plan.kv_layers[step.layer as usize];
    let runs = layer.head_dim / 8;
    // One thread per unit where loads are expensive; one per run on a GPU.
    let lanes = match recorder.profile.class {
        Class::Software => 1,
        _ => runs.next_power_of_two().min(WORKGROUP),
    };
    let params = Params {
        tokens: recorder.shape.tokens,
        group_header: group_header(layer.group),
        heads: step.query_heads,
        block_shift: recorder.capacity.block_size.trailing_zeros(),
        lanes,
        runs,
        rank_runs: runs - step.rope.rotary_dim / 8,
        query_runs: recorder.columns(step.query) / step.query_heads / 8,
        interleaved: u32::from(step.rope.interleaved),
        rope_scale: step.rope.scale,
        epsilon: step.epsilon,
        q_slope: step.query_growth.map_or(0.0, |growth| growth.slope),
        q_positions: step.query_growth.map_or(1, |growth| growth.positions),
        q_ahead: step.query_growth.map_or(0, |growth| growth.ahead),
    };
    let [shard] = &arena.kv[step.layer as usize][..] else {
        unreachable!("a latent is one head, which is not cut")
    };
    debug_assert!(
        step.rope.rotary_dim < layer.head_dim,
        "a latent has elements that are not rotated"
    );
    let [query, absorbed, latent] =
        [step.query, step.absorbed, step.latent].map(|buffer| recorder.row_buffer(buffer).read());
    let bindings = [
        arena.metadata.read(),
        query,
        absorbed,
        latent,
        recorder.vector(step.norm).read(),
        shard.key.read_write(),
        recorder.vector(step.rope.frequencies).read(),
        recorder.row_buffer(step.q).read_write(),
    ];
    let units = params.tokens * (step.query_heads + 1);
    let kernel = kernel(recorder.capacity.kv_format, recorder.profile);
    recorder.dispatch(
        &kernel,
        &params,
        &bindings,
        (units * lanes).div_ceil(WORKGROUP),
    )
}

/// Every variant that [`encode`] can use.
pub(super) fn variants() -> Vec<Variant> {
    let formats = [
        (KvFormat::F32, true),
        (KvFormat::F16, true),
        (KvFormat::F16, false),
        (KvFormat::Q8, true),
        (KvFormat::Fp8, true),
    ];
    formats
        .map(|(format, half)| {
            let profile = super::test_profile(Class::Discrete, super::Tier::T0, half);
            Variant::new::<Params>(kernel(format, &profile), Params::FIELDS)
        })
        .into()
}
