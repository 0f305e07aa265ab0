//! `Pool`: sums of hidden states, for embeddings.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands, Rows};
use super::operation::{Access, Operation};

/// For each [`PoolRow`](crate::plan::inputs::PoolRow) of the batch, the sum of its rows of `x`, read back in f32. One
/// row is the hidden state of one token. The host computes the mean over all chunks of a prompt and normalizes it. Of a
/// tower, the rows are those that it has merged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pool {
    /// Input rows (`Rows::Tokens` or `Rows::Samples`).
    pub x: BufferId,
}

impl Operation for Pool {
    fn stem(&self) -> &'static str {
        "pool"
    }

    fn buffers(&self) -> Vec<(BufferId, Access)> {
        vec![(self.x, Access::Read)]
    }

    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        let buffer = operands.known_buffer(self.x);
        let rows = match buffer.rows {
            Rows::Samples => Rows::Samples,
            _ => Rows::Tokens,
        };
        operands.check_buffer(self.x, rows, buffer.columns)
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        format!("pool({})", operands.buffer_name(self.x))
    }
}
