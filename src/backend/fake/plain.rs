//! The expected history of a plain list of tokens.

use super::states::{ZERO, fold};
use super::{first_visible, history, row_state, see};
use crate::plan::Window;

/// The history of a plain list of tokens: what a row should see, whatever blocks and batches its tokens were in.
#[derive(Clone, Debug)]
pub struct PlainHistory {
    windows: Vec<Option<Window>>,
    /// The sum of what rows see of the first `i` tokens, at `i`.
    sums: Vec<u64>,
    /// What the model keeps of the tokens so far, if it keeps a state.
    kept: Option<u64>,
    /// What changes the model, if an adapter does.
    adapter: Option<u64>,
}

impl PlainHistory {
    /// An empty list for a model with these windows, one for each KV group.
    pub fn new(windows: &[Option<Window>]) -> Self {
        Self {
            windows: windows.to_vec(),
            sums: vec![0],
            kept: None,
            adapter: None,
        }
    }

    /// The same list for a sequence with the adapter whose matrix has these bytes.
    #[must_use]
    pub fn with_adapter(self, matrix: [u8; 8]) -> Self {
        Self {
            adapter: Some(u64::from_le_bytes(matrix)),
            ..self
        }
    }

    /// The same list for a model that keeps a state per sequence.
    #[must_use]
    pub fn with_state(self) -> Self {
        Self {
            kept: Some(ZERO),
            ..self
        }
    }

    /// Position of the next token.
    pub fn position(&self) -> u32 {
        u32::try_from(self.sums.len() - 1).expect("a list fits the context")
    }

    /// Adds a token and returns the hash of what its row sees.
    pub fn push(&mut self, token_id: u32) -> u64 {
        let position = self.position();
        let visible = |sums: &[u64], window: &Option<Window>| {
            let first = first_visible(position, *window) as usize;
            sums.last().unwrap_or(&0).wrapping_sub(sums[first])
        };
        let before = self
            .windows
            .iter()
            .map(|window| visible(&self.sums, window))
            .chain(self.kept)
            .chain(self.adapter);
        let state = row_state(position, token_id, before);
        self.kept = self.kept.map(|kept| fold(kept, state));
        let all = self
            .sums
            .last()
            .unwrap_or(&0)
            .wrapping_add(see(position, state));
        self.sums.push(all);
        history(
            self.windows
                .iter()
                .map(|window| visible(&self.sums, window)),
        )
    }
}
