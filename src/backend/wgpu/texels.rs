//! Buffers that kernels can also read as an image, for Mesa's llvmpipe.
//!
//! llvmpipe turns every load of a storage buffer into a scalar loop over the lanes of a subgroup, with a branch and a
//! trip through the stack for each lane. A load of a storage image is plain vector code instead: eight lanes fetch
//! 16 bytes each in a twelfth of the time. So with that driver, a buffer and a linear image are bound to the same
//! memory: steps write the buffer as usual, and the kernels of the software class read the image ([`TEXELS_WIDTH`]
//! vectors of 16 bytes per row), with no copy and the same byte layout.
//!
//! wgpu does not know that the two share memory. That is safe here: the driver runs the commands of its single queue
//! one after the other, each to completion, and its images have no hidden layouts. This module only handles Vulkan
//! objects, not plans or kernels.

/// Vectors of 16 bytes per row of the image; `shaders/common/texel.wgsl` uses the same number.
pub(crate) const TEXELS_WIDTH: u32 = 4096;

const TEXEL_BYTES: u64 = 16;

/// Maximum bytes of a buffer whose image stays within WebGPU's default limit of 8192 rows.
pub(crate) const BYTES_MAX: u64 = 8192 * TEXELS_WIDTH as u64 * TEXEL_BYTES;

/// A buffer and the image of the same bytes.
#[cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, reason = "only Linux has the driver")
)]
pub(crate) struct Aliased {
    pub(crate) buffer: wgpu::Buffer,
    pub(crate) texels: wgpu::TextureView,
}

/// Whether buffers of this device can be read as images.
pub(crate) fn available(info: &wgpu::AdapterInfo) -> bool {
    let lanes = (info.subgroup_min_size, info.subgroup_max_size);
    cfg!(target_os = "linux")
        && info.backend == wgpu::Backend::Vulkan
        && info.device_type == wgpu::DeviceType::Cpu
        && info.driver == "llvmpipe"
        && lanes == (8, 8)
}

/// Whether creating a buffer with its image works in practice.
pub(crate) fn works(device: &wgpu::Device) -> bool {
    let usage =
        wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC;
    create(
        device,
        &wgpu::BufferDescriptor {
            label: None,
            size: 256,
            usage,
            mapped_at_creation: false,
        },
    )
    .is_some()
}

/// Creates a storage buffer of at most [`BYTES_MAX`] bytes with its image; `None` if memory is exhausted.
pub(crate) fn create(
    device: &wgpu::Device,
    descriptor: &wgpu::BufferDescriptor<'_>,
) -> Option<Aliased> {
    let rows = descriptor
        .size
        .div_ceil(u64::from(TEXELS_WIDTH) * TEXEL_BYTES);
    assert!(
        descriptor.size > 0 && descriptor.size <= BYTES_MAX,
        "the arena keeps buffers within the binding limit"
    );
    vulkan::create(device, descriptor, u32::try_from(rows).ok()?)
}

#[cfg(not(target_os = "linux"))]
mod vulkan {
    pub(super) fn create(
        _: &wgpu::Device,
        _: &wgpu::BufferDescriptor<'_>,
        _: u32,
    ) -> Option<super::Aliased> {
        None
    }
}

#[cfg(target_os = "linux")]
#[allow(
    unsafe_code,
    reason = "two Vulkan resources on one piece of memory are beyond wgpu's own calls"
)]
mod vulkan {
    use super::{Aliased, TEXEL_BYTES, TEXELS_WIDTH};
    use ash::vk;
    use std::sync::Arc;
    use wgpu::hal;

    type Vulkan = hal::api::Vulkan;

