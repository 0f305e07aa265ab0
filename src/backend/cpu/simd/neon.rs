//! Four NEON registers.
#![allow(
    unsafe_code,
    reason = "vector instructions are detected at run time before they are used"
)]

use super::{Kernel, LANES, Lanes, Level, Simd, Words};
use std::arch::aarch64::*;
use std::arch::asm;

/// The processor has NEON.
#[derive(Clone, Copy)]
pub(in crate::backend::cpu) struct Neon(());

impl Neon {
    /// Panics unless the processor has the instructions.
    pub(in crate::backend::cpu) fn new() -> Self {
        debug_assert!(Level::Neon.is_available(), "the level was detected");
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

/// Widens four half-precision floats. The intrinsic is newer than the oldest compiler that is supported.
#[inline(always)]
fn widen(halves: uint16x4_t) -> float32x4_t {
    let floats;
    // SAFETY: every processor with NEON has the instruction; it reads and writes registers only.
    unsafe {
        asm!(
            "fcvtl {0:v}.4s, {1:v}.4h",
            out(vreg) floats,
            in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    floats
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
        let from = from.as_chunks::<4>().0;
        each!(|from| vld1q_f32(from.as_ptr()))
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
        let from = from.as_chunks::<4>().0;
        each!(|from| vld1q_u32(from.as_ptr()))
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
    fn half(self, a: I) -> F {
        each!(|a| widen(vmovn_u32(a)))
    }
    #[inline(always)]
    fn load_halves(self, from: &[u16; LANES]) -> F {
        let from = from.as_chunks::<4>().0;
        each!(|from| widen(vld1_u16(from.as_ptr())))
    }
    #[inline(always)]
    fn load_bytes(self, from: &[i8; LANES]) -> F {
        let bytes = neon!(vld1q_s8(from.as_ptr()));
        let halves = neon!([vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes)]);
        let [low, high] = halves;
        let parts = neon!([
            vmovl_s16(vget_low_s16(low)),
            vmovl_high_s16(low),
            vmovl_s16(vget_low_s16(high)),
            vmovl_high_s16(high),
        ]);
        each!(|parts| vcvtq_f32_s32(parts))
    }
    #[inline(always)]
    fn select(self, a: I, table: &Lanes) -> F {
        // The instruction looks up bytes: of entry n, those from 4n to 4n + 3.
        let [b, c, d, e] = self.load_words(&table.map(f32::to_bits));
        let bytes = neon!(uint8x16x4_t(
            vreinterpretq_u8_u32(b),
            vreinterpretq_u8_u32(c),
            vreinterpretq_u8_u32(d),
            vreinterpretq_u8_u32(e),
        ));
        let (mask, each_byte) = (self.splat_word(15), self.splat_word(0x0404_0404));
        let places = self.splat_word(0x0302_0100);
        let entries = self.and(a, mask);
        let at = each!(|entries, each_byte, places| vmlaq_u32(places, entries, each_byte));
        each!(|at| vreinterpretq_f32_u8(vqtbl4q_u8(bytes, vreinterpretq_u8_u32(at))))
    }
}
