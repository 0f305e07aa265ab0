//! `GatherRows` → one launch.

use super::super::super::BackendError;
use super::{Kernel, Recorder, eights_of, params};
use crate::plan::BufferId;

params! {
    Params { metadata: u64, x: u64, out: u64, columns: u32, unused: u32 }
}

/// Threads of a block, which copies one row, eight elements a thread and turn.
const THREADS: u32 = 256;

/// Records the launch.
pub(super) fn encode(recorder: &mut Recorder<'_>, x: BufferId, out: BufferId) -> Result<(), BackendError> {
    let columns = 8 * eights_of("gather_rows", recorder.columns(out))?;
    let arena = recorder.arena;
    let params =
        Params { metadata: arena.metadata, x: arena.row_buffer(x), out: arena.row_buffer(out), columns, unused: 0 };
    let kernel = Kernel::new("gather_rows")
        .define_type("X_TYPE", recorder.storage(x))
        .define_type("OUT_TYPE", recorder.storage(out));
    recorder.launch(&kernel, &params, [recorder.rows(out), 1, 1], THREADS, 0)
}
