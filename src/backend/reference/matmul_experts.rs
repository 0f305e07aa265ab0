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
mod tests {
    use super::*;
    use crate::plan::{Plan, WeightFormat};

    /// Expert e multiplies two columns by e + 1 and swaps them if e is odd.
    fn weight() -> Weight {
        let mut plan = Plan::default();
        let id = plan.weight("w", 6, 2, WeightFormat::F32);
        plan.stack_experts(id, 3);
        let mut weight = Weight::new(plan.weights.remove(0));
        let values = [
            1.0_f32, 0.0, 0.0, 1.0, 0.0, 2.0, 2.0, 0.0, 3.0, 0.0, 0.0, 3.0,
        ];
        weight
            .insert(
                0,
                values
                    .iter()
                    .flat_map(|value| value.to_le_bytes())
                    .collect::<Vec<u8>>()
                    .into(),
            )
            .unwrap();
        weight
    }

    #[test]
    fn each_route_has_its_expert_and_a_token_their_weighted_sum() {
        let weight = weight();
        let routes = [2.0, 0.75, 1.0, 0.25, 0.0, 0.5, 1.0, 0.5];
        let bias = Some(vec![0.0, 0.0, 10.0, 0.0, 0.0, 0.0]);
        let product = |shared| {
            let shape = ExpertShape {
                per_token: 2,
                x_routes: if shared { 2 } else { 1 },
                x_stride: 2,
                outputs: 2,
                combine: !shared,
            };
            Product {
                weight: &weight,
                bias: bias.clone(),
                routes: &routes,
                shape,
            }
        };
        let mut spread = [f32::NAN; 8];
        let output = Output {
            accumulate: false,
            values: &mut spread,
            storage: Storage::F32,
        };
        product(true).spread(&[1.0, 2.0, 5.0, 7.0], output);
        assert_eq!(spread, [3.0, 6.0, 14.0, 2.0, 5.0, 7.0, 24.0, 10.0]);
        let mut combined = [100.0, 0.0, 0.0, 0.0];
        let output = Output {
            accumulate: true,
            values: &mut combined,
            storage: Storage::F32,
        };
        product(false).combine(&[1.0, 2.0, 1.0, 2.0, 5.0, 7.0, 5.0, 7.0], output);
        let row = |first: f32, second: f32| first * 0.5 + second * 0.5;
        assert_eq!(
            combined,
            [
                100.0 + 0.75 * 3.0 + 0.25 * 14.0,
                0.75 * 6.0 + 0.25 * 2.0,
                row(5.0, 24.0),
                row(7.0, 10.0)
            ]
        );
    }
}
