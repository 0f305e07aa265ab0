//! `GatedActivation`: the activation between the products of an MLP, most often gated; and gates of other branches.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands, Rows, WeightId};
use super::operation::{Access, Operation, optional};
use super::rules::whole_runs;

/// The activation of an MLP or of a gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `silu(gate) · up`.
    Silu,
    /// `gelu(gate) · up` with the tanh approximation.
    GeluTanh,
    /// `½ gate (1 + erf(gate / √2)) · up`.
    Gelu,
    /// `max(gate, 0) · up`.
    Relu,
    /// gpt-oss: gate ≤ limit, up in ±limit, `gate · sigmoid(alpha · gate) · (up + 1)`.
    ClampedSwiglu {
        /// Factor inside the sigmoid (1.702 for gpt-oss).
        alpha: f32,
        /// Clamp (7 for gpt-oss).
        limit: f32,
    },
    /// `min(silu(gate), limit) · up`, with up in ±limit.
    ClampedSilu {
        /// Clamp of the activated gate and of up.
        limit: f32,
    },
    /// `relu(gate)² · up`.
    Relu2,
    /// `σ(gate) · up`, for up in another buffer: the output gate of attention.
    Sigmoid,
    /// `ln(1 + e^gate) · up`, for up in another buffer, as `Sigmoid`.
    Softplus,
    /// `xielu(gate) · up` with [`GatedActivation::numbers`] `[p, n, β, ε]`: for g > 0 it is `softplus(p) · g² + β · g`,
    /// otherwise `(exp(min(g, ε)) − 1 − g) · (β + softplus(n)) + β · g`.
    Xielu,
}

impl Activation {
    /// Whether it is that of a gate of what is in another buffer, which columns may share.
    pub fn is_output_gate(self) -> bool {
        matches!(self, Self::Sigmoid | Self::Softplus)
    }
}

/// The error function, by its series `2/√π · e^(−x²) · Σ 2ⁿ x^(2n + 1) / (2n + 1)!!`, whose terms are all of one sign.
pub(crate) fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..150 {
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
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

/// Where the gates are, if up is in another buffer: not the default only with [`Activation::Silu`] and output gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gates {
    /// The first gate's column in `gate_up`, a multiple of 8 unless gates are shared.
    pub first: u32,
    /// Number of consecutive columns of `out` that share a gate: 1, or of output gates a multiple of 8, the elements of
    /// a head.
    pub shared_by: u32,
}

impl Default for Gates {
    /// One gate per column, from the first column on.
    fn default() -> Self {
        Self {
            first: 0,
            shared_by: 1,
        }
    }
}

/// `out = act(gate) · up`, row by row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedActivation {
    /// `[rows × 2 · out.columns]`: gate, then up; `[rows × out.columns]`, if there is no up; or rows that hold the
    /// gates, if up is in another buffer.
    pub gate_up: BufferId,
    /// Where the gates are; the default unless up is in another buffer.
    pub gates: Gates,
    /// What the activated gate is multiplied with.
    pub up: Up,
    /// The activation function.
    pub activation: Activation,
    /// `[1 × 4]` f32 for [`Activation::Xielu`].
    pub numbers: Option<WeightId>,
    /// `[rows × 2]` f32, the routes of the rows: a gate is multiplied by the weight of its row's route before the
    /// activation. With the weights of the product that follows, this is as if the expert's input had been multiplied.
    pub routes: Option<BufferId>,
    /// `[rows × columns]`.
    pub out: BufferId,
}

