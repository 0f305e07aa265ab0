//! The memory of sequences: blocks of the KV pool, slots of recurrent states, and the colder tiers that both go to and
//! come back from.
//!
//! [`Memory`] owns all of it. The scheduler has a `Holding` for each sequence, and asks in verbs: match a prefix and
//! register blocks (`search`), wait for files (`waits`), take a prefix (`admission`), extend, fork and release
//! (`blocks`), read and write a state (`states`), forget what was never computed (`withdrawal`). Order, seats, budgets
//! and beams are the scheduler's, and nothing here asks it anything.
//!
//! One chain of hashes finds a block in every tier. A block has these states:
//!
//! | State | Where its bytes are | Found by prompts |
//! |---|---|---|
//! | device | in a block of the pool | yes, by the pool |
//! | leaving | being copied to a host slot; its pool block gets a new owner in the same step | no |
//! | host | in a host slot | yes, by [`HostTier`] |
//! | disk | in a file | yes, by [`FileIndex`]; a sequence that needs it waits in the queue until it is in a host slot |
//! | arriving | being uploaded, before the step that reads it | yes, by the pool |
//! | both | in the pool and in a host slot | yes; the pool is asked first |
//!
//! Memory decides which blocks move, and names them in the step's moves; it knows slots, never bytes. The engine moves
//! bytes (`engine::mover`): just before it submits the batch it starts the copies of leaving blocks, then uploads
//! arriving ones. A device executes these calls and batches in order, so a block is saved before its new owner writes,
//! and restored before it is read. When the batch is read, its copies have completed too, and their slots become
//! findable. Nothing else waits for a copy.
//!
//! A snapshot of a recurrent state moves like a block: in host memory and in files it is a block of one more group,
//! after the KV groups, under the hash of the last block that it comes after. Its pool is that of the state slots. Not
//! every block has one, so a chain is of use as far as its last snapshot, which may be in another tier than its blocks.
//!
//! Files are written behind: a block whose sequence has ended is copied before some later step, or when the engine is
//! idle, and becomes findable when its file is complete. Files may vanish at any time, and may hold anything; so only a
//! file that was read and checked counts as a block.
//!
//! Pure: no device, clock, thread or randomness, and no knowledge of what the tokens mean.

mod admission;
mod blocks;
pub mod file_index;
mod holding;
pub mod host;
mod host_moves;
mod moves;
mod pool;
mod rates;
mod search;
mod states;
#[cfg(test)]
mod tests;
mod waits;
mod withdrawal;
mod worth;
mod write_behind;

pub(super) use admission::Admission;
pub(super) use blocks::blocks_live_max;
pub use file_index::{DiskJob, DiskUse, FileIndex, Origin};
pub use holding::SequenceId;
pub(super) use holding::{Claim, Holding};
pub use host::{HostSlot, HostTier};
pub(super) use moves::Moves;
pub(crate) use moves::Save;
pub use moves::TierLimits;
pub use pool::{BlockHash, BlockId, BlockKey, BlockPool, Group};
pub use rates::Rates;
pub(super) use withdrawal::Spoilt;
pub(crate) use write_behind::SAVES_WHILE_IDLE;

use crate::plan::Window;

/// Sizes and rules of a [`Memory`].
#[derive(Clone, Debug, Default)]
pub struct MemoryLimits {
    /// Tokens per block.
    pub block_size: u32,
    /// Attention window of each KV group; `None` for full attention.
    pub windows: Vec<Option<Window>>,
    /// Number of blocks of each KV group.
    pub blocks: Vec<u32>,
    /// Number of state slots; 0 if the model keeps no state. At least one for each sequence that may run; the others
    /// are for snapshots.
    pub state_slots: u32,
    /// Whether requests with equal prefixes share blocks.
    pub prefix_caching: bool,
    /// Key of the hashes of blocks with a salt.
    pub hash_key: [u8; 32],
    /// Key of the hashes of other blocks. With a disk, it is the same in every process that can use the same files.
    pub shared_key: [u8; 32],
    /// Sizes of the colder tiers.
    pub tiers: TierLimits,
}

/// What sequences ask for at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    /// Tokens of one sequence that a step computes.
    pub(super) step_tokens_max: u32,
    /// Sequences that run at once.
    pub(super) max_num_seqs: u32,
    /// Tokens of a sequence.
    pub(super) max_model_len: u32,
    /// Prompts share multiples of this number of tokens: whole blocks.
    pub(super) sharing_unit: u32,
}

