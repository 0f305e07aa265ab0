//! Compiled kernels, cached by shader stem and defines.
//!
//! A [`Kernel`] is a shader stem with its defines. Its bind group layout follows from the bindings of the dispatch:
//! binding 0 is the params uniform (dynamic offset), then one storage buffer, or its image, per binding.

use super::super::BackendError;
use super::device::Gpu;
use super::matrices;
use super::preprocess::{self, Define, MATRICES_DIRECTIVE};
#[cfg(any(target_os = "linux", target_os = "android", windows))]
use super::spirv;
#[cfg(not(target_arch = "wasm32"))]
use crate::platform;
use std::collections::HashMap;
#[cfg(not(target_arch = "wasm32"))]
use std::sync::{
    atomic::{AtomicUsize, Ordering},
    mpsc,
};

/// Identifies one compiled variant of a shader.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kernel {
    pub(crate) stem: &'static str,
    pub(crate) defines: Vec<Define>,
}

impl Kernel {
    /// The shader `shaders/<stem>.wgsl` without defines.
    pub(crate) fn new(stem: &'static str) -> Self {
        Self {
            stem,
            defines: Vec::new(),
        }
    }

    /// Adds the define `name`, for `#ifdef`.
    #[must_use]
    pub(crate) fn define(mut self, name: &'static str) -> Self {
        self.defines.push((name, None));
        self
    }

    /// Adds the define `name` if `on`.
    #[must_use]
    pub(crate) fn define_if(self, on: bool, name: &'static str) -> Self {
        if on { self.define(name) } else { self }
    }

    /// Adds `const name: u32 = number;` and the define `name`.
    #[must_use]
    pub(crate) fn number(mut self, name: &'static str, number: u32) -> Self {
        self.defines.push((name, Some(number)));
        self
    }
}

impl std::fmt::Display for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.stem)?;
        for (name, number) in &self.defines {
            match number {
                Some(number) => write!(f, " {name}={number}")?,
                None => write!(f, " {name}")?,
            }
        }
        Ok(())
    }
}

/// How a kernel uses a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Access {
    /// `var<storage, read>`.
    Read,
    /// `var<storage, read_write>`.
    ReadWrite,
    /// `texture_storage_2d<rgba32uint, read>`: the buffer's view as an image.
    Texels,
}

/// Bytes of one slot of the params arena.
pub(crate) const PARAMS_SLOT_BYTES: u32 = 256;

/// A compiled kernel.
#[derive(Clone)]
pub(crate) struct Pipeline {
    pub(crate) raw: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
    /// Identifies `raw`: equal ids mean the same pipeline.
    pub(crate) id: u32,
}

/// Kernels to compile, with how they use their buffers.
pub(crate) type Wanted = HashMap<Kernel, Vec<Access>>;

/// All kernels compiled so far.
#[derive(Default)]
pub(crate) struct Pipelines {
    layouts: HashMap<Vec<Access>, (wgpu::BindGroupLayout, wgpu::PipelineLayout)>,
    compiled: HashMap<Kernel, Pipeline>,
    pub(crate) cache: Option<wgpu::PipelineCache>,
}

impl Pipelines {
    /// Returns the compiled `kernel`, compiling it on first use.
    pub(crate) fn get(
        &mut self,
        gpu: &Gpu,
        kernel: &Kernel,
        access: &[Access],
    ) -> Result<Pipeline, BackendError> {
        if let Some(pipeline) = self.compiled.get(kernel) {
            return Ok(pipeline.clone());
        }
        let (layout, pipeline_layout) = self.layout(gpu, access);
        let raw = build(gpu, kernel, &pipeline_layout, self.cache.as_ref())?;
        Ok(self.insert(kernel, layout, raw))
    }

