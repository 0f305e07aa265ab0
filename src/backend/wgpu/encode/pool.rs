//! `Pool` → one dispatch.

use super::super::super::{BackendError, Capacity};
use super::super::pipelines::Kernel;
use super::{Recorder, Variant, params, vectors_of};
use crate::plan::{Plan, Pool};

params! {
    Params { rows: u32, vectors: u32 }
}

/// Invocations of a workgroup; each sums 4 columns.
const WORKGROUP: u32 = 64;

/// Maximum words of all pooled rows of one batch.
pub(crate) fn words_max(plan: &Plan, capacity: &Capacity) -> u32 {
    capacity.pools_max(plan) * plan.pooled_columns()
}

/// Records the dispatch.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &Pool) -> Result<(), BackendError> {
    let arena = recorder.arena;
    let rows = recorder.shape.pools;
    let vectors = vectors_of("pool", recorder.columns(step.x))?;
    debug_assert!(
        rows * recorder.columns(step.x) <= words_max(recorder.plan, recorder.capacity),
        "pooled rows fit"
    );
    let bindings = [
        arena.metadata.read(),
        recorder.row_buffer(step.x).read(),
        arena.pooled.read_write(),
    ];
    let params = Params { rows, vectors };
    recorder.dispatch(
        &Kernel::new("pool"),
        &params,
        &bindings,
        (rows * vectors).div_ceil(WORKGROUP),
    )
}

/// Every variant that [`encode`] can use.
pub(super) fn variants() -> Vec<Variant> {
    vec![Variant::new::<Params>(Kernel::new("pool"), Params::FIELDS)]
}
