//! Dot products and row decoding: the inner loops that the steps share.
//!
//! A dot product is 16 interleaved f64 partial sums, element `i` going to sum `i mod 16`, added in order at the end.
//! The product of two f32 values is exact in f64, so a fused multiply-add rounds as a multiplication and an addition
//! do: the AVX2 build of a [`Kernel`] gives the same bits as the portable one.

use crate::plan::WeightFormat;
use crate::platform::{has_avx2_fma, on_x86_64};

/// Partial sums of a dot product.
pub(super) const LANES: usize = 16;

/// A loop worth compiling once for any processor and once for one with AVX2.
pub(super) trait Kernel {
    /// Does the work; `FMA` says whether `mul_add` is one instruction. Implementations are `#[inline(always)]`, so that
    /// the instructions allowed in the caller are allowed in them.
    fn run<const FMA: bool>(self);
}

/// Runs `kernel` in the best form this processor has.
pub(super) fn dispatch(kernel: impl Kernel) {
    if has_avx2_fma() {
        run_wide(kernel);
    } else {
        kernel.run::<false>();
    }
}

on_x86_64! {
    {
        #[allow(unsafe_code, reason = "the instructions are checked for, at run time, before they are used")]
        fn run_wide(kernel: impl Kernel) {
            #[target_feature(enable = "avx2,fma")]
            fn run(kernel: impl Kernel) {
                kernel.run::<true>();
            }
            assert!(has_avx2_fma(), "the wide form runs only where its instructions exist");
            // SAFETY: the processor has AVX2 and FMA, asserted above.
            unsafe { run(kernel) }
        }
    } else {
        fn run_wide(kernel: impl Kernel) {
            kernel.run::<false>();
        }
    }
}

/// Adds 16 products to the partial sums.
#[inline(always)]
fn add_products<const FMA: bool, A: Copy + Into<f64>, B: Copy + Into<f64>>(
    sums: &mut [f64; LANES],
    a: &[A; LANES],
    b: &[B; LANES],
) {
    for lane in 0..LANES {
        let (a, b): (f64, f64) = (a[lane].into(), b[lane].into());
        sums[lane] = if FMA { a.mul_add(b, sums[lane]) } else { sums[lane] + a * b };
    }
}

/// The partial sums, added in order.
#[inline(always)]
fn finish(sums: &[f64; LANES]) -> f64 {
    sums.iter().fold(0.0, |total, sum| total + sum)
}

/// `Σ a·b`. Values are f32 values, possibly widened: products must be exact.
#[inline(always)]
pub(super) fn dot<const FMA: bool, A: Copy + Into<f64>, B: Copy + Into<f64>>(a: &[A], b: &[B]) -> f64 {
    assert_eq!(a.len(), b.len(), "both sides of a dot product have one length");
    let mut sums = [0.0; LANES];
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        add_products::<FMA, A, B>(&mut sums, a, b);
    }
    for (sum, (&a, &b)) in sums.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *sum += a.into() * b.into();
    }
    finish(&sums)
}

/// [`dot`] of two rows with the same vector, which is loaded once.
#[inline(always)]
pub(super) fn dot_two<const FMA: bool>(first: &[f64], second: &[f64], x: &[f64]) -> [f64; 2] {
    assert!(first.len() == x.len() && second.len() == x.len(), "both sides of a dot product have one length");
    let (mut first_sums, mut second_sums) = ([0.0; LANES], [0.0; LANES]);
    let (first, first_rest) = first.as_chunks::<LANES>();
    let (second, second_rest) = second.as_chunks::<LANES>();
    let (x, x_rest) = x.as_chunks::<LANES>();
    for ((first, second), x) in first.iter().zip(second).zip(x) {
        add_products::<FMA, f64, f64>(&mut first_sums, first, x);
        add_products::<FMA, f64, f64>(&mut second_sums, second, x);
    }
    for (lane, &x) in x_rest.iter().enumerate() {
        first_sums[lane] += first_rest[lane] * x;
        second_sums[lane] += second_rest[lane] * x;
    }
    [finish(&first_sums), finish(&second_sums)]
}

/// Half precision to f32 without a branch or a table: the exponent is re-biased by an exact multiplication, which also
/// normalises subnormals.
#[inline(always)]
fn widen_f16(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let rebias = f32::from_bits((127 + 112) << 23);
    let finite = (f32::from_bits(magnitude) * rebias).to_bits();
    let special = if magnitude >= 0x0f80_0000 { 0x7f80_0000 } else { 0 };
    f32::from_bits(finite | special | u32::from(bits & 0x8000) << 16)
}

/// [`LANES`] consecutive elements of a row, `bytes` holding exactly those.
#[inline(always)]
fn decode_lanes(format: WeightFormat, bytes: &[u8]) -> [f32; LANES] {
    match format {
        WeightFormat::F32 => {
            let bits: [u32; LANES] = bytemuck::pod_read_unaligned(bytes);
            bits.map(|bits| f32::from_bits(u32::from_le(bits)))
        }
        WeightFormat::F16 => {
            let bits: [u16; LANES] = bytemuck::pod_read_unaligned(bytes);
            bits.map(|bits| widen_f16(u16::from_le(bits)))
        }
        WeightFormat::Bf16 => {
            let bits: [u16; LANES] = bytemuck::pod_read_unaligned(bytes);
            bits.map(|bits| f32::from_bits(u32::from(u16::from_le(bits)) << 16))
        }
    }
}

