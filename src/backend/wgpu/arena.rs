//! All buffers on the device, created at start: weights, row buffers, KV pool, state slots, feed slots, metadata,
//! scratch.
//!
//! Their sizes and the sharding of weights and keys come from [`layout`](crate::backend::layout). Each shard takes a
//! dispatch of its own. Vectors (one row) are widened to f32 when written: this is exact, and kernels need no variants
//! for the format of vectors.

use super::super::BackendError;
use super::super::layout::{self, Layout, PoolLayout, WeightShard};
use super::device::Gpu;
use super::pipelines::Access;
use super::texels;
use crate::plan::{BufferId, Plan, Storage, WeightFormat, WeightId, WeightSpec};
use bytes::Bytes;

/// A buffer with an id, by which bind groups are cached.
#[derive(Clone, Debug)]
pub(crate) struct GpuBuffer {
    pub(crate) raw: wgpu::Buffer,
    /// The same bytes as an image: every storage buffer has one if the profile has `texels`.
    pub(crate) texels: Option<wgpu::TextureView>,
    pub(crate) id: u32,
    pub(crate) bytes: u64,
}

/// A buffer and how a dispatch accesses it.
#[derive(Clone, Copy)]
pub(crate) struct Binding<'a> {
    pub(crate) buffer: &'a GpuBuffer,
    pub(crate) access: Access,
}

impl GpuBuffer {
    /// Bound as `var<storage, read>`.
    pub(crate) fn read(&self) -> Binding<'_> {
        Binding {
            buffer: self,
            access: Access::Read,
        }
    }

    /// Bound as `texture_storage_2d<rgba32uint, read>` if the buffer has an image, else as `var<storage, read>`.
    pub(crate) fn fetch(&self) -> Binding<'_> {
        Binding {
            buffer: self,
            access: if self.texels.is_some() {
                Access::Texels
            } else {
                Access::Read
            },
        }
    }

    /// Bound as `var<storage, read_write>`.
    pub(crate) fn read_write(&self) -> Binding<'_> {
        Binding {
            buffer: self,
            access: Access::ReadWrite,
        }
    }
}

/// Consecutive rows of a weight.
pub(crate) struct Shard {
    pub(crate) buffer: GpuBuffer,
    pub(crate) row_start: u32,
    pub(crate) rows: u32,
    /// Format on the device: always F32 for vectors.
    pub(crate) format: WeightFormat,
}

/// A weight in device memory.
pub(crate) struct DeviceWeight {
    pub(crate) shards: Vec<Shard>,
    pub(crate) columns: u32,
}

/// Consecutive KV heads of one layer: `[block][head in shard][slot][head_dim]`.
pub(crate) struct KvShard {
    pub(crate) head_start: u32,
    pub(crate) heads: u32,
    pub(crate) key: GpuBuffer,
    /// `None` for a latent, whose values are its keys.
    pub(crate) own_value: Option<GpuBuffer>,
}

impl KvShard {
    /// The values, to read.
    pub(crate) fn value(&self) -> &GpuBuffer {
        self.own_value.as_ref().unwrap_or(&self.key)
    }

    /// The buffers that are there.
    pub(crate) fn halves(&self) -> impl Iterator<Item = &GpuBuffer> {
        [&self.key].into_iter().chain(&self.own_value)
    }
}

/// Buffer sizes are multiples of this: buffers are bound as arrays of 16-byte vectors.
pub(crate) const GRANULE: u64 = 16;
/// Maximum bytes of staging memory for uploads in flight.
const STAGING_BYTES_MAX: u64 = 64 << 20;

