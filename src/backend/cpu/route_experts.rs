//! The experts of each token.

use super::loaded::Loaded;
use crate::plan::inputs::BatchInputs;
use crate::plan::{ExpertGroups, RouteExperts};
use bumpalo::Bump;

/// Runs the step.
pub(super) fn run(step: &RouteExperts, loaded: &mut Loaded, arena: &Bump, inputs: &BatchInputs) {
    loaded.write(step.routes, inputs, |loaded, routes, _| {
        let (experts, per_token) = (loaded.columns(step.logits), loaded.per_token(step.routes));
        let routing = step.routing;
        let (ids, keys) = (
            arena.alloc_slice_fill_copy(experts, 0),
            arena.alloc_slice_fill_copy(experts, 0),
        );
        let values = arena.alloc_slice_fill_copy(experts, 0.0);
        let [bias, scales] =
            [routing.bias, routing.expert_scale].map(|weight| weight.map(|id| loaded.vector(id)));
        let logits = loaded.rows(step.logits, inputs).chunks_exact(experts);
        for (logits, routes) in logits.zip(routes.chunks_exact_mut(2 * per_token)) {
            ids.iter_mut().enumerate().for_each(|(at, id)| *id = at);
            choice_keys(logits, bias, routing.groups, values, keys);
            ids.sort_unstable_by_key(|&id| (std::cmp::Reverse(keys[id]), id));
            let share = |id: usize| match routing.sigmoid {
                true => sigmoid(logits[id]),
                false => (logits[id] - logits[ids[0]]).exp(),
            };
            let counted = if routing.renormalize {
                &ids[..per_token]
            } else {
                &ids[..]
            };
            let sum: f32 = counted.iter().map(|&id| share(id)).sum();
            let sum = match (routing.sigmoid, routing.renormalize) {
                (true, true) => sum + 1e-20,
                (true, false) => 1.0,
                (false, _) => sum,
            };
            for (route, &id) in routes.chunks_exact_mut(2).zip(&*ids) {
                let scale = routing.factor * scales.map_or(1.0, |scales| scales[id]);
                (route[0], route[1]) = (id as f32, share(id) / sum * scale);
            }
        }
    });
}

fn sigmoid(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

/// What experts are ordered by; 0 for those of groups that are not kept. `values` is a buffer.
fn choice_keys(
    logits: &[f32],
    bias: Option<&[f32]>,
    groups: Option<ExpertGroups>,
    values: &mut [f32],
    keys: &mut [u32],
) {
    values.copy_from_slice(logits);
    if let Some(bias) = bias {
        values
            .iter_mut()
            .zip(bias)
            .for_each(|(value, bias)| *value = sigmoid(*value) + bias);
    }
    keys.iter_mut()
        .zip(&*values)
        .for_each(|(key, &value)| *key = order(value));
    let Some(ExpertGroups { count, kept }) = groups else {
        return;
    };
    let size = logits.len() / count as usize;
    // A group's value is its first element from here on.
    for group in values.chunks_exact_mut(size) {
        group.select_nth_unstable_by(1, |a, b| b.total_cmp(a));
        if bias.is_some() {
            group[0] += group[1];
        }
    }
    let value = |group: usize| (order(values[group * size]), std::cmp::Reverse(group));
    for group in 0..count as usize {
        let better = (0..count as usize)
            .filter(|&other| value(other) > value(group))
            .count();
        if better >= kept as usize {
            keys[group * size..][..size].fill(0);
        }
    }
}

/// Maps a logit to an integer with the same order: −0 is below 0, and NaN above everything.
fn order(logit: f32) -> u32 {
    let bits = logit.to_bits();
    if bits >> 31 == 0 {
        bits | 1 << 31
    } else {
        !bits
    }
}
