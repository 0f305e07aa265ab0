//! Block copies, reference. Twin of `shaders/copy_blocks.wgsl`.
//!
//! For every (source, target) of a KV group, block `source` of K and of V is copied to block `target`, bit for bit, in
//! each layer of the group. Within one batch no block is both source and target, and targets are distinct.

use super::loaded::LoadedPlan;
use super::memory::KvStore;
use crate::plan::inputs::BatchInputs;

/// Runs the step.
pub(super) fn run(loaded: &mut LoadedPlan, inputs: &BatchInputs) {
    for (layer, halves) in loaded.plan.kv_layers.iter().zip(&mut loaded.pool) {
        for half in halves.iter_mut().take(layer.halves() as usize) {
            copy_blocks(
                half,
                layer.heads as usize,
                &inputs.groups[layer.group as usize].copies,
            );
        }
    }
}

/// Copies whole blocks of `heads` tiles each, in the keys or values of one layer.
pub(super) fn copy_blocks(store: &mut KvStore, heads: usize, copies: &[(u32, u32)]) {
    for &(source, target) in copies {
        store.copy(source as usize * heads, target as usize * heads, heads);
    }
}

#[cfg(test)]
mod tests;