/// The memory of all sequences: device pool, state slots, host memory, files, and the index of each by chain hash.
#[derive(Clone, Debug)]
pub struct Memory {
    limits: MemoryLimits,
    demand: Demand,
    pool: BlockPool,
    /// The state slots, held and cached like blocks: see [`states`].
    states: Group,
    /// Number of steps in flight that write each state slot.
    state_writes: Vec<u32>,
    host: HostTier,
    files: FileIndex,
    rates: Rates,
    /// Uploads from host memory by the steps in flight.
    restores_in_flight: u32,
}

impl Memory {
    /// Empty memory.
    pub(super) fn new(limits: MemoryLimits, demand: Demand) -> Self {
        let tiers = &limits.tiers;
        Self {
            pool: BlockPool::new(limits.block_size, &limits.windows, &limits.blocks),
            states: Group::new(None, limits.state_slots),
            state_writes: vec![0; limits.state_slots as usize],
            host: HostTier::new(tiers.host_bytes, tiers.block_bytes.clone()),
            files: FileIndex::new(tiers.disk, tiers.block_bytes.clone()),
            rates: Rates::default(),
            restores_in_flight: 0,
            limits,
            demand,
        }
    }

    /// A sequence's holding: nothing yet.
    pub(super) fn holding(&self, claim: &Claim<'_>) -> Holding {
        let root = BlockHash::root(
            self.key(claim.salt.is_some()),
            claim.owner,
            claim.salt,
            claim.adapter,
        );
        Holding::new(self.limits.windows.len(), root, claim)
    }

    /// Key of the hashes of blocks with a salt, or without.
    fn key(&self, is_salted: bool) -> &[u8; 32] {
        if is_salted {
            &self.limits.hash_key
        } else {
            &self.limits.shared_key
        }
    }

    /// The block pool.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// The state slots; none if the model keeps no state.
    pub fn states(&self) -> &Group {
        &self.states
    }

    /// The blocks in host memory.
    pub fn host(&self) -> &HostTier {
        &self.host
    }

    /// The blocks in files.
    pub fn files(&self) -> &FileIndex {
        &self.files
    }

    /// Sets the measured times that decide whether blocks move.
    pub(super) fn set_rates(&mut self, rates: Rates) {
        self.rates = rates;
    }

    /// Number of KV groups.
    pub(super) fn kv_groups(&self) -> usize {
        self.limits.windows.len()
    }

    /// Index of the group of the state slots, after the KV groups.
    fn state_group(&self) -> usize {
        self.kv_groups()
    }

    /// A KV group's blocks, or the state slots.
    fn group(&self, group: usize) -> &Group {
        if group == self.state_group() {
            &self.states
        } else {
            &self.pool.groups()[group]
        }
    }

    /// [`Self::group`], to be changed.
    fn group_mut(&mut self, group: usize) -> &mut Group {
        if group == self.state_group() {
            &mut self.states
        } else {
            self.pool.group_mut(group)
        }
    }

    /// Forgets what was on the device, after that was lost: all content and all holders. The scheduler then drops it
    /// from every holding: [`Holding::drop_lost`].
    pub(super) fn restart(&mut self) {
        self.pool.reset();
        self.states = Group::new(None, self.limits.state_slots);
        self.state_writes.fill(0);
        self.host.restart();
        self.files.restart();
        self.restores_in_flight = 0;
    }

    /// Asserts the invariants that hold between two steps; `holdings` are all there are, and with `is_idle` no step is
    /// in flight.
    pub(super) fn check<'a>(&self, holdings: impl Iterator<Item = &'a Holding>, is_idle: bool) {
        let blocks = self.limits.blocks.iter();
        let mut held: Vec<_> = blocks.map(|&count| vec![0; count as usize]).collect();
        let mut slots = vec![0; self.limits.state_slots as usize];
        let mut kept = 0;
        for holding in holdings {
            for (table, held) in holding.tables.iter().zip(&mut held) {
                table.held().for_each(|block| held[block as usize] += 1);
            }
            for slot in holding.states.held() {
                slots[slot as usize] += 1;
            }
            kept += holding.slots_kept();
        }
        self.pool.check(&held);
        self.states.check(&slots);
        self.host.check(self.restores_in_flight, kept);
        assert!(
            !is_idle || self.state_writes.iter().all(|&writes| writes == 0),
            "only steps in flight write states"
        );
    }
}

/// For tests that set up what a sequence finds.
#[cfg(test)]
impl Memory {
    pub(super) fn pool_mut(&mut self) -> &mut BlockPool {
        &mut self.pool
    }

    pub(super) fn states_mut(&mut self) -> &mut Group {
        &mut self.states
    }

    pub(super) fn host_mut(&mut self) -> &mut HostTier {
        &mut self.host
    }
}
