//! Every kernel of a product, for the tests of `shaders/`.

use super::super::super::device::{Class, Profile, Tier, Tuning};
use super::super::super::matrices::Matrices;
use super::super::{Variant, test_profile, weight_variants};
use super::kernel::{MatmulVariant, merge_kernel, narrow_kernel};
use super::shape::{MatmulShape, SplitK, Tiling};
use super::{MergeParams, NORM_ROWS_MAX, NarrowParams, Params};
use crate::plan::{Activation, WeightFormat};
use std::collections::BTreeSet;

/// Columns, in units of 8, and outputs with which every number of rows meets every tile, split or not.
const SIZES: [(u32, u32); 7] = [
    (64, 16),
    (64, 4096),
    (64, 1 << 13),
    (64, 1 << 14),
    (64, 1 << 16),
    (65, 1 << 16),
    (512, 4096),
];

/// One activation of each kind.
const ACTIVATIONS: [Activation; 3] = [
    Activation::Silu,
    Activation::GeluTanh,
    Activation::ClampedSwiglu {
        alpha: 1.0,
        limit: 1.0,
    },
];

/// Formats that are listed with splits, with fused steps and with every number of lanes: those only affect the loops
/// around the products. The first two are listed with unusual numbers of outputs too.
const FEW_FORMATS: [WeightFormat; 5] = [
    WeightFormat::Bf16,
    WeightFormat::Q4,
    WeightFormat::F32,
    WeightFormat::Q6K,
    WeightFormat::Mxfp4,
];

/// Every variant that [`super::encode`] and [`super::encode_fused`] can use.
pub(in super::super) fn variants() -> Vec<Variant> {
    let mut variants = vec![
        Variant::new::<MergeParams>(merge_kernel(false), MergeParams::FIELDS),
        Variant::new::<MergeParams>(merge_kernel(true), MergeParams::FIELDS),
        Variant::new::<NarrowParams>(narrow_kernel(), NarrowParams::FIELDS),
    ];
    // Profiles share kernels.
    let mut names = BTreeSet::new();
    for profile in profiles() {
        for product in products(&profile) {
            for product in product.with_neighbours() {
                for variant in product.in_every_format(&profile) {
                    if names.insert(variant.name()) {
                        variants.push(variant);
                    }
                }
            }
        }
    }
    variants
}

/// Profiles that select different kernels.
fn profiles() -> Vec<Profile> {
    let gpu = test_profile(Class::Discrete, Tier::T0, true);
    let mut two_outputs = gpu.clone();
    two_outputs.tuning = Tuning {
        product_outputs: 2,
        ..Tuning::USUAL
    };
    let mut bytes = gpu.clone();
    bytes.int8_activations = true;
    let mut texels = test_profile(Class::Software, Tier::T1, true);
    texels.texels = true;
    let software = test_profile(Class::Software, Tier::T0, true);
    let with_matrices = Matrices::TESTED.map(|matrices| Profile {
        matrices: Some(matrices),
        ..gpu.clone()
    });
    let mut profiles = vec![gpu, two_outputs, bytes, software, texels];
    profiles.extend(with_matrices);
    profiles
}

/// Products with every tile that a profile can choose, one for each combination with splits and partial groups.
fn products(profile: &Profile) -> Vec<MatmulVariant> {
    let mut found: Vec<MatmulVariant> = Vec::new();
    for rows in 1..=65 {
        for (eights, outputs) in SIZES {
            for deterministic in [false, true] {
                // Dense and quantized weights may have different tiles.
                for format in [WeightFormat::F32, WeightFormat::Q4] {
                    let shape = MatmulShape {
                        rows,
                        eights,
                        outputs,
                        format,
                    };
                    let product = MatmulVariant::plain(profile, deterministic, shape);
                    if !found.iter().any(|known| known.is_like(&product)) {
                        found.push(product);
                    }
                }
            }
        }
    }
    found
}

impl MatmulVariant {
    /// A product without bias, norm and activation.
    fn plain(profile: &Profile, deterministic: bool, shape: MatmulShape) -> Self {
        let tiling = Tiling::choose(profile, deterministic, &shape);
        Self {
            shape,
            tiling,
            is_split: SplitK::choose(profile, deterministic, tiling, &shape).is_split(),
            bias: false,
            norm: false,
            activation: None,
        }
    }

    /// Whether two products without bias, norm and activation have the same kernels.
    fn is_like(&self, other: &Self) -> bool {
        self.tiling == other.tiling
            && self.is_split == other.is_split
            && self.shape.eights % 4 == other.shape.eights % 4
    }

    /// The product with the biases, norms and activations that it can have. Activations are the same in every
    /// combination: each appears once.
    fn with_neighbours(self) -> Vec<Self> {
        let with_bias = Self { bias: true, ..self };
        let mut all = vec![self, with_bias];
        let Tiling::Rows { rows, .. } = self.tiling else {
            return all;
        };
        let norm = rows <= NORM_ROWS_MAX;
        if norm {
            all.push(Self { norm, ..with_bias });
        }
        if !self.is_split {
            all.extend(ACTIVATIONS.map(|activation| Self {
                norm,
                activation: Some(activation),
                ..with_bias
            }));
            all.push(Self {
                activation: Some(ACTIVATIONS[0]),
                ..self
            });
        }
        all
    }

    /// The kernels of the formats that are listed.
    fn in_every_format(self, profile: &Profile) -> Vec<Variant> {
        let mut variants = weight_variants(|format, half| {
            let product = self.in_format(format);
            let profile = Profile {
                half_conversion: half.half_conversion,
                ..profile.clone()
            };
            Variant::new::<Params>(product.kernel(&profile), Params::FIELDS)
        });
        variants.retain(|variant| {
            variant
                .format()
                .is_some_and(|format| self.in_format(format).is_listed())
        });
        variants
    }

    fn in_format(self, format: WeightFormat) -> Self {
        let shape = MatmulShape {
            format,
            ..self.shape
        };
        Self { shape, ..self }
    }

    /// Whether it is listed with its format. A bias only affects what follows the sums, so quantized formats are listed
    /// with bias only.
    fn is_listed(&self) -> bool {
        let format = self.shape.format;
        let fused = self.norm || self.activation.is_some();
        let (usual_lanes, usual_outputs) = match self.tiling {
            Tiling::Rows {
                rows,
                outputs,
                lanes,
            } => ([8, 16].contains(&lanes), rows > 8 || outputs == 4),
            Tiling::Matrices { matrices, .. } => (true, [32, 64].contains(&matrices.lanes)),
            _ => (true, true),
        };
        let is_shown = if usual_outputs {
            !self.is_split && !fused && usual_lanes || FEW_FORMATS.contains(&format)
        } else {
            !self.is_split && usual_lanes && FEW_FORMATS[..2].contains(&format)
        };
        is_shown && (self.bias || self.is_split || !format.is_quantised())
    }
}
