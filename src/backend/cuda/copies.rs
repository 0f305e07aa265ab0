//! Copies of KV blocks and state slots to and from host memory. Keys and values of a block are two spans of memory per
//! layer, a state is one.

use super::super::host::check_block;
use super::super::{BackendError, BlockRef};
use super::driver::{Copies, Driver, Span};
use super::{LoadedPlan, READ_TIMEOUT};
use bytes::Bytes;

/// Copies of blocks in flight to pinned memory.
pub struct Saves {
    copies: Copies,
    /// Bytes of each block, in order.
    blocks: Vec<usize>,
}

impl LoadedPlan {
    fn check_block(&self, block: BlockRef, copy: Option<&[u8]>) -> Result<(), BackendError> {
        check_block(&self.plan, &self.capacity, &self.arena.blocks, block, copy)
    }

    /// The memory of a block, in the order of its copy.
    fn spans(&self, block: BlockRef) -> Vec<Span> {
        if self.plan.state_group() == Some(block.group) {
            let states = self.plan.state_layers.iter().zip(&self.arena.states);
            return states
                .map(|(layer, address)| {
                    let bytes = layer.bytes();
                    let bytes_before = u64::from(block.block) * bytes;
                    Span {
                        address: address + bytes_before,
                        bytes: usize::try_from(bytes).expect("a state fits memory"),
                    }
                })
                .collect();
        }
        let layers = (0..)
            .zip(&self.plan.kv_layers)
            .filter(|(_, layer)| layer.group as usize == block.group);
        let spans = layers.flat_map(|(index, layer)| {
            let bytes = layer.heads as usize * self.capacity.kv_tile(layer.head_dim).words() * 4;
            let offset = u64::from(block.block) * bytes as u64;
            let halves = self
                .arena
                .kv(index)
                .into_iter()
                .take(layer.halves() as usize);
            halves.map(move |address| Span {
                address: address + offset,
                bytes,
            })
        });
        spans.collect()
    }

    /// Starts the copies of blocks.
    pub(super) fn save_blocks(
        &self,
        driver: &mut dyn Driver,
        blocks: &[BlockRef],
    ) -> Result<Saves, BackendError> {
        blocks
            .iter()
            .try_for_each(|&block| self.check_block(block, None))?;
        let spans: Vec<_> = blocks.iter().map(|&block| self.spans(block)).collect();
        let sizes = spans
            .iter()
            .map(|spans| spans.iter().map(|span| span.bytes).sum())
            .collect();
        Ok(Saves {
            copies: driver.copy_out(&spans.concat())?,
            blocks: sizes,
        })
    }

    /// Overwrites blocks with copies.
    pub(super) fn restore_blocks(
        &self,
        driver: &mut dyn Driver,
        blocks: &[(BlockRef, Bytes)],
    ) -> Result<(), BackendError> {
        for (block, copy) in blocks {
            self.check_block(*block, Some(copy))?;
        }
        let spans: Vec<_> = blocks
            .iter()
            .flat_map(|(block, _)| self.spans(*block))
            .collect();
        let copies: Vec<_> = blocks.iter().map(|(_, copy)| &copy[..]).collect();
        driver.copy_in(&spans, &copies)
    }
}

/// Waits for copies.
pub(super) fn saved_blocks(
    driver: &mut dyn Driver,
    saves: Saves,
) -> Result<Vec<Bytes>, BackendError> {
    let mut all = Bytes::from(driver.copied(saves.copies, READ_TIMEOUT)?);
    Ok(saves
        .blocks
        .iter()
        .map(|&bytes| all.split_to(bytes))
        .collect())
}
