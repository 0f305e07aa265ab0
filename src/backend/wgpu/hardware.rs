//! Facts about the hardware that wgpu's API does not report, from the layers below it.

/// PCI's number for AMD, as Vulkan and DX12 report it.
pub(crate) const AMD: u32 = 0x1002;
/// PCI's number for Intel.
pub(crate) const INTEL: u32 = 0x8086;

/// Bytes available for weights and KV pool, and where the number comes from: Vulkan's memory budget (or heap size) of
/// the largest device-local heap, or half of it if that heap is the machine's memory (`is_shared`); the budget of DXGI;
/// Metal's recommended working set. `None` in a browser, where the engine tries.
pub(crate) fn memory(adapter: &wgpu::Adapter, is_shared: bool) -> Option<(u64, &'static str)> {
    vulkan::heap_bytes(adapter)
        .map(|(bytes, budgeted)| match (is_shared, budgeted) {
            (false, true) => (bytes, "Vulkan's memory budget"),
            (false, false) => (bytes, "the size of Vulkan's heap"),
            (true, true) => (bytes / 2, "half of Vulkan's memory budget"),
            (true, false) => (bytes / 2, "half of Vulkan's heap"),
        })
        .or_else(|| budget_bytes(adapter).map(|bytes| (bytes, BUDGET)))
}

/// The source of [`budget_bytes`].
const BUDGET: &str = if cfg!(windows) {
    "DXGI's budget"
} else {
    "Metal's recommended working set"
};

/// What DXGI grants this process of the memory that the GPU reaches fastest.
#[cfg(windows)]
#[allow(unsafe_code, reason = "wgpu's DX12 layer gives the adapter")]
fn budget_bytes(adapter: &wgpu::Adapter) -> Option<u64> {
    use windows::Win32::Graphics::Dxgi::DXGI_MEMORY_SEGMENT_GROUP_LOCAL;
    // SAFETY: the guard is only read.
    let hal = unsafe { adapter.as_hal::<wgpu::hal::api::Dx12>() }?;
    let info = hal
        .raw_adapter()
        .query_video_memory_info(DXGI_MEMORY_SEGMENT_GROUP_LOCAL)
        .ok()?;
    Some(info.Budget.saturating_sub(info.CurrentUsage))
}

/// What Metal recommends to use at most.
#[cfg(target_vendor = "apple")]
#[allow(unsafe_code, reason = "wgpu's Metal layer gives the device")]
fn budget_bytes(adapter: &wgpu::Adapter) -> Option<u64> {
    use objc2_metal::MTLDevice as _;
    // SAFETY: the guard is only read.
    let hal = unsafe { adapter.as_hal::<wgpu::hal::api::Metal>() }?;
    Some(hal.raw_device().recommendedMaxWorkingSetSize()).filter(|bytes| *bytes > 0)
}

#[cfg(not(any(windows, target_vendor = "apple")))]
fn budget_bytes(_adapter: &wgpu::Adapter) -> Option<u64> {
    None
}

/// Number of cores (AMD's compute units, NVIDIA's streaming multiprocessors, Apple's GPU cores), if the driver or the
/// system reports it.
pub(crate) fn cores(adapter: &wgpu::Adapter) -> Option<u32> {
    vulkan::cores(adapter).or_else(|| metal::cores(adapter))
}

/// Whether this is a GPU of Apple's since the A14 and M1.
pub(crate) fn is_apple(adapter: &wgpu::Adapter) -> bool {
    metal::is_apple(adapter)
}

/// Whether the GPU multiplies and adds four signed bytes in one instruction, and four of each sign. Only Vulkan's
/// drivers tell; Metal has no such instruction.
pub(crate) fn dots_of_bytes(adapter: &wgpu::Adapter) -> (bool, bool) {
    vulkan::dots_of_bytes(adapter).unwrap_or_default()
}

