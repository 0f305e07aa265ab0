//! Runs the plan on NVIDIA GPUs, with native kernels that are compiled for the device at first start.
//!
//! [`CudaBackend`] opens a device ([`nvidia`], using only the driver's library) and allocates everything once
//! ([`arena`]). For each batch it uploads one packed buffer, replays a recorded program ([`encode`]) and copies the
//! sampled ids back through pinned memory. Decode batches are grouped into buckets, each a CUDA graph of the whole
//! step. Two batches may be in flight. Kernels are CUDA C++ in `cuda/`, compiled by NVRTC ([`nvrtc`]) and cached on
//! disk ([`kernel`]); large products use cuBLASLt if it is found ([`blas`]).
//!
//! It builds without a CUDA toolkit and starts without a driver: [`CudaBackend::survey`] says what is missing. In
//! tests, the same kernels run on the CPU ([`emulator`]).
//!
//! An error caused by a kernel is sticky: the backend then reports the device as lost, and cannot be reset in this
//! process.
//!
//! `docs/cuda.md` tells users what the backend needs and what has been tested.

mod arena;
mod audit;
pub mod bench;
mod blas;
mod choices;
mod copies;
mod driver;
mod dry;
#[cfg(unix)]
mod emulator;
mod encode;
mod error;
mod inspect;
mod kernel;
mod library;
mod modules;
mod nvidia;
mod nvrtc;
mod overlap;
mod side;
mod transfers;
#[cfg(unix)]
mod trial;

pub use audit::{Auditor, Footprint};
#[cfg(unix)]
pub use emulator::{Watch, metadata_constants};
pub use kernel::SHIPPED_VARIABLE;
#[cfg(unix)]
pub use trial::Trial;

use super::layout::{Layout, PoolLayout};
use super::metadata::{self, RESULT_STRIDE_MAX, Requested};
use super::{Allocation, Backend, BackendError, BlockRef, Capacity, Caps, DeviceKind, SideBuffers};
use crate::plan::inputs::{BatchInputs, Results};
use crate::plan::{Plan, Storage, WeightId};
use arena::{Arena, SideBytes};
use bytes::Bytes;
use copies::Saves;
use driver::{Command, Driver, Facts, Graph, SLOTS};
use encode::attend_paged::wgmma;
use encode::{BatchShape, Subject, attend_paged};
use modules::Modules;
use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What runs the kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CudaDevice {
    /// The GPU with this number in the driver's order.
    Gpu(usize),
    /// Nothing: kernels are compiled as for the usual device of this compute capability, to be shipped.
    Dry((u32, u32)),
    /// The processor, with kernels chosen as for a device of this compute capability. The folder is the repository's
    /// `cuda/`.
    #[cfg(unix)]
    Emulator((u32, u32), PathBuf),
}

/// As users name it.
impl fmt::Display for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpu(index) => write!(f, "cuda:{index}"),
            Self::Dry((major, minor)) => write!(f, "cuda-dry:sm_{major}{minor}"),
            #[cfg(unix)]
            Self::Emulator((major, minor), _) => write!(f, "cuda-emulator:sm_{major}{minor}"),
        }
    }
}

/// Options for opening a device.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// What runs the kernels.
    pub device: CudaDevice,
    /// Cache folder for compiled kernels; `None`: no cache.
    pub cache_dir: Option<PathBuf>,
    /// Storage of activations between steps: bfloat16, or f32 to compare with other backends.
    pub activations: Storage,
    /// Replay decode batches as CUDA graphs.
    pub graphs: bool,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self {
            device: CudaDevice::Gpu(0),
            cache_dir: None,
            activations: Storage::Bf16,
            graphs: true,
        }
    }
}

/// A GPU as listed by the driver.
#[derive(Clone, Debug)]
pub struct CudaGpu {
    /// Device number, for [`CudaDevice::Gpu`].
    pub index: usize,
    /// The name that the driver reports.
    pub name: String,
    /// Compute capability.
    pub compute: (u32, u32),
    /// Bytes of device memory.
    pub memory_bytes: u64,
}

