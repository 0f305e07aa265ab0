//! `Sample`: samples tokens from logits.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands, Rows};
use super::operation::{Access, Operation};

/// Draws one token per sample row of the batch from its logits row; see
/// [`SampleRow`](crate::plan::inputs::SampleRow) for the exact rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// `[samples × vocab]`, f32. Not modified: bias, penalties and mask are applied on the fly.
    pub logits: BufferId,
}

impl Operation for Sample {
    fn stem(&self) -> &'static str {
        "sample"
    }

    fn buffers(&self) -> Vec<(BufferId, Access)> {
        vec![(self.logits, Access::Read)]
    }

    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        operands.check_buffer(self.logits, Rows::Samples, operands.vocab)?;
        operands.check_f32(self.logits)
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        format!("sample({})", operands.buffer_name(self.logits))
    }
}
