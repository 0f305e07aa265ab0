//! The interface between the engine and a device.
//!
//! A backend executes the [`Plan`] it was loaded with, once per [`BatchInputs`]. It is owned by one thread, so nothing
//! here is `Send`. Loading order: [`Backend::load`], [`Backend::write_weight`] until every row of every weight is
//! written, [`Backend::allocate_pool`]. After that nothing is allocated on the device.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod fake;
mod host;
pub mod layout;
pub mod metadata;
pub mod reference;
mod scan_shape;
mod throttle;
mod warm_up;
pub mod wgpu;

use crate::plan::check::HEAD_DIM_MAX;
use crate::plan::format::KvTile;
use crate::plan::inputs::{BatchInputs, Results};
use crate::plan::{BufferId, BufferSpec, KvFormat, Plan, Storage, WeightId};
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Kind of processor that runs the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// The CPU reference, or a driver that runs shaders on the CPU.
    Software,
    /// The machine's processors, by kernels made for them.
    Processor,
    /// A GPU with its own memory.
    Discrete,
    /// A GPU that shares the system's memory.
    Integrated,
    /// A virtualized GPU, or one of unknown kind.
    Virtual,
}

impl DeviceKind {
    /// Whether a device's memory is the machine's.
    pub fn shares_memory(self) -> bool {
        matches!(self, Self::Software | Self::Processor | Self::Integrated)
    }

    /// Bytes for the KV pool, of those that a device has left. Of a machine's memory it is half: other programs need
    /// some of it, and the system needs some for its page cache.
    pub fn pool_share(self, left: u64) -> u64 {
        if self == Self::Processor {
            left / 2
        } else {
            left
        }
    }
}

/// The source of memory that is the machine's.
pub const MACHINE_MEMORY: &str = crate::platform::MEMORY_SOURCE;

/// Maximum rows of a product whose kernels are always exact: more rows may have others, which compute more.
pub(crate) const FEW_ROWS_MAX: u32 = 8;

/// Capabilities of a backend; fixed once it is open.
#[derive(Clone, Debug)]
pub struct Caps {
    /// `cpu`, or the adapter's name.
    pub name: String,
    /// `cpu`, `vulkan`, `metal`, `dx12`, `webgpu`.
    pub api: &'static str,
    /// Processor kind.
    pub kind: DeviceKind,
    /// Kernel tier for display, for example `T1 (subgroups 8..8)`.
    pub tier: String,
    /// Storage type of activations between steps. The residual stream is always f32.
    pub activations: Storage,
    /// Whether the product of a single row with a quantized weight rounds the row to bytes.
    pub int8_activations: bool,
    /// Whether products of more than [`FEW_ROWS_MAX`] rows, and attention of several rows, round their operands to
    /// halves.
    pub half_products: bool,
    /// Maximum bytes that a kernel can bind at once; `u64::MAX` if there is no such limit.
    pub binding_bytes_max: u64,
    /// Bytes available for weights and KV pool together, if the device reports it.
    pub memory_bytes: Option<u64>,
    /// Where this number comes from, for display; empty if there is nothing to say.
    pub memory_source: &'static str,
    /// Bytes that the machine has available, if the device shares its memory and they are known.
    pub machine_bytes: Option<u64>,
    /// How the backend allocates.
    pub allocation: Allocation,
}

/// How a backend allocates: the input of [`layout`] besides the binding limit.
#[derive(Clone, Debug)]
pub struct Allocation {
    /// Buffer sizes are rounded up to a multiple of this many bytes.
    pub granule: u64,
    /// Maximum bytes of a buffer that is never sharded, such as metadata and scratch.
    pub buffer_bytes_max: u64,
    /// Maximum KV groups of a plan.
    pub kv_groups_max: usize,
    /// Whether vectors (weights of one row) are widened to f32.
    pub wide_vectors: bool,
    /// Buffers that the backend needs besides weights, row buffers and KV pool.
    pub side: SideBuffers,
}

/// Exact buffer sizes without limits.
impl Default for Allocation {
    fn default() -> Self {
        let side = SideBuffers::default();
        Self {
            granule: 1,
            buffer_bytes_max: u64::MAX,
            kv_groups_max: usize::MAX,
            wide_vectors: false,
            side,
        }
    }
}

/// A buffer that is not a weight, a row buffer or part of the KV pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SideBuffer {
    /// Label.
    pub name: &'static str,
    /// Size in bytes.
    pub bytes: u64,
}

type SideBuffersOf = dyn Fn(&Plan, &Capacity) -> Vec<SideBuffer> + Send + Sync;

