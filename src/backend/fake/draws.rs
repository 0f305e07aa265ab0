//! The draws of a batch on the fake device: hashes of what a row sees, or the tokens of the script.

use super::FakeBackend;
use super::tokens::{continuations, first_visible, likely, logprob, mix, next_token, scored_rank};
use crate::plan::inputs::{BatchInputs, NONE, NUMERICAL_ERROR, SampleRow, Sampled};

/// Chooses the rows whose tokens are strays.
const STRAY: u64 = 0x57a7;

/// The history that a row sees.
struct History {
    hash: u64,
    /// The scripted next token, if any.
    said: Option<u32>,
}

impl FakeBackend {
    /// The draws of a batch whose rows have these histories.
    pub(super) fn sample(&self, inputs: &BatchInputs, hashes: &[Option<u64>]) -> Vec<Sampled> {
        let history = |&row: &u32| {
            Some(History {
                hash: hashes[row as usize]?,
                said: self.said(row, inputs),
            })
        };
        let histories: Vec<_> = inputs.logits_rows.iter().map(history).collect();
        let draws =
            inputs
                .samples
                .iter()
                .map(|sample| match histories[sample.logits_row as usize] {
                    Some(ref history) => self.draw(sample, history, inputs),
                    None => Sampled {
                        token_id: NUMERICAL_ERROR,
                        ..Default::default()
                    },
                });
        draws.collect()
    }

    /// The scripted token that follows the tokens that a row sees, if any.
    fn said(&self, row: u32, inputs: &BatchInputs) -> Option<u32> {
        let say = self.script.say.as_ref()?;
        let index = inputs
            .sequences
            .partition_point(|rows| rows.row_start + rows.row_count <= row);
        let position = inputs.positions[row as usize];
        let visible = first_visible(position, self.plan.kv_groups.first()?.window)..=position;
        say.next(
            &visible
                .map(|position| self.slot(0, index, position, inputs).token_id)
                .collect::<Vec<_>>(),
        )
    }

    fn draw(&self, sample: &SampleRow, history: &History, inputs: &BatchInputs) -> Sampled {
        if sample.scored_token != NONE {
            return self.told(sample, history.hash, sample.scored_token);
        }
        let past = &inputs.history[sample.history.start as usize..][..sample.history.len as usize];
        let bias = &inputs.bias[sample.bias.start as usize..][..sample.bias.len as usize];
        let pending =
            (sample.pending_slot != NONE).then(|| self.feed[sample.pending_slot as usize]);
        let words = self.plan.vocab.div_ceil(32) as usize;
        let mask = (sample.mask_start != NONE)
            .then(|| &inputs.masks[sample.mask_start as usize..][..words]);
        let said = history.said.filter(|&id| {
            id < self.plan.vocab
                && (mask.is_none_or(|mask| mask[id as usize / 32] >> (id % 32) & 1 == 1))
        });
        let Some(token_id) = said.or_else(|| {
            next_token(
                history.hash,
                sample,
                past,
                pending,
                bias,
                mask,
                self.plan.vocab,
            )
        }) else {
            return Sampled {
                token_id: NUMERICAL_ERROR,
                ..Default::default()
            };
        };
        // Where layers predict, these stray and the model does not.
        let may_stray = self.plan.predictor.is_none() || !inputs.carried.is_empty();
        let is_drawn = |one_of| mix(!history.hash, STRAY).is_multiple_of(one_of);
        let strays = may_stray && self.script.stray.is_some_and(is_drawn);
        let token_id = if strays {
            (token_id + 1) % self.plan.vocab
        } else {
            token_id
        };
        if sample.top_allowed {
            let top = continuations(history.hash, sample.top_logprobs, mask, self.plan.vocab);
            return Sampled {
                top,
                ..self.told(
                    &SampleRow {
                        top_logprobs: 0,
                        ..*sample
                    },
                    history.hash,
                    token_id,
                )
            };
        }
        self.told(sample, history.hash, token_id)
    }

    /// A token with the logprobs that its row asks for.
    fn told(&self, sample: &SampleRow, history: u64, token_id: u32) -> Sampled {
        let rank = scored_rank(history, token_id);
        let (logprob, rank) = if sample.logprob {
            (logprob(rank), 1 + rank)
        } else {
            (0.0, 0)
        };
        Sampled {
            token_id,
            logprob,
            rank,
            top: likely(history, token_id, sample.top_logprobs, self.plan.vocab),
        }
    }
}
