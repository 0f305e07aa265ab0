//! `Sample` → dispatches.

use super::super::super::{BackendError, Capacity};
use super::super::device::Profile;
use super::{Recorder, Variant};
use crate::plan::inputs::BatchInputs;
use crate::plan::{BufferId, Plan};

/// Which sampling options any row of a batch uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct SampleShape {}

/// Bytes of scratch for one run of the tail.
pub(crate) fn scratch_bytes(_plan: &Plan, _capacity: &Capacity, _profile: &Profile) -> u64 {
    0
}

/// What the kernels of this batch need to be able to do.
pub(crate) fn shape(_inputs: &BatchInputs) -> SampleShape {
    SampleShape {}
}

/// Records the dispatches for the sample rows of `recorder.group`.
pub(super) fn encode(_recorder: &mut Recorder<'_>, _logits: BufferId) -> Result<(), BackendError> {
    Err(BackendError::Kernel { kernel: "sample".into(), message: "not built yet".into() })
}

/// Every variant [`encode`] can ask for.
pub(super) fn variants() -> Vec<Variant> {
    Vec::new()
}
