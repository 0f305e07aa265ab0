//! `GatedActivation`: the activation between the two products of an MLP.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands};
use super::operation::{Access, Operation};

/// The activation of a gated MLP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `silu(gate) · up`.
    Silu,
    /// `gelu(gate) · up` with the tanh approximation.
    GeluTanh,
    /// gpt-oss: gate ≤ limit, up in ±limit, `gate · sigmoid(alpha · gate) · (up + 1)`.
    ClampedSwiglu {
        /// Factor inside the sigmoid (1.702 for gpt-oss).
        alpha: f32,
        /// Clamp (7 for gpt-oss).
        limit: f32,
    },
}

/// `out = act(gate) · up`, row by row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedActivation {
    /// `[rows × 2 · out.columns]`: gate, then up.
    pub gate_up: BufferId,
    /// The activation function.
    pub activation: Activation,
    /// `[rows × columns]`.
    pub out: BufferId,
}

impl Operation for GatedActivation {
    fn stem(&self) -> &'static str {
        "gated_activation"
    }

    fn buffers(&self) -> Vec<(BufferId, Access)> {
        vec![(self.gate_up, Access::Read), (self.out, Access::Write)]
    }

    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        let (rows, columns) = (operands.known_buffer(self.gate_up).rows, operands.known_buffer(self.out).columns);
        operands.check_buffer(self.gate_up, rows, 2 * columns)?;
        operands.check_buffer(self.out, rows, columns)
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        let (out, gate_up) = (operands.buffer_name(self.out), operands.buffer_name(self.gate_up));
        format!("{out} = gated_activation({gate_up}, {})", self.activation)
    }
}
