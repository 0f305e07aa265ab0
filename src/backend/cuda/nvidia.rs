//! An NVIDIA device through the driver API.
//!
//! cudarc declares and loads the driver's functions. It panics if the library or a function is missing, so nothing of
//! it may be used before [`present`] has returned `Ok`. There is one context, a stream for the steps and one for copies
//! of KV blocks ([`Transfers`]), and all calls come from the thread that opened the device. An error caused by a kernel
//! is sticky: every later call fails, and only a new process helps.

use super::super::BackendError;
use super::blas::{Blas, Product, ProductShape, WORKSPACE_BYTES};
use super::choices::Choices;
use super::driver::{
    Command, Copies, Driver, Facts, Function, Graph, Launch, Products, SLOTS, Span,
};
use super::encode::attend_paged::wgmma;
use super::error::failed;
use super::kernel::{Compiler, Kernel};
use super::library;
use super::nvrtc::{ForArchitecture, is_ptx};
use super::overlap;
use super::transfers::Transfers;
use cudarc::driver::{DriverError, result, sys};
use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Minimum compute capability of the kernels: Ampere introduced asynchronous copies and bfloat16.
const COMPUTE_MIN: (u32, u32) = (8, 0);
/// Number of products that are timed together.
const TIMED_RUNS: usize = 16;
/// An idle GPU computes for about so long before its clocks are those of a busy one.
const CLOCKS_RISE: Duration = Duration::from_millis(200);

/// Driver functions called here. cudarc looks up each one at its first call, and panics if it is missing.
const FUNCTIONS: [&str; 41] = [
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuInit",
    "cuLaunchKernelEx",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamBeginCapture_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];
/// File name of the driver's library.
const DRIVER: &str = if cfg!(windows) {
    "nvcuda.dll"
} else {
    "libcuda.so.1"
};

/// Checks that the driver's library exists and has all functions; an error says what is missing.
#[allow(unsafe_code, reason = "opens a library")]
pub(super) fn present() -> Result<(), String> {
    // SAFETY: only tries to open the driver, under all the names that cudarc tries.
    if !unsafe { sys::is_culib_present() } {
        return Err(format!(
            "no NVIDIA driver: its library ({DRIVER}) was not found"
        ));
    }
    // If the library has another name, its functions are not checked.
    let Ok(library) = library::open(Path::new(DRIVER), &[]) else {
        return Ok(());
    };
    let missing = FUNCTIONS.iter().find(|name| !library.has(name));
    missing.map_or(Ok(()), |name| {
        Err(format!("the NVIDIA driver is too old: {name} is missing"))
    })
}

/// What the driver reports about itself and a device, without opening the device.
pub(super) struct Seen {
    pub(super) name: String,
    pub(super) compute: (u32, u32),
    pub(super) memory_bytes: u64,
}

/// The driver's CUDA version: 13.0 is (13, 0).
#[allow(unsafe_code, reason = "a foreign call")]
pub(super) fn driver_version() -> Result<(u32, u32), BackendError> {
    result::init()
        .map_err(|error| BackendError::Unavailable(failed("cuInit", error).to_string()))?;
    let mut version = 0;
    // SAFETY: writes an integer.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }
        .result()
        .map_err(|error| failed("the driver's version", error))?;
    let version = u32::try_from(version).unwrap_or(0);
    Ok((version / 1000, version % 1000 / 10))
}

/// The devices of this machine, in the driver's order.
#[allow(unsafe_code, reason = "foreign calls")]
pub(super) fn devices() -> Result<Vec<Seen>, BackendError> {
    driver_version()?;
    let count =
        result::device::get_count().map_err(|error| unavailable("listing devices", error))?;
    (0..count)
        .map(|ordinal| {
            let device = result::device::get(ordinal)?;
            // SAFETY: the driver has just listed this device.
            let memory = unsafe { result::device::total_mem(device)? };
            Ok(Seen {
                name: result::device::get_name(device)?,
                compute: compute(device)?,
                memory_bytes: memory as u64,
            })
        })
        .collect::<Result<_, DriverError>>()
        .map_err(|error| unavailable("listing devices", error))
}

fn unavailable(what: &str, error: DriverError) -> BackendError {
    BackendError::Unavailable(failed(what, error).to_string())
}

