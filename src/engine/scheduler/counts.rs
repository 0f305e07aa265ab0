//! What the pool holds, counted in tokens.

use super::Scheduler;

impl Scheduler {
    /// Number of tokens stored in held blocks, over all KV groups: the slots of those blocks minus the slots that
    /// nobody has filled yet. A shared block counts once.
    pub fn tokens_stored(&self) -> u64 {
        let holdings = self
            .queues
            .sequences
            .iter()
            .map(|sequence| &sequence.holding);
        self.queues.memory.tokens_stored(holdings)
    }
}
