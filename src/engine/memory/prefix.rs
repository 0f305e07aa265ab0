//! The prefix cache: a sequence finds the blocks that others computed for the same leading tokens, and leaves its own.

use super::Memory;
use super::holding::{Holding, SequenceId, Table};
use super::host::HostSlot;
use super::moves::{Moves, Restore};
use super::pool::{BlockHash, BlockId};
use crate::engine::request::Cached;
use crate::plan::inputs::NONE;

/// The tiers in which a block is looked for, besides the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Host memory.
    Host,
    /// Host memory and files.
    Files,
}

/// Where a block of a matched chain is, or the state after it.
#[derive(Clone, Copy)]
pub(super) enum Found {
    Device(BlockId),
    Host(HostSlot),
}

/// What a waiting sequence takes when it is admitted.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Admission {
    /// Number of leading blocks found in the prefix cache.
    pub(in crate::engine) matched: u32,
    /// Number of its tokens whose ids are known.
    pub(in crate::engine) known: u32,
    /// Per KV group: free blocks to reserve for it.
    pub(in crate::engine) reserved: Option<Vec<u32>>,
}

/// Number of leading blocks of a chain that came from colder tiers.
#[derive(Clone, Copy, Default)]
struct Arrivals {
    restored: u32,
    /// Those of them that were read from files for this sequence.
    read: u32,
}

impl Memory {
    /// Number of leading blocks of a sequence that are cached on the device or in host memory, with the state after
    /// them. At most `reusable` tokens are of use to it; `tokens` are its known ids.
    pub(in crate::engine) fn match_prefix(
        &self,
        holding: &mut Holding,
        tokens: &[u32],
        reusable: u32,
    ) -> u32 {
        self.match_within(Reach::Host, holding, tokens, reusable)
    }

    /// [`Self::match_prefix`], in these tiers.
    pub(super) fn match_within(
        &self,
        reach: Reach,
        holding: &mut Holding,
        tokens: &[u32],
        reusable: u32,
    ) -> u32 {
        if !self.limits.prefix_caching {
            return 0;
        }
        let blocks = reusable.min(holding.shareable) / self.limits.block_size;
        self.extend_hashes(holding, tokens, blocks);
        let mut found = blocks;
        loop {
            // A shorter chain ends in another part of a window, whose blocks may be missing, and at another snapshot.
            let whole = self.blocks_to_snapshot(reach, &holding.hashes[..found as usize]);
            found = self.longest_prefix(reach, &holding.hashes[..whole as usize]);
            if found == whole {
                return found;
            }
        }
    }

    /// Number of leading blocks of a chain that are on the device or in these tiers, whatever states there are.
    pub(super) fn longest_prefix(&self, reach: Reach, chain: &[BlockHash]) -> u32 {
        let size = self.limits.block_size;
        let elsewhere = |group: usize, hash: &BlockHash| self.is_near(reach, group, hash, size);
        self.pool.longest_prefix(chain, elsewhere)
    }

    /// Whether a block is in these tiers, and moving it from there is worthwhile if it spares `tokens` tokens.
    pub(super) fn is_near(
        &self,
        reach: Reach,
        group: usize,
        hash: &BlockHash,
        tokens: u32,
    ) -> bool {
        let in_host =
            || self.host.lookup(group, hash).is_some() && self.is_worth_moving(group, tokens);
        let in_file = || self.files.holds(&(group, *hash)) && self.is_worth_reading(group, tokens);
        in_host() || reach == Reach::Files && in_file()
    }

    /// Hashes the leading blocks up to `full`. All their token ids are known.
    fn extend_hashes(&self, holding: &mut Holding, tokens: &[u32], full: u32) {
        let size = self.limits.block_size as usize;
        let key = self.key(holding.is_salted);
        assert!(
            full as usize * size <= tokens.len(),
            "only blocks whose ids are all known are hashed"
        );
        for index in holding.hashes.len()..full as usize {
            let parent = holding.hashes.last().copied().unwrap_or(holding.root);
            let block = &tokens[index * size..(index + 1) * size];
            holding.hashes.push(parent.next(key, block));
        }
    }

    /// Forgets the hashes of blocks beyond `tokens` tokens, because others will follow there.
    pub(in crate::engine) fn cut_hashes(&self, holding: &mut Holding, tokens: usize) {
        let blocks = tokens / self.limits.block_size as usize;
        holding.hashes.truncate(blocks);
    }

    /// Registers the full blocks whose token ids are known in the prefix cache. Keys and values are written before
    /// anything reads them, so a block counts as full as soon as the step that fills it is scheduled.
    pub(in crate::engine) fn register_full_blocks(
        &mut self,
        holding: &mut Holding,
        tokens: &[u32],
    ) {
        if !self.limits.prefix_caching {
            return;
        }
        let known = u32::try_from(tokens.len()).expect("a sequence fits the context");
        let tokens_full = holding.computed.min(known).min(holding.shareable);
        let full = tokens_full / self.limits.block_size;
        self.extend_hashes(holding, tokens, full);
        for (group, table) in holding.tables.iter().enumerate() {
            let pool = self.pool.group_mut(group);
            for index in holding.registered.max(table.passed)..full.min(table.len()) {
                let block = table.blocks[index as usize];
                pool.register(block, holding.hashes[index as usize]);
            }
        }
        holding.registered = holding.registered.max(full);
    }

    /// The blocks of each KV group that a waiting sequence and its forks need, to have `tokens` tokens after `matched`
    /// cached blocks; the forks need `others` of them. `None` if there are not so many, or fewer than `spare_share` of
    /// all would be left, as a divisor, for the running sequences to grow.
    pub(in crate::engine) fn room(
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

    /// Index of the first block of a chain that the query after it attends to.
    pub(super) fn first_needed(&self, group: usize, chain: &[BlockHash]) -> usize {
        let matched = u32::try_from(chain.len()).expect("a chain has few blocks");
        let position = matched * self.limits.block_size;
        self.pool.first_visible(group, position).min(matched) as usize
    }

    /// Gives a waiting sequence its cached blocks, and the state after them. Those in host memory are restored before
    /// the step runs. On first admission, it notes where its tokens were found.
    pub(in crate::engine) fn take_prefix(
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

    /// Allocates a block or state slot for a sequence that is being admitted, to be filled from a pinned slot of host
    /// memory before the step runs. From now on it is cached like a block that the step computes.
    pub(super) fn restore(
        &mut self,
        sequence: SequenceId,
        (group, hash): (usize, BlockHash),
        slot: HostSlot,
        moves: &mut Moves,
    ) -> BlockId {
        let block = self
            .allocate(group, moves)
            .expect("an admitted sequence has the blocks it needs");
        self.group_mut(group).register(block, hash);
        moves.restores.push(Restore {
            sequence,
            group,
            block,
            slot,
        });
        self.restores_in_flight += 1;
        block
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

/// Whether a slot's block was read from a file for this sequence.
fn came_from_file(holding: &Holding, slot: HostSlot) -> bool {
    holding.wait.arrived.contains(&slot)
}
