//! `Embed`: embedding lookup of the batch's token ids.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands, Rows, WeightId};
use super::operation::{Access, Operation, unless};

/// `out[t] = table[id(t)] · scale`; the id comes from the batch or from the feed slot the sampler wrote.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embed {
    /// `[vocab × hidden]`.
    pub table: WeightId,
    /// Factor of every element.
    pub scale: f32,
    /// `[tokens × hidden]`.
    pub out: BufferId,
}

impl Operation for Embed {
    fn stem(&self) -> &'static str {
        "embed"
    }

    fn buffers(&self) -> Vec<(BufferId, Access)> {
        vec![(self.out, Access::Write)]
    }

    fn weights(&self) -> Vec<WeightId> {
        vec![self.table]
    }

    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        let columns = operands.known_buffer(self.out).columns;
        operands.check_weight(self.table, operands.vocab, columns)?;
        operands.check_buffer(self.out, Rows::Tokens, columns)
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        let (out, table) = (
            operands.buffer_name(self.out),
            operands.weight_name(self.table),
        );
        format!(
            "{out} = embed({table}{})",
            unless(", scale ", self.scale, 1.0)
        )
    }
}
