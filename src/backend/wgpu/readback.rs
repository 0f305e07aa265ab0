//! The way back: sampled ids and logprobs, through a ring of mapped buffers.

use super::super::BackendError;
use super::super::words::{self, SAMPLE_WORDS, Wanted};
use super::arena::GpuBuffer;
use super::device::Gpu;
use super::pace::Instant;
use crate::plan::inputs::{BatchInputs, Sampled};
use futures_channel::oneshot;

/// Batches that may be submitted and not yet read.
const SLOTS: usize = 4;

/// Names a submitted batch until it is read.
pub struct Ticket {
    slot: usize,
    mapped: oneshot::Receiver<Result<(), wgpu::BufferAsyncError>>,
    submission: wgpu::SubmissionIndex,
    wanted: Vec<Wanted>,
    pub(crate) tokens: u32,
    pub(crate) submitted: Instant,
}

/// Buffers that results are copied to and mapped from.
pub(crate) struct Ring {
    slots: Vec<(wgpu::Buffer, bool)>,
}

impl Ring {
    /// Slots for `samples_max` rows each.
    pub(crate) fn new(gpu: &Gpu, samples_max: u32) -> Self {
        let descriptor = wgpu::BufferDescriptor {
            label: Some("readback"),
            size: u64::from(samples_max.max(1) * SAMPLE_WORDS) * 4,
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        };
        Self { slots: (0..SLOTS).map(|_| (gpu.device.create_buffer(&descriptor), false)).collect() }
    }

    /// A free slot; it stays free until [`Self::map`].
    pub(crate) fn reserve(&self) -> Result<usize, BackendError> {
        let free = self.slots.iter().position(|(_, busy)| !busy);
        free.ok_or_else(|| BackendError::Validation(format!("{SLOTS} batches are submitted and none is read")))
    }

    /// Copies the results of `samples` rows to `slot` at the end of `encoder`.
    pub(crate) fn copy(&self, slot: usize, encoder: &mut wgpu::CommandEncoder, results: &GpuBuffer, samples: u32) {
        encoder.copy_buffer_to_buffer(&results.raw, 0, &self.slots[slot].0, 0, copied_bytes(samples));
    }

    /// Asks for the slot of a batch that was just submitted.
    pub(crate) fn map(
        &mut self,
        slot: usize,
        submission: wgpu::SubmissionIndex,
        inputs: &BatchInputs,
        samples: u32,
    ) -> Ticket {
        let mut wanted = words::wanted(inputs);
        wanted.truncate(samples as usize);
        let (buffer, busy) = &mut self.slots[slot];
        *busy = true;
        let (sender, mapped) = oneshot::channel();
        let bytes = copied_bytes(u32::try_from(wanted.len()).expect("sample rows are counted in u32"));
        buffer.map_async(wgpu::MapMode::Read, 0..bytes, move |result| _ = sender.send(result));
        let tokens = u32::try_from(inputs.token_ids.len()).expect("token rows are counted in u32");
        Ticket { slot, mapped, submission, wanted, tokens, submitted: Instant::now() }
    }

    /// Waits for a batch and decodes what its rows asked for.
    pub(crate) async fn read(&mut self, gpu: &Gpu, ticket: Ticket) -> Result<Vec<Sampled>, BackendError> {
        let Ticket { slot, mapped, submission, wanted, .. } = ticket;
        let outcome = await_mapping(gpu, mapped, submission).await;
        self.slots[slot].1 = false;
        let buffer = &self.slots[slot].0;
        if let Err(error) = outcome {
            buffer.unmap();
            return Err(error);
        }
        let count = u32::try_from(wanted.len()).expect("sample rows are counted in u32");
        let sampled = {
            let view = buffer.get_mapped_range(0..copied_bytes(count));
            let view = view.map_err(|error| BackendError::Lost(error.to_string()))?;
            let words: Vec<u32> = bytemuck::pod_collect_to_vec(&view);
            words::sampled(&words, &wanted)
        };
        buffer.unmap();
        Ok(sampled)
    }
}

/// At least a word, so that a batch without samples can be waited for too.
fn copied_bytes(samples: u32) -> u64 {
    u64::from((samples * SAMPLE_WORDS).max(1)) * 4
}

/// Natively polls until `submission` has run; in a browser the event loop completes the mapping.
pub(crate) async fn await_mapping(
    gpu: &Gpu,
    mapped: oneshot::Receiver<Result<(), wgpu::BufferAsyncError>>,
    submission: wgpu::SubmissionIndex,
) -> Result<(), BackendError> {
    if cfg!(not(target_arch = "wasm32")) {
        gpu.poll(wgpu::PollType::Wait { submission_index: Some(submission), timeout: Some(gpu.read_timeout) })?;
    }
    match mapped.await {
        Ok(Ok(())) => gpu.faults.check(),
        failed => {
            gpu.faults.check()?;
            Err(BackendError::Lost(format!("a result could not be mapped: {failed:?}")))
        }
    }
}