/// What CUDA components this machine has.
#[derive(Clone, Debug)]
pub struct Survey {
    /// Devices, in the driver's order.
    pub devices: Vec<CudaGpu>,
    /// Driver, compiler and libraries, one line each: version and path, or what is missing.
    pub parts: Vec<String>,
    /// Why no device can be opened, if that is so.
    pub obstacle: Option<String>,
}

/// Maximum number of recorded programs.
const PROGRAMS_MAX: usize = 256;
/// A batch that takes longer than this counts as hung.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

struct Program {
    commands: Vec<Command>,
    graph: Option<Graph>,
}

struct LoadedPlan {
    plan: Arc<Plan>,
    capacity: Capacity,
    arena: Arena,
    programs: HashMap<BatchShape, Program>,
    busy: [bool; SLOTS],
}

impl LoadedPlan {
    /// Where the pooled rows start in a slot: after all sampled rows.
    fn pooled_offset(&self) -> usize {
        self.capacity.samples_max.max(1) as usize * RESULT_STRIDE_MAX as usize
    }

    fn subject<'a>(&'a self, device: &'a Facts) -> Subject<'a> {
        Subject {
            plan: &self.plan,
            capacity: &self.capacity,
            arena: &self.arena,
            device,
        }
    }
}

/// A [`Backend`] that runs CUDA kernels.
pub struct CudaBackend {
    options: CudaOptions,
    caps: Caps,
    driver: Box<dyn Driver>,
    modules: Modules,
    loaded: Option<LoadedPlan>,
    /// Words of the batch being submitted; kept to reuse the allocation.
    words: Vec<u32>,
    /// Compile and record the usual batches before the first one arrives.
    warm: bool,
    /// Heads and the type of their results, for which products of warpgroups were checked.
    checked: Vec<(u32, Storage)>,
}

/// Identifies a submitted batch until it is read.
pub struct Ticket {
    slot: usize,
    requested: Vec<Requested>,
    pools: usize,
}

/// Opens a GPU, or what takes its place.
fn open_driver(options: &CudaOptions) -> Result<Box<dyn Driver>, BackendError> {
    match &options.device {
        CudaDevice::Gpu(ordinal) => {
            if let Some(obstacle) = CudaBackend::survey().obstacle {
                return Err(BackendError::Unavailable(obstacle));
            }
            Ok(Box::new(nvidia::Nvidia::open(
                *ordinal,
                options.cache_dir.as_deref(),
            )?))
        }
        CudaDevice::Dry(compute) => Ok(Box::new(dry::Dry::open(*compute)?)),
        #[cfg(unix)]
        CudaDevice::Emulator(compute, sources) => Ok(Box::new(emulator::Emulator::open(
            sources,
            *compute,
            Watch::Results,
        )?)),
    }
}

impl CudaBackend {
    /// Lists what is installed and what is missing. Opens no device, and cannot fail.
    pub fn survey() -> Survey {
        if let Err(missing) = nvidia::present() {
            return Survey {
                devices: Vec::new(),
                parts: vec![missing.clone()],
                obstacle: Some(missing),
            };
        }
        let mut parts = Vec::new();
        let version = match nvidia::driver_version() {
            Ok(version) => version,
            Err(error) => {
                return Survey {
                    devices: Vec::new(),
                    parts,
                    obstacle: Some(format!("the NVIDIA driver: {error}")),
                };
            }
        };
        parts.push(format!("driver for CUDA {}.{}", version.0, version.1));
        let mut obstacle = match nvrtc::Nvrtc::find(version.0) {
            Ok(nvrtc) => {
                let (major, minor) = nvrtc.version;
                parts.push(format!("NVRTC {major}.{minor}: {}", nvrtc.path.display()));
                None
            }
            Err(fault) => {
                parts.push(format!("NVRTC: {fault}"));
                let obstructs = !nvrtc::has_shipped_images();
                obstructs.then(|| format!("the NVIDIA driver is installed, but {fault}"))
            }
        };
        let blas = library::Places::here().candidates("cublasLt", version.0);
        parts.push(match blas.first() {
            Some(found) => format!("cuBLASLt: {}", found.path.display()),
            None => "cuBLASLt: not found; folio's own kernels compute all products".to_owned(),
        });
        let devices = nvidia::devices().unwrap_or_else(|error| {
            obstacle.get_or_insert(error.to_string());
            Vec::new()
        });
        if devices.is_empty() {
            obstacle.get_or_insert_with(|| "the NVIDIA driver lists no device".to_owned());
        }
        Survey {
            devices: devices
                .into_iter()
                .enumerate()
                .map(|(index, seen)| CudaGpu {
                    index,
                    name: seen.name,
                    compute: seen.compute,
                    memory_bytes: seen.memory_bytes,
                })
                .collect(),
            parts,
            obstacle,
        }
    }

