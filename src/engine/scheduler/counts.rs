//! What the scheduler counts.

use super::{PrefixEnds, Scheduler};
use crate::config::SPECULATIVE_TOKENS_MAX;
use crate::engine::request::DraftSkip;

/// Counters since the start; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that left the queue for the first time, by admission or by abort.
    pub requests_dequeued: u64,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Prompt tokens found in the prefix cache, in any tier.
    pub prefix_hits: u64,
    /// Those of them that came from host memory.
    pub prefix_hits_host: u64,
    /// Those of them that were read from disk.
    pub prefix_hits_disk: u64,
    /// Files written.
    pub files_written: u64,
    /// Files read and used.
    pub files_read: u64,
    /// Files that were not what they should be.
    pub files_refused: u64,
    /// Blocks copied to host memory.
    pub blocks_saved: u64,
    /// Blocks copied back from host memory.
    pub blocks_restored: u64,
    /// Prompts, by why their cached prefix was not longer.
    pub prefix_ends: PrefixEnds,
    /// Prompt tokens of admitted requests.
    pub prompt_tokens: u64,
    /// Generated tokens.
    pub generation_tokens: u64,
    /// Choices that ended at an end token or stop token.
    pub finished_stop: u64,
    /// Choices that reached their length limit.
    pub finished_length: u64,
    /// Choices whose receiver was dropped.
    pub finished_abort: u64,
    /// Choices that ended with an error.
    pub finished_error: u64,
    /// Choices whose logits were invalid (NaN or infinite).
    pub corrupted_requests: u64,
    /// Sequences preempted for lack of KV blocks.
    pub preemptions: u64,
    /// Runs of drafted tokens that were verified.
    pub drafts: u64,
    /// Drafted tokens.
    pub draft_tokens: u64,
    /// Accepted drafts, by their place behind the last known token.
    pub accepted_at: [u64; SPECULATIVE_TOKENS_MAX as usize],
    /// Draws without drafts, by [`DraftSkip`].
    pub draft_skips: [u64; DraftSkip::ALL.len()],
    /// Scheduled steps.
    pub steps: u64,
}

impl Scheduler {
    /// Number of tokens stored in held blocks, over all KV groups: the slots of those blocks minus the slots that
    /// nobody has filled yet. A shared block counts once.
    pub fn tokens_stored(&self) -> u64 {
        let holdings = self.sequences.iter().map(|sequence| &sequence.holding);
        self.memory.tokens_stored(holdings)
    }
}
