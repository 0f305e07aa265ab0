//! Four registers of a browser's SIMD128.
#![allow(unsafe_code, reason = "vectors are loaded from and stored to arrays")]

use super::{Kernel, LANES, Lanes, Simd, Words};
use std::arch::wasm32::*;

/// Every browser that runs this module has SIMD128: it would refuse a module with instructions that it does not know.
#[derive(Clone, Copy)]
pub(in crate::backend::cpu) struct Simd128;

/// Runs intrinsics.
macro_rules! simd128 {
    ($intrinsics:expr) => {{
        // SAFETY: the module runs, so its instructions exist; arrays are read and written whole.
        #[allow(unused_unsafe, reason = "most are safe with the feature")]
        unsafe {
            $intrinsics
        }
    }};
}

/// Applies an expression to all four registers.
macro_rules! each {
    (|$($v:ident),+| $intrinsics:expr) => {
        [
            { $(let $v = $v[0];)+ simd128!($intrinsics) },
            { $(let $v = $v[1];)+ simd128!($intrinsics) },
            { $(let $v = $v[2];)+ simd128!($intrinsics) },
            { $(let $v = $v[3];)+ simd128!($intrinsics) },
        ]
    };
}

type Registers = [v128; 4];

impl Simd for Simd128 {
    type F = Registers;
    type I = Registers;
    // A browser maps its locals to sixteen registers of four lanes on x86-64, and to 32 on ARM.
    const ACCUMULATORS: usize = 2;

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "simd128")]
        fn run<K: Kernel>(s: Simd128, kernel: K) -> K::Output {
            kernel.run(s)
        }
        simd128!(run(self, kernel))
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Registers {
        [simd128!(f32x4_splat(value)); 4]
    }
    #[inline(always)]
    fn load(self, from: &Lanes) -> Registers {
        let from = from.as_chunks::<4>().0;
        each!(|from| v128_load(from.as_ptr().cast()))
    }
    #[inline(always)]
    fn store(self, value: Registers, to: &mut Lanes) {
        for (part, to) in value.into_iter().zip(to.as_chunks_mut::<4>().0) {
            simd128!(v128_store(to.as_mut_ptr().cast(), part));
        }
    }
    #[inline(always)]
    fn add(self, a: Registers, b: Registers) -> Registers {
        each!(|a, b| f32x4_add(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Registers, b: Registers) -> Registers {
        each!(|a, b| f32x4_sub(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Registers, b: Registers) -> Registers {
        each!(|a, b| f32x4_mul(a, b))
    }
    #[inline(always)]
    fn div(self, a: Registers, b: Registers) -> Registers {
        each!(|a, b| f32x4_div(a, b))
    }
    #[inline(always)]
    fn min(self, a: Registers, b: Registers) -> Registers {
        // b < a ? b : a with exchanged operands: a < b ? a : b.
        each!(|a, b| f32x4_pmin(b, a))
    }
    #[inline(always)]
    fn max(self, a: Registers, b: Registers) -> Registers {
        each!(|a, b| f32x4_pmax(b, a))
    }
    #[inline(always)]
    fn mul_add(self, a: Registers, b: Registers, c: Registers) -> Registers {
        // The fused instruction is in "relaxed" SIMD, which not every browser has.
        each!(|a, b, c| f32x4_add(f32x4_mul(a, b), c))
    }
    #[inline(always)]
    fn if_less(self, a: Registers, b: Registers, yes: Registers, no: Registers) -> Registers {
        each!(|a, b, yes, no| v128_bitselect(yes, no, f32x4_lt(a, b)))
    }
    #[inline(always)]
    fn splat_word(self, word: u32) -> Registers {
        [simd128!(u32x4_splat(word)); 4]
    }
    #[inline(always)]
    fn load_words(self, from: &Words) -> Registers {
        let from = from.as_chunks::<4>().0;
        each!(|from| v128_load(from.as_ptr().cast()))
    }
    #[inline(always)]
    fn add_words(self, a: Registers, b: Registers) -> Registers {
        each!(|a, b| u32x4_add(a, b))
    }
    #[inline(always)]
    fn and(self, a: Registers, b: Registers) -> Registers {
        each!(|a, b| v128_and(a, b))
    }
    #[inline(always)]
    fn or(self, a: Registers, b: Registers) -> Registers {
        each!(|a, b| v128_or(a, b))
    }
    #[inline(always)]
    fn shl(self, a: Registers, by: u32) -> Registers {
        each!(|a| u32x4_shl(a, by))
    }
    #[inline(always)]
    fn shr(self, a: Registers, by: u32) -> Registers {
        each!(|a| u32x4_shr(a, by))
    }
    #[inline(always)]
    fn sar(self, a: Registers, by: u32) -> Registers {
        each!(|a| i32x4_shr(a, by))
    }
    #[inline(always)]
    fn to_float(self, a: Registers) -> Registers {
        each!(|a| f32x4_convert_i32x4(a))
    }
    #[inline(always)]
    fn to_int(self, a: Registers) -> Registers {
        each!(|a| i32x4_trunc_sat_f32x4(f32x4_nearest(a)))
    }
    #[inline(always)]
    fn float_from_bits(self, a: Registers) -> Registers {
        a
    }
    #[inline(always)]
    fn float_to_bits(self, a: Registers) -> Registers {
        a
    }
    #[inline(always)]
    fn load_halves(self, from: &[u16; LANES]) -> Registers {
        let from = from.as_chunks::<4>().0;
        self.half(each!(|from| u32x4_load_extend_u16x4(from.as_ptr())))
    }
    #[inline(always)]
    fn load_bytes(self, from: &[i8; LANES]) -> Registers {
        let bytes = simd128!(v128_load(from.as_ptr().cast()));
        let halves = simd128!([
            i16x8_extend_low_i8x16(bytes),
            i16x8_extend_high_i8x16(bytes)
        ]);
        let [low, high] = halves;
        let parts = simd128!([
            i32x4_extend_low_i16x8(low),
            i32x4_extend_high_i16x8(low),
            i32x4_extend_low_i16x8(high),
            i32x4_extend_high_i16x8(high),
        ]);
        each!(|parts| f32x4_convert_i32x4(parts))
    }
    #[inline(always)]
    fn select(self, a: Registers, table: &Lanes) -> Registers {
        // The instruction looks up bytes in one register; a word outside of it gives zero. So each quarter of the table
        // gives its entries to the lanes that select one of them: bytes 4n to 4n + 3 for entry n.
        let quarters = self.load(table);
        let (mask, each_byte, places) = (
            self.splat_word(15),
            self.splat_word(0x0404_0404),
            self.splat_word(0x0302_0100),
        );
        let entries = self.and(a, mask);
        let at =
            each!(|entries, each_byte, places| u32x4_add(u32x4_mul(entries, each_byte), places));
        let first = simd128!(u8x16_splat(16));
        let mut out = self.splat_word(0);
        let mut place = at;
        for quarter in quarters {
            let found = each!(|place| i8x16_swizzle(quarter, place));
            out = self.or(out, found);
            // Bytes below 0 wrap around to far above 15.
            place = each!(|place| u8x16_sub(place, first));
        }
        out
    }
}
