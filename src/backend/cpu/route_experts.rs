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
            values.copy_from_slice(logits);
            if let Some(bias) = bias {
                add_to_scores(values, bias, routing.sigmoid);
            }
            choice_keys(values, bias.is_some(), routing.groups, keys);
            ids.sort_unstable_by_key(|&id| (std::cmp::Reverse(keys[id]), id));
            let largest = largest(logits);
            let share = |id: usize| match routing.sigmoid {
                true => sigmoid(logits[id]),
                false => (logits[id] - largest).exp(),
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

fn largest(logits: &[f32]) -> f32 {
    let found = logits.iter().copied().max_by_key(|&logit| order(logit));
    found.expect("there are experts")
}

/// Makes logits scores, sigmoids or probabilities among all experts, and adds a bias.
fn add_to_scores(values: &mut [f32], bias: &[f32], by_sigmoid: bool) {
    if by_sigmoid {
        values.iter_mut().for_each(|value| *value = sigmoid(*value));
    } else {
        let largest = largest(values);
        values
            .iter_mut()
            .for_each(|value| *value = (*value - largest).exp());
        let sum: f32 = values.iter().sum();
        values.iter_mut().for_each(|value| *value /= sum);
    }
    values
        .iter_mut()
        .zip(bias)
        .for_each(|(value, bias)| *value += bias);
}

/// What experts are ordered by, from logits or biased scores; 0 for those of groups that are not kept.
fn choice_keys(
    values: &mut [f32],
    is_biased: bool,
    groups: Option<ExpertGroups>,
    keys: &mut [u32],
) {
    keys.iter_mut()
        .zip(&*values)
        .for_each(|(key, &value)| *key = order(value));
    let Some(ExpertGroups { count, kept }) = groups else {
        return;
    };
    let size = values.len() / count as usize;
    // A group's value is its first element from here on.
    for group in values.chunks_exact_mut(size) {
        group.select_nth_unstable_by(1, |a, b| b.total_cmp(a));
        if is_biased {
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
