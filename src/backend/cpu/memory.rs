//! What the reference keeps: weights as the bytes it was given, and the KV pool.

use super::dot::decode_row;
use crate::backend::BackendError;
use crate::plan::format::clamp_f16;
use crate::plan::{KvFormat, WeightSpec};
use bytes::Bytes;
use half::f16;
use half::slice::HalfFloatSliceExt;

/// A weight tensor in whole-row chunks, never copied and of any alignment.
pub(super) struct Weight {
    spec: WeightSpec,
    /// Sorted by first row; no overlap.
    chunks: Vec<(u32, Bytes)>,
}

impl Weight {
    /// A weight without rows.
    pub(super) fn new(spec: WeightSpec) -> Self {
        Self { spec, chunks: Vec::new() }
    }

    /// Name, shape and format.
    pub(super) fn spec(&self) -> &WeightSpec {
        &self.spec
    }

    /// Keeps `rows`, whole rows from `first_row` on; an error names what is wrong with them.
    pub(super) fn insert(&mut self, first_row: u32, rows: Bytes) -> Result<(), BackendError> {
        let (name, row_bytes) = (&self.spec.name, self.spec.row_bytes());
        let invalid = |message: String| Err(BackendError::Validation(format!("weight {name}: {message}")));
        if rows.is_empty() || !(rows.len() as u64).is_multiple_of(row_bytes) {
            return invalid(format!("{} bytes are not whole rows of {row_bytes}", rows.len()));
        }
        let end = u64::from(first_row) + rows.len() as u64 / row_bytes;
        if end > u64::from(self.spec.rows) {
            return invalid(format!("rows {first_row}..{end} of {}", self.spec.rows));
        }
        let at = self.chunks.partition_point(|(first, _)| *first < first_row);
        let before_ends = at.checked_sub(1).map_or(0, |before| self.chunk_end(before));
        let after_starts = self.chunks.get(at).map_or(u64::MAX, |(first, _)| u64::from(*first));
        if u64::from(first_row) < before_ends || end > after_starts {
            return invalid(format!("rows {first_row}..{end} are written twice"));
        }
        self.chunks.insert(at, (first_row, rows));
        Ok(())
    }

    /// Whether every row has been written.
    pub(super) fn is_whole(&self) -> bool {
        let bytes: u64 = self.chunks.iter().map(|(_, rows)| rows.len() as u64).sum();
        bytes == self.spec.bytes()
    }

    /// The bytes of one row.
    pub(super) fn row(&self, row: usize) -> &[u8] {
        let at = self.chunks.partition_point(|(first, _)| *first as usize <= row);
        let (first, rows) = &self.chunks[at - 1];
        let row_bytes = self.spec.row_bytes() as usize;
        &rows[(row - *first as usize) * row_bytes..][..row_bytes]
    }

    /// The first row, decoded: what a vector holds.
    pub(super) fn vector(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.spec.columns as usize];
        decode_row(self.spec.format, self.row(0), &mut values);
        values
    }

    fn chunk_end(&self, chunk: usize) -> u64 {
        let (first, rows) = &self.chunks[chunk];
        u64::from(*first) + rows.len() as u64 / self.spec.row_bytes()
    }
}

/// One half (K or V) of one layer's pool: `[block][kv_head][slot][head_dim]`.
pub(super) enum KvStore {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// Halves, clamped when written.
    F16(Vec<f16>),
}

impl Default for KvStore {
    fn default() -> Self {
        Self::F32(Vec::new())
    }
}

impl KvStore {
    /// `elements` zeros.
    pub(super) fn new(format: KvFormat, elements: usize) -> Result<Self, BackendError> {
        Ok(match format {
            KvFormat::F32 => Self::F32(zeros(elements, 0.0)?),
            KvFormat::F16 => Self::F16(zeros(elements, f16::ZERO)?),
        })
    }

    /// Elements of all blocks.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
        }
    }

    /// Widens `out.len()` elements from `start` on.
    pub(super) fn read(&self, start: usize, out: &mut [f32]) {
        match self {
            Self::F32(values) => out.copy_from_slice(&values[start..start + out.len()]),
            Self::F16(values) => values[start..start + out.len()].convert_to_f32_slice(out),
        }
    }

    /// Rounds `values` into the elements from `start` on.
    pub(super) fn write(&mut self, start: usize, values: &[f32]) {
        match self {
            Self::F32(store) => store[start..start + values.len()].copy_from_slice(values),
            Self::F16(store) => {
                for (element, value) in store[start..start + values.len()].iter_mut().zip(values) {
                    *element = f16::from_f32(clamp_f16(*value));
                }
            }
        }
    }

    /// Copies `elements` from `source` to `target`, bit for bit.
    pub(super) fn copy(&mut self, source: usize, target: usize, elements: usize) {
        match self {
            Self::F32(values) => values.copy_within(source..source + elements, target),
            Self::F16(values) => values.copy_within(source..source + elements, target),
        }
    }
}

/// A zeroed allocation that reports failure instead of aborting. Untouched pages stay unmapped.
fn zeros<T: Copy + bytemuck::Zeroable>(elements: usize, zero: T) -> Result<Vec<T>, BackendError> {
    let out_of_memory =
        || BackendError::OutOfMemory { what: "the KV pool".into(), bytes: (elements * size_of::<T>()) as u64 };
    Vec::<T>::new().try_reserve_exact(elements).map_err(|_| out_of_memory())?;
    Ok(vec![zero; elements])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::WeightFormat;

    fn weight() -> Weight {
        Weight::new(WeightSpec { name: "w".into(), rows: 5, columns: 2, format: WeightFormat::Bf16, experts: 1 })
    }

    #[test]
    fn chunks_may_come_in_any_order_and_alignment() {
        let bytes: Bytes = (0..21).collect::<Vec<u8>>().into();
        let mut weight = weight();
        weight.insert(3, bytes.slice(13..21)).unwrap();
        assert!(!weight.is_whole());
        weight.insert(0, bytes.slice(1..5)).unwrap();
        weight.insert(1, bytes.slice(5..13)).unwrap();
        assert!(weight.is_whole());
        for row in 0..5 {
            assert_eq!(weight.row(row), &bytes[1 + row * 4..][..4], "row {row}");
        }
    }

    #[test]
    fn wrong_chunks_are_refused() {
        let zeros = |length: usize| Bytes::from(vec![0; length]);
        let mut weight = weight();
        assert!(weight.insert(0, zeros(6)).is_err(), "not whole rows");
        assert!(weight.insert(4, zeros(8)).is_err(), "past the end");
        weight.insert(1, zeros(8)).unwrap();
        assert!(weight.insert(0, zeros(8)).is_err(), "overlaps what follows");
        assert!(weight.insert(2, zeros(4)).is_err(), "overlaps what precedes");
    }
}
