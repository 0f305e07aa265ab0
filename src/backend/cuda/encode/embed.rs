//! `Embed` → one launch per section of the table.

use super::super::super::BackendError;
use super::{Kernel, Recorder, eights_of, params};
use crate::plan::{Embed, RowId};

params! {
    Params {
        table: u64, out: u64, metadata: u64, feed: u64,
        columns: u32, row_first: u32, rows: u32, scale: f32,
        id: u32, id_first: u32, accumulate: u32, unused: u32,
    }
}

/// Threads per block.
const THREADS: u32 = 128;

/// Records the launches.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &Embed) -> Result<(), BackendError> {
    let Embed {
        table, scale, out, ..
    } = *step;
    if step.id == RowId::Image && !recorder.shape.images {
        return Ok(());
    }
    let (id, id_first) = match step.id {
        RowId::Token => (0, 0),
        RowId::Position(first) => (1, first),
        RowId::Text => (2, 0),
        RowId::Image => (3, 0),
    };
    let arena = recorder.arena;
    let weight = recorder.weight(table);
    eights_of("embed", weight.columns)?;
    debug_assert_eq!(
        weight.columns,
        recorder.columns(out),
        "a row of the table is a row of out"
    );
    for section in &weight.sections {
        let kernel = Kernel::new("embed").define("WEIGHT", format!("{:?}", section.format));
        let kernel = kernel.define_type("OUT_TYPE", recorder.storage(out));
        let params = Params {
            table: section.address,
            out: recorder.row_buffer(out),
            metadata: arena.metadata,
            feed: arena.feed,
            columns: weight.columns,
            row_first: section.row_start,
            rows: section.rows,
            scale,
            id,
            id_first,
            accumulate: u32::from(step.accumulate),
            unused: 0,
        };
        recorder.launch(&kernel, &params, [recorder.rows(out), 1, 1], THREADS, 0)?;
    }
    Ok(())
}
