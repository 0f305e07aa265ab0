//! The interface between the backend and what runs its kernels: an NVIDIA device, or the emulator in tests.
//!
//! Everything executes in the order of the calls. A batch goes through a slot of pinned memory: [`Driver::upload`],
//! commands, [`Driver::download`], later [`Driver::wait`].

use super::super::BackendError;
use super::blas::{Product, ProductShape};
use super::kernel::{Compiler, Kernel};
use std::sync::Arc;
use std::time::Duration;

/// Properties of a device.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Facts {
    /// The name that the driver reports.
    pub(super) name: String,
    /// Compute capability.
    pub(super) compute: (u32, u32),
    /// Streaming multiprocessors.
    pub(super) sm_count: u32,
    /// Maximum shared memory per block, in bytes.
    pub(super) shared_bytes_max: u32,
    /// Bytes that were free when the device was opened.
    pub(super) memory_bytes: u64,
    /// What cuBLASLt computes.
    pub(super) products: Products,
    /// Whether kernels may use products of warpgroups.
    pub(super) warpgroups: bool,
    /// Versions of the driver and the libraries, as text for users.
    pub(super) versions: String,
}

/// What cuBLASLt computes; folio's own kernels compute the rest.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Products {
    /// Whether it is available.
    pub(super) blas: bool,
    /// Shapes that it has no algorithm for, or none that works.
    pub(super) refused: Vec<ProductShape>,
}

impl Products {
    /// Whether it computes products of this shape.
    pub(super) fn takes(&self, shape: ProductShape) -> bool {
        self.blas && !self.refused.contains(&shape)
    }
}

/// A loaded kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Function(pub(super) u32);

/// A recorded sequence of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Graph(pub(super) u32);

/// One kernel launch with its arguments.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    pub(super) function: Function,
    /// The kernel's only argument.
    pub(super) params: Box<[u8]>,
    pub(super) grid: [u32; 3],
    pub(super) threads: u32,
    pub(super) shared_bytes: u32,
}

/// One command of a program.
#[derive(Clone, Debug)]
pub(super) enum Command {
    Kernel(Launch),
    Product(Product),
}

/// Device memory to copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) address: u64,
    pub(super) bytes: usize,
}

/// Copies to pinned memory in flight, until they are read by [`Driver::copied`].
#[derive(Debug)]
pub(super) struct Copies {
    /// Which buffer they are in.
    pub(super) buffer: usize,
    pub(super) bytes: usize,
}

/// Slots of pinned memory: one for each batch that may be submitted but not yet read, and one more.
pub(super) const SLOTS: usize = 4;

/// Runs kernels. All addresses are device addresses.
pub(super) trait Driver {
    fn facts(&self) -> &Facts;

    /// Turns [`Facts::warpgroups`] off.
    fn refuse_warpgroups(&mut self);

    /// The compiler that makes kernel images for this device.
    fn compiler(&self) -> Arc<dyn Compiler>;

    /// Loads a compiled kernel whose params have `params_bytes` bytes.
    fn load(
        &mut self,
        kernel: &Kernel,
        image: &[u8],
        params_bytes: usize,
    ) -> Result<Function, BackendError>;

    /// Allocates `bytes` bytes of zeroed memory, aligned to at least 256 bytes; `what` names it in errors.
    fn allocate(&mut self, what: &str, bytes: u64) -> Result<u64, BackendError>;

    /// Frees memory, after all submitted work.
    fn free(&mut self, address: u64);

    /// Writes memory, after all submitted work.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), BackendError>;

    /// Reads memory, after all submitted work.
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), BackendError>;

    /// Allocates the pinned slots, with this many words each way.
    fn make_slots(
        &mut self,
        upload_words: usize,
        download_words: usize,
    ) -> Result<(), BackendError>;

    /// Copies words to the device through a slot.
    fn upload(&mut self, slot: usize, words: &[u32], to: u64) -> Result<(), BackendError>;

    /// Copies words from the device into a slot, starting at its word `to`, and records an event for [`Driver::wait`].
    fn download(
        &mut self,
        slot: usize,
        from: u64,
        words: usize,
        to: usize,
    ) -> Result<(), BackendError>;

    /// Waits for the last download into a slot and returns its words.
    fn wait(&mut self, slot: usize, timeout: Duration) -> Result<&[u32], BackendError>;

    /// Starts copying memory to one pinned buffer, in the order given and after all submitted work.
    fn copy_out(&mut self, spans: &[Span]) -> Result<Copies, BackendError>;

    /// Waits for copies and returns them.
    fn copied(&mut self, copies: Copies, timeout: Duration) -> Result<Vec<u8>, BackendError>;

    /// Overwrites memory with bytes, in the order given: after all submitted work, and before later work.
    fn copy_in(&mut self, spans: &[Span], bytes: &[&[u8]]) -> Result<(), BackendError>;

    /// Runs commands in order.
    fn run(&mut self, commands: &[Command]) -> Result<(), BackendError>;

    /// Records commands as one graph, without running them.
    fn record(&mut self, commands: &[Command]) -> Result<Graph, BackendError>;

    /// Runs a graph.
    fn run_graph(&mut self, graph: Graph) -> Result<(), BackendError>;

    /// Destroys all graphs.
    fn drop_graphs(&mut self);

    /// Chooses an algorithm for each new shape among these products: the fastest of an earlier start; or else, to
    /// `measure`, the fastest of all, which takes a while; or else the one that the library proposes first. `false` if
    /// a shape had to be refused: [`Facts::products`] has it now.
    fn prepare_products(
        &mut self,
        products: &[Product],
        measure: bool,
    ) -> Result<bool, BackendError>;

    /// Device time of a sequence of commands in seconds, for the bench.
    fn time(&mut self, commands: &[Command]) -> Result<f64, BackendError>;
}
