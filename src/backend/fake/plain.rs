//! The expected history of a plain list of tokens.

use super::states::{ZERO, fold};
use super::{first_visible, history, row_state, see};

/// The history of a plain list of tokens: what a row should see, whatever blocks and batches its tokens were in.
#[derive(Clone, Debug)]
pub struct PlainHistory {
    windows: Vec<Option<u32>>,
    states: Vec<u64>,
    /// What the model keeps of the tokens so far, if it keeps a state.
    kept: Option<u64>,
}

impl PlainHistory {
    /// An empty list for a model with these windows, one for each KV group.
    pub fn new(windows: &[Option<u32>]) -> Self {
        Self { windows: windows.to_vec(), states: Vec::new(), kept: None }
    }

    /// The same list for a model that keeps a state per sequence.
    #[must_use]
    pub fn with_state(self) -> Self {
        Self { kept: Some(ZERO), ..self }
    }

    /// Adds a token and returns the hash of what its row sees.
    pub fn push(&mut self, token_id: u32) -> u64 {
        let position = u32::try_from(self.states.len()).expect("a list fits the context");
        let sum = |states: &[u64], window: &Option<u32>| {
            let visible =
                (first_visible(position, *window)..).zip(&states[first_visible(position, *window) as usize..]);
            visible.fold(0_u64, |sum, (position, &state)| sum.wrapping_add(see(position, state)))
        };
        let sums = self.windows.iter().map(|window| sum(&self.states, window)).chain(self.kept);
        let state = row_state(position, token_id, sums);
        self.kept = self.kept.map(|kept| fold(kept, state));
        self.states.push(state);
        history(self.windows.iter().map(|window| sum(&self.states, window)))
    }
}
