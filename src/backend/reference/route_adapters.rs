//! Choice of adapter slots, reference. Twin of `shaders/route_adapters.wgsl`.
//!
//! For route j of token t, whose sequence's adapter is in slot s: (s · experts + e, w), where (e, w) is route j of the
//! experts of t, or (0, 1) if the products have no experts.

use super::loaded::LoadedPlan;
use crate::backend::host::adapter_of_rows;
use crate::plan::RouteAdapters;
use crate::plan::inputs::BatchInputs;

/// Runs the step.
pub(super) fn run(step: &RouteAdapters, loaded: &mut LoadedPlan, inputs: &BatchInputs) {
    loaded.write(step.routes, inputs, |loaded, routes, _| {
        let of_experts = step.experts.map(|(routes, _)| loaded.rows(routes, inputs));
        let per_token = loaded.per_token(step.routes);
        let slots = adapter_of_rows(inputs);
        route_adapters(
            slots,
            step.experts_per_slot(),
            of_experts,
            per_token,
            routes,
        );
    });
}

/// Routes tokens, whose adapters are in `slots`.
pub(super) fn route_adapters(
    slots: impl Iterator<Item = u32>,
    experts: u32,
    of_experts: Option<&[f32]>,
    per_token: usize,
    routes: &mut [f32],
) {
    for (token, (slot, routes)) in slots
        .zip(routes.chunks_exact_mut(2 * per_token))
        .enumerate()
    {
        for (at, route) in routes.chunks_exact_mut(2).enumerate() {
            let (expert, weight) = match of_experts {
                Some(chosen) => {
                    let from = 2 * (token * per_token + at);
                    (chosen[from], chosen[from + 1])
                }
                None => (0.0, 1.0),
            };
            route[0] = (slot * experts) as f32 + expert;
            route[1] = weight;
        }
    }
}

#[cfg(test)]
mod tests;
