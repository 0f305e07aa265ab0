//! Admission of waiting sequences: first come, first served, each with its longest cached prefix.

use super::{Draft, PREEMPTIONS_MAX, Scheduler};
use crate::engine::block_pool::{BlockHash, BlockId};
use crate::engine::faults::InjectedFault;
use crate::engine::sequence::{Order, SequenceId, StreamId, Table};
use crate::engine::tiers::HostSlot;
use crate::plan::inputs::NONE;

/// What a waiting sequence needs if it is admitted now.
struct Admission {
    /// Number of leading blocks found in the prefix cache.
    matched: u32,
    /// Per KV group: free blocks to reserve, for a sequence that was preempted too often.
    reserved: Option<Vec<u32>>,
}

/// Where a block of a matched chain is, or the state after it.
#[derive(Clone, Copy)]
pub(super) enum Found {
    Device(BlockId),
    Host(HostSlot),
}

impl Scheduler {
    /// The first choices of requests that were admitted since the last call.
    pub fn take_admitted(&mut self) -> Vec<StreamId> {
        std::mem::take(&mut self.admitted)
    }

    /// Whether one more sequence may run.
    pub(super) fn has_seat(&self) -> bool {
        self.has_seats(1)
    }

    /// Whether so many more sequences may run.
    fn has_seats(&self, count: usize) -> bool {
        let count = count + self.seats_kept();
        let is_within = self.running.len() + count <= self.limits.max_num_seqs as usize;
        is_within && count <= self.feed_slots.len() && self.has_state_slots(count)
    }

    /// Admits waiting sequences in order while `max_num_seqs`, budget and blocks allow. No sequence overtakes the
    /// first that does not fit, because under steady arrivals that one would starve. Those that wait for files are
    /// overtaken.
    pub(super) fn admit(&mut self, draft: &mut Draft) {
        let mut reading = Vec::new();
        while let Some((order, id)) = self.next_waiting(&reading) {
            if draft.tokens_left == 0 || !self.has_seats(self.seats_needed(id)) {
                break;
            }
            if self.waits_for_disk(id) {
                reading.push(id);
                continue;
            }
            let Some(admission) = self.admission(id) else {
                break;
            };
            if self.waits_for_evicted(id, admission.matched) {
                reading.push(id);
                continue;
            }
            self.waiting.remove(&order);
            self.take_prefix(id, &admission, draft);
            self.seat(id);
            self.schedule_row(id, draft);
        }
        self.read_ahead();
    }

    /// The first waiting sequence that is none of these.
    fn next_waiting(&self, reading: &[SequenceId]) -> Option<(Order, SequenceId)> {
        self.waiting
            .iter()
            .map(|(&order, &id)| (order, id))
            .find(|(_, id)| !reading.contains(id))
    }

    /// What admission needs, if all tokens of the sequence and its next one fit now; else `None`.
    fn admission(&mut self, id: SequenceId) -> Option<Admission> {
        let matched = self.match_prefix(id, Self::in_host);
        let sequence = &self.sequences[id];
        debug_assert!(
            matched as usize <= sequence.hashes.len(),
            "a matched block has a hash"
        );
        let guarded = sequence.preemptions >= PREEMPTIONS_MAX;
        let tokens = if guarded {
            sequence.tokens_limit
        } else {
            self.tokens_unfolded(id) + 1
        };
        let mut reserved = Vec::new();
        for (index, group) in self.pool.groups().iter().enumerate() {
            let fresh = self.blocks_needed(index, matched, tokens)
                + self.blocks_of_others(id, index, tokens);
            let first = self
                .pool
                .first_visible(index, matched * self.limits.block_size)
                .min(matched);
            let chain = &sequence.hashes[first as usize..matched as usize];
            // Free blocks that the chain takes: cached ones, and those that it is restored to.
            let taken = |hash: &&BlockHash| {
                group
                    .lookup(hash)
                    .is_none_or(|block| group.references(block) == 0)
            };
            let taken =
                u32::try_from(chain.iter().filter(taken).count()).expect("a chain has few blocks");
            // Leaves room for the running sequences to grow.
            let none = self.running.is_empty() || self.faults.has(InjectedFault::NoWatermark);
            let watermark = if none { 0 } else { group.total().div_ceil(100) };
            if group.available() < fresh + taken + watermark {
                return None;
            }
            reserved.push(fresh);
        }
        Some(Admission {
            matched,
            reserved: guarded.then_some(reserved),
        })
    }