    /// Compiles these kernels, in parallel where there are threads. `progress` gets how many are done, and of how many.
    pub(crate) fn compile(
        &mut self,
        gpu: &Gpu,
        wanted: Wanted,
        progress: &mut dyn FnMut(u32, u32),
    ) -> Result<(), BackendError> {
        let new = wanted
            .into_iter()
            .filter(|(kernel, _)| !self.compiled.contains_key(kernel))
            .collect::<Vec<_>>();
        let jobs: Vec<_> = new
            .iter()
            .map(|(kernel, access)| (kernel, self.layout(gpu, access)))
            .collect();
        let (cache, total) = (
            self.cache.clone(),
            u32::try_from(jobs.len()).expect("a plan has few kernels"),
        );
        let (mut done, mut outcome) = (0, Ok(()));
        progress(done, total);
        for_each_in_parallel(
            &jobs,
            |(kernel, (_, layout))| build(gpu, kernel, layout, cache.as_ref()),
            |(kernel, (layout, _)), built| {
                done += 1;
                progress(done, total);
                match built {
                    Ok(raw) => _ = self.insert(kernel, layout.clone(), raw),
                    Err(error) if outcome.is_ok() => outcome = Err(error),
                    Err(_) => {}
                }
            },
        );
        outcome
    }

    fn insert(
        &mut self,
        kernel: &Kernel,
        layout: wgpu::BindGroupLayout,
        raw: wgpu::ComputePipeline,
    ) -> Pipeline {
        let id = u32::try_from(self.compiled.len()).expect("a plan has few kernels");
        let pipeline = Pipeline { raw, layout, id };
        self.compiled.insert(kernel.clone(), pipeline.clone());
        pipeline
    }

    /// Number of kernels compiled so far.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.compiled.len()
    }

    fn layout(
        &mut self,
        gpu: &Gpu,
        access: &[Access],
    ) -> (wgpu::BindGroupLayout, wgpu::PipelineLayout) {
        if let Some(layout) = self.layouts.get(access) {
            return layout.clone();
        }
        let entry = |binding: usize, ty| wgpu::BindGroupLayoutEntry {
            binding: u32::try_from(binding).expect("a kernel has few bindings"),
            visibility: wgpu::ShaderStages::COMPUTE,
            ty,
            count: None,
        };
        let mut entries = vec![entry(0, params_type())];
        entries.extend(
            access
                .iter()
                .enumerate()
                .map(|(index, access)| entry(index + 1, binding_type(*access))),
        );
        let descriptor = wgpu::BindGroupLayoutDescriptor {
            label: None,
            entries: &entries,
        };
        let layout = gpu.device.create_bind_group_layout(&descriptor);
        let pipeline = gpu
            .device
            .create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: None,
                bind_group_layouts: &[Some(&layout)],
                immediate_size: 0,
            });
        self.layouts
            .insert(access.to_vec(), (layout.clone(), pipeline.clone()));
        (layout, pipeline)
    }
}

fn build(
    gpu: &Gpu,
    kernel: &Kernel,
    layout: &wgpu::PipelineLayout,
    cache: Option<&wgpu::PipelineCache>,
) -> Result<wgpu::ComputePipeline, BackendError> {
    let fail = |message: String| BackendError::Kernel {
        kernel: kernel.to_string(),
        message,
    };
    if kernel
        .defines
        .iter()
        .any(|(name, _)| gpu.refused_define == Some(*name))
    {
        return Err(fail("rejected, as the options request".into()));
    }
    let mut text = preprocess::expand(kernel.stem, &kernel.defines).map_err(fail)?;
    if let Some((from, to)) = gpu.planted {
        text = text.replace(from, to);
    }
    let module = gpu
        .catch(|| module_of(gpu, kernel.stem, &text))
        .map_err(|error| fail(error.to_string()))?;
    let module = module.map_err(fail)?;
    let descriptor = wgpu::ComputePipelineDescriptor {
        label: Some(kernel.stem),
        layout: Some(layout),
        module: &module,
        entry_point: Some("main"),
        compilation_options: wgpu::PipelineCompilationOptions {
            zero_initialize_workgroup_memory: gpu.checked,
            ..Default::default()
        },
        cache,
    };
    gpu.catch(|| gpu.device.create_compute_pipeline(&descriptor))
        .map_err(|error| fail(error.to_string()))
}

/// Does `work` for every job, and hands each result to `each` on this thread. A driver compiles on the thread that asks
/// for a pipeline, so several threads ask.
#[cfg(not(target_arch = "wasm32"))]
fn for_each_in_parallel<J: Sync, R: Send>(
    jobs: &[J],
    work: impl Fn(&J) -> R + Sync,
    mut each: impl FnMut(&J, R),
) {
    let next = AtomicUsize::new(0);
    let (sender, results) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..platform::parallelism().min(jobs.len()) {
            let (sender, work, next) = (sender.clone(), &work, &next);
            scope.spawn(move || {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // The receiver outlives the threads.
                    let _ = sender.send((job, work(job)));
                }
            });
        }
        drop(sender);
        results
            .into_iter()
            .for_each(|(job, result)| each(job, result));
    });
}