/// The buffers of one loaded plan.
pub(crate) struct Arena {
    next_id: u32,
    staged_bytes: u64,
    pub(crate) weights: Vec<DeviceWeight>,
    /// Row buffers, indexed by [`BufferId`].
    pub(crate) rows: Vec<GpuBuffer>,
    /// The states of each state layer, in all slots.
    pub(crate) states: Vec<GpuBuffer>,
    /// Rows of a `Rows::Samples` buffer; a tail runs in groups of this many logits rows.
    pub(crate) group_rows: u32,
    /// KV shards of each layer; empty until the pool is allocated.
    pub(crate) kv: Vec<Vec<KvShard>>,
    /// Number of blocks of each KV group.
    pub(crate) blocks: Vec<u32>,
    pub(crate) feed: GpuBuffer,
    pub(crate) metadata: GpuBuffer,
    pub(crate) params: GpuBuffer,
    /// One record per sample row, of at most [`crate::backend::metadata::RESULT_STRIDE_MAX`] words.
    pub(crate) results: GpuBuffer,
    /// One row of the model's hidden size per pool row.
    pub(crate) pooled: GpuBuffer,
    pub(crate) attend_scratch: GpuBuffer,
    pub(crate) sample_scratch: GpuBuffer,
    /// One record per part of a row of logits.
    pub(crate) sample_parts: GpuBuffer,
    /// One row per route: products that a later dispatch sums.
    pub(crate) expert_scratch: GpuBuffer,
    /// Partial sums of products whose columns are split.
    pub(crate) product_scratch: GpuBuffer,
    /// Rows of a product by cooperative matrices, as halves.
    pub(crate) narrow_rows: GpuBuffer,
}

/// Sizes in bytes of the buffers besides weights, rows and pool.
pub(crate) struct SideBytes {
    pub(crate) feed: u64,
    pub(crate) metadata: u64,
    pub(crate) params: u64,
    pub(crate) results: u64,
    pub(crate) pooled: u64,
    pub(crate) attend_scratch: u64,
    pub(crate) sample_scratch: u64,
    pub(crate) sample_parts: u64,
    pub(crate) expert_scratch: u64,
    pub(crate) product_scratch: u64,
    pub(crate) narrow_rows: u64,
    pub(crate) readback: u64,
}

impl Arena {
    /// Creates everything except the pool.
    pub(crate) fn new(
        gpu: &Gpu,
        plan: &Plan,
        layout: &Layout,
        side: &SideBytes,
    ) -> Result<Self, BackendError> {
        let mut next_id = 0;
        let uniform = wgpu::BufferUsages::UNIFORM;
        let arena = Self {
            staged_bytes: 0,
            feed: create_storage(gpu, &mut next_id, "feed", side.feed)?,
            metadata: create_storage(gpu, &mut next_id, "metadata", side.metadata)?,
            params: create(gpu, &mut next_id, "params", side.params, uniform)?,
            results: create_storage(gpu, &mut next_id, "results", side.results)?,
            pooled: create_storage(gpu, &mut next_id, "pooled", side.pooled)?,
            attend_scratch: create_storage(
                gpu,
                &mut next_id,
                "attend scratch",
                side.attend_scratch,
            )?,
            sample_scratch: create_storage(
                gpu,
                &mut next_id,
                "sample scratch",
                side.sample_scratch,
            )?,
            sample_parts: create_storage(gpu, &mut next_id, "sample parts", side.sample_parts)?,
            expert_scratch: create_storage(
                gpu,
                &mut next_id,
                "expert scratch",
                side.expert_scratch,
            )?,
            product_scratch: create_storage(
                gpu,
                &mut next_id,
                "product scratch",
                side.product_scratch,
            )?,
            narrow_rows: create_storage(gpu, &mut next_id, "narrow rows", side.narrow_rows)?,
            rows: create_rows(gpu, &mut next_id, plan, layout)?,
            states: create_states(gpu, &mut next_id, layout)?,
            weights: create_weights(gpu, &mut next_id, plan, layout)?,
            group_rows: layout.group_rows,
            kv: Vec::new(),
            blocks: Vec::new(),
            next_id,
        };
        let zeroed = [
            &arena.feed,
            &arena.results,
            &arena.attend_scratch,
            &arena.sample_scratch,
            &arena.expert_scratch,
        ];
        clear(gpu, arena.rows.iter().chain(&arena.states).chain(zeroed))?;
        Ok(arena)
    }

    /// The device weight with this id.
    pub(crate) fn weight(&self, id: WeightId) -> &DeviceWeight {
        &self.weights[id.0 as usize]
    }

    /// The row buffer with this id.
    pub(crate) fn row_buffer(&self, id: BufferId) -> &GpuBuffer {
        &self.rows[id.0 as usize]
    }

