//! Admission: a waiting sequence takes the blocks that are cached for its leading tokens, and the state after them.

use super::Memory;
use super::holding::{HeldStates, Holding, SequenceId, Table};
use super::host::HostSlot;
use super::moves::Moves;
use super::pool::{BlockHash, BlockId};
use super::search::Reach;
use super::waits::came_from_file;
use crate::engine::request::Cached;
use crate::plan::inputs::NONE;

/// Where a block of a matched chain is, or the state after it.
#[derive(Clone, Copy)]
pub(super) enum Found {
    Device(BlockId),
    Host(HostSlot),
}

/// What a waiting sequence takes when it is admitted.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    /// Number of leading blocks found in the prefix cache.
    pub(crate) matched: u32,
    /// Number of its tokens whose ids are known.
    pub(crate) known: u32,
    /// Per KV group: free blocks to reserve for it.
    pub(crate) reserved: Option<Vec<u32>>,
}

/// Number of leading blocks of a chain that came from colder tiers.
#[derive(Clone, Copy, Default)]
struct Arrivals {
    restored: u32,
    /// Those of them that were read from files for this sequence.
    read: u32,
}

impl Memory {
    /// The blocks of each KV group that a waiting sequence and its forks need, to have `tokens` tokens after `matched`
    /// cached blocks; the forks need `others` of them. `None` if there are not so many, or fewer than `spare_share` of
    /// all would be left, as a divisor, for the running sequences to grow.
    pub(crate) fn room(
        &self,
        holding: &Holding,
        matched: u32,
        tokens: u32,
        others: &[u32],
        spare_share: Option<u32>,
    ) -> Option<Vec<u32>> {
        debug_assert!(
            matched as usize <= holding.hashes.len(),
            "a matched block has a hash"
        );
        let groups = self.pool.groups().iter().zip(others).enumerate();
        groups
            .map(|(index, (group, others))| {
                let fresh = self.blocks_needed(index, matched, tokens) + others;
                let taken = self.free_in_chain(index, &holding.hashes[..matched as usize]);
                let spare = spare_share.map_or(0, |share| group.total().div_ceil(share));
                (group.available() >= fresh + taken + spare).then_some(fresh)
            })
            .collect()
    }

    /// Number of new blocks that `tokens` tokens need after `matched` blocks. A window group releases blocks on the
    /// way, so it needs at most the window and a chunk.
    fn blocks_needed(&self, group: usize, matched: u32, tokens: u32) -> u32 {
        debug_assert!(tokens > 0, "an admitted sequence has a token to compute");
        let all = self.blocks_for(tokens).saturating_sub(matched);
        let pool = &self.pool.groups()[group];
        if pool.window().is_none() {
            return all;
        }
        all.min(self.blocks_live_max(group)).min(pool.total())
    }

    /// Free blocks that a chain takes: cached ones, and those that it is restored to.
    fn free_in_chain(&self, group: usize, chain: &[BlockHash]) -> u32 {
        let pool = &self.pool.groups()[group];
        let is_free = |hash: &&BlockHash| {
            let block = pool.lookup(hash);
            block.is_none_or(|block| pool.references(block) == 0)
        };
        let visible = &chain[self.first_needed(group, chain)..];
        u32::try_from(visible.iter().filter(is_free).count()).expect("a chain has few blocks")
    }

    /// Gives a waiting sequence its cached blocks, and the state after them. Those in host memory are restored before
    /// the step runs. On first admission, it notes where its tokens were found.
    pub(crate) fn take_prefix(
        &mut self,
        id: SequenceId,
        holding: &mut Holding,
        admission: &Admission,
        moves: &mut Moves,
    ) {
        debug_assert!(holding.is_empty(), "a waiting sequence holds nothing");
        let matched = admission.matched;
        let chain = holding.hashes[..matched as usize].to_vec();
        // Everything found is kept before anything is restored, because that evicts blocks from device and host.
        let groups = 0..self.kv_groups();
        let found: Vec<_> = groups.map(|group| self.keep_found(group, &chain)).collect();
        let snapshot = self.keep_snapshot(&chain);
        let mut arrivals = arrivals_of_snapshot(holding, snapshot, matched);
        for (group, found) in found.into_iter().enumerate() {
            let (table, of_group) = self.table_of(id, (group, &chain), &found, holding, moves);
            holding.tables[group] = table;
            arrivals.restored = arrivals.restored.max(of_group.restored);
            arrivals.read = arrivals.read.max(of_group.read);
        }
        if let Some(counts) = &admission.reserved {
            self.guard(holding, counts);
        }
        self.end_wait(id, holding);
        self.take_snapshot(id, holding, admission, snapshot, moves);
        let size = self.limits.block_size;
        holding.computed = matched * size;
        holding.registered = matched;
        holding.cached.get_or_insert(Cached {
            all: matched * size,
            host: (arrivals.restored - arrivals.read) * size,
            disk: arrivals.read * size,
        });
    }

