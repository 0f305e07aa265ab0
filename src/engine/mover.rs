//! Moves the bytes of blocks between a device and host memory, as batches say.

use super::batch::Batch;
use super::faults::{InjectedFault, InjectedFaults};
use super::tiers::{HostSlot, HostTier, Rates};
use crate::backend::{Backend, BackendError, BlockRef};
use crate::platform::Instant;
use bytes::Bytes;

/// The bytes of the blocks in host memory, by slot.
#[derive(Debug, Default)]
pub(super) struct Mover {
    slots: Vec<Bytes>,
    pub(super) rates: Rates,
    faults: InjectedFaults,
    /// Uploads that an injected bug holds back for a step.
    late: Vec<(BlockRef, Bytes)>,
}

impl Mover {
    pub(super) fn new(faults: InjectedFaults) -> Self {
        Self { faults, ..Self::default() }
    }

    /// Measures an upload, so that the first decisions are informed. The pool is still empty; its first block is read
    /// and written back.
    pub(super) async fn calibrate<B: Backend>(&mut self, backend: &mut B) -> Result<(), BackendError> {
        if !backend.has_real_times() {
            return Ok(());
        }
        let block = BlockRef { group: 0, block: 0 };
        // The first copy also makes the buffers that copies go through.
        for _ in 0..2 {
            let ticket = backend.save_blocks(&[block])?;
            let bytes = backend.saved_blocks(ticket).await?.swap_remove(0);
            let (count, start) = (bytes.len() as u64, Instant::now());
            backend.restore_blocks(&[(block, bytes)])?;
            backend.settle().await?;
            self.rates = Rates::default();
            self.note_upload(backend, count, start);
        }
        Ok(())
    }

    /// Starts the copies of a batch's leaving blocks, and uploads its arriving ones: before the batch is submitted.
    /// Returns the ticket of the copies, if there are any.
    pub(super) fn start<B: Backend>(
        &mut self,
        backend: &mut B,
        batch: &Batch,
    ) -> Result<Option<B::Saves>, BackendError> {
        let leaving: Vec<_> =
            batch.saves.iter().map(|save| BlockRef { group: save.group, block: save.block }).collect();
        let saves = if leaving.is_empty() { None } else { Some(backend.save_blocks(&leaving)?) };
        let arriving = batch.restores.iter().map(|restore| {
            let bytes = self.slots.get(restore.slot as usize).cloned().unwrap_or_default();
            (BlockRef { group: restore.group, block: restore.block }, bytes)
        });
        let mut arriving: Vec<_> = arriving.collect();
        if self.faults.has(InjectedFault::RestoredLate) {
            std::mem::swap(&mut arriving, &mut self.late);
        }
        if !arriving.is_empty() {
            let (bytes, start) = (arriving.iter().map(|(_, bytes)| bytes.len() as u64).sum(), Instant::now());
            backend.restore_blocks(&arriving)?;
            self.note_upload(backend, bytes, start);
        }
        Ok(saves)
    }

    /// Stores the copies of a batch that has been read.
    pub(super) fn store(&mut self, batch: &Batch, saved: Vec<Bytes>) {
        assert_eq!(saved.len(), batch.saves.len(), "every leaving block has a copy");
        for (save, bytes) in batch.saves.iter().zip(saved) {
            let slot = save.slot as usize;
            self.slots.resize(self.slots.len().max(slot + 1), Bytes::new());
            self.slots[slot] = bytes;
        }
    }

    /// Drops the bytes of slots that are no longer in use.
    pub(super) fn trim(&mut self, host: &HostTier) {
        for (slot, bytes) in (0..).zip(&mut self.slots).filter(|(_, bytes)| !bytes.is_empty()) {
            if !host.is_used(slot as HostSlot) {
                *bytes = Bytes::new();
            }
        }
    }

    fn note_upload<B: Backend>(&mut self, backend: &B, bytes: u64, start: Instant) {
        if backend.has_real_times() {
            self.rates.note_upload(bytes, start.elapsed());
        }
    }
}