    /// Uploads whole rows of a weight. Waits from time to time to limit staging memory.
    pub(crate) fn write_weight(
        &mut self,
        gpu: &Gpu,
        spec: &WeightSpec,
        id: WeightId,
        first_row: u32,
        rows: &Bytes,
    ) -> Result<(), BackendError> {
        let Some(count) = spec.whole_rows(first_row, rows.len() as u64) else {
            return Err(BackendError::not_whole_rows(
                &spec.name,
                first_row,
                rows.len(),
            ));
        };
        let (row_bytes, format) = (spec.row_bytes(first_row), spec.format_of(first_row));
        let weight = &self.weights[id.0 as usize];
        if spec.rows == 1 {
            let columns = spec.columns as usize;
            let wide: Vec<f32> = (0..columns)
                .map(|index| format.decode(rows, columns, index))
                .collect();
            gpu.queue
                .write_buffer(&weight.shards[0].buffer.raw, 0, bytemuck::cast_slice(&wide));
        } else {
            let range = u64::from(first_row)..u64::from(first_row + count);
            for shard in &weight.shards {
                let shard_range =
                    u64::from(shard.row_start)..u64::from(shard.row_start + shard.rows);
                let (from, to) = (
                    range.start.max(shard_range.start),
                    range.end.min(shard_range.end),
                );
                if from < to {
                    let bytes = (from - range.start) * row_bytes..(to - range.start) * row_bytes;
                    let at = (from - shard_range.start) * row_bytes;
                    write(
                        gpu,
                        &shard.buffer,
                        at,
                        &rows[bytes.start as usize..bytes.end as usize],
                    );
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

    /// Creates the zeroed pool; after an error nothing stays allocated.
    pub(crate) fn allocate_pool(
        &mut self,
        gpu: &Gpu,
        layout: &PoolLayout,
        blocks: &[u32],
    ) -> Result<(), BackendError> {
        self.free_pool();
        self.blocks = blocks.to_vec();
        let made = self.create_pool(gpu, layout);
        if made.is_err() {
            self.free_pool();
        }
        made
    }

    fn create_pool(&mut self, gpu: &Gpu, layout: &PoolLayout) -> Result<(), BackendError> {
        for (index, shards) in layout.layers.iter().enumerate() {
            self.kv.push(Vec::with_capacity(shards.len()));
            for &layout::KvShard {
                head_start,
                heads,
                bytes,
                halves,
            } in shards
            {
                let mut half = |name: &str| {
                    let label = format!("{name}.{index}.{head_start}");
                    create(
                        gpu,
                        &mut self.next_id,
                        &label,
                        bytes,
                        wgpu::BufferUsages::STORAGE,
                    )
                };
                let key = half("key")?;
                let value = if halves > 1 {
                    Some(half("value")?)
                } else {
                    None
                };
                let shard = KvShard {
                    head_start,
                    heads,
                    key,
                    own_value: value,
                };
                self.kv[index].push(shard);
            }
        }
        clear(gpu, self.kv.iter().flatten().flat_map(KvShard::halves))
    }

    /// Frees the pool's memory now: a browser would free it only on garbage collection, too late for a smaller pool.
    fn free_pool(&mut self) {
        for shard in self.kv.drain(..).flatten() {
            shard.halves().for_each(|half| half.raw.destroy());
        }
    }
}

fn create_rows(
    gpu: &Gpu,
    next_id: &mut u32,
    plan: &Plan,
    layout: &Layout,
) -> Result<Vec<GpuBuffer>, BackendError> {
    let mut rows = Vec::with_capacity(plan.buffers.len());
    for (spec, &bytes) in plan.buffers.iter().zip(&layout.rows) {
        if spec.storage != Storage::F32 {
            return Err(BackendError::storage(spec, "f32"));
        }
        rows.push(create_storage(gpu, next_id, spec.name, bytes)?);
    }
    Ok(rows)
}

fn create_states(
    gpu: &Gpu,
    next_id: &mut u32,
    layout: &Layout,
) -> Result<Vec<GpuBuffer>, BackendError> {
    let mut states = Vec::new();
    for (layer, &bytes) in layout.states.iter().enumerate() {
        states.push(create_storage(
            gpu,
            next_id,
            &format!("state.{layer}"),
            bytes,
        )?);
    }
    Ok(states)
}

fn create_weights(
    gpu: &Gpu,
    next_id: &mut u32,
    plan: &Plan,
    layout: &Layout,
) -> Result<Vec<DeviceWeight>, BackendError> {
    let mut weights = Vec::with_capacity(plan.weights.len());
    for (spec, shards) in plan.weights.iter().zip(&layout.weights) {
        weights.push(create_weight(gpu, next_id, spec, shards)?);
    }
    Ok(weights)
}

fn create_storage(
    gpu: &Gpu,
    next_id: &mut u32,
    name: &str,
    bytes: u64,
) -> Result<GpuBuffer, BackendError> {
    create(gpu, next_id, name, bytes, wgpu::BufferUsages::STORAGE)
}

fn create_weight(
    gpu: &Gpu,
    next_id: &mut u32,
    spec: &WeightSpec,
    shards: &[WeightShard],
) -> Result<DeviceWeight, BackendError> {
    if spec.rows > 1 && !spec.columns.is_multiple_of(8) {
        return Err(BackendError::columns(
            &format!("weight {}", spec.name),
            spec.columns,
            8,
        ));
    }
    let shards = shards
        .iter()
        .map(
            |&WeightShard {
                 row_start,
                 rows,
                 format,
                 bytes,
             }| {
                let buffer = create_storage(gpu, next_id, &spec.name, bytes)?;
                Ok(Shard {
                    buffer,
                    row_start,
                    rows,
                    format,
                })
            },
        )
        .collect::<Result<_, BackendError>>()?;
    Ok(DeviceWeight {
        shards,
        columns: spec.columns,
    })
}

/// Creates a buffer of at least `bytes`, padded so that it can be bound as an array of 16-byte vectors.
fn create(
    gpu: &Gpu,
    next_id: &mut u32,
    name: &str,
    bytes: u64,
    usage: wgpu::BufferUsages,
) -> Result<GpuBuffer, BackendError> {
    let bytes = bytes.max(1).next_multiple_of(GRANULE);
    debug_assert!(
        bytes <= gpu.profile.buffer_bytes_max,
        "{name}: the layout is within the limits"
    );
    let descriptor = wgpu::BufferDescriptor {
        label: Some(name),
        size: bytes,
        usage: usage | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC,
        mapped_at_creation: false,
    };
    let out_of_memory = || BackendError::OutOfMemory {
        what: name.into(),
        bytes,
    };
    let made = gpu
        .catch(|| {
            if gpu.profile.texels && usage.contains(wgpu::BufferUsages::STORAGE) {
                let aliased = texels::create(&gpu.device, &descriptor)?;
                return Some((aliased.buffer, Some(aliased.texels)));
            }
            Some((gpu.device.create_buffer(&descriptor), None))
        })
        .map_err(|error| match error {
            wgpu::Error::OutOfMemory { .. } => out_of_memory(),
            other => BackendError::Validation(format!("{name}: {other}")),
        })?;
    let (raw, texels) = made.ok_or_else(out_of_memory)?;
    gpu.errors.check()?;
    *next_id += 1;
    Ok(GpuBuffer {
        raw,
        texels,
        id: *next_id,
        bytes,
    })
}

/// Writes any number of bytes: buffers end with padding, so the last word may be padded with zeros.
fn write(gpu: &Gpu, buffer: &GpuBuffer, at: u64, bytes: &[u8]) {
    let whole = bytes.len() & !3;
    if whole > 0 {
        gpu.queue.write_buffer(&buffer.raw, at, &bytes[..whole]);
    }
    if whole < bytes.len() {
        let mut last = [0; 4];
        last[..bytes.len() - whole].copy_from_slice(&bytes[whole..]);
        gpu.queue
            .write_buffer(&buffer.raw, at + whole as u64, &last);
    }
}

/// Zeroes buffers now rather than in the first batch, which also checks that the memory is really available.
fn clear<'a>(gpu: &Gpu, buffers: impl Iterator<Item = &'a GpuBuffer>) -> Result<(), BackendError> {
    let (mut names, mut total) = (Vec::new(), 0);
    let cleared = gpu.catch(|| {
        let mut encoder = gpu
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
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
