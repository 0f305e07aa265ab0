//! Cooperative matrices: small products that a subgroup computes as one, on a GPU's matrix units.
//!
//! Products of many rows use them where Vulkan or Metal has them for halves with sums of f32
//! (`shaders/common/tile_matrices.wgsl`).

use super::facts::Facts;
use super::hardware;

/// What [`Matrices`] need of an adapter.
pub(crate) fn features(api: wgpu::Backend) -> wgpu::Features {
    let usual = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX | wgpu::Features::SHADER_F16;
    if needs_own_spirv(api) {
        usual | wgpu::Features::PASSTHROUGH_SHADERS
    } else {
        usual
    }
}

/// Whether their kernels are translated by `spirv.rs` instead of wgpu, which misses Vulkan's memory model.
pub(crate) fn needs_own_spirv(api: wgpu::Backend) -> bool {
    api == wgpu::Backend::Vulkan
}

/// Workgroup memory of their kernels: more than WebGPU's default limit, less than any GPU with matrix units has.
pub(crate) const WORKGROUP_BYTES: u32 = 32 << 10;

/// Invocations of a workgroup of their kernels.
pub(crate) const WORKGROUP: u32 = 128;

/// Subgroups below each other and beside each other, and the matrices of each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) down: u32,
    pub(crate) across: u32,
    pub(crate) matrices_down: u32,
    pub(crate) matrices_across: u32,
}

/// The cooperative matrices of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Matrices {
    /// Rows of the first factor and of the sums (Vulkan's M): 8 or 16.
    pub(crate) height: u32,
    /// All their other rows and columns (Vulkan's N and K): 8 or 16.
    pub(crate) size: u32,
    /// Lanes that a subgroup of their kernels is expected to have. If it has another number, they take more passes.
    pub(crate) lanes: u32,
    /// Whether they are loaded by pointers to halves, not to vectors of halves: Metal's.
    pub(crate) scalar_tiles: bool,
}

impl Matrices {
    /// Those of most GPUs.
    pub(crate) const USUAL: Self = Self {
        height: 16,
        size: 16,
        lanes: 32,
        scalar_tiles: false,
    };

    /// Those of Mesa's software adapter, on which tests run.
    pub(crate) const EIGHT: Self = Self {
        height: 8,
        size: 8,
        lanes: 8,
        scalar_tiles: false,
    };
    /// Those of Apple's GPUs.
    pub(crate) const APPLE: Self = Self {
        height: 8,
        size: 8,
        lanes: 32,
        scalar_tiles: true,
    };
    /// Those of Intel's GPUs since Xe2.
    pub(crate) const INTEL: Self = Self {
        height: 8,
        size: 16,
        lanes: 16,
        scalar_tiles: false,
    };
    /// All that are tested: NVIDIA's, AMD's, Intel's, a software adapter's, and Apple's.
    pub(crate) const TESTED: [Self; 5] = [
        Self::USUAL,
        Self {
            lanes: 64,
            ..Self::USUAL
        },
        Self::INTEL,
        Self::EIGHT,
        Self::APPLE,
    ];

    /// A shader of its own, with these instead of matrices of 16 rows and columns.
    pub(crate) fn named_in(self, text: &str) -> String {
        let Self { height, size, .. } = self;
        text.replace("16x16<f16, A>", &format!("{height}x{height}<f16, A>"))
            .replace("16x16<f16, B>", &format!("{size}x{size}<f16, B>"))
            .replace("16x16<f32, C>", &format!("{height}x{height}<f32, C>"))
    }

    /// Subgroups of a workgroup of their kernels.
    pub(crate) fn subgroups(self) -> u32 {
        WORKGROUP / self.lanes
    }

    /// How the subgroups of a workgroup share `rows` × `columns` results. A subgroup's part is about as high as wide,
    /// because it loads as many values as it has rows and columns.
    pub(crate) fn grid(self, rows: u32, columns: u32) -> Grid {
        let subgroups = self.subgroups();
        let down = [4, 2]
            .into_iter()
            .find(|down| down * down * (columns / rows) <= subgroups)
            .unwrap_or(1);
        let across = subgroups / down;
        Grid {
            down,
            across,
            matrices_down: rows / down / self.height,
            matrices_across: columns / across / self.size,
        }
    }

    /// Those of an adapter, if its kernels may use them.
    pub(crate) fn of(facts: &Facts) -> Option<Self> {
        let api = facts.info.backend;
        let is_usable = facts.features.contains(features(api))
            && facts.limits.max_compute_workgroup_storage_size >= WORKGROUP_BYTES
            && facts.has_translation
            && has_units(facts);
        if !is_usable {
            return None;
        }
        let sums_of_halves = facts.matrices.iter().filter(|found| {
            found.ab_type == wgpu::CooperativeScalarType::F16
                && found.cr_type == wgpu::CooperativeScalarType::F32
        });
        let (size, height) = sums_of_halves.filter_map(shape).max()?;
        Some(Self {
            height,
            size,
            lanes: expected_lanes(facts),
            scalar_tiles: api == wgpu::Backend::Metal,
        })
    }
}

/// The size and height of matrices that the kernels can use.
fn shape(found: &wgpu::CooperativeMatrixProperties) -> Option<(u32, u32)> {
    match (found.m_size, found.n_size, found.k_size) {
        (16, 16, 16) => Some((16, 16)),
        (8, 16, 16) => Some((16, 8)),
        (8, 8, 8) => Some((8, 8)),
        _ => None,
    }
}

/// Whether a GPU that offers matrices has units for them which are faster than its other ones.
fn has_units(facts: &Facts) -> bool {
    match facts.info.vendor {
        // AMD's own driver emulates matrices on RDNA 1 and 2, which is slow (llama.cpp #11074). Since RDNA 3, a GPU
        // has dot products of bytes of which one is signed.
        hardware::AMD => facts.dots_of_mixed_signs,
        // Before Xe2, subgroups have from 8 lanes on. On discrete GPUs of that time (Alchemist), products by matrices
        // are slower than others (llama.cpp #24404); on integrated ones of the same time they are not.
        hardware::INTEL => {
            facts.subgroup_sizes().0 >= 16
                || facts.info.device_type == wgpu::DeviceType::IntegratedGpu
        }
        // Of Metal's GPUs only Apple's own have units since the A14 and M1; wgpu also offers them for others.
        _ => facts.info.backend != wgpu::Backend::Metal || facts.is_apple,
    }
}

/// AMD's drivers choose between 32 and 64 lanes, and mostly choose 64; Intel's between 8 and 32.
fn expected_lanes(facts: &Facts) -> u32 {
    let usual = match facts.info.vendor {
        hardware::AMD => 64,
        hardware::INTEL => 16,
        _ => 32,
    };
    let (min, max) = facts.subgroup_sizes();
    usual.clamp(min, max).clamp(8, 128)
}
