//! `StateScan`: a linear recurrence over the tokens of a sequence, with a matrix per head as its state.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands, Rows, WeightId};
use super::operation::{Access, Operation, optional, unless};
use super::rules::STATE_DIM_MAX;

/// How a token changes the state of a head, and the order of the channels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScanRule {
    /// The gated delta rule (Gated DeltaNet). Channels are q of all key heads, k of all key heads, then v of all heads.
    /// Gates are b of all heads, then a of all heads. q and k are scaled to unit length per head, `u / √(Σu² + 10⁻⁶)`,
    /// and q is divided by √key_dim. With `g = decay · softplus(a + dt_bias)` and `β = beta_scale · σ(b)`:
    /// `S = e^g S; S += k (β (v − Sᵀk))ᵀ; o = Sᵀq`.
    Delta {
        /// Factor of β: 1, or 2 if negative eigenvalues are allowed.
        beta_scale: f32,
    },
    /// The selective scan of Mamba-2. Channels are u of all heads (here v), B of all groups (here k), then C of all
    /// groups (here q); a group is a key head. Gates are dt of all heads. With `dt = softplus(dt + dt_bias)`:
    /// `S = e^(dt · decay) S; S += k (dt · v)ᵀ; o = Sᵀq + skip · v`.
    Mamba2,
}

impl ScanRule {
    /// Gates of each head.
    pub const fn gates(self) -> u32 {
        match self {
            Self::Delta { .. } => 2,
            Self::Mamba2 => 1,
        }
    }

    /// Whether it is the delta rule.
    pub const fn is_delta(self) -> bool {
        matches!(self, Self::Delta { .. })
    }

    /// Factor of β; 0 where there is none.
    pub const fn beta_scale(self) -> f32 {
        match self {
            Self::Delta { beta_scale } => beta_scale,
            Self::Mamba2 => 0.0,
        }
    }
}

/// For each row of a sequence in order and for each head, with the state S of the head, `[key_dim × value_dim]`: decays
/// S, adds the outer product of a key and a value, and reads S with a query, as the [`ScanRule`] says. Head h uses key
/// and query of key head `h / (heads / key_heads)`. The state of a sequence is S of all heads after its last token,
/// `[heads × key_dim × value_dim]` f32; before the first token it is zero.
///
/// Each [`StateRows`](crate::plan::inputs::StateRows) of the batch says where the state before the sequence's rows is
/// read and where the state after them is stored. How a sequence is cut into batches changes nothing but rounding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StateScan {
    /// `[tokens × channels]` with `channels = 2 · key_heads · key_dim + heads · value_dim`: the queries, keys and
    /// values, most often what a [`ShortConvolution`](super::ShortConvolution) computes.
    pub convolved: BufferId,
    /// Rows that hold the gates.
    pub mixed: BufferId,
    /// The first gate's column in `mixed`; there are `rule.gates() · heads`.
    pub gates: u32,
    /// Index into [`Plan::state_layers`](crate::plan::Plan::state_layers), for a layer of its own:
    /// `heads · key_dim · value_dim` elements.
    pub layer: u32,
    /// Heads, each with values and a state: a multiple of `key_heads`.
    pub heads: u32,
    /// Heads with keys and queries; the groups of Mamba-2.
    pub key_heads: u32,
    /// Head h uses key and query of key head `h % key_heads` instead of `h / (heads / key_heads)`.
    pub tiled: bool,
    /// Elements of a key and of a query: a multiple of 8, at most [`STATE_DIM_MAX`]. The state size of Mamba-2.
    pub key_dim: u32,
    /// Elements of a value: a multiple of 8, at most [`STATE_DIM_MAX`].
    pub value_dim: u32,
    /// How a token changes the state.
    pub rule: ScanRule,
    /// `[1 × heads]` f32: `−exp(A_log)`, computed at load.
    pub decay: WeightId,
    /// `[1 × heads]`.
    pub dt_bias: WeightId,
    /// `[1 × heads]`, for [`ScanRule::Mamba2`]: D.
    pub skip: Option<WeightId>,
    /// `[tokens × heads · value_dim]`.
    pub out: BufferId,
}

