//! Functions of vectors in terms of their basic operations.

use super::{LANES, Lanes, Simd};
use std::f32::consts::LOG2_E;

/// ln 2 in two parts; the product of the first with a small integer is exact (Cody and Waite).
const LN_2: [f32; 2] = [355.0 / 512.0, -2.121_944_4e-4];
/// Below this, eˣ is subnormal.
const EXP_MIN: f32 = -87.336_54;
/// Above this, eˣ overflows.
const EXP_MAX: f32 = 88.376_26;
/// Minimax polynomial of (eʳ − 1 − r) / r² for |r| ≤ ln 2 / 2 (Cephes, expf), highest power first.
const EXP: [f32; 6] = [
    1.987_569_1e-4,
    1.398_199_9e-3,
    8.333_452e-3,
    4.166_579_6e-2,
    1.666_666_5e-1,
    0.5,
];
/// Minimax polynomial of (tanh x − x) / x³ in x² for |x| < 0.625 (Cephes, tanhf), highest power first.
const TANH: [f32; 5] = [
    -5.704_988_7e-3,
    2.063_909e-2,
    -5.373_971_5e-2,
    1.333_144_2e-1,
    -3.333_328e-1,
];
/// Below this magnitude the polynomial is used.
const TANH_SMALL: f32 = 0.625;

#[inline(always)]
pub(super) fn fold<S: Simd>(s: S, a: S::F, combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes: Lanes = [0.0; LANES];
    s.store(a, &mut lanes);
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] = combine(lanes[lane], lanes[lane + width]);
        }
        width /= 2;
    }
    lanes[0]
}

#[inline(always)]
fn polynomial<S: Simd, const N: usize>(s: S, x: S::F, coefficients: [f32; N]) -> S::F {
    let mut sum = s.splat(coefficients[0]);
    for &coefficient in &coefficients[1..] {
        sum = s.mul_add(sum, x, s.splat(coefficient));
    }
    sum
}

/// NaN stays NaN.
#[inline(always)]
pub(super) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    // The bounds come first: `min` and `max` return their second operand if the first is NaN.
    let clamped = s.max(s.splat(EXP_MIN), s.min(s.splat(EXP_MAX), x));
    let n = s.to_int(s.mul(clamped, s.splat(LOG2_E)));
    let whole = s.to_float(n);
    let r = s.mul_add(whole, s.splat(-LN_2[0]), clamped);
    let r = s.mul_add(whole, s.splat(-LN_2[1]), r);
    let y = s.mul_add(polynomial(s, r, EXP), s.mul(r, r), s.add(r, s.splat(1.0)));
    let scale = s.float_from_bits(s.shl(s.add_words(n, s.splat_word(127)), 23));
    s.if_less(x, s.splat(EXP_MIN), s.splat(0.0), s.mul(y, scale))
}

#[inline(always)]
pub(super) fn tanh<S: Simd>(s: S, x: S::F) -> S::F {
    let magnitude = s.float_from_bits(s.and(s.float_to_bits(x), s.splat_word(0x7fff_ffff)));
    let square = s.mul(x, x);
    let small = s.mul_add(s.mul(polynomial(s, square, TANH), square), x, x);
    let e = s.exp(s.add(magnitude, magnitude));
    let large = s.sub(s.splat(1.0), s.div(s.splat(2.0), s.add(e, s.splat(1.0))));
    let sign = s.and(s.float_to_bits(x), s.splat_word(0x8000_0000));
    let large = s.float_from_bits(s.or(s.float_to_bits(large), sign));
    s.if_less(magnitude, s.splat(TANH_SMALL), small, large)
}

/// Widens half-precision floats in the low halves of words: as bits of an f32, exponent and mantissa are 2¹¹² too
/// small, also if the half is subnormal.
#[inline(always)]
pub(super) fn half<S: Simd>(s: S, a: S::I) -> S::F {
    let magnitude = s.float_from_bits(s.shl(s.and(a, s.splat_word(0x7fff)), 13));
    let scaled = s.mul(magnitude, s.splat(f32::from_bits((127 + 112) << 23)));
    let not_finite = s.float_from_bits(s.or(s.float_to_bits(scaled), s.splat_word(0x7f80_0000)));
    let value = s.if_less(scaled, s.splat(65536.0), scaled, not_finite);
    let sign = s.shl(s.and(a, s.splat_word(0x8000)), 16);
    s.float_from_bits(s.or(s.float_to_bits(value), sign))
}
