//! Steps that compute rows element by element: look-up, norm, activation, gathering, scaling.

use super::loaded::Loaded;
use super::memory::SharedSlice;
use super::simd::{Kernel, LANES, Level, Simd, with_simd};
use super::team::Team;
use crate::plan::inputs::{BatchInputs, FEED};
use crate::plan::{
    Activation, Embed, GatedActivation, GatedNorm, Gates, GatherRows, NormOptions, Pool, RmsNorm,
    ScaleLogits, Storage, Up,
};

/// Elements below which a step takes less time than waking the other threads.
const ALONE: usize = 1 << 14;

/// Calls `work(row, elements)` for every row of `columns` elements, divided among the threads.
pub(super) fn each_row(
    team: &mut Team,
    rows: &mut [f32],
    columns: usize,
    work: impl Fn(usize, &mut [f32]) + Sync,
) {
    if rows.len() <= ALONE {
        return rows
            .chunks_exact_mut(columns)
            .enumerate()
            .for_each(|(row, values)| work(row, values));
    }
    let (count, rows) = (rows.len() / columns, SharedSlice::new(rows));
    team.run(count, 1, |parts, _| {
        for row in parts.flatten() {
            #[allow(unsafe_code, reason = "rows of different threads are disjoint")]
            // SAFETY: each row is in one part of one thread.
            work(row, unsafe {
                rows.part(row * columns..(row + 1) * columns)
            });
        }
    });
}

/// `out = f(a, b, out)`, sixteen elements at a time.
struct Map<'a, F> {
    a: &'a [f32],
    b: &'a [f32],
    out: &'a mut [f32],
    storage: Storage,
    f: F,
}

/// A function of vectors. (A closure cannot be generic.)
trait Function {
    fn call<S: Simd>(&self, s: S, a: S::F, b: S::F, old: S::F) -> S::F;
}

impl<F: Function> Kernel for Map<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        assert!(
            self.a.len() == self.out.len() && self.b.len() == self.out.len(),
            "operands have the same length"
        );
        let (a, a_rest) = self.a.as_chunks::<LANES>();
        let (b, b_rest) = self.b.as_chunks::<LANES>();
        let (out, out_rest) = self.out.as_chunks_mut::<LANES>();
        for ((a, b), out) in a.iter().zip(b).zip(out.iter_mut()) {
            s.store(self.f.call(s, s.load(a), s.load(b), s.load(out)), out);
        }
        if !out_rest.is_empty() {
            let padded = |values: &[f32]| {
                let mut lanes = [1.0; LANES];
                lanes[..values.len()].copy_from_slice(values);
                lanes
            };
            let mut last = padded(out_rest);
            s.store(
                self.f.call(
                    s,
                    s.load(&padded(a_rest)),
                    s.load(&padded(b_rest)),
                    s.load(&last),
                ),
                &mut last,
            );
            out_rest.copy_from_slice(&last[..out_rest.len()]);
        }
        if self.storage != Storage::F32 {
            self.out
                .iter_mut()
                .for_each(|value| *value = self.storage.round(*value));
        }
    }
}

fn map(level: Level, a: &[f32], b: &[f32], out: &mut [f32], storage: Storage, f: impl Function) {
    with_simd!(level, s => s.vectorize(Map { a, b, out, storage, f }));
}

/// `values = f(values)`, sixteen elements at a time.
struct Update<'a, F> {
    values: &'a mut [f32],
    storage: Storage,
    f: F,
}

impl<F: Function> Kernel for Update<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for part in self.values.chunks_mut(LANES) {
            let mut lanes = [1.0; LANES];
            lanes[..part.len()].copy_from_slice(part);
            let value = s.load(&lanes);
            s.store(self.f.call(s, value, value, value), &mut lanes);
            for (value, result) in part.iter_mut().zip(lanes) {
                *value = self.storage.round(result);
            }
        }
    }
}

fn update(level: Level, values: &mut [f32], storage: Storage, f: impl Function) {
    with_simd!(level, s => s.vectorize(Update { values, storage, f }));
}