impl Operation for GatedActivation {
    fn stem(&self) -> &'static str {
        "gated_activation"
    }

    fn buffers(&self) -> Vec<(BufferId, Access)> {
        let up = if let Up::Of(buffer, _) = self.up {
            Some((buffer, Access::Read))
        } else {
            None
        };
        let routes = self.routes.map(|routes| (routes, Access::Read));
        [(self.gate_up, Access::Read)]
            .into_iter()
            .chain(up)
            .chain(routes)
            .chain([(self.out, Access::Write)])
            .collect()
    }

    fn weights(&self) -> Vec<WeightId> {
        self.numbers.into_iter().collect()
    }

    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        let (rows, columns) = (
            operands.known_buffer(self.gate_up).rows,
            operands.known_buffer(self.out).columns,
        );
        self.check_gates(operands, rows, columns)?;
        self.check_routes(operands, rows)?;
        if let Up::Of(buffer, first) = self.up {
            operands.check_columns(buffer, rows, first, columns)?;
            whole_runs("first column of up", first)?;
        }
        if self.numbers.is_some() != (self.activation == Activation::Xielu) {
            let (what, found) = (
                "numbers of an activation".into(),
                self.activation.to_string(),
            );
            return Err(PlanErrorKind::Unsupported {
                what,
                found,
                expected: "xIELU with its four numbers",
            });
        }
        if let Some(numbers) = self.numbers {
            operands.check_f32_vector(numbers, 4)?;
        }
        operands.check_buffer(self.out, rows, columns)
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        let (out, gate_up) = (
            operands.buffer_name(self.out),
            operands.buffer_name(self.gate_up),
        );
        let Gates { first, shared_by } = self.gates;
        let from = if first == 0 {
            String::new()
        } else {
            format!(" from column {first}")
        };
        let shared = if shared_by == 1 {
            String::new()
        } else {
            format!(", {shared_by} columns a gate")
        };
        let up = match self.up {
            Up::SecondHalf => String::new(),
            Up::One => ", no up".into(),
            Up::Of(buffer, first) => {
                format!(", up {} from column {first}", operands.buffer_name(buffer))
            }
        };
        let numbers = optional(operands, "numbers", self.numbers);
        let routes = self.routes.map_or(String::new(), |routes| {
            format!(", gates times {}", operands.buffer_name(routes))
        });
        format!(
            "{out} = gated_activation({gate_up}{from}{shared}{up}, {}{numbers}{routes})",
            self.activation
        )
    }
}

impl GatedActivation {
    fn check_routes(&self, operands: &Operands<'_>, rows: Rows) -> Result<(), PlanErrorKind> {
        let Some(routes) = self.routes else {
            return Ok(());
        };
        if self.up != Up::SecondHalf || self.activation == Activation::Xielu {
            let (what, found) = ("gates times routes".into(), self.activation.to_string());
            return Err(PlanErrorKind::Unsupported {
                what,
                found,
                expected: "gates before their ups, without numbers",
            });
        }
        operands.check_f32(routes)?;
        operands.check_buffer(routes, rows, 2)
    }

    fn check_gates(
        &self,
        operands: &Operands<'_>,
        rows: Rows,
        columns: u32,
    ) -> Result<(), PlanErrorKind> {
        let (Gates { first, shared_by }, is_output_gate) =
            (self.gates, self.activation.is_output_gate());
        if !matches!(self.up, Up::Of(..)) && (self.gates != Gates::default() || is_output_gate) {
            let (what, found) = (
                "gates".into(),
                format!("{} in a buffer of their own", self.activation),
            );
            return Err(PlanErrorKind::Unsupported {
                what,
                found,
                expected: "gates of what is in another buffer",
            });
        }
        if shared_by == 0 || !columns.is_multiple_of(shared_by) || shared_by > 1 && !is_output_gate
        {
            let (what, found) = (
                "gates".into(),
                format!("{} of {shared_by} columns each", self.activation),
            );
            return Err(PlanErrorKind::Unsupported {
                what,
                found,
                expected: "sigmoid or softplus, of a divisor of the columns",
            });
        }
        if self.gates != Gates::default() && !is_output_gate && self.activation != Activation::Silu
        {
            let (what, found) = (
                "gates among other columns".into(),
                self.activation.to_string(),
            );
            return Err(PlanErrorKind::Unsupported {
                what,
                found,
                expected: "silu, sigmoid or softplus",
            });
        }
        if self.gates == Gates::default() {
            return operands.check_buffer(
                self.gate_up,
                rows,
                columns * if self.up == Up::SecondHalf { 2 } else { 1 },
            );
        }
        if shared_by == 1 {
            whole_runs("first column of the gates", first)?;
        } else {
            whole_runs("columns that share a gate", shared_by)?;
        }
        operands.check_columns(self.gate_up, rows, first, columns / shared_by)
    }
}
