//! The colder tiers of the KV pool: blocks that leave the device are kept in host memory and in files, and come back on
//! a hit.
//!
//! One hash chain finds a block in every tier. A block has these states:
//!
//! | State | Where its bytes are | Found by prompts |
//! |---|---|---|
//! | device | in a block of the pool | yes, by the pool |
//! | leaving | being copied to a host slot; its pool block gets a new owner in the same step | no |
//! | host | in a host slot | yes, by [`HostTier`] |
//! | disk | in a file | yes, by [`DiskTier`]; a sequence that needs it waits in the queue until it is in a host slot |
//! | arriving | being uploaded, before the step that reads it | yes, by the pool |
//! | both | in the pool and in a host slot | yes; the pool is asked first |
//!
//! The scheduler decides which blocks move and names them in the batch; it knows slots, never bytes. The engine moves
//! bytes (`engine::mover`): just before it submits the batch it starts the copies of leaving blocks, then uploads
//! arriving ones. A device executes these calls and batches in order, so a block is saved before its new owner writes,
//! and restored before it is read. When the batch is read, its copies have completed too, and their slots become
//! findable. Nothing else waits for a copy.
//!
//! A snapshot of a recurrent state moves like a block: here and in files it is a block of one more group, after the KV
//! groups, under the hash of the last block that it comes after. Its pool is that of the state slots. Not every block
//! has one, so a chain is of use as far as its last snapshot, which may be in another tier than its blocks.
//!
//! Files are written behind: a block whose sequence has ended is copied before some later step, or when the engine is
//! idle, and becomes findable when its file is complete. Files may vanish at any time, and may hold anything; so only a
//! file that was read and checked counts as a block.

pub mod disk;
pub mod host;
mod rates;

pub use disk::{DiskJob, DiskTier, DiskUse, Origin};
pub use host::{HostSlot, HostTier};
pub use rates::Rates;

use super::block_pool::BlockId;
use super::sequence::SequenceId;
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
    pub(super) group: usize,
    pub(super) block: BlockId,
    pub(super) slot: Option<HostSlot>,
    /// What it holds, if a file of it is to be written.
    pub(super) origin: Option<Arc<Origin>>,
}

/// A block that is uploaded from a host slot before its step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Restore {
    /// The sequence that was admitted with it.
    pub(super) sequence: SequenceId,
    /// KV group, or that of the state slots.
    pub(super) group: usize,
    pub(super) block: BlockId,
    pub(super) slot: HostSlot,
}
