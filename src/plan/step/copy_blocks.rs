//! `CopyBlocks`: copy-on-write of KV blocks, before the batch writes to the pool.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands};
use super::operation::{Access, Operation};

/// Copies the KV blocks in the batch's copy lists, source → target, in every layer (copy-on-write).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopyBlocks;

impl Operation for CopyBlocks {
    fn stem(&self) -> &'static str {
        "copy_blocks"
    }

    fn buffers(&self) -> Vec<(BufferId, Access)> {
        Vec::new()
    }

    fn check(&self, _operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        Ok(())
    }

    fn line(&self, _operands: &Operands<'_>) -> String {
        "copy_blocks()".into()
    }
}
