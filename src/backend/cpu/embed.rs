//! Look-up of token ids, positions and token types.

use super::loaded::Loaded;
use super::team::Team;
use crate::plan::inputs::{BatchInputs, FEED, SECOND_TEXT};
use crate::plan::{Embed, RowId};

/// Runs the step.
pub(super) fn run(step: &Embed, loaded: &mut Loaded, team: &mut Team, inputs: &BatchInputs) {
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let (table, bytes) = (loaded.matrix(step.table), &mut team.own().bytes);
        let mut decoded = vec![0.0; loaded.columns(step.out)];
        let rows = inputs.token_ids.iter().zip(&inputs.positions);
        for ((&token, &position), row) in rows.zip(out.chunks_exact_mut(decoded.len())) {
            let id = match step.id {
                RowId::Token if token & FEED == 0 => token & !SECOND_TEXT,
                RowId::Token => loaded.feed[(token & !FEED) as usize],
                RowId::Position(first) => first + position,
                RowId::Text => u32::from(token & (FEED | SECOND_TEXT) == SECOND_TEXT),
            };
            table.decode_row(id as usize, bytes, &mut decoded);
            for (out, value) in row.iter_mut().zip(&decoded) {
                let old = if step.accumulate { *out } else { 0.0 };
                *out = storage.round(old + value * step.scale);
            }
        }
    });
}
