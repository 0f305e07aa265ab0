//! `RopeStoreKv` → one dispatch per shard of the layer's pool.

use super::super::super::BackendError;
use super::super::super::metadata::group_header;
use super::super::arena::Binding;
use super::super::device::Class;
use super::super::pipelines::Kernel;
use super::attend_paged::for_kv;
use super::{Recorder, Variant, params};
use crate::plan::{HeadNorm, KvFormat, Rope, RopeStoreKv, StoreOptions};

params! {
    Params {
        tokens: u32,
        group_header: u32,
        query_heads: u32,
        kv_heads: u32,
        head_first: u32,
        head_count: u32,
        runs: u32,
        block_shift: u32,
        lanes: u32,
        rotary_dim: u32,
        interleaved: u32,
        rope_scale: f32,
        q_norm: u32,
        q_epsilon: f32,
        q_offset: f32,
        k_norm: u32,
        k_epsilon: f32,
        k_offset: f32,
        norm_after: u32,
        v_norm: u32,
        v_epsilon: f32,
        q_slope: f32,
        q_positions: u32,
        stored: u32,
        row_vectors: u32,
    }
}

/// Invocations of a workgroup.
const WORKGROUP: u32 = 64;

/// Rotation variant of q and k.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rotation {
    None,
    /// Pairs are `rotary_dim / 2` apart, which is a whole number of vectors.
    Vectors,
    Any,
}

impl Rotation {
    fn of(rope: Option<Rope>) -> Self {
        match rope {
            None => Self::None,
            Some(rope) if !rope.interleaved && rope.rotary_dim.is_multiple_of(8) => Self::Vectors,
            Some(_) => Self::Any,
        }
    }
}

/// `NORM_HEAD`, `NORM_ROW` or 0.
fn norm_kind(norm: Option<HeadNorm>) -> u32 {
    norm.map_or(0, |norm| if norm.whole_row { 2 } else { 1 })
}

fn kernel(norm: bool, rotation: Rotation, texels: bool) -> Kernel {
    let kernel = Kernel::new("rope_store_kv").define_if(norm, "NORM");
    let kernel = kernel
        .define_if(texels, "TEXELS")
        .define_if(texels, "SUBGROUPS");
    kernel
        .define_if(rotation != Rotation::None, "ROPE")
        .define_if(rotation == Rotation::Vectors, "ROPE_VECTORS")
}

/// Records the dispatches.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &RopeStoreKv) -> Result<(), BackendError> {
    let arena = recorder.arena;
    let layer = recorder.plan.kv_layers[step.layer as usize];
    debug_assert!(
        step.query_heads.is_multiple_of(layer.heads),
        "every KV head has the same number of query heads"
    );
    let texels = recorder.profile.texels;
    let StoreOptions {
        v_epsilon,
        query_growth,
        q_only,
    } = step.options;
    let norm = step.q_norm.is_some() || step.k_norm.is_some() || v_epsilon.is_some();
    let after = [step.q_norm, step.k_norm]
        .into_iter()
        .flatten()
        .any(|norm| norm.after_rotation);
    let kernel = kernel(norm, Rotation::of(step.rope), texels);
    let kernel = for_kv(kernel, recorder.capacity.kv_format, recorder.profile);
    let runs = layer.head_dim / 8;
    // One thread per head where loads are expensive, 8 where buffers are images; one thread per run on a GPU.
    let (workgroup, lanes) = match recorder.profile.class {
        _ if texels => (32, 8),
        Class::Software => (WORKGROUP, 1),
        _ => (WORKGROUP, runs.next_power_of_two()),
    };
    let offset = |norm: Option<HeadNorm>| {
        if norm.is_some_and(|norm| norm.one_plus) {
            1.0
        } else {
            0.0
        }
    };
    let absent = arena.metadata.fetch();
    let vector =
        |weight: Option<_>| weight.map_or(absent, |weight| recorder.vector(weight).fetch());
    let weights: [Binding<'_>; 3] = [
        vector(step.q_norm.map(|norm| norm.weight)),
        vector(step.k_norm.map(|norm| norm.weight)),
        vector(step.rope.map(|rope| rope.frequencies)),
    ];
    for shard in &arena.kv[step.layer as usize] {
        let params = Params {
            tokens: recorder.shape.tokens,
            group_header: group_header(layer.group),
            query_heads: step.query_heads,
            kv_heads: layer.heads,
            head_first: shard.head_start,
            head_count: shard.heads,
            runs,
            block_shift: recorder.capacity.block_size.trailing_zeros(),
            lanes,
            rotary_dim: step.rope.map_or(0, |rope| rope.rotary_dim),
            interleaved: step.rope.map_or(0, |rope| u32::from(rope.interleaved)),
            rope_scale: step.rope.map_or(1.0, |rope| rope.scale),
            q_norm: norm_kind(step.q_norm),
            q_epsilon: epsilon(step.q_norm),
            q_offset: offset(step.q_norm),
            k_norm: norm_kind(step.k_norm),
            k_epsilon: epsilon(step.k_norm),
            k_offset: offset(step.k_norm),
            norm_after: u32::from(after),
            v_norm: u32::from(v_epsilon.is_some()),
            v_epsilon: v_epsilon.unwrap_or(0.0),
            q_slope: query_growth.map_or(0.0, |growth| growth.slope),
            q_positions: query_growth.map_or(1, |growth| growth.positions),
            stored: u32::from(!q_only),
            row_vectors: recorder.columns(step.qkv) / 4,
        };
        debug_assert!(
            shard.head_start + shard.heads <= layer.heads,
            "a shard has heads of its layer"
        );
        let units = shard.heads * (step.query_heads / layer.heads + if q_only { 0 } else { 2 });
        let workgroups = (params.tokens * units * lanes).div_ceil(workgroup);
        let qkv = recorder.row_buffer(step.qkv).fetch();
        let outputs = [
            shard.key.read_write(),
            shard.value().read_write(),
            recorder.row_buffer(step.q).read_write(),
        ];
        let [q_weight, k_weight, frequencies] = weights;
        let inputs = [arena.metadata.fetch(), qkv, q_weight, k_weight, frequencies];
        let bindings: Vec<Binding<'_>> = inputs.into_iter().chain(outputs).collect();
        recorder.dispatch(&kernel, &params, &bindings, workgroups)?;
    }
    Ok(())
}

fn epsilon(norm: Option<HeadNorm>) -> f32 {
    norm.map_or(0.0, |norm| norm.epsilon)
}

/// Every variant that [`encode`] can use.
pub(super) fn variants() -> Vec<Variant> {
    let mut variants = Vec::new();
    for rotation in [Rotation::None, Rotation::Vectors, Rotation::Any] {
        for (norm, texels) in [(false, false), (true, false), (false, true), (true, true)] {
            let formats = KvFormat::ALL
                .map(|format| (format, true))
                .into_iter()
                .chain([(KvFormat::F16, false)]);
            for (format, half) in formats {
                let profile = super::test_profile(Class::Discrete, super::Tier::T0, half);
                let kernel = for_kv(kernel(norm, rotation, texels), format, &profile);
                variants.push(Variant::new::<Params>(kernel, Params::FIELDS));
            }
        }
    }
    variants
}