    /// Finds the blocks of a matched chain that the next query attends to, and keeps them from being evicted.
    fn keep_found(&mut self, group: usize, chain: &[BlockHash]) -> Vec<Found> {
        let needed = &chain[self.first_needed(group, chain)..];
        // The first block of a chain is the one used last: without it, the others cannot be found.
        let mut found: Vec<_> = needed
            .iter()
            .rev()
            .map(|hash| self.keep(group, hash))
            .collect();
        found.reverse();
        found
    }

    fn keep(&mut self, group: usize, hash: &BlockHash) -> Found {
        if let Some(block) = self.pool.groups()[group].lookup(hash) {
            self.pool.group_mut(group).share(block);
            return Found::Device(block);
        }
        let slot = self.host.lookup(group, hash);
        let slot = slot.expect("a matched block is in some tier");
        self.host.pin(slot);
        Found::Host(slot)
    }

    /// The table of what was found and kept of a chain: blocks on the device as they are, the others restored.
    fn table_of(
        &mut self,
        id: SequenceId,
        (group, chain): (usize, &[BlockHash]),
        found: &[Found],
        holding: &Holding,
        moves: &mut Moves,
    ) -> (Table, Arrivals) {
        let passed = chain.len() - found.len();
        let mut blocks = vec![NONE; passed];
        let mut arrivals = Arrivals::default();
        for (found, &hash) in found.iter().zip(&chain[passed..]) {
            blocks.push(match *found {
                Found::Device(block) => block,
                Found::Host(slot) => {
                    arrivals.restored += 1;
                    arrivals.read += u32::from(came_from_file(holding, slot));
                    self.restore(id, (group, hash), slot, moves)
                }
            });
        }
        let table = Table {
            blocks,
            passed: u32::try_from(passed).expect("a chain has few blocks"),
            reserved: 0,
        };
        (table, arrivals)
    }

    /// Finds the state after a matched chain, and keeps it from being evicted.
    pub(super) fn keep_snapshot(&mut self, chain: &[BlockHash]) -> Option<Found> {
        if !self.keeps_states() {
            return None;
        }
        let hash = chain.last()?;
        if let Some(slot) = self.states.lookup(hash) {
            self.states.share(slot);
            return Some(Found::Device(slot));
        }
        let slot = self.host.lookup(self.state_group(), hash);
        let slot = slot.expect("the state after a matched chain is in some tier");
        self.host.pin(slot);
        Some(Found::Host(slot))
    }

    /// Gives a sequence the state after its cached blocks, from a slot that was kept for it, and notes up to where
    /// blocks are cached, with or without a state.
    pub(super) fn take_snapshot(
        &mut self,
        id: SequenceId,
        holding: &mut Holding,
        admission: &Admission,
        found: Option<Found>,
        moves: &mut Moves,
    ) {
        if !self.keeps_states() {
            return;
        }
        assert_eq!(
            found.is_some(),
            admission.matched > 0,
            "a matched chain has a snapshot"
        );
        let reusable = (admission.known - 1).min(holding.shareable);
        let reusable = (reusable / self.limits.block_size) as usize;
        let chain = &holding.hashes[..holding.hashes.len().min(reusable)];
        let branch = self.cached_tokens(chain);
        let live = match found {
            None => NONE,
            Some(Found::Device(slot)) => slot,
            Some(Found::Host(slot)) => {
                let hash = holding.hashes[admission.matched as usize - 1];
                self.restore(id, (self.state_group(), hash), slot, moves)
            }
        };
        holding.states = HeldStates {
            live,
            branch,
            ..HeldStates::default()
        };
    }

    /// Number of leading tokens of a chain that are cached, in whole units that prompts share, whatever states there
    /// are.
    fn cached_tokens(&self, chain: &[BlockHash]) -> u32 {
        let cached = self.longest_prefix(Reach::Host, chain) * self.limits.block_size;
        cached / self.demand.sharing_unit * self.demand.sharing_unit
    }
}

/// A state that comes from a colder tier stands for all tokens before it.
fn arrivals_of_snapshot(holding: &Holding, snapshot: Option<Found>, matched: u32) -> Arrivals {
    let Some(Found::Host(slot)) = snapshot else {
        return Arrivals::default();
    };
    let is_read = came_from_file(holding, slot);
    Arrivals {
        restored: matched,
        read: if is_read { matched } else { 0 },
    }
}
