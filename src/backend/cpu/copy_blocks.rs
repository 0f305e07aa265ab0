//! Copies of blocks that two sequences share.

use super::loaded::Loaded;
use crate::plan::inputs::BatchInputs;

/// Copies the blocks of the batch's copy lists in every layer.
pub(super) fn run(loaded: &mut Loaded, inputs: &BatchInputs) {
    for (layer, halves) in loaded.plan.kv_layers.iter().zip(&mut loaded.pool) {
        let heads = layer.heads as usize;
        for &(source, target) in &inputs.groups[layer.group as usize].copies {
            let halves = halves.iter_mut().take(layer.halves() as usize);
            halves.for_each(|half| {
                half.copy(source as usize * heads, target as usize * heads, heads);
            });
        }
    }
}
