//! Vectors of sixteen f32 lanes, whatever the processor's registers are.
//!
//! Kernels are written once, over [`Simd`]: one AVX-512 register, two of AVX2, four of NEON or of a browser's SIMD128,
//! or an array that the compiler vectorizes for the target's baseline. A value of a `Simd` type is the proof that the
//! processor has its instructions, so its methods are safe. Inner loops are [`Kernel`]s: [`Simd::vectorize`] compiles
//! each with the instruction set of the `Simd` that it runs on, which is why everything that a kernel calls is
//! `#[inline(always)]`.

#![cfg_attr(fuzzing, allow(dead_code, unused_imports, reason = "see `with_simd`"))]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod math;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "wasm32")]
mod simd128;

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(super) use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub(super) use neon::Neon;
pub(super) use portable::Portable;
#[cfg(target_arch = "wasm32")]
pub(super) use simd128::Simd128;

use std::fmt;
use std::str::FromStr;

/// Lanes of a vector.
pub(super) const LANES: usize = 16;
/// The lanes of a float vector in memory.
pub(super) type Lanes = [f32; LANES];
/// The lanes of a word vector in memory.
pub(super) type Words = [u32; LANES];

/// An inner loop, compiled for each instruction set.
pub(super) trait Kernel {
    /// Result of the loop.
    type Output;

    /// Runs the loop. Implementations are `#[inline(always)]`.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// An instruction set, as operations on vectors of sixteen lanes.
pub(super) trait Simd: Copy + Send + Sync {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen words.
    type I: Copy;
    /// Number of accumulators that fit the registers, beside the operands of a multiply-add.
    const ACCUMULATORS: usize;
    /// Whether a few rows are multiplied as weights are decoded: a loop per format and number of rows, each of which
    /// takes time to compile and room in the program.
    const DOTS: bool = true;

    /// Runs a kernel that is compiled with this instruction set.
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output;

    /// Starts to fetch the line that is `ahead` lines after this one into the caches, if there is one and the processor
    /// can.
    #[inline(always)]
    fn prefetch(self, _line: &Words, _ahead: usize) {}

