//! `AttendRows`: attention of the batch's rows to each other, in both directions.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands, Rows, WeightId};
use super::operation::{Access, Operation, optional};
use super::rotate_rows::check_dim;
use super::rules::GROUP_SIZE_MAX;

/// For each row and query head: `softmax(q · Kᵀ · scale)` over the rows of its own sequence, before and after it, times
/// V. The batch has all rows of each of its sequences: nothing is kept after the step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttendRows {
    /// Rows that begin with `query_heads` heads of q, then `kv_heads` of k: [`Self::v`] itself, or what
    /// [`RotateRows`](super::RotateRows) made of it.
    pub qk: BufferId,
    /// `[tokens × (query_heads + 2 · kv_heads) · head_dim]`, of which the last heads are v.
    pub v: BufferId,
    /// Number of query heads; a multiple of `kv_heads`.
    pub query_heads: u32,
    /// Number of key/value heads.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Factor of q · k.
    pub scale: f32,
    /// A row sees only rows at most so far away, on both sides.
    pub radius: Option<u32>,
    /// `[1 × query_heads]` f32 slopes: score −= slope · |distance|.
    pub alibi: Option<WeightId>,
    /// `[tokens × query_heads · head_dim]`.
    pub out: BufferId,
}

impl Operation for AttendRows {
    fn stem(&self) -> &'static str {
        "attend_rows"
    }

    fn buffers(&self) -> Vec<(BufferId, Access)> {
        vec![
            (self.qk, Access::Read),
            (self.v, Access::Read),
            (self.out, Access::Write),
        ]
    }

    fn weights(&self) -> Vec<WeightId> {
        self.alibi.into_iter().collect()
    }

    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        let Self {
            query_heads,
            kv_heads,
            head_dim,
            ..
        } = *self;
        check_dim(head_dim)?;
        let group = query_heads.checked_div(kv_heads).unwrap_or(0);
        if group * kv_heads != query_heads || !(1..=GROUP_SIZE_MAX).contains(&group) {
            return Err(PlanErrorKind::Unsupported {
                what: "query_heads".into(),
                found: format!("{query_heads} over {kv_heads} KV heads"),
                expected: "1 to 16 query heads for each KV head",
            });
        }
        let columns = (query_heads + 2 * kv_heads) * head_dim;
        operands.check_buffer(self.v, Rows::Tokens, columns)?;
        if self.qk != self.v {
            let columns = (query_heads + kv_heads) * head_dim;
            operands.check_buffer(self.qk, Rows::Tokens, columns)?;
        }
        for slopes in self.weights() {
            operands.check_f32_vector(slopes, query_heads)?;
        }
        operands.check_buffer(self.out, Rows::Tokens, query_heads * head_dim)
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        let [out, qk, v] = [self.out, self.qk, self.v].map(|id| operands.buffer_name(id));
        let Self {
            query_heads,
            kv_heads,
            head_dim,
            scale,
            ..
        } = self;
        let radius = self
            .radius
            .map(|radius| format!(", radius {radius}"))
            .unwrap_or_default();
        let alibi = optional(operands, "alibi", self.alibi);
        format!(
            "{out} = attend_rows({qk}, v of {v}, {query_heads} heads of {head_dim} over {kv_heads}, \
             scale {scale}{radius}{alibi})"
        )
    }
}
