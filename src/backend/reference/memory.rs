//! Memory of the reference: weights as the bytes that were written, and the KV pool.

use super::dot::decode_row;
use crate::backend::BackendError;
use crate::plan::format::KvTile;
use crate::plan::{WeightFormat, WeightSpec};
use bytes::Bytes;
use std::ops::Range;

/// A weight tensor as chunks of whole rows, which are never copied and have any alignment.
pub(super) struct Weight {
    spec: WeightSpec,
    /// Chunks, sorted by first row, without overlap.
    chunks: Vec<(u32, Bytes)>,
}

impl Weight {
    /// A weight with no rows written yet.
    pub(super) fn new(spec: WeightSpec) -> Self {
        Self {
            spec,
            chunks: Vec::new(),
        }
    }

    /// Name, shape and format.
    pub(super) fn spec(&self) -> &WeightSpec {
        &self.spec
    }

    /// Adds `rows`, whole rows starting at `first_row`; an error says what is wrong with them.
    pub(super) fn insert(&mut self, first_row: u32, rows: Bytes) -> Result<(), BackendError> {
        let name = self.spec.name.clone();
        let invalid = |message: String| {
            Err(BackendError::Validation(format!(
                "weight {name}: {message}"
            )))
        };
        let Some(count) = self.spec.whole_rows(first_row, rows.len() as u64) else {
            let row_bytes = self.spec.row_bytes(first_row);
            return invalid(format!(
                "{} bytes at row {first_row} are not whole rows of {row_bytes} bytes",
                rows.len()
            ));
        };
        if self.is_whole() {
            self.remove(first_row..first_row + count);
        }
        let end = u64::from(first_row + count);
        let at = self.chunks.partition_point(|(first, _)| *first < first_row);
        let before_ends = at.checked_sub(1).map_or(0, |before| self.chunk_end(before));
        let after_starts = self
            .chunks
            .get(at)
            .map_or(u64::MAX, |(first, _)| u64::from(*first));
        if u64::from(first_row) < before_ends || end > after_starts {
            return invalid(format!("rows {first_row}..{end} are written twice"));
        }
        self.chunks.insert(at, (first_row, rows));
        Ok(())
    }

    /// Removes rows, of chunks that may have more.
    fn remove(&mut self, rows: Range<u32>) {
        let mut kept = Vec::new();
        for index in 0..self.chunks.len() {
            let end = self.chunk_end(index) as u32;
            let (first, bytes) = &self.chunks[index];
            let row_bytes = self.spec.row_bytes(*first) as usize;
            let part = |part: Range<u32>| {
                let from = (part.start - first) as usize * row_bytes;
                let to = (part.end - first) as usize * row_bytes;
                (part.start, bytes.slice(from..to))
            };
            let before = *first..end.min(rows.start).max(*first);
            let after = (*first).max(rows.end).min(end)..end;
            kept.extend(
                [before, after]
                    .into_iter()
                    .filter(|part| !part.is_empty())
                    .map(part),
            );
        }
        self.chunks = kept;
    }

    /// Whether every row has been written.
    pub(super) fn is_whole(&self) -> bool {
        let bytes: u64 = self.chunks.iter().map(|(_, rows)| rows.len() as u64).sum();
        bytes == self.spec.bytes()
    }

    /// The bytes of one row.
    pub(super) fn row(&self, row: usize) -> &[u8] {
        let at = self
            .chunks
            .partition_point(|(first, _)| *first as usize <= row);
        let (first, rows) = &self.chunks[at - 1];
        let row_bytes = self.spec.row_bytes(*first) as usize;
        &rows[(row - *first as usize) * row_bytes..][..row_bytes]
    }

    /// The format of one row.
    pub(super) fn format_of(&self, row: usize) -> WeightFormat {
        match self.spec.sections[..] {
            [section] => section.format,
            _ => self.spec.format_of(row as u32),
        }
    }

    /// The first row, decoded: the values of a vector.
    pub(super) fn vector(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.spec.columns as usize];
        decode_row(self.format_of(0), self.row(0), &mut values);
        values
    }

    fn chunk_end(&self, chunk: usize) -> u64 {
        let (first, rows) = &self.chunks[chunk];
        u64::from(*first) + rows.len() as u64 / self.spec.row_bytes(*first)
    }
}

/// Keys or values of one layer: `[block][kv_head]` tiles, with the same bytes as on a device.
pub(super) struct KvStore {
    tile: KvTile,
    words: Vec<u32>,
}

impl KvStore {
    /// Allocates `tiles` tiles of zeros.
    pub(super) fn new(tile: KvTile, tiles: usize) -> Result<Self, BackendError> {
        Ok(Self {
            tile,
            words: zeros(tiles * tile.words())?,
        })
    }

    /// Number of elements in all rows.
    pub(super) fn elements(&self) -> usize {
        self.words.len() / self.tile.words() * self.tile.slots * self.tile.head_dim
    }

    /// Widens rows starting at row `first`, counted over all tiles, until `out` is full.
    pub(super) fn read(&self, first: usize, out: &mut [f32]) {
        for (row, out) in (first..).zip(out.chunks_exact_mut(self.tile.head_dim)) {
            let tile = &self.words[self.tile_words(row / self.tile.slots, 1)];
            self.tile.decode(tile, row % self.tile.slots, out);
        }
    }

    /// Rounds `values` into the rows starting at row `first`, counted over all tiles.
    pub(super) fn write(&mut self, first: usize, values: &[f32]) {
        for (row, values) in (first..).zip(values.chunks_exact(self.tile.head_dim)) {
            let words = self.tile_words(row / self.tile.slots, 1);
            self.tile
                .encode(&mut self.words[words], row % self.tile.slots, values);
        }
    }

    /// Copies `count` tiles, starting at `source`, to the tiles starting at `target`, bit for bit.
    pub(super) fn copy(&mut self, source: usize, target: usize, count: usize) {
        let (source, target) = (
            self.tile_words(source, count),
            self.tile_words(target, count),
        );
        self.words.copy_within(source, target.start);
    }

    /// The bytes of `count` tiles, starting at tile `first`.
    pub(super) fn bytes(&self, first: usize, count: usize) -> &[u8] {
        bytemuck::cast_slice(&self.words[self.tile_words(first, count)])
    }

    /// The bytes of `count` tiles, to write.
    pub(super) fn bytes_mut(&mut self, first: usize, count: usize) -> &mut [u8] {
        let words = self.tile_words(first, count);
        bytemuck::cast_slice_mut(&mut self.words[words])
    }

    fn tile_words(&self, first: usize, count: usize) -> Range<usize> {
        first * self.tile.words()..(first + count) * self.tile.words()
    }
}

/// A zeroed allocation that returns an error instead of aborting. Untouched pages stay unmapped.
fn zeros(words: usize) -> Result<Vec<u32>, BackendError> {
    Vec::<u32>::new()
        .try_reserve_exact(words)
        .map_err(|_| BackendError::OutOfMemory {
            what: "the KV pool".into(),
            bytes: words as u64 * 4,
        })?;
    Ok(vec![0; words])
}

#[cfg(test)]
mod tests;
