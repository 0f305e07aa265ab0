//! `GatherRows` → one dispatch.

use super::super::super::BackendError;
use super::super::pipelines::Kernel;
use super::{Recorder, Variant, params, vectors_of};
use crate::plan::GatherRows;

params! {
    Params { rows: u32, vectors: u32, x_vectors: u32, logits_start: u32 }
}

/// Invocations of a workgroup; each copies 4 elements.
const WORKGROUP: u32 = 64;

/// Records the dispatch.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &GatherRows) -> Result<(), BackendError> {
    let GatherRows { x, out } = *step;
    let arena = recorder.arena;
    let rows = recorder.rows(out);
    let vectors = vectors_of("gather_rows", recorder.columns(out))?;
    let x_vectors = vectors_of("gather_rows", recorder.columns(x))?;
    debug_assert!(vectors.is_multiple_of(x_vectors), "rows are copied whole");
    debug_assert!(
        rows <= arena.group_rows,
        "all rows that are gathered together fit their buffer"
    );
    debug_assert!(
        recorder.group.logits_start + rows <= recorder.shape.logits_rows,
        "only gathered rows are copied"
    );
    let params = Params {
        rows,
        vectors,
        x_vectors,
        logits_start: recorder.group.logits_start,
    };
    let bindings = [
        arena.metadata.read(),
        recorder.row_buffer(x).read(),
        recorder.row_buffer(out).read_write(),
    ];
    recorder.dispatch(
        &Kernel::new("gather_rows"),
        &params,
        &bindings,
        (rows * vectors).div_ceil(WORKGROUP),
    )
}

/// Every variant that [`encode`] can use.
pub(super) fn variants() -> Vec<Variant> {
    vec![Variant::new::<Params>(
        Kernel::new("gather_rows"),
        Params::FIELDS,
    )]
}
