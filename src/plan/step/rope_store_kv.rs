//! `RopeStoreKv`: rotates q and k and stores K and V, between the QKV product and attention.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands, Rows, WeightId};
use super::operation::{Access, Operation, norm_options, unless};
use super::rules::whole_runs;

/// The rotation that [`RopeStoreKv`] applies. The frequencies are a weight vector of `rotary_dim / 2` f32 values
/// (radians per position, computed in f64), so every kind of RoPE scaling is data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// `[1 × rotary_dim / 2]` f32; with [`Self::by_axis`], as many numbers of axes follow.
    pub frequencies: WeightId,
    /// Number of leading elements of a head that are rotated; the rest are unchanged.
    pub rotary_dim: u32,
    /// Whether pairs are `(2i, 2i + 1)` (GPT-J style) instead of `(i, i + rotary_dim / 2)` (NeoX style, Hugging Face).
    pub interleaved: bool,
    /// Factor of cos and sin (YaRN's attention factor); 1 otherwise.
    pub scale: f32,
    /// Each frequency turns by the position along an axis of its own, an index into
    /// [`BatchInputs::place`](crate::plan::inputs::BatchInputs::place).
    pub by_axis: bool,
}

/// What only some models do to q, k and v.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StoreOptions {
    /// RMS norm of v over each head, without a weight: its epsilon.
    pub v_epsilon: Option<f32>,
    /// Factor of q that grows with the position.
    pub query_growth: Option<QueryGrowth>,
    /// `qkv` has q only: the keys and values of the layer were stored by an earlier step.
    pub q_only: bool,
}

/// q is multiplied by `1 + slope · ln(1 + floor((position + ahead) / positions))` after its rotation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryGrowth {
    /// Factor of the logarithm.
    pub slope: f32,
    /// Positions up to which nothing grows.
    pub positions: u32,
    /// What is added to positions: 0, or 1 if they count from 1.
    pub ahead: u32,
}

impl QueryGrowth {
    /// The factor of q at a position, of which kernels compute the logarithm.
    pub fn factor(&self, position: u32) -> f64 {
        let steps = (position + self.ahead) / self.positions;
        1.0 + f64::from(self.slope) * f64::from(steps).ln_1p()
    }

    pub(super) fn check(&self) -> Result<(), PlanErrorKind> {
        if self.positions > 0 && self.ahead <= 1 {
            return Ok(());
        }
        let (what, found) = ("growth of q".into(), self.line());
        Err(PlanErrorKind::Unsupported {
            what,
            found,
            expected: "per at least one position, from 0 or 1",
        })
    }

    pub(super) fn line(&self) -> String {
        let from = if self.ahead == 0 { "" } else { " from 1" };
        format!(
            ", q grows by {} per logarithm of {} positions{from}",
            self.slope, self.positions
        )
    }
}

/// RMS norm of q or k, over each head or over all heads of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadNorm {
    /// `[1 × head_dim]`, or `[1 × heads · head_dim]` with `whole_row`.
    pub weight: WeightId,
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// Multiply by `1 + w` instead of `w`.
    pub one_plus: bool,
    /// Normalize over all heads of a token's q (or k) instead of over each head.
    pub whole_row: bool,
    /// Normalize after the rotation instead of before; not with `whole_row`.
    pub after_rotation: bool,
}

/// Splits `qkv` rows into q, k and v heads; optional q/k head norm; rotates q and k by position; writes K and V to the
/// pool by slot mapping and q to `q`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeStoreKv {
    /// `[tokens × (query_heads + 2 · kv_heads) · head_dim]`, in that order; more columns may follow, which other steps
    /// read. A row is a multiple of 8 columns.
    pub qkv: BufferId,
    /// Index into [`Plan::kv_layers`](crate::plan::Plan::kv_layers).
    pub layer: u32,
    /// Number of query heads.
    pub query_heads: u32,
    /// Optional norm of q.
    pub q_norm: Option<HeadNorm>,
    /// Optional norm of k.
    pub k_norm: Option<HeadNorm>,
    /// Rotation; `None` for a layer without rotation.
    pub rope: Option<Rope>,
    /// What only some models do.
    pub options: StoreOptions,
    /// `[tokens × query_heads · head_dim]`.
    pub q: BufferId,
}

