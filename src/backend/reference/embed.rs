//! Embedding, reference. Twin of `shaders/embed.wgsl`.
//!
//! out[t][c] (=, +=) table[id(t)][c] · scale, where id(t) is the batch's token id or the content of a feed slot; or the
//! row's position, which text of a pair it belongs to, or the row of an image that it stands for.

use super::dot::decode_row;
use super::loaded::LoadedPlan;
use super::memory::Weight;
use crate::plan::inputs::{BatchInputs, FEED, IMAGE_ROW, SECOND_TEXT};
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

/// The row of an image that a token of the batch stands for, if it does.
pub(super) fn image_row(token_id: u32) -> Option<u32> {
    (token_id & (FEED | IMAGE_ROW) == IMAGE_ROW).then_some(token_id & !IMAGE_ROW)
}

/// What selects the table's row of each token row; `None` leaves the output as it is.
pub(super) fn ids<'a>(
    id: RowId,
    inputs: &'a BatchInputs,
    feed: &'a [u32],
) -> impl Iterator<Item = Option<u32>> + 'a {
    let rows = inputs.token_ids.iter().zip(&inputs.positions);
    rows.map(move |(&token, &position)| match id {
        RowId::Token if image_row(token).is_some() => None,
        RowId::Token => Some(resolve(token, feed)),
        RowId::Position(first) => Some(first + position),
        RowId::Text => Some(u32::from(token & (FEED | SECOND_TEXT) == SECOND_TEXT)),
        RowId::Image => image_row(token),
    })
}

/// Fills one row of `out` per id, or adds to it.
pub(super) fn embed(
    table: &Weight,
    ids: impl Iterator<Item = Option<u32>>,
    step: &Embed,
    out: &mut [f32],
    storage: Storage,
) {
    let columns = table.spec().columns as usize;
    let mut row = vec![0.0; columns];
    for (id, out) in ids.zip(out.chunks_exact_mut(columns)) {
        let Some(id) = id else { continue };
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
