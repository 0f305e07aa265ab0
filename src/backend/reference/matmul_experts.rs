//! Products with chosen experts, reference. Twin of `shaders/matmul_experts_*.wgsl`.
//!
//! For route j of token t, with expert e and weight w: p[t][j][n] = Σ_k x[k] · W[e · N + n][k] + bias[e · N + n].
//! One row per route: out[t · n + j] = p[t][j]. One row per token: out[t] (+)= Σ_j w · p[t][j], summed in the order of
//! the experts and rounded once. Without routes, head h of a token is a route to expert h.
//!
//! Every product is one dot product as defined in `dot.rs`. Rows of one expert are multiplied together, so that its
//! matrix is read once; results do not depend on which rows are grouped.

use super::loaded::LoadedPlan;
use super::matmul::products;
use super::memory::Weight;
use crate::plan::inputs::BatchInputs;
use crate::plan::{ExpertShape, MatMulExperts, Storage};

/// Operands of the product.
pub(super) struct Product<'a> {
    /// `[experts · N × K]`.
    pub(super) weight: &'a Weight,
    /// `[experts · N]`.
    pub(super) bias: Option<Vec<f32>>,
    /// (expert id, weight) per route.
    pub(super) routes: &'a [f32],
    /// Where rows are.
    pub(super) shape: ExpertShape,
}

/// Output of the product.
pub(super) struct Output<'a> {
    /// Add to `values` instead of replacing them.
    pub(super) accumulate: bool,
    /// Rows of N columns.
    pub(super) values: &'a mut [f32],
    /// Element type of `values`.
    pub(super) storage: Storage,
}

/// Runs the step.
pub(super) fn run(step: &MatMulExperts, loaded: &mut LoadedPlan, inputs: &BatchInputs) {
    let shape = step.shape(&loaded.plan);
    let heads: Vec<f32> = match step.routes {
        Some(_) => Vec::new(),
        None => shape
            .head_routes(inputs.positions.len() as u32)
            .flatten()
            .collect(),
    };
    loaded.write(step.out, inputs, |loaded, values, storage| {
        let product = Product {
            weight: loaded.weight(step.weight),
            bias: loaded.vector(step.bias),
            routes: step
                .routes
                .map_or(&heads, |routes| loaded.rows(routes, inputs)),
            shape,
        };
        let output = Output {
            accumulate: step.accumulate,
            values,
            storage,
        };
        match shape.combine {
            true => product.combine(loaded.rows(step.x, inputs), output),
            false => product.spread(loaded.rows(step.x, inputs), output),
        }
    });
}

impl Product<'_> {
    /// Writes one output row per route.
    pub(super) fn spread(&self, x: &[f32], output: Output<'_>) {
        let Output {
            accumulate,
            values,
            storage,
        } = output;
        assert!(!accumulate, "rows of routes are not added to");
        let outputs = self.outputs();
        self.each_expert(x, |routes, product| {
            for (index, route) in routes.iter().enumerate() {
                for (n, value) in values[route * outputs..][..outputs].iter_mut().enumerate() {
                    *value = storage.round(product(index, n) as f32);
                }
            }
        });
    }

    /// Writes one output row per token: the weighted sum of its products.
    pub(super) fn combine(&self, x: &[f32], output: Output<'_>) {
        let Output {
            accumulate,
            values,
            storage,
        } = output;
        let outputs = self.outputs();
        let mut sums: Vec<f64> = values
            .iter()
            .map(|value| if accumulate { f64::from(*value) } else { 0.0 })
            .collect();
        self.each_expert(x, |routes, product| {
            for (index, route) in routes.iter().enumerate() {
                let weight = f64::from(self.routes[2 * route + 1]);
                for (n, sum) in sums[route / self.shape.per_token as usize * outputs..][..outputs]
                    .iter_mut()
                    .enumerate()
                {
                    *sum += weight * product(index, n);
                }
            }
        });
        for (value, sum) in values.iter_mut().zip(sums) {
            *value = storage.round(sum as f32);
        }
    }

    /// Rows per expert.
    fn outputs(&self) -> usize {
        (self.weight.spec().rows / self.weight.spec().experts) as usize
    }

    /// Calls `work` once per expert that has routes, with these routes and their products by (route index, output).
    fn each_expert(&self, x: &[f32], mut work: impl FnMut(&[usize], &dyn Fn(usize, usize) -> f64)) {
        let (columns, outputs) = (self.weight.spec().columns as usize, self.outputs());
        for expert in 0..self.weight.spec().experts as usize {
            let chosen = self
                .routes
                .chunks_exact(2)
                .enumerate()
                .filter(|(_, route)| route[0] as usize == expert);
            let routes: Vec<usize> = chosen.map(|(index, _)| index).collect();
            if routes.is_empty() {
                continue;
            }
            let rows = routes.iter().flat_map(|&route| {
                let row = route / self.shape.x_routes as usize;
                &x[row * self.shape.x_stride as usize..][..columns]
            });
            let rows: Vec<f64> = rows.map(|&value| f64::from(value)).collect();
            let first = expert * outputs;
            let products = products(&rows, self.weight, first..first + outputs);
            let bias = |n: usize| {
                self.bias
                    .as_ref()
                    .map_or(0.0, |bias| f64::from(bias[first + n]))
            };
            work(&routes, &|index, n| {
                products[n * routes.len() + index] + bias(n)
            });
        }
    }
}

#[cfg(test)]
mod tests;
