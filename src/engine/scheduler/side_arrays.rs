//! Room in a step's side arrays: the penalty histories and logit biases of its draws.

use super::BatchBuilder;
use crate::engine::request::EOS_TOKEN_IDS_MAX;
use crate::engine::sequence::Sequence;

impl BatchBuilder {
    /// Whether the side arrays have room for another draw.
    pub(super) fn has_room_to_draw(&self, sequence: &Sequence, ends: usize) -> bool {
        let (history, bias) = side_entries(sequence, ends, 0);
        history <= self.history_left && bias <= self.bias_left
    }
}

/// Maximum history and bias entries of a draw with this many drafts; `ends` is the number of the model's end tokens.
pub(super) fn side_entries(sequence: &Sequence, ends: usize, drafts: u32) -> (u32, u32) {
    let entries = u32::try_from(sequence.history().len()).expect("a history fits the vocabulary");
    let added = if sequence.params().draw.has_penalties() {
        drafts * (drafts + 1) / 2
    } else {
        0
    };
    (
        (1 + drafts) * entries + added,
        (1 + drafts) * bias_len(sequence, ends),
    )
}

/// Maximum bias entries of a row; `ends` is the number of the model's end tokens.
fn bias_len(sequence: &Sequence, ends: usize) -> u32 {
    let params = sequence.params();
    let held_back = if params.min_tokens > 0 {
        params.stop_token_ids.len() + ends.min(EOS_TOKEN_IDS_MAX)
    } else {
        0
    };
    u32::try_from(params.logit_bias.len() + held_back).expect("biases are few")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::memory::Holding;
    use crate::engine::request::{Request, SamplingParams};
    use crate::engine::sequence::{Choice, Order, StreamId};
    use std::sync::Arc;

    /// Entries of a draw with so many drafts, after three tokens of which two are equal.
    fn entries(presence_penalty: f32, min_tokens: u32, ends: usize, drafts: u32) -> (u32, u32) {
        let logit_bias = [(8, 1.0), (9, 1.0)].into();
        let mut params = SamplingParams {
            min_tokens,
            logit_bias,
            stop_token_ids: vec![7],
            ..SamplingParams::default()
        };
        params.draw.presence_penalty = presence_penalty;
        let request = Request {
            prompt: [1].into(),
            params,
            ..Request::default()
        };
        let choice = Choice {
            index: 0,
            stream: StreamId(0),
        };
        let order = Order {
            priority: 0,
            round: 0,
            arrival: 0,
            choice: 0,
        };
        let mut sequence =
            Sequence::new(Arc::new(request), &[choice], 0, order, Holding::default());
        [5, 6, 5]
            .into_iter()
            .for_each(|token_id| sequence.push(token_id));
        side_entries(&sequence, ends, drafts)
    }

    #[test]
    fn every_draw_of_a_row_has_its_own_entries() {
        assert_eq!(entries(0.0, 0, 3, 0), (0, 2));
        assert_eq!(entries(0.5, 0, 3, 0), (2, 2));
        assert_eq!(
            entries(0.5, 0, 3, 3),
            (2 + 3 + 4 + 5, 4 * 2),
            "each draw sees one more draft"
        );
        assert_eq!(
            entries(0.0, 1, 3, 3),
            (0, 4 * (2 + 1 + 3)),
            "end tokens are held back too"
        );
        assert_eq!(entries(0.0, 1, 100, 0), (0, 2 + 1 + 64));
    }
}
