//! Preemption: finds blocks for a running sequence when the pool has none, by sending another one back to the queue.

use super::{Draft, PREEMPTIONS_MAX, Scheduler};
use crate::engine::faults::InjectedFault;
use crate::engine::sequence::{Exit, SequenceId, Table};
use crate::plan::inputs::NONE;

impl Scheduler {
    /// Frees blocks for a running sequence, by preemption if need be. If the blocks become free only with a step in
    /// flight, the sequence skips this step.
    pub(super) fn make_room(&mut self, id: SequenceId, tokens: u32, draft: &mut Draft) {
        debug_assert!(
            tokens > 0 && self.sequences[id].exit.is_none(),
            "a running sequence lacks blocks for a token"
        );
        for group in 0..self.limits.windows.len() {
            loop {
                let short = self.blocks_short(id, group, tokens);
                if short == 0 {
                    break;
                }
                if self.blocks_leaving(group) >= draft.blocks_awaited[group] + short {
                    draft.blocks_awaited[group] += short;
                    break;
                }
                let Some(victim) = self.victim(group) else {
                    break;
                };
                self.preempt(victim);
                draft.preempted = true;
                if self.sequences[id].exit.is_some() || self.sequences[id].feed_slot == NONE {
                    return;
                }
            }
        }
    }

    /// Number of blocks that this sequence lacks to compute `tokens` tokens.
    pub(super) fn blocks_short(&self, id: SequenceId, group: usize, tokens: u32) -> u32 {
        let sequence = &self.sequences[id];
        let table = &sequence.tables[group];
        debug_assert!(
            tokens <= sequence.missing(),
            "only existing tokens need blocks"
        );
        let held = u32::try_from(table.blocks.len()).expect("a table is short");
        let needed = self
            .pool
            .blocks_for(sequence.computed + tokens)
            .saturating_sub(held);
        let needed = needed + u32::from(self.must_copy(sequence, group));
        needed.saturating_sub(self.pool.groups()[group].available() + table.reserved)
    }

    /// Number of blocks that become free when the steps in flight have completed.
    fn blocks_leaving(&self, group: usize) -> u32 {
        let tables = self
            .leaving
            .iter()
            .map(|&id| &self.sequences[id].tables[group]);
        let mut blocks: Vec<_> = tables.flat_map(Table::held).collect();
        blocks.sort_unstable();
        let pool = &self.pool.groups()[group];
        u32::try_from(
            blocks
                .chunk_by(u32::eq)
                .filter(|holders| {
                    let references = pool.references(holders[0]) as usize;
                    debug_assert!(holders.len() <= references, "every holder is counted");
                    references == holders.len()
                })
                .count(),
        )
        .expect("a pool's blocks are a u32")
    }

    /// Whether a block becomes free when this sequence leaves.
    fn frees_a_block(&self, id: SequenceId, group: usize) -> bool {
        let pool = &self.pool.groups()[group];
        self.sequences[id].tables[group]
            .held()
            .any(|block| pool.references(block) == 1)
    }

    /// The youngest running sequence whose preemption frees a block. It is not the oldest of all, and not one that has
    /// just resumed unless there is no other. Forks that share all their blocks free none individually; then the
    /// youngest is preempted, and the rest share less.
    fn victim(&self, group: usize) -> Option<SequenceId> {
        let oldest = self.running.first().and_then(|&id| self.group_of(id));
        let is_oldest = |id: SequenceId| oldest.is_some() && self.group_of(id) == oldest;
        let younger = self.running.iter().skip(1).rev().copied();
        let younger = younger.filter(|&id| !self.sequences[id].guarded && !is_oldest(id));
        let freeing = || younger.clone().filter(|&id| self.frees_a_block(id, group));
        freeing()
            .find(|id| !self.sequences[*id].resumed)
            .or_else(|| freeing().next())
            .or_else(|| {
                younger
                    .clone()
                    .find(|id| self.sequences[*id].tables[group].held().next().is_some())
            })
    }

    fn preempt(&mut self, id: SequenceId) {
        for &other in &self.running {
            self.sequences[other].resumed = false;
        }
        self.counts.preemptions += 1;
        self.sequences[id].preemptions += 1;
        assert!(
            self.sequences[id].preemptions <= PREEMPTIONS_MAX,
            "a sequence with reservations is not preempted"
        );
        debug_assert!(
            self.sequences[id].exit.is_none(),
            "a leaving sequence is not preempted"
        );
        if self.faults.has(InjectedFault::PreemptedNotCached) {
            self.withdraw_all(id);
        }
        match self.group_of(id) {
            Some(group) => self.preempt_beams(group),
            None => self.leave(id, Exit::Preempted),
        }
    }
}
