//! `RopeStoreKv` → dispatches.

use super::super::super::BackendError;
use super::{Recorder, Variant};
use crate::plan::{BufferId, HeadNorm, Rope};

/// The fields of [`crate::plan::Step::RopeStoreKv`].
pub(super) struct Fields {
    pub(super) qkv: BufferId,
    pub(super) layer: u32,
    pub(super) query_heads: u32,
    pub(super) q_norm: Option<HeadNorm>,
    pub(super) k_norm: Option<HeadNorm>,
    pub(super) rope: Option<Rope>,
    pub(super) q: BufferId,
}

/// Records the dispatches.
pub(super) fn encode(_recorder: &mut Recorder<'_>, _fields: &Fields) -> Result<(), BackendError> {
    Err(BackendError::Kernel { kernel: "rope_store_kv".into(), message: "not built yet".into() })
}

/// Every variant [`encode`] can ask for.
pub(super) fn variants() -> Vec<Variant> {
    Vec::new()
}
