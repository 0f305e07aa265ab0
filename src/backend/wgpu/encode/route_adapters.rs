//! `RouteAdapters` → one dispatch.

use super::super::super::BackendError;
use super::super::pipelines::Kernel;
use super::{Recorder, Variant, params};
use crate::plan::RouteAdapters;

params! {
    Params { routes: u32, per_token: u32, experts: u32 }
}

/// Invocations of a workgroup; each writes one route.
const WORKGROUP: u32 = 64;

fn kernel(has_experts: bool) -> Kernel {
    Kernel::new("route_adapters").define_if(has_experts, "EXPERTS")
}

/// Records the dispatch.
pub(super) fn encode(
    recorder: &mut Recorder<'_>,
    step: &RouteAdapters,
) -> Result<(), BackendError> {
    let params = Params {
        routes: recorder.rows(step.routes),
        per_token: recorder.plan.buffer_spec(step.routes).rows.count(1, 0),
        experts: step.experts_per_slot(),
    };
    let mut bindings = vec![
        recorder.arena.metadata.read(),
        recorder.row_buffer(step.routes).read_write(),
    ];
    if let Some((routes, _)) = step.experts {
        bindings.push(recorder.row_buffer(routes).read());
    }
    recorder.dispatch(
        &kernel(step.experts.is_some()),
        &params,
        &bindings,
        params.routes.div_ceil(WORKGROUP),
    )
}

/// Every variant that [`encode`] can use.
pub(super) fn variants() -> Vec<Variant> {
    [false, true]
        .map(|has_experts| Variant::new::<Params>(kernel(has_experts), Params::FIELDS))
        .to_vec()
}
