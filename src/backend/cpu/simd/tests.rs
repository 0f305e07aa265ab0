//! Tests of `backend/cpu/simd/mod.rs`.

use super::*;
use half::f16;

/// The operations whose results every instruction set agrees on, on two vectors of words, which are floats too.
struct Operations {
    a: Words,
    b: Words,
}

impl Kernel for Operations {
    type Output = Vec<(&'static str, Words)>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let table = std::array::from_fn(|entry| 1.5 - entry as f32);
        let (a, b) = (s.load_words(&self.a), s.load_words(&self.b));
        let (x, y) = (s.float_from_bits(a), s.float_from_bits(b));
        let quarters = s.mul(s.to_float(s.sar(a, 12)), s.splat(0.25));
        let number = |value| s.splat(value);
        let results = [
            ("add", s.add(x, y)),
            ("sub", s.sub(x, y)),
            ("mul", s.mul(x, y)),
            ("div", s.div(x, y)),
            ("min", s.min(x, y)),
            ("max", s.max(x, y)),
            ("if_less", s.if_less(x, y, number(1.0), number(2.0))),
            ("add_words", s.to_float(s.add_words(a, b))),
            ("and", s.to_float(s.and(a, b))),
            ("or", s.to_float(s.or(a, b))),
            ("shl", s.to_float(s.shl(a, 5))),
            ("shr", s.to_float(s.shr(a, 5))),
            ("sar", s.to_float(s.sar(a, 5))),
            ("to_int", s.to_float(s.to_int(quarters))),
            ("half", s.half(a)),
            (
                "load_halves",
                s.load_halves(&self.a.map(|word| (word >> 16) as u16)),
            ),
            ("load_bytes", s.load_bytes(&self.a.map(|word| word as i8))),
            ("nibble", s.nibble(a)),
            ("select", s.select(a, &table)),
            ("sum", number(s.sum(s.to_float(s.sar(a, 20))))),
            ("largest", number(s.largest(quarters))),
        ];
        let bits = |value| {
            let mut lanes = [0.0; LANES];
            s.store(value, &mut lanes);
            // Which NaN a NaN becomes is not defined.
            lanes.map(|lane: f32| {
                if lane.is_nan() {
                    f32::NAN.to_bits()
                } else {
                    lane.to_bits()
                }
            })
        };
        results.map(|(name, value)| (name, bits(value))).to_vec()
    }
}

/// Every half-precision float occurs in both halves of a word.
#[test]
fn every_level_computes_the_same() {
    for first in (0..1 << 16).step_by(LANES) {
        let numbers: Words = std::array::from_fn(|lane| first + lane as u32);
        let a = numbers.map(|number| number | number.wrapping_mul(40_503) << 16);
        let b = numbers.map(|number| number.wrapping_mul(0x9e37_79b9));
        let of_level = |level| with_simd!(level, s => s.vectorize(Operations { a, b }));
        let expected = of_level(Level::Portable);
        for (name, halves) in [("half", a), ("load_halves", a.map(|word| word >> 16))] {
            let values = halves.map(|word| f16::from_bits(word as u16).to_f32());
            let values =
                values.map(|value| if value.is_nan() { f32::NAN } else { value }.to_bits());
            assert!(expected.contains(&(name, values)), "{name} of {halves:x?}");
        }
        for level in Level::available() {
            assert_eq!(of_level(level), expected, "{level}: {a:x?} and {b:x?}");
        }
    }
}
