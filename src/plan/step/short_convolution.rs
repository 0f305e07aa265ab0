//! `ShortConvolution`: a convolution over the last few tokens of a sequence, which are its state.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands, Rows, WeightId};
use super::operation::{Access, Operation, optional};
use super::rules::TAPS_MAX;

/// What a convolution reads, and what becomes of its sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvolutionForm {
    /// `x` is `[tokens × 3 · columns]`: all gates b, then all gates c, then all values u. The convolution is over
    /// `s = b · u`, and `out = c · sum`.
    Gated,
    /// `x` is at least `columns` wide; the convolution is over its first `columns` columns s, and `out = silu(sum)`.
    Silu,
}

/// For each column of row t: `sum = Σ_j weight[j] · s_{t − taps + 1 + j} + bias` over the taps j, where s and what
/// becomes of the sum are those of the [`ConvolutionForm`]. The state of a sequence is s of its last `taps − 1` tokens,
/// oldest first, `[taps − 1 × columns]`; the tokens before the first one have s = 0.
///
/// Each [`StateRows`](crate::plan::inputs::StateRows) of the batch says where the state before the sequence's rows is
/// read and where the state after them is stored. How a sequence is cut into batches changes nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShortConvolution {
    /// Gates and values, or values alone, as the form says.
    pub x: BufferId,
    /// What the convolution reads, and what becomes of its sums.
    pub form: ConvolutionForm,
    /// Index into [`Plan::state_layers`](crate::plan::Plan::state_layers), for a layer of its own:
    /// `(taps − 1) · columns` elements.
    pub layer: u32,
    /// Tokens that a row sees, itself included: 2 to [`TAPS_MAX`].
    pub taps: u32,
    /// `[1 × columns · taps]` f32: the weights of each column, the oldest token's first.
    pub weight: WeightId,
    /// `[1 × columns]` f32.
    pub bias: Option<WeightId>,
    /// `[tokens × columns]`.
    pub out: BufferId,
}

impl Operation for ShortConvolution {
    fn stem(&self) -> &'static str {
        "short_convolution"
    }

    fn buffers(&self) -> Vec<(BufferId, Access)> {
        vec![(self.x, Access::Read), (self.out, Access::Write)]
    }

    fn weights(&self) -> Vec<WeightId> {
        std::iter::once(self.weight).chain(self.bias).collect()
    }

    fn state_layer(&self) -> Option<u32> {
        Some(self.layer)
    }

    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        if !(2..=TAPS_MAX).contains(&self.taps) {
            let (what, found) = ("taps".into(), self.taps.to_string());
            return Err(PlanErrorKind::Unsupported {
                what,
                found,
                expected: "2 to 8",
            });
        }
        let columns = operands.known_buffer(self.out).columns;
        operands.check_buffer(self.out, Rows::Tokens, columns)?;
        match self.form {
            ConvolutionForm::Gated => operands.check_buffer(self.x, Rows::Tokens, 3 * columns)?,
            ConvolutionForm::Silu => operands.check_columns(self.x, Rows::Tokens, 0, columns)?,
        }
        operands.check_f32_vector(self.weight, self.taps * columns)?;
        self.bias
            .map_or(Ok(()), |bias| operands.check_f32_vector(bias, columns))?;
        operands.check_state(self.layer, (self.taps - 1) * columns)
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        let (out, x) = (operands.buffer_name(self.out), operands.buffer_name(self.x));
        let (weight, bias) = (
            operands.weight_name(self.weight),
            optional(operands, "bias", self.bias),
        );
        let silu = if self.form == ConvolutionForm::Silu {
            ", silu"
        } else {
            ""
        };
        format!(
            "{out} = short_convolution({x}, state layer {}, {} taps of {weight}{bias}{silu})",
            self.layer, self.taps
        )
    }
}
