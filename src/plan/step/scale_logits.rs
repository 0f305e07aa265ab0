//! `ScaleLogits`: scales and soft-caps logits.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands, Rows};
use super::operation::{Access, Operation};
use super::rules::positive_softcap;

/// In place: `logits = softcap · tanh(scale · logits / softcap)`, or `scale · logits` without a cap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScaleLogits {
    /// `[samples × vocab]`.
    pub logits: BufferId,
    /// Factor of every logit.
    pub scale: f32,
    /// Soft cap of logits; positive.
    pub softcap: Option<f32>,
}

impl Operation for ScaleLogits {
    fn stem(&self) -> &'static str {
        "scale_logits"
    }

    fn buffers(&self) -> Vec<(BufferId, Access)> {
        vec![(self.logits, Access::Update)]
    }

    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        positive_softcap(self.softcap)?;
        operands.check_buffer(self.logits, Rows::Samples, operands.vocab)
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        let softcap = self
            .softcap
            .map(|cap| format!(", softcap {cap}"))
            .unwrap_or_default();
        format!(
            "{} = scale_logits(scale {}{softcap})",
            operands.buffer_name(self.logits),
            self.scale
        )
    }
}
