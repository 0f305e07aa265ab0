//! Weights, in panels of sixteen rows.
//!
//! Word `j` of the sixteen rows of a panel is line `j` of the panel: a vector has the same place of sixteen rows, so
//! outputs are lanes, and sums need no reduction. In formats with 8-bit codes, the codes of a line are transposed once
//! more, from four bytes for each of sixteen rows to sixteen bytes for each of four columns.

use super::memory::{Lines, SharedSlice};
use super::simd::{LANES, Words};
use super::team::Team;
use crate::backend::BackendError;
use crate::plan::format::Codes;
use crate::plan::{Layout, WeightFormat, WeightSpec};

/// A weight matrix.
pub(super) struct Matrix {
    spec: WeightSpec,
    sections: Vec<Section>,
    /// Which rows have been written.
    written: Vec<bool>,
}

/// Consecutive rows of one format.
pub(super) struct Section {
    /// Their format.
    pub(super) format: WeightFormat,
    /// The first of them, in the matrix.
    pub(super) first_row: usize,
    /// How many there are.
    pub(super) rows: usize,
    columns: usize,
    /// Words of a row, which is the number of lines of a panel.
    words: usize,
    lines: Lines,
}

/// Panels of a section, to read.
#[derive(Clone, Copy)]
pub(super) struct Panels<'a> {
    /// Format of all rows.
    pub(super) format: WeightFormat,
    /// Columns of the matrix.
    pub(super) columns: usize,
    /// Lines of a panel.
    pub(super) words: usize,
    /// All lines, panel by panel.
    pub(super) lines: &'a [Words],
}

impl<'a> Panels<'a> {
    /// The lines of a panel.
    pub(super) fn panel(&self, panel: usize) -> &'a [Words] {
        &self.lines[panel * self.words..][..self.words]
    }
}

impl Matrix {
    /// Allocates a matrix.
    pub(super) fn new(spec: &WeightSpec) -> Result<Self, BackendError> {
        let per_expert = (spec.rows / spec.experts.max(1)) as usize;
        let (mut first_row, mut sections) = (0, Vec::with_capacity(spec.sections.len()));
        for section in &spec.sections {
            let (end, columns) = (first_row + section.rows as usize, spec.columns as usize);
            let words = (section.format.row_bytes(spec.columns) as usize).div_ceil(4);
            // A panel has rows of one expert only.
            while first_row < end {
                let rows = end.min((first_row / per_expert + 1) * per_expert) - first_row;
                let lines = Lines::zeroed(rows.div_ceil(LANES) * words, &spec.name)?;
                sections.push(Section {
                    format: section.format,
                    first_row,
                    rows,
                    columns,
                    words,
                    lines,
                });
                first_row += rows;
            }
        }
        Ok(Self {
            spec: spec.clone(),
            sections,
            written: vec![false; first_row],
        })
    }

    /// Name, shape and formats.
    pub(super) fn spec(&self) -> &WeightSpec {
        &self.spec
    }

    /// The sections, in order of rows.
    pub(super) fn sections(&self) -> &[Section] {
        &self.sections
    }

    /// The sections of one expert.
    pub(super) fn sections_of(&self, expert: usize) -> &[Section] {
        let rows = (self.spec.rows / self.spec.experts) as usize;
        &self.sections[self.first_section(expert * rows)..self.first_section((expert + 1) * rows)]
    }

    fn first_section(&self, row: usize) -> usize {
        self.sections
            .partition_point(|section| section.first_row < row)
    }

    /// Whether every row has been written.
    pub(super) fn is_whole(&self) -> bool {
        self.written.iter().all(|written| *written)
    }

    /// Writes whole rows of one section.
    pub(super) fn write(
        &mut self,
        first_row: u32,
        bytes: &[u8],
        team: &mut Team,
    ) -> Result<(), BackendError> {
        let rows = self.spec.whole_rows(first_row, bytes.len() as u64);
        let Some(rows) = rows else {
            return Err(BackendError::not_whole_rows(
                &self.spec.name,
                first_row,
                bytes.len(),
            ));
        };
        let (first, rows) = (first_row as usize, rows as usize);
        let is_whole = self.is_whole();
        let written = &mut self.written[first..first + rows];
        if written.contains(&true) && !is_whole {
            let message = format!(
                "weight {}: rows {first}..{} are written twice",
                self.spec.name,
                first + rows
            );
            return Err(BackendError::Validation(message));
        }
        written.fill(true);
        let row_bytes = bytes.len() / rows;
        let at = self
            .sections
            .partition_point(|section| section.first_row <= first)
            - 1;
        let mut done = 0;
        for section in &mut self.sections[at..] {
            let from = first + done - section.first_row;
            let count = (section.rows - from).min(rows - done);
            section.write(
                from,
                count,
                &bytes[done * row_bytes..][..count * row_bytes],
                team,
            );
            done += count;
            if done == rows {
                break;
            }
        }
        Ok(())
    }

