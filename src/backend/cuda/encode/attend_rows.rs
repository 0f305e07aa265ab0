//! `AttendRows` → one launch.

use super::super::super::BackendError;
use super::{Kernel, Recorder, params};
use crate::plan::AttendRows;

params! {
    Params {
        metadata: u64, qk: u64, v: u64, slopes: u64, out: u64,
        query_heads: u32,
        group: u32,
        qk_columns: u32,
        v_columns: u32,
        v_start: u32,
        radius: u32,
        scale: f32,
        unused: u32,
    }
}

/// Threads of a block, its rows, and the keys of a tile, as in the kernel.
const THREADS: u32 = 128;
const ROWS: u32 = 16;
const KEYS: u32 = 32;

/// Records the launch.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &AttendRows) -> Result<(), BackendError> {
    let AttendRows {
        query_heads,
        kv_heads,
        head_dim,
        ..
    } = *step;
    let shared_bytes = 4 * (ROWS + KEYS) * (head_dim + 4);
    if shared_bytes > recorder.device.shared_bytes_max {
        return Err(BackendError::head_dim("attend_rows", head_dim));
    }
    let kernel = Kernel::new("attend_rows")
        .define("HEAD_DIM", head_dim)
        .define_type("Q_TYPE", recorder.storage(step.qk))
        .define_type("V_TYPE", recorder.storage(step.v))
        .define_type("OUT_TYPE", recorder.storage(step.out));
    let params = Params {
        metadata: recorder.arena.metadata,
        qk: recorder.row_buffer(step.qk),
        v: recorder.row_buffer(step.v),
        slopes: recorder.optional(step.alibi),
        out: recorder.row_buffer(step.out),
        query_heads,
        group: query_heads / kv_heads,
        qk_columns: recorder.columns(step.qk),
        v_columns: recorder.columns(step.v),
        v_start: (query_heads + kv_heads) * head_dim,
        radius: step.radius.unwrap_or(u32::MAX),
        scale: step.scale,
        unused: 0,
    };
    let blocks = recorder.rows(step.out).div_ceil(ROWS) * query_heads;
    recorder.launch(&kernel, &params, [blocks, 1, 1], THREADS, shared_bytes)
}
