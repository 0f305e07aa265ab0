//! `RmsNorm` → one dispatch, one workgroup per run of a row.

use super::super::super::BackendError;
use super::super::device::Class;
use super::super::pipelines::Kernel;
use super::{Recorder, Variant, params, vectors_of};
use crate::plan::{NormOptions, RmsNorm};

params! {
    Params {
        rows: u32,
        vectors: u32,
        columns: f32,
        epsilon: f32,
        weight_offset: f32,
        accumulate: u32,
        center: u32,
        has_bias: u32,
        has_scale: u32,
    }
}

/// What a kernel does beyond a plain norm.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Delta,
    Options,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Plain, Self::Delta, Self::Options];

    fn of(self, kernel: Kernel) -> Kernel {
        kernel
            .define_if(self == Self::Delta, "DELTA")
            .define_if(self == Self::Options, "OPTIONS")
    }
}

fn kernel(kind: Kind, workgroup: u32) -> Kernel {
    kind.of(Kernel::new("rms_norm").number("WORKGROUP", workgroup))
}

fn texel_kernel(kind: Kind) -> Kernel {
    kind.of(Kernel::new("rms_norm").define("TEXELS").define("SUBGROUPS"))
}

/// Records the dispatch.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &RmsNorm) -> Result<(), BackendError> {
    let columns = recorder.plan.weight_spec(step.weight).columns;
    let rows = recorder.rows(step.x) * (recorder.columns(step.x) / columns);
    let vectors = vectors_of("rms_norm", columns)?;
    debug_assert_eq!(
        recorder.columns(step.x),
        recorder.columns(step.out),
        "a norm keeps the shape"
    );
    let NormOptions {
        center,
        bias,
        scale,
    } = step.options;
    let kind = match (step.delta, step.options == NormOptions::default()) {
        (None, true) => Kind::Plain,
        (Some(_), true) => Kind::Delta,
        (None, false) => Kind::Options,
        (Some(_), false) => {
            unreachable!("the check of a plan refuses options of a norm with a delta")
        }
    };
    let params = Params {
        rows,
        vectors,
        columns: columns as f32,
        epsilon: step.epsilon,
        weight_offset: if step.one_plus { 1.0 } else { 0.0 },
        accumulate: u32::from(step.accumulate),
        center: u32::from(center),
        has_bias: u32::from(bias.is_some()),
        has_scale: u32::from(scale.is_some()),
    };
    let (x, out) = (
        recorder.row_buffer(step.x),
        recorder.row_buffer(step.out).read_write(),
    );
    let weight = recorder.vector(step.weight);
    // What is absent is bound to something that is not read.
    let options = [bias, scale].map(|vector| {
        vector
            .map_or(weight, |vector| recorder.vector(vector))
            .read()
    });
    if recorder.profile.texels {
        let mut bindings = vec![x.fetch(), weight.fetch(), out];
        bindings.extend(
            step.delta
                .iter()
                .flat_map(|delta| [recorder.row_buffer(*delta).fetch(), x.read_write()]),
        );
        if kind == Kind::Options {
            bindings.extend(options);
        }
        return recorder.dispatch(&texel_kernel(kind), &params, &bindings, rows);
    }
    let workgroup = if recorder.profile.class == Class::Software {
        64
    } else {
        256
    };
    let kernel = recorder.tiered(kernel(kind, workgroup));
    let mut bindings = match step.delta {
        Some(delta) => vec![
            recorder.row_buffer(delta).read(),
            weight.read(),
            x.read_write(),
            out,
        ],
        None => vec![x.read(), weight.read(), out],
    };
    if kind == Kind::Options {
        bindings.extend(options);
    }
    recorder.dispatch(&kernel, &params, &bindings, rows)
}

/// Every variant that [`encode`] can use.
pub(super) fn variants() -> Vec<Variant> {
    let mut variants = Vec::new();
    for kind in Kind::ALL {
        for workgroup in [64, 256] {
            for subgroups in [false, true] {
                let kernel = kernel(kind, workgroup).define_if(subgroups, "SUBGROUPS");
                variants.push(Variant::new::<Params>(kernel, Params::FIELDS));
            }
        }
        variants.push(Variant::new::<Params>(texel_kernel(kind), Params::FIELDS));
    }
    variants
}
