//! One AVX-512 register.
#![allow(
    unsafe_code,
    reason = "vector instructions are detected at run time before they are used"
)]

use super::{Kernel, LANES, Lanes, Level, Simd, Words};
use std::arch::x86_64::*;

/// The processor has AVX-512 F, BW, DQ and VL, AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(in crate::backend::cpu) struct Avx512(());

impl Avx512 {
    /// Panics unless the processor has the instructions.
    pub(in crate::backend::cpu) fn new() -> Self {
        debug_assert!(Level::Avx512.is_available(), "the level was detected");
        Self(())
    }
}

/// Runs intrinsics.
macro_rules! avx512 {
    ($intrinsics:expr) => {{
        // SAFETY: an `Avx512` exists only where the processor has these instructions; arrays are read and written
        // whole, at any alignment.
        unsafe { $intrinsics }
    }};
}

impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    const ACCUMULATORS: usize = 24;

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        fn run<K: Kernel>(s: Avx512, kernel: K) -> K::Output {
            kernel.run(s)
        }
        avx512!(run(self, kernel))
    }

    #[inline(always)]
    fn prefetch(self, line: &Words, ahead: usize) {
        avx512!(_mm_prefetch::<_MM_HINT_T0>(
            line.as_ptr().wrapping_add(LANES * ahead).cast()
        ));
    }
    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        avx512!(_mm512_set1_ps(value))
    }
    #[inline(always)]
    fn load(self, from: &Lanes) -> __m512 {
        avx512!(_mm512_loadu_ps(from.as_ptr()))
    }
    #[inline(always)]
    fn store(self, value: __m512, to: &mut Lanes) {
        avx512!(_mm512_storeu_ps(to.as_mut_ptr(), value));
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        avx512!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        avx512!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        avx512!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        avx512!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        avx512!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        avx512!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        avx512!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn if_less(self, a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 {
        avx512!(_mm512_mask_blend_ps(
            _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b),
            no,
            yes
        ))
    }
    #[inline(always)]
    fn splat_word(self, word: u32) -> __m512i {
        avx512!(_mm512_set1_epi32(word.cast_signed()))
    }
    #[inline(always)]
    fn load_words(self, from: &Words) -> __m512i {
        avx512!(_mm512_loadu_si512(from.as_ptr().cast()))
    }
    #[inline(always)]
    fn add_words(self, a: __m512i, b: __m512i) -> __m512i {
        avx512!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        avx512!(_mm512_and_si512(a, b))
    }
    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        avx512!(_mm512_or_si512(a, b))
    }
    #[inline(always)]
    fn shl(self, a: __m512i, by: u32) -> __m512i {
        avx512!(_mm512_sll_epi32(a, _mm_cvtsi32_si128(by.cast_signed())))
    }
    #[inline(always)]
    fn shr(self, a: __m512i, by: u32) -> __m512i {
        avx512!(_mm512_srl_epi32(a, _mm_cvtsi32_si128(by.cast_signed())))
    }
    #[inline(always)]
    fn sar(self, a: __m512i, by: u32) -> __m512i {
        avx512!(_mm512_sra_epi32(a, _mm_cvtsi32_si128(by.cast_signed())))
    }
    #[inline(always)]
    fn to_float(self, a: __m512i) -> __m512 {
        avx512!(_mm512_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn to_int(self, a: __m512) -> __m512i {
        avx512!(_mm512_cvtps_epi32(a))
    }
    #[inline(always)]
    fn float_from_bits(self, a: __m512i) -> __m512 {
        avx512!(_mm512_castsi512_ps(a))
    }
    #[inline(always)]
    fn float_to_bits(self, a: __m512) -> __m512i {
        avx512!(_mm512_castps_si512(a))
    }
    #[inline(always)]
    fn half(self, a: __m512i) -> __m512 {
        avx512!(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)))
    }
    #[inline(always)]
    fn load_halves(self, from: &[u16; LANES]) -> __m512 {
        avx512!(_mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())))
    }
    #[inline(always)]
    fn load_bytes(self, from: &[i8; LANES]) -> __m512 {
        avx512!(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(
            from.as_ptr().cast()
        ))))
    }
    #[inline(always)]
    fn nibble(self, a: __m512i) -> __m512 {
        // A look-up ignores the upper bits, so it is mask and conversion in one.
        const NUMBERS: Lanes = [
            0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
        ];
        self.select(a, &NUMBERS)
    }
    #[inline(always)]
    fn select(self, a: __m512i, table: &Lanes) -> __m512 {
        avx512!(_mm512_permutexvar_ps(a, _mm512_loadu_ps(table.as_ptr())))
    }
    #[inline(always)]
    fn sum(self, a: __m512) -> f32 {
        avx512!(_mm512_reduce_add_ps(a))
    }
    #[inline(always)]
    fn largest(self, a: __m512) -> f32 {
        avx512!(_mm512_reduce_max_ps(a))
    }
}
