//! What a step moves between device and host memory, and what it copies.

use super::file_index::{DiskUse, Origin};
use super::holding::SequenceId;
use super::host::HostSlot;
use super::pool::BlockId;
use std::sync::Arc;

/// Sizes of the tiers; the default has only the device.
#[derive(Clone, Debug, Default)]
pub struct TierLimits {
    /// Bytes of host memory for KV blocks; 0 for none.
    pub host_bytes: u64,
    /// Bytes of a block of each KV group, and of a state slot if the model keeps states.
    pub block_bytes: Vec<u64>,
    /// What blocks on disk are used for.
    pub disk: DiskUse,
}

/// A block that is copied to a host slot, to a file or to both before its step.
#[derive(Clone, Debug)]
pub(crate) struct Save {
    /// KV group, or that of the state slots.
    pub(crate) group: usize,
    pub(crate) block: BlockId,
    pub(crate) slot: Option<HostSlot>,
    /// What it holds, if a file of it is to be written.
    pub(crate) origin: Option<Arc<Origin>>,
}

/// A block that is uploaded from a host slot before its step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Restore {
    /// The sequence that was admitted with it.
    pub(crate) sequence: SequenceId,
    /// KV group, or that of the state slots.
    pub(crate) group: usize,
    pub(crate) block: BlockId,
    pub(crate) slot: HostSlot,
}

/// What a step moves and copies before its rows run: saves first, then restores, then copies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moves {
    /// Blocks to copy to host memory or to a file.
    pub(crate) saves: Vec<Save>,
    /// Blocks to upload from host memory.
    pub(crate) restores: Vec<Restore>,
    /// Copy-on-write copies (source, target), per KV group.
    pub(crate) copies: Vec<Vec<(BlockId, BlockId)>>,
    /// State slots that the step's rows read.
    pub(super) states_read: Vec<u32>,
}

impl Moves {
    /// Nothing yet, for `groups` KV groups.
    pub(crate) fn new(groups: usize) -> Self {
        Self {
            copies: vec![Vec::new(); groups],
            ..Self::default()
        }
    }

    /// Whether nothing moves between device and host memory.
    pub(crate) fn is_empty(&self) -> bool {
        self.saves.is_empty() && self.restores.is_empty()
    }
}
