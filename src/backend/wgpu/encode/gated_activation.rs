//! `GatedActivation` → one dispatch.

use super::super::super::BackendError;
use super::super::pipelines::Kernel;
use super::{Recorder, Variant, params, vectors_of};
use crate::plan::{Activation, BufferId, GatedActivation, Up};

params! {
    Params {
        rows: u32,
        vectors: u32,
        gate_stride: u32,
        gate_start: u32,
        run: u32,
        up_stride: u32,
        up_start: u32,
        alpha: f32,
        limit: f32,
    }
}

/// Invocations of a workgroup; each writes 4 elements.
const WORKGROUP: u32 = 64;

fn kernel(define: &'static str, alone: bool, texels: bool) -> Kernel {
    Kernel::new("gated_activation")
        .define(define)
        .define_if(alone, "ALONE")
        .define_if(texels, "TEXELS")
}

/// The define of an activation, with its `alpha` and `limit`.
pub(super) fn activation(activation: Activation) -> (&'static str, f32, f32) {
    match activation {
        Activation::Silu => ("SILU", 0.0, 0.0),
        Activation::GeluTanh => ("GELU_TANH", 0.0, 0.0),
        Activation::Gelu => ("GELU", 0.0, 0.0),
        Activation::Relu => ("RELU", 0.0, 0.0),
        Activation::ClampedSwiglu { alpha, limit } => ("CLAMPED_SWIGLU", alpha, limit),
        Activation::ClampedSilu { limit } => ("CLAMPED_SILU", 0.0, limit),
        Activation::Relu2 => ("RELU2", 0.0, 0.0),
        Activation::Sigmoid => ("SIGMOID", 0.0, 0.0),
        Activation::Softplus => ("SOFTPLUS", 0.0, 0.0),
        Activation::Xielu => ("XIELU", 0.0, 0.0),
    }
}

/// Records the dispatch.
pub(super) fn encode(
    recorder: &mut Recorder<'_>,
    step: &GatedActivation,
) -> Result<(), BackendError> {
    let GatedActivation {
        gate_up,
        out,
        gates,
        ..
    } = *step;
    let (define, alpha, limit) = activation(step.activation);
    let rows = recorder.rows(out);
    let vectors = vectors_of("gated_activation", recorder.columns(out))?;
    let width = recorder.columns(gate_up);
    // Gates that are no vectors of 4.
    let by_column = gates.shared_by > 1 || !width.is_multiple_of(4);
    let (gate_stride, gate_start) = if by_column {
        (width, gates.first)
    } else {
        (width / 4, gates.first / 4)
    };
    let (up, up_start) = match step.up {
        Up::SecondHalf => (Some(gate_up), vectors),
        Up::One => (None, 0),
        Up::Of(buffer, column) => (Some(buffer), column / 4),
    };
    let up_stride = up.map_or(Ok(0), |up| {
        vectors_of("gated_activation", recorder.columns(up))
    })?;
    let texels = recorder.profile.texels && !by_column;
    let input = |buffer: BufferId| {
        let buffer = recorder.row_buffer(buffer);
        if texels {
            buffer.fetch()
        } else {
            buffer.read()
        }
    };
    let mut bindings = vec![recorder.row_buffer(out).read_write(), input(gate_up)];
    bindings.extend(up.map(input));
    bindings.extend(step.numbers.map(|numbers| recorder.vector(numbers).read()));
    bindings.extend(step.routes.map(|routes| recorder.row_buffer(routes).read()));
    let run = gates.shared_by;
    let params = Params {
        rows,
        vectors,
        gate_stride,
        gate_start,
        run,
        up_stride,
        up_start,
        alpha,
        limit,
    };
    let workgroups = if texels {
        (rows * vectors.div_ceil(64)).div_ceil(4)
    } else {
        (rows * vectors).div_ceil(WORKGROUP)
    };
    let kernel = kernel(define, up.is_none(), texels)
        .define_if(by_column, "COLUMNS")
        .define_if(step.routes.is_some(), "ROUTED");
    recorder.dispatch(&kernel, &params, &bindings, workgroups)
}

/// Every variant that [`encode`] can use.
pub(super) fn variants() -> Vec<Variant> {
    let gated = [
        "SILU",
        "GELU_TANH",
        "GELU",
        "RELU",
        "CLAMPED_SWIGLU",
        "CLAMPED_SILU",
        "SIGMOID",
        "SOFTPLUS",
    ];
    let gated = gated.map(|define| (define, false));
    let alone = ["GELU_TANH", "GELU", "RELU", "RELU2", "XIELU"].map(|define| (define, true));
    let kernels = gated.into_iter().chain(alone);
    let both = kernels
        .flat_map(|(define, alone)| [false, true].map(|texels| kernel(define, alone, texels)));
    let by_column = ["SILU", "SIGMOID", "SOFTPLUS"]
        .map(|define| kernel(define, false, false).define("COLUMNS"));
    let routed = [false, true].map(|texels| kernel("SILU", false, texels).define("ROUTED"));
    both.chain(by_column)
        .chain(routed)
        .map(|kernel| Variant::new::<Params>(kernel, Params::FIELDS))
        .collect()
}
