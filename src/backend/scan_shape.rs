//! Which kernels of `StateScan` a batch needs on a GPU: token by token, or in chunks.

use crate::plan::Plan;

/// Rows of a chunk.
pub(super) const CHUNK: u32 = 16;
/// Rows of a sequence from which on a chunk costs less than its rows one by one.
pub(super) const CHUNKED_MIN: u32 = CHUNK / 2;

/// Which numbers of rows the sequences of a batch have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ScanShape {
    /// Whether any has fewer than [`CHUNKED_MIN`].
    pub(super) few: bool,
    /// Whether any has more.
    pub(super) many: bool,
}

impl ScanShape {
    /// The shape of a batch with sequences of so many rows; that of decode batches if the plan keeps no states.
    pub(super) fn of(plan: &Plan, row_counts: impl Iterator<Item = u32>) -> Self {
        if plan.state_layers.is_empty() {
            return Self {
                few: true,
                many: false,
            };
        }
        let mut shape = Self {
            few: false,
            many: false,
        };
        for rows in row_counts {
            shape.few |= rows < CHUNKED_MIN;
            shape.many |= rows >= CHUNKED_MIN;
        }
        shape
    }
}
