//! Every kernel of attention, for the tests of `shaders/`.

use super::super::super::device::{Class, Profile, Tier};
use super::super::super::matrices::Matrices;
use super::super::{Variant, test_profile};
use super::kernel::{AttendOptions, AttendVariant, merge_kernel};
use super::work::head_rows_max;
use super::{HEAD_DIM_USUAL, Params, ROWS_MAX, TILE_ROWS};
use crate::plan::KvFormat;
use crate::plan::check::LATENT_DIM_MAX;

/// Small, odd, usual and the largest sizes of heads.
const HEAD_DIMS: [u32; 6] = [8, 96, 128, 256, 512, LATENT_DIM_MAX];

const NONE: AttendOptions = AttendOptions {
    softcap: false,
    alibi: false,
    sinks: false,
    chunks: false,
};
const ALL: AttendOptions = AttendOptions {
    softcap: true,
    alibi: true,
    sinks: true,
    chunks: true,
};
const SINKS: AttendOptions = AttendOptions {
    sinks: true,
    ..NONE
};

/// Options and formats that are listed.
const CASES: [(AttendOptions, KvFormat); 7] = [
    (NONE, KvFormat::F16),
    (ALL, KvFormat::F16),
    (SINKS, KvFormat::F32),
    (NONE, KvFormat::Q8),
    (ALL, KvFormat::Q8),
    (NONE, KvFormat::Fp8),
    (ALL, KvFormat::Fp8),
];

/// Every variant that [`super::encode`] can use.
pub(in super::super) fn variants() -> Vec<Variant> {
    let mut variants = Vec::new();
    for profile in profiles() {
        for head_dim in HEAD_DIMS {
            for rows in [1, 2, 4, 8, TILE_ROWS] {
                if !has_items(&profile, head_dim, rows) {
                    continue;
                }
                let profile = Profile {
                    half_conversion: rows != 4,
                    ..profile.clone()
                };
                variants.extend(CASES.map(|case| variant(case, head_dim, rows, &profile)));
            }
        }
    }
    for profile in profiles_with_matrices() {
        for head_dim in [8, 128, 256] {
            for case in CASES {
                if case.1 != KvFormat::F32 {
                    variants.push(variant(case, head_dim, TILE_ROWS, &profile));
                }
            }
        }
    }
    for sinks in [false, true] {
        let kernel = merge_kernel(sinks, 128);
        variants.push(Variant::new::<Params>(kernel, Params::FIELDS));
    }
    variants
}

/// Profiles that select different kernels.
fn profiles() -> [Profile; 4] {
    let plain = test_profile(Class::Discrete, Tier::T0, true);
    let mut subgroups = test_profile(Class::Discrete, Tier::T1, true);
    subgroups.subgroup_size_min = 32;
    let serial = test_profile(Class::Software, Tier::T1, true);
    let mut texels = serial.clone();
    texels.texels = true;
    [plain, subgroups, serial, texels]
}

fn profiles_with_matrices() -> impl Iterator<Item = Profile> {
    Matrices::TESTED.into_iter().map(|matrices| Profile {
        matrices: Some(matrices),
        subgroup_size_min: matrices.lanes,
        ..test_profile(Class::Discrete, Tier::T2, true)
    })
}

/// Whether there are items of `rows` packed rows.
fn has_items(profile: &Profile, head_dim: u32, rows: u32) -> bool {
    let is_too_large = head_dim > HEAD_DIM_USUAL && rows > head_rows_max(head_dim);
    let is_tile = rows > ROWS_MAX;
    !(is_too_large || profile.texels && is_tile)
}

fn variant(
    (options, format): (AttendOptions, KvFormat),
    head_dim: u32,
    rows: u32,
    profile: &Profile,
) -> Variant {
    let variant = AttendVariant {
        options,
        head_dim,
        rows,
        format,
    };
    Variant::new::<Params>(variant.kernel(profile), Params::FIELDS)
}