/// The side buffers of a backend, as a function of plan and capacity. By default there are none.
#[derive(Clone, Default)]
pub struct SideBuffers(Option<Arc<SideBuffersOf>>);

impl SideBuffers {
    /// The side buffers that `list` returns.
    pub fn new(list: impl Fn(&Plan, &Capacity) -> Vec<SideBuffer> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(list)))
    }

    /// The side buffers for this plan and capacity.
    pub fn of(&self, plan: &Plan, capacity: &Capacity) -> Vec<SideBuffer> {
        self.0
            .as_ref()
            .map_or_else(Vec::new, |list| list(plan, capacity))
    }
}

impl fmt::Debug for SideBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "SideBuffers(..)"
        } else {
            "SideBuffers(none)"
        })
    }
}

/// Measured peak performance of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Peaks {
    /// Copy bandwidth: bytes read and written, 10⁹ per second.
    pub copy_gbps: f64,
    /// Read bandwidth, 10⁹ bytes per second.
    pub read_gbps: f64,
    /// Multiplications and additions, 10⁹ per second: by matrix units (16-bit factors) where a device's kernels use
    /// them, otherwise in f32.
    pub fma_gflops: f64,
}

/// The batch limits that buffers are allocated for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Maximum token rows per batch (prefill and decode together).
    pub tokens_max: u32,
    /// Maximum sequences per batch.
    pub sequences_max: u32,
    /// Maximum sample rows per batch; there are never more logits rows than that.
    pub samples_max: u32,
    /// Number of feed slots.
    pub feed_slots: u32,
    /// Number of state slots; 0 if the plan has no state layers.
    pub state_slots: u32,
    /// Maximum block-table entries per batch and KV group.
    pub table_entries_max: u32,
    /// Maximum entries of [`BatchInputs::history`].
    pub history_max: u32,
    /// Maximum entries of [`BatchInputs::bias`].
    pub bias_max: u32,
    /// Maximum words of [`BatchInputs::masks`].
    pub mask_words_max: u32,
    /// Maximum block copies per batch and KV group.
    pub copies_max: u32,
    /// Tokens per KV block.
    pub block_size: u32,
    /// Element type of the KV pool.
    pub kv_format: KvFormat,
    /// Use the same chunks, split points and kernel per step for every batch, so that on one device a sequence gets the
    /// same bits in a batch as alone.
    pub deterministic: bool,
}

impl Capacity {
    /// Maximum pool rows per batch: one for each sequence, or for each token of models that compute whole sequences, or
    /// for each row that a tower merges.
    pub fn pools_max(&self, plan: &Plan) -> u32 {
        if plan.pools_merged_rows() {
            self.samples_max
        } else if plan.computes_whole_sequences() {
            self.tokens_max.max(self.sequences_max)
        } else {
            self.sequences_max
        }
    }

    /// Layout of one head's rows in a block of the pool.
    pub fn kv_tile(&self, head_dim: u32) -> KvTile {
        KvTile {
            format: self.kv_format,
            slots: self.block_size as usize,
            head_dim: head_dim as usize,
        }
    }
}

/// An error of a device.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BackendError {
    /// A size limit of the device. Retrying cannot help.
    #[error("{what} needs {needed} bytes, but {device} allows {limit}")]
    Limit {
        /// Name of the buffer or binding.
        what: String,
        /// Bytes needed.
        needed: u64,
        /// Bytes allowed.
        limit: u64,
        /// Adapter name.
        device: String,
    },
    /// A retry, or a smaller KV pool, may succeed.
    #[error("out of device memory while allocating {what} ({bytes} bytes)")]
    OutOfMemory {
        /// Buffer label.
        what: String,
        /// Bytes requested.
        bytes: u64,
    },
    /// The device was lost. [`Backend::reset`] may recover it.
    #[error("the device was lost: {0}")]
    Lost(String),
    /// A batch timed out. The device counts as lost; [`Backend::reset`] may recover it.
    #[error("the device hangs: no answer within {0:?}")]
    Hung(Duration),
    /// The device refused this batch; it still works.
    #[error("the device refused a batch: {0}")]
    Validation(String),
    /// The plan needs something that this backend has no kernel for.
    #[error("{what} is unsupported: {message}")]
    Unsupported {
        /// A step, a buffer or a weight, with its size.
        what: String,
        /// What is supported instead.
        message: String,
    },
    /// The compiler or the driver rejected a kernel of this plan.
    #[error("kernel {kernel} could not be built: {message}")]
    Kernel {
        /// File stem and variant of the shader.
        kernel: String,
        /// The compiler's message.
        message: String,
    },
    /// There is no such device, or it could not be opened.
    #[error("{0}")]
    Unavailable(String),
}