/// A browser compiles in processes of its own.
#[cfg(target_arch = "wasm32")]
fn for_each_in_parallel<J, R>(jobs: &[J], work: impl Fn(&J) -> R, mut each: impl FnMut(&J, R)) {
    jobs.iter().for_each(|job| each(job, work(job)));
}

fn params_type() -> wgpu::BindingType {
    wgpu::BindingType::Buffer {
        ty: wgpu::BufferBindingType::Uniform,
        has_dynamic_offset: true,
        min_binding_size: wgpu::BufferSize::new(u64::from(PARAMS_SLOT_BYTES)),
    }
}

fn binding_type(access: Access) -> wgpu::BindingType {
    let storage = |read_only| wgpu::BindingType::Buffer {
        ty: wgpu::BufferBindingType::Storage { read_only },
        has_dynamic_offset: false,
        min_binding_size: None,
    };
    match access {
        Access::Read => storage(true),
        Access::ReadWrite => storage(false),
        Access::Texels => wgpu::BindingType::StorageTexture {
            access: wgpu::StorageTextureAccess::ReadOnly,
            format: wgpu::TextureFormat::Rgba32Uint,
            view_dimension: wgpu::TextureViewDimension::D2,
        },
    }
}

/// Compiles a shader, by wgpu or, if it has cooperative matrices for Vulkan, with SPIR-V of our own.
pub(crate) fn module_of(gpu: &Gpu, label: &str, text: &str) -> Result<wgpu::ShaderModule, String> {
    if text.contains(MATRICES_DIRECTIVE) && matrices::needs_own_spirv(gpu.info.backend) {
        return create_matrix_module(gpu, label, text);
    }
    let source = wgpu::ShaderSource::Wgsl(text.into());
    Ok(create_module(
        gpu,
        wgpu::ShaderModuleDescriptor {
            label: Some(label),
            source,
        },
    ))
}

#[allow(
    unsafe_code,
    reason = "bounds checks and loop counters in the shaders cost 5 to 30 % natively"
)]
fn create_module(gpu: &Gpu, descriptor: wgpu::ShaderModuleDescriptor<'_>) -> wgpu::ShaderModule {
    if gpu.checked || cfg!(target_arch = "wasm32") {
        return gpu.device.create_shader_module(descriptor);
    }
    // SAFETY: the shaders are part of this crate and their loops are bounded. They only get batches whose ids, slots
    // and ranges `metadata::flatten` has checked to lie inside the buffers; the tests also run them with checks.
    unsafe {
        gpu.device
            .create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked())
    }
}

/// The module of a kernel with cooperative matrices: SPIR-V of our own, see [`spirv`].
#[cfg(any(target_os = "linux", target_os = "android", windows))]
#[allow(
    unsafe_code,
    reason = "wgpu's own translation of cooperative matrices misses the memory model"
)]
fn create_matrix_module(gpu: &Gpu, label: &str, text: &str) -> Result<wgpu::ShaderModule, String> {
    let words = spirv::translate(text)?;
    let main = wgpu::PassthroughShaderEntryPoint {
        name: "main".into(),
        workgroup_size: (0, 0, 0),
    };
    let descriptor = wgpu::ShaderModuleDescriptorPassthrough {
        label: Some(label),
        entry_points: vec![main].into(),
        spirv: Some(words.into()),
        ..Default::default()
    };
    // SAFETY: naga has validated the kernel, and as above its accesses are within its buffers. Its bindings are those
    // of the layout, in the same order, so wgpu keeps their numbers.
    Ok(unsafe { gpu.device.create_shader_module_passthrough(descriptor) })
}

/// Vulkan's are not used here: see [`matrices::Matrices::of`].
#[cfg(not(any(target_os = "linux", target_os = "android", windows)))]
fn create_matrix_module(
    _gpu: &Gpu,
    _label: &str,
    _text: &str,
) -> Result<wgpu::ShaderModule, String> {
    Err("cooperative matrices of Vulkan are not used on this system".into())
}
