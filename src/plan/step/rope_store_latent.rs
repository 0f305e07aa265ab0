//! `RopeStoreLatent`: rotates q and stores a latent as the key and value of all heads, before attention.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands, Rows, WeightId};
use super::operation::{Access, Operation, norm_options};
use super::rope_store_kv::{QueryGrowth, Rope};

/// Latent attention (MLA) with absorbed projections. The pool has one row a token: a latent of c elements, normalized,
/// and r rotated ones, `[norm(l), rope(k)]`. A head of q is made to match: `[absorbed, rope(last r of query)]`, where
/// `absorbed` is its product with the head's projection of keys. So scores are plain products with the stored rows, and
/// the first c elements of what attention returns are multiplied by the head's projection of values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeStoreLatent {
    /// `[tokens × query_heads · w]`: the last r elements of a head are rotated, the others were multiplied before.
    pub query: BufferId,
    /// `[tokens × query_heads · c]`.
    pub absorbed: BufferId,
    /// `[tokens × (c + r)]`: the latent, then the elements to rotate.
    pub latent: BufferId,
    /// Index into [`Plan::kv_layers`](crate::plan::Plan::kv_layers), of a latent of c + r elements.
    pub layer: u32,
    /// Number of query heads.
    pub query_heads: u32,
    /// `[1 × c]`: RMS norm of the latent.
    pub norm: WeightId,
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// Rotation of r elements.
    pub rope: Rope,
    /// Factor of q that grows with the position.
    pub query_growth: Option<QueryGrowth>,
    /// `[tokens × query_heads · (c + r)]`.
    pub q: BufferId,
}

impl Operation for RopeStoreLatent {
    fn stem(&self) -> &'static str {
        "rope_store_latent"
    }

    fn buffers(&self) -> Vec<(BufferId, Access)> {
        let inputs = [self.query, self.absorbed, self.latent].map(|buffer| (buffer, Access::Read));
        inputs
            .into_iter()
            .chain([(self.q, Access::Write)])
            .collect()
    }

    fn weights(&self) -> Vec<WeightId> {
        vec![self.norm, self.rope.frequencies]
    }

    fn kv_layer(&self) -> Option<(u32, Access)> {
        Some((self.layer, Access::Write))
    }

    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        let kv = operands.check_heads(self.layer, self.query_heads)?;
        let rotary = self.rope.rotary_dim;
        self.rope.check(operands, kv.head_dim)?;
        if let Some(growth) = self.query_growth {
            growth.check()?;
        }
        let unsupported = |what: &str, found: String, expected| {
            Err(PlanErrorKind::Unsupported {
                what: what.into(),
                found,
                expected,
            })
        };
        if !kv.latent || !rotary.is_multiple_of(8) || rotary >= kv.head_dim {
            let found = format!("{rotary} rotated elements of {}", kv.head_dim);
            return unsupported(
                "KV layer",
                found,
                "a latent, and a multiple of 8 rotated elements",
            );
        }
        let latent = kv.head_dim - rotary;
        let query = operands.known_buffer(self.query).columns;
        let each = query / self.query_heads;
        if !query.is_multiple_of(self.query_heads) || !each.is_multiple_of(8) || each < rotary {
            return unsupported(
                "columns of query",
                query.to_string(),
                "heads of whole runs of 8 elements",
            );
        }
        operands.check_buffer(self.query, Rows::Tokens, query)?;
        operands.check_buffer(self.absorbed, Rows::Tokens, self.query_heads * latent)?;
        operands.check_buffer(self.latent, Rows::Tokens, kv.head_dim)?;
        operands.check_weight(self.norm, 1, latent)?;
        operands.check_buffer(self.q, Rows::Tokens, self.query_heads * kv.head_dim)
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        let [q, query, absorbed, latent] = [self.q, self.query, self.absorbed, self.latent]
            .map(|buffer| operands.buffer_name(buffer));
        let (norm, options) = (
            operands.weight_name(self.norm),
            norm_options(self.epsilon, false),
        );
        let Self {
            layer, query_heads, ..
        } = self;
        let rope = self.rope.line(operands);
        let growth = self.query_growth.map(|growth| growth.line());
        let growth = growth.unwrap_or_default();
        format!(
            "{q} = rope_store_latent({query}, {absorbed}, {latent}, layer {layer}, {query_heads} query heads, \
             norm {norm} {options}{rope}{growth})"
        )
    }
}