/// Sum of squares of the differences from a number.
struct Squares<'a> {
    row: &'a [f32],
    mean: f32,
}

impl Kernel for Squares<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let (vectors, rest) = self.row.as_chunks::<LANES>();
        // Four sums, so that additions do not wait for each other.
        let mut sums = [s.splat(0.0); 4];
        for (index, vector) in vectors.iter().enumerate() {
            let value = s.sub(s.load(vector), s.splat(self.mean));
            sums[index % 4] = s.mul_add(value, value, sums[index % 4]);
        }
        let sum = s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])));
        rest.iter()
            .map(|value| value - self.mean)
            .fold(sum, |sum, value| sum + value * value)
    }
}

/// The sum of squares.
pub(super) fn squares(level: Level, row: &[f32]) -> f32 {
    with_simd!(level, s => s.vectorize(Squares { row, mean: 0.0 }))
}

/// `1 / sqrt(mean((row − mean)²) + epsilon)`; with a mean of 0, the inverse of the root mean square.
fn inverse_deviation(level: Level, row: &[f32], mean: f32, epsilon: f32) -> f32 {
    let squares = with_simd!(level, s => s.vectorize(Squares { row, mean }));
    1.0 / (squares / row.len() as f32 + epsilon).sqrt()
}

/// (a − mean) · inverse · (b, or 1 + b), added to the old value or instead of it, and scaled.
struct Normalize {
    mean: f32,
    inverse: f32,
    one_plus: bool,
    accumulate: bool,
    scale: f32,
}

impl Normalize {
    /// The norm of most models: by the root mean square.
    fn new(level: Level, x: &[f32], epsilon: f32, one_plus: bool) -> Self {
        let inverse = inverse_deviation(level, x, 0.0, epsilon);
        Self {
            mean: 0.0,
            inverse,
            one_plus,
            accumulate: false,
            scale: 1.0,
        }
    }
}

impl Function for Normalize {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, a: S::F, b: S::F, old: S::F) -> S::F {
        let weight = if self.one_plus {
            s.add(b, s.splat(1.0))
        } else {
            b
        };
        let value = s.mul(
            s.mul(s.sub(a, s.splat(self.mean)), s.splat(self.inverse)),
            weight,
        );
        s.mul(
            if self.accumulate {
                s.add(old, value)
            } else {
                value
            },
            s.splat(self.scale),
        )
    }
}

struct Add;

impl Function for Add {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, a: S::F, _: S::F, old: S::F) -> S::F {
        s.add(old, a)
    }
}

/// old · scale · (a, or 1 + a)
struct Rescale {
    scale: f32,
    one_plus: bool,
}

impl Function for Rescale {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, a: S::F, _: S::F, old: S::F) -> S::F {
        let weight = if self.one_plus {
            s.add(a, s.splat(1.0))
        } else {
            a
        };
        s.mul(s.mul(old, s.splat(self.scale)), weight)
    }
}

/// Normalizes one run of elements.
pub(super) fn normalize(
    level: Level,
    x: &[f32],
    weight: &[f32],
    epsilon: f32,
    one_plus: bool,
    out: &mut [f32],
) {
    map(
        level,
        x,
        weight,
        out,
        Storage::F32,
        Normalize::new(level, x, epsilon, one_plus),
    );
}

/// Normalizes one run of elements where it is.
pub(super) fn normalize_in_place(
    level: Level,
    x: &mut [f32],
    weight: &[f32],
    epsilon: f32,
    one_plus: bool,
) {
    let scale = inverse_deviation(level, x, 0.0, epsilon);
    map(
        level,
        weight,
        weight,
        x,
        Storage::F32,
        Rescale { scale, one_plus },
    );
}

/// Divides elements by their root mean square.
pub(super) fn scale_to_unit(level: Level, x: &mut [f32], epsilon: f32) {
    let scale = inverse_deviation(level, x, 0.0, epsilon);
    x.iter_mut().for_each(|x| *x *= scale);
}