    /// Opens a device. Never panics: an error says what is missing.
    pub fn open(options: &CudaOptions) -> Result<Self, BackendError> {
        #[cfg(unix)]
        if let CudaDevice::Emulator(compute, sources) = &options.device {
            return Self::emulated(sources, *compute, options, Watch::Results);
        }
        Ok(Self::with(open_driver(options)?, options, true))
    }

    /// Opens the emulator: the kernels run on the CPU, for tests, and are chosen as for a device of this compute
    /// capability. `sources` is the repository's `cuda/`. Needs a C++ compiler.
    #[cfg(unix)]
    pub fn emulated(
        sources: &std::path::Path,
        compute: (u32, u32),
        options: &CudaOptions,
        watch: Watch,
    ) -> Result<Self, BackendError> {
        Ok(Self::with(
            Box::new(emulator::Emulator::open(sources, compute, watch)?),
            options,
            false,
        ))
    }

    fn with(driver: Box<dyn Driver>, options: &CudaOptions, warm: bool) -> Self {
        let facts = driver.facts();
        let caps = Caps {
            name: facts.name.clone(),
            api: "cuda",
            kind: if warm {
                DeviceKind::Discrete
            } else {
                DeviceKind::Software
            },
            tier: format!(
                "sm_{}{}, {}",
                facts.compute.0, facts.compute.1, facts.versions
            ),
            activations: options.activations,
            int8_activations: false,
            half_products: false,
            binding_bytes_max: u64::MAX,
            memory_bytes: Some(facts.memory_bytes),
            memory_source: "the CUDA driver",
            machine_bytes: None,
            allocation: allocation(facts),
        };
        let modules = Modules::new(options.cache_dir.as_deref());
        let (loaded, words, checked) = (None, Vec::new(), Vec::new());
        Self {
            options: options.clone(),
            caps,
            driver,
            modules,
            loaded,
            words,
            warm,
            checked,
        }
    }

    /// Checks the kernels with products of warpgroups that a plan would use, each once. If one does not compile, or
    /// computes something else than the usual kernel, none is used.
    fn check_warpgroups(&mut self, plan: &Plan, capacity: &Capacity) {
        for head in wgmma::heads(plan, capacity, self.driver.facts()) {
            if self.checked.contains(&head) {
                continue;
            }
            self.checked.push(head);
            if let Err(fault) = wgmma::check(&mut *self.driver, &mut self.modules, head) {
                tracing::warn!("attention without wgmma: {fault}");
                self.driver.refuse_warpgroups();
                return;
            }
        }
    }

    fn loaded(&self) -> Result<&LoadedPlan, BackendError> {
        self.loaded.as_ref().ok_or_else(BackendError::not_loaded)
    }

    /// Finds the program of a shape, or records it; to `measure`, products whose shapes are new are timed.
    fn prepare(&mut self, shape: &BatchShape, measure: bool) -> Result<(), BackendError> {
        let loaded = self.loaded.as_mut().ok_or_else(BackendError::not_loaded)?;
        if loaded.programs.contains_key(shape) {
            return Ok(());
        }
        if loaded.programs.len() >= PROGRAMS_MAX {
            loaded.programs.clear();
            self.driver.drop_graphs();
        }
        // Until all kernels are loaded, and cuBLASLt takes all products that are left to it.
        let commands = loop {
            let device = self.driver.facts().clone();
            let commands = encode::record(&mut self.modules, loaded.subject(&device), shape)?;
            if self.modules.load_missing(&mut *self.driver)? {
                continue;
            }
            let products = commands.iter().filter_map(|command| match command {
                Command::Product(product) => Some(*product),
                Command::Kernel(_) => None,
            });
            if self
                .driver
                .prepare_products(&products.collect::<Vec<_>>(), measure)?
            {
                break commands;
            }
        };
        let graph = match self.options.graphs && shape.decode {
            true => Some(self.driver.record(&commands)?),
            false => None,
        };
        loaded
            .programs
            .insert(shape.clone(), Program { commands, graph });
        Ok(())
    }

