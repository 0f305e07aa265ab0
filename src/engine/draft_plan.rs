//! The plan of a draft model, matched with that of the model: which of the model's blocks each of its layers uses.

use crate::plan::{KvLayer, Plan, Window};
use std::sync::Arc;

/// Why a draft model does not go with a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DraftError {
    /// Its tokens are not those of the model.
    #[error("the draft model has a vocabulary of {draft} tokens, but the model one of {model}")]
    Vocabulary {
        /// Vocabulary size of the draft model.
        draft: u32,
        /// Vocabulary size of the model.
        model: u32,
    },
    /// One of the two keeps a state, which cannot be taken back to the last accepted token.
    #[error("a draft model is not supported if it, or the model, keeps a recurrent state")]
    States,
    /// No layer of the model keeps as many tokens as one of its layers needs.
    #[error("the draft model attends to {window} tokens, but no layer of the model keeps so many")]
    Window {
        /// Tokens that the layer attends to.
        window: u32,
    },
}

/// The plan of a draft model, matched with that of the model.
#[derive(Clone, Debug)]
pub struct DraftPlan {
    pub(super) plan: Arc<Plan>,
    /// For each of its KV groups, the model's group whose blocks it uses.
    pub(super) groups: Vec<usize>,
}

impl DraftPlan {
    /// Matches the plan of a draft model with that of the model; fails if they do not go together.
    pub fn new(plan: impl Into<Arc<Plan>>, model: &Plan) -> Result<Self, DraftError> {
        let plan = plan.into();
        if !model.state_layers.is_empty() || !plan.state_layers.is_empty() {
            return Err(DraftError::States);
        }
        let groups = shared_groups(model, &plan)?;
        Ok(Self { plan, groups })
    }

    /// Number of blocks of each of its KV groups, given those of the model's.
    pub(super) fn blocks(&self, blocks: &[u32]) -> Vec<u32> {
        self.groups.iter().map(|&group| blocks[group]).collect()
    }

    /// The model's plan as far as the sizes of steps and pool go, with the rows and the KV layers of both models. A
    /// context is as long as both allow.
    pub(super) fn joined(&self, model: &Plan) -> Plan {
        let own_layers = self.plan.kv_layers.iter().map(|layer| KvLayer {
            group: self.group_of(layer),
            ..*layer
        });
        Plan {
            buffers: model
                .buffers
                .iter()
                .chain(&self.plan.buffers)
                .cloned()
                .collect(),
            kv_groups: model.kv_groups.clone(),
            kv_layers: model.kv_layers.iter().copied().chain(own_layers).collect(),
            vocab: model.vocab,
            positions_max: model.positions_max.min(self.plan.positions_max),
            ..Plan::default()
        }
    }

    fn group_of(&self, layer: &KvLayer) -> u32 {
        u32::try_from(self.groups[layer.group as usize]).expect("KV groups are few")
    }
}

/// For each KV group of a draft model, the model's group whose blocks it can use: one that keeps at least as many
/// tokens, and of these the one that keeps fewest. An error names a window that is too long for all groups.
fn shared_groups(plan: &Plan, draft: &Plan) -> Result<Vec<usize>, DraftError> {
    if draft.vocab != plan.vocab {
        return Err(DraftError::Vocabulary {
            draft: draft.vocab,
            model: plan.vocab,
        });
    }
    let group_of = |window: Option<Window>| {
        let groups = plan
            .kv_groups
            .iter()
            .enumerate()
            .filter(|(_, group)| keeps(group.window, window));
        let least = groups
            .min_by_key(|(_, group)| tokens_kept(group.window))
            .map(|(index, _)| index);
        least.ok_or(DraftError::Window {
            window: window.map_or(draft.positions_max, Window::tokens),
        })
    };
    draft
        .kv_groups
        .iter()
        .map(|group| group_of(group.window))
        .collect()
}

/// Whether a group with the first window has all that a query sees with the second.
fn keeps(window: Option<Window>, seen: Option<Window>) -> bool {
    window.is_none_or(|window| seen.is_some_and(|seen| window.covers(seen)))
}

fn tokens_kept(window: Option<Window>) -> u32 {
    window.map_or(u32::MAX, Window::tokens)
}

#[cfg(test)]
mod tests;
