//! Partial sums in AVX2 registers. They give the same bits as the portable form; the tests of `dot.rs` compare them.
#![allow(unsafe_code, reason = "vector instructions are detected at run time before they are used")]

use super::{Kernel, LANES, PartialSums};
use crate::plan::WeightFormat;
use crate::platform::has_avx2;
use std::arch::x86_64::*;

/// Runs `kernel` with AVX2, FMA and F16C.
pub(super) fn run_wide(kernel: impl Kernel) {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn run(kernel: impl Kernel) {
        kernel.run::<Avx2>();
    }
    assert!(has_avx2(), "the AVX2 form needs AVX2, FMA and F16C");
    // SAFETY: the processor has AVX2, FMA and F16C, asserted above.
    unsafe { run(kernel) }
}

/// Four registers of four sums. Private to this file, so it exists only inside [`run_wide`].
#[derive(Clone, Copy)]
struct Avx2([__m256d; 4]);

/// Loads sixteen values of an array by value, without pointers, alignment requirements or debug checks.
#[inline(always)]
fn load(values: &[f64; LANES]) -> [__m256d; 4] {
    // SAFETY: both types are 128 bytes in which every bit pattern is valid.
    unsafe { std::mem::transmute(*values) }
}

/// Like [`load`].
#[inline(always)]
fn load_f32(values: &[f32; LANES]) -> [__m256; 2] {
    // SAFETY: both types are 64 bytes in which every bit pattern is valid.
    unsafe { std::mem::transmute(*values) }
}

/// Widens eight f32 values.
#[inline(always)]
fn widen(values: __m256) -> [__m256d; 2] {
    // SAFETY: the processor has AVX2, see `Avx2`.
    unsafe { [_mm256_cvtps_pd(_mm256_castps256_ps128(values)), _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(values))] }
}

/// Decodes sixteen values to f64.
#[inline(always)]
fn load_encoded(format: WeightFormat, bytes: &[u8]) -> [__m256d; 4] {
    const LENGTH: &str = "bytes hold exactly 16 elements";
    let eights: [__m256; 2] = match format {
        WeightFormat::F32 => {
            let bytes: &[u8; 64] = bytes.try_into().expect(LENGTH);
            // SAFETY: both types are 64 bytes in which every bit pattern is valid.
            unsafe { std::mem::transmute::<[u8; 64], [__m256; 2]>(*bytes) }
        }
        WeightFormat::F16 | WeightFormat::Bf16 => {
            let bytes: &[u8; 32] = bytes.try_into().expect(LENGTH);
            // SAFETY: both types are 32 bytes in which every bit pattern is valid.
            let halves = unsafe { std::mem::transmute::<[u8; 32], [__m128i; 2]>(*bytes) };
            let widen = if format == WeightFormat::F16 { widen_f16 } else { widen_bf16 };
            [widen(halves[0]), widen(halves[1])]
        }
        _ => unreachable!("quantized rows are decoded by groups"),
    };
    let ([first, second], [third, fourth]) = (widen(eights[0]), widen(eights[1]));
    [first, second, third, fourth]
}

#[inline(always)]
fn widen_f16(bits: __m128i) -> __m256 {
    // SAFETY: the processor has F16C, see `Avx2`.
    unsafe { _mm256_cvtph_ps(bits) }
}

#[inline(always)]
fn widen_bf16(bits: __m128i) -> __m256 {
    // SAFETY: the processor has AVX2, see `Avx2`.
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits))) }
}

impl Avx2 {
    /// Adds sixteen products.
    #[inline(always)]
    fn add_products(&mut self, a: [__m256d; 4], b: [__m256d; 4]) {
        let Self([s0, s1, s2, s3]) = *self;
        // SAFETY: the processor has FMA, see `Avx2`.
        *self = unsafe {
            Self([
                _mm256_fmadd_pd(a[0], b[0], s0),
                _mm256_fmadd_pd(a[1], b[1], s1),
                _mm256_fmadd_pd(a[2], b[2], s2),
                _mm256_fmadd_pd(a[3], b[3], s3),
            ])
        };
    }
}

impl PartialSums for Avx2 {
    #[inline(always)]
    fn zero() -> Self {
        // SAFETY: the processor has AVX, see `Avx2`.
        Self([unsafe { _mm256_setzero_pd() }; 4])
    }

    #[inline(always)]
    fn add_wide(&mut self, a: &[f64; LANES], b: &[f64; LANES]) {
        self.add_products(load(a), load(b));
    }

    #[inline(always)]
    fn add(&mut self, a: &[f32; LANES], b: &[f32; LANES]) {
        let wide = |values: &[f32; LANES]| {
            let [low, high] = load_f32(values);
            let ([first, second], [third, fourth]) = (widen(low), widen(high));
            [first, second, third, fourth]
        };
        self.add_products(wide(a), wide(b));
    }

    #[inline(always)]
    fn add_encoded(&mut self, format: WeightFormat, bytes: &[u8], x: &[f64; LANES]) {
        self.add_products(load_encoded(format, bytes), load(x));
    }

    #[inline(always)]
    fn decode(format: WeightFormat, bytes: &[u8]) -> [f64; LANES] {
        Self(load_encoded(format, bytes)).lanes()
    }

    #[inline(always)]
    fn lanes(self) -> [f64; LANES] {
        // SAFETY: both types are 128 bytes in which every bit pattern is valid.
        unsafe { std::mem::transmute(self.0) }
    }
}
