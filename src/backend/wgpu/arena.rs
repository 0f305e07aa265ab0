//! Every buffer on the device, created at start: weights, row buffers, KV pool, feed slots, metadata, scratch.
//!
//! A weight matrix is cut by output rows into shards within the binding limit, one dispatch each; between experts, or
//! within one where it is larger than that. A layer's K and V
//! are cut by KV heads. Row buffers of `Rows::Samples` hold as many rows as fit; tails run in groups of that many.
//! Vectors (one row) are widened to f32 when written: exact, and a kernel needs no variant for their format.

use super::super::{BackendError, Capacity};
use super::device::Gpu;
use super::pipelines::Access;
use super::texels;
use crate::plan::{BufferId, Plan, Rows, Storage, WeightFormat, WeightId, WeightSpec};
use bytes::Bytes;

/// A buffer with an id, so that bind groups can be found again.
#[derive(Clone, Debug)]
pub(crate) struct GpuBuffer {
    pub(crate) raw: wgpu::Buffer,
    /// The same bytes as an image: every storage buffer has it if the profile says `texels`.
    pub(crate) texels: Option<wgpu::TextureView>,
    pub(crate) id: u32,
    pub(crate) bytes: u64,
}

/// A buffer as one dispatch uses it.
#[derive(Clone, Copy)]
pub(crate) struct Binding<'a> {
    pub(crate) buffer: &'a GpuBuffer,
    pub(crate) access: Access,
}

impl GpuBuffer {
    /// Bound as `var<storage, read>`.
    pub(crate) fn read(&self) -> Binding<'_> {
        Binding { buffer: self, access: Access::Read }
    }

    /// Bound as `texture_storage_2d<rgba32uint, read>` where there is such a view, else as `var<storage, read>`.
    pub(crate) fn fetch(&self) -> Binding<'_> {
        Binding { buffer: self, access: if self.texels.is_some() { Access::Texels } else { Access::Read } }
    }

    /// Bound as `var<storage, read_write>`.
    pub(crate) fn read_write(&self) -> Binding<'_> {
        Binding { buffer: self, access: Access::ReadWrite }
    }
}

/// Consecutive rows of a weight.
pub(crate) struct Shard {
    pub(crate) buffer: GpuBuffer,
    pub(crate) row_start: u32,
    pub(crate) rows: u32,
    /// F32 for vectors, whatever the checkpoint's format.
    pub(crate) format: WeightFormat,
}

/// A weight as the device holds it.
pub(crate) struct DeviceWeight {
    pub(crate) shards: Vec<Shard>,
    pub(crate) columns: u32,
}

/// Consecutive KV heads of one layer: `[block][head in shard][slot][head_dim]`.
pub(crate) struct KvShard {
    pub(crate) head_start: u32,
    pub(crate) heads: u32,
    pub(crate) key: GpuBuffer,
    pub(crate) value: GpuBuffer,
}

/// Bytes of upload staging in flight at most.
const STAGING_BYTES_MAX: u64 = 64 << 20;

/// The buffers of one loaded plan.
pub(crate) struct Arena {
    next_id: u32,
    staged_bytes: u64,
    pub(crate) weights: Vec<DeviceWeight>,
    /// By [`BufferId`].
    pub(crate) rows: Vec<GpuBuffer>,
    /// Rows of a `Rows::Samples` buffer; a tail runs in groups of so many logits rows.
    pub(crate) group_rows: u32,
    /// By layer; empty until the pool is allocated.
    pub(crate) kv: Vec<Vec<KvShard>>,
    /// By KV group.
    pub(crate) blocks: Vec<u32>,
    pub(crate) feed: GpuBuffer,
    pub(crate) metadata: GpuBuffer,
    pub(crate) params: GpuBuffer,
    /// One [`crate::backend::metadata::RESULT_WORDS`] record a sample row.
    pub(crate) results: GpuBuffer,
    /// A row of the model's hidden size a pool row.
    pub(crate) pooled: GpuBuffer,
    pub(crate) attend_scratch: GpuBuffer,
    pub(crate) sample_scratch: GpuBuffer,
    /// A row a route: products that are added up afterwards.
    pub(crate) expert_scratch: GpuBuffer,
}