    /// Number of new blocks that `tokens` tokens need after `matched` blocks. A window group releases blocks on the
    /// way, so it needs at most the window and a chunk.
    fn blocks_needed(&self, group: usize, matched: u32, tokens: u32) -> u32 {
        debug_assert!(tokens > 0, "an admitted sequence has a token to compute");
        let all = self.pool.blocks_for(tokens) - matched.min(self.pool.blocks_for(tokens));
        let pool = &self.pool.groups()[group];
        let Some(window) = pool.window() else {
            return all;
        };
        let live = self.limits.blocks_live_max(self.pool.blocks_for(window));
        all.min(live).min(pool.total())
    }

    /// Number of leading blocks that are cached, with the state after them, on the device or where `elsewhere` says. It
    /// is asked about a block of a group, or a state, which spares a number of tokens. The last token is always
    /// recomputed, because its logits are needed.
    pub(super) fn match_prefix(
        &mut self,
        id: SequenceId,
        elsewhere: impl Fn(&Self, usize, &BlockHash, u32) -> bool,
    ) -> u32 {
        if !self.limits.prefix_caching {
            return 0;
        }
        let known = self.sequences[id].tokens_known();
        debug_assert!(known > 0, "a sequence has a token to compute");
        let reusable = if self.faults.has(InjectedFault::FullHitKept) {
            known
        } else {
            known - 1
        };
        let sequence = &self.sequences[id];
        let reusable = if sequence.states_needed() > sequence.outputs_requested {
            reusable.min(sequence.outputs_requested)
        } else {
            reusable
        };
        let blocks = reusable.min(self.shareable(sequence)) / self.limits.block_size;
        self.extend_hashes(id, blocks);
        let (hashes, unit) = (
            &self.sequences[id].hashes,
            self.sharing_unit() / self.limits.block_size,
        );
        let mut found = blocks;
        loop {
            // A shorter chain ends in another part of a window, whose blocks may be missing, and at another snapshot.
            let whole = self.blocks_to_snapshot(
                &hashes[..found as usize],
                unit,
                |group: usize, hash: &BlockHash, tokens| elsewhere(self, group, hash, tokens),
            );
            found = self.pool.longest_prefix(
                &hashes[..whole as usize],
                |group: usize, hash: &BlockHash| {
                    elsewhere(self, group, hash, self.limits.block_size)
                },
            );
            if found == whole {
                return found;
            }
        }
    }

    /// Hashes the leading blocks up to `full`. All their token ids are known.
    pub(super) fn extend_hashes(&mut self, id: SequenceId, full: u32) {
        let sequence = &mut self.sequences[id];
        let size = self.limits.block_size as usize;
        let salted = sequence.request.cache_salt.is_some();
        let key = if salted {
            &self.limits.hash_key
        } else {
            &self.limits.shared_key
        };
        assert!(
            full as usize * size <= sequence.tokens.len(),
            "only blocks whose ids are all known are hashed"
        );
        for index in sequence.hashes.len()..full as usize {
            let salt = match sequence.request.cache_salt.as_deref() {
                Some(_) if self.faults.has(InjectedFault::SaltIgnored) => None,
                Some(salt) if self.faults.has(InjectedFault::SaltCutOff) => {
                    Some(&salt[..salt.len().min(16)])
                }
                salt => salt,
            };
            let owner = sequence.request.cache_owner.as_ref();
            let parent = sequence
                .hashes
                .last()
                .copied()
                .unwrap_or_else(|| BlockHash::root(key, owner, salt));
            sequence
                .hashes
                .push(parent.next(key, &sequence.tokens[index * size..(index + 1) * size]));
        }
    }

