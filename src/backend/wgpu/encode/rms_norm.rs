//! `RmsNorm` → one dispatch, one workgroup per run of a row.

use super::super::super::BackendError;
use super::super::arena::Binding;
use super::super::device::Class;
use super::super::pipelines::Kernel;
use super::{Recorder, Variant, params, vectors_of, weight_offset};
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

    fn of(step: &RmsNorm) -> Self {
        let has_options = step.options != NormOptions::default();
        match step.delta {
            None if has_options => Self::Options,
            None => Self::Plain,
            Some(_) if has_options => {
                unreachable!("the check of a plan refuses options of a norm with a delta")
            }
            Some(_) => Self::Delta,
        }
    }

    /// The kernel with a workgroup of `workgroup` invocations per run.
    fn kernel(self, workgroup: u32) -> Kernel {
        self.define(Kernel::new("rms_norm").number("WORKGROUP", workgroup))
    }

    /// The kernel that reads images.
    fn texel_kernel(self) -> Kernel {
        self.define(Kernel::new("rms_norm").define("TEXELS").define("SUBGROUPS"))
    }

    fn define(self, kernel: Kernel) -> Kernel {
        kernel
            .define_if(self == Self::Delta, "DELTA")
            .define_if(self == Self::Options, "OPTIONS")
    }
}

/// Records the dispatch.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &RmsNorm) -> Result<(), BackendError> {
    let params = params(recorder, step)?;
    let kind = Kind::of(step);
    let workgroup = match recorder.profile.class {
        Class::Software => 64,
        _ => 256,
    };
    let (kernel, mut bindings) = if recorder.profile.texels {
        (kind.texel_kernel(), texel_bindings(recorder, step))
    } else {
        let kernel = recorder.tiered(kind.kernel(workgroup));
        (kernel, bindings(recorder, step))
    };
    if kind == Kind::Options {
        bindings.extend(option_vectors(recorder, step));
    }
    recorder.dispatch(&kernel, &params, &bindings, params.rows)
}

fn params(recorder: &Recorder<'_>, step: &RmsNorm) -> Result<Params, BackendError> {
    debug_assert_eq!(
        recorder.columns(step.x),
        recorder.columns(step.out),
        "a norm keeps the shape"
    );
    let columns = recorder.plan.weight_spec(step.weight).columns;
    let runs = recorder.columns(step.x) / columns;
    let options = step.options;
    Ok(Params {
        rows: recorder.rows(step.x) * runs,
        vectors: vectors_of("rms_norm", columns)?,
        columns: columns as f32,
        epsilon: step.epsilon,
        weight_offset: weight_offset(step.one_plus),
        accumulate: u32::from(step.accumulate),
        center: u32::from(options.center),
        has_bias: u32::from(options.bias.is_some()),
        has_scale: u32::from(options.scale.is_some()),
    })
}

fn bindings<'a>(recorder: &Recorder<'a>, step: &RmsNorm) -> Vec<Binding<'a>> {
    let x = recorder.row_buffer(step.x);
    let weight = recorder.vector(step.weight).read();
    let out = recorder.row_buffer(step.out).read_write();
    match step.delta {
        Some(delta) => {
            let delta = recorder.row_buffer(delta).read();
            vec![delta, weight, x.read_write(), out]
        }
        None => vec![x.read(), weight, out],
    }
}

fn texel_bindings<'a>(recorder: &Recorder<'a>, step: &RmsNorm) -> Vec<Binding<'a>> {
    let x = recorder.row_buffer(step.x);
    let mut bindings = vec![
        x.fetch(),
        recorder.vector(step.weight).fetch(),
        recorder.row_buffer(step.out).read_write(),
    ];
    if let Some(delta) = step.delta {
        // The sum is written to x, which is read as an image.
        bindings.push(recorder.row_buffer(delta).fetch());
        bindings.push(x.read_write());
    }
    bindings
}

/// Bias and scale. What is absent is bound to something that is not read.
fn option_vectors<'a>(recorder: &Recorder<'a>, step: &RmsNorm) -> [Binding<'a>; 2] {
    let absent = recorder.vector(step.weight);
    let NormOptions { bias, scale, .. } = step.options;
    [bias, scale].map(|vector| {
        vector
            .map_or(absent, |vector| recorder.vector(vector))
            .read()
    })
}

/// Every variant that [`encode`] can use.
pub(super) fn variants() -> Vec<Variant> {
    let mut variants = Vec::new();
    for kind in Kind::ALL {
        for workgroup in [64, 256] {
            for subgroups in [false, true] {
                let kernel = kind.kernel(workgroup).define_if(subgroups, "SUBGROUPS");
                variants.push(Variant::new::<Params>(kernel, Params::FIELDS));
            }
        }
        variants.push(Variant::new::<Params>(kind.texel_kernel(), Params::FIELDS));
    }
    variants
}
