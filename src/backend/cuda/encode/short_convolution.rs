//! `ShortConvolution` → one launch.

use super::super::super::BackendError;
use super::{Kernel, Recorder, eights_of, params};
use crate::plan::{ConvolutionForm, ShortConvolution};

params! {
    Params {
        x: u64, weight: u64, bias: u64, state: u64, out: u64, metadata: u64,
        eights: u32, width: u32,
    }
}

/// Threads per block; each computes 8 columns of a row, or of the first few rows of a sequence.
const THREADS: u32 = 128;

/// Records the launch.
pub(super) fn encode(
    recorder: &mut Recorder<'_>,
    step: &ShortConvolution,
) -> Result<(), BackendError> {
    let arena = recorder.arena;
    let eights = eights_of("short_convolution", recorder.columns(step.out))?;
    let kernel = Kernel::new("short_convolution")
        .define("TAPS", step.taps.to_string())
        .define("SILU", u32::from(step.form == ConvolutionForm::Silu))
        .define_type("X_TYPE", recorder.storage(step.x))
        .define_type("OUT_TYPE", recorder.storage(step.out));
    let params = Params {
        x: recorder.row_buffer(step.x),
        weight: recorder.vector(step.weight),
        bias: recorder.optional(step.bias),
        state: arena.states[step.layer as usize],
        out: recorder.row_buffer(step.out),
        metadata: arena.metadata,
        eights,
        width: recorder.columns(step.x),
    };
    let blocks = (recorder.rows(step.out) * eights).div_ceil(THREADS);
    recorder.launch(&kernel, &params, [blocks, 1, 1], THREADS, 0)
}