impl BackendError {
    /// Unsupported number of columns: kernels read rows in vectors of `multiple` elements.
    pub(crate) fn columns(what: &str, columns: u32, multiple: u32) -> Self {
        let what = format!("{what} with {columns} columns");
        Self::Unsupported {
            what,
            message: format!("the number of columns must be a multiple of {multiple}"),
        }
    }

    /// Unsupported head size of the attention kernels.
    pub(crate) fn head_dim(step: &str, head_dim: u32) -> Self {
        let what = format!("{step} with heads of {head_dim} elements");
        Self::Unsupported {
            what,
            message: format!("the head size must be a multiple of 8, at most {HEAD_DIM_MAX}"),
        }
    }

    /// Rows in a storage that the kernels of a backend do not keep them in.
    pub(crate) fn storage(buffer: &BufferSpec, kept: &str) -> Self {
        let what = format!("buffer {} of {}", buffer.name, buffer.storage);
        Self::Unsupported {
            what,
            message: format!("the kernels keep rows in {kept}"),
        }
    }

    /// A call before [`Backend::load`].
    pub(crate) fn not_loaded() -> Self {
        Self::Validation("no plan is loaded".into())
    }

    /// A call before [`Backend::allocate_pool`].
    pub(crate) fn no_pool() -> Self {
        Self::Validation("the KV pool is not allocated".into())
    }

    /// A weight id that the plan does not have.
    pub(crate) fn no_weight(id: WeightId) -> Self {
        Self::Validation(format!("the plan has no weight {}", id.0))
    }

    /// A KV layer that the plan does not have.
    pub(crate) fn no_kv_layer(layer: u32) -> Self {
        Self::Validation(format!("the plan has no KV layer {layer}"))
    }

    /// A state layer that the plan does not have.
    pub(crate) fn no_state_layer(layer: u32) -> Self {
        Self::Validation(format!("the plan has no state layer {layer}"))
    }

    /// A number of pool sizes that differs from the plan's number of KV groups.
    pub(crate) fn pool_sizes(sizes: usize, groups: usize) -> Self {
        Self::Validation(format!("{sizes} pool sizes for {groups} KV groups"))
    }

    /// Bytes that are not whole rows of a weight.
    pub(crate) fn not_whole_rows(weight: &str, first_row: u32, bytes: usize) -> Self {
        Self::Validation(format!(
            "weight {weight}: {bytes} bytes at row {first_row} are not whole rows"
        ))
    }

    /// A submission while all `slots` for batches in flight are taken.
    pub(crate) fn all_in_flight(slots: usize) -> Self {
        Self::Validation(format!("{slots} batches are in flight; read one first"))
    }

    /// Values that do not fit the buffer, or the half of a layer, that they are written to.
    pub(crate) fn values(found: usize, what: &str, held: usize) -> Self {
        Self::Validation(format!("{found} values for {what} of {held}"))
    }

    /// Whether the device is unusable until it is reset.
    pub fn is_loss(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Hung(_))
    }
}

/// Times that a device gives instead of having them measured.
#[derive(Clone, Copy, Debug, Default)]
pub struct GivenTimes {
    /// Of uploading a byte of a block, or of reading it from a file.
    pub byte: Duration,
    /// Of computing a token.
    pub token: Duration,
}

/// Executes one plan.
#[allow(
    async_fn_in_trait,
    reason = "one thread owns the backend; a Send bound is not wanted"
)]
pub trait Backend {
    /// Identifies a submitted batch until it is read.
    type Ticket;
    /// Identifies copies to host memory until they are read.
    type Saves;

    /// Capabilities of this device.
    fn caps(&self) -> &Caps;

    /// Creates the plan's weights, row buffers and state slots. Called once, and again after `reset`.
    fn load(&mut self, plan: Arc<Plan>, capacity: &Capacity) -> Result<(), BackendError>;

    /// Writes whole rows of a weight, in its format. Each row is written once, and chunks may come in any order; rows
    /// of a weight that is whole may be replaced. Batches submitted before read the rows as they were.
    fn write_weight(
        &mut self,
        weight: WeightId,
        first_row: u32,
        rows: Bytes,
    ) -> Result<(), BackendError>;

    /// Creates the KV pool with `blocks[g]` blocks for KV group `g`, zeroed. After `OutOfMemory` nothing stays
    /// allocated, and the caller may retry with fewer blocks.
    fn allocate_pool(&mut self, blocks: &[u32]) -> Result<(), BackendError>;

