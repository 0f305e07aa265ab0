//! Dot products and row decoding: inner loops shared by the steps.
//!
//! A dot product has 16 interleaved f64 partial sums: element `i` goes to sum `i mod 16`, and the sums are added in
//! order at the end. The product of two f32 values is exact in f64, so a fused multiply-add rounds like a separate
//! multiplication and addition: every implementation of [`PartialSums`] gives the same bits. A [`Kernel`] is a loop
//! written once for all of them.

use crate::plan::WeightFormat;
use crate::plan::format::GROUP;
use crate::platform::{has_avx2, on_x86_64};

on_x86_64! {
    {
        #[path = "dot_avx2.rs"]
        mod dot_avx2;
        use dot_avx2::run_wide;
    } else {
        fn run_wide(kernel: impl Kernel) {
            kernel.run::<Portable>();
        }
    }
}

/// Calls `$dense(format, element bytes, …)` with the format as a constant, or `$grouped(format, …)`.
macro_rules! for_format {
    ($format:expr, $dense:expr, $grouped:expr, ($($argument:expr),*)) => {
        match $format {
            WeightFormat::F32 => $dense(WeightFormat::F32, 4, $($argument),*),
            WeightFormat::F16 => $dense(WeightFormat::F16, 2, $($argument),*),
            WeightFormat::Bf16 => $dense(WeightFormat::Bf16, 2, $($argument),*),
            // Compiled once for all formats: a group is long enough that looking up its format costs little.
            grouped => $grouped(grouped, $($argument),*),
        }
    };
}

/// Partial sums of a dot product.
pub(super) const LANES: usize = 16;

/// Sixteen partial sums and their loads. Methods and [`Kernel`]s are `#[inline(always)]`, so that they are compiled
/// with the target features of the function that starts the kernel.
pub(super) trait PartialSums: Copy {
    /// Partial sums of zero.
    fn zero() -> Self;
    /// Adds products of f32 values already widened to f64.
    fn add_wide(&mut self, a: &[f64; LANES], b: &[f64; LANES]);
    /// Adds products of f32 values.
    fn add(&mut self, a: &[f32; LANES], b: &[f32; LANES]);
    /// Adds products of encoded values; `bytes` has exactly [`LANES`] of them.
    fn add_encoded(&mut self, format: WeightFormat, bytes: &[u8], x: &[f64; LANES]);
    /// Widens [`LANES`] encoded values.
    fn decode(format: WeightFormat, bytes: &[u8]) -> [f64; LANES];
    /// The partial sums.
    fn lanes(self) -> [f64; LANES];
}

/// A loop that is compiled twice: portably, and for AVX2.
pub(super) trait Kernel {
    /// Does the work. Implementations are `#[inline(always)]`.
    fn run<S: PartialSums>(self);
}

/// Runs `kernel` in the fastest form that this processor supports.
pub(super) fn dispatch(kernel: impl Kernel) {
    if has_avx2() {
        run_wide(kernel);
    } else {
        kernel.run::<Portable>();
    }
}

/// `Σ a·b` of f32 values.
#[inline(always)]
pub(super) fn dot<S: PartialSums>(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(
        a.len(),
        b.len(),
        "both sides of a dot product have the same length"
    );
    let mut sums = S::zero();
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        sums.add(a, b);
    }
    finish(
        sums,
        a_rest
            .iter()
            .zip(b_rest)
            .map(|(a, b)| f64::from(*a) * f64::from(*b)),
    )
}

/// [`dot`] of widened rows.
#[inline(always)]
pub(super) fn dot_wide<S: PartialSums>(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(
        a.len(),
        b.len(),
        "both sides of a dot product have the same length"
    );
    let mut sums = S::zero();
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        sums.add_wide(a, b);
    }
    finish(sums, a_rest.iter().zip(b_rest).map(|(a, b)| a * b))
}

