//! The tower: turns parts of images into rows for the decoder, on a device of its own of the same kind.
//!
//! Its steps run before the step of the decoder whose tokens stand for these images. Its rows pass through the host:
//! from there they are written to the decoder's pool of image rows, which [`super::images`] divides among sequences.

use super::images::TileLoad;
use super::loaded::LoadedPlan;
use super::request::Tile;
use crate::backend::{Backend, BackendError};
use crate::config::ConfigError;
use crate::plan::inputs::{BatchInputs, PoolRow, SequenceRows};
use crate::plan::{Tail, WeightId};
use bytes::Bytes;

/// Checks that what is asked for goes with images.
pub(super) fn check(has_tower: bool, has_draft: bool) -> Result<(), ConfigError> {
    if !has_tower || !has_draft {
        return Ok(());
    }
    Err(ConfigError {
        option: "speculative_config",
        message: "names a draft model, which would not see the images that this model reads".into(),
    })
}

/// A loaded tower.
pub(super) struct Tower<B, S> {
    pub(super) backend: B,
    pub(super) source: S,
    pub(super) loaded: LoadedPlan,
}

impl<B: Backend, S> Tower<B, S> {
    /// Computes the rows of tiles, in as many steps as they need, and writes them to the pool of a decoder.
    pub(super) async fn compute(
        &mut self,
        loads: &[TileLoad],
        decoder: &mut B,
        pool: WeightId,
    ) -> Result<(), BackendError> {
        let mut rest = loads;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(self.tiles_that_fit(rest));
            let tiles: Vec<&Tile> = now.iter().map(|load| &load.tile).collect();
            let mut rows = self.rows(&tiles).await?.into_iter();
            for load in now {
                write_rows(&mut rows, &load.rows, decoder, pool)?;
            }
            rest = later;
        }
        Ok(())
    }

    /// Number of leading tiles that fit a step; at least one.
    fn tiles_that_fit(&self, loads: &[TileLoad]) -> usize {
        let capacity = &self.loaded.capacity;
        let mut left = capacity.tokens_max;
        let fits = |load: &&TileLoad| match left.checked_sub(load.tile.patch_count()) {
            Some(rest) => {
                left = rest;
                true
            }
            None => false,
        };
        let most = capacity.sequences_max as usize;
        loads.iter().take(most).take_while(fits).count().max(1)
    }

    /// The rows of some tiles, in one step.
    async fn rows(&mut self, tiles: &[&Tile]) -> Result<Vec<Vec<f32>>, BackendError> {
        let plan = self.loaded.plan();
        let table = plan.token_table().expect("a tower looks its patches up");
        let inputs = batch(tiles, plan.gathered_run());
        let patches = tiles.iter().flat_map(|tile| tile.patches.iter());
        let patches: Vec<u8> = patches.flat_map(|number| number.to_le_bytes()).collect();
        self.backend.write_weight(table, 0, patches.into())?;
        let ticket = self.backend.submit(&inputs)?;
        let results = self.backend.read(ticket).await?;
        Ok(results.pooled)
    }
}

/// The step of a tower for some tiles, whose patches are the first rows of its table. Each run of patches becomes a
/// row.
fn batch(tiles: &[&Tile], run: u32) -> BatchInputs {
    let mut inputs = BatchInputs::default();
    let mut row_start = 0;
    for tile in tiles {
        let row_count = tile.patch_count();
        inputs.positions.extend(&*tile.positions);
        let places = tile.positions.iter().map(|at| tile.place(*at));
        inputs.places.extend(places);
        inputs.sequences.push(SequenceRows {
            row_start,
            row_count,
            context_len: row_count,
        });
        row_start += row_count;
    }
    inputs.token_ids = (0..row_start).collect();
    inputs.logits_rows = (0..row_start).step_by(run as usize).collect();
    let rows = 0..row_start / run;
    inputs.pools = rows
        .map(|row_start| PoolRow {
            row_start,
            row_count: 1,
        })
        .collect();
    inputs.tails.push(Tail::Pool);
    inputs
}

/// Writes the next rows to these rows of a pool, those that are consecutive at once.
fn write_rows<B: Backend>(
    rows: &mut impl Iterator<Item = Vec<f32>>,
    places: &[u32],
    decoder: &mut B,
    pool: WeightId,
) -> Result<(), BackendError> {
    for run in places.chunk_by(|a, b| a + 1 == *b) {
        let numbers = rows.by_ref().take(run.len()).flatten();
        let bytes: Bytes = numbers.flat_map(f32::to_le_bytes).collect();
        decoder.write_weight(pool, run[0], bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
