//! `RouteExperts` → one dispatch.

use super::super::super::BackendError;
use super::super::arena::Binding;
use super::super::pipelines::Kernel;
use super::{Recorder, Variant, params};
use crate::plan::{RouteExperts, Routing};

params! {
    Params {
        tokens: u32,
        experts: u32,
        per_token: u32,
        renormalize: u32,
        has_bias: u32,
        groups: u32,
        kept: u32,
        has_scale: u32,
        factor: f32,
        softcap: f32,
        mixer: f32,
    }
}

fn kernel(sigmoid: bool, scaled: bool, biased: bool) -> Kernel {
    Kernel::new("route_experts")
        .define_if(sigmoid, "SIGMOID")
        .define_if((scaled || biased) && !sigmoid, "SCALED")
        .define_if(biased && !sigmoid, "BIASED")
}

/// Whether the weights of a token have factors.
fn is_scaled(routing: &Routing) -> bool {
    routing.factor != 1.0 || routing.expert_scale.is_some()
}

/// Records the dispatch.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &RouteExperts) -> Result<(), BackendError> {
    let params = params(recorder, step);
    let bindings = bindings(recorder, step);
    let routing = &step.routing;
    let kernel = kernel(routing.sigmoid, is_scaled(routing), routing.bias.is_some())
        .define_if(routing.mixer.is_some(), "MIXER");
    recorder.dispatch(&kernel, &params, &bindings, params.tokens)
}

fn params(recorder: &Recorder<'_>, step: &RouteExperts) -> Params {
    let routing = &step.routing;
    let experts = recorder.columns(step.logits);
    let per_token = recorder.plan.buffer_spec(step.routes).rows.count(1, 0);
    debug_assert!(
        (1..=experts).contains(&per_token),
        "each route of a token is to another expert"
    );
    Params {
        tokens: recorder.rows(step.logits),
        experts,
        per_token,
        renormalize: u32::from(routing.renormalize),
        has_bias: u32::from(routing.bias.is_some()),
        groups: routing.groups.map_or(0, |groups| groups.count),
        kept: routing.groups.map_or(0, |groups| groups.kept),
        has_scale: u32::from(routing.expert_scale.is_some()),
        factor: routing.factor,
        softcap: routing.softcap.unwrap_or(0.0),
        mixer: routing.mixer.unwrap_or(0.0),
    }
}

/// Logits, routes, and where they are read, the factors of the experts and the bias.
fn bindings<'a>(recorder: &Recorder<'a>, step: &RouteExperts) -> Vec<Binding<'a>> {
    let routing = &step.routing;
    let mut bindings = vec![
        recorder.row_buffer(step.logits).read(),
        recorder.row_buffer(step.routes).read_write(),
    ];
    let is_biased = routing.bias.is_some();
    if routing.sigmoid || is_scaled(routing) || is_biased {
        bindings.push(recorder.optional_vector(routing.expert_scale).read());
    }
    if routing.sigmoid || is_biased {
        bindings.push(recorder.optional_vector(routing.bias).read());
    }
    bindings
}

/// Every variant that [`encode`] can use.
pub(super) fn variants() -> Vec<Variant> {
    let kinds = [
        (false, false, false),
        (false, true, false),
        (false, true, true),
        (true, false, false),
    ];
    let kernels = kinds.map(|(sigmoid, scaled, biased)| kernel(sigmoid, scaled, biased));
    let mixer = kernel(false, false, false).define("MIXER");
    let variants = kernels.into_iter().chain([mixer]);
    variants
        .map(|kernel| Variant::new::<Params>(kernel, Params::FIELDS))
        .collect()
}