    /// Adds the matched blocks to the sequence's tables and becomes a holder of them. Those in host memory are restored
    /// to new blocks before the step runs.
    fn take_prefix(&mut self, id: SequenceId, admission: &Admission, draft: &mut Draft) {
        let matched = admission.matched;
        let sequence = &self.sequences[id];
        assert!(
            matched as usize <= sequence.hashes.len(),
            "a matched block has a hash"
        );
        debug_assert!(
            sequence.exit.is_none() && sequence.in_flight == 0,
            "a waiting sequence is not in use"
        );
        debug_assert!(
            sequence.tables.iter().all(|table| table.blocks.is_empty()),
            "a waiting sequence holds no block"
        );
        let chain = sequence.hashes[..matched as usize].to_vec();
        // Everything found is kept before anything is restored, because that evicts blocks from device and host.
        let found: Vec<_> = (0..self.limits.windows.len())
            .map(|group| self.keep_found(group, &chain))
            .collect();
        let snapshot = self.keep_snapshot(&chain);
        // A state stands for all tokens before it.
        let (mut restored, mut read) = match snapshot {
            Some(Found::Host(slot)) if self.came_from_disk(id, slot) => (matched, matched),
            Some(Found::Host(_)) => (matched, 0),
            _ => (0, 0),
        };
        for (group, found) in found.into_iter().enumerate() {
            let passed = matched - u32::try_from(found.len()).expect("a chain has few blocks");
            let mut blocks = vec![NONE; passed as usize];
            let (mut arrived, mut from_files) = (0, 0);
            for (found, &hash) in found.iter().zip(&chain[passed as usize..]) {
                blocks.push(match *found {
                    Found::Device(block) => self.share_found(group, block),
                    Found::Host(slot) => {
                        arrived += 1;
                        from_files += u32::from(self.came_from_disk(id, slot));
                        self.restore(id, (group, hash), slot, draft)
                    }
                });
            }
            (restored, read) = (restored.max(arrived), read.max(from_files));
            let reserved = admission
                .reserved
                .as_ref()
                .map_or(0, |reserved| reserved[group]);
            self.pool.group_mut(group).reserve(reserved);
            self.sequences[id].tables[group] = Table {
                blocks,
                passed,
                reserved,
            };
        }
        self.end_disk_wait(id);
        self.take_snapshot(id, matched, snapshot, draft);
        let sequence = &mut self.sequences[id];
        sequence.computed = matched * self.limits.block_size;
        sequence.registered = matched;
        sequence.guarded = admission.reserved.is_some();
        sequence.resumed = sequence.preemptions > 0;
        if sequence.cached_tokens.is_none() {
            sequence.cached_tokens = Some(sequence.computed);
            sequence.restored_tokens = (restored - read) * self.limits.block_size;
            sequence.disk_tokens = read * self.limits.block_size;
            self.round_robin.admitted(sequence.order.round);
            self.counts.requests_dequeued += 1;
            if sequence.request.report_admission {
                self.admitted.push(sequence.choice.stream);
            }
            self.counts.prompt_tokens += u64::from(sequence.prompt_len());
            self.counts.prefix_queries += u64::from(sequence.prompt_len());
            self.counts.prefix_hits += u64::from(sequence.computed);
            self.counts.prefix_hits_host += u64::from(sequence.restored_tokens);
            self.counts.prefix_hits_disk += u64::from(sequence.disk_tokens);
            self.explain_prefix(id);
        }
    }

    /// Finds the blocks of a matched chain that the next query attends to, and keeps them from being evicted.
    fn keep_found(&mut self, group: usize, chain: &[BlockHash]) -> Vec<Found> {
        let matched = u32::try_from(chain.len()).expect("a chain has few blocks");
        let passed = self
            .pool
            .first_visible(group, matched * self.limits.block_size)
            .min(matched);
        let evictable = self.faults.has(InjectedFault::SharedBlockEvicted);
        let mut found = Vec::with_capacity(chain.len());
        // The first block of a chain is the one used last: without it, the others cannot be found.
        for hash in chain[passed as usize..].iter().rev() {
            found.push(
                if let Some(block) = self.pool.groups()[group].lookup(hash) {
                    if !evictable {
                        self.pool.group_mut(group).share(block);
                    }
                    Found::Device(block)
                } else {
                    let slot = self
                        .host
                        .lookup(group, hash)
                        .expect("a matched block is in some tier");
                    self.host.pin(slot);
                    Found::Host(slot)
                },
            );
        }
        found.reverse();
        found
    }

    /// The injected bug shares a block only here.
    fn share_found(&mut self, group: usize, block: BlockId) -> BlockId {
        if self.faults.has(InjectedFault::SharedBlockEvicted) {
            self.pool.group_mut(group).share(block);
        }
        block
    }
}
