//! Embedding, reference. Twin of `shaders/embed.wgsl`.
//!
//! out[t][c] (=, +=) table[id(t)][c] · scale, where id(t) is the batch's token id or the content of a feed slot; or the
//! row's position, or which text of a pair it belongs to.

use super::dot::decode_row;
use super::loaded::LoadedPlan;
use super::memory::Weight;
use crate::plan::inputs::{BatchInputs, FEED, SECOND_TEXT};
use crate::plan::{Embed, RowId, Storage};

/// Runs the step.
pub(super) fn run(step: &Embed, loaded: &mut LoadedPlan, inputs: &BatchInputs) {
    loaded.write(step.out, inputs, |loaded, out, storage| {
        embed(
            loaded.weight(step.table),
            ids(step.id, inputs, &loaded.feed),
            step,
            out,
            storage,
        );
    });
}

/// Resolves a token id of the batch: the id itself, or the token that the sampler wrote to a feed slot.
pub(super) fn resolve(token_id: u32, feed: &[u32]) -> u32 {
    if token_id & FEED == 0 {
        token_id & !SECOND_TEXT
    } else {
        feed[(token_id & !FEED) as usize]
    }
}

/// What selects the table's row of each token row.
pub(super) fn ids<'a>(
    id: RowId,
    inputs: &'a BatchInputs,
    feed: &'a [u32],
) -> impl Iterator<Item = u32> + 'a {
    let rows = inputs.token_ids.iter().zip(&inputs.positions);
    rows.map(move |(&token, &position)| match id {
        RowId::Token => resolve(token, feed),
        RowId::Position(first) => first + position,
        RowId::Text => u32::from(token & (FEED | SECOND_TEXT) == SECOND_TEXT),
    })
}

/// Fills one row of `out` per id, or adds to it.
pub(super) fn embed(
    table: &Weight,
    ids: impl Iterator<Item = u32>,
    step: &Embed,
    out: &mut [f32],
    storage: Storage,
) {
    let columns = table.spec().columns as usize;
    let mut row = vec![0.0; columns];
    for (id, out) in ids.zip(out.chunks_exact_mut(columns)) {
        decode_row(
            table.format_of(id as usize),
            table.row(id as usize),
            &mut row,
        );
        for (out, value) in out.iter_mut().zip(&row) {
            let old = if step.accumulate {
                f64::from(*out)
            } else {
                0.0
            };
            *out = storage.round((old + f64::from(*value) * f64::from(step.scale)) as f32);
        }
    }
}

#[cfg(test)]
mod tests;
