//! Embedding, reference. Twin of `shaders/embed.wgsl`.
//!
//! out[t][c] = table[id(t)][c] · scale, where id(t) is the batch's token id or the content of a feed slot.

use super::dot::decode_row;
use super::loaded::LoadedPlan;
use super::memory::Weight;
use crate::plan::inputs::{BatchInputs, FEED};
use crate::plan::{Embed, Storage};

/// Runs the step.
pub(super) fn run(step: &Embed, loaded: &mut LoadedPlan, inputs: &BatchInputs) {
    loaded.write(step.out, inputs, |loaded, out, storage| {
        embed(
            loaded.weight(step.table),
            &inputs.token_ids,
            &loaded.feed,
            step.scale,
            out,
            storage,
        );
    });
}

/// Resolves a token id of the batch: the id itself, or the token that the sampler wrote to a feed slot.
pub(super) fn resolve(token_id: u32, feed: &[u32]) -> u32 {
    if token_id & FEED == 0 {
        token_id
    } else {
        feed[(token_id & !FEED) as usize]
    }
}

/// Fills one row of `out` per token id.
pub(super) fn embed(
    table: &Weight,
    token_ids: &[u32],
    feed: &[u32],
    scale: f32,
    out: &mut [f32],
    storage: Storage,
) {
    let columns = table.spec().columns as usize;
    assert_eq!(out.len(), token_ids.len() * columns, "one row per token");
    for (&token_id, row) in token_ids.iter().zip(out.chunks_exact_mut(columns)) {
        let id = resolve(token_id, feed) as usize;
        decode_row(table.format_of(id), table.row(id), row);
        for value in row {
            *value = storage.round((f64::from(*value) * f64::from(scale)) as f32);
        }
    }
}

#[cfg(test)]
mod tests;