/// Intel's GPUs: their Xe cores (16 execution units each), and the device numbers of those with as many. The numbers
/// are those of Mesa's `include/pci_ids/iris_pci_ids.h`, the cores those of Intel's specifications; no driver of
/// Intel's tells them.
const INTEL_CORES: &[(u32, &[u32])] = &[
    // Battlemage: B580 and B60; B570; B50.
    (20, &[0xe20b, 0xe211]),
    (18, &[0xe20c]),
    (16, &[0xe212]),
    // Alchemist: A770 and A770M; A750; A580 and A730M; A550M; A380 and A370M; A310 and A350M.
    (32, &[0x56a0, 0x5690]),
    (28, &[0x56a1]),
    (24, &[0x56a2, 0x5691]),
    (16, &[0x5692]),
    (8, &[0x56a5, 0x5693]),
    (6, &[0x56a6, 0x5694]),
    // Lunar Lake, Arrow Lake H and Meteor Lake; the smaller Meteor Lake.
    (8, &[0x64a0, 0x7d51, 0x7d55]),
    (4, &[0x7d45]),
    // Tiger Lake and Alder Lake P with 96 execution units; desktops of Alder Lake and Raptor Lake with 32.
    (6, &[0x9a49, 0x46a6, 0x46a8]),
    (2, &[0x4680, 0x4690, 0xa780]),
];

/// Number of cores of a GPU whose driver does not report it.
pub(crate) fn known_cores(vendor: u32, device: u32) -> Option<u32> {
    if vendor != INTEL {
        return None;
    }
    let (cores, _) = INTEL_CORES
        .iter()
        .find(|(_, devices)| devices.contains(&device))?;
    Some(*cores)
}

#[cfg(target_vendor = "apple")]
#[allow(unsafe_code, reason = "wgpu's Metal layer and IOKit give raw handles")]
mod metal {
    use objc2_core_foundation::{CFNumber, CFRetained, CFString};
    use objc2_io_kit::{
        IOObjectRelease, IORegistryEntryIDMatching, IORegistryEntrySearchCFProperty,
        IOServiceGetMatchingService, kIOMainPortDefault, kIORegistryIterateParents,
        kIORegistryIterateRecursively,
    };
    use objc2_metal::{MTLDevice as _, MTLGPUFamily};

    pub(super) fn is_apple(adapter: &wgpu::Adapter) -> bool {
        // SAFETY: the guard is only read.
        unsafe { adapter.as_hal::<wgpu::hal::api::Metal>() }
            .is_some_and(|hal| hal.raw_device().supportsFamily(MTLGPUFamily::Apple7))
    }

    /// The property `gpu-core-count` of the device's entry in the registry of devices.
    pub(super) fn cores(adapter: &wgpu::Adapter) -> Option<u32> {
        // SAFETY: the guard is only read.
        let id = unsafe { adapter.as_hal::<wgpu::hal::api::Metal>() }?
            .raw_device()
            .registryID();
        let mut plane = [0; 128];
        for (to, from) in plane.iter_mut().zip(c"IOService".to_bytes_with_nul()) {
            *to = *from as std::ffi::c_char;
        }
        let key = CFString::from_static_str("gpu-core-count");
        // SAFETY: a dictionary made for an id matches entries by it, and nothing else is done with it. The entry is
        // released after its only use.
        let number = unsafe {
            let matching = IORegistryEntryIDMatching(id)?;
            let matching = CFRetained::cast_unchecked(matching);
            let entry = IOServiceGetMatchingService(kIOMainPortDefault, Some(matching));
            if entry == 0 {
                return None;
            }
            let options = kIORegistryIterateRecursively | kIORegistryIterateParents;
            let found =
                IORegistryEntrySearchCFProperty(entry, &raw mut plane, Some(&key), None, options);
            IOObjectRelease(entry);
            found?
        };
        let cores = number.downcast::<CFNumber>().ok()?.as_i32()?;
        u32::try_from(cores).ok().filter(|cores| *cores > 0)
    }
}

#[cfg(not(target_vendor = "apple"))]
mod metal {
    pub(super) fn is_apple(_adapter: &wgpu::Adapter) -> bool {
        false
    }

    pub(super) fn cores(_adapter: &wgpu::Adapter) -> Option<u32> {
        None
    }
}

#[cfg(any(target_os = "linux", target_os = "android", windows))]
#[allow(unsafe_code, reason = "wgpu's Vulkan layer gives raw handles")]
mod vulkan {
    use ash::vk;
    use std::ffi::CStr;

