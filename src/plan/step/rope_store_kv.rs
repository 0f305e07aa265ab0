//! `RopeStoreKv`: rotates q and k and stores K and V, between the QKV product and attention.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands, Rows, WeightId};
use super::operation::{Access, Operation, norm_options, unless};

/// The rotation that [`RopeStoreKv`] applies. The frequencies are a weight vector of `rotary_dim / 2` f32 values
/// (radians per position, computed in f64), so every kind of RoPE scaling is data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// `[1 × rotary_dim / 2]` f32.
    pub frequencies: WeightId,
    /// Number of leading elements of a head that are rotated; the rest are unchanged.
    pub rotary_dim: u32,
    /// Whether pairs are `(2i, 2i + 1)` (GPT-J style) instead of `(i, i + rotary_dim / 2)` (NeoX style, Hugging Face).
    pub interleaved: bool,
    /// Factor of cos and sin (YaRN's attention factor); 1 otherwise.
    pub scale: f32,
}

/// RMS norm of q or k before the rotation, over each head or over all heads of a row.
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
}

/// Splits `qkv` rows into q, k and v heads; optional q/k head norm; rotates q and k by position; writes K and V to the
/// pool by slot mapping and q to `q`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeStoreKv {
    /// `[tokens × (query_heads + 2 · kv_heads) · head_dim]`, in that order.
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
        let norms = [self.q_norm, self.k_norm].into_iter().flatten().map(|norm| norm.weight);
        norms.chain(self.rope.map(|rope| rope.frequencies)).collect()
    }

    fn kv_layer(&self) -> Option<(u32, Access)> {
        Some((self.layer, Access::Write))
    }

    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        let kv = operands.check_heads(self.layer, self.query_heads)?;
        operands.check_buffer(self.qkv, Rows::Tokens, (self.query_heads + 2 * kv.heads) * kv.head_dim)?;
        for (norm, heads) in [(self.q_norm, self.query_heads), (self.k_norm, kv.heads)] {
            let Some(norm) = norm else { continue };
            operands.check_weight(norm.weight, 1, if norm.whole_row { heads * kv.head_dim } else { kv.head_dim })?;
        }
        if let Some(rope) = self.rope {
            rope.check(operands, kv.head_dim)?;
        }
        operands.check_buffer(self.q, Rows::Tokens, self.query_heads * kv.head_dim)
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        let (q, qkv) = (operands.buffer_name(self.q), operands.buffer_name(self.qkv));
        let norm = |name, norm: Option<HeadNorm>| norm.map(|norm| norm.line(operands, name)).unwrap_or_default();
        let (q_norm, k_norm) = (norm("q norm", self.q_norm), norm("k norm", self.k_norm));
        let rope = self.rope.map(|rope| rope.line(operands)).unwrap_or_default();
        let Self { layer, query_heads, .. } = self;
        format!("{q} = rope_store_kv({qkv}, layer {layer}, {query_heads} query heads{q_norm}{k_norm}{rope})")
    }
}

impl Rope {
    fn check(&self, operands: &Operands<'_>, head_dim: u32) -> Result<(), PlanErrorKind> {
        if self.rotary_dim == 0 || !self.rotary_dim.is_multiple_of(2) || self.rotary_dim > head_dim {
            let (what, found) = ("rotary_dim".into(), format!("{} in heads of {head_dim}", self.rotary_dim));
            return Err(PlanErrorKind::Unsupported { what, found, expected: "an even number, at most the head size" });
        }
        operands.check_f32_vector(self.frequencies, self.rotary_dim / 2)
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        let pairs = if self.interleaved { " interleaved" } else { "" };
        let (frequencies, scale) = (operands.weight_name(self.frequencies), unless(" scale ", self.scale, 1.0));
        format!(", rope {frequencies} over {}{pairs}{scale}", self.rotary_dim)
    }
}

impl HeadNorm {
    fn line(&self, operands: &Operands<'_>, name: &str) -> String {
        let options = norm_options(self.epsilon, self.one_plus);
        let span = if self.whole_row { " of the whole row" } else { "" };
        format!(", {name} {} {options}{span}", operands.weight_name(self.weight))
    }
}
