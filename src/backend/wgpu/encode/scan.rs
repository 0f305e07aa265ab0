//! `StateScan` → one dispatch, one workgroup per sequence, head and a few columns of its values.

use super::super::super::BackendError;
use super::super::device::{Class, Profile, Tier};
use super::super::pipelines::Kernel;
use super::attend::{is_serial, serial_lanes};
use super::{Recorder, Variant, params};
use crate::plan::check::STATE_DIM_MAX;
use crate::plan::{ScanRule, StateScan};

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
    }
}

/// Columns of the values, and slices of the keys, of a workgroup of `state_scan`; as in the shader.
const COLUMNS: u32 = 16;
const SLICES: u32 = 8;

/// Columns of the values of a workgroup.
fn columns(profile: &Profile) -> u32 {
    if is_serial(profile) { serial_lanes(profile) } else { COLUMNS }
}

fn kernel(is_delta: bool, skip: bool, key_dim: u32, profile: &Profile) -> Kernel {
    // Powers of two, so that there are few variants.
    let each = |lanes: u32| key_dim.div_ceil(lanes).next_power_of_two();
    let kernel = if is_serial(profile) {
        let lanes = serial_lanes(profile);
        let kernel = Kernel::new("state_scan_serial").define("SUBGROUPS");
        kernel.number("LANES", lanes).number("KEY_RUNS", each(lanes))
    } else {
        Kernel::new("state_scan").number("KEYS_EACH", each(SLICES))
    };
    kernel.define_if(is_delta, "DELTA").define_if(skip, "SKIP")
}

/// Records the dispatch.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &StateScan) -> Result<(), BackendError> {
    let StateScan { heads, key_heads, key_dim, value_dim, gates, .. } = *step;
    let (arena, keys) = (recorder.arena, key_heads * key_dim);
    let tiles = value_dim.div_ceil(columns(recorder.profile));
    let (beta_scale, [query_start, key_start, value_start]) = match step.rule {
        ScanRule::Delta { beta_scale } => (beta_scale, [0, keys, 2 * keys]),
        ScanRule::Mamba2 => (0.0, [heads * value_dim + keys, heads * value_dim, 0]),
    };
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
        beta_scale,
        query_scale: 1.0 / (key_dim as f32).sqrt(),
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
    let is_delta = matches!(step.rule, ScanRule::Delta { .. });
    let kernel = kernel(is_delta, step.skip.is_some(), key_dim, recorder.profile);
    recorder.dispatch(&kernel, &params, &bindings, workgroups)
}

/// Every variant that [`encode`] can use.
pub(super) fn variants() -> Vec<Variant> {
    let sizes = (0..).map(|power| SLICES << power).take_while(|size| *size <= STATE_DIM_MAX);
    let profile = |class, lanes| Profile { subgroup_size_min: lanes, ..super::test_profile(class, Tier::T1, true) };
    let profiles = [profile(Class::Discrete, 32), profile(Class::Software, 4), profile(Class::Software, 8)];
    let mut variants = Vec::new();
    for key_dim in sizes {
        for (is_delta, skip) in [(true, false), (false, false), (false, true)] {
            for profile in &profiles {
                let kernel = kernel(is_delta, skip, key_dim, profile);
                variants.push(Variant::new::<Params>(kernel, Params::FIELDS));
            }
        }
    }
    variants
}