    /// What is read through the raw handles of an adapter; nothing of it is kept or destroyed.
    fn with<T>(
        adapter: &wgpu::Adapter,
        read: impl FnOnce(&ash::Instance, vk::PhysicalDevice, &dyn Fn(&CStr) -> bool) -> Option<T>,
    ) -> Option<T> {
        // SAFETY: the guard is only read.
        let hal = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
        let (instance, physical) = (
            hal.shared_instance().raw_instance(),
            hal.raw_physical_device(),
        );
        // SAFETY: `physical` was enumerated from `instance`, which the guard keeps alive.
        let extensions =
            unsafe { instance.enumerate_device_extension_properties(physical) }.ok()?;
        let has = |name: &CStr| {
            extensions
                .iter()
                .any(|found| found.extension_name_as_c_str() == Ok(name))
        };
        read(instance, physical, &has)
    }

    /// Bytes of the largest local heap, and whether they are a budget.
    pub(super) fn heap_bytes(adapter: &wgpu::Adapter) -> Option<(u64, bool)> {
        with(adapter, |instance, physical, has| {
            let budgeted = has(ash::ext::memory_budget::NAME);
            let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
            let mut properties = vk::PhysicalDeviceMemoryProperties2::default();
            if budgeted {
                properties = properties.push_next(&mut budget);
            }
            // SAFETY: wgpu needs Vulkan 1.1 or its extension for this call, and the chained struct outlives it.
            unsafe { instance.get_physical_device_memory_properties2(physical, &mut properties) };
            let memory = properties.memory_properties;
            let heaps = memory
                .memory_heaps
                .iter()
                .take(memory.memory_heap_count as usize)
                .enumerate();
            let local =
                heaps.filter(|(_, heap)| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
            let (index, heap) = local.max_by_key(|(_, heap)| heap.size)?;
            let left = budget.heap_budget[index].saturating_sub(budget.heap_usage[index]);
            Some((
                if budgeted {
                    left.min(heap.size)
                } else {
                    heap.size
                },
                budgeted,
            ))
        })
    }

    pub(super) fn cores(adapter: &wgpu::Adapter) -> Option<u32> {
        with(adapter, |instance, physical, has| {
            let mut amd = vk::PhysicalDeviceShaderCorePropertiesAMD::default();
            let mut nvidia = vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
            let mut properties = vk::PhysicalDeviceProperties2::default();
            if has(ash::amd::shader_core_properties::NAME) {
                properties = properties.push_next(&mut amd);
            } else if has(ash::nv::shader_sm_builtins::NAME) {
                properties = properties.push_next(&mut nvidia);
            } else {
                return None;
            }
            // SAFETY: as above; the device has the extension of the chained struct.
            unsafe { instance.get_physical_device_properties2(physical, &mut properties) };
            let amd = amd.shader_engine_count
                * amd.shader_arrays_per_engine_count
                * amd.compute_units_per_shader_array;
            [amd, nvidia.shader_sm_count]
                .into_iter()
                .find(|cores| *cores > 0)
        })
    }

    pub(super) fn dots_of_bytes(adapter: &wgpu::Adapter) -> Option<(bool, bool)> {
        with(adapter, |instance, physical, has| {
            let mut dots = vk::PhysicalDeviceShaderIntegerDotProductProperties::default();
            let mut properties = vk::PhysicalDeviceProperties2::default();
            // SAFETY: as above.
            unsafe { instance.get_physical_device_properties2(physical, &mut properties) };
            let is_core = properties.properties.api_version >= vk::API_VERSION_1_3;
            if !is_core && !has(ash::khr::shader_integer_dot_product::NAME) {
                return None;
            }
            properties = vk::PhysicalDeviceProperties2::default().push_next(&mut dots);
            // SAFETY: as above; the device has the extension of the chained struct.
            unsafe { instance.get_physical_device_properties2(physical, &mut properties) };
            let mixed = dots.integer_dot_product4x8_bit_packed_mixed_signedness_accelerated;
            Some((
                dots.integer_dot_product4x8_bit_packed_signed_accelerated == vk::TRUE,
                mixed == vk::TRUE,
            ))
        })
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", windows)))]
mod vulkan {
    pub(super) fn heap_bytes(_adapter: &wgpu::Adapter) -> Option<(u64, bool)> {
        None
    }

    pub(super) fn cores(_adapter: &wgpu::Adapter) -> Option<u32> {
        None
    }

    pub(super) fn dots_of_bytes(_adapter: &wgpu::Adapter) -> Option<(bool, bool)> {
        None
    }
}
