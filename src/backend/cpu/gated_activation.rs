//! Activations of gates, times their up projections.

use super::loaded::Loaded;
use super::rows::{Function, each_row, map, swish};
use super::simd::Simd;
use super::team::Team;
use crate::plan::inputs::BatchInputs;
use crate::plan::{Activation, GatedActivation, Gates, Up};

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

/// Coefficients of a polynomial in t = 1 / (1 + z / 2), highest power first, for which
/// `erfc(z) = t · e^(polynomial − z²)` within 1.2e-7 of it, z ≥ 0 (Numerical Recipes, erfcc).
const ERFC: [f32; 10] = [
    0.170_872_77,
    -0.822_152_23,
    1.488_515_9,
    -1.135_204,
    0.278_868_07,
    -0.186_288_06,
    0.096_784_18,
    0.374_091_96,
    1.000_023_7,
    -1.265_512_2,
];

/// `½ x (1 + erf(x / √2))`.
#[inline(always)]
fn gelu<S: Simd>(s: S, x: S::F) -> S::F {
    let zero = s.splat(0.0);
    let z = s.mul(
        s.max(x, s.sub(zero, x)),
        s.splat(std::f32::consts::FRAC_1_SQRT_2),
    );
    let t = s.div(s.splat(1.0), s.mul_add(s.splat(0.5), z, s.splat(1.0)));
    let polynomial = ERFC[1..].iter().fold(s.splat(ERFC[0]), |sum, &next| {
        s.mul_add(sum, t, s.splat(next))
    });
    let erfc = s.mul(t, s.exp(s.sub(polynomial, s.mul(z, z))));
    // x · erfc / 2 where x is negative, the rest of x elsewhere.
    let tail = s.mul(s.mul(s.splat(0.5), x), erfc);
    s.if_less(x, zero, tail, s.sub(x, tail))
}

/// `½ x (1 + tanh u)`.
#[inline(always)]
fn gelu_tanh<S: Simd>(s: S, x: S::F) -> S::F {
    // ½ (1 + tanh u) = 1 / (1 + e^(−2u)), without cancellation where tanh u is near −1. u / x:
    const SLOPE: f32 = 0.797_884_6;
    let factor = s.mul_add(
        s.mul(x, x),
        s.splat(2.0 * SLOPE * 0.044_715),
        s.splat(2.0 * SLOPE),
    );
    swish(s, x, factor)
}

/// `ln(1 + e^x) = max(x, 0) + ln(1 + t)` with t = e^(−|x|). The logarithm is twice the area tangent of t / (2 + t),
/// whose series keeps its digits where t is small; its first missing term is 1.4e-8 of it at ⅓.
#[inline(always)]
fn softplus<S: Simd>(s: S, x: S::F) -> S::F {
    let zero = s.splat(0.0);
    let t = s.exp(s.min(x, s.sub(zero, x)));
    let z = s.div(t, s.add(s.splat(2.0), t));
    let square = s.mul(z, z);
    let divisors = [11.0, 9.0, 7.0, 5.0, 3.0, 1.0f32].iter();
    let series = divisors.fold(s.splat(1.0 / 13.0), |sum, divisor| {
        s.mul_add(sum, square, s.splat(1.0 / divisor))
    });
    s.mul_add(s.mul(s.splat(2.0), z), series, s.max(zero, x))
}

/// xIELU with the numbers of [`Activate`].
#[inline(always)]
fn xielu<S: Simd>(s: S, x: S::F, [positive, negative, beta, epsilon]: [f32; 4]) -> S::F {
    let square = s.mul(s.splat(positive), s.mul(x, x));
    let fall = s.sub(exp_m1(s, s.min(s.splat(epsilon), x)), x);
    let curved = s.if_less(s.splat(0.0), x, square, s.mul(s.splat(negative), fall));
    s.mul_add(s.splat(beta), x, curved)
}

/// An activation with the numbers of xIELU: `[softplus(p), β + softplus(n), β, ε]`.
#[derive(Clone, Copy)]
pub(super) struct Activate(Activation, [f32; 4]);

impl Activate {
    pub(super) fn new(activation: Activation, numbers: Option<&[f32]>) -> Self {
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
            Activation::GeluTanh => s.mul(gelu_tanh(s, gate), up),
            Activation::Gelu => s.mul(gelu(s, gate), up),
            Activation::Relu => s.mul(s.max(s.splat(0.0), gate), up),
            Activation::ClampedSwiglu { alpha, limit } => {
                let gate = s.min(s.splat(limit), gate);
                let up = s.max(s.splat(-limit), s.min(s.splat(limit), up));
                s.mul(swish(s, gate, s.splat(alpha)), s.add(up, s.splat(1.0)))
            }
            Activation::ClampedSilu { limit } => {
                let silu = s.min(s.splat(limit), swish(s, gate, s.splat(1.0)));
                let up = s.max(s.splat(-limit), s.min(s.splat(limit), up));
                s.mul(silu, up)
            }
            Activation::Relu2 => {
                let positive = s.max(s.splat(0.0), gate);
                s.mul(s.mul(positive, positive), up)
            }
            Activation::Sigmoid => {
                let e = s.exp(s.sub(s.splat(0.0), gate));
                s.div(up, s.add(s.splat(1.0), e))
            }
            Activation::Softplus => s.mul(softplus(s, gate), up),
            Activation::Xielu => s.mul(xielu(s, gate, self.1), up),
        }
    }
}

/// An activation of gates `a` times their weight, or of one gate for all elements, times `b` if there is an `up`.
struct Gated {
    activate: Activate,
    gate: Option<f32>,
    weight: f32,
    has_up: bool,
}

impl Function for Gated {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, a: S::F, b: S::F, old: S::F) -> S::F {
        let gate = match self.gate {
            Some(gate) => s.splat(gate),
            None => s.mul(a, s.splat(self.weight)),
        };
        self.activate
            .call(s, gate, if self.has_up { b } else { s.splat(1.0) }, old)
    }
}

/// Runs the step.
pub(super) fn run(
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
                let weight = step
                    .routes
                    .map_or(1.0, |routes| loaded.rows(routes, inputs)[2 * row + 1]);
                let f = Gated {
                    activate,
                    gate: None,
                    weight,
                    has_up: up.is_some(),
                };
                return map(loaded.level, gates, up.unwrap_or(gates), out, storage, f);
            }
            let run = shared_by as usize;
            for (index, (gate, out)) in gates.iter().zip(out.chunks_exact_mut(run)).enumerate() {
                let f = Gated {
                    activate,
                    gate: Some(*gate),
                    weight: 1.0,
                    has_up: up.is_some(),
                };
                // Without `up`, no operand is read.
                let up = up.map_or(&gate_up[..run], |up| &up[index * run..][..run]);
                map(loaded.level, up, up, out, storage, f);
            }
        });
    });
}
