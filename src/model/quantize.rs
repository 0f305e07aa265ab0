//! Quantization on load: a source whose matrices are read in 8 or 4 bits.
//!
//! Rows are quantized when they are read, one chunk at a time and in parallel, so the host never holds more than a
//! chunk. Embedding and LM head get 8 bits even if the rest gets 4: they affect every token, and cost little.

use super::error::LoadError;
use super::repack::RowWriter;
use super::source::{Element, TensorInfo, TensorRead, TensorSource};
use crate::plan::WeightFormat;
use crate::plan::format::GROUP;
use crate::platform;
use bytes::Bytes;
use half::f16;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Rows per task of parallel quantization.
const PIECE_ROWS: usize = 16;
/// Maximum rounds of fitting scale and minimum to the resulting codes.
const FITS: usize = 3;

/// From this number to twice its value, f32 has no fraction bits: adding and subtracting it rounds to an integer.
const ROUNDING: f32 = 8_388_608.0;

/// Target precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantization {
    /// Groups of 32 with a scale.
    Q8,
    /// Groups of 32 with a scale and a minimum.
    Q4,
}

impl fmt::Display for Quantization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Q8 => "q8",
            Self::Q4 => "q4",
        })
    }
}

/// A source that wraps another and quantizes its matrices.
pub(super) struct Quantized {
    inner: Box<dyn TensorSource>,
    infos: BTreeMap<String, TensorInfo>,
}

impl Quantized {
    /// Quantizes every matrix of 16- or 32-bit floats in `inner` when it is read; everything else is unchanged.
    pub(super) fn new(inner: Box<dyn TensorSource>, quantization: Quantization) -> Self {
        let infos = quantized_infos(inner.tensors(), quantization);
        Self { inner, infos }
    }

    /// The formats of a tensor as stored and as read, if they differ.
    fn formats(&self, tensor: &str) -> Option<(WeightFormat, WeightFormat)> {
        match (
            &self.inner.tensors()[tensor].element,
            &self.infos[tensor].element,
        ) {
            (Element::Float(stored), Element::Float(read)) if stored != read => {
                Some((*stored, *read))
            }
            _ => None,
        }
    }
}

/// The tensor list after quantization.
pub(super) fn quantized_infos(
    stored: &BTreeMap<String, TensorInfo>,
    quantization: Quantization,
) -> BTreeMap<String, TensorInfo> {
    let infos = stored.iter().map(|(name, info)| {
        let by_rows = is_stack_of_rows(name) && !is_by_columns(name, stored);
        let format = match quantization {
            Quantization::Q4 if !is_table(name) => WeightFormat::Q4,
            _ => WeightFormat::Q8,
        };
        let is_matrix = is_matrix(name, info, by_rows)
            && columns(info).is_some_and(|columns| columns.is_multiple_of(8));
        let is_dense = matches!(&info.element, Element::Float(stored) if !stored.is_quantised());
        let element = if is_matrix && is_dense {
            Element::Float(format)
        } else {
            info.element.clone()
        };
        (
            name.clone(),
            TensorInfo {
                element,
                ..info.clone()
            },
        )
    });
    infos.collect()
}

/// Excludes biases of experts, which are vectors, and experts' matrices that are stored by columns in one tensor, as in
/// gpt-oss.
/// Routers are excluded too: they are small, and rounding them could change which experts are chosen; and so are the
/// gates of recurrent states, which a sequence compounds.
fn is_matrix(name: &str, info: &TensorInfo, by_rows: bool) -> bool {
    let routers = [
        ".mlp.gate.weight",
        ".mixer.gate.weight",
        ".feed_forward.gate.weight",
        ".router.weight",
        ".router.layer.weight",
        ".router.proj.weight",
    ];
    let chooses = routers.iter().any(|router| name.ends_with(router))
        || name.ends_with(".shared_expert_gate.weight");
    let gates = ["in_proj_a", "in_proj_b", "in_proj_ba", "a_proj", "b_proj"];
    let keeps = gates
        .iter()
        .any(|gate| name.ends_with(&format!(".linear_attn.{gate}.weight")));
    let is_stack = info.shape.len() == 3 && by_rows;
    (info.shape.len() == 2 || is_stack) && !name.ends_with("bias") && !chooses && !keeps
}

/// Whether this may be a tensor of all experts' matrices, each stored by rows: those of Granite, Gemma 4 and Qwen.
fn is_stack_of_rows(name: &str) -> bool {
    [
        ".block_sparse_moe.input_linear.weight",
        ".block_sparse_moe.output_linear.weight",
        ".experts.gate_up_proj",
        ".experts.down_proj",
    ]
    .iter()
    .any(|part| name.ends_with(part))
}

