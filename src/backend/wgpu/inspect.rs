//! Direct access to the device's buffers, for kernel checks.

use super::super::{BackendError, Inspect, KvHalf};
use super::arena::{GpuBuffer, KvShard};
use super::{LoadedPlan, WgpuBackend, readback};
use crate::plan::BufferId;
use crate::plan::format::KvTile;
use futures_channel::oneshot;

impl WgpuBackend {
    /// Reads the first `bytes` bytes of a buffer (a multiple of 4), after all work submitted so far.
    async fn download(&self, buffer: &GpuBuffer, bytes: u64) -> Result<Vec<u8>, BackendError> {
        let gpu = &self.gpu;
        if bytes > buffer.bytes {
            return Err(BackendError::Validation(format!(
                "cannot read {bytes} bytes of a buffer of {}",
                buffer.bytes
            )));
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
        let mut encoder = gpu
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(&buffer.raw, 0, &staging, 0, bytes);
        let submission = gpu.queue.submit([encoder.finish()]);
        let (sender, mapped) = oneshot::channel();
        staging.map_async(wgpu::MapMode::Read, .., move |result| {
            _ = sender.send(result);
        });
        readback::await_mapping(gpu, mapped, submission).await?;
        let view = staging
            .get_mapped_range(..)
            .map_err(|error| BackendError::Lost(error.to_string()))?;
        Ok(view.to_vec())
    }

    fn upload(&self, buffer: &GpuBuffer, bytes: &[u8]) -> Result<(), BackendError> {
        if bytes.len() as u64 > buffer.bytes {
            let message = format!(
                "cannot write {} bytes to a buffer of {}",
                bytes.len(),
                buffer.bytes
            );
            return Err(BackendError::Validation(message));
        }
        self.gpu.queue.write_buffer(&buffer.raw, 0, bytes);
        self.gpu.errors.check()
    }
}

/// The tiles of a layer's keys or values; a shard holds the tiles of some heads.
struct Tiles {
    tile: KvTile,
    blocks: usize,
    heads: usize,
}

impl Tiles {
    fn of(loaded: &LoadedPlan, layer: u32) -> Result<Self, BackendError> {
        let spec = loaded.plan.kv_layers.get(layer as usize);
        let spec = spec.ok_or_else(|| BackendError::no_kv_layer(layer))?;
        Ok(Self {
            tile: loaded.capacity.kv_tile(spec.head_dim),
            blocks: loaded
                .arena
                .blocks
                .get(spec.group as usize)
                .copied()
                .unwrap_or(0) as usize,
            heads: spec.heads as usize,
        })
    }

    /// Elements per tile.
    fn elements(&self) -> usize {
        self.tile.slots * self.tile.head_dim
    }

    /// Elements of all tiles.
    fn all_elements(&self) -> usize {
        self.blocks * self.heads * self.elements()
    }

    /// Start of each tile of a shard among the elements of all tiles.
    fn of_shard(&self, shard: &KvShard) -> Vec<usize> {
        let heads = shard.head_start as usize..(shard.head_start + shard.heads) as usize;
        (0..self.blocks)
            .flat_map(|block| {
                heads
                    .clone()
                    .map(move |head| (block * self.heads + head) * self.elements())
            })
            .collect()
    }

    fn encode(&self, values: &[f32], words: &mut [u32]) {
        for (slot, row) in values.chunks_exact(self.tile.head_dim).enumerate() {
            self.tile.encode(words, slot, row);
        }
    }

