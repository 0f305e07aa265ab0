//! `Embed`: embedding lookup of the batch's token ids.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands, Rows, WeightId};
use super::operation::{Access, Operation, assignment, unless};

/// What of a token row selects a row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowId {
    /// Its token: an id of the batch, or what the sampler wrote to a feed slot.
    Token,
    /// Its position, after so many rows for other purposes.
    Position(u32),
    /// Which text of a pair it belongs to: 0, or 1 for tokens marked
    /// [`SECOND_TEXT`](crate::plan::inputs::SECOND_TEXT).
    Text,
    /// The row of an image that it stands for, if it is marked [`IMAGE_ROW`](crate::plan::inputs::IMAGE_ROW).
    Image,
}

/// `out[t] (=, +=) table[id(t)] · scale`. Rows that have no such id are left as they are: those of images by `Token`,
/// all others by `Image`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embed {
    /// `[vocab × hidden]`, or as many rows as there are positions, texts or image rows.
    pub table: WeightId,
    /// What selects a row of the table.
    pub id: RowId,
    /// Factor of every element.
    pub scale: f32,
    /// Add to `out`, which is f32, instead of replacing it.
    pub accumulate: bool,
    /// `[tokens × hidden]`.
    pub out: BufferId,
}

impl Operation for Embed {
    fn stem(&self) -> &'static str {
        "embed"
    }

    fn buffers(&self) -> Vec<(BufferId, Access)> {
        // The other rows are those of an earlier look-up.
        let keeps = self.accumulate || self.id == RowId::Image;
        vec![(self.out, Access::output(keeps))]
    }

    fn weights(&self) -> Vec<WeightId> {
        vec![self.table]
    }

    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        let columns = operands.known_buffer(self.out).columns;
        let table = operands.known_weight(self.table);
        let rows = match self.id {
            RowId::Token => operands.vocab,
            // More rows than positions are allowed, fewer are not.
            RowId::Position(first) => table.rows.max(first.saturating_add(operands.positions_max)),
            RowId::Text | RowId::Image => table.rows,
        };
        operands.check_weight(self.table, rows, columns)?;
        if self.accumulate {
            operands.check_f32(self.out)?;
        }
        operands.check_buffer(self.out, Rows::Tokens, columns)
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        let (out, table) = (
            operands.buffer_name(self.out),
            operands.weight_name(self.table),
        );
        let by = match self.id {
            RowId::Token => String::new(),
            RowId::Position(first) => format!(", by position from row {first}"),
            RowId::Text => ", by text".into(),
            RowId::Image => ", by image row".into(),
        };
        let sign = assignment(self.accumulate);
        format!(
            "{out} {sign} embed({table}{by}{})",
            unless(", scale ", self.scale, 1.0)
        )
    }
}
