//! Quantization to the block types of GGUF: the layouts that `blocks` reads, and a choice of scales for each.
//!
//! Scales are fitted to the codes by least squares, as ggml does: files differ from its own in the choice, not in the
//! format. K types fit each group alone first; their scales are then rounded to 4, 6 or 8 bits, and the codes computed
//! again with the rounded ones.

use super::blocks::BlockType;
use half::f16;

/// Weights of a super-block of the K types, and of their groups.
const SUPER: usize = 256;
const GROUP: usize = 32;
const HALF: usize = 16;
/// Rounds of fitting scale and minimum to the codes.
const FITS: usize = 5;
/// Candidates around the largest magnitude for a scale without minimum.
const STEPS: std::ops::RangeInclusive<i32> = -9..=9;

/// Whether rows can be quantized to a type, whose blocks they must consist of.
#[cfg(test)]
pub(super) fn is_target(kind: BlockType) -> bool {
    use BlockType::{Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
    matches!(
        kind,
        Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q2K | Q3K | Q4K | Q5K | Q6K
    )
}

/// Quantizes a row of whole blocks.
pub(super) fn encode(kind: BlockType, values: &[f32], out: &mut [u8]) {
    let blocks = values.chunks_exact(kind.weights());
    for (values, out) in blocks.zip(out.chunks_exact_mut(kind.bytes())) {
        match kind {
            BlockType::Q8_0 => q8_0(values, out),
            BlockType::Q4_0 => centred(values, 4, out),
            BlockType::Q5_0 => centred(values, 5, out),
            BlockType::Q4_1 => ranged(values, 4, out),
            BlockType::Q5_1 => ranged(values, 5, out),
            BlockType::Q2K => q2k(values, out),
            BlockType::Q3K => q3k(values, out),
            BlockType::Q4K => q4k_q5k(values, 4, out),
            BlockType::Q5K => q4k_q5k(values, 5, out),
            BlockType::Q6K => q6k(values, out),
            other => unreachable!("nothing is quantized to {other}"),
        }
    }
}

fn half(value: f32) -> [u8; 2] {
    f16::from_f32(value.clamp(-65504.0, 65504.0)).to_le_bytes()
}

fn rounded(value: f32) -> f32 {
    f16::from_f32(value.clamp(-65504.0, 65504.0)).to_f32()
}

fn inverse(value: f32) -> f32 {
    if value == 0.0 { 0.0 } else { 1.0 / value }
}

/// The value with the largest magnitude.
fn extreme(values: &[f32]) -> f32 {
    let larger = |a: f32, b: &f32| if b.abs() > a.abs() { *b } else { a };
    values.iter().fold(0.0, larger)
}

fn q8_0(values: &[f32], out: &mut [u8]) {
    let scale = extreme(values).abs() / 127.0;
    out[..2].copy_from_slice(&half(scale));
    let times = inverse(scale);
    for (value, out) in values.iter().zip(&mut out[2..]) {
        *out = ((value * times).round().clamp(-127.0, 127.0) as i8).cast_unsigned();
    }
}

/// Nibbles of 32 codes: the first sixteen low.
fn nibbles(codes: &[u8], out: &mut [u8]) {
    for (index, out) in out.iter_mut().enumerate().take(HALF) {
        *out = codes[index] & 15 | (codes[HALF + index] & 15) << 4;
    }
}

/// Fifth bits of 32 codes.
fn fifth_bits(codes: &[u8]) -> [u8; 4] {
    let bits = codes.iter().enumerate();
    let word = bits.fold(0u32, |word, (index, code)| {
        word | u32::from(code >> 4 & 1) << index
    });
    word.to_le_bytes()
}

/// Codes around half of their range, with a scale.
fn centred(values: &[f32], bits: u32, out: &mut [u8]) {
    let zero = (1 << (bits - 1)) as f32;
    let scale = rounded(symmetric(values, zero as i32));
    let times = inverse(scale);
    let code = |value: &f32| (value * times + zero).round().clamp(0.0, 2.0 * zero - 1.0) as u8;
    let codes: Vec<u8> = values.iter().map(code).collect();
    out[..2].copy_from_slice(&half(scale));
    write_codes(&codes, bits, &mut out[2..]);
}

/// Codes above a minimum.
fn ranged(values: &[f32], bits: u32, out: &mut [u8]) {
    let largest = (1 << bits) - 1;
    let (scale, min) = with_minimum(values, largest, false);
    let (scale, min) = (rounded(scale), rounded(min));
    let codes = codes_above(values, scale, min, largest);
    out[..2].copy_from_slice(&half(scale));
    out[2..4].copy_from_slice(&half(min));
    write_codes(&codes, bits, &mut out[4..]);
}

fn write_codes(codes: &[u8], bits: u32, out: &mut [u8]) {
    if bits == 5 {
        out[..4].copy_from_slice(&fifth_bits(codes));
        nibbles(codes, &mut out[4..]);
    } else {
        nibbles(codes, out);
    }
}

/// The scale with which codes from −`most` to `most` − 1 are nearest to the values: the value of largest magnitude gets
/// about −`most`, or a code nearby if that serves the others better.
fn symmetric(values: &[f32], most: i32) -> f32 {
    let largest = extreme(values);
    let (mut best, mut best_gain) = (0.0, 0.0);
    for step in STEPS {
        let times = -(most as f32 + 0.1 * step as f32) * inverse(largest);
        let (mut products, mut squares) = (0.0, 0.0);
        for value in values {
            let code = (value * times)
                .round()
                .clamp(-most as f32, (most - 1) as f32);
            products += value * code;
            squares += code * code;
        }
        // What a scale of `products / squares` takes off the squared error.
        let gain = products * products * inverse(squares);
        if gain > best_gain {
            (best, best_gain) = (products / squares, gain);
        }
    }
    best
}

fn codes_above(values: &[f32], scale: f32, min: f32, largest: i32) -> Vec<u8> {
    let times = inverse(scale);
    let code = |value: &f32| ((value - min) * times).round().clamp(0.0, largest as f32) as u8;
    values.iter().map(code).collect()
}

/// Scale and minimum with which codes up to `largest` are nearest to the values; a minimum of at most 0 where only such
/// can be stored.
fn with_minimum(values: &[f32], largest: i32, at_most_zero: bool) -> (f32, f32) {
    let bound = |min: f32| if at_most_zero { min.min(0.0) } else { min };
    let low = bound(values.iter().copied().fold(f32::INFINITY, f32::min));
    let high = values.iter().copied().fold(low, f32::max);
    let mut best = ((high - low) / largest as f32, low);
    let mut best_error = f32::INFINITY;
    let mut next = best;
    for _ in 0..=FITS {
        let codes = codes_above(values, next.0, next.1, largest);
        let error = values
            .iter()
            .zip(&codes)
            .map(|(value, code)| {
                let miss = next.0 * f32::from(*code) + next.1 - value;
                miss * miss
            })
            .sum::<f32>();
        if error >= best_error {
            break;
        }
        (best, best_error) = (next, error);
        let Some((scale, min)) = least_squares(values, &codes) else {
            break;
        };
        next = if min > bound(min) {
            (scale_alone(values, &codes), 0.0)
        } else {
            (scale, min)
        };
        if next.0 <= 0.0 {
            break;
        }
    }
    best
}

/// The scale with the least squared error for these codes, without minimum.
fn scale_alone(values: &[f32], codes: &[u8]) -> f32 {
    let (products, squares) = values
        .iter()
        .zip(codes)
        .fold((0.0, 0.0), |sums, (value, code)| {
            let code = f32::from(*code);
            (sums.0 + value * code, sums.1 + code * code)
        });
    products * inverse(squares)
}

/// Scale and minimum with the least squared error for these codes; `None` if all are equal.
fn least_squares(values: &[f32], codes: &[u8]) -> Option<(f32, f32)> {
    let count = values.len() as f32;
    let (mut sum, mut squares, mut total, mut products) = (0.0, 0.0, 0.0, 0.0);
    for (value, code) in values.iter().zip(codes) {
        let code = f32::from(*code);
        sum += code;
        squares += code * code;
        total += value;
        products += value * code;
    }
    let determinant = count * squares - sum * sum;
    (determinant > 0.0).then(|| {
        let scale = (count * products - sum * total) / determinant;
        (scale, (total - scale * sum) / count)
    })
}

/// Numbers as multiples, up to `most`, of a half; and the multiples.
fn multiples(numbers: &[f32], most: f32) -> (f32, Vec<u8>) {
    let largest = numbers.iter().copied().fold(0.0, f32::max);
    let unit = rounded(largest / most);
    let times = inverse(unit);
    let counts = numbers
        .iter()
        .map(|number| (number * times).round().clamp(0.0, most) as u8);
    (unit, counts.collect())
}

/// Numbers as multiples from −`most` to `most` − 1 of a half.
fn signed_multiples(numbers: &[f32], most: f32) -> (f32, Vec<i8>) {
    let unit = rounded(extreme(numbers) / -most);
    let times = inverse(unit);
    let counts = numbers
        .iter()
        .map(|number| (number * times).round().clamp(-most, most - 1.0) as i8);
    (unit, counts.collect())
}

fn q4k_q5k(values: &[f32], bits: u32, out: &mut [u8]) {
    let largest = (1 << bits) - 1;
    let fits: Vec<(f32, f32)> = values
        .chunks_exact(GROUP)
        .map(|values| with_minimum(values, largest, true))
        .collect();
    let (unit, scales) = multiples(&fits.iter().map(|fit| fit.0).collect::<Vec<_>>(), 63.0);
    let (min_unit, mins) = multiples(&fits.iter().map(|fit| -fit.1).collect::<Vec<_>>(), 63.0);
    out.fill(0);
    out[..2].copy_from_slice(&half(unit));
    out[2..4].copy_from_slice(&half(min_unit));
    let (packed, rest) = out[4..].split_at_mut(12);
    for (at, (scale, min)) in scales.iter().zip(&mins).enumerate() {
        if at < 4 {
            packed[at] |= scale;
            packed[at + 4] |= min;
        } else {
            packed[at + 4] = scale & 15 | (min & 15) << 4;
            packed[at - 4] |= scale >> 4 << 6;
            packed[at] |= min >> 4 << 6;
        }
    }
    let (high, low) = rest.split_at_mut(if bits == 5 { GROUP } else { 0 });
    for (group, values) in values.chunks_exact(GROUP).enumerate() {
        let (scale, min) = (
            unit * f32::from(scales[group]),
            -min_unit * f32::from(mins[group]),
        );
        for (index, code) in codes_above(values, scale, min, largest).iter().enumerate() {
            low[GROUP * (group / 2) + index] |= (code & 15) << (4 * (group % 2));
            if let Some(high) = high.get_mut(index) {
                *high |= code >> 4 << group;
            }
        }
    }
}

fn q2k(values: &[f32], out: &mut [u8]) {
    let fits: Vec<(f32, f32)> = values
        .chunks_exact(HALF)
        .map(|values| with_minimum(values, 3, true))
        .collect();
    let (unit, scales) = multiples(&fits.iter().map(|fit| fit.0).collect::<Vec<_>>(), 15.0);
    let (min_unit, mins) = multiples(&fits.iter().map(|fit| -fit.1).collect::<Vec<_>>(), 15.0);
    out.fill(0);
    for (at, values) in values.chunks_exact(HALF).enumerate() {
        out[at] = scales[at] | mins[at] << 4;
        let (scale, min) = (
            unit * f32::from(scales[at]),
            -min_unit * f32::from(mins[at]),
        );
        let (group, first) = (at / 2, HALF * (at % 2));
        for (index, code) in codes_above(values, scale, min, 3).iter().enumerate() {
            let place = HALF + GROUP * (group / 4) + first + index;
            out[place] |= code << (2 * (group % 4));
        }
    }
    out[80..82].copy_from_slice(&half(unit));
    out[82..84].copy_from_slice(&half(min_unit));
}

/// Codes from 0 to 2 · `zero` − 1 around `zero`.
fn codes_around(values: &[f32], scale: f32, zero: f32) -> impl Iterator<Item = u8> {
    let times = inverse(scale);
    values
        .iter()
        .map(move |value| (value * times + zero).round().clamp(0.0, 2.0 * zero - 1.0) as u8)
}

fn q3k(values: &[f32], out: &mut [u8]) {
    let fits: Vec<f32> = values
        .chunks_exact(HALF)
        .map(|values| symmetric(values, 4))
        .collect();
    let (unit, scales) = signed_multiples(&fits, 32.0);
    out.fill(0);
    for (at, values) in values.chunks_exact(HALF).enumerate() {
        let stored = (i16::from(scales[at]) + 32) as u8;
        out[96 + at % 8] |= (stored & 15) << (4 * (at / 8));
        out[104 + at % 4] |= stored >> 4 << (2 * (at / 4));
        let (group, first) = (at / 2, HALF * (at % 2));
        let codes = codes_around(values, unit * f32::from(scales[at]), 4.0);
        for (index, code) in codes.enumerate() {
            out[first + index] |= (code >> 2) << group;
            out[32 + GROUP * (group / 4) + first + index] |= (code & 3) << (2 * (group % 4));
        }
    }
    out[108..110].copy_from_slice(&half(unit));
}

fn q6k(values: &[f32], out: &mut [u8]) {
    let fits: Vec<f32> = values
        .chunks_exact(HALF)
        .map(|values| symmetric(values, 32))
        .collect();
    let (unit, scales) = signed_multiples(&fits, 128.0);
    out.fill(0);
    for (at, values) in values.chunks_exact(HALF).enumerate() {
        out[192 + at] = scales[at].cast_unsigned();
        let (group, first) = (at / 2, HALF * (at % 2));
        let (part, quarter) = (group / 4, group % 4);
        let codes = codes_around(values, unit * f32::from(scales[at]), 32.0);
        for (index, code) in codes.enumerate() {
            let low = 64 * part + 32 * (quarter % 2) + first + index;
            out[low] |= (code & 15) << (4 * (quarter / 2));
            out[128 + 32 * part + first + index] |= code >> 4 << (2 * quarter);
        }
    }
    out[208..210].copy_from_slice(&half(unit));
}

/// A type that rows of any whole number of smaller blocks have in place of a K type.
pub(super) fn fitting(kind: BlockType, columns: u64) -> Option<BlockType> {
    if columns.is_multiple_of(kind.weights() as u64) {
        return Some(kind);
    }
    let smaller = match kind {
        BlockType::Q2K | BlockType::Q3K => BlockType::Q4_0,
        BlockType::Q4K => BlockType::Q5_0,
        BlockType::Q5K => BlockType::Q5_1,
        _ => BlockType::Q8_0,
    };
    debug_assert!(kind.weights() <= SUPER, "blocks are at most super-blocks");
    columns
        .is_multiple_of(smaller.weights() as u64)
        .then_some(smaller)
}

#[cfg(test)]
mod tests;
