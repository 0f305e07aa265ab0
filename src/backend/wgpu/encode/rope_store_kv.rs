//! `RopeStoreKv` → one dispatch per shard of the layer's pool.

use super::super::super::BackendError;
use super::super::super::metadata::group_header;
use super::super::arena::{Binding, KvShard};
use super::super::device::{Class, Profile, Tier};
use super::super::pipelines::Kernel;
use super::attend_paged::for_kv;
use super::{Recorder, Variant, params, test_profile, weight_offset};
use crate::plan::{HeadNorm, KvFormat, KvLayer, Rope, RopeStoreKv, WeightId};

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
        q_ahead: u32,
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

/// What the kernel is compiled for.
struct RopeVariant {
    /// Whether heads of q, k or v are normalized.
    norm: bool,
    rotation: Rotation,
    /// Format of the pool.
    format: KvFormat,
}

impl RopeVariant {
    fn of(step: &RopeStoreKv, format: KvFormat) -> Self {
        let has_norm =
            step.q_norm.is_some() || step.k_norm.is_some() || step.options.v_epsilon.is_some();
        Self {
            norm: has_norm,
            rotation: Rotation::of(step.rope),
            format,
        }
    }

    fn kernel(&self, profile: &Profile) -> Kernel {
        let kernel = Kernel::new("rope_store_kv")
            .define_if(self.norm, "NORM")
            .define_if(profile.texels, "TEXELS")
            .define_if(profile.texels, "SUBGROUPS")
            .define_if(self.rotation != Rotation::None, "ROPE")
            .define_if(self.rotation == Rotation::Vectors, "ROPE_VECTORS");
        for_kv(kernel, self.format, profile)
    }
}

/// Invocations of a workgroup, and how many of them share a head.
struct Lanes {
    workgroup: u32,
    per_head: u32,
}

impl Lanes {
    /// One lane per head where loads are expensive, 8 where buffers are images; one per run of 8 elements on a GPU.
    fn choose(profile: &Profile, runs: u32) -> Self {
        let (workgroup, per_head) = match profile.class {
            _ if profile.texels => (32, 8),
            Class::Software => (WORKGROUP, 1),
            _ => (WORKGROUP, runs.next_power_of_two()),
        };
        Self {
            workgroup,
            per_head,
        }
    }
}

/// The params of a norm of heads.
struct NormParams {
    /// `NORM_HEAD`, `NORM_ROW` or 0.
    kind: u32,
    epsilon: f32,
    offset: f32,
}

impl NormParams {
    fn of(norm: Option<HeadNorm>) -> Self {
        match norm {
            None => Self {
                kind: 0,
                epsilon: 0.0,
                offset: 0.0,
            },
            Some(norm) => Self {
                kind: if norm.whole_row { 2 } else { 1 },
                epsilon: norm.epsilon,
                offset: weight_offset(norm.one_plus),
            },
        }
    }
}

/// Records the dispatches.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &RopeStoreKv) -> Result<(), BackendError> {
    let layer = recorder.plan.kv_layers[step.layer as usize];
    debug_assert!(
        step.query_heads.is_multiple_of(layer.heads),
        "every KV head has the same number of query heads"
    );
    let variant = RopeVariant::of(step, recorder.capacity.kv_format);
    let kernel = variant.kernel(recorder.profile);
    let lanes = Lanes::choose(recorder.profile, layer.head_dim / 8);
    // The query heads of a KV head, its key and its value.
    let stored = if step.options.q_only { 0 } else { 2 };
    let heads_each = step.query_heads / layer.heads + stored;
    for shard in &recorder.arena.kv[step.layer as usize] {
        debug_assert!(
            shard.head_start + shard.heads <= layer.heads,
            "a shard has heads of its layer"
        );
        let params = params(recorder, step, layer, shard, &lanes);
        let bindings = bindings(recorder, step, shard);
        let heads = params.tokens * shard.heads * heads_each;
        let workgroups = (heads * lanes.per_head).div_ceil(lanes.workgroup);
        recorder.dispatch(&kernel, &params, &bindings, workgroups)?;
    }
    Ok(())
}

fn params(
    recorder: &Recorder<'_>,
    step: &RopeStoreKv,
    layer: KvLayer,
    shard: &KvShard,
    lanes: &Lanes,
) -> Params {
    let (rope, options) = (step.rope, step.options);
    let [q, k] = [step.q_norm, step.k_norm].map(NormParams::of);
    let mut norms = step.q_norm.iter().chain(&step.k_norm);
    Params {
        tokens: recorder.shape.tokens,
        group_header: group_header(layer.group),
        query_heads: step.query_heads,
        kv_heads: layer.heads,
        head_first: shard.head_start,
        head_count: shard.heads,
        runs: layer.head_dim / 8,
        block_shift: recorder.capacity.block_size.trailing_zeros(),
        lanes: lanes.per_head,
        rotary_dim: rope.map_or(0, |rope| rope.rotary_dim),
        interleaved: u32::from(rope.is_some_and(|rope| rope.interleaved)),
        rope_scale: rope.map_or(1.0, |rope| rope.scale),
        q_norm: q.kind,
        q_epsilon: q.epsilon,
        q_offset: q.offset,
        k_norm: k.kind,
        k_epsilon: k.epsilon,
        k_offset: k.offset,
        norm_after: u32::from(norms.any(|norm| norm.after_rotation)),
        v_norm: u32::from(options.v_epsilon.is_some()),
        v_epsilon: options.v_epsilon.unwrap_or(0.0),
        q_slope: options.query_growth.map_or(0.0, |growth| growth.slope),
        q_positions: options.query_growth.map_or(1, |growth| growth.positions),
        q_ahead: options.query_growth.map_or(0, |growth| growth.ahead),
        stored: u32::from(!options.q_only),
        row_vectors: recorder.columns(step.qkv) / 4,
    }
}

fn bindings<'a>(
    recorder: &Recorder<'a>,
    step: &RopeStoreKv,
    shard: &'a KvShard,
) -> [Binding<'a>; 8] {
    let vector = |id: Option<WeightId>| recorder.optional_vector(id).fetch();
    [
        recorder.arena.metadata.fetch(),
        recorder.row_buffer(step.qkv).fetch(),
        vector(step.q_norm.map(|norm| norm.weight)),
        vector(step.k_norm.map(|norm| norm.weight)),
        vector(step.rope.map(|rope| rope.frequencies)),
        shard.key.read_write(),
        shard.value().read_write(),
        recorder.row_buffer(step.q).read_write(),
    ]
}

/// Every variant that [`encode`] can use.
pub(super) fn variants() -> Vec<Variant> {
    let mut variants = Vec::new();
    for rotation in [Rotation::None, Rotation::Vectors, Rotation::Any] {
        for (norm, texels) in [(false, false), (true, false), (false, true), (true, true)] {
            let formats = KvFormat::ALL.map(|format| (format, true));
            for (format, half) in formats.into_iter().chain([(KvFormat::F16, false)]) {
                let variant = RopeVariant {
                    norm,
                    rotation,
                    format,
                };
                let profile = Profile {
                    texels,
                    ..test_profile(Class::Discrete, Tier::T0, half)
                };
                let kernel = variant.kernel(&profile);
                variants.push(Variant::new::<Params>(kernel, Params::FIELDS));
            }
        }
    }
    variants
}