/// Whether such a tensor is stored by columns after all: gpt-oss has biases beside it, and of Qwen 3 VL the shapes of a
/// layer's two tensors tell it.
fn is_by_columns(name: &str, stored: &BTreeMap<String, TensorInfo>) -> bool {
    if stored.contains_key(&format!("{name}_bias")) {
        return true;
    }
    let shape = |end: &str| {
        let stem = name.strip_suffix("gate_up_proj");
        let stem = stem.or_else(|| name.strip_suffix("down_proj"))?;
        match stored.get(&format!("{stem}{end}"))?.shape[..] {
            [_, rows, columns] => Some([rows, columns]),
            _ => None,
        }
    };
    match (shape("gate_up_proj"), shape("down_proj")) {
        (Some([both, hidden]), Some([rows, width])) => hidden != rows || both != 2 * width,
        _ => false,
    }
}

/// Whether this is an embedding table or LM head.
fn is_table(name: &str) -> bool {
    ["embed_tokens", "backbone.embeddings", "lm_head"]
        .iter()
        .any(|part| name.contains(part))
}

fn columns(info: &TensorInfo) -> Option<u32> {
    u32::try_from(*info.shape.last()?).ok()
}

impl TensorSource for Quantized {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.infos
    }

    fn read<'a>(&'a self, tensor: &'a str, bytes: Range<u64>) -> TensorRead<'a> {
        let Some((stored, read)) = self.formats(tensor) else {
            return self.inner.read(tensor, bytes);
        };
        Box::pin(async move {
            let info = &self.infos[tensor];
            let columns = columns(info).expect("a quantized matrix has columns");
            let (from, to) = (stored.row_bytes(columns), read.row_bytes(columns));
            assert!(
                bytes.start.is_multiple_of(to) && bytes.end.is_multiple_of(to),
                "quantized tensors are read by whole rows"
            );
            let rows = self
                .inner
                .read(tensor, bytes.start / to * from..bytes.end / to * from)
                .await?;
            quantize_rows(stored, read, columns as usize, &rows).ok_or_else(|| LoadError::Field {
                file: info.file.to_string(),
                field: format!("tensor {tensor:?}"),
                message: "contains a number that is not finite".into(),
            })
        })
    }

    fn check(&self) -> Result<(), LoadError> {
        self.inner.check()
    }
}

/// Converts whole rows to another format; `None` if a number among them is not finite.
pub(super) fn quantize_rows(
    from: WeightFormat,
    to: WeightFormat,
    columns: usize,
    rows: &[u8],
) -> Option<Bytes> {
    let (from_bytes, to_bytes) = (
        from.row_bytes(columns as u32) as usize,
        to.row_bytes(columns as u32) as usize,
    );
    let mut out = vec![0; rows.len() / from_bytes * to_bytes];
    let finite = AtomicBool::new(true);
    platform::for_each_chunk(&mut out, PIECE_ROWS * to_bytes, |piece, out| {
        let rows = rows.chunks_exact(from_bytes).skip(piece * PIECE_ROWS);
        let mut values = vec![0.0; columns.next_multiple_of(GROUP)];
        for (row, out) in rows.zip(out.chunks_exact_mut(to_bytes)) {
            widen(from, row, &mut values[..columns]);
            if !values.iter().all(|value| value.is_finite()) {
                finite.store(false, Ordering::Relaxed);
            }
            quantize_row(to, &values, columns, out);
        }
    });
    finite.into_inner().then(|| out.into())
}

fn widen(format: WeightFormat, row: &[u8], values: &mut [f32]) {
    match format {
        WeightFormat::F32 => {
            for (value, word) in values.iter_mut().zip(row.chunks_exact(4)) {
                *value = f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            }
        }
        WeightFormat::F16 => {
            for (value, half) in values.iter_mut().zip(row.chunks_exact(2)) {
                *value = f16::from_le_bytes([half[0], half[1]]).to_f32();
            }
        }
        _ => {
            for (value, half) in values.iter_mut().zip(row.chunks_exact(2)) {
                *value = f32::from_bits(u32::from(u16::from_le_bytes([half[0], half[1]])) << 16);
            }
        }
    }
}

/// Quantizes one row. `values` are padded to whole groups; padding beyond `columns` is ignored.
pub(super) fn quantize_row(to: WeightFormat, values: &[f32], columns: usize, out: &mut [u8]) {
    let mut row = RowWriter::new(to, columns, out);
    for (group, values) in values.as_chunks::<GROUP>().0.iter().enumerate() {
        let mut values = *values;
        // Padding in the last group repeats a value of the group, so that it does not widen the range.
        let filled = (columns - group * GROUP).min(GROUP);
        let last = values[filled - 1];
        values[filled..].fill(last);
        if to == WeightFormat::Q8 {
            let (scale, codes) = eight_bits(&values);
            row.codes(group, &codes);
            row.scale(group, &scale.to_le_bytes());
        } else {
            let (scale, min, codes) = four_bits(&values);
            row.codes(group, &codes);
            row.scale(group, &[scale.to_le_bytes(), min.to_le_bytes()].concat());
        }
    }
}

