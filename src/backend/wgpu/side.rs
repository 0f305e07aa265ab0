//! Sizes of the buffers beside weights, rows and pool: what each encoder needs of scratch, metadata and readback.

use super::super::{Capacity, SideBuffer, metadata};
use super::arena::SideBytes;
use super::device::Profile;
use super::encode::{PARAMS_SLOTS, attend_paged, matmul, matmul_experts, pool, sample};
use super::pipelines::PARAMS_SLOT_BYTES;
use super::readback;
use crate::plan::Plan;

impl SideBytes {
    pub(crate) fn new(plan: &Plan, capacity: &Capacity, profile: &Profile) -> Self {
        let most = |bytes: fn(&Plan, &Capacity, &Profile) -> u64| {
            let parts = plan.parts().map(|part| bytes(part, capacity, profile));
            parts.max().unwrap_or(0)
        };
        let work_words = most(attend_paged::work_words_max);
        let pooled_words = pool::words_max(plan, capacity);
        Self {
            feed: u64::from(capacity.feed_slots) * 4,
            metadata: metadata::words_max(plan, capacity, work_words) * 4,
            params: u64::from(PARAMS_SLOTS * PARAMS_SLOT_BYTES),
            results: u64::from(capacity.samples_max * metadata::RESULT_STRIDE_MAX) * 4,
            pooled: u64::from(pooled_words) * 4,
            attend_scratch: most(attend_paged::scratch_bytes),
            sample_scratch: sample::scratch_bytes(plan, capacity, profile),
            sample_parts: sample::parts_bytes(plan, capacity, profile),
            expert_scratch: most(matmul_experts::scratch_bytes),
            product_scratch: matmul::scratch_bytes(plan, capacity, profile),
            narrow_rows: matmul::narrow_bytes(plan, capacity, profile),
            readback: readback::slot_bytes(capacity.samples_max, pooled_words),
        }
    }

    /// All of them, for the sum and the limits.
    pub(crate) fn list(&self) -> Vec<SideBuffer> {
        let once = [
            ("feed", self.feed),
            ("metadata", self.metadata),
            ("params", self.params),
            ("results", self.results),
            ("pooled", self.pooled),
            ("attend scratch", self.attend_scratch),
            ("sample scratch", self.sample_scratch),
            ("sample parts", self.sample_parts),
            ("expert scratch", self.expert_scratch),
            ("product scratch", self.product_scratch),
            ("narrow rows", self.narrow_rows),
        ];
        let slots = std::iter::repeat_n(("readback", self.readback), readback::SLOTS);
        once.into_iter()
            .chain(slots)
            .map(|(name, bytes)| SideBuffer { name, bytes })
            .collect()
    }
}
