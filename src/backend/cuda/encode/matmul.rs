//! `MatMul` → one launch per section of the weight.
//!
//! Choice of kernel: `matmul_vec` for up to [`VEC_ROWS_MAX`] rows. For more bfloat16 rows: cuBLASLt if it is available,
//! the weight is bfloat16 and there is no bias; otherwise `matmul_tile`. f32 rows, and weights that
//! bfloat16 does not hold, always use `matmul_vec`.
//! Deterministic plans use one kernel for every row count, so that a row's sums do not depend on the other rows.
//!
//! With few rows, the norm before a product and the activation after it run in the same kernel ([`crate::plan::fuse`]).

use super::super::super::BackendError;
use super::super::arena::DeviceSection;
use super::super::blas::{Product, ProductShape};
use super::gated_activation::activation_of;
use super::{Kernel, Recorder, eights_of, matmul_tile, params, weight_offset};
use crate::plan::fuse::Fused;
use crate::plan::{GatedActivation, MatMul, RmsNorm, Storage, WeightFormat};

params! {
    Params {
        x: u64, weight: u64, bias: u64, out: u64, metadata: u64, norm_weight: u64,
        row_header: u32,
        row_times: u32,
        columns: u32,
        outputs: u32,
        stride: u32,
        output_start: u32,
        accumulate: u32,
        epsilon: f32,
        offset: f32,
        activation: u32,
        alpha: f32,
        limit: f32,
    }
}

/// Up to this many rows, reading a weight costs more than multiplying it.
const VEC_ROWS_MAX: u32 = 8;
/// Warps per block of `matmul_vec`; and with a fused norm, which every block computes for itself.
const WARPS: u32 = 4;
const NORM_WARPS: u32 = 8;
/// Maximum bytes of norms in a block's shared memory, so that several blocks fit on a multiprocessor.
const NORM_BYTES_MAX: u32 = 64 << 10;

/// Records the launches.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &MatMul) -> Result<(), BackendError> {
    let weight = recorder.weight(step.weight);
    eights_of("matmul", weight.columns)?;
    debug_assert_eq!(
        weight.columns,
        recorder.columns(step.x),
        "a row of x is as long as a row of the weight"
    );
    let narrow = recorder.storage(step.x) == Storage::Bf16;
    let few = recorder.rows(step.x) <= VEC_ROWS_MAX && !recorder.capacity.deterministic;
    for section in &weight.sections {
        if !narrow || few || !section.format.has_narrow_levels() {
            vec(recorder, step, section)?;
        } else if let Some(product) = blas_product(recorder, step, section) {
            recorder.product(product);
        } else {
            matmul_tile::encode(recorder, step, section)?;
        }
    }
    Ok(())
}

/// The section's part of the step as a cuBLASLt product, if it can be one.
fn blas_product(
    recorder: &Recorder<'_>,
    step: &MatMul,
    section: &DeviceSection,
) -> Option<Product> {
    let plain = section.format == WeightFormat::Bf16
        && step.bias.is_none()
        && !recorder.capacity.deterministic;
    if !plain {
        return None;
    }
    debug_assert!(
        section.row_start + section.rows <= recorder.columns(step.out),
        "a section gives columns of out"
    );
    let storage = recorder.storage(step.out);
    let shape = ProductShape {
        rows: recorder.rows(step.x),
        outputs: section.rows,
        columns: recorder.columns(step.x),
        stride: recorder.columns(step.out),
        wide: storage == Storage::F32,
        accumulate: step.accumulate,
    };
    if !recorder.device.products.takes(shape) {
        return None;
    }
    let out = recorder.row_buffer(step.out) + u64::from(section.row_start * storage.bytes());
    Some(Product {
        x: recorder.row_buffer(step.x),
        weight: section.address,
        out,
        shape,
    })
}

/// `matmul_vec` over one section, without fused steps.
fn vec(
    recorder: &mut Recorder<'_>,
    step: &MatMul,
    section: &DeviceSection,
) -> Result<(), BackendError> {
    let vec = VecLaunch {
        section: *section,
        norm: None,
        gated: None,
    };
    vec.launch(recorder, step)
}

/// Records a product of few rows with its fused steps as one launch. Returns `false` if the steps run better
/// separately.
pub(super) fn encode_fused(
    recorder: &mut Recorder<'_>,
    fused: &Fused,
) -> Result<bool, BackendError> {
    let step = &fused.product;
    let weight = recorder.weight(step.weight);
    let rows = recorder.rows(step.x);
    let norm_bytes = row_group(recorder, rows) * weight.columns * recorder.storage(step.x).bytes();
    let [section] = weight.sections[..] else {
        return Ok(false);
    };
    let fits = fused.norm.is_none() || norm_bytes <= NORM_BYTES_MAX;
    let halves = fused.gated.is_none() || section.rows.is_multiple_of(2);
    if rows > VEC_ROWS_MAX || recorder.capacity.deterministic || !fits || !halves {
        return Ok(false);
    }
    eights_of("matmul", weight.columns)?;
    let vec = VecLaunch {
        section,
        norm: fused.norm.as_ref(),
        gated: fused.gated.as_ref(),
    };
    vec.launch(recorder, step)?;
    Ok(true)
}

