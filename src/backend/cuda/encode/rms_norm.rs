//! `RmsNorm` → one launch.

use super::super::super::BackendError;
use super::{Kernel, Recorder, eights_of, params, weight_offset};
use crate::plan::{RmsNorm, Storage};

params! {
    Params {
        x: u64, delta: u64, weight: u64, out: u64, metadata: u64,
        row_header: u32, row_times: u32, eights: u32, epsilon: f32, offset: f32, accumulate: u32,
        bias: u64, scale: u64, center: u32, unused: u32,
    }
}

/// Threads per block, as in the kernel.
const THREADS: u32 = 256;

/// Records the launch.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &RmsNorm) -> Result<(), BackendError> {
    let arena = recorder.arena;
    debug_assert_eq!(
        recorder.columns(step.x),
        recorder.columns(step.out),
        "a norm keeps the shape"
    );
    let delta_storage = step
        .delta
        .map_or(Storage::F32, |delta| recorder.storage(delta));
    let kernel = Kernel::new("rms_norm")
        .define_type("X_TYPE", recorder.storage(step.x))
        .define_type("DELTA_TYPE", delta_storage)
        .define_type("OUT_TYPE", recorder.storage(step.out));
    let count = recorder.row_count(step.x);
    let run = recorder.plan.weight_spec(step.weight).columns;
    let runs = recorder.columns(step.x) / run;
    let params = Params {
        x: recorder.row_buffer(step.x),
        delta: step.delta.map_or(0, |delta| recorder.row_buffer(delta)),
        weight: recorder.vector(step.weight),
        out: recorder.row_buffer(step.out),
        metadata: arena.metadata,
        row_header: count.header,
        row_times: count.times * runs,
        eights: eights_of("rms_norm", run)?,
        epsilon: step.epsilon,
        offset: weight_offset(step.one_plus),
        accumulate: u32::from(step.accumulate),
        bias: recorder.optional(step.options.bias),
        scale: recorder.optional(step.options.scale),
        center: u32::from(step.options.center),
        unused: 0,
    };
    recorder.launch(
        &kernel,
        &params,
        [recorder.rows(step.x) * runs, 1, 1],
        THREADS,
        0,
    )
}