pub(super) fn rms_norm(step: &RmsNorm, loaded: &mut Loaded, team: &mut Team, inputs: &BatchInputs) {
    let columns = loaded.columns(step.x);
    if let Some(delta) = step.delta {
        loaded.write(step.x, inputs, |loaded, x, storage| {
            let delta = loaded.rows(delta, inputs);
            each_row(team, x, columns, |row, x| {
                let delta = &delta[row * columns..][..columns];
                map(loaded.level, delta, delta, x, storage, Add);
            });
        });
    }
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let (x, weight, level) = (
            loaded.rows(step.x, inputs),
            loaded.vector(step.weight),
            loaded.level,
        );
        let NormOptions {
            center,
            bias,
            scale,
        } = step.options;
        let [bias, scale] = [bias, scale].map(|option| option.map(|id| loaded.vector(id)));
        let run = weight.len();
        each_row(team, out, run, |row, out| {
            let x = &x[row * run..][..run];
            let mut f = Normalize {
                accumulate: step.accumulate,
                ..Normalize::new(level, x, step.epsilon, step.one_plus)
            };
            if center {
                f.mean = (x.iter().map(|&x| f64::from(x)).sum::<f64>() / run as f64) as f32;
                f.inverse = inverse_deviation(level, x, f.mean, step.epsilon);
            }
            if let Some(bias) = bias {
                if !step.accumulate {
                    out.fill(0.0);
                }
                map(level, bias, bias, out, Storage::F32, Add);
                f.accumulate = true;
            }
            f.scale = scale.map_or(1.0, |scale| scale[0]);
            map(level, x, weight, out, storage, f);
        });
    });
}

/// x / (1 + e^(−factor · x))
#[inline(always)]
fn swish<S: Simd>(s: S, x: S::F, factor: S::F) -> S::F {
    let e = s.exp(s.sub(s.splat(0.0), s.mul(x, factor)));
    s.div(x, s.add(s.splat(1.0), e))
}

struct Silu;

impl Function for Silu {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, x: S::F, _: S::F, _: S::F) -> S::F {
        swish(s, x, s.splat(1.0))
    }
}

/// `values = silu(values)`, rounded.
pub(super) fn silu(level: Level, values: &mut [f32], storage: Storage) {
    update(level, values, storage, Silu);
}

/// e^x − 1 for x ≤ 0. Near 0, where the difference would lose most digits, it is Taylor's polynomial, whose first
/// missing term is 5e-8 of it at −¼.
#[inline(always)]
fn exp_m1<S: Simd>(s: S, x: S::F) -> S::F {
    let inner = [120.0, 24.0, 6.0, 2.0f32].iter();
    let sum = inner.fold(s.splat(1.0 / 720.0), |sum, divisor| {
        s.mul_add(sum, x, s.splat(1.0 / divisor))
    });
    let near = s.mul_add(s.mul(x, x), sum, x);
    s.if_less(s.splat(-0.25), x, near, s.sub(s.exp(x), s.splat(1.0)))
}

/// An activation with the numbers of xIELU: `[softplus(p), β + softplus(n), β, ε]`.
#[derive(Clone, Copy)]
struct Activate(Activation, [f32; 4]);

impl Activate {
    fn new(activation: Activation, numbers: Option<&[f32]>) -> Self {
        let Some(numbers) = numbers else {
            return Self(activation, [0.0; 4]);
        };
        let softplus = |x: f32| x.max(0.0) + (-x.abs()).exp().ln_1p();
        Self(
            activation,
            [
                softplus(numbers[0]),
                numbers[2] + softplus(numbers[1]),
                numbers[2],
                numbers[3],
            ],
        )
    }
}

