//! `Pool` → one launch.

use super::super::super::{BackendError, Capacity};
use super::{Kernel, Recorder, eights_of, params};
use crate::plan::{Plan, Pool};

params! {
    Params { x: u64, pooled: u64, metadata: u64, rows: u32, eights: u32 }
}

/// Threads per block; each sums 8 columns.
const THREADS: u32 = 128;

/// Maximum words of one batch's pooled rows.
pub(in super::super) fn words_max(plan: &Plan, capacity: &Capacity) -> u32 {
    capacity.pools_max(plan) * plan.pooled_columns()
}

/// Records the launch.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &Pool) -> Result<(), BackendError> {
    let x = step.x;
    let arena = recorder.arena;
    let (rows, eights) = (
        recorder.shape.pools,
        eights_of("pool", recorder.columns(x))?,
    );
    debug_assert!(
        rows * 8 * eights <= words_max(recorder.plan, recorder.capacity),
        "the pooled rows fit their buffer"
    );
    let kernel = Kernel::new("pool").define_type("X_TYPE", recorder.storage(x));
    let (x, pooled) = (recorder.row_buffer(x), arena.pooled);
    let params = Params {
        x,
        pooled,
        metadata: arena.metadata,
        rows,
        eights,
    };
    recorder.launch(
        &kernel,
        &params,
        [(rows * eights).div_ceil(THREADS), 1, 1],
        THREADS,
        0,
    )
}