impl Operation for RopeStoreKv {
    fn stem(&self) -> &'static str {
        "rope_store_kv"
    }

    fn buffers(&self) -> Vec<(BufferId, Access)> {
        vec![(self.qkv, Access::Read), (self.q, Access::Write)]
    }

    fn weights(&self) -> Vec<WeightId> {
        let norms = [self.q_norm, self.k_norm]
            .into_iter()
            .flatten()
            .map(|norm| norm.weight);
        norms
            .chain(self.rope.map(|rope| rope.frequencies))
            .collect()
    }

    fn kv_layer(&self) -> Option<(u32, Access)> {
        Some((
            self.layer,
            if self.options.q_only {
                Access::Read
            } else {
                Access::Write
            },
        ))
    }

    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        let kv = operands.check_heads(self.layer, self.query_heads)?;
        if kv.latent {
            let (what, found) = (format!("KV layer {}", self.layer), "a latent".into());
            return Err(PlanErrorKind::Unsupported {
                what,
                found,
                expected: "keys and values",
            });
        }
        let stored = if self.options.q_only { 0 } else { 2 * kv.heads };
        operands.check_columns(
            self.qkv,
            Rows::Tokens,
            0,
            (self.query_heads + stored) * kv.head_dim,
        )?;
        whole_runs(
            "columns of q, k, v and others",
            operands.known_buffer(self.qkv).columns,
        )?;
        for (norm, heads) in [(self.q_norm, self.query_heads), (self.k_norm, kv.heads)] {
            let Some(norm) = norm else { continue };
            if norm.whole_row && norm.after_rotation {
                let (what, found) = (
                    "norm after the rotation".into(),
                    "over the whole row".into(),
                );
                return Err(PlanErrorKind::Unsupported {
                    what,
                    found,
                    expected: "over each head",
                });
            }
            operands.check_weight(
                norm.weight,
                1,
                if norm.whole_row {
                    heads * kv.head_dim
                } else {
                    kv.head_dim
                },
            )?;
        }
        if let Some(rope) = self.rope {
            rope.check(operands, kv.head_dim)?;
        }
        if let Some(growth) = self.options.query_growth {
            growth.check()?;
        }
        operands.check_buffer(self.q, Rows::Tokens, self.query_heads * kv.head_dim)
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        let (q, qkv) = (operands.buffer_name(self.q), operands.buffer_name(self.qkv));
        let norm = |name, norm: Option<HeadNorm>| {
            norm.map(|norm| norm.line(operands, name))
                .unwrap_or_default()
        };
        let (q_norm, k_norm) = (norm("q norm", self.q_norm), norm("k norm", self.k_norm));
        let rope = self
            .rope
            .map(|rope| rope.line(operands))
            .unwrap_or_default();
        let Self {
            layer, query_heads, ..
        } = self;
        let options = self.options.line();
        format!(
            "{q} = rope_store_kv({qkv}, layer {layer}, {query_heads} query heads{q_norm}{k_norm}{rope}{options})"
        )
    }
}

impl StoreOptions {
    fn line(&self) -> String {
        let v = self
            .v_epsilon
            .map(|epsilon| format!(", v norm epsilon {epsilon:e}"))
            .unwrap_or_default();
        let growth = self.query_growth.map(|growth| growth.line());
        format!(
            "{v}{}{}",
            growth.unwrap_or_default(),
            if self.q_only { ", q only" } else { "" }
        )
    }
}

impl Rope {
    pub(super) fn check(
        &self,
        operands: &Operands<'_>,
        head_dim: u32,
    ) -> Result<(), PlanErrorKind> {
        if self.rotary_dim == 0 || !self.rotary_dim.is_multiple_of(2) || self.rotary_dim > head_dim
        {
            let (what, found) = (
                "rotary_dim".into(),
                format!("{} in heads of {head_dim}", self.rotary_dim),
            );
            return Err(PlanErrorKind::Unsupported {
                what,
                found,
                expected: "an even number, at most the head size",
            });
        }
        if self.by_axis {
            return Err(PlanErrorKind::Unsupported {
                what: "rotation".into(),
                found: "by axis".into(),
                expected: "one position of each row, where keys are stored",
            });
        }
        operands.check_f32_vector(self.frequencies, self.rotary_dim / 2)
    }

    pub(super) fn line(&self, operands: &Operands<'_>) -> String {
        let pairs = if self.interleaved { " interleaved" } else { "" };
        let (frequencies, scale) = (
            operands.weight_name(self.frequencies),
            unless(" scale ", self.scale, 1.0),
        );
        format!(
            ", rope {frequencies} over {}{pairs}{scale}",
            self.rotary_dim
        )
    }
}

impl HeadNorm {
    fn line(&self, operands: &Operands<'_>, name: &str) -> String {
        let options = norm_options(self.epsilon, self.one_plus);
        let span = match (self.whole_row, self.after_rotation) {
            (true, _) => " of the whole row",
            (false, true) => " after the rotation",
            (false, false) => "",
        };
        format!(
            ", {name} {} {options}{span}",
            operands.weight_name(self.weight)
        )
    }
}
