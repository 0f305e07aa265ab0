//! `AttendPaged`: attention of the batch's rows over the stored keys and values of their sequences.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands, Rows, WeightId};
use super::operation::{Access, Operation, optional};
use super::rules::positive_softcap;

/// For each query row and head: `softmax(q · Kᵀ · scale)` over the visible keys, times V, read through the block table.
/// Scale, softcap and ALiBi are applied to the scores in this order; sinks are added to the softmax's denominator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttendPaged {
    /// `[tokens × query_heads · head_dim]`.
    pub q: BufferId,
    /// Index into [`Plan::kv_layers`](crate::plan::Plan::kv_layers); its KV group determines block table and window.
    pub layer: u32,
    /// Number of query heads; a multiple of the layer's KV heads.
    pub query_heads: u32,
    /// Factor of q · k.
    pub scale: f32,
    /// Soft cap `c` of scores: `c · tanh(score / c)`.
    pub softcap: Option<f32>,
    /// `[1 × query_heads]` f32 slopes: score += slope · (key position − query position).
    pub alibi: Option<WeightId>,
    /// `[1 × query_heads]` f32 logits of a virtual key that has no value (attention sink).
    pub sinks: Option<WeightId>,
    /// `[tokens × query_heads · head_dim]`.
    pub out: BufferId,
}

impl Operation for AttendPaged {
    fn stem(&self) -> &'static str {
        "attend_paged"
    }

    fn buffers(&self) -> Vec<(BufferId, Access)> {
        vec![(self.q, Access::Read), (self.out, Access::Write)]
    }

    fn weights(&self) -> Vec<WeightId> {
        self.alibi.into_iter().chain(self.sinks).collect()
    }

    fn kv_layer(&self) -> Option<(u32, Access)> {
        Some((self.layer, Access::Read))
    }

    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        positive_softcap(self.softcap)?;
        for weight in self.weights() {
            operands.check_f32_vector(weight, self.query_heads)?;
        }
        let kv = operands.check_heads(self.layer, self.query_heads)?;
        for buffer in [self.q, self.out] {
            operands.check_buffer(buffer, Rows::Tokens, self.query_heads * kv.head_dim)?;
        }
        Ok(())
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        let (out, q) = (operands.buffer_name(self.out), operands.buffer_name(self.q));
        let softcap = self
            .softcap
            .map(|softcap| format!(", softcap {softcap}"))
            .unwrap_or_default();
        let (alibi, sinks) = (
            optional(operands, "alibi", self.alibi),
            optional(operands, "sinks", self.sinks),
        );
        let Self {
            layer,
            query_heads,
            scale,
            ..
        } = self;
        format!(
            "{out} = attend_paged({q}, layer {layer}, {query_heads} query heads, scale {scale}{softcap}{alibi}{sinks})"
        )
    }
}
