//! `ScaleLogits` → one dispatch.

use super::super::super::BackendError;
use super::super::pipelines::Kernel;
use super::{Recorder, Variant, params};
use crate::plan::ScaleLogits;

params! {
    Params { elements: u32, scale: f32, softcap: f32 }
}

/// Invocations of a workgroup; each computes one element.
const WORKGROUP: u32 = 64;

fn kernel(softcap: bool) -> Kernel {
    Kernel::new("scale_logits").define_if(softcap, "SOFTCAP")
}

/// Records the dispatch.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &ScaleLogits) -> Result<(), BackendError> {
    let ScaleLogits {
        logits,
        scale,
        softcap,
    } = *step;
    let elements = recorder.rows(logits) * recorder.columns(logits);
    debug_assert!(
        recorder.rows(logits) <= recorder.arena.group_rows,
        "a run of the tail has rows for its logits"
    );
    let params = Params {
        elements,
        scale,
        softcap: softcap.unwrap_or(0.0),
    };
    let bindings = [recorder.row_buffer(logits).read_write()];
    recorder.dispatch(
        &kernel(softcap.is_some()),
        &params,
        &bindings,
        elements.div_ceil(WORKGROUP),
    )
}

/// Every variant that [`encode`] can use.
pub(super) fn variants() -> Vec<Variant> {
    [false, true]
        .map(|softcap| Variant::new::<Params>(kernel(softcap), Params::FIELDS))
        .into()
}
