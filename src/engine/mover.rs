//! Moves the bytes of blocks between a device and host memory, as batches say.

use super::batch::Batch;
use super::memory::{HostSlot, HostTier, Rates, Save};
use super::request::Request;
use super::scheduler::{Limits, Scheduler};
use super::sequence::StreamId;
use crate::backend::{Backend, BackendError, BlockRef};
use crate::platform::Instant;
use bytes::Bytes;
use std::sync::Arc;

/// Tokens of the step that is measured at the start, if the longest sequence has as many.
const TRIAL_TOKENS: u32 = 64;
/// Bytes that are copied at the start, if the longest sequence has as many.
const TRIAL_BYTES_MAX: u64 = 64 << 20;
/// Not every upload to an idle device is measured, because the device is waited for then: at most one of so many.
const UPLOADS_PER_MEASURED: u32 = 8;

/// The bytes of the blocks in host memory, by slot.
#[derive(Debug, Default)]
pub(super) struct Mover {
    slots: Vec<Bytes>,
    pub(super) rates: Rates,
    /// Uploads since one was measured.
    unmeasured: u32,
}

impl Mover {
    /// A mover of no blocks yet. If there are tiers, it measures what its first decisions need.
    pub(super) async fn calibrated<B: Backend>(
        backend: &mut B,
        limits: &Limits,
    ) -> Result<Self, BackendError> {
        let mut mover = Self::default();
        if limits.memory.tiers.host_bytes > 0 {
            mover.calibrate(backend, limits).await?;
        }
        Ok(mover)
    }

    /// Measures an upload and a step of prompt tokens, so that the first decisions are informed. The pool is still
    /// empty, and nothing that is left in it is ever read.
    pub(super) async fn calibrate<B: Backend>(
        &mut self,
        backend: &mut B,
        limits: &Limits,
    ) -> Result<(), BackendError> {
        if let Some(times) = backend.given_times() {
            self.rates = Rates::given(times.byte, times.token);
            return Ok(());
        }
        let blocks = trial_blocks(limits);
        // Two steps may be in flight. This makes the buffers that later copies go through, so that a device which has
        // no memory for them refuses now.
        let tickets = [backend.save_blocks(&blocks)?, backend.save_blocks(&blocks)?];
        let mut copies = Vec::new();
        for ticket in tickets {
            copies = backend.saved_blocks(ticket).await?;
        }
        let copies: Vec<_> = blocks.into_iter().zip(copies).collect();
        // The first upload is slower than later ones.
        for _ in 0..2 {
            self.rates = Rates::default();
            self.upload_measured(backend, &copies).await?;
        }
        self.time_prefill(backend, limits).await
    }

    /// Measures a step of prompt tokens.
    async fn time_prefill<B: Backend>(
        &mut self,
        backend: &mut B,
        limits: &Limits,
    ) -> Result<(), BackendError> {
        let tokens = TRIAL_TOKENS
            .min(limits.max_model_len - 1)
            .min(limits.tokens_max);
        let mut trial = Scheduler::new(limits.clone());
        let request = Request {
            prompt: vec![0; tokens as usize].into(),
            ..Request::default()
        };
        trial.add(Arc::new(request), &[StreamId(0)], 0, false);
        let Some(batch) = trial.schedule(limits.tokens_max) else {
            return Ok(());
        };
        let (inputs, start) = (trial.flatten(&batch), Instant::now());
        let ticket = backend.submit(&inputs)?;
        backend.read(ticket).await?;
        self.rates
            .note_prefill(batch.prefill_tokens(), start.elapsed());
        Ok(())
    }

    /// Uploads blocks and measures how long that takes until they have arrived. Where a device works beside the host,
    /// the call itself takes no longer than passing the bytes on; a copy of one of the blocks follows the upload.
    async fn upload_measured<B: Backend>(
        &mut self,
        backend: &mut B,
        blocks: &[(BlockRef, Bytes)],
    ) -> Result<(), BackendError> {
        let (bytes, start) = (
            blocks.iter().map(|(_, bytes)| bytes.len() as u64).sum(),
            Instant::now(),
        );
        backend.restore_blocks(blocks)?;
        let last = blocks.last().map(|(block, _)| *block);
        let ticket = backend.save_blocks(last.as_slice())?;
        backend.saved_blocks(ticket).await?;
        self.rates.note_upload(bytes, start.elapsed());
        self.unmeasured = 0;
        Ok(())
    }

    /// Starts the copies of a batch's leaving blocks, and uploads its arriving ones: before the batch is submitted.
    /// Returns the ticket of the copies, if there are any. The device is idle if no batch is in flight.
    pub(super) async fn start<B: Backend>(
        &mut self,
        backend: &mut B,
        batch: &Batch,
        is_idle: bool,
    ) -> Result<Option<B::Saves>, BackendError> {
        let leaving = Self::leaving(&batch.moves.saves);
        let saves = if leaving.is_empty() {
            None
        } else {
            Some(backend.save_blocks(&leaving)?)
        };
        let arriving = batch.moves.restores.iter().map(|restore| {
            let bytes = self
                .slots
                .get(restore.slot as usize)
                .cloned()
                .unwrap_or_default();
            (
                BlockRef {
                    group: restore.group,
                    block: restore.block,
                },
                bytes,
            )
        });
        let arriving: Vec<_> = arriving.collect();
        if !arriving.is_empty() {
            self.upload(backend, &arriving, is_idle && saves.is_none())
                .await?;
        }
        Ok(saves)
    }

    /// Uploads blocks, and measures it now and then if nothing else keeps the device busy.
    async fn upload<B: Backend>(
        &mut self,
        backend: &mut B,
        blocks: &[(BlockRef, Bytes)],
        is_alone: bool,
    ) -> Result<(), BackendError> {
        self.unmeasured += 1;
        if is_alone && self.unmeasured >= UPLOADS_PER_MEASURED && backend.given_times().is_none() {
            self.upload_measured(backend, blocks).await
        } else {
            backend.restore_blocks(blocks)
        }
    }

    /// The blocks to copy.
    pub(super) fn leaving(saves: &[Save]) -> Vec<BlockRef> {
        saves
            .iter()
            .map(|save| BlockRef {
                group: save.group,
                block: save.block,
            })
            .collect()
    }

    /// Stores the bytes of a block that has arrived in host memory.
    pub(super) fn fill(&mut self, slot: HostSlot, bytes: Bytes) {
        let slot = slot as usize;
        self.slots
            .resize(self.slots.len().max(slot + 1), Bytes::new());
        self.slots[slot] = bytes;
    }

    /// Drops the bytes of slots that are no longer in use.
    pub(super) fn trim(&mut self, host: &HostTier) {
        for (slot, bytes) in (0..)
            .zip(&mut self.slots)
            .filter(|(_, bytes)| !bytes.is_empty())
        {
            if !host.is_used(slot as HostSlot) {
                *bytes = Bytes::new();
            }
        }
    }
}

/// The blocks of the longest sequence, or as many of them as are copied at the start.
fn trial_blocks(limits: &Limits) -> Vec<BlockRef> {
    let groups = limits.blocks_of_longest().into_iter().enumerate();
    let blocks =
        groups.flat_map(|(group, count)| (0..count).map(move |block| BlockRef { group, block }));
    let mut bytes = 0;
    let mut some: Vec<_> = blocks
        .take_while(|block| {
            bytes += limits.memory.tiers.block_bytes[block.group];
            bytes <= TRIAL_BYTES_MAX
        })
        .collect();
    if some.is_empty() {
        some.push(BlockRef { group: 0, block: 0 });
    }
    some
}

#[cfg(test)]
mod tests;
