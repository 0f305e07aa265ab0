//! The steps of a plan. Each has its own file with its fields, operands, shape checks and printed line.
//!
//! For example, `src/plan/step/rms_norm.rs` declares [`RmsNorm`]; `src/backend/reference/rms_norm.rs` defines
//! its result.

mod attend_paged;
mod attend_rows;
mod copy_blocks;
mod embed;
mod gated_activation;
mod gated_norm;
mod gather_rows;
mod matmul;
mod matmul_experts;
mod operation;
mod pool;
mod rms_norm;
mod rope_store_kv;
mod rope_store_latent;
mod rotate_rows;
mod route_adapters;
mod route_experts;
mod rules;
mod sample;
mod scale_logits;
mod short_convolution;
mod state_scan;

pub use attend_paged::AttendPaged;
pub use attend_rows::AttendRows;
pub use copy_blocks::CopyBlocks;
pub use embed::{Embed, RowId};
pub(crate) use gated_activation::erf;
pub use gated_activation::{Activation, GatedActivation, Gates, Up};
pub use gated_norm::GatedNorm;
pub use gather_rows::GatherRows;
pub use matmul::MatMul;
pub use matmul_experts::{ExpertShape, MatMulExperts};
pub use operation::Access;
pub use pool::Pool;
pub use rms_norm::{NormOptions, RmsNorm};
pub use rope_store_kv::{HeadNorm, QueryGrowth, Rope, RopeStoreKv, StoreOptions};
pub use rope_store_latent::RopeStoreLatent;
pub use rotate_rows::RotateRows;
pub use route_adapters::RouteAdapters;
pub use route_experts::{ExpertGroups, RouteExperts, Routing};
pub use rules::{
    GROUP_SIZE_MAX, HEAD_DIM_MAX, LATENT_DIM_MAX, LATENT_HEADS_MAX, ROUTES_MAX, STATE_DIM_MAX,
    TAPS_MAX,
};
pub use sample::Sample;
pub use scale_logits::ScaleLogits;
pub use short_convolution::{ConvolutionForm, ShortConvolution};
pub use state_scan::{ScanRule, StateScan};

use super::error::PlanErrorKind;
use super::operands::{BufferId, Operands, WeightId};
use operation::Operation;

/// One operation of a decoder. All arithmetic is f32 or wider; results are rounded once, to the output's storage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// Copies KV blocks, in every layer.
    CopyBlocks(CopyBlocks),
    /// Looks up token ids in the embedding table.
    Embed(Embed),
    /// RMS norm of rows.
    RmsNorm(RmsNorm),
    /// Multiplies rows by a transposed weight.
    MatMul(MatMul),
    /// Rotates q and k; stores K and V in the pool.
    RopeStoreKv(RopeStoreKv),
    /// Rotates q and a latent key; stores the latent in the pool.
    RopeStoreLatent(RopeStoreLatent),
    /// Attention over the paged KV pool.
    AttendPaged(AttendPaged),
    /// Rotates q and k of rows.
    RotateRows(RotateRows),
    /// Attention of the batch's rows to each other.
    AttendRows(AttendRows),
    /// A convolution over the last tokens, which are its state.
    ShortConvolution(ShortConvolution),
    /// A linear recurrence: the gated delta rule, or Mamba-2.
    StateScan(StateScan),
    /// RMS norm with a gate.
    GatedNorm(GatedNorm),
    /// The activation of an MLP, or a gate.
    GatedActivation(GatedActivation),
    /// Chooses the experts of each token.
    RouteExperts(RouteExperts),
    /// Chooses the adapter slot of each token.
    RouteAdapters(RouteAdapters),
    /// Multiplies rows by the matrices of their experts.
    MatMulExperts(MatMulExperts),
    /// Gathers the rows that need logits.
    GatherRows(GatherRows),
    /// Scales and soft-caps logits.
    ScaleLogits(ScaleLogits),
    /// Samples tokens.
    Sample(Sample),
    /// Sums rows, for embeddings.
    Pool(Pool),
}

impl Step {
    fn operation(&self) -> &dyn Operation {
        match self {
            Self::CopyBlocks(step) => step,
            Self::Embed(step) => step,
            Self::RmsNorm(step) => step,
            Self::MatMul(step) => step,
            Self::RopeStoreKv(step) => step,
            Self::RopeStoreLatent(step) => step,
            Self::AttendPaged(step) => step,
            Self::RotateRows(step) => step,
            Self::AttendRows(step) => step,
            Self::ShortConvolution(step) => step,
            Self::StateScan(step) => step,
            Self::GatedNorm(step) => step,
            Self::GatedActivation(step) => step,
            Self::RouteExperts(step) => step,
            Self::RouteAdapters(step) => step,
            Self::MatMulExperts(step) => step,
            Self::GatherRows(step) => step,
            Self::ScaleLogits(step) => step,
            Self::Sample(step) => step,
            Self::Pool(step) => step,
        }
    }

    /// File stem of its CPU reference and its kernels.
    pub fn stem(&self) -> &'static str {
        self.operation().stem()
    }

    /// The row buffers it reads or writes, with the kind of access; inputs first.
    pub fn buffers(&self) -> Vec<(BufferId, Access)> {
        self.operation().buffers()
    }

    /// The row buffers it reads.
    pub fn reads(&self) -> impl Iterator<Item = BufferId> + use<> {
        self.buffers()
            .into_iter()
            .filter(|(_, access)| access.reads())
            .map(|(buffer, _)| buffer)
    }

    /// The row buffers it modifies.
    pub fn writes(&self) -> impl Iterator<Item = BufferId> + use<> {
        self.buffers()
            .into_iter()
            .filter(|(_, access)| access.writes())
            .map(|(buffer, _)| buffer)
    }

    /// The weights it reads.
    pub fn weights(&self) -> Vec<WeightId> {
        self.operation().weights()
    }

    /// The KV layer that it reads or writes, an index into [`Plan::kv_layers`](super::Plan::kv_layers), and how. `None`
    /// for steps that use no layer, or all.
    pub fn kv_layer(&self) -> Option<(u32, Access)> {
        self.operation().kv_layer()
    }

    /// The state layer that it reads and modifies, an index into
    /// [`Plan::state_layers`](super::Plan::state_layers).
    pub fn state_layer(&self) -> Option<u32> {
        self.operation().state_layer()
    }

    /// Checks shapes and options. All ids in the step must exist.
    pub(super) fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        self.operation().check(operands)
    }

    /// The step as a line of a printed plan.
    pub fn line(&self, operands: &Operands<'_>) -> String {
        self.operation().line(operands)
    }
}
