//! `AttendPaged` → dispatches.

use super::super::super::{BackendError, Capacity};
use super::super::device::Profile;
use super::super::metadata::Context;
use super::{Recorder, Variant};
use crate::plan::inputs::BatchInputs;
use crate::plan::{BufferId, Plan, WeightId};

/// The fields of [`crate::plan::Step::AttendPaged`].
pub(super) struct Fields {
    pub(super) q: BufferId,
    pub(super) layer: u32,
    pub(super) query_heads: u32,
    pub(super) scale: f32,
    pub(super) softcap: Option<f32>,
    pub(super) alibi: Option<WeightId>,
    pub(super) sinks: Option<WeightId>,
    pub(super) out: BufferId,
}

/// Counts of the work list of one KV group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct AttendShape {}

/// Most words that [`work`] appends for one group.
pub(crate) fn work_words_max(_plan: &Plan, _capacity: &Capacity, _profile: &Profile) -> u64 {
    0
}

/// Bytes of scratch for partial results; one buffer, reused by every layer.
pub(crate) fn scratch_bytes(_plan: &Plan, _capacity: &Capacity, _profile: &Profile) -> u64 {
    0
}

/// Appends the work list of KV group `group` to the metadata; its offset is already in the header (GROUP_WORK).
pub(crate) fn work(_context: &Context<'_>, _inputs: &BatchInputs, _group: usize, _words: &mut Vec<u32>) -> AttendShape {
    AttendShape {}
}

/// Records the dispatches.
pub(super) fn encode(_recorder: &mut Recorder<'_>, _fields: &Fields) -> Result<(), BackendError> {
    Err(BackendError::Kernel { kernel: "attend_paged".into(), message: "not built yet".into() })
}

/// Every variant [`encode`] can ask for.
pub(super) fn variants() -> Vec<Variant> {
    Vec::new()
}
