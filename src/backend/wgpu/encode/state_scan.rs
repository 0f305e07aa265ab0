//! `StateScan` → a dispatch for sequences of few rows, token by token, and one for those of many, in chunks. Both have
//! a workgroup per sequence, head and a few columns of its values.
//!
//! How a sequence is cut into batches decides where its chunks begin, and so how it is rounded. With
//! [`Capacity::deterministic`](super::Capacity), and on software adapters, all sequences run token by token.

use super::super::super::BackendError;
use super::super::super::scan_shape::{CHUNK, CHUNKED_MIN, ScanShape};
use super::super::device::{Class, Profile, Tier};
use super::super::pipelines::Kernel;
use super::attend_paged::{is_serial, serial_lanes};
use super::{Recorder, Variant, params};
use crate::plan::StateScan;
use crate::plan::check::STATE_DIM_MAX;

params! {
    Params {
        workgroups: u32,
        heads: u32,
        tiles: u32,
        shared_by: u32,
        key_heads: u32,
        key_dim: u32,
        value_dim: u32,
        channels: u32,
        query_start: u32,
        key_start: u32,
        value_start: u32,
        mixed_columns: u32,
        gates: u32,
        beta_scale: f32,
        query_scale: f32,
        rows_min: u32,
        rows_max: u32,
    }
}

/// Columns of the values, and slices of the keys, of a workgroup of `state_scan`; as in the shader. A workgroup of
/// `state_scan_chunks` has as many columns.
const COLUMNS: u32 = 16;
const SLICES: u32 = 8;
/// Keys that `state_scan_chunks` has in registers at a time; as in the shader.
const RUN: u32 = 128;
/// Columns of the values of a workgroup.
fn columns(profile: &Profile) -> u32 {
    if is_serial(profile) {
        serial_lanes(profile)
    } else {
        COLUMNS
    }
}

fn kernel(is_delta: bool, skip: bool, key_dim: u32, profile: &Profile) -> Kernel {
    // Powers of two, so that there are few variants.
    let each = |lanes: u32| key_dim.div_ceil(lanes).next_power_of_two();
    let kernel = if is_serial(profile) {
        let lanes = serial_lanes(profile);
        let kernel = Kernel::new("state_scan_serial").define("SUBGROUPS");
        kernel
            .number("LANES", lanes)
            .number("KEY_RUNS", each(lanes))
    } else {
        Kernel::new("state_scan").number("KEYS_EACH", each(SLICES))
    };
    kernel.define_if(is_delta, "DELTA").define_if(skip, "SKIP")
}

fn chunk_kernel(is_delta: bool, skip: bool, key_dim: u32) -> Kernel {
    let kernel = Kernel::new("state_scan_chunks")
        .define("VECTORS")
        .number("TOKENS", CHUNK);
    // Without the delta rule, keys are not multiplied with the state.
    let kernel = kernel.number("ROWS_EACH", if is_delta { 4 } else { 2 });
    let kernel = kernel.number("KEY_RUNS", key_dim.div_ceil(RUN).next_power_of_two());
    kernel.define_if(is_delta, "DELTA").define_if(skip, "SKIP")
}

/// Records the dispatches.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &StateScan) -> Result<(), BackendError> {
    let (profile, skip, key_dim) = (recorder.profile, step.skip.is_some(), step.key_dim);
    let is_delta = step.rule.is_delta();
    let by_token = kernel(is_delta, skip, key_dim, profile);
    if profile.class == Class::Software || recorder.capacity.deterministic {
        return dispatch(recorder, step, &by_token, [0, u32::MAX]);
    }
    let ScanShape { few, many } = recorder.shape.scan;
    if few {
        dispatch(recorder, step, &by_token, [0, CHUNKED_MIN - 1])?;
    }
    if many {
        dispatch(
            recorder,
            step,
            &chunk_kernel(is_delta, skip, key_dim),
            [CHUNKED_MIN, u32::MAX],
        )?;
    }
    Ok(())
}

/// Records the dispatch of a kernel for the sequences with so many rows.
fn dispatch(
    recorder: &mut Recorder<'_>,
    step: &StateScan,
    kernel: &Kernel,
    [rows_min, rows_max]: [u32; 2],
) -> Result<(), BackendError> {
    let StateScan {
        heads,
        key_heads,
        key_dim,
        value_dim,
        gates,
        ..
    } = *step;
    let arena = recorder.arena;
    let tiles = value_dim.div_ceil(columns(recorder.profile));
    let [query_start, key_start, value_start] = step.starts();
    let workgroups = recorder.shape.sequences * heads * tiles;
    let params = Params {
        workgroups,
        heads,
        tiles,
        shared_by: step.shared_by(),
        key_heads,
        key_dim,
        value_dim,
        channels: step.channels(),
        query_start,
        key_start,
        value_start,
        mixed_columns: recorder.columns(step.mixed),
        gates,
        beta_scale: step.rule.beta_scale(),
        query_scale: 1.0 / (key_dim as f32).sqrt(),
        rows_min,
        rows_max,
    };
    let mut bindings = vec![
        arena.metadata.read(),
        recorder.row_buffer(step.convolved).read(),
        recorder.row_buffer(step.mixed).read(),
        recorder.vector(step.decay).read(),
        recorder.vector(step.dt_bias).read(),
        arena.states[step.layer as usize].read_write(),
        recorder.row_buffer(step.out).read_write(),
    ];
    bindings.extend(step.skip.map(|skip| recorder.vector(skip).read()));
    recorder.dispatch(kernel, &params, &bindings, workgroups)
}

/// Every variant that [`encode`] can use.
pub(super) fn variants() -> Vec<Variant> {
    let sizes = (0..)
        .map(|power| SLICES << power)
        .take_while(|size| *size <= STATE_DIM_MAX);
    let profile = |class, lanes| Profile {
        subgroup_size_min: lanes,
        ..super::test_profile(class, Tier::T1, true)
    };
    let profiles = [
        profile(Class::Discrete, 32),
        profile(Class::Software, 4),
        profile(Class::Software, 8),
    ];
    let mut variants = Vec::new();
    for key_dim in sizes {
        for (is_delta, skip) in [(true, false), (false, false), (false, true)] {
            for profile in &profiles {
                let kernel = kernel(is_delta, skip, key_dim, profile);
                variants.push(Variant::new::<Params>(kernel, Params::FIELDS));
            }
        }
    }
    for key_dim in [RUN, STATE_DIM_MAX] {
        let kernels = [(true, false), (false, false), (false, true)]
            .map(|(is_delta, skip)| chunk_kernel(is_delta, skip, key_dim));
        variants.extend(kernels.map(|kernel| Variant::new::<Params>(kernel, Params::FIELDS)));
    }
    variants
}