impl StateScan {
    /// Consecutive heads that use the same key head: head h uses key head `h / shared_by() % key_heads`.
    pub const fn shared_by(&self) -> u32 {
        if self.tiled {
            1
        } else {
            self.heads / self.key_heads
        }
    }

    /// First columns of the queries, keys and values in `convolved`, in the order of the [`ScanRule`].
    pub const fn starts(&self) -> [u32; 3] {
        let keys = self.key_heads * self.key_dim;
        let values = self.heads * self.value_dim;
        match self.rule {
            ScanRule::Delta { .. } => [0, keys, 2 * keys],
            ScanRule::Mamba2 => [values + keys, values, 0],
        }
    }

    /// Columns of `convolved`.
    pub const fn channels(&self) -> u32 {
        2 * self.key_heads * self.key_dim + self.heads * self.value_dim
    }
}

impl Operation for StateScan {
    fn stem(&self) -> &'static str {
        "state_scan"
    }

    fn buffers(&self) -> Vec<(BufferId, Access)> {
        vec![
            (self.convolved, Access::Read),
            (self.mixed, Access::Read),
            (self.out, Access::Write),
        ]
    }

    fn weights(&self) -> Vec<WeightId> {
        [self.decay, self.dt_bias]
            .into_iter()
            .chain(self.skip)
            .collect()
    }

    fn state_layer(&self) -> Option<u32> {
        Some(self.layer)
    }

    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        let Self {
            heads,
            key_heads,
            key_dim,
            value_dim,
            ..
        } = *self;
        if key_heads == 0 || heads == 0 || !heads.is_multiple_of(key_heads) {
            let (what, found) = (
                "heads".into(),
                format!("{heads} over {key_heads} key heads"),
            );
            return Err(PlanErrorKind::Unsupported {
                what,
                found,
                expected: "a multiple of the key heads",
            });
        }
        for (name, dim) in [("key_dim", key_dim), ("value_dim", value_dim)] {
            if dim == 0 || dim > STATE_DIM_MAX || !dim.is_multiple_of(8) {
                let (what, found) = (name.into(), dim.to_string());
                return Err(PlanErrorKind::Unsupported {
                    what,
                    found,
                    expected: "a multiple of 8, at most 256",
                });
            }
        }
        if self.skip.is_some() && self.rule != ScanRule::Mamba2 {
            let (what, found) = ("skip".into(), "the delta rule".into());
            return Err(PlanErrorKind::Unsupported {
                what,
                found,
                expected: "Mamba-2",
            });
        }
        operands.check_buffer(self.convolved, Rows::Tokens, self.channels())?;
        operands.check_columns(
            self.mixed,
            Rows::Tokens,
            self.gates,
            self.rule.gates() * heads,
        )?;
        operands.check_f32_vector(self.decay, heads)?;
        operands.check_weight(self.dt_bias, 1, heads)?;
        self.skip
            .map_or(Ok(()), |skip| operands.check_weight(skip, 1, heads))?;
        operands.check_buffer(self.out, Rows::Tokens, heads * value_dim)?;
        operands.check_state(self.layer, heads * key_dim * value_dim)
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        let [out, convolved, mixed] =
            [self.out, self.convolved, self.mixed].map(|id| operands.buffer_name(id));
        let Self {
            gates,
            layer,
            heads,
            key_heads,
            key_dim,
            value_dim,
            ..
        } = self;
        let rule = match self.rule {
            ScanRule::Delta { beta_scale } => {
                format!("delta rule{}", unless(" · ", beta_scale, 1.0))
            }
            ScanRule::Mamba2 => "mamba2".into(),
        };
        let tiled = if self.tiled { " in tiles" } else { "" };
        let shape =
            format!("{heads} heads of {key_dim} × {value_dim}{tiled}, {key_heads} key heads");
        let [decay, dt_bias] = [self.decay, self.dt_bias].map(|id| operands.weight_name(id));
        let skip = optional(operands, "skip", self.skip);
        format!(
            "{out} = state_scan({convolved}, gates of {mixed} from column {gates}, state layer {layer}, {rule}, \
             {shape}, decay {decay}, dt bias {dt_bias}{skip})"
        )
    }
}
