//! `RmsNorm` → one dispatch, one workgroup per row.

use super::super::super::BackendError;
use super::super::device::Class;
use super::super::pipelines::Kernel;
use super::{Recorder, Variant, params, vectors_of};
use crate::plan::RmsNorm;

params! {
    Params { rows: u32, vectors: u32, columns: f32, epsilon: f32, weight_offset: f32, accumulate: u32 }
}

fn kernel(delta: bool, workgroup: u32) -> Kernel {
    Kernel::new("rms_norm").number("WORKGROUP", workgroup).define_if(delta, "DELTA")
}

fn texel_kernel(delta: bool) -> Kernel {
    Kernel::new("rms_norm").define("TEXELS").define("SUBGROUPS").define_if(delta, "DELTA")
}

/// Records the dispatch.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &RmsNorm) -> Result<(), BackendError> {
    let (rows, columns) = (recorder.rows(step.x), recorder.columns(step.x));
    let vectors = vectors_of("rms_norm", columns)?;
    debug_assert_eq!(columns, recorder.columns(step.out), "a norm keeps the shape");
    let params = Params {
        rows,
        vectors,
        columns: columns as f32,
        epsilon: step.epsilon,
        weight_offset: if step.one_plus { 1.0 } else { 0.0 },
        accumulate: u32::from(step.accumulate),
    };
    if recorder.profile.texels {
        let (x, out) = (recorder.row_buffer(step.x), recorder.row_buffer(step.out).read_write());
        let mut bindings = vec![x.fetch(), recorder.vector(step.weight).fetch(), out];
        bindings.extend(step.delta.iter().flat_map(|delta| [recorder.row_buffer(*delta).fetch(), x.read_write()]));
        return recorder.dispatch(&texel_kernel(step.delta.is_some()), &params, &bindings, rows);
    }
    let workgroup = if recorder.profile.class == Class::Software { 64 } else { 256 };
    let kernel = recorder.tiered(kernel(step.delta.is_some(), workgroup));
    let (x, out) = (recorder.row_buffer(step.x), recorder.row_buffer(step.out).read_write());
    let weight = recorder.vector(step.weight).read();
    match step.delta {
        Some(delta) => {
            let bindings = [recorder.row_buffer(delta).read(), weight, x.read_write(), out];
            recorder.dispatch(&kernel, &params, &bindings, rows)
        }
        None => recorder.dispatch(&kernel, &params, &[x.read(), weight, out], rows),
    }
}

/// Every variant that [`encode`] can use.
pub(super) fn variants() -> Vec<Variant> {
    let mut variants = Vec::new();
    for workgroup in [64, 256] {
        for delta in [false, true] {
            for subgroups in [false, true] {
                let kernel = kernel(delta, workgroup).define_if(subgroups, "SUBGROUPS");
                variants.push(Variant::new::<Params>(kernel, Params::FIELDS));
            }
        }
    }
    let texels = [false, true].map(|delta| Variant::new::<Params>(texel_kernel(delta), Params::FIELDS));
    variants.extend(texels);
    variants
}