    /// The Vulkan objects, destroyed when neither wgpu resource is in use any more.
    struct Memory {
        device: ash::Device,
        buffer: vk::Buffer,
        image: vk::Image,
        memory: vk::DeviceMemory,
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: wgpu calls the drop callbacks that hold this after the last use of either resource, before it
            // destroys the device. Handles that were never made are null, which Vulkan ignores.
            unsafe {
                self.device.destroy_image(self.image, None);
                self.device.destroy_buffer(self.buffer, None);
                self.device.free_memory(self.memory, None);
            }
        }
    }

    impl Memory {
        fn new(device: &ash::Device, bytes: u64, height: u32) -> Option<Self> {
            let null = (
                vk::Buffer::null(),
                vk::Image::null(),
                vk::DeviceMemory::null(),
            );
            let mut made = Self {
                device: device.clone(),
                buffer: null.0,
                image: null.1,
                memory: null.2,
            };
            let usage = vk::BufferUsageFlags::STORAGE_BUFFER
                | vk::BufferUsageFlags::TRANSFER_SRC
                | vk::BufferUsageFlags::TRANSFER_DST;
            let buffer = vk::BufferCreateInfo::default().size(bytes).usage(usage);
            let image = vk::ImageCreateInfo::default()
                .image_type(vk::ImageType::TYPE_2D)
                .format(vk::Format::R32G32B32A32_UINT)
                .extent(vk::Extent3D {
                    width: TEXELS_WIDTH,
                    height,
                    depth: 1,
                })
                .mip_levels(1)
                .array_layers(1)
                .samples(vk::SampleCountFlags::TYPE_1)
                .tiling(vk::ImageTiling::LINEAR)
                .usage(vk::ImageUsageFlags::STORAGE);
            // SAFETY: the descriptions are complete and within the limits that the caller checked; created objects are
            // destroyed with `made`, also after an error. Both resources are bound once, at the start of memory that
            // is large enough for either.
            unsafe {
                made.buffer = device.create_buffer(&buffer, None).ok()?;
                made.image = device.create_image(&image, None).ok()?;
                let layout = device.get_image_subresource_layout(made.image, COLOR);
                if layout.offset != 0 || layout.row_pitch != u64::from(TEXELS_WIDTH) * TEXEL_BYTES {
                    return None;
                }
                let of_buffer = device.get_buffer_memory_requirements(made.buffer);
                let of_image = device.get_image_memory_requirements(made.image);
                let kinds = of_buffer.memory_type_bits & of_image.memory_type_bits;
                if kinds == 0 {
                    return None;
                }
                let allocation = vk::MemoryAllocateInfo::default()
                    .allocation_size(of_buffer.size.max(of_image.size))
                    .memory_type_index(kinds.trailing_zeros());
                made.memory = device.allocate_memory(&allocation, None).ok()?;
                device
                    .bind_buffer_memory(made.buffer, made.memory, 0)
                    .ok()?;
                device.bind_image_memory(made.image, made.memory, 0).ok()?;
            }
            Some(made)
        }
    }

    const COLOR: vk::ImageSubresource = vk::ImageSubresource {
        aspect_mask: vk::ImageAspectFlags::COLOR,
        mip_level: 0,
        array_layer: 0,
    };

    pub(super) fn create(
        device: &wgpu::Device,
        descriptor: &wgpu::BufferDescriptor<'_>,
        height: u32,
    ) -> Option<Aliased> {
        let size = wgpu::Extent3d {
            width: TEXELS_WIDTH,
            height,
            depth_or_array_layers: 1,
        };
        let (dimension, format) = (wgpu::TextureDimension::D2, wgpu::TextureFormat::Rgba32Uint);
        let hal_texture = hal::TextureDescriptor {
            label: descriptor.label,
            size,
            mip_level_count: 1,
            sample_count: 1,
            dimension,
            format,
            usage: wgpu::TextureUses::STORAGE_READ_ONLY,
            memory_flags: hal::MemoryFlags::empty(),
            view_formats: Vec::new(),
        };
        let wgpu_texture = wgpu::TextureDescriptor {
            label: descriptor.label,
            size,
            mip_level_count: 1,
            sample_count: 1,
            dimension,
            format,
            usage: wgpu::TextureUsages::STORAGE_BINDING,
            view_formats: &[],
        };
        // SAFETY: the objects were created on this device, as described, and outlive wgpu's use of them: each
        // resource's callback holds a reference. Their bytes count as initialized, since any bits are valid contents
        // and the arena clears or writes what is read.
        unsafe {
            let (buffer, texture) = {
                let hal_device = device.as_hal::<Vulkan>()?;
                let memory = Arc::new(Memory::new(
                    hal_device.raw_device(),
                    descriptor.size,
                    height,
                )?);
                let (share, image) = (Arc::clone(&memory), memory.image);
                let raw = memory.buffer;
                let buffer = hal::vulkan::Buffer::from_raw_externally_owned(
                    raw,
                    Box::new(move || drop(memory)),
                );
                let release = Some(Box::new(move || drop(share)) as hal::DropCallback);
                let external = hal::vulkan::TextureMemory::External;
                (
                    buffer,
                    hal_device.texture_from_raw(image, &hal_texture, release, external),
                )
            };
            let buffer = device.create_buffer_from_hal::<Vulkan>(buffer, descriptor);
            let unknown = wgpu::TextureUses::UNINITIALIZED;
            let texture = device.create_texture_from_hal::<Vulkan>(texture, &wgpu_texture, unknown);
            let texels = texture.create_view(&wgpu::TextureViewDescriptor::default());
            Some(Aliased { buffer, texels })
        }
    }
}
