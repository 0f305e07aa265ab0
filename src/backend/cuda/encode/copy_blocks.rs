//! `CopyBlocks` → one launch for all layers of a KV group whose blocks have the same size.
//!
//! Kernels read the number of copies from the batch; whether there are any is part of the shape.

use super::super::super::{BackendError, metadata};
use super::{Kernel, Recorder, params};

params! {
    Params {
        metadata: u64,
        table: u64,
        layers: u64,
        layer_first: u32,
        group_header: u32,
        vectors: u32,
        unused: u32,
    }
}

/// Threads per block; each copies 16 bytes of K and of V per iteration.
const THREADS: u32 = 256;
/// Blocks per multiprocessor, over all layers of a launch.
const BLOCKS_EACH: u32 = 4;
/// Maximum layers per launch.
const LAYERS_MAX: usize = 64;

/// Layers copied by one launch.
struct Run {
    group: u32,
    vectors: u32,
    layer_first: usize,
    layers: u64,
}

/// All layers, each in exactly one run.
fn runs(recorder: &Recorder<'_>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (index, layer) in recorder.plan.kv_layers.iter().enumerate() {
        let tile_bytes = recorder.capacity.kv_tile(layer.head_dim).words() as u64 * 4;
        let vectors = u32::try_from(u64::from(layer.heads) * tile_bytes / 16).unwrap_or(u32::MAX);
        let layer_first = index / LAYERS_MAX * LAYERS_MAX;
        let bit = 1 << (index - layer_first);
        match runs.iter_mut().find(|run| {
            (run.group, run.vectors, run.layer_first) == (layer.group, vectors, layer_first)
        }) {
            Some(run) => run.layers |= bit,
            None => runs.push(Run {
                group: layer.group,
                vectors,
                layer_first,
                layers: bit,
            }),
        }
    }
    runs
}

/// Records the launches.
pub(super) fn encode(recorder: &mut Recorder<'_>) -> Result<(), BackendError> {
    if !recorder.shape.copies {
        return Ok(());
    }
    let kernel = Kernel::new("copy_blocks");
    for run in runs(recorder) {
        let params = Params {
            metadata: recorder.arena.metadata,
            table: recorder.arena.kv_table,
            layers: run.layers,
            layer_first: run.layer_first as u32,
            group_header: metadata::group_header(run.group),
            vectors: run.vectors,
            unused: 0,
        };
        // The grid covers layers up to the last one in the mask; blocks of layers not in the mask exit at once.
        debug_assert!(
            run.layers != 0 && run.vectors > 0,
            "a run copies blocks of a layer"
        );
        let height = u64::BITS - run.layers.leading_zeros();
        let full = (recorder.device.sm_count * BLOCKS_EACH).div_ceil(run.layers.count_ones());
        let needed = recorder
            .capacity
            .copies_max
            .saturating_mul(run.vectors)
            .div_ceil(THREADS);
        recorder.launch(&kernel, &params, [full.min(needed), height, 1], THREADS, 0)?;
    }
    Ok(())
}
