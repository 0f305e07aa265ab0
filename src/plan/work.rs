//! The work of a batch: arithmetic and memory traffic of its steps, from which a backend predicts how long they take.
//!
//! Attention depends on the lengths of the contexts ([`Reach`]), everything else only on counts of rows. So a recorded
//! program keeps a [`StepWork`] per dispatch, and each batch adds its own reach.

use super::inputs::BatchInputs;
use super::{AttendPaged, KvFormat, MatMul, MatMulExperts, Plan, StateScan, Step, Window};
use std::iter::Sum;
use std::ops::{Add, Mul};

/// Operations of a step without products, per element that it reads or writes: a guess that only has to be small beside
/// a product's.
const OPERATIONS_PER_ELEMENT: f64 = 8.0;

/// Arithmetic operations (a multiply-add is two), and bytes read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Additions and multiplications.
    pub operations: f64,
    /// Bytes read and written, if everything is read once.
    pub bytes: f64,
}

impl Add for Work {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            operations: self.operations + other.operations,
            bytes: self.bytes + other.bytes,
        }
    }
}

impl Mul<f64> for Work {
    type Output = Self;

    fn mul(self, factor: f64) -> Self {
        Self {
            operations: self.operations * factor,
            bytes: self.bytes * factor,
        }
    }
}

impl Sum for Work {
    fn sum<I: Iterator<Item = Self>>(works: I) -> Self {
        works.fold(Self::default(), Add::add)
    }
}

/// What the rows of a batch see in one KV group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reach {
    /// Pairs of a row and a key that it sees.
    pub pairs: f64,
    /// Keys that any row of a sequence sees, summed over the sequences.
    pub keys: f64,
}

impl Reach {
    /// The reach of each KV group of the plan.
    pub fn of(plan: &Plan, inputs: &BatchInputs) -> Vec<Self> {
        plan.kv_groups
            .iter()
            .map(|group| Self::of_group(group.window, inputs))
            .collect()
    }

    fn of_group(window: Option<Window>, inputs: &BatchInputs) -> Self {
        let mut reach = Self::default();
        for rows in &inputs.sequences {
            let (count, last) = (f64::from(rows.row_count), f64::from(rows.context_len));
            let window = window.map_or(f64::INFINITY, |window| f64::from(window.tokens()));
            // The rows see one key more each, until the window is full.
            let mean = last - (count - 1.0) / 2.0;
            reach.pairs += count * mean.min(window);
            reach.keys += last.min(window + count - 1.0);
        }
        reach
    }
}

/// The work of one step, or of the share of it that one dispatch does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepWork {
    fixed: Work,
    /// For attention: the KV group, operations per pair, bytes per key.
    attended: Option<(u32, f64, f64)>,
}

impl StepWork {
    /// The work of `step` for `tokens` token rows and `samples` gathered rows.
    pub fn of(plan: &Plan, step: &Step, tokens: u32, samples: u32, kv_format: KvFormat) -> Self {
        let elements = elements(plan, step, tokens, samples);
        let weights = weight_bytes(plan, step);
        let other = OPERATIONS_PER_ELEMENT * elements;
        let (operations, weight_bytes) = match step {
            Step::MatMul(step) => (product(plan, step, tokens, samples), weights),
            Step::MatMulExperts(step) => {
                let (operations, share) = experts_product(plan, step, tokens);
                (operations, weights * share)
            }
            Step::AttendPaged(_) => (other, 0.0),
            Step::StateScan(step) => {
                let (operations, state_bytes) = scan(plan, step, tokens);
                (operations, weights + state_bytes)
            }
            // A look-up reads one row per token.
            Step::Embed(_) => (other, 4.0 * elements),
            _ => (other, weights),
        };
        Self {
            fixed: Work {
                operations,
                bytes: 4.0 * elements + weight_bytes,
            },
            attended: match step {
                Step::AttendPaged(step) => Some(attended(plan, step, kv_format)),
                _ => None,
            },
        }
    }

    /// The work in a batch with this reach.
    pub fn at(&self, reach: &[Reach]) -> Work {
        let attended = self
            .attended
            .map_or_else(Work::default, |(group, per_pair, per_key)| {
                let reach = reach[group as usize];
                Work {
                    operations: per_pair * reach.pairs,
                    bytes: per_key * reach.keys,
                }
            });
        self.fixed + attended
    }

    /// A part of the step.
    #[must_use]
    pub fn share(self, share: f64) -> Self {
        let attended = self
            .attended
            .map(|(group, per_pair, per_key)| (group, per_pair * share, per_key * share));
        Self {
            fixed: self.fixed * share,
            attended,
        }
    }

    /// Both steps in one dispatch; at most one of them is attention.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self {
            fixed: self.fixed + other.fixed,
            attended: self.attended.or(other.attended),
        }
    }
}

/// Elements that a step reads and writes in row buffers.
fn elements(plan: &Plan, step: &Step, tokens: u32, samples: u32) -> f64 {
    let of_buffer = |id| {
        let spec = plan.buffer_spec(id);
        f64::from(spec.rows.count(tokens, samples)) * f64::from(spec.columns)
    };
    step.buffers().iter().map(|(id, _)| of_buffer(*id)).sum()
}

/// Bytes of a step's weights.
fn weight_bytes(plan: &Plan, step: &Step) -> f64 {
    let weights = step.weights().into_iter();
    weights.map(|id| plan.weight_spec(id).bytes() as f64).sum()
}

/// Operations of a product.
fn product(plan: &Plan, step: &MatMul, tokens: u32, samples: u32) -> f64 {
    let rows = plan.buffer_spec(step.x).rows.count(tokens, samples);
    let weight = plan.weight_spec(step.weight);
    2.0 * f64::from(rows) * f64::from(weight.rows) * f64::from(weight.columns)
}

/// Operations of a product with experts, and the share of their weights that is read at most.
fn experts_product(plan: &Plan, step: &MatMulExperts, tokens: u32) -> (f64, f64) {
    let weight = plan.weight_spec(step.weight);
    let experts = f64::from(weight.experts.max(1));
    let routes = f64::from(step.shape(plan).routes(tokens));
    let expert_rows = f64::from(weight.rows) / experts;
    let operations = 2.0 * routes * expert_rows * f64::from(weight.columns);
    (operations, routes.min(experts) / experts)
}

/// The KV group of an attention, its operations per pair and bytes per key.
fn attended(plan: &Plan, step: &AttendPaged, kv_format: KvFormat) -> (u32, f64, f64) {
    let layer = plan.kv_layers[step.layer as usize];
    // Two products, of q with k and of the weights with v.
    let per_pair = 4.0 * f64::from(step.query_heads) * f64::from(layer.head_dim);
    (layer.group, per_pair, layer.token_bytes(kv_format) as f64)
}

/// Operations of a scan, and bytes of its state: it is read and written once, if there is one sequence.
fn scan(plan: &Plan, step: &StateScan, tokens: u32) -> (f64, f64) {
    let state = f64::from(plan.state_layers[step.layer as usize].elements);
    // Decay, two products with the state, and the product that changes it.
    (7.0 * f64::from(tokens) * state, 8.0 * state)
}

#[cfg(test)]
mod tests;