/// [`dot_wide`] of two rows with one vector, which is loaded once.
#[inline(always)]
pub(super) fn dot_wide_two<S: PartialSums>(first: &[f64], second: &[f64], x: &[f64]) -> [f64; 2] {
    assert!(
        first.len() == x.len() && second.len() == x.len(),
        "both sides of a dot product have the same length"
    );
    let (mut first_sums, mut second_sums) = (S::zero(), S::zero());
    let (first, first_rest) = first.as_chunks::<LANES>();
    let (second, second_rest) = second.as_chunks::<LANES>();
    let (x, x_rest) = x.as_chunks::<LANES>();
    for ((first, second), x) in first.iter().zip(second).zip(x) {
        first_sums.add_wide(first, x);
        second_sums.add_wide(second, x);
    }
    let first = finish(
        first_sums,
        first_rest.iter().zip(x_rest).map(|(a, b)| a * b),
    );
    [
        first,
        finish(
            second_sums,
            second_rest.iter().zip(x_rest).map(|(a, b)| a * b),
        ),
    ]
}

/// `Σ decode(row)·x`, without storing the decoded row.
#[inline(always)]
pub(super) fn dot_encoded<S: PartialSums>(format: WeightFormat, row: &[u8], x: &[f64]) -> f64 {
    // The format is a constant in each arm, so the loop does not branch on it.
    for_format!(format, dot_format::<S>, dot_groups::<S>, (row, x))
}

#[inline(always)]
fn dot_format<S: PartialSums>(format: WeightFormat, element: usize, row: &[u8], x: &[f64]) -> f64 {
    assert_eq!(
        row.len(),
        x.len() * element,
        "both sides of a dot product have the same length"
    );
    let mut sums = S::zero();
    let (lanes, x_rest) = x.as_chunks::<LANES>();
    for (bytes, x) in row.chunks_exact(LANES * element).zip(lanes) {
        sums.add_encoded(format, bytes, x);
    }
    let done = lanes.len() * LANES;
    let weight = |index| f64::from(format.decode(row, x.len(), index));
    finish(
        sums,
        x_rest
            .iter()
            .enumerate()
            .map(|(lane, x)| weight(done + lane) * x),
    )
}

/// Dot product with a quantized row, decoded one group at a time.
#[inline(always)]
fn dot_groups<S: PartialSums>(format: WeightFormat, row: &[u8], x: &[f64]) -> f64 {
    let layout = format.layout(x.len());
    assert_eq!(
        row.len(),
        layout.row_bytes,
        "both sides of a dot product have the same length"
    );
    let mut sums = S::zero();
    let (groups, x_rest) = x.as_chunks::<GROUP>();
    for (group, x) in groups.iter().enumerate() {
        let weights = widen(format.decode_group(row, &layout, group));
        let (weights, x) = (weights.as_chunks::<LANES>().0, x.as_chunks::<LANES>().0);
        sums.add_wide(&weights[0], &x[0]);
        sums.add_wide(&weights[1], &x[1]);
    }
    if x_rest.is_empty() {
        return finish(sums, std::iter::empty());
    }
    let weights = widen(format.decode_group(row, &layout, groups.len()));
    let (weights, (x_lanes, x_rest)) =
        (weights.as_chunks::<LANES>().0, x_rest.as_chunks::<LANES>());
    for (weights, x) in weights.iter().zip(x_lanes) {
        sums.add_wide(weights, x);
    }
    let rest = weights.get(x_lanes.len()).into_iter().flatten();
    finish(sums, rest.zip(x_rest).map(|(w, x)| w * x))
}

#[inline(always)]
fn widen(values: [f32; GROUP]) -> [f64; GROUP] {
    values.map(f64::from)
}

/// Adds the remaining products, one per lane, and then the partial sums in order.
#[inline(always)]
fn finish<S: PartialSums>(sums: S, rest: impl Iterator<Item = f64>) -> f64 {
    let mut lanes = sums.lanes();
    for (sum, product) in lanes.iter_mut().zip(rest) {
        *sum += product;
    }
    lanes.iter().fold(0.0, |total, sum| total + sum)
}

