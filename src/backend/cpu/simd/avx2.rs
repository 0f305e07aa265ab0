//! Two AVX2 registers.
#![allow(
    unsafe_code,
    reason = "vector instructions are detected at run time before they are used"
)]

use super::{Kernel, LANES, Lanes, Level, Simd, Words};
use std::arch::x86_64::*;

/// The processor has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(in crate::backend::cpu) struct Avx2(());

impl Avx2 {
    /// Panics unless the processor has the instructions.
    pub(in crate::backend::cpu) fn new() -> Self {
        debug_assert!(Level::Avx2.is_available(), "the level was detected");
        Self(())
    }
}

/// Runs intrinsics.
macro_rules! avx2 {
    ($intrinsics:expr) => {{
        // SAFETY: an `Avx2` exists only where the processor has these instructions; arrays are read and written whole,
        // at any alignment.
        unsafe { $intrinsics }
    }};
}

/// Applies an expression to both registers.
macro_rules! both {
    (|$($v:ident),+| $intrinsics:expr) => {
        [{ $(let $v = $v[0];)+ avx2!($intrinsics) }, { $(let $v = $v[1];)+ avx2!($intrinsics) }]
    };
}

type F = [__m256; 2];
type I = [__m256i; 2];

impl Simd for Avx2 {
    type F = F;
    type I = I;
    const ACCUMULATORS: usize = 6;

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn run<K: Kernel>(s: Avx2, kernel: K) -> K::Output {
            kernel.run(s)
        }
        avx2!(run(self, kernel))
    }

    #[inline(always)]
    fn prefetch(self, line: &Words, ahead: usize) {
        avx2!(_mm_prefetch::<_MM_HINT_T0>(
            line.as_ptr().wrapping_add(LANES * ahead).cast()
        ));
    }
    #[inline(always)]
    fn splat(self, value: f32) -> F {
        [avx2!(_mm256_set1_ps(value)); 2]
    }
    #[inline(always)]
    fn load(self, from: &Lanes) -> F {
        [
            avx2!(_mm256_loadu_ps(from.as_ptr())),
            avx2!(_mm256_loadu_ps(from[8..].as_ptr())),
        ]
    }
    #[inline(always)]
    fn store(self, value: F, to: &mut Lanes) {
        avx2!(_mm256_storeu_ps(to.as_mut_ptr(), value[0]));
        avx2!(_mm256_storeu_ps(to[8..].as_mut_ptr(), value[1]));
    }
    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        both!(|a, b| _mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        both!(|a, b| _mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        both!(|a, b| _mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        both!(|a, b| _mm256_div_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: F, b: F) -> F {
        both!(|a, b| _mm256_min_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: F, b: F) -> F {
        both!(|a, b| _mm256_max_ps(a, b))
    }
    #[inline(always)]
    fn mul_add(self, a: F, b: F, c: F) -> F {
        both!(|a, b, c| _mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn if_less(self, a: F, b: F, yes: F, no: F) -> F {
        both!(|a, b, yes, no| _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)))
    }
    #[inline(always)]
    fn splat_word(self, word: u32) -> I {
        [avx2!(_mm256_set1_epi32(word.cast_signed())); 2]
    }
    #[inline(always)]
    fn load_words(self, from: &Words) -> I {
        let half = |from: &[u32]| avx2!(_mm256_loadu_si256(from[..8].as_ptr().cast()));
        [half(from), half(&from[8..])]
    }
    #[inline(always)]
    fn add_words(self, a: I, b: I) -> I {
        both!(|a, b| _mm256_add_epi32(a, b))
    }
    #[inline(always)]
    fn and(self, a: I, b: I) -> I {
        both!(|a, b| _mm256_and_si256(a, b))
    }
    #[inline(always)]
    fn or(self, a: I, b: I) -> I {
        both!(|a, b| _mm256_or_si256(a, b))
    }
    #[inline(always)]
    fn shl(self, a: I, by: u32) -> I {
        both!(|a| _mm256_sll_epi32(a, _mm_cvtsi32_si128(by.cast_signed())))
    }
    #[inline(always)]
    fn shr(self, a: I, by: u32) -> I {
        both!(|a| _mm256_srl_epi32(a, _mm_cvtsi32_si128(by.cast_signed())))
    }
    #[inline(always)]
    fn sar(self, a: I, by: u32) -> I {
        both!(|a| _mm256_sra_epi32(a, _mm_cvtsi32_si128(by.cast_signed())))
    }
    #[inline(always)]
    fn to_float(self, a: I) -> F {
        both!(|a| _mm256_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn to_int(self, a: F) -> I {
        both!(|a| _mm256_cvtps_epi32(a))
    }
    #[inline(always)]
    fn float_from_bits(self, a: I) -> F {
        both!(|a| _mm256_castsi256_ps(a))
    }
    #[inline(always)]
    fn float_to_bits(self, a: F) -> I {
        both!(|a| _mm256_castps_si256(a))
    }
    #[inline(always)]
    fn load_halves(self, from: &[u16; LANES]) -> F {
        let half =
            |from: &[u16]| avx2!(_mm256_cvtph_ps(_mm_loadu_si128(from[..8].as_ptr().cast())));
        [half(from), half(&from[8..])]
    }
    #[inline(always)]
    fn load_bytes(self, from: &[i8; LANES]) -> F {
        let widen = |from: &[i8]| {
            avx2!(_mm256_cvtepi8_epi32(_mm_loadl_epi64(
                from[..8].as_ptr().cast()
            )))
        };
        self.to_float([widen(from), widen(&from[8..])])
    }
    #[inline(always)]
    fn select(self, a: I, table: &Lanes) -> F {
        let tables = self.load(table);
        // The three low bits select from each half of the table, the fourth one decides between them.
        both!(|a| _mm256_blendv_ps(
            _mm256_permutevar8x32_ps(tables[0], a),
            _mm256_permutevar8x32_ps(tables[1], a),
            _mm256_castsi256_ps(_mm256_slli_epi32::<28>(a))
        ))
    }
}