    /// Decodes row `row` into `out`.
    pub(super) fn decode_row(&self, row: usize, bytes: &mut Vec<u8>, out: &mut [f32]) {
        let at = self
            .sections
            .partition_point(|section| section.first_row <= row)
            - 1;
        let section = &self.sections[at];
        section.row_bytes(row - section.first_row, bytes);
        decode(section.format, bytes, out);
    }
}

/// Decodes a row of a matrix or vector.
pub(super) fn decode(format: WeightFormat, bytes: &[u8], out: &mut [f32]) {
    let columns = out.len();
    if !format.is_quantised() {
        for (index, value) in out.iter_mut().enumerate() {
            *value = format.decode(bytes, columns, index);
        }
        return;
    }
    let layout = format.layout(columns);
    for (group, out) in out.chunks_mut(crate::plan::format::GROUP).enumerate() {
        out.copy_from_slice(&format.decode_group(bytes, &layout, group)[..out.len()]);
    }
}

impl Section {
    /// Number of panels.
    pub(super) fn panel_count(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    /// The panels.
    pub(super) fn panels(&self) -> Panels<'_> {
        Panels {
            format: self.format,
            columns: self.columns,
            words: self.words,
            lines: self.lines.lines(),
        }
    }

    /// Lines at the start of a panel whose bytes are transposed.
    fn byte_lines(&self) -> usize {
        if matches!(self.format.parts().0, Codes::Eight) {
            self.format.layout(self.columns).plane / 4
        } else {
            0
        }
    }

    /// Writes rows that were not written before.
    fn write(&mut self, first: usize, rows: usize, bytes: &[u8], team: &mut Team) {
        let (words, byte_lines, row_bytes) = (self.words, self.byte_lines(), bytes.len() / rows);
        let panels = first / LANES..(first + rows).div_ceil(LANES);
        let lines = SharedSlice::new(self.lines.lines_mut());
        team.run(panels.len(), 1, |parts, _| {
            for panel in parts.flatten() {
                let panel = panels.start + panel;
                #[allow(unsafe_code, reason = "panels of different threads are disjoint")]
                // SAFETY: each panel is in one part of one thread.
                let lines = unsafe { lines.part(panel * words..(panel + 1) * words) };
                let range = first.max(panel * LANES)..(first + rows).min((panel + 1) * LANES);
                write_panel(
                    lines,
                    byte_lines,
                    range
                        .clone()
                        .map(|at| (at % LANES, &bytes[(at - first) * row_bytes..][..row_bytes])),
                );
            }
        });
    }

    /// The bytes of a row, as they were written (padded to whole words).
    fn row_bytes(&self, row: usize, out: &mut Vec<u8>) {
        let lines = &self.lines.lines()[row / LANES * self.words..][..self.words];
        let (lane, byte_lines) = (row % LANES, self.byte_lines());
        out.clear();
        for line in &lines[..byte_lines] {
            let bytes: &[u8] = bytemuck::cast_slice(line);
            out.extend((0..4).map(|column| bytes[column * LANES + lane]));
        }
        out.extend(
            lines[byte_lines..]
                .iter()
                .flat_map(|line| line[lane].to_le_bytes()),
        );
    }
}

/// Writes rows of a panel, each to its lane. The first `byte_lines` lines have transposed bytes.
fn write_panel<'a>(
    lines: &mut [Words],
    byte_lines: usize,
    rows: impl Iterator<Item = (usize, &'a [u8])>,
) {
    for (lane, row) in rows {
        let (codes, rest) = lines.split_at_mut(byte_lines);
        let (code_bytes, rest_bytes) = row.split_at((4 * byte_lines).min(row.len()));
        for (line, bytes) in codes.iter_mut().zip(code_bytes.as_chunks::<4>().0) {
            let line: &mut [u8] = bytemuck::cast_slice_mut(line);
            for (column, byte) in bytes.iter().enumerate() {
                line[column * LANES + lane] = *byte;
            }
        }
        let (words, tail) = rest_bytes.as_chunks::<4>();
        for (line, word) in rest.iter_mut().zip(words) {
            line[lane] = u32::from_le_bytes(*word);
        }
        if let (false, Some(line)) = (tail.is_empty(), rest.get_mut(words.len())) {
            let mut word = [0; 4];
            word[..tail.len()].copy_from_slice(tail);
            line[lane] = u32::from_le_bytes(word);
        }
    }
}

/// Word offsets of the sections of a row.
#[derive(Clone, Copy, Default)]
pub(super) struct WordLayout {
    /// Second plane of codes.
    pub(super) plane: usize,
    /// Scales of the groups.
    pub(super) scales: usize,
    /// Halves shared by 256 weights.
    pub(super) supers: usize,
}

impl From<Layout> for WordLayout {
    fn from(layout: Layout) -> Self {
        Self {
            plane: layout.plane / 4,
            scales: layout.scales / 4,
            supers: layout.supers / 4,
        }
    }
}

#[cfg(test)]
mod tests;
