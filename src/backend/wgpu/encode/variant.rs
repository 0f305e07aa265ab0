//! Kernel variants for the tests of `shaders/`: every variant that any encoder can use, without a device.

use super::super::device::{Class, Profile, Tier, Tuning};
use super::super::matrices::Matrices;
use super::super::pipelines::Kernel;
use super::super::preprocess::{HALVES, MATRICES};
use crate::plan::WeightFormat;
use bytemuck::Pod;

/// A profile for listing variants.
pub(crate) fn test_profile(class: Class, tier: Tier, half_conversion: bool) -> Profile {
    let bytes = 128 << 20;
    let subgroup_size_min = if tier >= Tier::T1 { 4 } else { 0 };
    Profile {
        tier,
        class,
        binding_bytes_max: bytes,
        buffer_bytes_max: bytes,
        half_conversion,
        texels: false,
        subgroup_size_min,
        matrices: (tier >= Tier::T2).then_some(Matrices::USUAL),
        cores: class.usual_cores(),
        int8_activations: false,
        tuning: Tuning::USUAL,
    }
}

/// One variant per weight format, and two that convert halves without `unpack2x16float`.
pub(crate) fn weight_variants(make: impl Fn(WeightFormat, &Profile) -> Variant) -> Vec<Variant> {
    let soft = [WeightFormat::F16, WeightFormat::Q4].map(|format| (format, false));
    let formats = WeightFormat::ALL
        .into_iter()
        .map(|format| (format, true))
        .chain(soft);
    formats
        .map(|(format, half)| Variant {
            format: Some(format),
            ..make(format, &test_profile(Class::Discrete, Tier::T0, half))
        })
        .collect()
}

/// A kernel variant for tests, which needs no device.
#[derive(Clone, Debug)]
pub struct Variant {
    pub(crate) kernel: Kernel,
    pub(crate) fields: &'static [(&'static str, usize)],
    pub(crate) params_bytes: usize,
    format: Option<WeightFormat>,
}

impl Variant {
    /// `kernel` with params of type `P`.
    pub(crate) fn new<P: Pod>(kernel: Kernel, fields: &'static [(&'static str, usize)]) -> Self {
        Self {
            kernel,
            fields,
            params_bytes: size_of::<P>(),
            format: None,
        }
    }

    /// Name of the variant: stem and defines.
    pub fn name(&self) -> String {
        self.kernel.to_string()
    }

    /// Shader stem.
    pub fn stem(&self) -> &'static str {
        self.kernel.stem
    }

    /// Whether it uses subgroup operations.
    pub fn subgroups(&self) -> bool {
        self.is_defined("SUBGROUPS")
    }

    /// Whether it reads buffers as images; never in a browser.
    pub fn texels(&self) -> bool {
        self.is_defined("TEXELS")
    }

    /// Whether it computes with halves.
    pub fn halves(&self) -> bool {
        self.is_defined(HALVES)
    }

    /// Whether it uses cooperative matrices, for which Vulkan gets SPIR-V of our own: [`Variant::spirv`].
    pub fn matrices(&self) -> bool {
        self.is_defined(MATRICES)
    }

    /// Whether Metal may get it: its matrices have 8 rows and columns, and are loaded by pointers to halves.
    pub fn is_for_metal(&self) -> bool {
        !self.matrices() || self.is_defined("SCALAR_TILES")
    }

    /// The module that Vulkan gets, if it is not wgpu that translates the kernel.
    pub fn spirv(&self) -> Option<Result<Vec<u32>, String>> {
        #[cfg(any(target_os = "linux", target_os = "android", windows))]
        if self.matrices() {
            return Some(
                self.text()
                    .and_then(|text| super::super::spirv::translate(&text)),
            );
        }
        None
    }

    /// Format of the weight that it multiplies with or looks up.
    pub fn format(&self) -> Option<WeightFormat> {
        self.format
    }

    /// The number defined as `name`.
    pub fn number(&self, name: &str) -> Option<u32> {
        let numbers = self
            .kernel
            .defines
            .iter()
            .filter(|(define, _)| *define == name);
        numbers.filter_map(|(_, number)| *number).next()
    }

    /// Whether `define` is defined.
    pub fn is_defined(&self, define: &str) -> bool {
        self.kernel.defines.iter().any(|(name, _)| *name == define)
    }

    /// The preprocessed WGSL.
    pub fn text(&self) -> Result<String, String> {
        super::super::preprocess::expand(self.kernel.stem, &self.kernel.defines)
    }

    /// Name and byte offset of every field of the params struct.
    pub fn fields(&self) -> &'static [(&'static str, usize)] {
        self.fields
    }

    /// Bytes of the params struct.
    pub fn params_bytes(&self) -> usize {
        self.params_bytes
    }
}
