//! `GatherRows`: copies the token rows that need logits.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands, Rows};
use super::operation::{Access, Operation};

/// `out[s] = x[logits_rows[s]]`: the rows that will be sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatherRows {
    /// Input rows (`Rows::Tokens`).
    pub x: BufferId,
    /// Output rows (`Rows::Samples`), same columns.
    pub out: BufferId,
}

impl Operation for GatherRows {
    fn stem(&self) -> &'static str {
        "gather_rows"
    }

    fn buffers(&self) -> Vec<(BufferId, Access)> {
        vec![(self.x, Access::Read), (self.out, Access::Write)]
    }

    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        let columns = operands.known_buffer(self.x).columns;
        operands.check_buffer(self.x, Rows::Tokens, columns)?;
        operands.check_buffer(self.out, Rows::Samples, columns)
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        format!(
            "{} = gather_rows({})",
            operands.buffer_name(self.out),
            operands.buffer_name(self.x)
        )
    }
}