/// Sizes of the buffers that do not follow from plan and capacity alone.
pub(crate) struct SideBytes {
    pub(crate) metadata: u64,
    pub(crate) params: u64,
    pub(crate) results: u64,
    pub(crate) pooled: u64,
    pub(crate) attend_scratch: u64,
    pub(crate) sample_scratch: u64,
    pub(crate) expert_scratch: u64,
}

impl Arena {
    /// Creates everything but the pool.
    pub(crate) fn new(gpu: &Gpu, plan: &Plan, capacity: &Capacity, side: &SideBytes) -> Result<Self, BackendError> {
        let mut next_id = 0;
        let mut make = |name: &str, bytes: u64, usage| create(gpu, &mut next_id, name, bytes, usage);
        let storage = wgpu::BufferUsages::STORAGE;
        let feed = make("feed", u64::from(capacity.feed_slots.max(1)) * 4, storage)?;
        let metadata = make("metadata", side.metadata, storage)?;
        let params = make("params", side.params, wgpu::BufferUsages::UNIFORM)?;
        let results = make("results", side.results, storage)?;
        let pooled = make("pooled", side.pooled, storage)?;
        let attend_scratch = make("attend scratch", side.attend_scratch, storage)?;
        let sample_scratch = make("sample scratch", side.sample_scratch, storage)?;
        let expert_scratch = make("expert scratch", side.expert_scratch, storage)?;
        let group_rows = group_rows(gpu, plan, capacity)?;
        let mut rows = Vec::with_capacity(plan.buffers.len());
        for spec in &plan.buffers {
            if spec.storage != Storage::F32 {
                let what = format!("buffer {} of {}", spec.name, spec.storage);
                return Err(BackendError::Unsupported { what, message: "the wgpu kernels keep rows in f32".into() });
            }
            let count = spec.rows.count(capacity.tokens_max, group_rows);
            let (bytes, limit) = (u64::from(count) * u64::from(spec.columns) * 4, gpu.profile.binding_bytes_max);
            if bytes > limit {
                return Err(limit_error(gpu, format!("buffer {} of {count} rows", spec.name), bytes, limit));
            }
            rows.push(make(spec.name, bytes, storage)?);
        }
        let mut weights = Vec::with_capacity(plan.weights.len());
        for spec in &plan.weights {
            weights.push(create_weight(gpu, &mut next_id, spec)?);
        }
        let arena = Self {
            next_id,
            staged_bytes: 0,
            weights,
            rows,
            group_rows,
            kv: Vec::new(),
            blocks: Vec::new(),
            feed,
            metadata,
            params,
            results,
            pooled,
            attend_scratch,
            sample_scratch,
            expert_scratch,
        };
        let zeroed = [&arena.feed, &arena.results, &arena.attend_scratch, &arena.sample_scratch, &arena.expert_scratch];
        clear(gpu, arena.rows.iter().chain(zeroed))?;
        Ok(arena)
    }

    /// The device's form of a weight.
    pub(crate) fn weight(&self, id: WeightId) -> &DeviceWeight {
        &self.weights[id.0 as usize]
    }

    /// A row buffer.
    pub(crate) fn row_buffer(&self, id: BufferId) -> &GpuBuffer {
        &self.rows[id.0 as usize]
    }

