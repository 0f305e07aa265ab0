//! Look-up of token ids, positions, token types and rows of images.

use super::loaded::Loaded;
use super::team::Team;
use crate::plan::inputs::{BatchInputs, FEED, IMAGE_ROW, SECOND_TEXT};
use crate::plan::{Embed, RowId};

/// Runs the step.
pub(super) fn run(step: &Embed, loaded: &mut Loaded, team: &mut Team, inputs: &BatchInputs) {
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let (table, bytes) = (loaded.matrix(step.table), &mut team.own().bytes);
        let columns = loaded.columns(step.out);
        // Only the tables of encoders are added.
        let mut decoded = vec![0.0; if step.accumulate { columns } else { 0 }];
        let rows = inputs.token_ids.iter().zip(&inputs.positions);
        for ((&token, &position), row) in rows.zip(out.chunks_exact_mut(columns)) {
            let is_image = token & (FEED | IMAGE_ROW) == IMAGE_ROW;
            let id = match step.id {
                RowId::Image if is_image => token & !IMAGE_ROW,
                RowId::Image => continue,
                RowId::Token if is_image => continue,
                RowId::Token if token & FEED == 0 => token & !SECOND_TEXT,
                RowId::Token => loaded.feed[(token & !FEED) as usize],
                RowId::Position(first) => first + position,
                RowId::Text => u32::from(token & (FEED | SECOND_TEXT) == SECOND_TEXT),
            };
            if step.accumulate {
                table.decode_row(id as usize, bytes, &mut decoded);
                for (out, value) in row.iter_mut().zip(&decoded) {
                    *out = storage.round(*out + value * step.scale);
                }
            } else {
                table.decode_row(id as usize, bytes, row);
                row.iter_mut()
                    .for_each(|value| *value = storage.round(*value * step.scale));
            }
        }
    });
}
