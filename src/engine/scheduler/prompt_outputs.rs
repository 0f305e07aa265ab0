//! Outputs of prompt rows besides the next token: prompt logprobs, or hidden states for an embedding.
//!
//! They are requested once per position. A preempted sequence recomputes its beginning or finds it in the cache, but
//! does not request these outputs again, except those that a failed step did not report.

use super::{BatchBuilder, Scheduler};
use crate::engine::batch::{Pool, Score};
use crate::engine::request::Pooling;
use crate::engine::sequence::{Sequence, SequenceId};

impl Scheduler {
    /// Requests the prompt outputs of the last row of the batch, which was just pushed.
    pub(super) fn request_prompt_outputs(&mut self, id: SequenceId, builder: &mut BatchBuilder) {
        let streams = self.streams_of(id);
        let sequence = &mut self.sequences[id];
        let row = u32::try_from(builder.batch.rows.len() - 1).expect("a batch has few rows");
        let start = builder.batch.rows[row as usize].start;
        debug_assert!(
            builder.batch.rows[row as usize].sequence == id,
            "the last row is this sequence's"
        );
        let first = start.max(sequence.outputs_requested);
        let end = sequence.holding.computed.min(sequence.states_needed());
        let last = sequence.holding.computed == sequence.prompt_len();
        match sequence.request.pooling {
            Some(pooling @ (Pooling::First | Pooling::Last)) if last => {
                builder.batch.pools.push(Pool {
                    sequence: id,
                    row,
                    count: 1,
                    of_first: pooling == Pooling::First,
                    last,
                });
            }
            Some(Pooling::Mean) if first < end => {
                builder.batch.pools.push(Pool {
                    sequence: id,
                    row,
                    count: end - first,
                    of_first: false,
                    last,
                });
            }
            None if first < end => {
                builder.batch.scores.push(Score {
                    sequence: id,
                    row,
                    first,
                    count: end - first,
                    streams,
                });
                debug_assert!(
                    end - first <= builder.scores_left,
                    "a row is as long as the step can score"
                );
                builder.scores_left -= end - first;
            }
            _ => return,
        }
        sequence.outputs_requested = sequence.outputs_requested.max(end);
    }
}

/// Number of tokens that a sequence may compute now without exceeding the step's limit of prompt logprobs.
pub(super) fn scorable(sequence: &Sequence, builder: &BatchBuilder) -> u32 {
    if sequence.params().prompt_logprobs.is_none() {
        return u32::MAX;
    }
    let end = sequence.outputs_requested.max(sequence.holding.computed) + builder.scores_left;
    if end >= sequence.states_needed() {
        u32::MAX
    } else {
        end - sequence.holding.computed
    }
}
