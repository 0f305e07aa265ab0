//! Compiles a kernel with Mesa's RADV for a chip that is not there.
#![allow(unsafe_code, reason = "ash is a thin layer over Vulkan's C interface")]

use super::listing::{self, Inner};
use ash::{khr, vk};
use folio::backend::wgpu::Variant;
use naga::valid::{Capabilities, SubgroupOperationSet, ValidationFlags, Validator};
use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Debian's and Fedora's names of the driver's manifest.
const MANIFESTS: [&str; 2] = [
    "/usr/share/vulkan/icd.d/radeon_icd.x86_64.json",
    "/usr/share/vulkan/icd.d/radeon_icd.json",
];

fn manifest() -> Option<&'static str> {
    MANIFESTS
        .into_iter()
        .find(|path| std::path::Path::new(path).exists())
}

/// Whether the driver is installed.
pub(crate) fn is_there() -> bool {
    manifest().is_some()
}

/// Variables of the environment are the process's: one test at a time chooses a chip.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A chip that RADV compiles for.
pub(crate) struct Chip {
    /// RADV's name for it.
    pub(crate) family: &'static str,
    /// What people call it.
    pub(crate) name: &'static str,
}

/// What the compiler says about a kernel.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) vector_registers: u64,
    pub(crate) spills: u64,
    pub(crate) scratch_bytes: u64,
    /// Workgroup memory.
    pub(crate) workgroup_bytes: u64,
    /// Subgroups that a SIMD unit holds at once.
    pub(crate) waves: u64,
    /// The loop that does the work, unless the compiler unrolled it.
    pub(crate) inner: Option<Inner>,
}

/// The compiler for one chip.
pub(crate) struct Compiler {
    device: ash::Device,
    executables: khr::pipeline_executable_properties::Device,
    instance: ash::Instance,
    /// Mesa's version.
    pub(crate) version: String,
    /// Whether it compiles cooperative matrices for the chip.
    pub(crate) has_matrices: bool,
    _entry: ash::Entry,
}

