//! Copies of KV blocks and state slots to and from host memory.
//!
//! A block's tiles, or the states of a slot, are gathered into one staging buffer per call, on the queue and so in
//! order with the batches. Maps are asynchronous: the copies are read when the batch after them is read, when they have
//! long completed.

use super::super::host::check_block;
use super::super::{BackendError, BlockRef};
use super::LoadedPlan;
use super::arena::GpuBuffer;
use super::device::Gpu;
use super::readback::await_mapping;
use bytes::Bytes;
use futures_channel::oneshot;

/// Maximum bytes of a staging buffer, unless one block alone is larger.
const STAGING_BYTES_MAX: u64 = 64 << 20;
/// Number of staging buffers that are kept for later copies.
const KEPT_MAX: usize = 4;

/// Copies of blocks in flight to host memory.
pub struct Saves(Vec<Staged>);

/// Some blocks in one staging buffer.
struct Staged {
    buffer: wgpu::Buffer,
    mapped: oneshot::Receiver<Result<(), wgpu::BufferAsyncError>>,
    submission: wgpu::SubmissionIndex,
    /// Bytes of each block, in order.
    blocks: Vec<u64>,
}

/// Part of a block or state slot: bytes that are adjacent on the device.
struct Part<'a> {
    buffer: &'a GpuBuffer,
    /// Byte offset in the buffer.
    device: u64,
    /// Byte offset in the copy of the block.
    copy: u64,
    bytes: u64,
}

/// Staging buffers that were read and can be used again.
#[derive(Default)]
pub(crate) struct Staging(Vec<wgpu::Buffer>);

impl LoadedPlan {
    fn block_bytes(&self, group: usize) -> u64 {
        self.plan
            .block_bytes(group, self.capacity.block_size, self.capacity.kv_format)
    }

