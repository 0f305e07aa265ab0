//! `ScaleLogits` → one launch.

use super::super::super::BackendError;
use super::{Kernel, Recorder, params};
use crate::plan::ScaleLogits;

params! {
    Params { metadata: u64, logits: u64, vocab: u32, scale: f32, softcap: f32, unused: u32 }
}

/// Threads per block; each handles four elements per iteration.
const THREADS: u32 = 256;
/// Maximum blocks per multiprocessor; each block strides over the rest.
const BLOCKS_EACH: u32 = 16;

/// Records the launch.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &ScaleLogits) -> Result<(), BackendError> {
    let ScaleLogits {
        logits,
        scale,
        softcap,
    } = *step;
    let vocab = recorder.columns(logits);
    debug_assert!(
        recorder.rows(logits) <= recorder.capacity.samples_max,
        "a sample row has its logits"
    );
    let params = Params {
        metadata: recorder.arena.metadata,
        logits: recorder.row_buffer(logits),
        vocab,
        scale,
        softcap: softcap.unwrap_or(0.0),
        unused: 0,
    };
    let elements = u64::from(recorder.rows(logits)) * u64::from(vocab);
    let most = recorder.device.sm_count * BLOCKS_EACH;
    let blocks = u32::try_from(elements.div_ceil(u64::from(4 * THREADS)))
        .unwrap_or(most)
        .min(most);
    let kernel = Kernel::new("scale_logits").flag_if(softcap.is_some(), "SOFTCAP");
    recorder.launch(&kernel, &params, [blocks, 1, 1], THREADS, 0)
}
