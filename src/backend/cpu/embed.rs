//! Look-up of token ids.

use super::loaded::Loaded;
use super::team::Team;
use crate::plan::Embed;
use crate::plan::inputs::{BatchInputs, FEED};

/// Runs the step.
pub(super) fn run(step: &Embed, loaded: &mut Loaded, team: &mut Team, inputs: &BatchInputs) {
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let (table, bytes) = (loaded.matrix(step.table), &mut team.own().bytes);
        for (&id, row) in inputs
            .token_ids
            .iter()
            .zip(out.chunks_exact_mut(loaded.columns(step.out)))
        {
            let id = if id & FEED == 0 {
                id
            } else {
                loaded.feed[(id & !FEED) as usize]
            };
            table.decode_row(id as usize, bytes, row);
            row.iter_mut()
                .for_each(|value| *value = storage.round(*value * step.scale));
        }
    });
}
