//! Checks a plan by itself: everything is written before it is read, shapes match, ids exist, and nothing is empty.
//!
//! Each step declares its operands and checks its own shapes ([`super::step`]); this module checks the rules that apply
//! to all steps. Whether a device can hold a plan that passes is computed from its layout (`backend::layout`).

use super::error::{PlanError, PlanErrorKind};
use super::{Access, BufferId, Plan, Step};
use std::collections::BTreeSet;

pub use super::step::{
    GROUP_SIZE_MAX, HEAD_DIM_MAX, LATENT_DIM_MAX, LATENT_HEADS_MAX, ROUTES_MAX, STATE_DIM_MAX,
    TAPS_MAX,
};

/// Checks the whole plan. Each tail is checked as if it ran alone after the body.
pub fn check(plan: &Plan) -> Result<(), PlanError> {
    check_parts(plan, Written::default())
}

/// Like [`check`], for a plan whose buffers and KV layers are filled in advance, as in kernel tests.
pub fn check_filled(plan: &Plan, filled: &[BufferId]) -> Result<(), PlanError> {
    let layers = (0..).zip(&plan.kv_layers).map(|(layer, _)| layer).collect();
    let buffers = filled.iter().copied().collect();
    let written = Written {
        buffers,
        layers,
        filled: true,
        ..Written::default()
    };
    check_parts(plan, written)
}

fn check_parts(plan: &Plan, mut written: Written) -> Result<(), PlanError> {
    check_names(plan).map_err(at("names"))?;
    check_kv(plan).map_err(at("kv"))?;
    check_sizes(plan).map_err(at("sizes"))?;
    if let Some(slots) = &plan.adapters {
        check_parts(&slots.unused, written.clone())?;
    }
    check_steps(plan, "body", &plan.body, &mut written)?;
    for (tail, steps) in &plan.tails {
        check_steps(plan, &format!("tail {tail}"), steps, &mut written.clone())?;
    }
    Ok(())
}

fn at(place: &str) -> impl FnOnce(PlanErrorKind) -> PlanError {
    let place = place.to_owned();
    |kind| PlanError { place, kind }
}

fn check_names(plan: &Plan) -> Result<(), PlanErrorKind> {
    let mut seen = BTreeSet::new();
    let buffers = plan
        .buffers
        .iter()
        .map(|buffer| format!("buffer {}", buffer.name));
    let weights = plan
        .weights
        .iter()
        .map(|weight| format!("weight {}", weight.name));
    let tails = plan.tails.iter().map(|(tail, _)| format!("tail {tail}"));
    match buffers
        .chain(weights)
        .chain(tails)
        .find(|name| !seen.insert(name.clone()))
    {
        Some(name) => Err(PlanErrorKind::Duplicate { name }),
        None => Ok(()),
    }
}

fn check_kv(plan: &Plan) -> Result<(), PlanErrorKind> {
    for (index, group) in plan.kv_groups.iter().enumerate() {
        if group.window.is_some_and(|window| window.tokens() == 0) {
            let (what, found) = (format!("window of KV group {index}"), "0".into());
            return Err(PlanErrorKind::Unsupported {
                what,
                found,
                expected: "at least 1: a query sees its own key",
            });
        }
        if plan.kv_groups[..index].contains(group) {
            return Err(PlanErrorKind::Duplicate {
                name: format!("KV group {index}"),
            });
        }
    }
    for (index, layer) in plan.kv_layers.iter().enumerate() {
        if layer.group as usize >= plan.kv_groups.len() {
            return Err(PlanErrorKind::Unknown {
                what: "KV group",
                id: layer.group,
            });
        }
        let dim_max = if layer.latent {
            LATENT_DIM_MAX
        } else {
            HEAD_DIM_MAX
        };
        let whole = layer.head_dim.is_multiple_of(8) && (8..=dim_max).contains(&layer.head_dim);
        if layer.heads == 0 || !whole || layer.latent && layer.heads > 1 {
            let (what, found) = (
                format!("KV layer {index}"),
                format!("{} heads of {}", layer.heads, layer.head_dim),
            );
            let expected =
                "heads of a multiple of 8 elements, up to 512, or one latent of up to 576";
            return Err(PlanErrorKind::Unsupported {
                what,
                found,
                expected,
            });
        }
    }
    Ok(())
}

