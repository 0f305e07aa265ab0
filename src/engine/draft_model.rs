//! The draft model: a smaller model with the same vocabulary, loaded beside the model on the same kind of device.
//!
//! It has keys and values of its own in blocks of the same numbers, and computes every row that the model computes. So
//! a block holds the same tokens for both, whoever shares it, and what the scheduler does with blocks (prefix cache,
//! preemption, copies, windows) holds for both. Before a step that verifies drafts, it guesses them one by one, each
//! drawn as the model will draw at that place. A guess is never more than a draft: whatever it computes, answers
//! are the model's. Blocks that return from host memory are not computed again for it, so it guesses worse after them.

use super::loaded::LoadedPlan;
use crate::backend::{Backend, BackendError};
use crate::plan::inputs::{BatchInputs, GroupInputs};

/// A loaded draft model.
pub(super) struct DraftModel<B, S> {
    pub(super) backend: B,
    pub(super) source: S,
    pub(super) loaded: LoadedPlan,
    /// For each of its KV groups, the model's group whose blocks it uses.
    pub(super) groups: Vec<usize>,
}

impl<B: Backend, S> DraftModel<B, S> {
    /// Computes the rows that the model computes in this step, after those submitted before.
    pub(super) fn follow(&mut self, inputs: &BatchInputs) -> Result<B::Ticket, BackendError> {
        self.backend.submit(&BatchInputs {
            token_ids: inputs.token_ids.clone(),
            positions: inputs.positions.clone(),
            sequences: inputs.sequences.clone(),
            groups: self.groups_of(inputs),
            ..BatchInputs::default()
        })
    }

    /// Draws a token for each sample row.
    pub(super) async fn guess(&mut self, inputs: BatchInputs) -> Result<Vec<u32>, BackendError> {
        let inputs = BatchInputs {
            groups: self.groups_of(&inputs),
            ..inputs
        };
        let ticket = self.backend.submit(&inputs)?;
        let results = self.backend.read(ticket).await?;
        Ok(results
            .sampled
            .into_iter()
            .map(|sampled| sampled.token_id)
            .collect())
    }

    fn groups_of(&self, inputs: &BatchInputs) -> Vec<GroupInputs> {
        self.groups
            .iter()
            .map(|&group| inputs.groups[group].clone())
            .collect()
    }
}