    /// Uploads whole rows of a weight, waiting now and then so that staging memory stays bounded.
    pub(crate) fn write_weight(
        &mut self,
        gpu: &Gpu,
        spec: &WeightSpec,
        id: WeightId,
        first_row: u32,
        rows: &Bytes,
    ) -> Result<(), BackendError> {
        let Some(count) = spec.whole_rows(first_row, rows.len() as u64) else {
            let given = format!("{} bytes at row {first_row}", rows.len());
            return Err(BackendError::Validation(format!("weight {}: {given} are not rows of it", spec.name)));
        };
        let (row_bytes, format) = (spec.row_bytes(first_row), spec.format_of(first_row));
        let weight = &self.weights[id.0 as usize];
        if spec.rows == 1 {
            let columns = spec.columns as usize;
            let wide: Vec<f32> = (0..columns).map(|index| format.decode(rows, columns, index)).collect();
            gpu.queue.write_buffer(&weight.shards[0].buffer.raw, 0, bytemuck::cast_slice(&wide));
        } else {
            let range = u64::from(first_row)..u64::from(first_row + count);
            for shard in &weight.shards {
                let shard_range = u64::from(shard.row_start)..u64::from(shard.row_start + shard.rows);
                let (from, to) = (range.start.max(shard_range.start), range.end.min(shard_range.end));
                if from < to {
                    let bytes = (from - range.start) * row_bytes..(to - range.start) * row_bytes;
                    let at = (from - shard_range.start) * row_bytes;
                    write(gpu, &shard.buffer, at, &rows[bytes.start as usize..bytes.end as usize]);
                }
            }
        }
        self.staged_bytes += rows.len() as u64;
        if self.staged_bytes >= STAGING_BYTES_MAX {
            self.staged_bytes = 0;
            gpu.queue.submit([]);
            gpu.wait()?;
        }
        gpu.errors.check()
    }

    /// Creates the zeroed pool; on an error nothing of it is kept.
    pub(crate) fn allocate_pool(
        &mut self,
        gpu: &Gpu,
        plan: &Plan,
        capacity: &Capacity,
        blocks: &[u32],
    ) -> Result<(), BackendError> {
        self.kv.clear();
        self.blocks = blocks.to_vec();
        let mut layers = Vec::with_capacity(plan.kv_layers.len());
        for (index, layer) in plan.kv_layers.iter().enumerate() {
            let slots = u64::from(blocks[layer.group as usize]) * u64::from(capacity.block_size);
            let head_bytes = slots * capacity.kv_format.row_bytes(layer.head_dim);
            let limit = gpu.profile.binding_bytes_max;
            let heads_max = u32::try_from(limit / head_bytes.max(1)).unwrap_or(u32::MAX).min(layer.heads);
            if heads_max == 0 {
                let what = format!("one KV head of layer {index} over all blocks");
                return Err(limit_error(gpu, what, head_bytes, limit));
            }
            let mut shards = Vec::new();
            let mut head_start = 0;
            while head_start < layer.heads {
                let heads = heads_max.min(layer.heads - head_start);
                let mut half = |name: &str| {
                    let label = format!("{name}.{index}.{head_start}");
                    let bytes = u64::from(heads) * head_bytes;
                    create(gpu, &mut self.next_id, &label, bytes, wgpu::BufferUsages::STORAGE)
                };
                shards.push(KvShard { head_start, heads, key: half("key")?, value: half("value")? });
                head_start += heads;
            }
            layers.push(shards);
        }
        clear(gpu, layers.iter().flatten().flat_map(|shard| [&shard.key, &shard.value]))?;
        self.kv = layers;
        Ok(())
    }
}

/// Most logits rows whose widest `Rows::Samples` buffer fits one binding.
fn group_rows(gpu: &Gpu, plan: &Plan, capacity: &Capacity) -> Result<u32, BackendError> {
    let samples = plan.buffers.iter().filter(|spec| spec.rows == Rows::Samples);
    let row_bytes = samples.map(|spec| u64::from(spec.columns) * 4).max().unwrap_or(4);
    let limit = gpu.profile.binding_bytes_max;
    match u32::try_from(limit / row_bytes.max(1)).unwrap_or(u32::MAX) {
        0 => Err(limit_error(gpu, "one row of logits".into(), row_bytes, limit)),
        rows => Ok(rows.min(capacity.samples_max).max(1)),
    }
}