    /// Records the programs of the usual batches, so that nothing is compiled while a user waits.
    fn warm_up(&mut self) -> Result<(), BackendError> {
        let device = self.driver.facts().clone();
        let loaded = self.loaded.as_ref().ok_or_else(BackendError::not_loaded)?;
        let shapes = BatchShape::usual(&loaded.plan, &loaded.capacity);
        tracing::info!(
            "preparing the kernels and products of {} programs",
            shapes.len()
        );
        // All kernels that any of them needs are compiled together, on all CPU cores.
        for shape in &shapes {
            encode::record(&mut self.modules, loaded.subject(&device), shape)?;
        }
        let start = Instant::now();
        self.modules.load_missing(&mut *self.driver)?;
        let (kernels, compiled) = (self.modules.loaded().len(), start.elapsed());
        shapes
            .iter()
            .try_for_each(|shape| self.prepare(shape, true))?;
        let recorded = start.elapsed() - compiled;
        tracing::info!(
            "{kernels} CUDA kernels ready after {compiled:.2?}, {} programs after {recorded:.2?}",
            shapes.len()
        );
        Ok(())
    }

    fn free(&mut self) {
        self.driver.drop_graphs();
        if let Some(mut loaded) = self.loaded.take() {
            loaded.arena.free(&mut *self.driver);
        }
    }

    /// Enqueues a batch that has been flattened into `words`; takes the words of its result records and of its pooled
    /// rows.
    fn enqueue(
        &mut self,
        slot: usize,
        shape: &BatchShape,
        (results, pools): (usize, usize),
    ) -> Result<(), BackendError> {
        let loaded = self.loaded.as_ref().ok_or_else(BackendError::not_loaded)?;
        let program = loaded.programs.get(shape).ok_or_else(|| {
            BackendError::Validation("the program of this batch is not recorded".into())
        })?;
        self.driver
            .upload(slot, &self.words, loaded.arena.metadata)?;
        match program.graph {
            Some(graph) => self.driver.run_graph(graph)?,
            None => self.driver.run(&program.commands)?,
        }
        self.driver
            .download(slot, loaded.arena.results, results, 0)?;
        match pools {
            0 => Ok(()),
            pools => self
                .driver
                .download(slot, loaded.arena.pooled, pools, loaded.pooled_offset()),
        }
    }
}

impl Backend for CudaBackend {
    type Ticket = Ticket;
    type Saves = Saves;

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn load(&mut self, plan: Arc<Plan>, capacity: &Capacity) -> Result<(), BackendError> {
        self.free();
        self.check_warpgroups(&plan, capacity);
        let facts = self.driver.facts().clone();
        let layout = Layout::checked(&plan, capacity, &self.caps)?;
        let side = SideBytes::new(&plan, capacity, &facts);
        let (upload, download) = side.slot_words();
        self.driver.make_slots(upload, download)?;
        let arena = Arena::new(&mut *self.driver, &plan, &layout, &side)?;
        let (capacity, programs) = (capacity.clone(), HashMap::new());
        self.loaded = Some(LoadedPlan {
            plan,
            capacity,
            arena,
            programs,
            busy: [false; SLOTS],
        });
        Ok(())
    }

    fn write_weight(
        &mut self,
        weight: WeightId,
        first_row: u32,
        rows: Bytes,
    ) -> Result<(), BackendError> {
        let loaded = self.loaded.as_mut().ok_or_else(BackendError::not_loaded)?;
        let spec = loaded.plan.weights.get(weight.0 as usize);
        let spec = spec.ok_or_else(|| BackendError::no_weight(weight))?;
        loaded
            .arena
            .write_weight(&mut *self.driver, spec, weight, first_row, &rows)
    }