    /// The same value in all lanes.
    fn splat(self, value: f32) -> Self::F;
    /// Loads sixteen floats.
    fn load(self, from: &Lanes) -> Self::F;
    /// Stores sixteen floats.
    fn store(self, value: Self::F, to: &mut Lanes);
    /// a + b
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// a − b
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// a · b
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// a / b
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// The smaller of both; the second one if the first is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// The larger of both; the second one if the first is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// a · b + c, fused where the processor can.
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `yes` where a < b, elsewhere `no`.
    fn if_less(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F;

    /// The same word in all lanes.
    fn splat_word(self, word: u32) -> Self::I;
    /// Loads sixteen words.
    fn load_words(self, from: &Words) -> Self::I;
    /// Wrapping sum.
    fn add_words(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise and.
    fn and(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise or.
    fn or(self, a: Self::I, b: Self::I) -> Self::I;
    /// Shift to the left.
    fn shl(self, a: Self::I, by: u32) -> Self::I;
    /// Shift to the right, filled with zeros.
    fn shr(self, a: Self::I, by: u32) -> Self::I;
    /// Shift to the right, filled with the sign.
    fn sar(self, a: Self::I, by: u32) -> Self::I;

    /// Signed integers as floats.
    fn to_float(self, a: Self::I) -> Self::F;
    /// Floats rounded to the nearest signed integer, ties to even.
    fn to_int(self, a: Self::F) -> Self::I;
    /// Reinterprets words as floats.
    fn float_from_bits(self, a: Self::I) -> Self::F;
    /// Reinterprets floats as words.
    fn float_to_bits(self, a: Self::F) -> Self::I;

    /// The low halves of the words, half-precision floats, widened.
    #[inline(always)]
    fn half(self, a: Self::I) -> Self::F {
        math::half(self, a)
    }

    /// Widens sixteen half-precision floats.
    #[inline(always)]
    fn load_halves(self, from: &[u16; LANES]) -> Self::F {
        self.half(self.load_words(&from.map(u32::from)))
    }

    /// Widens sixteen signed bytes.
    #[inline(always)]
    fn load_bytes(self, from: &[i8; LANES]) -> Self::F {
        self.load(&from.map(f32::from))
    }

    /// The low four bits of each word, as a number.
    #[inline(always)]
    fn nibble(self, a: Self::I) -> Self::F {
        self.to_float(self.and(a, self.splat_word(15)))
    }

    /// The entry of `table` that the low four bits of each word select.
    fn select(self, a: Self::I, table: &Lanes) -> Self::F;

    /// Sum of the lanes.
    #[inline(always)]
    fn sum(self, a: Self::F) -> f32 {
        math::fold(self, a, |a, b| a + b)
    }

    /// The largest lane.
    #[inline(always)]
    fn largest(self, a: Self::F) -> f32 {
        math::fold(self, a, f32::max)
    }

    /// eˣ; 0 below −87.3, where the result would be subnormal, and never infinite.
    #[inline(always)]
    fn exp(self, x: Self::F) -> Self::F {
        math::exp(self, x)
    }

    /// The hyperbolic tangent.
    #[inline(always)]
    fn tanh(self, x: Self::F) -> Self::F {
        math::tanh(self, x)
    }
}

/// An instruction set that kernels can be compiled for on this architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What every processor of the architecture has.
    Portable,
    /// NEON with fused multiply-add.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// SIMD128, without the relaxed instructions.
    #[cfg(target_arch = "wasm32")]
    Simd128,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// The instruction sets that this processor has, best last.
    pub fn available() -> Vec<Self> {
        let all = [
            Self::Portable,
            #[cfg(target_arch = "aarch64")]
            Self::Neon,
            #[cfg(target_arch = "wasm32")]
            Self::Simd128,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512,
        ];
        all.into_iter()
            .filter(|level| level.is_available())
            .collect()
    }

    fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        use std::arch::is_x86_feature_detected as has;
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            // The module would not run without it.
            #[cfg(target_arch = "wasm32")]
            Self::Simd128 => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => has!("avx2") && has!("fma") && has!("f16c"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                let own =
                    has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
                own && Self::Avx2.is_available()
            }
        }
    }
}

/// As in `FOLIO_CPU_SIMD`.
impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Portable => "portable",
            #[cfg(target_arch = "aarch64")]
            Self::Neon => "neon",
            #[cfg(target_arch = "wasm32")]
            Self::Simd128 => "simd128",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
        })
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let levels = Self::available();
        let names: Vec<_> = levels.iter().map(Self::to_string).collect();
        let found = levels.into_iter().find(|level| level.to_string() == text);
        found.ok_or_else(|| format!("this processor has {}, not `{text}`", names.join(", ")))
    }
}

/// Evaluates `$body` with `$s` bound to the [`Simd`] of a [`Level`], which must be an available one.
#[cfg(not(fuzzing))]
macro_rules! with_simd {
    ($level:expr, $s:ident => $body:expr) => {
        match $level {
            $crate::backend::cpu::simd::Level::Portable => {
                let $s = $crate::backend::cpu::simd::Portable;
                $body
            }
            #[cfg(target_arch = "aarch64")]
            $crate::backend::cpu::simd::Level::Neon => {
                let $s = $crate::backend::cpu::simd::Neon::new();
                $body
            }
            #[cfg(target_arch = "wasm32")]
            $crate::backend::cpu::simd::Level::Simd128 => {
                let $s = $crate::backend::cpu::simd::Simd128;
                $body
            }
            #[cfg(target_arch = "x86_64")]
            $crate::backend::cpu::simd::Level::Avx2 => {
                let $s = $crate::backend::cpu::simd::Avx2::new();
                $body
            }
            #[cfg(target_arch = "x86_64")]
            $crate::backend::cpu::simd::Level::Avx512 => {
                let $s = $crate::backend::cpu::simd::Avx512::new();
                $body
            }
        }
    };
}
/// Fuzzing only parses files: its build leaves out the loops for other instruction sets, a third of the crate's code.
#[cfg(fuzzing)]
macro_rules! with_simd {
    ($level:expr, $s:ident => $body:expr) => {{
        _ = $level;
        let $s = $crate::backend::cpu::simd::Portable;
        $body
    }};
}
pub(super) use with_simd;

#[cfg(test)]
mod tests;
