//! `RouteAdapters` → one launch.

use super::super::super::BackendError;
use super::{Kernel, Recorder, params};
use crate::plan::RouteAdapters;

params! {
    Params {
        metadata: u64,
        expert_routes: u64,
        routes: u64,
        per_token: u32,
        experts: u32,
    }
}

/// Threads per block; one per route.
const THREADS: u32 = 128;

/// Records the launch.
pub(super) fn encode(
    recorder: &mut Recorder<'_>,
    step: &RouteAdapters,
) -> Result<(), BackendError> {
    let params = Params {
        metadata: recorder.arena.metadata,
        expert_routes: step
            .experts
            .map_or(0, |(routes, _)| recorder.row_buffer(routes)),
        routes: recorder.row_buffer(step.routes),
        per_token: recorder.plan.buffer_spec(step.routes).rows.count(1, 0),
        experts: step.experts_per_slot(),
    };
    let blocks = recorder.rows(step.routes).div_ceil(THREADS);
    let kernel = Kernel::new("route_adapters");
    recorder.launch(&kernel, &params, [blocks, 1, 1], THREADS, 0)
}
