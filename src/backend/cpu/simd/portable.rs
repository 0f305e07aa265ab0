//! Arrays, which the compiler vectorizes for the target's baseline: SSE2, NEON, or nothing.

use super::{Kernel, LANES, Lanes, Simd, Words};

/// The baseline of the architecture.
#[derive(Clone, Copy)]
pub(in crate::backend::cpu) struct Portable;

#[inline(always)]
fn zip<T: Copy, R: Copy + Default>(
    a: [T; LANES],
    b: [T; LANES],
    f: impl Fn(T, T) -> R,
) -> [R; LANES] {
    let mut out = [R::default(); LANES];
    for lane in 0..LANES {
        out[lane] = f(a[lane], b[lane]);
    }
    out
}

impl Simd for Portable {
    type F = Lanes;
    type I = Words;
    // Sixteen registers of four lanes.
    const ACCUMULATORS: usize = 2;
    // Operations on arrays are many instructions: the loops would be a sixth of the library.
    const DOTS: bool = false;

    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Lanes {
        [value; LANES]
    }
    #[inline(always)]
    fn load(self, from: &Lanes) -> Lanes {
        *from
    }
    #[inline(always)]
    fn store(self, value: Lanes, to: &mut Lanes) {
        *to = value;
    }
    #[inline(always)]
    fn add(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn min(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn max(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn mul_add(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        // Without the instruction, a fused form would be a function call per lane.
        self.add(self.mul(a, b), c)
    }
    #[inline(always)]
    fn if_less(self, a: Lanes, b: Lanes, yes: Lanes, no: Lanes) -> Lanes {
        let mut out = no;
        for lane in 0..LANES {
            out[lane] = if a[lane] < b[lane] {
                yes[lane]
            } else {
                no[lane]
            };
        }
        out
    }
    #[inline(always)]
    fn splat_word(self, word: u32) -> Words {
        [word; LANES]
    }
    #[inline(always)]
    fn load_words(self, from: &Words) -> Words {
        *from
    }
    #[inline(always)]
    fn add_words(self, a: Words, b: Words) -> Words {
        zip(a, b, u32::wrapping_add)
    }
    #[inline(always)]
    fn and(self, a: Words, b: Words) -> Words {
        zip(a, b, |a, b| a & b)
    }
    #[inline(always)]
    fn or(self, a: Words, b: Words) -> Words {
        zip(a, b, |a, b| a | b)
    }
    #[inline(always)]
    fn shl(self, a: Words, by: u32) -> Words {
        a.map(|a| a << by)
    }
    #[inline(always)]
    fn shr(self, a: Words, by: u32) -> Words {
        a.map(|a| a >> by)
    }
    #[inline(always)]
    fn sar(self, a: Words, by: u32) -> Words {
        a.map(|a| (a.cast_signed() >> by).cast_unsigned())
    }
    #[inline(always)]
    fn to_float(self, a: Words) -> Lanes {
        a.map(|a| a.cast_signed() as f32)
    }
    #[inline(always)]
    fn to_int(self, a: Lanes) -> Words {
        // Adding 1.5 · 2²³ rounds to an integer, which is then in the low bits of the mantissa.
        let shifted = a.map(|a| a + 12_582_912.0);
        shifted.map(|a| a.to_bits().wrapping_sub(0x4b40_0000))
    }
    #[inline(always)]
    fn float_from_bits(self, a: Words) -> Lanes {
        a.map(f32::from_bits)
    }
    #[inline(always)]
    fn float_to_bits(self, a: Lanes) -> Words {
        a.map(f32::to_bits)
    }
    #[inline(always)]
    fn select(self, a: Words, table: &Lanes) -> Lanes {
        a.map(|a| table[(a & 15) as usize])
    }
}
