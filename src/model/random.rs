//! Random weights of a given shape, generated when they are read: even a model of 8 billion parameters needs no memory
//! for them.

use super::LoadError;
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

/// Every tensor that a spec needs, in bf16. Matrix elements have a random sign and a random magnitude within a factor
/// of two, about `1 / sqrt(columns)`, so that activations keep their magnitude from layer to layer; norms are 1 and
/// biases are small.
pub(super) struct RandomTensors {
    seed: u64,
    tensors: BTreeMap<String, TensorInfo>,
}

impl RandomTensors {
    pub(super) fn new(spec: &ModelSpec, seed: u64) -> Self {
        let file: Arc<str> = NAME.into();
        let element = Element::Float(WeightFormat::Bf16);
        let info = |shape| TensorInfo { file: file.clone(), shape, element: element.clone() };
        Self { seed, tensors: tensors_of(spec).map(|part| (part.tensor, info(part.shape))).collect() }
    }

    fn make(&self, tensor: &str, bytes: Range<u64>) -> Bytes {
        let shape = &self.tensors[tensor].shape;
        if tensor.contains("norm") {
            return ONE.to_le_bytes().into_iter().cycle().skip(bytes.start as usize % 2).take(length(&bytes)).collect();
        }
        let scale = match shape.get(1) {
            Some(&columns) => exponent(columns),
            None => exponent(1 << 12),
        };
        let key = tensor.bytes().fold(self.seed, |key, byte| mix(key ^ u64::from(byte)));
        let first = bytes.start / WORD_BYTES;
        let words = bytes.end.div_ceil(WORD_BYTES) - first;
        let mut made = vec![0; (words * WORD_BYTES) as usize];
        platform::for_each_chunk(&mut made, PIECE_BYTES as usize, |piece, made| {
            let first = first + piece as u64 * (PIECE_BYTES / WORD_BYTES);
            for (word, made) in (first..).zip(made.chunks_exact_mut(WORD_BYTES as usize)) {
                // Keeps sign and mantissa of four random elements and sets their exponents.
                let random = mix(key.wrapping_add(word)) & 0x807f_807f_807f_807f;
                made.copy_from_slice(&(random | scale).to_le_bytes());
            }
        });
        let skipped = (bytes.start % WORD_BYTES) as usize;
        Bytes::from(made).slice(skipped..skipped + length(&bytes))
    }
}

fn length(bytes: &Range<u64>) -> usize {
    usize::try_from(bytes.end - bytes.start).expect("a chunk fits memory")
}

/// bf16 exponent bits of the power of two below `2 / (3 · sqrt(columns))`, in each of four elements.
fn exponent(columns: u64) -> u64 {
    let power = (2.0 / 3.0 / (columns as f64).sqrt()).log2().floor();
    ((127.0 + power) as u64) * 0x0080_0080_0080_0080
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
        Box::pin(std::future::ready(Ok::<_, LoadError>(self.make(tensor, bytes))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_range_is_a_slice_of_the_whole() {
        let spec = ModelSpec::named("64x1x1x1x8x8x4096").expect("a shape");
        let source = RandomTensors::new(&spec, 5);
        for (tensor, length) in [("model.embed_tokens.weight", 64 * 4096 * 2), ("model.norm.weight", 128)] {
            let whole = source.make(tensor, 0..length);
            for (start, end) in [(0, 2), (6, 20), (3, 11), (1, length), (length - 5, length)] {
                assert_eq!(source.make(tensor, start..end), whole[start as usize..end as usize], "{start}..{end}");
            }
        }
    }
}
