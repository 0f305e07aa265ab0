//! `JoinRows` → one launch.

use super::super::super::BackendError;
use super::{Kernel, Recorder, eights_of, params, weight_offset};
use crate::plan::JoinRows;

params! {
    Params {
        metadata: u64, x: u64, carried: u64, x_norm: u64, carried_norm: u64, out: u64,
        eights: u32, epsilon: f32, offset: f32, unused: u32,
    }
}

/// Threads per block, as in the kernel; a block writes one half of a row.
const THREADS: u32 = 256;

/// Records the launch.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &JoinRows) -> Result<(), BackendError> {
    let columns = recorder.columns(step.x);
    debug_assert_eq!(
        recorder.columns(step.out),
        2 * columns,
        "an output row is two rows"
    );
    let kernel = Kernel::new("join_rows")
        .define_type("X_TYPE", recorder.storage(step.x))
        .define_type("CARRIED_TYPE", recorder.storage(step.carried))
        .define_type("OUT_TYPE", recorder.storage(step.out));
    let params = Params {
        metadata: recorder.arena.metadata,
        x: recorder.row_buffer(step.x),
        carried: recorder.row_buffer(step.carried),
        x_norm: recorder.vector(step.x_norm),
        carried_norm: recorder.vector(step.carried_norm),
        out: recorder.row_buffer(step.out),
        eights: eights_of("join_rows", columns)?,
        epsilon: step.epsilon,
        offset: weight_offset(step.one_plus),
        unused: 0,
    };
    let halves = 2 * recorder.rows(step.out);
    recorder.launch(&kernel, &params, [halves, 1, 1], THREADS, 0)
}
