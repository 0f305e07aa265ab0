//! The seam between an engine and a device.
//!
//! A backend executes the [`Plan`] it was loaded with, once per [`BatchInputs`]. It is owned by one thread, so nothing
//! here is `Send`. Loading order: [`Backend::load`], [`Backend::write_weight`] until every row of every weight is
//! written, [`Backend::allocate_pool`]; after that nothing is allocated on the device.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod fake;
pub mod layout;
pub mod metadata;
pub mod wgpu;

use crate::plan::check::HEAD_DIM_MAX;
use crate::plan::format::KvTile;
use crate::plan::inputs::{BatchInputs, Results};
use crate::plan::{BufferId, KvFormat, Plan, Storage, WeightId};
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What kind of processor runs the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// The CPU reference, or a driver that runs shaders on the CPU.
    Software,
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the system's memory.
    Integrated,
    /// A GPU seen through a hypervisor, or of unknown kind.
    Virtual,
}

/// What a backend can do; fixed once it is open.
#[derive(Clone, Debug)]
pub struct Caps {
    /// `cpu`, or the adapter's own name.
    pub name: String,
    /// `cpu`, `vulkan`, `metal`, `dx12`, `webgpu`.
    pub api: &'static str,
    /// Processor kind.
    pub kind: DeviceKind,
    /// Kernel tier in words, for example `T1 (subgroups 8..8)`.
    pub tier: String,
    /// Storage that this backend wants for activations between steps. The residual stream is always f32.
    pub activations: Storage,
    /// Largest range one kernel may bind; `u64::MAX` where there is no such limit.
    pub binding_bytes_max: u64,
    /// Bytes that weights and pool may take together, where the device tells.
    pub memory_bytes: Option<u64>,
    /// How it allocates.
    pub allocation: Allocation,
}

/// How a backend allocates: what [`layout`] needs to know besides the limit of a binding.
#[derive(Clone, Debug)]
pub struct Allocation {
    /// Buffers are padded to a multiple of this many bytes.
    pub granule: u64,
    /// Largest buffer of those that are never cut, as metadata and scratch.
    pub buffer_bytes_max: u64,
    /// Vectors (weights of one row) are widened to f32.
    pub wide_vectors: bool,
    /// What it needs beside weights, rows and pool.
    pub side: SideBuffers,
}

/// Buffers of the exact size, of any size.
impl Default for Allocation {
    fn default() -> Self {
        Self { granule: 1, buffer_bytes_max: u64::MAX, wide_vectors: false, side: SideBuffers::default() }
    }
}

/// A buffer that is neither weight nor row buffer nor part of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SideBuffer {
    /// Its label.
    pub name: &'static str,
    /// Its size.
    pub bytes: u64,
}

type SideBuffersOf = dyn Fn(&Plan, &Capacity) -> Vec<SideBuffer> + Send + Sync;

/// The side buffers of a backend, as a function of what is loaded. By default there are none.
#[derive(Clone, Default)]
pub struct SideBuffers(Option<Arc<SideBuffersOf>>);

impl SideBuffers {
    /// Those that `list` gives.
    pub fn new(list: impl Fn(&Plan, &Capacity) -> Vec<SideBuffer> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(list)))
    }

    /// For this plan and capacity.
    pub fn of(&self, plan: &Plan, capacity: &Capacity) -> Vec<SideBuffer> {
        self.0.as_ref().map_or_else(Vec::new, |list| list(plan, capacity))
    }
}

impl fmt::Debug for SideBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "SideBuffers(..)" } else { "SideBuffers(none)" })
    }
}

/// What a device can do at best, measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Peaks {
    /// Bytes read and written by a copy, 10⁹ a second.
    pub copy_gbps: f64,
    /// Bytes read, 10⁹ a second.
    pub read_gbps: f64,
    /// Multiplications and additions, 10⁹ a second: of f32, where there are tensor cores of bfloat16.
    pub fma_gflops: f64,
}

/// The sizes everything is allocated for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Token rows of one batch.
    pub tokens_max: u32,
    /// Sequences of one batch.
    pub sequences_max: u32,
    /// Sample rows of one batch (logits rows are at most as many).
    pub samples_max: u32,
    /// Feed slots.
    pub feed_slots: u32,
    /// Block-table entries of one batch, per KV group.
    pub table_entries_max: u32,
    /// Entries of [`BatchInputs::history`] in one batch.
    pub history_max: u32,
    /// Entries of [`BatchInputs::bias`] in one batch.
    pub bias_max: u32,
    /// Words of [`BatchInputs::masks`] in one batch.
    pub mask_words_max: u32,
    /// Block copies of one batch, per KV group.
    pub copies_max: u32,
    /// Tokens a block.
    pub block_size: u32,
    /// Element type of the pool.
    pub kv_format: KvFormat,
    /// Fix chunk, split points and kernel per step: batch = alone bit for bit on one device.
    pub deterministic: bool,
}

impl Capacity {
    /// Where the rows of a head lie in a block of the pool.
    pub fn kv_tile(&self, head_dim: u32) -> KvTile {
        KvTile { format: self.kv_format, slots: self.block_size as usize, head_dim: head_dim as usize }
    }
}