/// Rows that a warp multiplies with each weight it reads.
fn row_group(recorder: &Recorder<'_>, rows: u32) -> u32 {
    if recorder.capacity.deterministic {
        4
    } else {
        rows.next_power_of_two().min(VEC_ROWS_MAX)
    }
}

/// A launch of `matmul_vec`.
struct VecLaunch<'a> {
    section: DeviceSection,
    norm: Option<&'a RmsNorm>,
    gated: Option<&'a GatedActivation>,
}

impl VecLaunch<'_> {
    fn launch(&self, recorder: &mut Recorder<'_>, step: &MatMul) -> Result<(), BackendError> {
        let rows_max = recorder.rows(step.x);
        let rows = row_group(recorder, rows_max);
        let warps = if self.norm.is_some() {
            NORM_WARPS
        } else {
            WARPS
        };
        let outputs = self.outputs(recorder, rows);
        let kernel = self
            .kernel(recorder, step)
            .define("ROWS", rows)
            .define("OUTPUTS", outputs)
            .define("WARPS", warps);
        let params = self.params(recorder, step);
        let shared = self.norm.map_or(0, |_| {
            rows * params.columns * recorder.storage(step.x).bytes()
        });
        let grid = [
            self.section.rows.div_ceil(warps * outputs),
            rows_max.div_ceil(rows),
            1,
        ];
        recorder.launch(&kernel, &params, grid, warps * 32, shared)
    }

    fn params(&self, recorder: &Recorder<'_>, step: &MatMul) -> Params {
        let Self {
            section,
            norm,
            gated,
        } = *self;
        debug_assert!(
            gated.is_none() || section.rows.is_multiple_of(2),
            "a gate has an up projection"
        );
        let x = norm.map_or(step.x, |norm| norm.x);
        let out = gated.map_or(step.out, |gated| gated.out);
        let count = recorder.row_count(step.x);
        let (activation, alpha, limit) =
            gated.map_or((0, 0.0, 0.0), |gated| activation_of(gated.activation));
        Params {
            x: recorder.row_buffer(x),
            weight: section.address,
            bias: recorder.optional(step.bias),
            out: recorder.row_buffer(out),
            metadata: recorder.arena.metadata,
            norm_weight: norm.map_or(0, |norm| recorder.vector(norm.weight)),
            row_header: count.header,
            row_times: count.times,
            columns: recorder.columns(step.x),
            outputs: section.rows,
            stride: recorder.columns(out),
            output_start: section.row_start,
            accumulate: u32::from(step.accumulate),
            epsilon: norm.map_or(0.0, |norm| norm.epsilon),
            offset: weight_offset(norm.is_some_and(|norm| norm.one_plus)),
            activation,
            alpha,
            limit,
        }
    }

    /// Weight rows per warp. If there are few, they are spread over more warps, so that every multiprocessor has enough
    /// reads in flight.
    fn outputs(&self, recorder: &Recorder<'_>, rows: u32) -> u32 {
        let warps_wanted = recorder.device.sm_count * 16;
        let most = if rows > 4 { 2 } else { 4 };
        let least = if self.gated.is_some() { 2 } else { 1 };
        [4, 2]
            .into_iter()
            .find(|each| *each <= most && self.section.rows / each >= warps_wanted)
            .unwrap_or(1)
            .max(least)
    }

    fn kernel(&self, recorder: &Recorder<'_>, step: &MatMul) -> Kernel {
        let x = self.norm.map_or(step.x, |norm| norm.x);
        let out = self.gated.map_or(step.out, |gated| gated.out);
        let kernel = Kernel::new("matmul_vec")
            .define("WEIGHT", format!("{:?}", self.section.format))
            .define_type("X_TYPE", recorder.storage(x))
            .define_type("OUT_TYPE", recorder.storage(out));
        let kernel = match self.norm {
            Some(_) => kernel
                .define("NORM", 1)
                .define_type("NORMED_TYPE", recorder.storage(step.x)),
            None => kernel,
        };
        match self.gated {
            Some(_) => kernel
                .define("GATED", 1)
                .define_type("GATED_TYPE", recorder.storage(step.out)),
            None => kernel,
        }
    }
}
