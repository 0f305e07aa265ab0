//! `RouteExperts` → one launch.

use super::super::super::BackendError;
use super::{Kernel, Recorder, params};
use crate::plan::RouteExperts;

params! {
    Params {
        metadata: u64,
        logits: u64,
        routes: u64,
        bias: u64,
        scale: u64,
        experts: u32,
        per_token: u32,
        renormalize: u32,
        sigmoid: u32,
        groups: u32,
        kept: u32,
        factor: f32,
        mixer: f32,
        softcap: f32,
        unused: u32,
    }
}

/// Threads per block; one warp per token.
const THREADS: u32 = 128;

/// Records the launch.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &RouteExperts) -> Result<(), BackendError> {
    let RouteExperts {
        logits,
        routing,
        routes,
    } = *step;
    let arena = recorder.arena;
    let params = Params {
        metadata: arena.metadata,
        logits: recorder.row_buffer(logits),
        routes: recorder.row_buffer(routes),
        bias: recorder.optional(routing.bias),
        scale: recorder.optional(routing.expert_scale),
        experts: recorder.columns(logits),
        per_token: recorder.plan.buffer_spec(routes).rows.count(1, 0),
        renormalize: u32::from(routing.renormalize),
        sigmoid: u32::from(routing.sigmoid),
        groups: routing.groups.map_or(0, |groups| groups.count),
        kept: routing.groups.map_or(0, |groups| groups.kept),
        factor: routing.factor,
        mixer: routing.mixer.unwrap_or(0.0),
        softcap: routing.softcap.unwrap_or(0.0),
        unused: 0,
    };
    debug_assert!(
        (1..=params.experts).contains(&params.per_token),
        "each route of a token is to another expert"
    );
    let blocks = recorder.rows(logits).div_ceil(THREADS / 32);
    recorder.launch(
        &Kernel::new("route_experts"),
        &params,
        [blocks, 1, 1],
        THREADS,
        0,
    )
}
