//! Readback of sampled ids and logprobs through a ring of mapped buffers.

use super::super::BackendError;
use super::super::metadata::{self, RESULT_STRIDE_MAX, Requested};
use super::arena::Arena;
use super::device::Gpu;
use crate::backend::throttle::Load;
use crate::plan::inputs::{BatchInputs, Results};
use crate::platform::Instant;
use futures_channel::oneshot;

/// Maximum batches that are submitted and not yet read.
pub(crate) const SLOTS: usize = 4;

/// Sizes of a batch's results.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    /// Number of sample rows, and words of the result record of each.
    pub(crate) samples: u32,
    pub(crate) stride: u32,
    /// Number of pool rows.
    pub(crate) pools: u32,
    /// Elements per pool row.
    pub(crate) columns: u32,
}

/// Identifies a submitted batch until it is read.
pub struct Ticket {
    slot: usize,
    mapped: oneshot::Receiver<Result<(), wgpu::BufferAsyncError>>,
    submission: wgpu::SubmissionIndex,
    requested: Vec<Requested>,
    counts: Counts,
    pub(crate) load: Load,
    pub(crate) submitted: Instant,
}

/// A ring of buffers that results are copied to and mapped from.
pub(crate) struct Ring {
    slots: Vec<(wgpu::Buffer, bool)>,
    /// Byte offset of the pooled rows in each buffer.
    pooled_offset: u64,
}

/// Byte offset of the pooled rows in a slot for `samples_max` sample rows.
fn pooled_offset(samples_max: u32) -> u64 {
    // Mapping offsets must be multiples of 8.
    (u64::from(samples_max.max(1) * RESULT_STRIDE_MAX) * 4).next_multiple_of(8)
}

/// Bytes of a slot for `samples_max` sample rows and `pooled_words` words of pooled rows.
pub(crate) fn slot_bytes(samples_max: u32, pooled_words: u32) -> u64 {
    pooled_offset(samples_max) + u64::from(pooled_words) * 4
}

impl Ring {
    /// Creates slots for `samples_max` sample rows and `pooled_words` words of pooled rows each.
    pub(crate) fn new(gpu: &Gpu, samples_max: u32, pooled_words: u32) -> Self {
        let pooled_offset = pooled_offset(samples_max);
        let descriptor = wgpu::BufferDescriptor {
            label: Some("readback"),
            size: slot_bytes(samples_max, pooled_words),
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        };
        let slots = (0..SLOTS)
            .map(|_| (gpu.device.create_buffer(&descriptor), false))
            .collect();
        Self {
            slots,
            pooled_offset,
        }
    }

    /// Returns a free slot; it stays free until [`Self::map`].
    pub(crate) fn reserve(&self) -> Result<usize, BackendError> {
        let free = self.slots.iter().position(|(_, busy)| !busy);
        free.ok_or_else(|| BackendError::all_in_flight(SLOTS))
    }

    /// Copies the results to `slot` at the end of `encoder`.
    pub(crate) fn copy(
        &self,
        slot: usize,
        encoder: &mut wgpu::CommandEncoder,
        arena: &Arena,
        counts: Counts,
    ) {
        let target = &self.slots[slot].0;
        encoder.copy_buffer_to_buffer(&arena.results.raw, 0, target, 0, copied_bytes(counts));
        if counts.pools > 0 {
            let bytes = u64::from(counts.pools * counts.columns) * 4;
            encoder.copy_buffer_to_buffer(&arena.pooled.raw, 0, target, self.pooled_offset, bytes);
        }
    }

    /// Bytes of a slot used by a batch's results.
    fn mapped_bytes(&self, counts: Counts) -> u64 {
        match counts.pools {
            0 => copied_bytes(counts),
            pools => self.pooled_offset + u64::from(pools * counts.columns) * 4,
        }
    }

    /// Requests mapping of the slot of a batch that was just submitted.
    pub(crate) fn map(
        &mut self,
        slot: usize,
        submission: wgpu::SubmissionIndex,
        inputs: &BatchInputs,
        counts: Counts,
        load: Load,
    ) -> Ticket {
        let bytes = self.mapped_bytes(counts);
        let mut requested = metadata::requested(inputs);
        requested.truncate(counts.samples as usize);
        let (buffer, busy) = &mut self.slots[slot];
        *busy = true;
        let (sender, mapped) = oneshot::channel();
        buffer.map_async(wgpu::MapMode::Read, 0..bytes, move |result| {
            _ = sender.send(result);
        });
        Ticket {
            slot,
            mapped,
            submission,
            requested,
            counts,
            load,
            submitted: Instant::now(),
        }
    }

    /// Waits for a batch and decodes the results that its rows requested.
    pub(crate) async fn read(
        &mut self,
        gpu: &Gpu,
        ticket: Ticket,
    ) -> Result<Results, BackendError> {
        let Ticket {
            slot,
            mapped,
            submission,
            requested,
            counts,
            ..
        } = ticket;
        let outcome = await_mapping(gpu, mapped, submission).await;
        self.slots[slot].1 = false;
        let buffer = &self.slots[slot].0;
        if let Err(error) = outcome {
            buffer.unmap();
            return Err(error);
        }
        let results = {
            let view = buffer.get_mapped_range(0..self.mapped_bytes(counts));
            let view = view.map_err(|error| BackendError::Lost(error.to_string()))?;
            let words: Vec<u32> = bytemuck::pod_collect_to_vec(&view);
            let pooled = words
                .get(self.pooled_offset as usize / 4..)
                .unwrap_or_default();
            Results {
                sampled: metadata::sampled(&words, &requested),
                pooled: metadata::pooled(pooled, counts.pools as usize, counts.columns as usize),
            }
        };
        buffer.unmap();
        Ok(results)
    }
}

/// Bytes to map: at least a word, so that a batch without samples can be awaited too.
fn copied_bytes(counts: Counts) -> u64 {
    u64::from((counts.samples * counts.stride).max(1)) * 4
}

/// Natively, polls until `submission` has run; in a browser, the event loop completes the mapping.
pub(crate) async fn await_mapping(
    gpu: &Gpu,
    mapped: oneshot::Receiver<Result<(), wgpu::BufferAsyncError>>,
    submission: wgpu::SubmissionIndex,
) -> Result<(), BackendError> {
    if cfg!(not(target_arch = "wasm32")) {
        gpu.poll(wgpu::PollType::Wait {
            submission_index: Some(submission),
            timeout: Some(gpu.read_timeout),
        })?;
    }
    match mapped.await {
        Ok(Ok(())) => gpu.errors.check(),
        failed => {
            gpu.errors.check()?;
            Err(BackendError::Lost(format!(
                "a result could not be mapped: {failed:?}"
            )))
        }
    }
}
