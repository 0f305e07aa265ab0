//! A device that compiles every kernel it is asked for, and runs none: for machines without a GPU that prepare a run on
//! one. The folder of its cache can be shipped; [`kernel::SHIPPED_VARIABLE`](super::kernel::SHIPPED_VARIABLE) names it
//! there.
//!
//! Kernels are chosen as on the usual device of an architecture. Memory has addresses but no content: whatever is read
//! is zero, and so is every sampled token.

use super::super::BackendError;
use super::blas::Product;
use super::driver::{Command, Copies, Driver, Facts, Function, Graph, Products, SLOTS, Span};
use super::encode::attend_paged::wgmma;
use super::kernel::{Compiler, Kernel};
use super::nvrtc::{self, Nvrtc};
use std::sync::Arc;
use std::time::Duration;

/// Multiprocessors, shared memory of a block in KiB, and memory in GiB of the usual device of a compute capability:
/// A100, L40S, H200, B200, RTX 5090.
const DEVICES: [((u32, u32), [u32; 3]); 5] = [
    ((8, 0), [108, 163, 80]),
    ((8, 9), [142, 99, 48]),
    ((9, 0), [132, 227, 141]),
    ((10, 0), [148, 227, 180]),
    ((12, 0), [170, 99, 32]),
];

/// NVRTC, whose images are named as shipped ones.
struct Shipping {
    nvrtc: Nvrtc,
    architecture: String,
}

impl Compiler for Shipping {
    fn key(&self) -> String {
        nvrtc::shipped_key(&self.architecture).unwrap_or_default()
    }

    fn compile(&self, kernel: &Kernel, source: &str) -> Result<Vec<u8>, String> {
        self.nvrtc
            .compile(&self.architecture, kernel, source)
            .map(|(image, _)| image)
    }
}

/// Compiles kernels, and runs none.
pub(super) struct Dry {
    facts: Facts,
    compiler: Arc<Shipping>,
    functions: u32,
    graphs: u32,
    /// Where the next allocation lies.
    next_address: u64,
    slot: Vec<u32>,
}

impl Dry {
    /// The usual device of this compute capability. Needs NVRTC.
    pub(super) fn open(compute: (u32, u32)) -> Result<Self, BackendError> {
        let (major, minor) = compute;
        let known = DEVICES.iter().find(|(known, _)| *known == compute);
        let (_, [sm_count, shared_kib, memory_gib]) = known.ok_or_else(|| {
            let message =
                format!("no device of compute capability {major}.{minor} is known to compile for");
            BackendError::Unavailable(message)
        })?;
        let nvrtc = Nvrtc::find(u32::MAX).map_err(BackendError::Unavailable)?;
        let architecture = nvrtc
            .architecture(compute)
            .map_err(BackendError::Unavailable)?;
        let versions = format!(
            "NVRTC {}.{} for {architecture}, nothing runs",
            nvrtc.version.0, nvrtc.version.1
        );
        let facts = Facts {
            name: "dry".into(),
            compute,
            sm_count: *sm_count,
            shared_bytes_max: shared_kib << 10,
            memory_bytes: u64::from(*memory_gib) << 30,
            products: Products {
                blas: true,
                refused: Vec::new(),
            },
            warpgroups: wgmma::is_possible(compute, &architecture, None),
            versions,
        };
        let compiler = Arc::new(Shipping {
            nvrtc,
            architecture,
        });
        Ok(Self {
            facts,
            compiler,
            functions: 0,
            graphs: 0,
            next_address: 1 << 20,
            slot: Vec::new(),
        })
    }
}

impl Driver for Dry {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn refuse_warpgroups(&mut self) {
        self.facts.warpgroups = false;
    }

    fn compiler(&self) -> Arc<dyn Compiler> {
        self.compiler.clone()
    }

    fn load(
        &mut self,
        _kernel: &Kernel,
        _image: &[u8],
        _params_bytes: usize,
    ) -> Result<Function, BackendError> {
        self.functions += 1;
        Ok(Function(self.functions - 1))
    }

    fn allocate(&mut self, _what: &str, bytes: u64) -> Result<u64, BackendError> {
        let address = self.next_address;
        self.next_address += bytes.next_multiple_of(256);
        Ok(address)
    }

    fn free(&mut self, _address: u64) {}

    fn write(&mut self, _address: u64, _bytes: &[u8]) -> Result<(), BackendError> {
        Ok(())
    }

    fn read(&mut self, _address: u64, bytes: &mut [u8]) -> Result<(), BackendError> {
        bytes.fill(0);
        Ok(())
    }

    fn make_slots(
        &mut self,
        _upload_words: usize,
        download_words: usize,
    ) -> Result<(), BackendError> {
        self.slot = vec![0; download_words];
        Ok(())
    }

    fn upload(&mut self, slot: usize, _words: &[u32], _to: u64) -> Result<(), BackendError> {
        assert!(slot < SLOTS, "a slot of the driver");
        Ok(())
    }

    fn download(
        &mut self,
        _slot: usize,
        _from: u64,
        _words: usize,
        _to: usize,
    ) -> Result<(), BackendError> {
        Ok(())
    }

    fn wait(&mut self, _slot: usize, _timeout: Duration) -> Result<&[u32], BackendError> {
        Ok(&self.slot)
    }

    fn copy_out(&mut self, spans: &[Span]) -> Result<Copies, BackendError> {
        Ok(Copies {
            buffer: 0,
            bytes: spans.iter().map(|span| span.bytes).sum(),
        })
    }

    fn copied(&mut self, copies: Copies, _timeout: Duration) -> Result<Vec<u8>, BackendError> {
        Ok(vec![0; copies.bytes])
    }

    fn copy_in(&mut self, _spans: &[Span], _bytes: &[&[u8]]) -> Result<(), BackendError> {
        Ok(())
    }

    fn run(&mut self, _commands: &[Command]) -> Result<(), BackendError> {
        Ok(())
    }

    fn record(&mut self, _commands: &[Command]) -> Result<Graph, BackendError> {
        self.graphs += 1;
        Ok(Graph(self.graphs - 1))
    }

    fn run_graph(&mut self, _graph: Graph) -> Result<(), BackendError> {
        Ok(())
    }

    fn drop_graphs(&mut self) {
        self.graphs = 0;
    }

    /// As if cuBLASLt had an algorithm for each.
    fn prepare_products(
        &mut self,
        _products: &[Product],
        _measure: bool,
    ) -> Result<bool, BackendError> {
        Ok(true)
    }

    fn time(&mut self, _commands: &[Command]) -> Result<f64, BackendError> {
        Ok(1.0)
    }
}
