//! Linear recurrences over tokens, reference. Twin of `shaders/state_scan.wgsl` and `cuda/state_scan.cu`.
//!
//! Per token and head, with the state S, [key_dim × value_dim], zero before the first token:
//! delta rule: q, k ← u / √(Σu² + 10⁻⁶), q ← q / √key_dim; g = decay · softplus(a + bias); β = scale · σ(b);
//! S = e^g S; S += k (β (v − Sᵀk))ᵀ; o = Sᵀq.
//! Mamba-2: dt = softplus(dt + bias); S = e^(dt · decay) S; S += k (dt · v)ᵀ; o = Sᵀq + skip · v.
//!
//! Everything is computed in f64, token by token. The state is rounded to f32 after each token, so that the chunks of a
//! sequence change no bit.

use super::loaded::{LoadedPlan, slot_range};
use crate::plan::inputs::{BatchInputs, NONE};
use crate::plan::{ScanRule, StateScan};

/// Added to the sum of squares of a query and of a key.
const UNIT_EPSILON: f64 = 1e-6;

/// Runs the step.
pub(super) fn run(step: &StateScan, loaded: &mut LoadedPlan, inputs: &BatchInputs) {
    let mut states = std::mem::take(&mut loaded.states[step.layer as usize]);
    let elements = (step.heads * step.key_dim * step.value_dim) as usize;
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let (decay, bias, skip) = (
            loaded.weight(step.decay).vector(),
            loaded.weight(step.dt_bias).vector(),
            loaded.vector(step.skip),
        );
        let scan = Scan {
            step,
            decay: &decay,
            bias: &bias,
            skip: skip.as_deref(),
        };
        let (channels, width) = (loaded.columns(step.convolved), loaded.columns(step.mixed));
        let (convolved, mixed) = (
            loaded.rows(step.convolved, inputs),
            loaded.rows(step.mixed, inputs),
        );
        let columns = loaded.columns(step.out);
        for (rows, state) in inputs.sequences.iter().zip(&inputs.states) {
            let mut past = if state.from == NONE {
                vec![0.0; elements]
            } else {
                states[slot_range(state.from, elements)].to_vec()
            };
            for row in rows.row_start as usize..(rows.row_start + rows.row_count) as usize {
                let gates = &mixed[row * width + step.gates as usize..];
                scan.token(
                    &convolved[row * channels..][..channels],
                    gates,
                    &mut past,
                    |at, value| {
                        out[row * columns + at] = storage.round(value as f32);
                    },
                );
            }
            states[slot_range(state.to, elements)].copy_from_slice(&past);
        }
    });
    loaded.states[step.layer as usize] = states;
}

/// A step with its decoded weights, one number per head.
pub(super) struct Scan<'a> {
    pub(super) step: &'a StateScan,
    pub(super) decay: &'a [f32],
    pub(super) bias: &'a [f32],
    pub(super) skip: Option<&'a [f32]>,
}

/// What a token does to the state of a head.
struct Token {
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    /// e^g: the factor of the state.
    keep: f64,
    /// Factor of what is written: β, or dt.
    rate: f64,
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

impl Scan<'_> {
    /// Folds a token into the states of all heads; `write` gets every output with its column.
    pub(super) fn token(
        &self,
        channels: &[f32],
        gates: &[f32],
        states: &mut [f32],
        mut write: impl FnMut(usize, f64),
    ) {
        let StateScan {
            key_dim,
            value_dim,
            heads,
            ..
        } = *self.step;
        let (key_dim, value_dim) = (key_dim as usize, value_dim as usize);
        for (head, state) in (0..heads as usize).zip(states.chunks_exact_mut(key_dim * value_dim)) {
            let token = self.parts(head, channels, gates);
            for column in 0..value_dim {
                let kept = |key: usize| token.keep * f64::from(state[key * value_dim + column]);
                let known: f64 = match self.step.rule {
                    ScanRule::Delta { .. } => {
                        (0..key_dim).map(|key| kept(key) * token.k[key]).sum()
                    }
                    ScanRule::Mamba2 => 0.0,
                };
                let change = token.rate * (token.v[column] - known);
                let mut sum = self
                    .skip
                    .map_or(0.0, |skip| f64::from(skip[head]) * token.v[column]);
                for key in 0..key_dim {
                    let next = token.keep * f64::from(state[key * value_dim + column])
                        + token.k[key] * change;
                    state[key * value_dim + column] = next as f32;
                    sum += next * token.q[key];
                }
                write(head * value_dim + column, sum);
            }
        }
    }

    /// Query, key, value and gates of a head.
    fn parts(&self, head: usize, channels: &[f32], gates: &[f32]) -> Token {
        let StateScan {
            key_dim,
            value_dim,
            heads,
            key_heads,
            rule,
            ..
        } = *self.step;
        let [key_dim, value_dim, heads, key_heads] =
            [key_dim, value_dim, heads, key_heads].map(|size| size as usize);
        let shared_by = self.step.shared_by() as usize;
        let (key_head, key_columns) = (head / shared_by % key_heads, key_heads * key_dim);
        let part = |first: usize, index: usize, dim: usize| -> Vec<f64> {
            channels[first + index * dim..][..dim]
                .iter()
                .map(|&value| f64::from(value))
                .collect()
        };
        let gate = |index: usize| f64::from(gates[index * heads + head]);
        let (decay, bias) = (f64::from(self.decay[head]), f64::from(self.bias[head]));
        match rule {
            ScanRule::Delta { beta_scale } => {
                let q = unit(part(0, key_head, key_dim), 1.0 / (key_dim as f64).sqrt());
                let k = unit(part(key_columns, key_head, key_dim), 1.0);
                let v = part(2 * key_columns, head, value_dim);
                let rate = f64::from(beta_scale) / (1.0 + (-gate(0)).exp());
                Token {
                    q,
                    k,
                    v,
                    keep: (decay * softplus(gate(1) + bias)).exp(),
                    rate,
                }
            }
            ScanRule::Mamba2 => {
                let v = part(0, head, value_dim);
                let k = part(heads * value_dim, key_head, key_dim);
                let q = part(heads * value_dim + key_columns, key_head, key_dim);
                let rate = softplus(gate(0) + bias);
                Token {
                    q,
                    k,
                    v,
                    keep: (decay * rate).exp(),
                    rate,
                }
            }
        }
    }
}

/// Scales to unit length, then by `scale`.
fn unit(values: Vec<f64>, scale: f64) -> Vec<f64> {
    let squares: f64 = values.iter().map(|value| value * value).sum();
    let factor = scale / (squares + UNIT_EPSILON).sqrt();
    values.into_iter().map(|value| value * factor).collect()
}

#[cfg(test)]
mod tests;
