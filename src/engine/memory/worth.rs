//! Whether a block can move to a colder tier or back, and whether that is worth its time.

use super::Memory;
use super::pool::BlockId;

impl Memory {
    /// Whether moving a block of this group is predicted to be cheaper than computing `tokens` tokens.
    pub(super) fn is_worth_moving(&self, group: usize, tokens: u32) -> bool {
        let bytes = self.limits.tiers.block_bytes.get(group).copied();
        bytes.is_some_and(|bytes| self.rates.favor_moving(bytes, tokens.into()))
    }

    /// Whether reading a block of this group from a file is predicted to be cheaper than computing `tokens` tokens.
    pub(super) fn is_worth_reading(&self, group: usize, tokens: u32) -> bool {
        let bytes = self.limits.tiers.block_bytes.get(group).copied();
        bytes.is_some_and(|bytes| self.rates.favor_reading(bytes, tokens.into()))
    }

    /// Tokens that a block of this group spares at most: its own, or those of a whole sequence before a snapshot.
    pub(super) fn spared_max(&self, group: usize) -> u32 {
        if group == self.state_group() {
            self.demand.max_model_len
        } else {
            self.limits.block_size
        }
    }

    /// Whether a block of this group should move to host memory when it is evicted.
    pub(super) fn is_worth_evicting(&self, group: usize) -> bool {
        !self.host.is_off() && self.is_worth_moving(group, self.spared_max(group))
    }

    /// Whether no step in flight writes a state slot; a block that is finished is not written any more.
    pub(super) fn is_complete(&self, group: usize, block: BlockId) -> bool {
        group != self.state_group() || self.state_writes[block as usize] == 0
    }
}
