//! `ShortConvolution` → one dispatch.

use super::super::super::BackendError;
use super::super::pipelines::Kernel;
use super::{Recorder, Variant, params, vectors_of};
use crate::plan::check::TAPS_MAX;
use crate::plan::{ConvolutionForm, ShortConvolution};

params! {
    Params { rows: u32, vectors: u32, sequences: u32, width: u32 }
}

/// Invocations of a workgroup; each writes 4 columns of a row, or of the first few rows of a sequence.
const WORKGROUP: u32 = 64;

fn kernel(taps: u32, bias: bool, form: ConvolutionForm) -> Kernel {
    let kernel = Kernel::new("short_convolution")
        .number("TAPS", taps)
        .define_if(bias, "BIAS");
    kernel.define_if(form == ConvolutionForm::Silu, "SILU")
}

/// Records the dispatch.
pub(super) fn encode(
    recorder: &mut Recorder<'_>,
    step: &ShortConvolution,
) -> Result<(), BackendError> {
    let arena = recorder.arena;
    let rows = recorder.rows(step.out);
    let vectors = vectors_of("short_convolution", recorder.columns(step.out))?;
    let (sequences, width) = (recorder.shape.sequences, recorder.columns(step.x));
    let params = Params {
        rows,
        vectors,
        sequences,
        width,
    };
    let mut bindings = vec![
        arena.metadata.read(),
        recorder.row_buffer(step.x).read(),
        recorder.vector(step.weight).read(),
        arena.states[step.layer as usize].read_write(),
        recorder.row_buffer(step.out).read_write(),
    ];
    bindings.extend(step.bias.map(|bias| recorder.vector(bias).read()));
    let kernel = kernel(step.taps, step.bias.is_some(), step.form);
    recorder.dispatch(
        &kernel,
        &params,
        &bindings,
        (rows * vectors).div_ceil(WORKGROUP),
    )
}

/// Every variant that [`encode`] can use.
pub(super) fn variants() -> Vec<Variant> {
    let forms = [ConvolutionForm::Gated, ConvolutionForm::Silu];
    let options = forms
        .into_iter()
        .flat_map(|form| [false, true].map(|bias| (form, bias)));
    let kernels = (2..=TAPS_MAX).flat_map(|taps| {
        options
            .clone()
            .map(move |(form, bias)| kernel(taps, bias, form))
    });
    kernels
        .map(|kernel| Variant::new::<Params>(kernel, Params::FIELDS))
        .collect()
}
