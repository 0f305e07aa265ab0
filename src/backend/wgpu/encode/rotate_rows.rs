//! `RotateRows` → one dispatch.

use super::super::super::BackendError;
use super::super::pipelines::Kernel;
use super::{Recorder, Variant, params, vectors_of, weight_offset};
use crate::plan::RotateRows;

params! {
    Params {
        tokens: u32,
        query_heads: u32,
        heads: u32,
        vectors: u32,
        rotary_dim: u32,
        interleaved: u32,
        rope_scale: f32,
        q_epsilon: f32,
        q_offset: f32,
        k_epsilon: f32,
        k_offset: f32,
        norm_after: u32,
        row_vectors: u32,
    }
}

/// Invocations of a workgroup; each writes 4 elements.
const WORKGROUP: u32 = 64;

fn kernel(norm: bool, vectors: bool, axes: bool) -> Kernel {
    Kernel::new("rotate_rows")
        .define_if(norm, "NORM")
        .define_if(vectors, "ROPE_VECTORS")
        .define_if(axes, "AXES")
}

/// Records the dispatch.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &RotateRows) -> Result<(), BackendError> {
    let rope = step.rope;
    let [q, k] = [0, 1].map(|at| step.norms.map(|norms| norms[at]));
    let (tokens, heads) = (recorder.shape.tokens, step.query_heads + step.kv_heads);
    let vectors = vectors_of("rotate_rows", step.head_dim)?;
    let params = Params {
        tokens,
        query_heads: step.query_heads,
        heads,
        vectors,
        rotary_dim: rope.rotary_dim,
        interleaved: u32::from(rope.interleaved),
        rope_scale: rope.scale,
        q_epsilon: q.map_or(0.0, |norm| norm.epsilon),
        q_offset: q.map_or(0.0, |norm| weight_offset(norm.one_plus)),
        k_epsilon: k.map_or(0.0, |norm| norm.epsilon),
        k_offset: k.map_or(0.0, |norm| weight_offset(norm.one_plus)),
        norm_after: 0,
        row_vectors: recorder.columns(step.qkv) / 4,
    };
    let bindings = [
        recorder.arena.metadata.read(),
        recorder.row_buffer(step.qkv).read(),
        recorder.optional_vector(q.map(|norm| norm.weight)).read(),
        recorder.optional_vector(k.map(|norm| norm.weight)).read(),
        recorder.vector(rope.frequencies).read(),
        recorder.row_buffer(step.out).read_write(),
    ];
    let kernel = kernel(
        step.norms.is_some(),
        !rope.interleaved && rope.rotary_dim.is_multiple_of(8),
        rope.by_axis,
    );
    let items = tokens * heads * vectors;
    recorder.dispatch(&kernel, &params, &bindings, items.div_ceil(WORKGROUP))
}

/// Every variant that [`encode`] can use.
pub(super) fn variants() -> Vec<Variant> {
    let flags = 0..8_u32;
    let kernels = flags.map(|bits| kernel(bits & 1 != 0, bits & 2 != 0, bits & 4 != 0));
    kernels
        .map(|kernel| Variant::new::<Params>(kernel, Params::FIELDS))
        .collect()
}