    /// Compiles the kernels that batches may need and measures how fast they are, so that no request waits for either.
    /// `progress` gets how many kernels are compiled, and of how many. Called once the pool is allocated; without it,
    /// kernels are compiled when they are first used.
    async fn warm_up(&mut self, _progress: &mut dyn FnMut(u32, u32)) -> Result<(), BackendError> {
        Ok(())
    }

    /// Waits for all work submitted so far and returns any late error: where calls must not block, an out-of-memory
    /// error is reported only after the allocation.
    async fn settle(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Submits a batch. Batches run in submission order; a batch may use tokens that an earlier one sampled.
    fn submit(&mut self, inputs: &BatchInputs) -> Result<Self::Ticket, BackendError>;

    /// Waits for a batch and returns the results of its sample rows and pool rows.
    async fn read(&mut self, ticket: Self::Ticket) -> Result<Results, BackendError>;

    /// Starts copying blocks and state slots to host memory: their content after the batches submitted so far, and
    /// before later calls. Every ticket must be read, unless the device is lost.
    fn save_blocks(&mut self, blocks: &[BlockRef]) -> Result<Self::Saves, BackendError>;

    /// Waits for copies and returns them, in the form that [`BlockRef`] describes.
    async fn saved_blocks(&mut self, saves: Self::Saves) -> Result<Vec<Bytes>, BackendError>;

    /// Overwrites blocks and state slots with copies, after the batches and copies submitted so far and before later
    /// ones.
    fn restore_blocks(&mut self, blocks: &[(BlockRef, Bytes)]) -> Result<(), BackendError>;

    /// Times to decide by at this moment, in place of measured ones: a fake device computes nothing.
    fn given_times(&self) -> Option<GivenTimes> {
        None
    }

    /// Recommended maximum token rows of the next batch, so that no submission runs too long; `None`: no throttling,
    /// the engine's token budget applies.
    fn token_budget_hint(&self) -> Option<u32> {
        None
    }

    /// Kernels that the last batch was dispatched as; `None` if the backend does not count them.
    fn dispatches(&self) -> Option<u32> {
        None
    }

    /// Replaces a lost device with a new one that has no plan, weights or KV pool.
    async fn reset(&mut self) -> Result<(), BackendError>;
}

/// A block of the KV pool, or a state slot.
///
/// A copy has one form on every backend, little-endian. Of a block: for each layer of the KV group in the plan's order,
/// the keys and then the values (if the layer has any of its own), each as one [`KvTile`] per KV head. Of a state slot:
/// the elements of each state layer in the plan's order, f32. It takes [`Plan::block_bytes`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRef {
    /// KV group, or [`Plan::state_group`].
    pub group: usize,
    /// Index within the group.
    pub block: u32,
}

/// Keys or values of the KV pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvHalf {
    /// Keys.
    Key,
    /// Values.
    Value,
}

/// Access to a device's buffers, for kernel checks: not used by the engine.
#[allow(
    async_fn_in_trait,
    reason = "one thread owns the backend; a Send bound is not wanted"
)]
pub trait Inspect: Backend {
    /// Overwrites the first rows of a row buffer, rounded to its storage.
    fn write_buffer(&mut self, buffer: BufferId, values: &[f32]) -> Result<(), BackendError>;

    /// Reads the first `rows` rows of a row buffer, widened to f32.
    async fn read_buffer(&mut self, buffer: BufferId, rows: u32) -> Result<Vec<f32>, BackendError>;

    /// Overwrites all keys or all values of a layer, `[block][kv_head][slot][head_dim]`, rounded to the pool's format.
    fn write_kv(&mut self, layer: u32, half: KvHalf, values: &[f32]) -> Result<(), BackendError>;

    /// Reads all keys or all values of a layer, widened to f32.
    async fn read_kv(&mut self, layer: u32, half: KvHalf) -> Result<Vec<f32>, BackendError>;

    /// Overwrites all states of a state layer, `[slot][element]`.
    fn write_state(&mut self, layer: u32, values: &[f32]) -> Result<(), BackendError>;

    /// Reads all states of a state layer.
    async fn read_state(&mut self, layer: u32) -> Result<Vec<f32>, BackendError>;

    /// Writes token ids to the feed slots, starting at slot 0.
    fn write_feed(&mut self, token_ids: &[u32]) -> Result<(), BackendError>;

    /// Reads the token ids in the first `slots` feed slots.
    async fn read_feed(&mut self, slots: u32) -> Result<Vec<u32>, BackendError>;

    /// The kernels that ran since the plan was loaded, with their variants; empty where steps are not kernels.
    fn kernels(&self) -> Vec<String> {
        Vec::new()
    }
}
