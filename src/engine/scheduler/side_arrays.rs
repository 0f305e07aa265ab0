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
mod tests;
