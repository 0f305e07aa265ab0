//! `RotateRows`: norms and rotation of q and k, for attention of rows to each other.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands, Rows, WeightId};
use super::operation::{Access, Operation, unless};
use super::rope_store_kv::{HeadNorm, Rope};
use super::rules::{HEAD_DIM_MAX, same, whole_runs};

/// `out = rotate(norm(q)), rotate(norm(k))`: the q and k heads of each row, rotated by position, or by its place along
/// several axes. The values stay where they are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RotateRows {
    /// `[tokens × (query_heads + 2 · kv_heads) · head_dim]`: q, k and v.
    pub qkv: BufferId,
    /// Number of query heads.
    pub query_heads: u32,
    /// Number of key heads.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Norms of q and k, over each head and before the rotation; both or none.
    pub norms: Option<[HeadNorm; 2]>,
    /// The rotation.
    pub rope: Rope,
    /// `[tokens × (query_heads + kv_heads) · head_dim]`.
    pub out: BufferId,
}

impl Operation for RotateRows {
    fn stem(&self) -> &'static str {
        "rotate_rows"
    }

    fn buffers(&self) -> Vec<(BufferId, Access)> {
        vec![(self.qkv, Access::Read), (self.out, Access::Write)]
    }

    fn weights(&self) -> Vec<WeightId> {
        let norms = self.norms.into_iter().flatten().map(|norm| norm.weight);
        norms.chain([self.rope.frequencies]).collect()
    }

    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        let (heads, dim) = (self.query_heads + self.kv_heads, self.head_dim);
        check_dim(dim)?;
        operands.check_buffer(self.qkv, Rows::Tokens, (heads + self.kv_heads) * dim)?;
        operands.check_buffer(self.out, Rows::Tokens, heads * dim)?;
        for norm in self.norms.into_iter().flatten() {
            operands.check_f32_vector(norm.weight, dim)?;
            if norm.whole_row || norm.after_rotation {
                return Err(PlanErrorKind::Unsupported {
                    what: "norm of rotated rows".into(),
                    found: "a whole row, or after the rotation".into(),
                    expected: "each head, before the rotation",
                });
            }
        }
        let Rope {
            frequencies,
            rotary_dim,
            by_axis,
            ..
        } = self.rope;
        if rotary_dim > dim || rotary_dim % 2 != 0 {
            return Err(PlanErrorKind::Unsupported {
                what: "rotary_dim".into(),
                found: rotary_dim.to_string(),
                expected: "an even number up to the elements of a head",
            });
        }
        let numbers = if by_axis { rotary_dim } else { rotary_dim / 2 };
        operands.check_f32_vector(frequencies, numbers)
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        let (out, qkv) = (
            operands.buffer_name(self.out),
            operands.buffer_name(self.qkv),
        );
        let Self {
            query_heads,
            kv_heads,
            head_dim,
            rope,
            ..
        } = self;
        let norms = self.norms.map_or_else(String::new, |[q, k]| {
            let [q, k] = [q, k].map(|norm| operands.weight_name(norm.weight));
            format!(", q norm {q}, k norm {k}")
        });
        let frequencies = operands.weight_name(rope.frequencies);
        let pairs = if rope.interleaved {
            ", interleaved"
        } else {
            ""
        };
        let scale = unless(", scale ", rope.scale, 1.0);
        let axes = if rope.by_axis { ", by axis" } else { "" };
        format!(
            "{out} = rotate_rows({qkv}, {query_heads} + {kv_heads} heads of {head_dim}{norms}, rope {frequencies} over \
             {}{pairs}{axes}{scale})",
            rope.rotary_dim
        )
    }
}

/// Fails unless heads consist of runs of 8 elements, and are not too long.
pub(super) fn check_dim(dim: u32) -> Result<(), PlanErrorKind> {
    whole_runs("elements of a head", dim)?;
    same(
        || "elements of a head beyond the maximum".into(),
        dim.saturating_sub(HEAD_DIM_MAX),
        0,
    )
}
