//! What the backend needs of whatever runs its kernels: an NVIDIA device, or the emulator in tests.
//!
//! Everything happens in one order, that of the calls. Batches go through slots of pinned memory: [`Driver::upload`],
//! commands, [`Driver::download`], later [`Driver::wait`].

use super::super::BackendError;
use super::blas::Product;
use super::kernel::{Compiler, Kernel};
use std::sync::Arc;
use std::time::Duration;

/// What a device is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Facts {
    /// As the driver calls it.
    pub(super) name: String,
    /// Compute capability.
    pub(super) compute: (u32, u32),
    /// Streaming multiprocessors.
    pub(super) sm_count: u32,
    /// Shared memory that one block may ask for.
    pub(super) shared_bytes_max: u32,
    /// Bytes free when it was opened.
    pub(super) memory_bytes: u64,
    /// Whether cuBLASLt is there.
    pub(super) blas: bool,
    /// Driver and libraries, for people.
    pub(super) versions: String,
}

/// A kernel that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Function(pub(super) u32);

/// A recorded run of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Graph(pub(super) u32);

/// One kernel with its arguments.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    pub(super) function: Function,
    /// The kernel's only argument.
    pub(super) params: Box<[u8]>,
    pub(super) grid: [u32; 3],
    pub(super) threads: u32,
    pub(super) shared_bytes: u32,
}

/// One entry of a program.
#[derive(Clone, Debug)]
pub(super) enum Command {
    Kernel(Launch),
    Product(Product),
}

/// Slots of pinned memory: batches that may be submitted and not yet read, and one more.
pub(super) const SLOTS: usize = 4;

/// Runs kernels. Addresses are the device's.
pub(super) trait Driver {
    fn facts(&self) -> &Facts;

    /// What makes images for this device.
    fn compiler(&self) -> Arc<dyn Compiler>;

    /// Loads a compiled kernel that takes `params_bytes` bytes.
    fn load(&mut self, kernel: &Kernel, image: &[u8], params_bytes: usize) -> Result<Function, BackendError>;

    /// Memory of that many bytes, at least 256-byte aligned, zeroed.
    fn allocate(&mut self, what: &str, bytes: u64) -> Result<u64, BackendError>;

    /// Gives memory back, after all that was submitted.
    fn free(&mut self, address: u64);

    /// Writes memory, after all that was submitted.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), BackendError>;

    /// Reads memory, after all that was submitted.
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), BackendError>;

    /// Makes the pinned slots, for so many words each way.
    fn make_slots(&mut self, upload_words: usize, download_words: usize) -> Result<(), BackendError>;

    /// Copies words to the device through a slot.
    fn upload(&mut self, slot: usize, words: &[u32], to: u64) -> Result<(), BackendError>;

    /// Copies words from the device into a slot, from its word `to` on, and marks the place to wait for.
    fn download(&mut self, slot: usize, from: u64, words: usize, to: usize) -> Result<(), BackendError>;

    /// The words of a slot's last download, once they are there.
    fn wait(&mut self, slot: usize, timeout: Duration) -> Result<&[u32], BackendError>;

    /// Runs commands in order.
    fn run(&mut self, commands: &[Command]) -> Result<(), BackendError>;

    /// Records commands as one graph, without running them.
    fn record(&mut self, commands: &[Command]) -> Result<Graph, BackendError>;

    /// Runs a graph.
    fn run_graph(&mut self, graph: Graph) -> Result<(), BackendError>;

    /// Forgets all graphs.
    fn drop_graphs(&mut self);

    /// Finds the fastest way for the shapes of these products that are new, by measuring on them.
    fn prepare_products(&mut self, products: &[Product]) -> Result<(), BackendError>;

    /// Seconds that a run of commands takes on the device, for the bench.
    fn time(&mut self, commands: &[Command]) -> Result<f64, BackendError>;
}
