//! The experts of each token.

use super::loaded::Loaded;
use crate::plan::inputs::BatchInputs;
use crate::plan::{ExpertGroups, RouteExperts, Routing};
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
                add_to_scores(values, bias, &routing);
            }
            choice_keys(values, bias.is_some(), routing.groups, keys);
            ids.sort_unstable_by_key(|&id| (std::cmp::Reverse(keys[id]), id));
            if let Some(threshold) = routing.mixer {
                mix(logits, ids, threshold, routes);
                continue;
            }
            let shares = Shares {
                logits,
                largest: largest(logits),
                routing,
            };
            let sum = shares.divisor(ids, per_token);
            for (route, &id) in routes.chunks_exact_mut(2).zip(&*ids) {
                let scale = routing.factor * scales.map_or(1.0, |scales| scales[id]);
                (route[0], route[1]) = (id as f32, shares.of(id) / sum * scale);
            }
        }
    });
}

/// What the weights of a token's experts are computed from.
struct Shares<'a> {
    logits: &'a [f32],
    largest: f32,
    routing: Routing,
}

impl Shares<'_> {
    /// An expert's sigmoid, or how its logit compares with the largest.
    fn of(&self, id: usize) -> f32 {
        match self.routing.sigmoid {
            true => sigmoid(self.logits[id], self.routing.softcap),
            false => (self.logits[id] - self.largest).exp(),
        }
    }

    /// What weights are divided by; `ids` are the experts, best first.
    fn divisor(&self, ids: &[usize], per_token: usize) -> f32 {
        let counted = match self.routing.renormalize {
            true => &ids[..per_token],
            false => ids,
        };
        let sum = counted.iter().map(|&id| self.of(id)).sum::<f32>();
        match (self.routing.sigmoid, self.routing.renormalize) {
            (true, true) => sum + 1e-20,
            (true, false) => 1.0,
            (false, _) => sum,
        }
    }
}

/// The routes of one token by SparseMixer; `ids` are its experts, best first.
fn mix(logits: &[f32], ids: &[usize], threshold: f32, routes: &mut [f32]) {
    for (rank, route) in routes.chunks_exact_mut(2).enumerate() {
        let best = logits[ids[rank]];
        let near = ids[rank..].iter().map(|&id| logits[id]);
        let near = near.filter(|logit| best - logit <= threshold * logit.abs().max(best));
        let sum: f32 = near.map(|logit| (logit - best).exp()).sum();
        (route[0], route[1]) = (ids[rank] as f32, 1.0 / sum);
    }
}

/// The sigmoid of a capped logit.
fn sigmoid(logit: f32, softcap: Option<f32>) -> f32 {
    let capped = softcap.map_or(logit, |cap| cap * (logit / cap).tanh());
    1.0 / (1.0 + (-capped).exp())
}

fn largest(logits: &[f32]) -> f32 {
    let found = logits.iter().copied().max_by_key(|&logit| order(logit));
    found.expect("there are experts")
}

/// Makes logits scores, sigmoids or probabilities among all experts, and adds a bias.
fn add_to_scores(values: &mut [f32], bias: &[f32], routing: &Routing) {
    if routing.sigmoid {
        values
            .iter_mut()
            .for_each(|value| *value = sigmoid(*value, routing.softcap));
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
