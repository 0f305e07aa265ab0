//! Four NEON registers.
#![allow(unsafe_code, reason = "vector instructions are detected at run time before they are used")]

use super::{Kernel, LANES, Lanes, Level, Simd, Words};
use std::arch::aarch64::*;

/// The processor has NEON.
#[derive(Clone, Copy)]
pub(in crate::backend::cpu) struct Neon(());

impl Neon {
    /// Panics unless the processor has the instructions.
    pub(in crate::backend::cpu) fn new() -> Self {
        debug_assert!(Level::available().contains(&Level::Neon), "the level was detected");
        Self(())
    }
}

/// Runs intrinsics.
macro_rules! neon {
    ($intrinsics:expr) => {{
        // SAFETY: a `Neon` exists only where the processor has these instructions; arrays are read and written whole.
        unsafe { $intrinsics }
    }};
}

/// Applies an expression to all four registers.
macro_rules! each {
    (|$($v:ident),+| $intrinsics:expr) => {
        [
            { $(let $v = $v[0];)+ neon!($intrinsics) },
            { $(let $v = $v[1];)+ neon!($intrinsics) },
            { $(let $v = $v[2];)+ neon!($intrinsics) },
            { $(let $v = $v[3];)+ neon!($intrinsics) },
        ]
    };
}

type F = [float32x4_t; 4];
type I = [uint32x4_t; 4];

impl Simd for Neon {
    type F = F;
    type I = I;
    // Of 32 registers of four lanes.
    const ACCUMULATORS: usize = 6;

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "neon")]
        fn run<K: Kernel>(s: Neon, kernel: K) -> K::Output {
            kernel.run(s)
        }
        neon!(run(self, kernel))
    }

    #[inline(always)]
    fn splat(self, value: f32) -> F {
        [neon!(vdupq_n_f32(value)); 4]
    }
    #[inline(always)]
    fn load(self, from: &Lanes) -> F {
        let part = |at: usize| neon!(vld1q_f32(from[at..at + 4].as_ptr()));
        [part(0), part(4), part(8), part(12)]
    }
    #[inline(always)]
    fn store(self, value: F, to: &mut Lanes) {
        for (part, to) in value.into_iter().zip(to.as_chunks_mut::<4>().0) {
            neon!(vst1q_f32(to.as_mut_ptr(), part));
        }
    }
    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        each!(|a, b| vaddq_f32(a, b))
    }
    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        each!(|a, b| vsubq_f32(a, b))
    }
    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        each!(|a, b| vmulq_f32(a, b))
    }
    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        each!(|a, b| vdivq_f32(a, b))
    }
    #[inline(always)]
    fn min(self, a: F, b: F) -> F {
        each!(|a, b| vbslq_f32(vcltq_f32(a, b), a, b))
    }
    #[inline(always)]
    fn max(self, a: F, b: F) -> F {
        each!(|a, b| vbslq_f32(vcgtq_f32(a, b), a, b))
    }
    #[inline(always)]
    fn mul_add(self, a: F, b: F, c: F) -> F {
        each!(|a, b, c| vfmaq_f32(c, a, b))
    }
    #[inline(always)]
    fn if_less(self, a: F, b: F, yes: F, no: F) -> F {
        each!(|a, b, yes, no| vbslq_f32(vcltq_f32(a, b), yes, no))
    }
    #[inline(always)]
    fn splat_word(self, word: u32) -> I {
        [neon!(vdupq_n_u32(word)); 4]
    }
    #[inline(always)]
    fn load_words(self, from: &Words) -> I {
        let part = |at: usize| neon!(vld1q_u32(from[at..at + 4].as_ptr()));
        [part(0), part(4), part(8), part(12)]
    }
    #[inline(always)]
    fn add_words(self, a: I, b: I) -> I {
        each!(|a, b| vaddq_u32(a, b))
    }
    #[inline(always)]
    fn and(self, a: I, b: I) -> I {
        each!(|a, b| vandq_u32(a, b))
    }
    #[inline(always)]
    fn or(self, a: I, b: I) -> I {
        each!(|a, b| vorrq_u32(a, b))
    }
    #[inline(always)]
    fn shl(self, a: I, by: u32) -> I {
        let by = neon!(vdupq_n_s32(by.cast_signed()));
        each!(|a| vshlq_u32(a, by))
    }
    #[inline(always)]
    fn shr(self, a: I, by: u32) -> I {
        let by = neon!(vdupq_n_s32(-by.cast_signed()));
        each!(|a| vshlq_u32(a, by))
    }
    #[inline(always)]
    fn sar(self, a: I, by: u32) -> I {
        let by = neon!(vdupq_n_s32(-by.cast_signed()));
        each!(|a| vreinterpretq_u32_s32(vshlq_s32(vreinterpretq_s32_u32(a), by)))
    }
    #[inline(always)]
    fn to_float(self, a: I) -> F {
        each!(|a| vcvtq_f32_s32(vreinterpretq_s32_u32(a)))
    }
    #[inline(always)]
    fn to_int(self, a: F) -> I {
        each!(|a| vreinterpretq_u32_s32(vcvtnq_s32_f32(a)))
    }
    #[inline(always)]
    fn float_from_bits(self, a: I) -> F {
        each!(|a| vreinterpretq_f32_u32(a))
    }
    #[inline(always)]
    fn float_to_bits(self, a: F) -> I {
        each!(|a| vreinterpretq_u32_f32(a))
    }
    #[inline(always)]
    fn load_bytes(self, from: &[i8; LANES]) -> F {
        let bytes = neon!(vld1q_s8(from.as_ptr()));
        let (low, high) = (neon!(vmovl_s8(vget_low_s8(bytes))), neon!(vmovl_high_s8(bytes)));
        let widen = |half: int16x8_t| {
            let words = [neon!(vmovl_s16(vget_low_s16(half))), neon!(vmovl_high_s16(half))];
            words.map(|part| neon!(vcvtq_f32_s32(part)))
        };
        let ([a, b], [c, d]) = (widen(low), widen(high));
        [a, b, c, d]
    }
    #[inline(always)]
    fn select(self, a: I, table: &Lanes) -> F {
        let mut words = [0; LANES];
        for (part, words) in a.into_iter().zip(words.as_chunks_mut::<4>().0) {
            neon!(vst1q_u32(words.as_mut_ptr(), part));
        }
        self.load(&words.map(|word| table[(word & 15) as usize]))
    }
}
