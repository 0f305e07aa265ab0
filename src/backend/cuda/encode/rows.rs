//! The steps that work row by row: `Embed`, `RmsNorm`, `GatedNorm`, `GatedActivation`.

use super::super::super::BackendError;
use super::{Kernel, Recorder, eights_of, params};
use crate::plan::{Activation, Embed, GatedActivation, GatedNorm, RmsNorm, Storage, Up};

params! {
    EmbedParams { table: u64, out: u64, metadata: u64, feed: u64, columns: u32, row_first: u32, rows: u32, scale: f32 }
}

params! {
    NormParams {
        x: u64, delta: u64, weight: u64, out: u64, metadata: u64,
        row_header: u32, row_times: u32, eights: u32, epsilon: f32, offset: f32, accumulate: u32,
        bias: u64, scale: u64, center: u32, unused: u32,
    }
}

params! {
    GatedParams {
        gate_up: u64, up: u64, numbers: u64, out: u64, metadata: u64,
        row_header: u32, row_times: u32, eights: u32, gate_stride: u32, up_stride: u32, up_start: u32,
        activation: u32, alpha: f32, limit: f32, gate_first: u32, shared_by: u32, unused: u32,
    }
}

params! {
    GatedNormParams {
        x: u64, mixed: u64, weight: u64, out: u64, metadata: u64,
        groups: u32, eights: u32, weight_eights: u32, mixed_columns: u32, gates: u32, gate_first: u32, epsilon: f32,
        unused: u32,
    }
}

/// Threads per block of `rms_norm`, as in its file.
const NORM_THREADS: u32 = 256;
/// Threads per block of the other kernels.
const THREADS: u32 = 128;

/// Records the launches of `Embed`: one per section of the table.
pub(super) fn embed(recorder: &mut Recorder<'_>, step: &Embed) -> Result<(), BackendError> {
    let Embed { table, scale, out } = *step;
    let arena = recorder.arena;
    let weight = recorder.weight(table);
    eights_of("embed", weight.columns)?;
    debug_assert_eq!(
        weight.columns,
        recorder.columns(out),
        "a row of the table is a row of out"
    );
    for section in &weight.sections {
        let kernel = Kernel::new("embed").define("WEIGHT", format!("{:?}", section.format));
        let kernel = kernel.define_type("OUT_TYPE", recorder.storage(out));
        let params = EmbedParams {
            table: section.address,
            out: recorder.row_buffer(out),
            metadata: arena.metadata,
            feed: arena.feed,
            columns: weight.columns,
            row_first: section.row_start,
            rows: section.rows,
            scale,
        };
        recorder.launch(&kernel, &params, [recorder.rows(out), 1, 1], THREADS, 0)?;
    }
    Ok(())
}

/// Records the launch of `RmsNorm`.
pub(super) fn rms_norm(recorder: &mut Recorder<'_>, step: &RmsNorm) -> Result<(), BackendError> {
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
    let params = NormParams {
        x: recorder.row_buffer(step.x),
        delta: step.delta.map_or(0, |delta| recorder.row_buffer(delta)),
        weight: recorder.vector(step.weight),
        out: recorder.row_buffer(step.out),
        metadata: arena.metadata,
        row_header: count.header,
        row_times: count.times * runs,
        eights: eights_of("rms_norm", run)?,
        epsilon: step.epsilon,
        offset: if step.one_plus { 1.0 } else { 0.0 },
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
        NORM_THREADS,
        0,
    )
}

/// Records the launch of `GatedNorm`.
pub(super) fn gated_norm(
    recorder: &mut Recorder<'_>,
    step: &GatedNorm,
) -> Result<(), BackendError> {
    let groups = recorder.columns(step.x) / step.group;
    let kernel = Kernel::new("gated_norm")
        .define_type("X_TYPE", recorder.storage(step.x))
        .define_type("MIXED_TYPE", recorder.storage(step.mixed))
        .define_type("OUT_TYPE", recorder.storage(step.out));
    let params = GatedNormParams {
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

/// Number, slope and clamp that describe an activation to the kernels.
pub(super) fn activation_of(activation: Activation) -> (u32, f32, f32) {
    match activation {
        Activation::Silu => (0, 0.0, 0.0),
        Activation::GeluTanh => (1, 0.0, 0.0),
        Activation::ClampedSwiglu { alpha, limit } => (2, alpha, limit),
        Activation::Relu2 => (3, 0.0, 0.0),
        Activation::Sigmoid => (5, 0.0, 0.0),
        Activation::Xielu => (4, 0.0, 0.0),
    }
}

/// Records the launch of `GatedActivation`.
pub(super) fn gated(
    recorder: &mut Recorder<'_>,
    step: &GatedActivation,
) -> Result<(), BackendError> {
    let GatedActivation {
        gate_up,
        gates,
        up,
        activation,
        numbers,
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
    let params = GatedParams {
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
    };
    let blocks = (recorder.rows(out) * eights).div_ceil(THREADS);
    recorder.launch(&kernel, &params, [blocks, 1, 1], THREADS, 0)
}