impl Function for Activate {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, gate: S::F, up: S::F, _: S::F) -> S::F {
        match self.0 {
            Activation::Silu => s.mul(swish(s, gate, s.splat(1.0)), up),
            Activation::GeluTanh => {
                // ½ (1 + tanh u) = 1 / (1 + e^(−2u)), without cancellation where tanh u is near −1. u / gate:
                const SLOPE: f32 = 0.797_884_6;
                let square = s.mul(gate, gate);
                let factor = s.mul_add(
                    square,
                    s.splat(2.0 * SLOPE * 0.044_715),
                    s.splat(2.0 * SLOPE),
                );
                s.mul(swish(s, gate, factor), up)
            }
            Activation::ClampedSwiglu { alpha, limit } => {
                let gate = s.min(s.splat(limit), gate);
                let up = s.max(s.splat(-limit), s.min(s.splat(limit), up));
                s.mul(swish(s, gate, s.splat(alpha)), s.add(up, s.splat(1.0)))
            }
            Activation::Relu2 => {
                let positive = s.max(s.splat(0.0), gate);
                s.mul(s.mul(positive, positive), up)
            }
            Activation::Sigmoid => {
                let e = s.exp(s.sub(s.splat(0.0), gate));
                s.div(up, s.add(s.splat(1.0), e))
            }
            Activation::Xielu => {
                let [positive, negative, beta, epsilon] = self.1;
                let square = s.mul(s.splat(positive), s.mul(gate, gate));
                let fall = s.sub(exp_m1(s, s.min(s.splat(epsilon), gate)), gate);
                let curved = s.if_less(s.splat(0.0), gate, square, s.mul(s.splat(negative), fall));
                s.mul(s.mul_add(s.splat(beta), gate, curved), up)
            }
        }
    }
}

/// An activation of gates `a`, or of one gate for all elements, times `b` if there is an `up`.
struct Gated {
    activate: Activate,
    gate: Option<f32>,
    has_up: bool,
}

impl Function for Gated {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, a: S::F, b: S::F, old: S::F) -> S::F {
        let gate = self.gate.map_or(a, |gate| s.splat(gate));
        self.activate
            .call(s, gate, if self.has_up { b } else { s.splat(1.0) }, old)
    }
}

pub(super) fn gated_activation(
    step: &GatedActivation,
    loaded: &mut Loaded,
    team: &mut Team,
    inputs: &BatchInputs,
) {
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let (gate_up, columns) = (loaded.rows(step.gate_up, inputs), loaded.columns(step.out));
        let numbers = step.numbers.map(|numbers| loaded.vector(numbers));
        let (width, Gates { first, shared_by }) = (loaded.columns(step.gate_up), step.gates);
        let activate = Activate::new(step.activation, numbers);
        each_row(team, out, columns, |row, out| {
            let gates = &gate_up[row * width + first as usize..][..columns / shared_by as usize];
            let up = match step.up {
                Up::SecondHalf => Some(&gate_up[row * width + columns..][..columns]),
                Up::One => None,
                Up::Of(buffer, first) => Some(
                    &loaded.rows(buffer, inputs)[row * loaded.columns(buffer) + first as usize..]
                        [..columns],
                ),
            };
            if shared_by == 1 {
                let f = Gated {
                    activate,
                    gate: None,
                    has_up: up.is_some(),
                };
                return map(loaded.level, gates, up.unwrap_or(gates), out, storage, f);
            }
            let run = shared_by as usize;
            for (index, (gate, out)) in gates.iter().zip(out.chunks_exact_mut(run)).enumerate() {
                let f = Gated {
                    activate,
                    gate: Some(*gate),
                    has_up: up.is_some(),
                };
                // Without `up`, no operand is read.
                let up = up.map_or(&gate_up[..run], |up| &up[index * run..][..run]);
                map(loaded.level, up, up, out, storage, f);
            }
        });
    });
}