/// Why a device could not do its work.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BackendError {
    /// Deterministic: this device will never hold it.
    #[error("{what} needs {needed} bytes, but {device} allows {limit}")]
    Limit {
        /// Buffer or binding.
        what: String,
        /// Bytes asked for.
        needed: u64,
        /// Bytes allowed.
        limit: u64,
        /// Adapter name.
        device: String,
    },
    /// May pass, or pass with a smaller pool.
    #[error("out of device memory while allocating {what} ({bytes} bytes)")]
    OutOfMemory {
        /// Buffer label.
        what: String,
        /// Bytes asked for.
        bytes: u64,
    },
    /// The device is gone. [`Backend::reset`] may bring it back.
    #[error("the GPU device was lost: {0}")]
    Lost(String),
    /// A batch did not come back in time. The device counts as lost: [`Backend::reset`] may bring it back.
    #[error("the GPU device hangs: no answer within {0:?}")]
    Hung(Duration),
    /// The device refused this batch; it still works.
    #[error("the device refused a batch: {0}")]
    Validation(String),
    /// The plan asks for something that this backend has no kernel for.
    #[error("{what} is unsupported: {message}")]
    Unsupported {
        /// What: a step, a buffer or a weight, with its size.
        what: String,
        /// What would be supported.
        message: String,
    },
    /// The compiler or the driver refused a kernel of this plan.
    #[error("kernel {kernel} could not be built: {message}")]
    Kernel {
        /// Shader stem and variant.
        kernel: String,
        /// The compiler's words.
        message: String,
    },
    /// There is no such device, or it could not be opened.
    #[error("{0}")]
    Unavailable(String),
}

impl BackendError {
    /// Rows of so many columns, where kernels read them in vectors.
    pub(crate) fn columns(what: &str, columns: u32, multiple: u32) -> Self {
        let what = format!("{what} with {columns} columns");
        Self::Unsupported { what, message: format!("the number of columns must be a multiple of {multiple}") }
    }

    /// Heads of so many elements: none of the kernels for attention takes them.
    pub(crate) fn head_dim(step: &str, head_dim: u32) -> Self {
        let what = format!("{step} with heads of {head_dim} elements");
        Self::Unsupported { what, message: format!("the head size must be a multiple of 8, at most {HEAD_DIM_MAX}") }
    }

    /// Whether nothing can be expected of the device any more until it is reset.
    pub fn is_loss(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Hung(_))
    }
}

/// Executes one plan.
#[allow(async_fn_in_trait, reason = "one thread owns the backend; a Send bound is not wanted")]
pub trait Backend {
    /// Names a submitted batch until it is read.
    type Ticket;

    /// What this device can do.
    fn caps(&self) -> &Caps;

    /// Creates the plan's weights and row buffers and compiles its kernels. Called once, and again after `reset`.
    fn load(&mut self, plan: Arc<Plan>, capacity: &Capacity) -> Result<(), BackendError>;

    /// Writes whole rows of a weight, in its format. Each row is written once; chunks arrive in any order.
    fn write_weight(&mut self, weight: WeightId, first_row: u32, rows: Bytes) -> Result<(), BackendError>;

    /// Creates the KV pool with `blocks[g]` blocks for KV group `g`, zeroed. On `OutOfMemory` nothing is kept and the
    /// caller may try again with fewer.
    fn allocate_pool(&mut self, blocks: &[u32]) -> Result<(), BackendError>;

    /// Waits until the device has done what it was told so far, and gives out the error that only shows then: where
    /// nothing may block, memory is missed later than it is asked for.
    async fn settle(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Starts a batch. Batches run in the order submitted; a batch may read what an earlier one has sampled.
    fn submit(&mut self, inputs: &BatchInputs) -> Result<Self::Ticket, BackendError>;

    /// Waits for a batch: what its sample rows and pool rows have asked for.
    async fn read(&mut self, ticket: Self::Ticket) -> Result<Results, BackendError>;

    /// Rows that the next batch should have at most, so that no submission runs too long; `None`: the budget.
    fn token_budget_hint(&self) -> Option<u32> {
        None
    }

    /// Replaces a lost device by a fresh one without plan, weights or pool.
    async fn reset(&mut self) -> Result<(), BackendError>;
}

/// Which half of the KV pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvHalf {
    /// Keys.
    Key,
    /// Values.
    Value,
}

/// Access to a device's buffers, for kernel checks: not used by the engine.
#[allow(async_fn_in_trait, reason = "one thread owns the backend; a Send bound is not wanted")]
pub trait Inspect: Backend {
    /// Overwrites the first rows of a row buffer, rounding to its storage.
    fn write_buffer(&mut self, buffer: BufferId, values: &[f32]) -> Result<(), BackendError>;

    /// The first `rows` rows of a row buffer, widened.
    async fn read_buffer(&mut self, buffer: BufferId, rows: u32) -> Result<Vec<f32>, BackendError>;

    /// Overwrites a whole half of a layer's pool, `[block][kv_head][slot][head_dim]`, rounding to its format.
    fn write_kv(&mut self, layer: u32, half: KvHalf, values: &[f32]) -> Result<(), BackendError>;

    /// A whole half of a layer's pool, widened.
    async fn read_kv(&mut self, layer: u32, half: KvHalf) -> Result<Vec<f32>, BackendError>;

    /// Sets the token ids in the feed slots, from slot 0.
    fn write_feed(&mut self, token_ids: &[u32]) -> Result<(), BackendError>;

    /// The token ids in the first `slots` feed slots.
    async fn read_feed(&mut self, slots: u32) -> Result<Vec<u32>, BackendError>;
}