/// The smallest f16 that is at least `value`, so that no code overflows.
fn half_above(value: f32) -> f16 {
    let half = f16::from_f32(value.min(65504.0));
    if half.to_f32() >= value || half.to_bits() >= 0x7bff {
        half
    } else {
        f16::from_bits(half.to_bits() + 1)
    }
}

fn eight_bits(values: &[f32; GROUP]) -> (f16, [u8; GROUP]) {
    let (low, high) = range(values);
    let largest = high.max(-low);
    let scale = half_above(largest / 127.0);
    let inverse = if scale == f16::ZERO {
        0.0
    } else {
        1.0 / scale.to_f32()
    };
    (
        scale,
        values.map(|value| {
            (((value * inverse + 128.5).clamp(1.0, 255.0) as i32 - 128) as i8).cast_unsigned()
        }),
    )
}

/// A sum over a group as eight partial sums, which the compiler vectorizes.
#[inline(always)]
fn sum(term: impl Fn(usize) -> f32) -> f32 {
    let mut sums = [0.0; 8];
    for first in (0..GROUP).step_by(8) {
        for (lane, sum) in sums.iter_mut().enumerate() {
            *sum += term(first + lane);
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (b + f)) + ((c + g) + (d + h))
}

/// Minimum and maximum of a group, vectorized like [`sum`].
#[inline(always)]
fn range(values: &[f32; GROUP]) -> (f32, f32) {
    let (mut low, mut high) = ([f32::INFINITY; 8], [f32::NEG_INFINITY; 8]);
    for eight in values.as_chunks::<8>().0 {
        for lane in 0..8 {
            low[lane] = if eight[lane] < low[lane] {
                eight[lane]
            } else {
                low[lane]
            };
            high[lane] = if eight[lane] > high[lane] {
                eight[lane]
            } else {
                high[lane]
            };
        }
    }
    (
        low.into_iter().fold(f32::INFINITY, f32::min),
        high.into_iter().fold(f32::NEG_INFINITY, f32::max),
    )
}

/// Codes, and their squared error.
#[inline(always)]
fn four_bit_codes(values: &[f32; GROUP], scale: f32, min: f32) -> ([f32; GROUP], f32) {
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let codes =
        values.map(|value| ((value - min) * inverse).clamp(0.0, 15.0) + ROUNDING - ROUNDING);
    let error = sum(|index| {
        let miss = scale * codes[index] + min - values[index];
        miss * miss
    });
    (codes, error)
}

/// Starts with the range of the values, then fits scale and minimum to the codes by least squares while that reduces
/// the error.
fn four_bits(values: &[f32; GROUP]) -> (f16, f16, [u8; GROUP]) {
    let (low, high) = range(values);
    let mut best = rounded((high - low) / 15.0, low);
    let (mut codes, mut error) = four_bit_codes(values, best.0.to_f32(), best.1.to_f32());
    for _ in 0..FITS {
        let Some((scale, min)) = least_squares(values, &codes) else {
            break;
        };
        let next = rounded(scale, min);
        let (next_codes, next_error) = four_bit_codes(values, next.0.to_f32(), next.1.to_f32());
        if next_error >= error {
            break;
        }
        (best, codes, error) = (next, next_codes, next_error);
    }
    (best.0, best.1, codes.map(|code| code as u8))
}

fn rounded(scale: f32, min: f32) -> (f16, f16) {
    (finite(scale.max(0.0)), finite(min))
}

fn finite(value: f32) -> f16 {
    f16::from_f32(value.clamp(-65504.0, 65504.0))
}

/// The scale and minimum with the least squared error for these codes; `None` if all codes are equal.
#[inline(always)]
fn least_squares(values: &[f32; GROUP], codes: &[f32; GROUP]) -> Option<(f32, f32)> {
    let count = GROUP as f32;
    let (codes_sum, squares) = (
        sum(|index| codes[index]),
        sum(|index| codes[index] * codes[index]),
    );
    let (total, products) = (
        sum(|index| values[index]),
        sum(|index| codes[index] * values[index]),
    );
    let determinant = count * squares - codes_sum * codes_sum;
    if determinant <= 0.0 {
        return None;
    }
    let scale = (count * products - codes_sum * total) / determinant;
    Some((scale, (total - scale * codes_sum) / count))
}

#[cfg(test)]
mod tests;
