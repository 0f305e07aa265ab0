//! `GatedNorm` → one launch.

use super::super::super::BackendError;
use super::{Kernel, Recorder, params};
use crate::plan::GatedNorm;

params! {
    Params {
        x: u64, mixed: u64, weight: u64, out: u64, metadata: u64,
        groups: u32, eights: u32, weight_eights: u32, mixed_columns: u32, gates: u32, gate_first: u32, epsilon: f32,
        unused: u32,
    }
}

/// Threads per block.
const THREADS: u32 = 128;

/// Records the launch.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &GatedNorm) -> Result<(), BackendError> {
    let groups = recorder.columns(step.x) / step.group;
    let kernel = Kernel::new("gated_norm")
        .define_type("X_TYPE", recorder.storage(step.x))
        .define_type("MIXED_TYPE", recorder.storage(step.mixed))
        .define_type("OUT_TYPE", recorder.storage(step.out));
    let params = Params {
        x: recorder.row_buffer(step.x),
        mixed: recorder.row_buffer(step.mixed),
        weight: recorder.vector(step.weight),
        out: recorder.row_buffer(step.out),
        metadata: recorder.arena.metadata,
        groups,
        eights: step.group / 8,
        weight_eights: recorder.plan.weight_spec(step.weight).columns / 8,
        mixed_columns: recorder.columns(step.mixed),
        gates: step.gates,
        gate_first: u32::from(step.gate_first),
        epsilon: step.epsilon,
        unused: 0,
    };
    recorder.launch(
        &kernel,
        &params,
        [recorder.rows(step.x) * groups, 1, 1],
        THREADS,
        0,
    )
}