/// `Σ decode(row)·x`, without writing the decoded row anywhere.
#[inline(always)]
pub(super) fn dot_encoded<const FMA: bool>(format: WeightFormat, row: &[u8], x: &[f64]) -> f64 {
    match format {
        WeightFormat::F32 => dot_as::<FMA>(WeightFormat::F32, row, x),
        WeightFormat::F16 => dot_as::<FMA>(WeightFormat::F16, row, x),
        WeightFormat::Bf16 => dot_as::<FMA>(WeightFormat::Bf16, row, x),
    }
}

/// [`dot_encoded`] for a format known where it is called, which takes the choice out of the loop.
#[inline(always)]
fn dot_as<const FMA: bool>(format: WeightFormat, row: &[u8], x: &[f64]) -> f64 {
    let mut sums = [0.0; LANES];
    let (x_lanes, x_rest) = x.as_chunks::<LANES>();
    let lanes_bytes = LANES * format.element_bytes() as usize;
    for (bytes, x) in row.chunks_exact(lanes_bytes).zip(x_lanes) {
        add_products::<FMA, f32, f64>(&mut sums, &decode_lanes(format, bytes), x);
    }
    for (lane, &x) in x_rest.iter().enumerate() {
        sums[lane] += f64::from(format.decode(row, x_lanes.len() * LANES + lane)) * x;
    }
    finish(&sums)
}

/// Decodes a whole row.
#[inline(always)]
pub(super) fn decode_row<T: From<f32>>(format: WeightFormat, row: &[u8], out: &mut [T]) {
    let lanes_bytes = LANES * format.element_bytes() as usize;
    let whole = out.len() / LANES * LANES;
    for (bytes, out) in row.chunks_exact(lanes_bytes).zip(out.chunks_exact_mut(LANES)) {
        for (out, value) in out.iter_mut().zip(decode_lanes(format, bytes)) {
            *out = value.into();
        }
    }
    for (index, out) in out.iter_mut().enumerate().skip(whole) {
        *out = format.decode(row, index).into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every half and bfloat16 bit pattern widens as the format's definition says.
    #[test]
    fn decoding_is_the_format_definition() {
        for format in [WeightFormat::F16, WeightFormat::Bf16] {
            let row: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
            let mut values = vec![0.0f32; 1 << 16];
            decode_row(format, &row, &mut values);
            for (index, value) in values.iter().enumerate() {
                let expected = format.decode(&row, index);
                let same = value.to_bits() == expected.to_bits() || value.is_nan() && expected.is_nan();
                assert!(same, "{format:?} {index:#06x}: {value} is not {expected}");
            }
        }
    }

    struct Dots<'a> {
        weights: &'a [u8],
        x: &'a [f64],
        out: &'a mut Vec<u64>,
    }

    impl Kernel for Dots<'_> {
        #[inline(always)]
        fn run<const FMA: bool>(self) {
            for format in [WeightFormat::F32, WeightFormat::F16, WeightFormat::Bf16] {
                let mut decoded = vec![0.0f64; self.x.len()];
                decode_row(format, self.weights, &mut decoded);
                self.out.push(dot_encoded::<FMA>(format, self.weights, self.x).to_bits());
                self.out.push(dot::<FMA, f64, f64>(&decoded, self.x).to_bits());
                self.out.push(dot_two::<FMA>(&decoded, self.x, self.x)[0].to_bits());
                let sums = (0..LANES).map(|lane| {
                    let lane = (lane..self.x.len()).step_by(LANES);
                    lane.fold(0.0, |sum, i| sum + f64::from(format.decode(self.weights, i)) * self.x[i])
                });
                self.out.push(sums.fold(0.0, |total, sum| total + sum).to_bits());
            }
        }
    }

    /// Fused, decoded, two at a time, wide, portable and plainly written: one value, bit for bit, at any alignment.
    #[test]
    fn every_form_gives_the_same_bits() {
        for columns in [1, 8, 15, 16, 17, 40, 64, 1000] {
            let bytes: Vec<u8> = (0..columns * 4 + 1).map(|i| (i * 37 % 251) as u8 & 0x3f).collect();
            let x: Vec<f64> = (0..columns).map(|i| f64::from((i as f32 * 0.37).sin())).collect();
            for weights in [&bytes[..columns * 4], &bytes[1..]] {
                let (mut wide, mut portable) = (Vec::new(), Vec::new());
                dispatch(Dots { weights, x: &x, out: &mut wide });
                Dots { weights, x: &x, out: &mut portable }.run::<false>();
                assert_eq!(wide, portable, "{columns} columns");
                assert!(
                    portable.chunks(4).all(|forms| forms.iter().all(|form| *form == forms[0])),
                    "{columns} columns"
                );
            }
        }
    }
}
