//! Matrix products: a thread computes its panels for all rows.

use super::loaded::Loaded;
use super::memory::SharedSlice;
use super::product::{DOT_PANELS, Rows, prepare, product};
use super::scratch::ThreadScratch;
use super::simd::{LANES, Lanes, Level, with_simd};
use super::team::Team;
use super::weight::Section;
use crate::plan::MatMul;
use crate::plan::inputs::BatchInputs;
use std::ops::Range;

/// Runs the step.
pub(super) fn run(step: &MatMul, loaded: &mut Loaded, team: &mut Team, inputs: &BatchInputs) {
    loaded.write(step.out, inputs, |loaded, values, storage| {
        let matrix = loaded.matrix(step.weight);
        let (columns, count) = (
            matrix.spec().columns as usize,
            loaded.row_count(step.x, inputs),
        );
        let rows = Rows {
            values: loaded.rows(step.x, inputs),
            stride: columns,
            count,
            list: None,
        };
        let (bias, outputs) = (
            step.bias.map(|id| loaded.vector(id)),
            matrix.spec().rows as usize,
        );
        let values = SharedSlice::new(values);
        let panels = matrix.sections().iter().map(Section::panel_count).sum();
        team.run(panels, DOT_PANELS, |parts, scratch| {
            multiply(
                loaded.level,
                rows,
                matrix.sections(),
                parts,
                scratch,
                |row: usize, first: usize, found: &[f32]| {
                    #[allow(unsafe_code, reason = "panels of different threads are disjoint")]
                    // SAFETY: a panel is in one part of one thread.
                    let out = unsafe {
                        values.part(row * outputs + first..row * outputs + first + found.len())
                    };
                    for (index, (out, value)) in out.iter_mut().zip(found).enumerate() {
                        let bias = bias.map_or(0.0, |bias| bias[first + index]);
                        let old = if step.accumulate { *out } else { 0.0 };
                        *out = storage.round(value + bias + old);
                    }
                },
            );
        });
    });
}

/// Multiplies the rows with parts of the panels; `emit(row, first output, outputs)` takes the products.
pub(super) fn multiply(
    level: Level,
    rows: Rows<'_>,
    sections: &[Section],
    parts: impl Iterator<Item = Range<usize>>,
    scratch: &mut ThreadScratch,
    mut emit: impl FnMut(usize, usize, &[f32]),
) {
    let scratch = &mut scratch.product;
    let first = sections[0].panels();
    let columns = 0..first.columns;
    with_simd!(level, s => prepare(s, rows, &first, columns.len(), scratch));
    for part in parts {
        let mut before = 0;
        for section in sections {
            let count = section.panel_count();
            let [start, end] =
                [part.start, part.end].map(|panel| panel.clamp(before, before + count) - before);
            before += count;
            if start == end {
                continue;
            }
            let panels = section.panels();
            let mut emit = |row: usize, panel: usize, lanes: &Lanes| {
                let found = (section.rows - panel * LANES).min(LANES);
                emit(row, section.first_row + panel * LANES, &lanes[..found]);
            };
            with_simd!(level, s => product(s, rows, &panels, start..end, columns.clone(), scratch, &mut emit));
        }
    }
}
