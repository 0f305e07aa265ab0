//! `CopyBlocks` → one dispatch per layer and shard of its heads, if the batch copies any blocks.

use super::super::super::BackendError;
use super::super::super::metadata::group_header;
use super::super::pipelines::Kernel;
use super::{Recorder, Variant, params};

params! {
    Params { copies: u32, vectors: u32, group_header: u32 }
}

/// Invocations of a workgroup; each copies 16 bytes of K and of V.
const WORKGROUP: u32 = 64;

fn kernel(latent: bool) -> Kernel {
    Kernel::new("copy_blocks").define_if(latent, "LATENT")
}

/// Records the dispatches.
pub(super) fn encode(recorder: &mut Recorder<'_>) -> Result<(), BackendError> {
    let (plan, arena) = (recorder.plan, recorder.arena);
    for (layer, shards) in plan.kv_layers.iter().zip(&arena.kv) {
        let copies = recorder.shape.copies[layer.group as usize];
        debug_assert!(
            copies <= recorder.capacity.copies_max,
            "{copies} copies exceed the capacity"
        );
        for shard in shards {
            let slot_bytes = recorder.capacity.kv_format.row_bytes(layer.head_dim);
            let block_bytes =
                u64::from(shard.heads) * u64::from(recorder.capacity.block_size) * slot_bytes;
            let vectors = u32::try_from(block_bytes / 16).expect("a block fits a binding");
            let params = Params {
                copies,
                vectors,
                group_header: group_header(layer.group),
            };
            let bindings: Vec<_> = [arena.metadata.read()]
                .into_iter()
                .chain(shard.halves().map(|half| half.read_write()))
                .collect();
            let workgroups = (copies * vectors).div_ceil(WORKGROUP);
            recorder.dispatch(&kernel(layer.latent), &params, &bindings, workgroups)?;
        }
    }
    Ok(())
}

/// Every variant that [`encode`] can use.
pub(super) fn variants() -> Vec<Variant> {
    [false, true]
        .map(|latent| Variant::new::<Params>(kernel(latent), Params::FIELDS))
        .into()
}