fn create_weight(gpu: &Gpu, next_id: &mut u32, spec: &WeightSpec) -> Result<DeviceWeight, BackendError> {
    if spec.rows > 1 && !spec.columns.is_multiple_of(8) {
        return Err(BackendError::columns(&format!("weight {}", spec.name), spec.columns, 8));
    }
    let limit = gpu.profile.binding_bytes_max;
    let expert_rows = spec.rows / spec.experts;
    let mut shards = Vec::new();
    let mut row_start = 0;
    for section in &spec.sections {
        let format = if spec.rows == 1 { WeightFormat::F32 } else { section.format };
        let row_bytes = format.row_bytes(spec.columns);
        let rows_max = match u32::try_from(limit / row_bytes.max(1)).unwrap_or(u32::MAX) {
            0 => return Err(limit_error(gpu, format!("a row of weight {}", spec.name), row_bytes, limit)),
            rows => rows,
        };
        let section_end = row_start + section.rows;
        while row_start < section_end {
            let room = rows_max.min(section_end - row_start);
            // Whole experts, or rows of one.
            let into_expert = row_start % expert_rows;
            let rows = match spec.experts {
                1 => room,
                _ if into_expert == 0 && room >= expert_rows => room / expert_rows * expert_rows,
                _ => room.min(expert_rows - into_expert),
            };
            let bytes = u64::from(rows) * row_bytes;
            let buffer = create(gpu, next_id, &spec.name, bytes, wgpu::BufferUsages::STORAGE)?;
            shards.push(Shard { buffer, row_start, rows, format });
            row_start += rows;
        }
    }
    Ok(DeviceWeight { shards, columns: spec.columns })
}

fn limit_error(gpu: &Gpu, what: String, needed: u64, limit: u64) -> BackendError {
    BackendError::Limit { what, needed, limit, device: gpu.info.name.clone() }
}

/// A buffer of at least `bytes`, padded so that it can be bound as an array of 16-byte vectors.
fn create(
    gpu: &Gpu,
    next_id: &mut u32,
    name: &str,
    bytes: u64,
    usage: wgpu::BufferUsages,
) -> Result<GpuBuffer, BackendError> {
    let bytes = bytes.next_multiple_of(16).max(16);
    let limit = gpu.profile.device_binding_bytes_max;
    if bytes > limit {
        return Err(limit_error(gpu, name.into(), bytes, limit));
    }
    let descriptor = wgpu::BufferDescriptor {
        label: Some(name),
        size: bytes,
        usage: usage | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC,
        mapped_at_creation: false,
    };
    let out_of_memory = || BackendError::OutOfMemory { what: name.into(), bytes };
    let make = || {
        if gpu.profile.texels && usage.contains(wgpu::BufferUsages::STORAGE) {
            let aliased = texels::create(&gpu.device, &descriptor)?;
            return Some((aliased.buffer, Some(aliased.texels)));
        }
        Some((gpu.device.create_buffer(&descriptor), None))
    };
    let made = gpu.catch(make).map_err(|error| match error {
        wgpu::Error::OutOfMemory { .. } => out_of_memory(),
        other => BackendError::Validation(format!("{name}: {other}")),
    })?;
    let (raw, texels) = made.ok_or_else(out_of_memory)?;
    gpu.errors.check()?;
    *next_id += 1;
    Ok(GpuBuffer { raw, texels, id: *next_id, bytes })
}

/// Writes bytes of any length: the tail of a buffer is padding, so the last word may be filled up.
fn write(gpu: &Gpu, buffer: &GpuBuffer, at: u64, bytes: &[u8]) {
    let whole = bytes.len() & !3;
    if whole > 0 {
        gpu.queue.write_buffer(&buffer.raw, at, &bytes[..whole]);
    }
    if whole < bytes.len() {
        let mut last = [0; 4];
        last[..bytes.len() - whole].copy_from_slice(&bytes[whole..]);
        gpu.queue.write_buffer(&buffer.raw, at + whole as u64, &last);
    }
}

/// Zeroes buffers now rather than in the first batch, and finds out whether the memory is really there.
fn clear<'a>(gpu: &Gpu, buffers: impl Iterator<Item = &'a GpuBuffer>) -> Result<(), BackendError> {
    let (mut names, mut total) = (Vec::new(), 0);
    let cleared = gpu.catch(|| {
        let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        for buffer in buffers {
            encoder.clear_buffer(&buffer.raw, 0, None);
            names.push(buffer.id);
            total += buffer.bytes;
        }
        gpu.queue.submit([encoder.finish()]);
    });
    let what = format!("{} buffers", names.len());
    cleared.map_err(|error| match error {
        wgpu::Error::OutOfMemory { .. } => BackendError::OutOfMemory { what, bytes: total },
        other => BackendError::Validation(other.to_string()),
    })?;
    gpu.wait()
}
