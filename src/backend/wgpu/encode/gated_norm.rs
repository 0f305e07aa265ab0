//! `GatedNorm` → one dispatch, one workgroup per group of a row.

use super::super::super::BackendError;
use super::super::pipelines::Kernel;
use super::{Recorder, Variant, params};
use crate::plan::GatedNorm;

params! {
    Params {
        units: u32,
        groups: u32,
        vectors: u32,
        weight_vectors: u32,
        mixed_columns: u32,
        gates: u32,
        gate_first: u32,
        epsilon: f32,
    }
}

/// Invocations of a workgroup for groups of a head, and for longer ones.
const WORKGROUPS: [u32; 2] = [32, 128];

fn kernel(workgroup: u32) -> Kernel {
    Kernel::new("gated_norm")
        .number("WORKGROUP", workgroup)
        .define("SILU")
}

/// Records the dispatch.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &GatedNorm) -> Result<(), BackendError> {
    let groups = recorder.columns(step.x) / step.group;
    let units = recorder.rows(step.x) * groups;
    let params = Params {
        units,
        groups,
        vectors: step.group / 4,
        weight_vectors: recorder.plan.weight_spec(step.weight).columns / 4,
        mixed_columns: recorder.columns(step.mixed),
        gates: step.gates,
        gate_first: u32::from(step.gate_first),
        epsilon: step.epsilon,
    };
    let bindings = [
        recorder.row_buffer(step.x).read(),
        recorder.row_buffer(step.mixed).read(),
        recorder.vector(step.weight).read(),
        recorder.row_buffer(step.out).read_write(),
    ];
    let kernel = recorder.tiered(kernel(WORKGROUPS[usize::from(step.group > 256)]));
    recorder.dispatch(&kernel, &params, &bindings, units)
}

/// Every variant that [`encode`] can use.
pub(super) fn variants() -> Vec<Variant> {
    let kernels = WORKGROUPS.into_iter().flat_map(|size| {
        [false, true].map(|subgroups| kernel(size).define_if(subgroups, "SUBGROUPS"))
    });
    kernels
        .map(|kernel| Variant::new::<Params>(kernel, Params::FIELDS))
        .collect()
}