    fn decode(&self, words: &[u32], values: &mut [f32]) {
        for (slot, row) in values.chunks_exact_mut(self.tile.head_dim).enumerate() {
            self.tile.decode(words, slot, row);
        }
    }
}

fn half_of(shard: &KvShard, half: KvHalf) -> &GpuBuffer {
    match half {
        KvHalf::Key => &shard.key,
        KvHalf::Value => shard.value(),
    }
}

/// The states of a layer, and their number of elements in all slots.
fn states(loaded: &LoadedPlan, layer: u32) -> Result<(&GpuBuffer, usize), BackendError> {
    let spec = loaded
        .plan
        .state_layers
        .get(layer as usize)
        .ok_or_else(|| BackendError::no_state_layer(layer))?;
    let elements = loaded.capacity.state_slots as usize * spec.elements as usize;
    Ok((&loaded.arena.states[layer as usize], elements))
}

impl Inspect for WgpuBackend {
    fn write_buffer(&mut self, buffer: BufferId, values: &[f32]) -> Result<(), BackendError> {
        let loaded = self.loaded()?;
        let spec = loaded.plan.buffer_spec(buffer);
        // If a limit is tight, a tail runs in groups of rows: later groups reuse the rows of the buffer.
        let (tokens, samples) = (loaded.capacity.tokens_max, loaded.capacity.samples_max);
        let values_max = spec.rows.count(tokens, samples) as usize * spec.columns as usize;
        let held = spec.rows.count(tokens, loaded.arena.group_rows);
        if values.len() > values_max {
            return Err(BackendError::values(values.len(), spec.name, values_max));
        }
        let values = &values[..values.len().min(held as usize * spec.columns as usize)];
        self.upload(
            loaded.arena.row_buffer(buffer),
            bytemuck::cast_slice(values),
        )
    }

    async fn read_buffer(&mut self, buffer: BufferId, rows: u32) -> Result<Vec<f32>, BackendError> {
        let loaded = self.loaded()?;
        let bytes = u64::from(rows) * u64::from(loaded.plan.buffer_spec(buffer).columns) * 4;
        let bytes = self
            .download(loaded.arena.row_buffer(buffer), bytes)
            .await?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }

    fn write_kv(&mut self, layer: u32, half: KvHalf, values: &[f32]) -> Result<(), BackendError> {
        let loaded = self.loaded()?;
        let tiles = Tiles::of(loaded, layer)?;
        if values.len() != tiles.all_elements() {
            return Err(BackendError::values(
                values.len(),
                "a half",
                tiles.all_elements(),
            ));
        }
        for shard in loaded
            .arena
            .kv
            .get(layer as usize)
            .ok_or_else(BackendError::no_pool)?
        {
            let starts = tiles.of_shard(shard);
            let mut words = vec![0u32; starts.len() * tiles.tile.words()];
            for (start, words) in starts
                .into_iter()
                .zip(words.chunks_exact_mut(tiles.tile.words()))
            {
                tiles.encode(&values[start..start + tiles.elements()], words);
            }
            self.upload(half_of(shard, half), bytemuck::cast_slice(&words))?;
        }
        Ok(())
    }

    async fn read_kv(&mut self, layer: u32, half: KvHalf) -> Result<Vec<f32>, BackendError> {
        let loaded = self.loaded()?;
        let tiles = Tiles::of(loaded, layer)?;
        let mut values = vec![0.0; tiles.all_elements()];
        for shard in loaded
            .arena
            .kv
            .get(layer as usize)
            .ok_or_else(BackendError::no_pool)?
        {
            let bytes = tiles.blocks * shard.heads as usize * tiles.tile.words() * 4;
            let bytes = self.download(half_of(shard, half), bytes as u64).await?;
            let words: Vec<u32> = bytemuck::pod_collect_to_vec(&bytes);
            for (start, words) in tiles
                .of_shard(shard)
                .into_iter()
                .zip(words.chunks_exact(tiles.tile.words()))
            {
                tiles.decode(words, &mut values[start..start + tiles.elements()]);
            }
        }
        Ok(values)
    }

    fn write_state(&mut self, layer: u32, values: &[f32]) -> Result<(), BackendError> {
        let loaded = self.loaded()?;
        let (buffer, elements) = states(loaded, layer)?;
        if values.len() != elements {
            return Err(BackendError::values(
                values.len(),
                "the states of a layer",
                elements,
            ));
        }
        self.upload(buffer, bytemuck::cast_slice(values))
    }

    async fn read_state(&mut self, layer: u32) -> Result<Vec<f32>, BackendError> {
        let (buffer, elements) = states(self.loaded()?, layer)?;
        Ok(bytemuck::pod_collect_to_vec(
            &self.download(buffer, 4 * elements as u64).await?,
        ))
    }

    fn write_feed(&mut self, token_ids: &[u32]) -> Result<(), BackendError> {
        self.upload(&self.loaded()?.arena.feed, bytemuck::cast_slice(token_ids))
    }

    async fn read_feed(&mut self, slots: u32) -> Result<Vec<u32>, BackendError> {
        let bytes = self
            .download(&self.loaded()?.arena.feed, u64::from(slots) * 4)
            .await?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }
}
