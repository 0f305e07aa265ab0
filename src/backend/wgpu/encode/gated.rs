//! `GatedActivation` → one dispatch.

use super::super::super::BackendError;
use super::super::pipelines::Kernel;
use super::{Recorder, Variant, params, vectors_of};
use crate::plan::{Activation, GatedActivation};

params! {
    Params { rows: u32, vectors: u32, alpha: f32, limit: f32 }
}

/// Invocations of a workgroup; each writes 4 elements.
const WORKGROUP: u32 = 64;

fn kernel(define: &'static str, texels: bool) -> Kernel {
    Kernel::new("gated_activation").define(define).define_if(texels, "TEXELS")
}

/// The define of an activation, with its `alpha` and `limit`.
pub(super) fn activation(activation: Activation) -> (&'static str, f32, f32) {
    match activation {
        Activation::Silu => ("SILU", 0.0, 0.0),
        Activation::GeluTanh => ("GELU_TANH", 0.0, 0.0),
        Activation::ClampedSwiglu { alpha, limit } => ("CLAMPED_SWIGLU", alpha, limit),
    }
}

/// Records the dispatch.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &GatedActivation) -> Result<(), BackendError> {
    let GatedActivation { gate_up, out, .. } = *step;
    let (define, alpha, limit) = activation(step.activation);
    let rows = recorder.rows(out);
    let vectors = vectors_of("gated_activation", recorder.columns(out))?;
    debug_assert_eq!(
        recorder.columns(gate_up),
        2 * recorder.columns(out),
        "a gate and an up projection for each value"
    );
    let bindings = [recorder.row_buffer(gate_up).fetch(), recorder.row_buffer(out).read_write()];
    let params = Params { rows, vectors, alpha, limit };
    let texels = recorder.profile.texels;
    let workgroups =
        if texels { (rows * vectors.div_ceil(64)).div_ceil(4) } else { (rows * vectors).div_ceil(WORKGROUP) };
    recorder.dispatch(&kernel(define, texels), &params, &bindings, workgroups)
}

/// Every variant that [`encode`] can use.
pub(super) fn variants() -> Vec<Variant> {
    let defines = ["SILU", "GELU_TANH", "CLAMPED_SWIGLU"];
    let both = defines.into_iter().flat_map(|define| [kernel(define, false), kernel(define, true)]);
    both.map(|kernel| Variant::new::<Params>(kernel, Params::FIELDS)).collect()
}