/// Decodes and widens a whole row.
#[inline(always)]
pub(super) fn decode_wide<S: PartialSums>(format: WeightFormat, row: &[u8], out: &mut [f64]) {
    for_format!(format, decode_format::<S>, decode_groups, (row, out));
}

#[inline(always)]
fn decode_format<S: PartialSums>(
    format: WeightFormat,
    element: usize,
    row: &[u8],
    out: &mut [f64],
) {
    let columns = out.len();
    let (lanes, rest) = out.as_chunks_mut::<LANES>();
    let done = lanes.len() * LANES;
    for (bytes, out) in row.chunks_exact(LANES * element).zip(lanes) {
        *out = S::decode(format, bytes);
    }
    for (lane, out) in rest.iter_mut().enumerate() {
        *out = format.decode(row, columns, done + lane).into();
    }
}

#[inline(always)]
fn decode_groups(format: WeightFormat, row: &[u8], out: &mut [f64]) {
    let layout = format.layout(out.len());
    for (group, out) in out.chunks_mut(GROUP).enumerate() {
        out.copy_from_slice(&widen(format.decode_group(row, &layout, group))[..out.len()]);
    }
}

/// Decodes a whole row by the definition of its format.
pub(super) fn decode_row(format: WeightFormat, row: &[u8], out: &mut [f32]) {
    let columns = out.len();
    for (index, out) in out.iter_mut().enumerate() {
        *out = format.decode(row, columns, index);
    }
}

/// Portable partial sums.
#[derive(Clone, Copy)]
pub(super) struct Portable([f64; LANES]);

impl PartialSums for Portable {
    #[inline(always)]
    fn zero() -> Self {
        Self([0.0; LANES])
    }

    #[inline(always)]
    fn add_wide(&mut self, a: &[f64; LANES], b: &[f64; LANES]) {
        for lane in 0..LANES {
            self.0[lane] += a[lane] * b[lane];
        }
    }

    #[inline(always)]
    fn add(&mut self, a: &[f32; LANES], b: &[f32; LANES]) {
        for lane in 0..LANES {
            self.0[lane] += f64::from(a[lane]) * f64::from(b[lane]);
        }
    }

    #[inline(always)]
    fn add_encoded(&mut self, format: WeightFormat, bytes: &[u8], x: &[f64; LANES]) {
        self.add_wide(&Self::decode(format, bytes), x);
    }

    #[inline(always)]
    fn decode(format: WeightFormat, bytes: &[u8]) -> [f64; LANES] {
        match format {
            WeightFormat::F32 => {
                let bits: [u32; LANES] = bytemuck::pod_read_unaligned(bytes);
                bits.map(|bits| f32::from_bits(u32::from_le(bits)).into())
            }
            WeightFormat::F16 => {
                let bits: [u16; LANES] = bytemuck::pod_read_unaligned(bytes);
                bits.map(|bits| widen_f16(u16::from_le(bits)).into())
            }
            WeightFormat::Bf16 => {
                let bits: [u16; LANES] = bytemuck::pod_read_unaligned(bytes);
                bits.map(|bits| f32::from_bits(u32::from(u16::from_le(bits)) << 16).into())
            }
            _ => unreachable!("quantized rows are decoded by groups"),
        }
    }

    #[inline(always)]
    fn lanes(self) -> [f64; LANES] {
        self.0
    }
}

/// Half precision to f32 without a branch or a table: the exponent is re-biased by an exact multiplication, which also
/// normalizes subnormals.
#[inline(always)]
fn widen_f16(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let rebias = f32::from_bits((127 + 112) << 23);
    let finite = (f32::from_bits(magnitude) * rebias).to_bits();
    let special = if magnitude >= 0x0f80_0000 {
        0x7f80_0000
    } else {
        0
    };
    f32::from_bits(finite | special | u32::from(bits & 0x8000) << 16)
}

#[cfg(test)]
mod tests;
