//! `JoinRows` → one dispatch, one workgroup per half of a row.

use super::super::super::BackendError;
use super::super::device::Class;
use super::super::pipelines::Kernel;
use super::{Recorder, Variant, params, vectors_of, weight_offset};
use crate::plan::JoinRows;

params! {
    Params { halves: u32, vectors: u32, columns: f32, epsilon: f32, weight_offset: f32 }
}

fn kernel(workgroup: u32) -> Kernel {
    Kernel::new("join_rows").number("WORKGROUP", workgroup)
}

/// Records the dispatch.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &JoinRows) -> Result<(), BackendError> {
    let columns = recorder.columns(step.x);
    debug_assert_eq!(
        recorder.columns(step.out),
        2 * columns,
        "an output row is two rows"
    );
    let params = Params {
        halves: 2 * recorder.rows(step.out),
        vectors: vectors_of("join_rows", columns)?,
        columns: columns as f32,
        epsilon: step.epsilon,
        weight_offset: weight_offset(step.one_plus),
    };
    let workgroup = match recorder.profile.class {
        Class::Software => 64,
        _ => 256,
    };
    let kernel = recorder.tiered(kernel(workgroup));
    let bindings = [
        recorder.arena.metadata.read(),
        recorder.row_buffer(step.x).read(),
        recorder.row_buffer(step.carried).read(),
        recorder.vector(step.x_norm).read(),
        recorder.vector(step.carried_norm).read(),
        recorder.row_buffer(step.out).read_write(),
    ];
    recorder.dispatch(&kernel, &params, &bindings, params.halves)
}

/// Every variant that [`encode`] can use.
pub(super) fn variants() -> Vec<Variant> {
    let mut variants = Vec::new();
    for workgroup in [64, 256] {
        for subgroups in [false, true] {
            let kernel = kernel(workgroup).define_if(subgroups, "SUBGROUPS");
            variants.push(Variant::new::<Params>(kernel, Params::FIELDS));
        }
    }
    variants
}
