//! `GatherRows` → one launch.

use super::super::super::BackendError;
use super::{Kernel, Recorder, eights_of, params};
use crate::plan::GatherRows;

params! {
    Params { metadata: u64, x: u64, out: u64, columns: u32, x_columns: u32 }
}

/// Threads per block; a block copies one row, eight elements per thread and iteration.
const THREADS: u32 = 256;

/// Records the launch.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &GatherRows) -> Result<(), BackendError> {
    let GatherRows { x, out } = *step;
    let columns = 8 * eights_of("gather_rows", recorder.columns(out))?;
    let x_columns = 8 * eights_of("gather_rows", recorder.columns(x))?;
    debug_assert!(columns.is_multiple_of(x_columns), "rows are copied whole");
    let arena = recorder.arena;
    let params = Params {
        metadata: arena.metadata,
        x: recorder.row_buffer(x),
        out: recorder.row_buffer(out),
        columns,
        x_columns,
    };
    let kernel = Kernel::new("gather_rows")
        .define_type("X_TYPE", recorder.storage(x))
        .define_type("OUT_TYPE", recorder.storage(out));
    recorder.launch(&kernel, &params, [recorder.rows(out), 1, 1], THREADS, 0)
}
