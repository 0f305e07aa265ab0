//! Cooperative matrices: small products that a subgroup computes as one, on a GPU's matrix units.
//!
//! Products of many rows use them where Vulkan or Metal has them for halves with sums of f32
//! (`shaders/common/tile_matrices.wgsl`).

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
    /// Rows and columns: 8 or 16.
    pub(crate) size: u32,
    /// Lanes that a subgroup of their kernels is expected to have. If it has another number, they take more passes.
    pub(crate) lanes: u32,
    /// Whether they are loaded by pointers to halves, not to vectors of halves: Metal's.
    pub(crate) scalar_tiles: bool,
}

impl Matrices {
    /// Those of most GPUs.
    pub(crate) const USUAL: Self = Self {
        size: 16,
        lanes: 32,
        scalar_tiles: false,
    };

    /// Those of Mesa's software adapter, on which tests run.
    pub(crate) const EIGHT: Self = Self {
        size: 8,
        lanes: 8,
        scalar_tiles: false,
    };
    /// Those of Apple's GPUs.
    pub(crate) const APPLE: Self = Self {
        size: 8,
        lanes: 32,
        scalar_tiles: true,
    };
    /// All that are tested: NVIDIA's, AMD's, Intel's, a software adapter's, and Apple's.
    pub(crate) const TESTED: [Self; 5] = [
        Self::USUAL,
        Self {
            lanes: 64,
            ..Self::USUAL
        },
        Self {
            lanes: 16,
            ..Self::USUAL
        },
        Self::EIGHT,
        Self::APPLE,
    ];

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
            matrices_down: rows / down / self.size,
            matrices_across: columns / across / self.size,
        }
    }

    /// Those of an adapter, if its kernels may use them.
    pub(crate) fn of(adapter: &wgpu::Adapter) -> Option<Self> {
        let (info, limits) = (adapter.get_info(), adapter.limits());
        let has_translation = match info.backend {
            wgpu::Backend::Vulkan => cfg!(any(target_os = "linux", target_os = "android", windows)),
            api => api == wgpu::Backend::Metal,
        };
        let is_usable = has_translation
            && adapter.features().contains(features(info.backend))
            && limits.max_compute_workgroup_storage_size >= WORKGROUP_BYTES;
        if !is_usable {
            return None;
        }
        let size = adapter
            .cooperative_matrix_properties()
            .into_iter()
            .filter(|found| {
                let types = (found.ab_type, found.cr_type);
                types
                    == (
                        wgpu::CooperativeScalarType::F16,
                        wgpu::CooperativeScalarType::F32,
                    )
            })
            .filter_map(square)
            .max()?;
        Some(Self {
            size,
            lanes: expected_lanes(&info),
            scalar_tiles: info.backend == wgpu::Backend::Metal,
        })
    }
}

fn square(found: wgpu::CooperativeMatrixProperties) -> Option<u32> {
    let sizes = [found.m_size, found.n_size, found.k_size];
    [16, 8].into_iter().find(|size| sizes == [*size; 3])
}

/// AMD's drivers choose between 32 and 64 lanes, and mostly choose 64; Intel's between 8 and 32.
fn expected_lanes(info: &wgpu::AdapterInfo) -> u32 {
    const AMD: u32 = 0x1002;
    let usual = if info.vendor == AMD { 64 } else { 32 };
    usual
        .clamp(info.subgroup_min_size, info.subgroup_max_size)
        .clamp(8, 128)
}
