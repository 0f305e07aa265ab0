//! What is known of an adapter before it is opened, from wgpu and from the layers below it.
//!
//! A profile follows from these facts alone, so that tests need no adapter: they have those of GPUs that are not here.

use super::{hardware, texels};

/// Facts of an adapter.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) info: wgpu::AdapterInfo,
    pub(crate) features: wgpu::Features,
    pub(crate) limits: wgpu::Limits,
    /// Whether `unpack2x16float` and `pack2x16float` exist.
    pub(crate) half_conversion: bool,
    /// Whether storage buffers can also be read as images.
    pub(crate) texels: bool,
    /// The shapes and types of its cooperative matrices.
    pub(crate) matrices: Vec<wgpu::CooperativeMatrixProperties>,
    /// Whether kernels with matrices can be translated for its API on this system.
    pub(crate) has_translation: bool,
    /// Number of cores, if the driver tells.
    pub(crate) cores: Option<u32>,
    /// Whether the GPU multiplies and adds four signed bytes in one instruction.
    pub(crate) dots: bool,
    /// Whether it does so with four signed and four unsigned bytes.
    pub(crate) dots_of_mixed_signs: bool,
    /// Whether it is a GPU of Apple's since the A14 and M1 (Metal's family Apple7).
    pub(crate) is_apple: bool,
}

impl Facts {
    pub(crate) fn of(adapter: &wgpu::Adapter) -> Self {
        let info = adapter.get_info();
        let flags = adapter.get_downlevel_capabilities().flags;
        let (dots, dots_of_mixed_signs) = hardware::dots_of_bytes(adapter);
        Self {
            features: adapter.features(),
            limits: adapter.limits(),
            half_conversion: flags.contains(wgpu::DownlevelFlags::SHADER_F16_IN_F32),
            texels: texels::available(&info),
            matrices: adapter.cooperative_matrix_properties(),
            has_translation: match info.backend {
                wgpu::Backend::Vulkan => {
                    cfg!(any(target_os = "linux", target_os = "android", windows))
                }
                api => api == wgpu::Backend::Metal,
            },
            cores: hardware::cores(adapter),
            dots,
            dots_of_mixed_signs,
            is_apple: hardware::is_apple(adapter),
            info,
        }
    }

    /// Smallest and largest number of lanes of a subgroup.
    pub(crate) fn subgroup_sizes(&self) -> (u32, u32) {
        // wgpu reports what any GPU with Metal may have; Apple's have 32.
        if self.is_apple {
            (32, 32)
        } else {
            (self.info.subgroup_min_size, self.info.subgroup_max_size)
        }
    }

    /// Number of cores: the driver's, else that of its kind of GPU, if it is known.
    pub(crate) fn cores(&self) -> Option<u32> {
        self.cores
            .or_else(|| hardware::known_cores(self.info.vendor, self.info.device))
    }
}

#[cfg(test)]
mod tests;
