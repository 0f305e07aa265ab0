//! Direct access to the device's buffers, for kernel checks.

use super::super::{BackendError, Inspect, KvHalf};
use super::arena::{GpuBuffer, KvShard};
use super::{Loaded, WgpuBackend, not_loaded, readback};
use crate::plan::{BufferId, KvFormat};
use futures_channel::oneshot;
use half::f16;

impl WgpuBackend {
    /// The first `bytes` bytes of a buffer (a multiple of 4), after everything submitted so far.
    async fn download(&self, buffer: &GpuBuffer, bytes: u64) -> Result<Vec<u8>, BackendError> {
        let gpu = &self.gpu;
        if bytes > buffer.bytes {
            return Err(BackendError::Validation(format!("{bytes} bytes of a buffer of {}", buffer.bytes)));
        }
        if bytes == 0 {
            return Ok(Vec::new());
        }
        let staging = gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("inspect"),
            size: bytes,
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(&buffer.raw, 0, &staging, 0, bytes);
        let submission = gpu.queue.submit([encoder.finish()]);
        let (sender, mapped) = oneshot::channel();
        staging.map_async(wgpu::MapMode::Read, .., move |result| _ = sender.send(result));
        readback::await_mapping(gpu, mapped, submission).await?;
        let view = staging.get_mapped_range(..).map_err(|error| BackendError::Lost(error.to_string()))?;
        Ok(view.to_vec())
    }

    fn upload(&self, buffer: &GpuBuffer, bytes: &[u8]) -> Result<(), BackendError> {
        if bytes.len() as u64 > buffer.bytes {
            let message = format!("{} bytes for a buffer of {}", bytes.len(), buffer.bytes);
            return Err(BackendError::Validation(message));
        }
        self.gpu.queue.write_buffer(&buffer.raw, 0, bytes);
        self.gpu.faults.check()
    }
}

/// Where the values of a shard lie in `[block][kv_head][slot][head_dim]`, as runs of one (block, shard).
struct Runs {
    blocks: usize,
    heads: usize,
    /// `slot · head_dim` values of one (block, head).
    tile: usize,
}

impl Runs {
    fn of(loaded: &Loaded, layer: u32) -> Result<Self, BackendError> {
        let spec = loaded.plan.kv_layers.get(layer as usize);
        let spec = spec.ok_or_else(|| BackendError::Validation(format!("the plan has no KV layer {layer}")))?;
        Ok(Self {
            blocks: loaded.arena.blocks.get(spec.group as usize).copied().unwrap_or(0) as usize,
            heads: spec.heads as usize,
            tile: (loaded.capacity.block_size * spec.head_dim) as usize,
        })
    }

    /// Start in the whole half, start in the shard, length; one entry per block.
    fn of_shard(&self, shard: &KvShard) -> Vec<(usize, usize, usize)> {
        let (start, heads) = (shard.head_start as usize, shard.heads as usize);
        let run = |block: usize| {
            let whole = (block * self.heads + start) * self.tile;
            (whole, block * heads * self.tile, heads * self.tile)
        };
        (0..self.blocks).map(run).collect()
    }
}

fn half_of(shard: &KvShard, half: KvHalf) -> &GpuBuffer {
    match half {
        KvHalf::Key => &shard.key,
        KvHalf::Value => &shard.value,
    }
}

fn kv_bytes(values: &[f32], format: KvFormat) -> Vec<u8> {
    match format {
        KvFormat::F32 => bytemuck::cast_slice(values).to_vec(),
        KvFormat::F16 => {
            let narrow = values.iter().map(|value| f16::from_f32(crate::plan::format::clamp_f16(*value)));
            narrow.flat_map(f16::to_le_bytes).collect()
        }
    }
}

fn kv_values(bytes: &[u8], format: KvFormat) -> Vec<f32> {
    match format {
        KvFormat::F32 => bytemuck::pod_collect_to_vec(bytes),
        KvFormat::F16 => bytes.chunks_exact(2).map(|pair| f16::from_le_bytes([pair[0], pair[1]]).to_f32()).collect(),
    }
}

impl Inspect for WgpuBackend {
    fn write_buffer(&mut self, buffer: BufferId, values: &[f32]) -> Result<(), BackendError> {
        let loaded = self.loaded()?;
        let spec = loaded.plan.buffer_spec(buffer);
        // A tail runs in groups of rows where a limit is tight: later groups reuse the rows that the buffer holds.
        let (tokens, samples) = (loaded.capacity.tokens_max, loaded.capacity.samples_max);
        let values_max = spec.rows.count(tokens, samples) as usize * spec.columns as usize;
        let held = spec.rows.count(tokens, loaded.arena.group_rows);
        if values.len() > values_max {
            let message = format!("{} values for buffer {} of {values_max}", values.len(), spec.name);
            return Err(BackendError::Validation(message));
        }
        let values = &values[..values.len().min(held as usize * spec.columns as usize)];
        self.upload(loaded.arena.row_buffer(buffer), bytemuck::cast_slice(values))
    }

    async fn read_buffer(&mut self, buffer: BufferId, rows: u32) -> Result<Vec<f32>, BackendError> {
        let loaded = self.loaded()?;
        let bytes = u64::from(rows) * u64::from(loaded.plan.buffer_spec(buffer).columns) * 4;
        let bytes = self.download(loaded.arena.row_buffer(buffer), bytes).await?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }

    fn write_kv(&mut self, layer: u32, half: KvHalf, values: &[f32]) -> Result<(), BackendError> {
        let loaded = self.loaded()?;
        let runs = Runs::of(loaded, layer)?;
        let expected = runs.blocks * runs.heads * runs.tile;
        if values.len() != expected {
            let message = format!("{} values for a half of {expected}", values.len());
            return Err(BackendError::Validation(message));
        }
        for shard in loaded.arena.kv.get(layer as usize).ok_or_else(not_loaded)? {
            let mut part = Vec::new();
            for (whole, _, len) in runs.of_shard(shard) {
                part.extend_from_slice(&values[whole..whole + len]);
            }
            self.upload(half_of(shard, half), &kv_bytes(&part, loaded.capacity.kv_format))?;
        }
        Ok(())
    }

    async fn read_kv(&mut self, layer: u32, half: KvHalf) -> Result<Vec<f32>, BackendError> {
        let loaded = self.loaded()?;
        let runs = Runs::of(loaded, layer)?;
        let format = loaded.capacity.kv_format;
        let mut values = vec![0.0; runs.blocks * runs.heads * runs.tile];
        for shard in loaded.arena.kv.get(layer as usize).ok_or_else(not_loaded)? {
            let count = runs.blocks * shard.heads as usize * runs.tile;
            let bytes = count as u64 * u64::from(format.storage().bytes());
            let part = kv_values(&self.download(half_of(shard, half), bytes).await?, format);
            for (whole, at, len) in runs.of_shard(shard) {
                values[whole..whole + len].copy_from_slice(&part[at..at + len]);
            }
        }
        Ok(values)
    }

    fn write_feed(&mut self, token_ids: &[u32]) -> Result<(), BackendError> {
        self.upload(&self.loaded()?.arena.feed, bytemuck::cast_slice(token_ids))
    }

    async fn read_feed(&mut self, slots: u32) -> Result<Vec<u32>, BackendError> {
        let bytes = self.download(&self.loaded()?.arena.feed, u64::from(slots) * 4).await?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }
}
