//! `GatedActivation` → one launch.

use super::super::super::BackendError;
use super::{Kernel, Recorder, eights_of, params};
use crate::plan::{Activation, GatedActivation, Up};

params! {
    Params {
        gate_up: u64, up: u64, numbers: u64, out: u64, metadata: u64,
        row_header: u32, row_times: u32, eights: u32, gate_stride: u32, up_stride: u32, up_start: u32,
        activation: u32, alpha: f32, limit: f32, gate_first: u32, shared_by: u32, unused: u32,
        routes: u64,
    }
}

/// Threads per block.
const THREADS: u32 = 128;

/// Number, slope and clamp that describe an activation to the kernels.
pub(super) fn activation_of(activation: Activation) -> (u32, f32, f32) {
    match activation {
        Activation::Silu => (0, 0.0, 0.0),
        Activation::GeluTanh => (1, 0.0, 0.0),
        Activation::Gelu => (6, 0.0, 0.0),
        Activation::Relu => (7, 0.0, 0.0),
        Activation::ClampedSwiglu { alpha, limit } => (2, alpha, limit),
        Activation::Relu2 => (3, 0.0, 0.0),
        Activation::Sigmoid => (5, 0.0, 0.0),
        Activation::Softplus => (8, 0.0, 0.0),
        Activation::ClampedSilu { limit } => (9, 0.0, limit),
        Activation::Xielu => (4, 0.0, 0.0),
    }
}

/// Records the launch.
pub(super) fn encode(
    recorder: &mut Recorder<'_>,
    step: &GatedActivation,
) -> Result<(), BackendError> {
    let GatedActivation {
        gate_up,
        gates,
        up,
        activation,
        numbers,
        routes,
        out,
    } = *step;
    let arena = recorder.arena;
    let eights = eights_of("gated_activation", recorder.columns(out))?;
    let (up, up_start) = match up {
        Up::SecondHalf => (Some(gate_up), eights),
        Up::One => (None, 0),
        Up::Of(buffer, column) => (Some(buffer), column / 8),
    };
    let kernel = Kernel::new("gated_activation")
        .define_type("X_TYPE", recorder.storage(gate_up))
        .define_type("UP_TYPE", recorder.storage(up.unwrap_or(gate_up)))
        .define_type("OUT_TYPE", recorder.storage(out));
    let count = recorder.row_count(out);
    let (activation, alpha, limit) = activation_of(activation);
    let params = Params {
        gate_up: recorder.row_buffer(gate_up),
        up: up.map_or(0, |up| recorder.row_buffer(up)),
        numbers: recorder.optional(numbers),
        out: recorder.row_buffer(out),
        metadata: arena.metadata,
        row_header: count.header,
        row_times: count.times,
        eights,
        gate_stride: recorder.columns(gate_up),
        up_stride: up.map_or(0, |up| recorder.columns(up) / 8),
        up_start,
        activation,
        alpha,
        limit,
        gate_first: gates.first,
        shared_by: gates.shared_by,
        unused: 0,
        routes: routes.map_or(0, |routes| recorder.row_buffer(routes)),
    };
    let blocks = (recorder.rows(out) * eights).div_ceil(THREADS);
    recorder.launch(&kernel, &params, [blocks, 1, 1], THREADS, 0)
}