    fn allocate_pool(&mut self, blocks: &[u32]) -> Result<(), BackendError> {
        let loaded = self.loaded.as_mut().ok_or_else(BackendError::not_loaded)?;
        loaded.programs.clear();
        self.driver.drop_graphs();
        let layout = PoolLayout::checked(&loaded.plan, &loaded.capacity, &self.caps, blocks)?;
        loaded
            .arena
            .allocate_pool(&mut *self.driver, &layout, blocks)?;
        if self.warm { self.warm_up() } else { Ok(()) }
    }

    fn submit(&mut self, inputs: &BatchInputs) -> Result<Ticket, BackendError> {
        let loaded = self.loaded.as_ref().ok_or_else(BackendError::not_loaded)?;
        if !loaded.arena.has_pool(&loaded.plan) {
            return Err(BackendError::no_pool());
        }
        let (plan, capacity) = (&*loaded.plan, &loaded.capacity);
        let context = metadata::Context {
            plan,
            capacity,
            blocks: &loaded.arena.blocks,
        };
        let facts = self.driver.facts();
        metadata::flatten(&context, inputs, &mut self.words, |group, words| {
            attend_paged::work(
                plan.for_batch(inputs),
                capacity,
                facts,
                inputs,
                group,
                words,
            );
        })?;
        let shape = BatchShape::of(plan, inputs, capacity);
        let free = loaded.busy.iter().position(|busy| !busy);
        let slot = free.ok_or_else(|| BackendError::all_in_flight(SLOTS))?;
        self.prepare(&shape, false)?;
        let requested = if shape.samples > 0 {
            metadata::requested(inputs)
        } else {
            Vec::new()
        };
        let pools = if shape.pools > 0 {
            inputs.pools.len()
        } else {
            0
        };
        let columns = self.loaded()?.plan.pooled_columns() as usize;
        let results = requested.len() * metadata::result_stride(inputs) as usize;
        self.enqueue(slot, &shape, (results, pools * columns))?;
        if let Some(loaded) = &mut self.loaded {
            loaded.busy[slot] = true;
        }
        Ok(Ticket {
            slot,
            requested,
            pools,
        })
    }

    async fn read(&mut self, ticket: Ticket) -> Result<Results, BackendError> {
        let loaded = self.loaded.as_mut().ok_or_else(BackendError::not_loaded)?;
        let Ticket {
            slot,
            requested,
            pools,
        } = ticket;
        loaded.busy[slot] = false;
        let words = self.driver.wait(slot, READ_TIMEOUT)?;
        let (sampled, pooled) = words.split_at(loaded.pooled_offset());
        Ok(Results {
            sampled: metadata::sampled(sampled, &requested),
            pooled: metadata::pooled(pooled, pools, loaded.plan.pooled_columns() as usize),
        })
    }

    fn save_blocks(&mut self, blocks: &[BlockRef]) -> Result<Saves, BackendError> {
        let loaded = self.loaded.as_ref().ok_or_else(BackendError::not_loaded)?;
        loaded.save_blocks(&mut *self.driver, blocks)
    }

    async fn saved_blocks(&mut self, saves: Saves) -> Result<Vec<Bytes>, BackendError> {
        copies::saved_blocks(&mut *self.driver, saves)
    }

    fn restore_blocks(&mut self, blocks: &[(BlockRef, Bytes)]) -> Result<(), BackendError> {
        let loaded = self.loaded.as_ref().ok_or_else(BackendError::not_loaded)?;
        loaded.restore_blocks(&mut *self.driver, blocks)
    }

    async fn reset(&mut self) -> Result<(), BackendError> {
        self.free();
        // A kernel's error stays with the context, so a device that still answers is fully usable.
        let mut probe = [0; 4];
        let address = self.driver.allocate("a probe", 4);
        address.and_then(|address| {
            let outcome = self.driver.read(address, &mut probe);
            self.driver.free(address);
            outcome
        })
    }
}

impl Drop for CudaBackend {
    fn drop(&mut self) {
        self.free();
    }
}

fn allocation(facts: &Facts) -> Allocation {
    let facts = facts.clone();
    let side =
        SideBuffers::new(move |plan, capacity| SideBytes::new(plan, capacity, &facts).list());
    let (granule, kv_groups_max) = (arena::GRANULE, metadata::GROUPS_MAX);
    Allocation {
        granule,
        kv_groups_max,
        wide_vectors: true,
        side,
        ..Allocation::default()
    }
}
