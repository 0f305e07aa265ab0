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
        let streams = self.beams.streams_of(&self.queues, id);
        let sequence = &mut self.queues.sequences[id];
        let row = u32::try_from(builder.batch.rows.len() - 1).expect("a batch has few rows");
        let start = builder.batch.rows[row as usize].start;
        debug_assert!(
            builder.batch.rows[row as usize].sequence == id,
            "the last row is this sequence's"
        );
        let first = start.max(sequence.outputs_requested);
        let end = sequence.holding.computed.min(sequence.states_needed());
        let last = sequence.holding.computed == sequence.prompt_len();
        let pool = |first, count, last| Pool {
            sequence: id,
            row,
            first,
            count,
            last,
        };
        match sequence.request.pooling {
            Some(Pooling::First) if last => builder.batch.pools.push(pool(0, 1, true)),
            Some(Pooling::Last) if last => {
                let at = sequence.holding.computed - start - 1;
                builder.batch.pools.push(pool(at, 1, true));
            }
            Some(Pooling::Mean) if first < end => {
                let of_row = pool(first - start, end - first, last);
                builder.batch.pools.push(of_row);
            }
            Some(Pooling::All) if first < end => {
                let each = (first..end).map(|at| pool(at - start, 1, last && at + 1 == end));
                builder.batch.pools.extend(each);
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