pub(super) fn gated_norm(
    step: &GatedNorm,
    loaded: &mut Loaded,
    team: &mut Team,
    inputs: &BatchInputs,
) {
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let (x, weight, level) = (
            loaded.rows(step.x, inputs),
            loaded.vector(step.weight),
            loaded.level,
        );
        let (mixed, width) = (loaded.rows(step.mixed, inputs), loaded.columns(step.mixed));
        let (group, columns) = (step.group as usize, loaded.columns(step.x));
        each_row(team, out, group, |index, out| {
            let (row, first) = (index * group / columns, index * group % columns);
            let x = &x[index * group..][..group];
            let gates = &mixed[row * width + step.gates as usize + first..][..group];
            map(
                level,
                gates,
                x,
                out,
                Storage::F32,
                Activate::new(Activation::Silu, None),
            );
            // A gate after the norm is a factor all the same.
            let scale = inverse_deviation(
                level,
                if step.gate_first { out } else { x },
                0.0,
                step.epsilon,
            );
            let weight = &weight[first % weight.len()..][..group];
            map(
                level,
                weight,
                weight,
                out,
                storage,
                Rescale {
                    scale,
                    one_plus: false,
                },
            );
        });
    });
}

pub(super) fn embed(step: &Embed, loaded: &mut Loaded, team: &mut Team, inputs: &BatchInputs) {
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let (table, bytes) = (loaded.matrix(step.table), &mut team.own().bytes);
        for (&id, row) in inputs
            .token_ids
            .iter()
            .zip(out.chunks_exact_mut(loaded.columns(step.out)))
        {
            let id = if id & FEED == 0 {
                id
            } else {
                loaded.feed[(id & !FEED) as usize]
            };
            table.decode_row(id as usize, bytes, row);
            row.iter_mut()
                .for_each(|value| *value = storage.round(*value * step.scale));
        }
    });
}

pub(super) fn gather_rows(step: &GatherRows, loaded: &mut Loaded, inputs: &BatchInputs) {
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let (x, columns) = (loaded.rows(step.x, inputs), loaded.columns(step.out));
        for (&row, out) in inputs.logits_rows.iter().zip(out.chunks_exact_mut(columns)) {
            for (out, value) in out.iter_mut().zip(&x[row as usize * columns..]) {
                *out = storage.round(*value);
            }
        }
    });
}

/// Finite logits only: a row that failed stays detectable.
struct Scale {
    scale: f32,
    softcap: Option<f32>,
}

impl Function for Scale {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, logit: S::F, _: S::F, _: S::F) -> S::F {
        let scaled = s.mul(logit, s.splat(self.scale));
        let capped = match self.softcap {
            Some(cap) => s.mul(s.splat(cap), s.tanh(s.div(scaled, s.splat(cap)))),
            None => scaled,
        };
        let magnitude = s.float_from_bits(s.and(s.float_to_bits(logit), s.splat_word(0x7fff_ffff)));
        s.if_less(magnitude, s.splat(f32::INFINITY), capped, logit)
    }
}

pub(super) fn scale_logits(
    step: &ScaleLogits,
    loaded: &mut Loaded,
    team: &mut Team,
    inputs: &BatchInputs,
) {
    loaded.write(step.logits, inputs, |loaded, logits, storage| {
        // Parts of a row, since there may be fewer rows than threads.
        const PART: usize = 1 << 12;
        let columns = loaded.columns(step.logits);
        let part = if columns.is_multiple_of(PART) {
            PART
        } else {
            columns
        };
        each_row(team, logits, part, |_, logits| {
            update(
                loaded.level,
                logits,
                storage,
                Scale {
                    scale: step.scale,
                    softcap: step.softcap,
                },
            );
        });
    });
}

pub(super) fn pool(step: &Pool, loaded: &Loaded, inputs: &BatchInputs) -> Vec<Vec<f32>> {
    let (x, columns) = (loaded.rows(step.x, inputs), loaded.columns(step.x));
    inputs
        .pools
        .iter()
        .map(|row| {
            let mut sums = vec![0.0_f64; columns];
            for values in x[row.row_start as usize * columns..]
                .chunks_exact(columns)
                .take(row.row_count as usize)
            {
                sums.iter_mut()
                    .zip(values)
                    .for_each(|(sum, value)| *sum += f64::from(*value));
            }
            sums.into_iter().map(|sum| sum as f32).collect()
        })
        .collect()
}
