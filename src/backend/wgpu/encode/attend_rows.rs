//! `AttendRows` → one dispatch.

use super::super::super::BackendError;
use super::super::pipelines::Kernel;
use super::{Recorder, Variant, params, vectors_of};
use crate::plan::AttendRows;

params! {
    Params {
        tokens: u32,
        query_heads: u32,
        group: u32,
        qk_row_vectors: u32,
        v_row_vectors: u32,
        v_start: u32,
        scale: f32,
        radius: u32,
    }
}

/// Token rows of a workgroup, as in the kernel.
const ROWS: u32 = 16;

fn kernel(vectors: u32, alibi: bool) -> Kernel {
    Kernel::new("attend_rows")
        .number("VECTORS", vectors)
        .number("VECTORS_EACH", vectors.div_ceil(4))
        .define_if(alibi, "ALIBI")
}

/// Records the dispatch.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &AttendRows) -> Result<(), BackendError> {
    let vectors = vectors_of("attend_rows", step.head_dim)?;
    let tokens = recorder.shape.tokens;
    let params = Params {
        tokens,
        query_heads: step.query_heads,
        group: step.query_heads / step.kv_heads,
        qk_row_vectors: recorder.columns(step.qk) / 4,
        v_row_vectors: recorder.columns(step.v) / 4,
        v_start: (step.query_heads + step.kv_heads) * vectors,
        scale: step.scale,
        radius: step.radius.unwrap_or(u32::MAX),
    };
    let bindings = [
        recorder.arena.metadata.read(),
        recorder.row_buffer(step.qk).read(),
        recorder.row_buffer(step.v).read(),
        recorder.optional_vector(step.alibi).read(),
        recorder.row_buffer(step.out).read_write(),
    ];
    let kernel = kernel(vectors, step.alibi.is_some());
    let workgroups = tokens.div_ceil(ROWS) * step.query_heads;
    recorder.dispatch(&kernel, &params, &bindings, workgroups)
}

/// Every variant that [`encode`] can use, for some sizes of heads.
pub(super) fn variants() -> Vec<Variant> {
    let sizes = [2, 4, 10, 16, 32, 64];
    let both = sizes.map(|vectors| [false, true].map(|alibi| kernel(vectors, alibi)));
    both.into_iter()
        .flatten()
        .map(|kernel| Variant::new::<Params>(kernel, Params::FIELDS))
        .collect()
}
