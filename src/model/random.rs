//! Random weights of a given shape, generated when they are read: even a model of 8 billion parameters needs no memory
//! for them.

use super::error::LoadError;
use super::source::{Element, TensorInfo, TensorRead, TensorSource};
use super::spec::ModelSpec;
use super::weights::tensors_of;
use crate::plan::WeightFormat;
use crate::platform;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

const NAME: &str = "random weights";
/// 1.0 in bf16: the norm weight.
const ONE: u16 = 0x3f80;
/// Bytes generated from one random word.
const WORD_BYTES: u64 = 8;
/// Bytes per task of parallel generation; a multiple of whole words.
const PIECE_BYTES: u64 = 1 << 18;

/// Every tensor that a spec needs, in bf16; the experts of gpt-oss in MXFP4, as published. Matrix elements have a
/// random sign and a random magnitude within a factor of two, about `1 / sqrt(columns)`, so that activations keep their
/// magnitude from layer to layer; norms are 1 and biases are small.
pub(super) struct RandomTensors {
    seed: u64,
    tensors: BTreeMap<String, TensorInfo>,
}

impl RandomTensors {
    pub(super) fn new(spec: &ModelSpec, seed: u64) -> Self {
        let file: Arc<str> = NAME.into();
        Self {
            seed,
            tensors: tensors_of(spec)
                .map(|part| {
                    let (part, format) = if part.is_published_in_mxfp4() {
                        (part.by_rows(), WeightFormat::Mxfp4)
                    } else {
                        (part, WeightFormat::Bf16)
                    };
                    let element = Element::Float(format);
                    (
                        part.tensor,
                        TensorInfo {
                            file: file.clone(),
                            shape: part.shape,
                            element,
                        },
                    )
                })
                .collect(),
        }
    }

    fn make(&self, tensor: &str, bytes: Range<u64>) -> Bytes {
        let TensorInfo { shape, element, .. } = &self.tensors[tensor];
        if tensor.contains("norm") {
            return ONE
                .to_le_bytes()
                .into_iter()
                .cycle()
                .skip(bytes.start as usize % 2)
                .take(length(&bytes))
                .collect();
        }
        let key = tensor
            .bytes()
            .fold(self.seed, |key, byte| mix(key ^ u64::from(byte)));
        if let (Element::Float(WeightFormat::Mxfp4), [.., columns]) = (element, &shape[..]) {
            return mxfp4(key, *columns, bytes);
        }
        let exponent = exponent(shape.get(1).copied().unwrap_or(1 << 12));
        let scale = u64::from(exponent) * 0x0080_0080_0080_0080;
        // Keeps sign and mantissa of four random elements and sets their exponents.
        words(key, bytes, |random| random & 0x807f_807f_807f_807f | scale)
    }
}

/// Random bytes: a range of words, each `change`d.
fn words(key: u64, bytes: Range<u64>, change: impl Fn(u64) -> u64 + Sync) -> Bytes {
    let first = bytes.start / WORD_BYTES;
    let words = bytes.end.div_ceil(WORD_BYTES) - first;
    let mut made = vec![0; (words * WORD_BYTES) as usize];
    platform::for_each_chunk(&mut made, PIECE_BYTES as usize, |piece, made| {
        let first = first + piece as u64 * (PIECE_BYTES / WORD_BYTES);
        for (word, made) in (first..).zip(made.chunks_exact_mut(WORD_BYTES as usize)) {
            made.copy_from_slice(&change(mix(key.wrapping_add(word))).to_le_bytes());
        }
    });
    let skipped = (bytes.start % WORD_BYTES) as usize;
    Bytes::from(made).slice(skipped..skipped + length(&bytes))
}

/// Rows in MXFP4: random codes, whose root mean square is 2.9, and equal scales.
fn mxfp4(key: u64, columns: u64, bytes: Range<u64>) -> Bytes {
    let layout = WeightFormat::Mxfp4.layout(columns as usize);
    let mut made = Vec::from(words(key, bytes.clone(), |random| random));
    for (at, byte) in (bytes.start..).zip(&mut made) {
        if at % layout.row_bytes as u64 >= layout.scales as u64 {
            *byte = exponent(columns) - 1;
        }
    }
    made.into()
}

fn length(bytes: &Range<u64>) -> usize {
    usize::try_from(bytes.end - bytes.start).expect("a chunk fits memory")
}

/// The biased exponent of the power of two below `2 / (3 · sqrt(columns))`.
fn exponent(columns: u64) -> u8 {
    let power = (2.0 / 3.0 / (columns as f64).sqrt()).log2().floor();
    (127.0 + power) as u8
}

/// SplitMix64's finalizer: consecutive inputs give unrelated outputs.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

impl TensorSource for RandomTensors {
    fn name(&self) -> &str {
        NAME
    }

    fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    fn read<'a>(&'a self, tensor: &'a str, bytes: Range<u64>) -> TensorRead<'a> {
        Box::pin(std::future::ready(Ok::<_, LoadError>(
            self.make(tensor, bytes),
        )))
    }
}

#[cfg(test)]
mod tests;