    /// The parts of a block, in the order of its copy.
    fn parts(&self, block: BlockRef) -> Vec<Part<'_>> {
        let (mut parts, mut copy) = (Vec::new(), 0);
        if self.plan.state_group() == Some(block.group) {
            for (layer, buffer) in self.plan.state_layers.iter().zip(&self.arena.states) {
                let bytes = layer.bytes();
                parts.push(Part {
                    buffer,
                    device: u64::from(block.block) * bytes,
                    copy,
                    bytes,
                });
                copy += bytes;
            }
        }
        for (layer, shards) in self.plan.kv_layers.iter().zip(&self.arena.kv) {
            if layer.group as usize != block.group {
                continue;
            }
            let tile_bytes = self.capacity.kv_tile(layer.head_dim).words() as u64 * 4;
            let keys = shards.iter().map(|shard| (&shard.key, shard.heads));
            let values = shards
                .iter()
                .filter_map(|shard| Some((shard.own_value.as_ref()?, shard.heads)));
            for (buffer, heads) in keys.chain(values) {
                let bytes = u64::from(heads) * tile_bytes;
                parts.push(Part {
                    buffer,
                    device: u64::from(block.block) * bytes,
                    copy,
                    bytes,
                });
                copy += bytes;
            }
        }
        debug_assert_eq!(copy, self.block_bytes(block.group), "a copy has all parts");
        parts
    }

    /// The blocks in runs that fit a staging buffer.
    fn runs<'a>(
        &self,
        gpu: &Gpu,
        blocks: impl Iterator<Item = BlockRef> + 'a,
    ) -> Vec<Vec<BlockRef>> {
        let (limit, mut runs, mut left) = (
            STAGING_BYTES_MAX.min(gpu.profile.buffer_bytes_max),
            Vec::new(),
            0,
        );
        for block in blocks {
            let bytes = self.block_bytes(block.group);
            if bytes > left || runs.is_empty() {
                runs.push(Vec::new());
                left = limit.max(bytes);
            }
            left -= bytes;
            runs.last_mut().expect("a run was just added").push(block);
        }
        runs
    }

    /// Starts the copies of blocks.
    pub(crate) fn save_blocks(
        &mut self,
        gpu: &Gpu,
        blocks: &[BlockRef],
    ) -> Result<Saves, BackendError> {
        blocks.iter().try_for_each(|&block| {
            check_block(&self.plan, &self.capacity, &self.arena.blocks, block, None)
        })?;
        let mut staging = std::mem::take(&mut self.staging);
        let runs = self.runs(gpu, blocks.iter().copied());
        let staged = runs
            .iter()
            .map(|run| self.save_run(gpu, &mut staging, run))
            .collect::<Result<_, _>>();
        self.staging = staging;
        Ok(Saves(staged?))
    }

    fn save_run(
        &self,
        gpu: &Gpu,
        staging: &mut Staging,
        run: &[BlockRef],
    ) -> Result<Staged, BackendError> {
        let blocks: Vec<_> = run
            .iter()
            .map(|block| self.block_bytes(block.group))
            .collect();
        let total = blocks.iter().sum();
        let buffer = staging.take(gpu, total)?;
        let mut encoder = gpu
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut start = 0;
        for (&block, bytes) in run.iter().zip(&blocks) {
            for part in self.parts(block) {
                let to = start + part.copy;
                encoder.copy_buffer_to_buffer(
                    &part.buffer.raw,
                    part.device,
                    &buffer,
                    to,
                    part.bytes,
                );
            }
            start += bytes;
        }
        let submission = gpu.queue.submit([encoder.finish()]);
        gpu.errors.check()?;
        let (sender, mapped) = oneshot::channel();
        buffer.map_async(wgpu::MapMode::Read, 0..total, move |result| {
            _ = sender.send(result);
        });
        Ok(Staged {
            buffer,
            mapped,
            submission,
            blocks,
        })
    }

    /// Waits for copies.
    pub(crate) async fn saved_blocks(
        &mut self,
        gpu: &Gpu,
        saves: Saves,
    ) -> Result<Vec<Bytes>, BackendError> {
        let mut copies = Vec::new();
        for Staged {
            buffer,
            mapped,
            submission,
            blocks,
        } in saves.0
        {
            await_mapping(gpu, mapped, submission).await?;
            {
                let view = buffer.get_mapped_range(0..blocks.iter().sum());
                let view = view.map_err(|error| BackendError::Lost(error.to_string()))?;
                let mut start = 0;
                for bytes in blocks {
                    let end =
                        start + usize::try_from(bytes).expect("a mapped buffer is addressable");
                    copies.push(Bytes::copy_from_slice(&view[start..end]));
                    start = end;
                }
            }
            buffer.unmap();
            self.staging.keep(buffer);
        }
        Ok(copies)
    }

    /// Overwrites blocks with copies.
    pub(crate) fn restore_blocks(
        &self,
        gpu: &Gpu,
        blocks: &[(BlockRef, Bytes)],
    ) -> Result<(), BackendError> {
        for (block, bytes) in blocks {
            check_block(
                &self.plan,
                &self.capacity,
                &self.arena.blocks,
                *block,
                Some(bytes),
            )?;
        }
        let mut copies = blocks.iter().map(|(_, bytes)| bytes);
        for run in self.runs(gpu, blocks.iter().map(|(block, _)| *block)) {
            let total = run.iter().map(|block| self.block_bytes(block.group)).sum();
            let usage = wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
            let buffer = create(gpu, "upload of KV blocks", total, usage)?;
            let mut encoder = gpu
                .device
                .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            let mut start = 0;
            for (block, bytes) in run.into_iter().zip(&mut copies) {
                gpu.queue.write_buffer(&buffer, start, bytes);
                for part in self.parts(block) {
                    let from = start + part.copy;
                    encoder.copy_buffer_to_buffer(
                        &buffer,
                        from,
                        &part.buffer.raw,
                        part.device,
                        part.bytes,
                    );
                }
                start += bytes.len() as u64;
            }
            gpu.queue.submit([encoder.finish()]);
        }
        gpu.errors.check()
    }
}

impl Staging {
    /// A buffer of at least this size.
    fn take(&mut self, gpu: &Gpu, bytes: u64) -> Result<wgpu::Buffer, BackendError> {
        if let Some(kept) = self.0.iter().position(|buffer| buffer.size() >= bytes) {
            return Ok(self.0.swap_remove(kept));
        }
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        create(
            gpu,
            "copies of KV blocks",
            bytes
                .next_power_of_two()
                .min(gpu.profile.buffer_bytes_max)
                .max(bytes),
            usage,
        )
    }

    /// Keeps a buffer for later; of too many, the largest stay.
    fn keep(&mut self, buffer: wgpu::Buffer) {
        self.0.push(buffer);
        self.0.sort_by_key(wgpu::Buffer::size);
        if self.0.len() > KEPT_MAX {
            self.0.remove(0);
        }
    }
}

fn create(
    gpu: &Gpu,
    label: &str,
    bytes: u64,
    usage: wgpu::BufferUsages,
) -> Result<wgpu::Buffer, BackendError> {
    let descriptor = wgpu::BufferDescriptor {
        label: Some(label),
        size: bytes,
        usage,
        mapped_at_creation: false,
    };
    gpu.catch(|| gpu.device.create_buffer(&descriptor))
        .map_err(|error| match error {
            wgpu::Error::OutOfMemory { .. } => BackendError::OutOfMemory {
                what: label.into(),
                bytes,
            },
            other => BackendError::Validation(other.to_string()),
        })
}
