//! `GatherRows`: copies the token rows that need logits, or those that a tower merges.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands, Rows};
use super::operation::{Access, Operation};

/// `out[s] = x[r], x[r + 1], …` side by side, with `r = logits_rows[s]`, as many as a row of `out` holds: one for the
/// rows that will be sampled, those of a block of patches in a tower.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatherRows {
    /// Input rows (`Rows::Tokens`).
    pub x: BufferId,
    /// Output rows (`Rows::Samples`), whose columns are a multiple of those of `x`.
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
        let merged = operands.known_buffer(self.out).columns;
        let whole = merged / columns * columns;
        operands.check_buffer(self.out, Rows::Samples, whole.max(columns))
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        let [from, to] = [self.x, self.out].map(|id| operands.buffer(id).map(|spec| spec.columns));
        let run = match (from, to) {
            (Some(from), Some(to)) if to > from && from > 0 => format!(", {} in a row", to / from),
            _ => String::new(),
        };
        format!(
            "{} = gather_rows({}{run})",
            operands.buffer_name(self.out),
            operands.buffer_name(self.x)
        )
    }
}