impl Compiler {
    /// Opens the chip.
    pub(crate) fn new(chip: &Chip) -> Self {
        // SAFETY: only tests that hold `alone` write variables or call Vulkan, whose drivers read them.
        unsafe {
            std::env::set_var(
                "VK_DRIVER_FILES",
                manifest().expect("the driver is installed"),
            );
            std::env::set_var(
                "VK_ICD_FILENAMES",
                manifest().expect("the driver is installed"),
            );
            std::env::set_var("RADV_FORCE_FAMILY", chip.family);
        }
        // SAFETY: the calls follow Vulkan's rules: structs outlive the calls that take them, the device is created
        // from the instance's first (and only) physical device with extensions that RADV has.
        unsafe {
            let entry = ash::Entry::load().expect("the Vulkan loader is installed");
            let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_3);
            let info = vk::InstanceCreateInfo::default().application_info(&application);
            let instance = entry.create_instance(&info, None).expect("an instance");
            let physical = instance
                .enumerate_physical_devices()
                .expect("devices are listed")[0];
            let mut driver = vk::PhysicalDeviceDriverProperties::default();
            instance.get_physical_device_properties2(
                physical,
                &mut vk::PhysicalDeviceProperties2::default().push_next(&mut driver),
            );
            let version = driver
                .driver_info_as_c_str()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let queues = [vk::DeviceQueueCreateInfo::default().queue_priorities(&[1.0])];
            // wgpu opens devices with these checks of buffers, which the hardware does.
            let mut reports = vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default();
            reports = reports.pipeline_executable_info(true);
            let mut robust =
                vk::PhysicalDeviceRobustness2FeaturesEXT::default().robust_buffer_access2(true);
            let mut matrices =
                vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true);
            let mut halves =
                vk::PhysicalDevice16BitStorageFeatures::default().storage_buffer16_bit_access(true);
            let mut core = vk::PhysicalDeviceVulkan12Features::default()
                .shader_float16(true)
                .vulkan_memory_model(true);
            let mut extensions = vec![
                khr::pipeline_executable_properties::NAME.as_ptr(),
                ash::ext::robustness2::NAME.as_ptr(),
            ];
            let has = instance
                .enumerate_device_extension_properties(physical)
                .expect("extensions are listed");
            let has_matrices = has
                .iter()
                .any(|has| has.extension_name_as_c_str() == Ok(khr::cooperative_matrix::NAME));
            let features = vk::PhysicalDeviceFeatures::default().robust_buffer_access(true);
            let mut info = vk::DeviceCreateInfo::default()
                .queue_create_infos(&queues)
                .enabled_features(&features)
                .push_next(&mut reports)
                .push_next(&mut robust);
            if has_matrices {
                extensions.push(khr::cooperative_matrix::NAME.as_ptr());
                info = info
                    .push_next(&mut matrices)
                    .push_next(&mut halves)
                    .push_next(&mut core);
            }
            let info = info.enabled_extension_names(&extensions);
            let device = instance
                .create_device(physical, &info, None)
                .expect("RADV opens a chip that is not there");
            let executables = khr::pipeline_executable_properties::Device::new(&instance, &device);
            Self {
                device,
                executables,
                instance,
                version,
                has_matrices,
                _entry: entry,
            }
        }
    }

    /// Compiles a kernel as wgpu would.
    pub(crate) fn compile(&self, variant: &Variant) -> Report {
        let (words, storages) = spirv(variant);
        let binding = |binding: u32| {
            let kind = match binding {
                0 => vk::DescriptorType::UNIFORM_BUFFER_DYNAMIC,
                _ => vk::DescriptorType::STORAGE_BUFFER,
            };
            vk::DescriptorSetLayoutBinding::default()
                .binding(binding)
                .descriptor_type(kind)
                .descriptor_count(1)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
        };
        let bindings: Vec<_> = (0..=storages).map(binding).collect();
        let device = &self.device;
        // SAFETY: as above; objects are destroyed in the reverse order, after their last use.
        unsafe {
            let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
            let sets = [device
                .create_descriptor_set_layout(&info, None)
                .expect("a set layout")];
            let info = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets);
            let layout = device
                .create_pipeline_layout(&info, None)
                .expect("a pipeline layout");
            let info = vk::ShaderModuleCreateInfo::default().code(&words);
            let module = device.create_shader_module(&info, None).expect("a module");
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .flags(vk::PipelineShaderStageCreateFlags::ALLOW_VARYING_SUBGROUP_SIZE)
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(module)
                .name(c"main");
            let flags = vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR
                | vk::PipelineCreateFlags::CAPTURE_INTERNAL_REPRESENTATIONS_KHR;
            let info = vk::ComputePipelineCreateInfo::default()
                .flags(flags)
                .stage(stage)
                .layout(layout);
            let pipeline =
                device.create_compute_pipelines(vk::PipelineCache::null(), &[info], None);
            let pipeline =
                pipeline.unwrap_or_else(|(_, error)| panic!("{}: {error}", variant.name()))[0];
            let report = self.report(pipeline);
            device.destroy_pipeline(pipeline, None);
            device.destroy_shader_module(module, None);
            device.destroy_pipeline_layout(layout, None);
            device.destroy_descriptor_set_layout(sets[0], None);
            report
        }
    }

    /// # Safety
    ///
    /// The pipeline is one of this device, with captured statistics and representations.
    unsafe fn report(&self, pipeline: vk::Pipeline) -> Report {
        let info = vk::PipelineExecutableInfoKHR::default().pipeline(pipeline);
        // SAFETY: as the caller promises; the second call fills buffers of the sizes that the first one gave.
        let (statistics, listing) = unsafe {
            let statistics = self
                .executables
                .get_pipeline_executable_statistics(&info)
                .expect("statistics");
            let get = self
                .executables
                .fp()
                .get_pipeline_executable_internal_representations_khr;
            let mut count = 0;
            let result = get(
                self.device.handle(),
                &info,
                &mut count,
                std::ptr::null_mut(),
            );
            result.result().expect("representations are counted");
            let mut found =
                vec![vk::PipelineExecutableInternalRepresentationKHR::default(); count as usize];
            get(self.device.handle(), &info, &mut count, found.as_mut_ptr())
                .result()
                .expect("sizes");
            let mut texts: Vec<Vec<u8>> =
                found.iter().map(|found| vec![0; found.data_size]).collect();
            for (found, text) in found.iter_mut().zip(&mut texts) {
                found.p_data = text.as_mut_ptr().cast();
            }
            get(self.device.handle(), &info, &mut count, found.as_mut_ptr())
                .result()
                .expect("texts");
            let assembly = |name: &CStr| name.to_string_lossy().contains("ssembly");
            let at = found
                .iter()
                .position(|found| found.name_as_c_str().is_ok_and(assembly))
                .expect("a listing");
            (statistics, String::from_utf8_lossy(&texts[at]).into_owned())
        };
        let number = |name: &str| {
            let found = statistics.iter().find(|found| {
                found
                    .name_as_c_str()
                    .is_ok_and(|n| n.to_string_lossy() == name)
            });
            // SAFETY: all of RADV's statistics are of this kind.
            unsafe {
                found
                    .unwrap_or_else(|| panic!("RADV reports {name}"))
                    .value
                    .u64
            }
        };
        Report {
            vector_registers: number("VGPRs"),
            spills: number("Spilled VGPRs") + number("Spilled SGPRs"),
            scratch_bytes: number("Scratch size"),
            workgroup_bytes: number("LDS size"),
            waves: number("Subgroups per SIMD"),
            inner: listing::inner_loop(&listing),
        }
    }
}

impl Drop for Compiler {
    fn drop(&mut self) {
        // SAFETY: everything made from the device has been destroyed.
        unsafe {
            self.device.destroy_device(None);
            self.instance.destroy_instance(None);
        }
    }
}

/// The kernel as SPIR-V, the way wgpu translates trusted shaders for Vulkan 1.3, and its number of storage buffers.
fn spirv(variant: &Variant) -> (Vec<u32>, u32) {
    let name = variant.name();
    let text = variant
        .text()
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    let module =
        naga::front::wgsl::parse_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::all());
    validator.subgroup_stages(naga::valid::ShaderStages::COMPUTE);
    validator.subgroup_operations(SubgroupOperationSet::all());
    let info = validator
        .validate(&module)
        .unwrap_or_else(|error| panic!("{name}: {error:?}"));
    let storages = module
        .global_variables
        .iter()
        .filter(|(_, variable)| matches!(variable.space, naga::AddressSpace::Storage { .. }));
    let storages = storages.count() as u32;
    let options = naga::back::spv::Options {
        lang_version: (1, 6),
        flags: naga::back::spv::WriterFlags::empty(),
        zero_initialize_workgroup_memory: naga::back::spv::ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: false,
        emit_int_div_checks: false,
        ..Default::default()
    };
    let words = variant.spirv().unwrap_or_else(|| {
        naga::back::spv::write_vec(&module, &info, &options, None)
            .map_err(|error| error.to_string())
    });
    (
        words.unwrap_or_else(|error| panic!("{name}: {error}")),
        storages,
    )
}