#[allow(unsafe_code, reason = "a foreign call")]
fn attribute(
    device: sys::CUdevice,
    attribute: sys::CUdevice_attribute,
) -> Result<u32, DriverError> {
    // SAFETY: the driver has listed this device.
    let value = unsafe { result::device::get_attribute(device, attribute)? };
    Ok(u32::try_from(value).unwrap_or(0))
}

/// The streams of the steps and of copies, in the device's primary context, which becomes this thread's.
#[allow(unsafe_code, reason = "a foreign call")]
fn open_streams(device: sys::CUdevice) -> Result<(sys::CUstream, Transfers), DriverError> {
    // SAFETY: the primary context of an existing device, made current on this thread.
    unsafe { result::ctx::set_current(result::primary_ctx::retain(device)?)? };
    let stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
    Ok((stream, Transfers::new(stream)?))
}

/// Number of multiprocessors, and bytes of shared memory of a block.
fn resources(device: sys::CUdevice) -> Result<(u32, u32), DriverError> {
    use sys::CUdevice_attribute as A;
    let shared = A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
    Ok((
        attribute(device, A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        attribute(device, shared)?,
    ))
}

fn compute(device: sys::CUdevice) -> Result<(u32, u32), DriverError> {
    use sys::CUdevice_attribute as A;
    Ok((
        attribute(device, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(device, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    ))
}

/// A device that is not open yet.
struct Card {
    device: sys::CUdevice,
    name: String,
    /// Compute capability.
    compute: (u32, u32),
}

impl Card {
    /// Finds device `ordinal`. An error if it is too old.
    fn find(ordinal: usize) -> Result<Self, BackendError> {
        let ordinal = i32::try_from(ordinal).unwrap_or(i32::MAX);
        let found = result::device::get(ordinal).and_then(|device| {
            Ok(Self {
                device,
                name: result::device::get_name(device)?,
                compute: compute(device)?,
            })
        });
        let card = found.map_err(|error| unavailable("the device", error))?;
        let (major, minor) = card.compute;
        if card.compute < COMPUTE_MIN {
            return Err(BackendError::Unavailable(format!(
                "{} has compute capability {major}.{minor}; 8.0 is required",
                card.name
            )));
        }
        Ok(card)
    }

    /// Warns if the driver must compile the kernels once more.
    fn warn_of_ptx(&self, compiler: &ForArchitecture) {
        if is_ptx(&compiler.architecture) {
            let (major, minor) = self.compute;
            tracing::warn!(
                "{} does not know compute capability {major}.{minor}: the driver compiles its {} code for {}, and a \
                 newer NVRTC may give faster kernels",
                compiler.described(),
                compiler.architecture,
                self.name
            );
        }
    }

    /// What is known of it once its context is current.
    fn facts(
        &self,
        architecture: &str,
        blas: bool,
        versions: String,
    ) -> Result<Facts, BackendError> {
        let (sm_count, shared_bytes_max) =
            resources(self.device).map_err(|error| unavailable("the context", error))?;
        let (free, _) = result::mem_get_info().map_err(|error| unavailable("the memory", error))?;
        let variable = std::env::var(wgmma::VARIABLE).ok();
        Ok(Facts {
            name: self.name.clone(),
            compute: self.compute,
            sm_count,
            shared_bytes_max,
            memory_bytes: free as u64,
            products: Products {
                blas,
                refused: Vec::new(),
            },
            warpgroups: wgmma::is_possible(self.compute, architecture, variable.as_deref()),
            versions,
        })
    }
}

/// The versions of driver, compiler and cuBLASLt.
fn versions(
    (major, minor): (u32, u32),
    compiler: &ForArchitecture,
    blas: &Result<Blas, String>,
) -> String {
    let with = match blas {
        Ok(blas) => format!("cuBLASLt {}", blas.version()),
        Err(fault) => format!("without cuBLASLt ({fault})"),
    };
    let (compiled_by, architecture) = (compiler.described(), &compiler.architecture);
    format!("driver {major}.{minor}, {compiled_by} for {architecture}, {with}")
}

/// Pinned memory for one batch each way, and the event recorded after its download.
struct Slot {
    upload: *mut u32,
    download: *mut u32,
    event: sys::CUevent,
}

/// An open device.
pub(super) struct Nvidia {
    facts: Facts,
    device: sys::CUdevice,
    stream: sys::CUstream,
    compiler: Arc<ForArchitecture>,
    blas: Option<Blas>,
    /// The algorithms of cuBLASLt that were the fastest.
    choices: Choices,
    modules: Vec<sys::CUmodule>,
    functions: Vec<sys::CUfunction>,
    graphs: Vec<sys::CUgraphExec>,
    slots: Vec<Slot>,
    /// Copies of KV blocks.
    transfers: Transfers,
    upload_words: usize,
    download_words: usize,
    /// Address of the cuBLASLt workspace.
    workspace: u64,
    /// Whether kernels of a graph may begin early.
    overlaps: bool,
    /// Whether it has computed for so long that times are those of a busy GPU.
    has_high_clocks: bool,
    /// A batch did not return in time: waiting for the stream would block forever.
    hung: bool,
}

impl Nvidia {
    /// Opens device `ordinal`: context, stream, compiler and cuBLASLt. What was measured on it is kept in `cache_dir`.
    pub(super) fn open(ordinal: usize, cache_dir: Option<&Path>) -> Result<Self, BackendError> {
        let driver = driver_version()?;
        let card = Card::find(ordinal)?;
        let compiler =
            ForArchitecture::find(driver.0, card.compute).map_err(BackendError::Unavailable)?;
        let (stream, transfers) =
            open_streams(card.device).map_err(|error| unavailable("the context", error))?;
        let workspace = allocate_raw("the workspace of cuBLASLt", WORKSPACE_BYTES)?;
        let blas = Blas::find(driver.0, workspace);
        card.warn_of_ptx(&compiler);
        let versions = versions(driver, &compiler, &blas);
        let (major, minor) = card.compute;
        let choices = Choices::open(
            cache_dir,
            &format!("{} {major}.{minor}, {versions}", card.name),
        );
        let variable = std::env::var(overlap::VARIABLE).ok();
        let overlaps = overlap::is_possible(
            card.compute,
            &compiler.architecture,
            driver,
            variable.as_deref(),
        );
        Ok(Self {
            facts: card.facts(&compiler.architecture, blas.is_ok(), versions)?,
            device: card.device,
            stream,
            compiler: Arc::new(compiler),
            blas: blas.ok(),
            choices,
            modules: Vec::new(),
            functions: Vec::new(),
            graphs: Vec::new(),
            slots: Vec::new(),
            transfers,
            upload_words: 0,
            download_words: 0,
            workspace,
            overlaps,
            has_high_clocks: false,
            hung: false,
        })
    }

    #[allow(unsafe_code, reason = "a foreign call")]
    fn synchronize(&self) -> Result<(), BackendError> {
        if self.hung {
            return Err(BackendError::Lost("the device does not respond".into()));
        }
        // SAFETY: the stream is alive.
        unsafe { result::stream::synchronize(self.stream) }
            .map_err(|error| failed("waiting for the device", error))
    }

    /// Launches a kernel after the one before it has ended; or `early`, while that one runs.
    #[allow(unsafe_code, reason = "launches a kernel")]
    fn launch(&self, launch: &Launch, early: bool) -> Result<(), BackendError> {
        let function = self.functions[launch.function.0 as usize];
        // The driver copies the params before it returns; they must be aligned as their first member.
        let mut words: [u64; 64] = [0; 64];
        for (word, bytes) in words.iter_mut().zip(launch.params.chunks(8)) {
            word_from(word, bytes);
        }
        let [grid_x, grid_y, grid_z] = launch.grid;
        let mut arguments = [words.as_mut_ptr().cast::<c_void>()];
        let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
        value.programmaticStreamSerializationAllowed = 1;
        let id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        let mut attribute = sys::CUlaunchAttribute {
            id,
            pad: [0; 4],
            value,
        };
        let config = sys::CUlaunchConfig {
            gridDimX: grid_x,
            gridDimY: grid_y,
            gridDimZ: grid_z,
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared_bytes,
            hStream: self.stream,
            attrs: &raw mut attribute,
            numAttrs: u32::from(early),
        };
        // SAFETY: the function takes one struct of this size (encoder and kernel declare the same params), and the
        // addresses in it were allocated by this driver.
        unsafe {
            sys::cuLaunchKernelEx(
                &raw const config,
                function,
                arguments.as_mut_ptr(),
                ptr::null_mut(),
            )
        }
        .result()
        .map_err(|error| failed("a launch", error))
    }

    /// Enqueues commands; with `overlap`, kernels may begin early.
    fn enqueue(&self, commands: &[Command], overlap: bool) -> Result<(), BackendError> {
        commands
            .iter()
            .enumerate()
            .try_for_each(|(at, command)| match command {
                Command::Kernel(launch) => {
                    self.launch(launch, overlap && overlap::begins_early(commands, at))
                }
                Command::Product(product) => match &self.blas {
                    Some(blas) => blas.run(product, self.stream.cast()),
                    None => Err(BackendError::Validation("cuBLASLt is not available".into())),
                },
            })
    }

    /// Chooses the algorithm for a new shape, as [`Driver::prepare_products`]. All are timed on products of that shape
    /// from many layers, so that each weight has left the cache before its next use; a single one only has to run. An
    /// error says why cuBLASLt has none that works.
    fn choose_algorithm(
        &mut self,
        shape: ProductShape,
        products: &[Product],
        measure: bool,
    ) -> Result<(), BackendError> {
        let Some(blas) = self.blas.as_mut().filter(|blas| !blas.is_prepared(shape)) else {
            return Ok(());
        };
        let proposals = blas.prepare(shape)?;
        let (candidates, runs) = match self.choices.get(shape).filter(|kept| *kept < proposals) {
            Some(kept) => (vec![kept], 1),
            // In both orders, because clocks and temperatures drift meanwhile.
            None if measure => (
                (0..proposals).chain((0..proposals).rev()).collect(),
                TIMED_RUNS,
            ),
            None => (vec![0], 1),
        };
        let same = products.iter().filter(|product| product.shape == shape);
        let commands: Vec<Command> = same
            .cycle()
            .take(runs)
            .copied()
            .map(Command::Product)
            .collect();
        if runs > 1 {
            self.raise_clocks(&commands)?;
        }
        let fastest = self.fastest(shape, &candidates, &commands);
        let Some(blas) = &mut self.blas else {
            return Ok(());
        };
        match fastest {
            Ok(proposal) => {
                blas.choose(shape, proposal);
                if measure {
                    self.choices.insert(shape, proposal);
                }
                Ok(())
            }
            Err(error) => {
                if !error.is_loss() {
                    blas.forget(shape);
                }
                Err(error)
            }
        }
    }

    /// The algorithm among `candidates` with which commands take the least time in all. An error says why none works.
    fn fastest(
        &mut self,
        shape: ProductShape,
        candidates: &[usize],
        commands: &[Command],
    ) -> Result<usize, BackendError> {
        let mut times: BTreeMap<usize, f64> = BTreeMap::new();
        let mut fault = None;
        for &candidate in candidates {
            if let Some(blas) = &mut self.blas {
                blas.choose(shape, candidate);
            }
            match self.replay_seconds(commands) {
                Ok(seconds) => *times.entry(candidate).or_default() += seconds,
                Err(error) if error.is_loss() => return Err(error),
                Err(error) => {
                    // One that fails once is not used, however fast it was.
                    times.insert(candidate, f64::INFINITY);
                    fault = Some(error);
                }
            }
        }
        let best = times
            .into_iter()
            .filter(|(_, seconds)| seconds.is_finite())
            .min_by(|(_, one), (_, other)| one.total_cmp(other));
        match (best, fault) {
            (Some((candidate, _)), _) => Ok(candidate),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(0),
        }
    }

    /// Keeps the GPU busy until its clocks have risen, once: what is timed before takes longer than it will.
    fn raise_clocks(&mut self, commands: &[Command]) -> Result<(), BackendError> {
        let start = Instant::now();
        while !self.has_high_clocks && start.elapsed() < CLOCKS_RISE {
            match self.replay_seconds(commands) {
                Err(error) if error.is_loss() => return Err(error),
                // An algorithm that fails is found out when it is timed.
                Err(_) => break,
                Ok(_) => {}
            }
        }
        self.has_high_clocks = true;
        Ok(())
    }

    /// Seconds that commands take as a graph, as decoding runs them: alone, each launch would cost the host more than a
    /// small product takes.
    #[allow(unsafe_code, reason = "destroys a graph")]
    fn replay_seconds(&mut self, commands: &[Command]) -> Result<f64, BackendError> {
        let graph = self.record(commands)?;
        let mut seconds = Ok(0.0);
        // The first run of an algorithm loads its code, and does not count.
        for _ in 0..2 {
            seconds = self.synchronize().and_then(|()| {
                let start = Instant::now();
                self.run_graph(graph)?;
                self.synchronize()?;
                Ok(start.elapsed().as_secs_f64())
            });
            if seconds.is_err() {
                break;
            }
        }
        if let Some(graph) = self.graphs.pop() {
            // SAFETY: instantiated by `record` just now; it is not running, or the device is lost.
            _ = unsafe { result::graph::exec_destroy(graph) };
        }
        seconds
    }

    /// Waits until an event has occurred. A batch that takes longer than `timeout` counts as hung.
    #[allow(unsafe_code, reason = "a foreign call")]
    fn await_event(&mut self, event: sys::CUevent, timeout: Duration) -> Result<(), BackendError> {
        /// Busy-wait for this long before sleeping: a decode step ends sooner, and a sleep would take longer than the
        /// step.
        const SPIN: Duration = Duration::from_millis(2);
        let start = Instant::now();
        loop {
            // SAFETY: the event is alive.
            match unsafe { result::event::query(event) } {
                Ok(()) => return Ok(()),
                Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NOT_READY => {}
                Err(error) => return Err(failed("a batch", error)),
            }
            match start.elapsed() {
                elapsed if elapsed > timeout => {
                    self.hung = true;
                    return Err(BackendError::Hung(timeout));
                }
                elapsed if elapsed > SPIN => std::thread::sleep(Duration::from_micros(20)),
                _ => std::hint::spin_loop(),
            }
        }
    }

    fn free_slots(&mut self) {
        for slot in self.slots.drain(..) {
            free_slot(&slot);
        }
    }
}

fn word_from(word: &mut u64, bytes: &[u8]) {
    let mut whole = [0; 8];
    whole[..bytes.len()].copy_from_slice(bytes);
    *word = u64::from_le_bytes(whole);
}

#[allow(unsafe_code, reason = "frees memory")]
fn free_slot(slot: &Slot) {
    // SAFETY: allocated by `make_slots`; no copy is in flight, since the stream was waited for.
    unsafe {
        _ = result::free_host(slot.upload.cast());
        _ = result::free_host(slot.download.cast());
        _ = result::event::destroy(slot.event);
    }
}

#[allow(unsafe_code, reason = "allocates memory")]
fn allocate_raw(what: &str, bytes: u64) -> Result<u64, BackendError> {
    // SAFETY: a plain allocation in the current context.
    let address = unsafe { result::malloc_sync(bytes.max(256) as usize) };
    address.map_err(|error| match failed(what, error) {
        BackendError::OutOfMemory { what, .. } => BackendError::OutOfMemory { what, bytes },
        other => other,
    })
}

impl Driver for Nvidia {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn refuse_warpgroups(&mut self) {
        self.facts.warpgroups = false;
    }

    fn compiler(&self) -> Arc<dyn Compiler> {
        self.compiler.clone()
    }

    #[allow(unsafe_code, reason = "foreign calls")]
    fn load(
        &mut self,
        kernel: &Kernel,
        image: &[u8],
        _params_bytes: usize,
    ) -> Result<Function, BackendError> {
        use sys::CUfunction_attribute_enum as A;
        let refused = |error: DriverError| BackendError::Kernel {
            kernel: kernel.to_string(),
            message: failed("loading", error).to_string(),
        };
        let name = CString::new(kernel.stem)
            .map_err(|error| BackendError::Validation(error.to_string()))?;
        // SAFETY: the image is a complete CUBIN, from NVRTC or from a file with a verified hash. The module stays
        // loaded as long as the function.
        let (module, function) = unsafe {
            let module = result::module::load_data(image.as_ptr().cast()).map_err(refused)?;
            let function = result::module::get_function(module, name).map_err(refused)?;
            let shared = A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let fixed = result::function::get_function_attribute(
                function,
                A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
            );
            let fixed = fixed.map_err(refused)?;
            let most = i32::try_from(self.facts.shared_bytes_max).unwrap_or(i32::MAX) - fixed;
            result::function::set_function_attribute(function, shared, most).map_err(refused)?;
            (module, function)
        };
        self.modules.push(module);
        self.functions.push(function);
        Ok(Function(self.functions.len() as u32 - 1))
    }

    #[allow(unsafe_code, reason = "clears memory")]
    fn allocate(&mut self, what: &str, bytes: u64) -> Result<u64, BackendError> {
        let address = allocate_raw(what, bytes)?;
        // SAFETY: the memory was just allocated, with at least so many bytes.
        let cleared = unsafe { result::memset_d8_async(address, 0, bytes as usize, self.stream) };
        cleared.map_err(|error| failed(what, error))?;
        Ok(address)
    }

    #[allow(unsafe_code, reason = "frees memory")]
    fn free(&mut self, address: u64) {
        // After a device loss nothing can be freed; the process ends.
        if self.synchronize().is_ok() {
            // SAFETY: the address comes from `allocate`; nothing uses it after the stream was waited for.
            _ = unsafe { result::free_sync(address) };
        }
    }

    #[allow(unsafe_code, reason = "a copy")]
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), BackendError> {
        // The write is ordered by the stream. The bytes are not pinned, so the driver has copied them when this
        // returns.
        // SAFETY: the caller passes memory of this driver with room for the bytes.
        unsafe { result::memcpy_htod_async(address, bytes, self.stream) }
            .map_err(|error| failed("a write", error))
    }

    #[allow(unsafe_code, reason = "a copy")]
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.synchronize()?;
        // SAFETY: the caller passes memory of this driver that holds at least as many bytes.
        unsafe { result::memcpy_dtoh_sync(bytes, address) }.map_err(|error| failed("a read", error))
    }

    #[allow(unsafe_code, reason = "pinned memory")]
    fn make_slots(
        &mut self,
        upload_words: usize,
        download_words: usize,
    ) -> Result<(), BackendError> {
        self.synchronize()?;
        self.free_slots();
        let refused = |error| failed("pinned memory", error);
        for _ in 0..SLOTS {
            // SAFETY: plain allocations in the current context.
            let slot = unsafe {
                Slot {
                    upload: result::malloc_host(upload_words.max(1) * 4, 0)
                        .map_err(refused)?
                        .cast(),
                    download: result::malloc_host(download_words.max(1) * 4, 0)
                        .map_err(refused)?
                        .cast(),
                    event: result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
                        .map_err(refused)?,
                }
            };
            self.slots.push(slot);
        }
        (self.upload_words, self.download_words) = (upload_words, download_words);
        Ok(())
    }

    #[allow(unsafe_code, reason = "a copy")]
    fn upload(&mut self, slot: usize, words: &[u32], to: u64) -> Result<(), BackendError> {
        assert!(words.len() <= self.upload_words, "the batch fits its slot");
        let pinned = self.slots[slot].upload;
        // SAFETY: the slot has room for the words; its last batch has been waited for, so no copy reads it.
        let copied = unsafe {
            ptr::copy_nonoverlapping(words.as_ptr(), pinned, words.len());
            result::memcpy_htod_async(
                to,
                std::slice::from_raw_parts(pinned, words.len()),
                self.stream,
            )
        };
        copied.map_err(|error| failed("an upload", error))
    }

    #[allow(unsafe_code, reason = "a copy")]
    fn download(
        &mut self,
        slot: usize,
        from: u64,
        words: usize,
        to: usize,
    ) -> Result<(), BackendError> {
        assert!(
            to + words <= self.download_words,
            "the results fit their slot"
        );
        let Slot {
            download, event, ..
        } = self.slots[slot];
        // SAFETY: the slot has room for the words, and nothing reads them until `wait`.
        let copied = unsafe {
            let pinned = std::slice::from_raw_parts_mut(download.add(to), words);
            result::memcpy_dtoh_async(pinned, from, self.stream)
                .and_then(|()| result::event::record(event, self.stream))
        };
        copied.map_err(|error| failed("a download", error))
    }

    #[allow(unsafe_code, reason = "reads pinned memory")]
    fn wait(&mut self, slot: usize, timeout: Duration) -> Result<&[u32], BackendError> {
        self.await_event(self.slots[slot].event, timeout)?;
        // SAFETY: the download has arrived, and the slot is written again only after the next `download`.
        Ok(unsafe { std::slice::from_raw_parts(self.slots[slot].download, self.download_words) })
    }

    fn copy_out(&mut self, spans: &[Span]) -> Result<Copies, BackendError> {
        self.transfers.copy_out(spans)
    }

    fn copied(&mut self, copies: Copies, timeout: Duration) -> Result<Vec<u8>, BackendError> {
        self.await_event(self.transfers.event(&copies), timeout)?;
        Ok(self.transfers.take(&copies))
    }

    fn copy_in(&mut self, spans: &[Span], bytes: &[&[u8]]) -> Result<(), BackendError> {
        self.transfers.copy_in(spans, bytes)
    }

    fn run(&mut self, commands: &[Command]) -> Result<(), BackendError> {
        self.enqueue(commands, false)
    }

    #[allow(unsafe_code, reason = "captures a graph")]
    fn record(&mut self, commands: &[Command]) -> Result<Graph, BackendError> {
        let refused = |error| failed("a graph", error);
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive and not the null stream; the graph is destroyed after it is instantiated.
        let graph = unsafe {
            result::stream::begin_capture(self.stream, mode).map_err(refused)?;
            let recorded = self.enqueue(commands, self.overlaps);
            let graph = result::stream::end_capture(self.stream).map_err(refused);
            recorded?;
            let graph = graph?;
            let executable = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0))
                .map_err(refused);
            _ = result::graph::destroy(graph);
            executable?
        };
        self.graphs.push(graph);
        Ok(Graph(self.graphs.len() as u32 - 1))
    }

    #[allow(unsafe_code, reason = "runs a graph")]
    fn run_graph(&mut self, graph: Graph) -> Result<(), BackendError> {
        // SAFETY: graph and stream are alive.
        let launched = unsafe { result::graph::launch(self.graphs[graph.0 as usize], self.stream) };
        launched.map_err(|error| failed("a graph", error))
    }

    #[allow(unsafe_code, reason = "destroys graphs")]
    fn drop_graphs(&mut self) {
        if self.synchronize().is_err() {
            // Such an error ends the process, which frees them.
            self.graphs.clear();
        }
        for graph in self.graphs.drain(..) {
            // SAFETY: instantiated by `record`, and no longer running.
            _ = unsafe { result::graph::exec_destroy(graph) };
        }
    }

    fn prepare_products(
        &mut self,
        products: &[Product],
        measure: bool,
    ) -> Result<bool, BackendError> {
        let mut done: Vec<ProductShape> = Vec::new();
        for Product { shape, .. } in products {
            if done.contains(shape) {
                continue;
            }
            done.push(*shape);
            match self.choose_algorithm(*shape, products, measure) {
                Err(error) if error.is_loss() => return Err(error),
                Err(error) => {
                    if self.facts.products.refused.is_empty() {
                        tracing::warn!("{error}; folio's own kernels compute such products");
                    }
                    self.facts.products.refused.push(*shape);
                }
                Ok(()) => {}
            }
        }
        self.choices.save();
        Ok(!done
            .iter()
            .any(|shape| self.facts.products.refused.contains(shape)))
    }

    fn time(&mut self, commands: &[Command]) -> Result<f64, BackendError> {
        self.synchronize()?;
        let start = Instant::now();
        self.enqueue(commands, false)?;
        self.synchronize()?;
        Ok(start.elapsed().as_secs_f64())
    }
}

impl Drop for Nvidia {
    #[allow(unsafe_code, reason = "foreign calls")]
    fn drop(&mut self) {
        if self.hung {
            return;
        }
        self.drop_graphs();
        self.free_slots();
        self.transfers.free();
        self.blas = None;
        // SAFETY: this driver created everything here. The primary context is reference-counted; memory that the arena
        // did not free is released with it.
        unsafe {
            for module in self.modules.drain(..) {
                _ = result::module::unload(module);
            }
            _ = result::free_sync(self.workspace);
            _ = result::stream::destroy(self.stream);
            _ = result::primary_ctx::release(self.device);
        }
    }
}
