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
mod tests {
    use super::*;
    use crate::plan::KvFormat;
    use crate::plan::format::KvTile;

    #[test]
    fn targets_become_their_sources_and_nothing_else_changes() {
        const HEADS: usize = 3;
        for format in KvFormat::ALL {
            let tile = KvTile {
                format,
                slots: 2,
                head_dim: 8,
            };
            let mut store = KvStore::new(tile, 4 * HEADS).unwrap();
            let block = 2 * 8 * HEADS;
            let values: Vec<f32> = (0..4 * block)
                .map(|at| (at as f32 * 12.9898).sin())
                .collect();
            store.write(0, &values);
            let all = |store: &KvStore| {
                let mut out = vec![0.0; values.len()];
                store.read(0, &mut out);
                out
            };
            let before = all(&store);
            copy_blocks(&mut store, HEADS, &[(3, 0), (1, 2)]);
            let after = all(&store);
            for (target, source) in [3, 1, 1, 3].into_iter().enumerate() {
                let (found, expected) = (
                    &after[target * block..][..block],
                    &before[source * block..][..block],
                );
                assert_eq!(found, expected, "{format:?}, block {target}");
            }
        }
    }
}
