//! Single dispatches, outside of any plan: of the bench, and of what is found out when a device is opened.

use super::super::BackendError;
use super::device::Gpu;
use super::pipelines::module_of;
use super::preprocess::MATRICES_DIRECTIVE;

/// A compiled kernel with its bindings and grid.
pub(super) struct Dispatch {
    pipeline: wgpu::ComputePipeline,
    bindings: wgpu::BindGroup,
    grid: [u32; 3],
}

impl Dispatch {
    pub(super) fn record(&self, pass: &mut wgpu::ComputePass<'_>) {
        let [x, y, z] = self.grid;
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &self.bindings, &[]);
        pass.dispatch_workgroups(x, y, z);
    }
}

/// Compiles a kernel like all kernels of this backend, with these bindings after its params.
pub(super) fn dispatch(
    gpu: &Gpu,
    name: &str,
    text: &str,
    params: &[u32],
    bindings: &[wgpu::BindingResource<'_>],
    grid: [u32; 3],
) -> Result<Dispatch, BackendError> {
    let pipeline = compile(gpu, name, text)?;
    let uniform = gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: Some(name),
        size: 32,
        usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    gpu.queue
        .write_buffer(&uniform, 0, bytemuck::cast_slice(params));
    let all = std::iter::once(uniform.as_entire_binding()).chain(bindings.iter().cloned());
    let entries: Vec<_> = (0..)
        .zip(all)
        .map(|(binding, resource)| wgpu::BindGroupEntry { binding, resource })
        .collect();
    let bindings = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: Some(name),
        layout: &pipeline.get_bind_group_layout(0),
        entries: &entries,
    });
    Ok(Dispatch {
        pipeline,
        bindings,
        grid,
    })
}

fn compile(gpu: &Gpu, name: &str, text: &str) -> Result<wgpu::ComputePipeline, BackendError> {
    let fail = |message: String| BackendError::Kernel {
        kernel: name.to_owned(),
        message,
    };
    let module = gpu
        .catch(|| module_of(gpu, name, text))
        .map_err(|error| fail(error.to_string()))?
        .map_err(fail)?;
    // wgpu sees no bindings in SPIR-V.
    let layout = text
        .contains(MATRICES_DIRECTIVE)
        .then(|| explicit_layout(gpu));
    let descriptor = wgpu::ComputePipelineDescriptor {
        label: Some(name),
        layout: layout.as_ref(),
        module: &module,
        entry_point: Some("main"),
        compilation_options: wgpu::PipelineCompilationOptions::default(),
        cache: None,
    };
    gpu.catch(|| gpu.device.create_compute_pipeline(&descriptor))
        .map_err(|error| fail(error.to_string()))
}

/// Params, a buffer that is read, and one that is written.
fn explicit_layout(gpu: &Gpu) -> wgpu::PipelineLayout {
    let entry = |binding, ty| wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer {
            ty,
            has_dynamic_offset: false,
            min_binding_size: None,
        },
        count: None,
    };
    let storage = |read_only| wgpu::BufferBindingType::Storage { read_only };
    let entries = [
        entry(0, wgpu::BufferBindingType::Uniform),
        entry(1, storage(true)),
        entry(2, storage(false)),
    ];
    let descriptor = wgpu::BindGroupLayoutDescriptor {
        label: None,
        entries: &entries,
    };
    let group = gpu.device.create_bind_group_layout(&descriptor);
    gpu.device
        .create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&group)],
            immediate_size: 0,
        })
}

/// What a buffer holds once all work is done. Not for a browser, which cannot wait.
pub(super) fn read(gpu: &Gpu, buffer: &wgpu::Buffer) -> Result<Vec<f32>, BackendError> {
    let staging = gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("result"),
        size: buffer.size(),
        usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let mut encoder = gpu
        .device
        .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    encoder.copy_buffer_to_buffer(buffer, 0, &staging, 0, buffer.size());
    gpu.queue.submit([encoder.finish()]);
    staging.map_async(wgpu::MapMode::Read, .., |_| {});
    gpu.wait()?;
    let view = staging
        .get_mapped_range(..)
        .map_err(|error| BackendError::Lost(error.to_string()))?;
    Ok(bytemuck::pod_collect_to_vec(&view))
}
