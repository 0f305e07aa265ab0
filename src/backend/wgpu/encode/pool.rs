//! `Pool` → one dispatch.

use super::super::super::{BackendError, Capacity};
use super::super::pipelines::Kernel;
use super::{Recorder, Variant, params, vectors_of};
use crate::plan::{BufferId, Plan};

params! {
    Params { rows: u32, vectors: u32 }
}

/// Invocations of a workgroup; each adds up 4 columns.
const WORKGROUP: u32 = 64;

/// Words of all pooled rows of one batch.
pub(crate) fn words_max(plan: &Plan, capacity: &Capacity) -> u32 {
    capacity.sequences_max * plan.pooled_columns()
}

/// Records the dispatch.
pub(super) fn encode(recorder: &mut Recorder<'_>, x: BufferId) -> Result<(), BackendError> {
    let arena = recorder.arena;
    let rows = recorder.shape.pools;
    let vectors = vectors_of("pool", recorder.columns(x))?;
    let bindings = [arena.metadata.read(), arena.row_buffer(x).read(), arena.pooled.read_write()];
    let params = Params { rows, vectors };
    recorder.dispatch(&Kernel::new("pool"), &params, &bindings, (rows * vectors).div_ceil(WORKGROUP))
}

/// Every variant [`encode`] can ask for.
pub(super) fn variants() -> Vec<Variant> {
    vec![Variant::new::<Params>(Kernel::new("pool"), Params::FIELDS)]
}
