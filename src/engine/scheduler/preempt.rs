//! Preemption: finds blocks for a running sequence when the pool has none, by sending another one back to the queue.

use super::{BatchBuilder, PREEMPTIONS_MAX, Scheduler};
use crate::engine::sequence::{Exit, SequenceId};
use crate::plan::inputs::NONE;

impl Scheduler {
    /// Frees blocks for a running sequence, by preemption if need be. If the blocks become free only with a step in
    /// flight, the sequence skips this step.
    pub(super) fn make_room(&mut self, id: SequenceId, tokens: u32, builder: &mut BatchBuilder) {
        debug_assert!(
            tokens > 0 && self.queues.sequences[id].exit.is_none(),
            "a running sequence lacks blocks for a token"
        );
        for group in 0..self.queues.memory.kv_groups() {
            loop {
                let short = self.blocks_short(id, group, tokens);
                if short == 0 {
                    break;
                }
                if self.blocks_leaving(group) >= builder.blocks_awaited[group] + short {
                    builder.blocks_awaited[group] += short;
                    break;
                }
                let Some(victim) = self.victim(group) else {
                    break;
                };
                self.preempt(victim);
                builder.preempted = true;
                if self.queues.sequences[id].exit.is_some()
                    || self.queues.sequences[id].feed_slot == NONE
                {
                    return;
                }
            }
        }
    }

    /// Number of blocks that this sequence lacks to compute `tokens` tokens.
    pub(super) fn blocks_short(&self, id: SequenceId, group: usize, tokens: u32) -> u32 {
        let sequence = &self.queues.sequences[id];
        debug_assert!(
            tokens <= sequence.missing(),
            "only existing tokens need blocks"
        );
        self.queues
            .memory
            .blocks_short(&sequence.holding, group, tokens)
    }

    /// Number of blocks that become free when the steps in flight have completed.
    fn blocks_leaving(&self, group: usize) -> u32 {
        let leaving = self.queues.leaving.iter();
        let holdings = leaving.map(|&id| &self.queues.sequences[id].holding);
        self.queues.memory.blocks_freed_by(holdings, group)
    }

    /// The youngest running sequence whose preemption frees a block. It is not the oldest of all, and not one that has
    /// just resumed unless there is no other. Forks that share all their blocks free none individually; then the
    /// youngest is preempted, and the rest share less.
    fn victim(&self, group: usize) -> Option<SequenceId> {
        let oldest = self
            .queues
            .running
            .first()
            .and_then(|&id| self.queues.sequences[id].group());
        let is_oldest =
            |id: SequenceId| oldest.is_some() && self.queues.sequences[id].group() == oldest;
        let younger = self.queues.running.iter().skip(1).rev().copied();
        let younger =
            younger.filter(|&id| !self.queues.sequences[id].holding.is_guarded && !is_oldest(id));
        let frees = |id: &SequenceId| {
            let holding = &self.queues.sequences[*id].holding;
            self.queues.memory.frees_a_block(holding, group)
        };
        let freeing = || younger.clone().filter(frees);
        freeing()
            .find(|id| !self.queues.sequences[*id].resumed)
            .or_else(|| freeing().next())
            .or_else(|| {
                younger.clone().find(|id| {
                    self.queues.sequences[*id].holding.tables[group]
                        .held()
                        .next()
                        .is_some()
                })
            })
    }

    fn preempt(&mut self, id: SequenceId) {
        for &other in &self.queues.running {
            self.queues.sequences[other].resumed = false;
        }
        self.queues.counts.preemptions += 1;
        self.queues.sequences[id].preemptions += 1;
        assert!(
            self.queues.sequences[id].preemptions <= PREEMPTIONS_MAX,
            "a sequence with reservations is not preempted"
        );
        debug_assert!(
            self.queues.sequences[id].exit.is_none(),
            "a leaving sequence is not preempted"
        );
        match self.queues.sequences[id].group() {
            Some(group) => self.beams.preempt(&mut self.queues, group),
            None => self.queues.leave(id, Exit::Preempted),
        }
    }
}