/// Checks that no buffer, no weight and no state is empty: layouts divide by their bytes.
fn check_sizes(plan: &Plan) -> Result<(), PlanErrorKind> {
    let buffers = plan.buffers.iter().map(|buffer| {
        let is_empty = buffer.rows.count(1, 1) == 0 || buffer.row_bytes() == 0;
        (is_empty, format!("buffer {}", buffer.name))
    });
    let weights = plan
        .weights
        .iter()
        .map(|weight| (weight.bytes() == 0, format!("weight {}", weight.name)));
    let states = plan.state_layers.iter().enumerate();
    let states = states.map(|(index, layer)| (layer.elements == 0, format!("state layer {index}")));
    match buffers
        .chain(weights)
        .chain(states)
        .find(|(is_empty, _)| *is_empty)
    {
        Some((_, what)) => Err(PlanErrorKind::Unsupported {
            what,
            found: "empty".into(),
            expected: "at least one element",
        }),
        None => Ok(()),
    }
}

/// The buffers and KV layers written so far, and the state layers used.
#[derive(Clone, Default)]
struct Written {
    buffers: BTreeSet<BufferId>,
    layers: BTreeSet<u32>,
    states: BTreeSet<u32>,
    /// Whether the KV layers were filled in advance; a step may still store to them.
    filled: bool,
}

fn check_steps(
    plan: &Plan,
    part: &str,
    steps: &[Step],
    written: &mut Written,
) -> Result<(), PlanError> {
    for (index, step) in steps.iter().enumerate() {
        check_step(plan, step, written).map_err(|kind| PlanError {
            place: format!("{part} step {index} ({})", step.stem()),
            kind,
        })?;
    }
    Ok(())
}

/// Checks that all ids exist, then that everything read was written, then the step's own rules.
fn check_step(plan: &Plan, step: &Step, written: &mut Written) -> Result<(), PlanErrorKind> {
    let (operands, buffers) = (plan.operands(), step.buffers());
    if let Some(id) = buffers
        .iter()
        .map(|(id, _)| *id)
        .find(|id| operands.buffer(*id).is_none())
    {
        return Err(PlanErrorKind::Unknown {
            what: "buffer",
            id: id.0,
        });
    }
    if let Some(id) = step
        .weights()
        .into_iter()
        .find(|id| operands.weight(*id).is_none())
    {
        return Err(PlanErrorKind::Unknown {
            what: "weight",
            id: id.0,
        });
    }
    if let Some((layer, access)) = step.kv_layer() {
        check_layer(plan, layer, access, written)?;
    }
    if let Some(layer) = step.state_layer() {
        check_state(plan, layer, written)?;
    }
    for (index, (id, access)) in buffers.iter().enumerate() {
        if access.reads() && !written.buffers.contains(id) {
            return Err(PlanErrorKind::ReadBeforeWrite {
                name: operands.buffer_name(*id),
            });
        }
        let again = buffers[..index].iter().find(|(other, _)| other == id);
        if again.is_some_and(|(_, other)| access.writes() || other.writes()) {
            return Err(PlanErrorKind::Aliased {
                name: operands.buffer_name(*id),
            });
        }
    }
    step.check(&operands)?;
    written.buffers.extend(step.writes());
    Ok(())
}

/// Checks that a layer is stored once, and before any step attends to it.
fn check_layer(
    plan: &Plan,
    layer: u32,
    access: Access,
    written: &mut Written,
) -> Result<(), PlanErrorKind> {
    if layer as usize >= plan.kv_layers.len() {
        return Err(PlanErrorKind::Unknown {
            what: "KV layer",
            id: layer,
        });
    }
    if access.reads() && !written.layers.contains(&layer) {
        return Err(PlanErrorKind::ReadBeforeWrite {
            name: format!("KV layer {layer}"),
        });
    }
    if access.writes() && !written.layers.insert(layer) && !written.filled {
        return Err(PlanErrorKind::Duplicate {
            name: format!("store to KV layer {layer}"),
        });
    }
    Ok(())
}

/// Checks that one step alone uses a state layer: it reads the state before the batch and stores the state after it.
fn check_state(plan: &Plan, layer: u32, written: &mut Written) -> Result<(), PlanErrorKind> {
    if layer as usize >= plan.state_layers.len() {
        return Err(PlanErrorKind::Unknown {
            what: "state layer",
            id: layer,
        });
    }
    if !written.states.insert(layer) {
        return Err(PlanErrorKind::Duplicate {
            name: format!("use of state layer {layer}"),
        });
    }
    Ok(())
}
