//! Choice of experts, reference. Twin of `shaders/route_experts.wgsl`.
//!
//! Chooses the largest logits of each token, largest first; ties go to the lowest id. Logits are ordered by their bits
//! as integers (−0 is below 0, NaN is above everything), so that every device chooses the same experts. A route is the
//! expert's id and its weight: exp(logit − max) divided by the sum over all experts, or over the chosen ones.
//!
//! With `sigmoid`, a score is sigmoid(logit), of a capped logit with `softcap`, and a weight is the score, divided by
//! the sum of the chosen scores + 1e-20 if weights are renormalized. With a bias, experts are chosen by score + bias,
//! rounded to f32, where a score without `sigmoid` is the probability among all experts; with groups, only among those
//! of the groups with the largest sums of two, or without a bias with the largest logits. Weights are multiplied by the
//! factor and the expert's scale. With `mixer`, a weight is exp(logit − m) divided by the sum over the experts that
//! were not chosen before and are near, where m is the logit of the chosen one; which are near is decided in f32.

use super::loaded::LoadedPlan;
use crate::plan::inputs::BatchInputs;
use crate::plan::{ExpertGroups, RouteExperts, Routing};

/// Runs the step.
pub(super) fn run(step: &RouteExperts, loaded: &mut LoadedPlan, inputs: &BatchInputs) {
    loaded.write(step.routes, inputs, |loaded, routes, _| {
        let (experts, per_token) = (loaded.columns(step.logits), loaded.per_token(step.routes));
        let (bias, scale) = (
            loaded.vector(step.routing.bias),
            loaded.vector(step.routing.expert_scale),
        );
        let router = Router {
            routing: step.routing,
            bias,
            scale,
        };
        router.route(loaded.rows(step.logits, inputs), experts, per_token, routes);
    });
}

/// A router with its vectors.
pub(super) struct Router {
    pub(super) routing: Routing,
    /// One per expert.
    pub(super) bias: Option<Vec<f32>>,
    /// One per expert.
    pub(super) scale: Option<Vec<f32>>,
}

/// `1 / (1 + exp(−logit))`, of a capped logit.
fn sigmoid(logit: f32, softcap: Option<f32>) -> f64 {
    let logit = f64::from(logit);
    let capped = softcap.map_or(logit, |cap| {
        let cap = f64::from(cap);
        cap * (logit / cap).tanh()
    });
    1.0 / (1.0 + (-capped).exp())
}

impl Router {
    /// What experts are ordered by, as integers; 0 for those of groups that were not kept.
    fn keys(&self, logits: &[f32]) -> Vec<u32> {
        let values: Vec<f32> = match &self.bias {
            Some(bias) => self
                .scores(logits)
                .into_iter()
                .zip(bias)
                .map(|(score, &bias)| (score + f64::from(bias)) as f32)
                .collect(),
            None => logits.to_vec(),
        };
        let mut keys: Vec<u32> = values.iter().map(|&value| order(value)).collect();
        if let Some(ExpertGroups { count, kept }) = self.routing.groups {
            let size = logits.len() / count as usize;
            let values: Vec<u32> = values
                .chunks_exact(size)
                .map(|group| order(self.group_value(group)))
                .collect();
            let mut groups: Vec<usize> = (0..values.len()).collect();
            groups.sort_by_key(|&group| std::cmp::Reverse(values[group]));
            groups[kept as usize..]
                .iter()
                .for_each(|group| keys[group * size..][..size].fill(0));
        }
        keys
    }

    /// Sigmoids, or probabilities among all experts.
    fn scores(&self, logits: &[f32]) -> Vec<f64> {
        if self.routing.sigmoid {
            let softcap = self.routing.softcap;
            return logits
                .iter()
                .map(|&logit| sigmoid(logit, softcap))
                .collect();
        }
        let largest = f64::from(largest(logits));
        let shares = logits
            .iter()
            .map(|&logit| (f64::from(logit) - largest).exp());
        let shares: Vec<f64> = shares.collect();
        let sum: f64 = shares.iter().sum();
        shares.into_iter().map(|share| share / sum).collect()
    }

    /// The value of a group of experts: that of its best, or with a bias of its two best.
    fn group_value(&self, values: &[f32]) -> f32 {
        let mut sorted = values.to_vec();
        sorted.sort_by(|a, b| b.total_cmp(a));
        if self.bias.is_some() {
            sorted[0] + sorted[1]
        } else {
            sorted[0]
        }
    }

    /// Writes `per_token` routes of (id, weight) for each row of `experts` logits.
    pub(super) fn route(
        &self,
        logits: &[f32],
        experts: usize,
        per_token: usize,
        routes: &mut [f32],
    ) {
        assert_eq!(
            logits.len() % experts,
            0,
            "logits are whole rows of {experts}"
        );
        assert_eq!(
            routes.len(),
            logits.len() / experts * per_token * 2,
            "an id and a weight per route"
        );
        let Routing {
            sigmoid: by_sigmoid,
            renormalize,
            factor,
            softcap,
            ..
        } = self.routing;
        for (logits, routes) in logits
            .chunks_exact(experts)
            .zip(routes.chunks_exact_mut(2 * per_token))
        {
            let keys = self.keys(logits);
            let mut ids: Vec<usize> = (0..experts).collect();
            ids.sort_by_key(|&id| std::cmp::Reverse(keys[id]));
            let largest = f64::from(largest(logits));
            let share = |id: usize| match by_sigmoid {
                true => sigmoid(logits[id], softcap),
                false => (f64::from(logits[id]) - largest).exp(),
            };
            let counted = if renormalize {
                &ids[..per_token]
            } else {
                &ids[..]
            };
            let sum: f64 = counted.iter().map(|&id| share(id)).sum();
            let sum = match (by_sigmoid, renormalize) {
                (true, true) => sum + 1e-20,
                (true, false) => 1.0,
                (false, _) => sum,
            };
            if let Some(threshold) = self.routing.mixer {
                mix(logits, &ids, threshold, routes);
                continue;
            }
            for (route, &id) in routes.chunks_exact_mut(2).zip(&ids) {
                route[0] = id as f32;
                let scale = self
                    .scale
                    .as_ref()
                    .map_or(1.0, |scale| f64::from(scale[id]));
                route[1] = (share(id) / sum * f64::from(factor) * scale) as f32;
            }
        }
    }
}

/// The routes of one token by SparseMixer; `ids` are its experts, best first.
fn mix(logits: &[f32], ids: &[usize], threshold: f32, routes: &mut [f32]) {
    for (rank, route) in routes.chunks_exact_mut(2).enumerate() {
        let best = logits[ids[rank]];
        let near = ids[rank..].iter().map(|&id| logits[id]);
        let near = near.filter(|logit| best - logit <= threshold * logit.abs().max(best));
        let sum: f64 = near.map(|logit| f64::from(logit - best).exp()).sum();
        (route[0], route[1]) = (ids[rank] as f32, (1.0 / sum) as f32);
    }
}

/// The largest of all logits.
fn largest(logits: &[f32]) -> f32 {
    let found = logits.iter().copied().max_by_key(|&logit| order(logit));
    found.expect("there are experts")
}

/// Maps a logit to an integer with the same order.
fn order(logit: f32) -> u32 {
    let bits = logit.to_bits();
    if bits >> 31 == 0 {
        bits | 1 << 31
    } else {
        !bits
    }
}

#[cfg(test)]
mod tests;
