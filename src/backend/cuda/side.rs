//! Sizes of the buffers beside weights, rows and pool: what each encoder needs of scratch, counters and metadata.

use super::super::{Capacity, SideBuffer, metadata};
use super::arena::SideBytes;
use super::driver::Facts;
use super::encode::{attend_paged, matmul_experts, matmul_tile, pool, sample};
use crate::plan::Plan;

impl SideBytes {
    pub(super) fn new(plan: &Plan, capacity: &Capacity, facts: &Facts) -> Self {
        let most = |number: fn(&Plan, &Capacity, &Facts) -> u64| {
            let parts = plan.parts().map(|part| number(part, capacity, facts));
            parts.max().unwrap_or(0)
        };
        Self {
            feed: u64::from(capacity.feed_slots.max(1)) * 4,
            metadata: metadata::words_max(plan, capacity, most(attend_paged::work_words_max)) * 4,
            results: u64::from(capacity.samples_max.max(1) * metadata::RESULT_STRIDE_MAX) * 4,
            pooled: u64::from(pool::words_max(plan, capacity)) * 4,
            attend_scratch: most(attend_paged::scratch_bytes),
            attend_counters: 4 * most(|plan, capacity, facts| {
                attend_paged::counters(plan, capacity, facts).into()
            }),
            sample_scratch: sample::scratch_bytes(plan, capacity),
            expert_scratch: most(|plan, capacity, _| matmul_experts::scratch_bytes(plan, capacity)),
            tile_scratch: matmul_tile::scratch_bytes(facts),
            tile_counters: u64::from(matmul_tile::counters(facts)) * 4,
            kv_table: plan.kv_layers.len() as u64 * 16,
        }
    }

    /// Maximum words that one batch uploads and downloads.
    pub(super) fn slot_words(&self) -> (usize, usize) {
        (
            (self.metadata / 4) as usize,
            ((self.results + self.pooled) / 4) as usize,
        )
    }

    /// All these buffers, to add up their sizes.
    pub(super) fn list(&self) -> Vec<SideBuffer> {
        let all = [
            ("feed", self.feed),
            ("metadata", self.metadata),
            ("results", self.results),
            ("pooled rows", self.pooled),
            ("attend scratch", self.attend_scratch),
            ("attend counters", self.attend_counters),
            ("sample scratch", self.sample_scratch),
            ("expert scratch", self.expert_scratch),
            ("tile scratch", self.tile_scratch),
            ("tile counters", self.tile_counters),
            ("kv table", self.kv_table),
        ];
        all.into_iter()
            .map(|(name, bytes)| SideBuffer { name, bytes })
            .collect()
    }
}
