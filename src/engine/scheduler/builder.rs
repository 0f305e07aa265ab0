//! A batch under construction.

use super::Scheduler;
use crate::engine::batch::Batch;
use crate::engine::memory::Moves;
use crate::engine::speculation::pace::Yield;

/// A batch under construction, with what is left of its limits.
pub(super) struct BatchBuilder {
    pub(super) batch: Batch,
    pub(super) tokens_left: u32,
    pub(super) table_entries_left: u32,
    pub(super) history_left: u32,
    pub(super) bias_left: u32,
    pub(super) scores_left: u32,
    pub(super) drafts_left: u32,
    /// Patches of images that may still be computed before the step.
    pub(super) patches_left: u32,
    /// What the rows that draw a token yield so far.
    pub(super) drawn: Yield,
    pub(super) preempted: bool,
    /// Per KV group: number of blocks held by leaving sequences that skipped sequences are waiting for.
    pub(super) blocks_awaited: Vec<u32>,
}

impl Scheduler {
    /// An empty batch with room for `tokens_max` tokens.
    pub(super) fn builder(&self, tokens_max: u32) -> BatchBuilder {
        let groups = self.queues.memory.kv_groups();
        BatchBuilder {
            batch: Batch {
                adapters: Vec::new(),
                tiles: Vec::new(),
                step: self.queues.counts.steps,
                rows: Vec::with_capacity(self.queues.running.len()),
                draws: Vec::with_capacity(self.queues.running.len()),
                scores: Vec::new(),
                pools: Vec::new(),
                moves: Moves::new(groups),
            },
            tokens_left: tokens_max,
            table_entries_left: self.queues.limits.table_entries_max,
            history_left: self.queues.limits.history_max,
            bias_left: self.queues.limits.bias_max,
            scores_left: self.queues.limits.scores_max,
            drafts_left: self.drafts_max(tokens_max),
            patches_left: self.queues.limits.patches_max,
            drawn: Yield::default(),
            preempted: false,
            blocks_awaited: vec![0; groups],
        }
    }
}
