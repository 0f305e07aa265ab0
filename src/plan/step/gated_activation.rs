//! `GatedActivation`: the activation between the products of an MLP, most often gated.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands, WeightId};
use super::operation::{Access, Operation, optional};

/// The activation of an MLP.
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
    /// `relu(gate)² · up`.
    Relu2,
    /// `xielu(gate) · up` with [`GatedActivation::numbers`] `[p, n, β, ε]`: for g > 0 it is `softplus(p) · g² + β · g`,
    /// otherwise `(exp(min(g, ε)) − 1 − g) · (β + softplus(n)) + β · g`.
    Xielu,
}

/// What the activated gate is multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Up {
    /// The second half of a row of `gate_up`.
    SecondHalf,
    /// Nothing: the MLP has no gate, and `gate_up` holds what is activated.
    One,
    /// Columns of another buffer of the same rows, from this column (a multiple of 8) on.
    Of(BufferId, u32),
}

/// `out = act(gate) · up`, row by row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedActivation {
    /// `[rows × 2 · out.columns]`: gate, then up; or `[rows × out.columns]`, if up is elsewhere.
    pub gate_up: BufferId,
    /// What the activated gate is multiplied with.
    pub up: Up,
    /// The activation function.
    pub activation: Activation,
    /// `[1 × 4]` f32 for [`Activation::Xielu`].
    pub numbers: Option<WeightId>,
    /// `[rows × columns]`.
    pub out: BufferId,
}

impl Operation for GatedActivation {
    fn stem(&self) -> &'static str {
        "gated_activation"
    }

    fn buffers(&self) -> Vec<(BufferId, Access)> {
        let up = if let Up::Of(buffer, _) = self.up { Some((buffer, Access::Read)) } else { None };
        [(self.gate_up, Access::Read)].into_iter().chain(up).chain([(self.out, Access::Write)]).collect()
    }

    fn weights(&self) -> Vec<WeightId> {
        self.numbers.into_iter().collect()
    }

    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        let (rows, columns) = (operands.known_buffer(self.gate_up).rows, operands.known_buffer(self.out).columns);
        operands.check_buffer(self.gate_up, rows, if self.up == Up::SecondHalf { 2 * columns } else { columns })?;
        if let Up::Of(buffer, first) = self.up {
            let whole = operands.known_buffer(buffer).columns;
            operands.check_buffer(buffer, rows, whole)?;
            if !first.is_multiple_of(8) || first.checked_add(columns).is_none_or(|end| end > whole) {
                let (what, found) = ("columns of up".into(), format!("{columns} from {first} on, of {whole}"));
                return Err(PlanErrorKind::Unsupported { what, found, expected: "whole runs of 8 within the row" });
            }
        }
        if self.numbers.is_some() != (self.activation == Activation::Xielu) {
            let (what, found) = ("numbers of an activation".into(), self.activation.to_string());
            return Err(PlanErrorKind::Unsupported { what, found, expected: "xIELU with its four numbers" });
        }
        if let Some(numbers) = self.numbers {
            operands.check_f32_vector(numbers, 4)?;
        }
        operands.check_buffer(self.out, rows, columns)
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        let (out, gate_up) = (operands.buffer_name(self.out), operands.buffer_name(self.gate_up));
        let up = match self.up {
            Up::SecondHalf => String::new(),
            Up::One => ", no up".into(),
            Up::Of(buffer, first) => format!(", up {} from column {first}", operands.buffer_name(buffer)),
        };
        let numbers = optional(operands, "numbers", self.numbers);
        format!("{out} = gated_activation({gate_up}{up}, {}{numbers})", self.activation)
    }
}
