//! Adapters and devices: adapter selection, limits and features, and error handling.
//!
//! An adapter gets a [`Class`] (tile shapes) and a [`Tier`] (instructions). Errors of the device never panic: an
//! uncaptured error or a loss is stored in [`DeviceErrors`] and returned by the next call.

use super::super::{BackendError, DeviceKind, FEW_ROWS_MAX};
use super::facts::Facts;
use super::hardware;
use super::matrices::{self, Matrices};
use super::texels;
use futures_channel::oneshot;
use futures_util::FutureExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Instructions that the kernels may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// WebGPU's default limits, no optional features.
    T0,
    /// Subgroup operations, with any subgroup size from 4 to 128.
    T1,
    /// Cooperative matrices of halves with sums of f32, for products of many rows (Vulkan, Metal).
    T2,
}

impl Tier {
    /// The next lower tier, if there is one.
    pub(crate) fn lower(self) -> Option<Self> {
        match self {
            Self::T0 => None,
            Self::T1 => Some(Self::T0),
            Self::T2 => Some(Self::T1),
        }
    }
}

/// Selects the tile shapes of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// A GPU with its own memory, and anything similar.
    Discrete,
    /// A GPU that shares the system's memory.
    Integrated,
    /// A software adapter, which runs shaders on CPU cores: other shapes, no workgroup memory.
    Software,
}

impl Class {
    /// The class of an adapter, unless overridden.
    pub(crate) fn of(kind: DeviceKind) -> Self {
        match kind {
            DeviceKind::Software | DeviceKind::Processor => Self::Software,
            DeviceKind::Integrated => Self::Integrated,
            DeviceKind::Discrete | DeviceKind::Virtual => Self::Discrete,
        }
    }

    /// Number of cores of a typical device, for drivers that do not report it. Too large a guess costs some reuse of
    /// loaded data; too small a guess leaves cores idle, which costs more.
    pub(crate) fn usual_cores(self) -> u32 {
        match self {
            Self::Discrete => 64,
            Self::Integrated => 20,
            Self::Software => 1,
        }
    }
}

/// Whether products of a single row with quantized weights round the row to bytes ([`Caps::int8_activations`]).
///
/// [`Caps::int8_activations`]: crate::backend::Caps::int8_activations
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Int8Activations {
    /// Never: activations stay f32.
    #[default]
    Off,
    /// If the driver says that the GPU multiplies and adds four signed bytes in one instruction.
    Native,
    /// On every adapter; for tests. Without such an instruction it only costs time.
    Always,
}

/// Which adapter to open, and overrides for tests.
#[derive(Clone, Debug, Default)]
pub struct WgpuOptions {
    /// Index into [`super::WgpuBackend::adapters`]; `None` selects the best GPU and never a software adapter.
    pub adapter: Option<usize>,
    /// Use the tile shapes of another class.
    pub class: Option<Class>,
    /// Use at most this tier.
    pub tier: Option<Tier>,
    /// Products of bytes.
    pub int8_activations: Int8Activations,
    /// Bind at most this many bytes at once, for tests of sharding.
    pub binding_bytes_max: Option<u64>,
    /// Allow at most this many bytes for a buffer that is never sharded, for tests of memory limits.
    pub buffer_bytes_max: Option<u64>,
    /// Compile shaders with bounds checks, loop bounds and zeroed workgroup memory.
    pub checked: bool,
    /// Use subgroup operations although wgpu does not report them: it does not know the browser's feature `subgroups`,
    /// which the page must have added to what wgpu requests of the device.
    pub subgroups: bool,
    /// Folder of the pipeline cache (Vulkan); `None` disables it.
    pub cache_dir: Option<PathBuf>,
    /// Timeout of a batch, after which the device counts as lost; `None`: 60 s, or an hour on a software adapter.
    pub read_timeout: Option<Duration>,
    /// Pretend that the driver rejects every kernel with this define, for tests of the fallback.
    #[doc(hidden)]
    pub refused_define: Option<&'static str>,
    /// Replace the first text by the second in every kernel, for tests of the checks at start.
    #[doc(hidden)]
    pub planted: Option<(&'static str, &'static str)>,
    /// Expect subgroups of this many lanes in kernels with matrices, for tests of drivers that choose others.
    #[doc(hidden)]
    pub matrix_lanes: Option<u32>,
    /// Load matrices by pointers to halves, as on Metal.
    #[doc(hidden)]
    pub scalar_tiles: bool,
}

/// An adapter as listed by `folio devices`.
#[derive(Clone, Debug)]
pub struct AdapterReport {
    /// Index for [`WgpuOptions::adapter`].
    pub index: usize,
    /// The driver's name for the device.
    pub name: String,
    /// `vulkan`, `metal`, `dx12` or `webgpu`.
    pub api: &'static str,
    /// Driver name and version.
    pub driver: String,
    /// Kind of processor.
    pub kind: DeviceKind,
    /// Class (tile shapes) that it would get.
    pub class: Class,
    /// Highest supported tier.
    pub tier: Tier,
    /// Smallest and largest subgroup size; zero if unknown.
    pub subgroup_sizes: (u32, u32),
    /// Maximum bytes that a kernel can bind at once.
    pub binding_bytes_max: u64,
    /// Maximum bytes of a buffer.
    pub buffer_bytes_max: u64,
    /// Bytes of workgroup memory.
    pub workgroup_bytes_max: u32,
    /// Bytes available for weights and KV pool, if the driver reports it.
    pub memory_bytes: Option<u64>,
    /// Where that number comes from.
    pub memory_source: Option<&'static str>,
    /// The compiler of its shaders, where there is a choice (DX12).
    pub shader_compiler: Option<&'static str>,
    /// Whether `auto` selects it.
    pub chosen: bool,
}

/// Maximum rows of `matmul_rows`, which reads each weight once: beyond, reading x costs more than reading the weights.
pub(crate) const ROWS_MAX: u32 = 16;

/// What is best on a device, but depends on how its chips hide latencies, which no API reports. It may be measured
/// (`tune.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    /// Workgroups of a product that each core should get: with fewer than two, a core often waits for the slowest.
    pub product_workgroups: u32,
    /// Outputs that an invocation computes at once for up to 8 rows.
    pub product_outputs: u32,
    /// Rows of a tile of a product with many rows.
    pub tile_rows: u32,
    /// Workgroups of attention that each core should get: long contexts are split among them.
    pub attention_workgroups: u32,
    /// 1: many rows are multiplied by cooperative matrices, where the device has them; 0: never. A driver may emulate
    /// them, or run them with subgroups that they do not suit.
    pub matrices: u32,
    /// Maximum rows that are multiplied without matrices where there are some, because the weights are most of what
    /// such a product reads.
    pub few_rows: u32,
}

impl Tuning {
    /// The one that needs most scratch memory: enough for all others.
    pub(crate) const LARGEST: Self = Self {
        product_workgroups: 8,
        attention_workgroups: 8,
        few_rows: ROWS_MAX,
        ..Self::USUAL
    };
    /// What is used if nothing was measured.
    pub(crate) const USUAL: Self = Self {
        product_workgroups: 4,
        product_outputs: 4,
        tile_rows: 64,
        attention_workgroups: 4,
        matrices: 1,
        few_rows: FEW_ROWS_MAX,
    };
}

/// Properties of a device that kernels depend on; fixed once the device is open.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) tier: Tier,
    pub(crate) class: Class,
    /// Maximum bytes of a weight shard, row buffer or pool shard that a kernel binds; tests may lower it.
    pub(crate) binding_bytes_max: u64,
    /// Maximum bytes of a buffer that is never sharded, such as metadata and scratch; tests may lower it.
    pub(crate) buffer_bytes_max: u64,
    /// Whether `unpack2x16float` and `pack2x16float` exist; without them the shaders convert by integer arithmetic.
    pub(crate) half_conversion: bool,
    /// Whether storage buffers can also be read as images, which is faster on this driver.
    pub(crate) texels: bool,
    /// Minimum lanes of a subgroup; 0 below [`Tier::T1`].
    pub(crate) subgroup_size_min: u32,
    /// Cooperative matrices; `None` below [`Tier::T2`]. Kernels ask [`Profile::matrices`].
    pub(crate) matrices: Option<Matrices>,
    /// Number of cores that run workgroups independently.
    pub(crate) cores: u32,
    /// Whether products of a single row with quantized weights round the row to bytes.
    pub(crate) int8_activations: bool,
    /// May be measured once the device is open.
    pub(crate) tuning: Tuning,
}

impl Profile {
    /// The cooperative matrices that kernels use.
    pub(crate) fn matrices(&self) -> Option<Matrices> {
        if self.tuning.matrices == 0 {
            None
        } else {
            self.matrices
        }
    }

    /// Maximum rows of a product whose weights are read once for all of them, by the kernels for few rows.
    pub(crate) fn few_rows_max(&self) -> u32 {
        match self.matrices() {
            Some(_) => self.tuning.few_rows,
            None => ROWS_MAX,
        }
    }

    /// Number of workgroups that a product should have, if its rows and columns allow.
    pub(crate) fn product_workgroups(&self) -> u32 {
        self.tuning.product_workgroups * self.cores
    }

    /// Number of workgroups that attention should have, if contexts are long enough.
    pub(crate) fn attention_workgroups(&self) -> u32 {
        self.tuning.attention_workgroups * self.cores
    }

    /// The profile whose kernels need most scratch memory.
    pub(crate) fn with_most_scratch(&self) -> Self {
        Self {
            tuning: Tuning::LARGEST,
            ..self.clone()
        }
    }

    /// Restricts the profile to a lower tier. Buffers allocated for the old profile stay large enough.
    pub(crate) fn restrict(&mut self, tier: Tier) {
        (self.tier, self.texels, self.matrices) = (tier, false, None);
        if tier < Tier::T1 {
            self.subgroup_size_min = 0;
        }
    }
}

/// The first error that no call has returned yet, and whether the device is lost.
#[derive(Debug, Default)]
pub(crate) struct DeviceErrors {
    state: Mutex<FaultState>,
}

#[derive(Debug, Default)]
struct FaultState {
    lost: Option<BackendError>,
    refused: Option<BackendError>,
}

impl DeviceErrors {
    fn with<T>(&self, f: impl FnOnce(&mut FaultState) -> T) -> T {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Marks the device as lost; only the first reason is kept.
    pub(crate) fn lose(&self, reason: String) {
        self.with(|state| _ = state.lost.get_or_insert(BackendError::Lost(reason)));
    }

    fn hang(&self, limit: Duration) {
        self.with(|state| _ = state.lost.get_or_insert(BackendError::Hung(limit)));
    }

    fn refuse(&self, error: BackendError) {
        self.with(|state| _ = state.refused.get_or_insert(error));
    }

    /// Fails always if the device is lost; any other error is returned once.
    pub(crate) fn check(&self) -> Result<(), BackendError> {
        self.with(|state| match (&state.lost, state.refused.take()) {
            (Some(error), _) => Err(error.clone()),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(()),
        })
    }
}

/// An open device with its queue.
pub(crate) struct Gpu {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) info: wgpu::AdapterInfo,
    pub(crate) profile: Profile,
    pub(crate) errors: Arc<DeviceErrors>,
    pub(crate) memory: Option<(u64, &'static str)>,
    pub(crate) checked: bool,
    pub(crate) read_timeout: Duration,
    pub(crate) refused_define: Option<&'static str>,
    pub(crate) planted: Option<(&'static str, &'static str)>,
    /// Whether the lanes of kernels with matrices were set, and need not be those that the driver chooses.
    pub(crate) expects_matrix_lanes: bool,
}

impl Gpu {
    /// Opens the adapter selected by `options`, or the best GPU.
    pub(crate) async fn open(options: &WgpuOptions) -> Result<Self, BackendError> {
        let adapters = enumerate().await;
        let infos: Vec<_> = adapters.iter().map(wgpu::Adapter::get_info).collect();
        let index = choose(&infos, options.adapter)?;
        let adapter = &adapters[index];
        let facts = Facts::of(adapter);
        let mut info = facts.info.clone();
        (info.subgroup_min_size, info.subgroup_max_size) = facts.subgroup_sizes();
        if info.name.is_empty() {
            info.name = "this adapter".into(); // a browser may hide the name
        }
        let mut profile = profile(&facts, options);
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("folio"),
            required_features: features(&facts, &profile),
            required_limits: limits(&facts, &profile),
            experimental_features: experimental(&profile),
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            ..Default::default()
        };
        let (device, queue) = adapter.request_device(&descriptor).await.map_err(|error| {
            BackendError::Unavailable(format!(
                "adapter {index} ({}) cannot be opened: {error}",
                info.name
            ))
        })?;
        profile.texels = profile.texels && texels::works(&device);
        if info.backend == wgpu::Backend::Dx12 && shader_compiler().1 == FXC {
            tracing::warn!("{}: shaders by FXC: {FXC_IS_SLOW}", info.name);
        }
        let errors = Arc::new(DeviceErrors::default());
        listen(&device, &errors);
        let timeout_seconds = if profile_kind(&info) == DeviceKind::Software {
            3600
        } else {
            60
        };
        Ok(Self {
            device,
            queue,
            profile,
            errors,
            memory: memory(adapter, &info),
            checked: options.checked,
            read_timeout: options
                .read_timeout
                .unwrap_or(Duration::from_secs(timeout_seconds)),
            refused_define: options.refused_define,
            planted: options.planted,
            expects_matrix_lanes: options.matrix_lanes.is_some(),
            info,
        })
    }

    /// Runs `create` and returns the error it caused, if any. In a browser errors come later, through [`DeviceErrors`].
    pub(crate) fn catch<T>(&self, create: impl FnOnce() -> T) -> Result<T, wgpu::Error> {
        if cfg!(target_arch = "wasm32") {
            return Ok(create());
        }
        let memory = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let internal = self.device.push_error_scope(wgpu::ErrorFilter::Internal);
        let validation = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let value = create();
        let errors = [
            validation.pop().now_or_never(),
            internal.pop().now_or_never(),
            memory.pop().now_or_never(),
        ];
        errors
            .into_iter()
            .flatten()
            .flatten()
            .next()
            .map_or(Ok(value), Err)
    }

    /// Waits for all work submitted so far. Does nothing in a browser, which cannot block.
    pub(crate) fn wait(&self) -> Result<(), BackendError> {
        let wait = wgpu::PollType::Wait {
            submission_index: None,
            timeout: Some(self.read_timeout),
        };
        self.poll(wait)
    }

    /// In a browser, waits for all work submitted so far: only then are errors of earlier calls known. Natively they
    /// are known immediately.
    pub(crate) async fn settle(&self) -> Result<(), BackendError> {
        if cfg!(target_arch = "wasm32") {
            let (sender, done) = oneshot::channel();
            self.queue
                .on_submitted_work_done(move || _ = sender.send(()));
            // A lost device may drop the callback.
            let _ = done.await;
        }
        self.errors.check()
    }

    /// Polls; a device that does not answer in time is marked as hung, which is handled like a loss.
    pub(crate) fn poll(&self, poll: wgpu::PollType) -> Result<(), BackendError> {
        match self.device.poll(poll) {
            Ok(_) => {}
            Err(wgpu::PollError::Timeout) => self.errors.hang(self.read_timeout),
            Err(error) => self.errors.lose(error.to_string()),
        }
        self.errors.check()
    }
}

/// Destroys the device: a browser would free its memory only on garbage collection, too late for the next model.
#[cfg(target_arch = "wasm32")]
impl Drop for Gpu {
    fn drop(&mut self) {
        self.device.destroy();
    }
}

fn listen(device: &wgpu::Device, errors: &Arc<DeviceErrors>) {
    let uncaptured = Arc::clone(errors);
    device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| match error {
        wgpu::Error::OutOfMemory { .. } => {
            uncaptured.refuse(BackendError::OutOfMemory {
                what: "a batch".into(),
                bytes: 0,
            });
        }
        other => uncaptured.refuse(BackendError::Validation(other.to_string())),
    }));
    let lost = Arc::clone(errors);
    device.set_device_lost_callback(move |reason, message| {
        lost.lose(format!("{reason:?}: {message}"));
    });
}

/// Whether adapters are listed and opened without Vulkan.
static IS_WITHOUT_VULKAN: AtomicBool = AtomicBool::new(false);

/// From now on, this process does not touch Vulkan's drivers: for machines where one of them crashes. There may be
/// other adapters, of DX12.
pub fn exclude_vulkan() {
    IS_WITHOUT_VULKAN.store(true, Ordering::Relaxed);
}

async fn enumerate() -> Vec<wgpu::Adapter> {
    let others = wgpu::Backends::METAL | wgpu::Backends::DX12 | wgpu::Backends::BROWSER_WEBGPU;
    let backends = if IS_WITHOUT_VULKAN.load(Ordering::Relaxed) {
        others
    } else {
        others | wgpu::Backends::VULKAN
    };
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = backends;
    descriptor.flags = wgpu::InstanceFlags::empty();
    descriptor.backend_options.dx12.shader_compiler = shader_compiler().0;
    wgpu::Instance::new(descriptor)
        .enumerate_adapters(backends)
        .await
}

/// The name of the compiler that is a part of Windows.
pub const FXC: &str = "FXC";
/// What its users should know.
pub const FXC_IS_SLOW: &str = "this compiler of Windows is slow and has no subgroup operations; Microsoft's \
    dxcompiler.dll (github.com/microsoft/DirectXShaderCompiler) beside folio.exe is used instead";

/// The compiler of DX12's shaders, and its name for display: Microsoft's DXC, if this build contains it (feature
/// `static-dxc`, only with MSVC) or if its library lies beside the program; else FXC, which is a part of Windows, slow,
/// and without subgroup operations. A library elsewhere is not loaded: it could be anybody's.
fn shader_compiler() -> (wgpu::Dx12Compiler, &'static str) {
    let is_linked = cfg!(all(
        feature = "static-dxc",
        windows,
        target_env = "msvc",
        not(target_arch = "aarch64")
    ));
    match is_linked {
        true => (wgpu::Dx12Compiler::StaticDxc, "DXC (built in)"),
        false => match own_dxc() {
            Some(dxc_path) => (
                wgpu::Dx12Compiler::DynamicDxc { dxc_path },
                "DXC (dxcompiler.dll)",
            ),
            None => (wgpu::Dx12Compiler::Fxc, FXC),
        },
    }
}

/// The path of the DXC beside this program, if there is one.
fn own_dxc() -> Option<String> {
    let path = std::env::current_exe()
        .ok()?
        .parent()?
        .join("dxcompiler.dll");
    path.is_file()
        .then_some(path)?
        .into_os_string()
        .into_string()
        .ok()
}

/// All adapters, in the order of their indices.
pub(crate) async fn reports() -> Vec<AdapterReport> {
    let adapters = enumerate().await;
    let infos: Vec<_> = adapters.iter().map(wgpu::Adapter::get_info).collect();
    let chosen = choose(&infos, None).ok();
    adapters
        .iter()
        .enumerate()
        .map(|(index, adapter)| {
            let facts = Facts::of(adapter);
            let profile = profile(&facts, &WgpuOptions::default());
            let memory = memory(adapter, &facts.info);
            let subgroup_sizes = facts.subgroup_sizes();
            let Facts { info, limits, .. } = facts;
            AdapterReport {
                index,
                api: api_name(info.backend),
                driver: driver_name(&info),
                kind: profile_kind(&info),
                class: profile.class,
                tier: profile.tier,
                subgroup_sizes,
                binding_bytes_max: limits.max_storage_buffer_binding_size,
                buffer_bytes_max: limits.max_buffer_size,
                workgroup_bytes_max: limits.max_compute_workgroup_storage_size,
                memory_bytes: memory.map(|(bytes, _)| bytes),
                memory_source: memory.map(|(_, source)| source),
                shader_compiler: (info.backend == wgpu::Backend::Dx12).then(|| shader_compiler().1),
                chosen: chosen == Some(index),
                name: info.name,
            }
        })
        .collect()
}

/// Bytes available for weights and KV pool, if an API reports them, and which one does.
fn memory(adapter: &wgpu::Adapter, info: &wgpu::AdapterInfo) -> Option<(u64, &'static str)> {
    hardware::memory(adapter, profile_kind(info).shares_memory())
}

/// The index of the adapter that is asked for, or of the best GPU.
pub(crate) fn choose(
    adapters: &[wgpu::AdapterInfo],
    requested: Option<usize>,
) -> Result<usize, BackendError> {
    if let Some(index) = requested {
        return adapters.get(index).map(|_| index).ok_or_else(|| {
            BackendError::Unavailable(format!(
                "there is no wgpu adapter {index}; available: {}",
                listed(adapters)
            ))
        });
    }
    let rank = |index: &usize| match profile_kind(&adapters[*index]) {
        DeviceKind::Discrete => 0,
        DeviceKind::Integrated => 1,
        DeviceKind::Virtual => 2,
        DeviceKind::Software | DeviceKind::Processor => 3,
    };
    // The same GPU is listed once per API; Vulkan comes first in wgpu's order and `min_by_key` keeps the first.
    let best = (0..adapters.len())
        .filter(|index| rank(index) < 3)
        .min_by_key(rank);
    best.ok_or_else(|| match adapters.len() {
        0 => BackendError::Unavailable(
            "no GPU adapter (Vulkan, Metal, DX12 or WebGPU) was found".into(),
        ),
        _ => BackendError::Unavailable(format!(
            "no GPU; software adapters must be selected by index: {}",
            listed(adapters)
        )),
    })
}

fn listed(adapters: &[wgpu::AdapterInfo]) -> String {
    let names = adapters
        .iter()
        .enumerate()
        .map(|(index, adapter)| format!("{index}: {}", adapter.name));
    names.collect::<Vec<_>>().join(", ")
}

/// Name and version of the driver.
pub(crate) fn driver_name(info: &wgpu::AdapterInfo) -> String {
    format!("{} {}", info.driver, info.driver_info)
        .trim()
        .to_owned()
}

pub(crate) fn api_name(backend: wgpu::Backend) -> &'static str {
    match backend {
        wgpu::Backend::Vulkan => "vulkan",
        wgpu::Backend::Metal => "metal",
        wgpu::Backend::Dx12 => "dx12",
        wgpu::Backend::BrowserWebGpu => "webgpu",
        wgpu::Backend::Gl => "gl",
        wgpu::Backend::Noop => "noop",
    }
}

pub(crate) fn profile_kind(info: &wgpu::AdapterInfo) -> DeviceKind {
    match info.device_type {
        wgpu::DeviceType::DiscreteGpu => DeviceKind::Discrete,
        wgpu::DeviceType::IntegratedGpu => DeviceKind::Integrated,
        wgpu::DeviceType::Cpu => DeviceKind::Software,
        wgpu::DeviceType::VirtualGpu | wgpu::DeviceType::Other => DeviceKind::Virtual,
    }
}

/// The profile of an adapter with these facts.
pub(crate) fn profile(facts: &Facts, options: &WgpuOptions) -> Profile {
    let class = options
        .class
        .unwrap_or(Class::of(profile_kind(&facts.info)));
    let (tier, matrices) = tier(facts, options, class);
    let texels = class == Class::Software && tier >= Tier::T1 && facts.texels;
    let bytes_max = bytes_max(facts, texels);
    let at_most = |bytes: Option<u64>| bytes.map_or(bytes_max, |bytes| bytes.min(bytes_max));
    let int8_activations = match options.int8_activations {
        // Kernels of software adapters have no such variant.
        _ if class == Class::Software => false,
        Int8Activations::Off => false,
        Int8Activations::Native => facts.dots,
        Int8Activations::Always => true,
    };
    Profile {
        tier,
        class,
        binding_bytes_max: at_most(options.binding_bytes_max),
        buffer_bytes_max: at_most(options.buffer_bytes_max),
        half_conversion: facts.half_conversion,
        texels,
        subgroup_size_min: if tier >= Tier::T1 {
            facts.subgroup_sizes().0
        } else {
            0
        },
        matrices,
        // Another class is another device.
        cores: match facts.cores() {
            Some(cores) if options.class.is_none() => cores,
            _ => class.usual_cores(),
        },
        int8_activations,
        tuning: Tuning::USUAL,
    }
}

/// The best tier that is asked for and that the adapter has, and its matrices if they are part of it.
fn tier(facts: &Facts, options: &WgpuOptions, class: Class) -> (Tier, Option<Matrices>) {
    let (min, max) = facts.subgroup_sizes();
    let has_feature = facts.features.contains(wgpu::Features::SUBGROUP);
    let has_subgroups = (options.subgroups || has_feature) && min >= 4 && max <= 128;
    // Software adapters compute a matrix element by element, and their own kernels do that better.
    let matrices = if has_subgroups && class != Class::Software {
        Matrices::of(facts)
    } else {
        None
    };
    let best = match (has_subgroups, matrices) {
        (false, _) => Tier::T0,
        (true, None) => Tier::T1,
        (true, Some(_)) => Tier::T2,
    };
    let tier = options.tier.map_or(best, |tier| tier.min(best));
    let matrices = match matrices {
        Some(matrices) if tier >= Tier::T2 => Some(Matrices {
            lanes: options.matrix_lanes.unwrap_or(matrices.lanes),
            scalar_tiles: matrices.scalar_tiles || options.scalar_tiles,
            ..matrices
        }),
        _ => None,
    };
    (tier, matrices)
}

/// Bytes of the largest binding, which is also a buffer.
fn bytes_max(facts: &Facts, texels: bool) -> u64 {
    let binding = facts
        .limits
        .max_storage_buffer_binding_size
        .min(facts.limits.max_buffer_size);
    if texels {
        binding.min(texels::BYTES_MAX)
    } else {
        binding
    }
}

fn features(facts: &Facts, profile: &Profile) -> wgpu::Features {
    let subgroup = if profile.tier >= Tier::T1 {
        wgpu::Features::SUBGROUP
    } else {
        wgpu::Features::empty()
    };
    let optional =
        facts.features & (wgpu::Features::PIPELINE_CACHE | wgpu::Features::TIMESTAMP_QUERY);
    let matrices = if profile.matrices.is_some() {
        matrices::features(facts.info.backend)
    } else {
        wgpu::Features::empty()
    };
    subgroup | matrices | optional
}

#[allow(
    unsafe_code,
    reason = "cooperative matrices are an experimental feature of wgpu"
)]
fn experimental(profile: &Profile) -> wgpu::ExperimentalFeatures {
    match profile.matrices {
        None => wgpu::ExperimentalFeatures::disabled(),
        // SAFETY: the only experimental feature is cooperative matrices. What wgpu's translation of them misses on
        // Vulkan is added in `spirv.rs`, and a product with a known result is checked before they are used.
        Some(_) => unsafe { wgpu::ExperimentalFeatures::enabled() },
    }
}

/// WebGPU's default limits, except for sizes, which are the adapter's maximum.
fn limits(facts: &Facts, profile: &Profile) -> wgpu::Limits {
    let has = &facts.limits;
    let images = wgpu::Limits::default().max_storage_textures_per_shader_stage;
    let workgroup_bytes = wgpu::Limits::default().max_compute_workgroup_storage_size;
    wgpu::Limits {
        max_storage_textures_per_shader_stage: if profile.texels {
            images.max(8)
        } else {
            images
        },
        max_compute_workgroup_storage_size: match profile.matrices {
            Some(_) => matrices::WORKGROUP_BYTES,
            None => workgroup_bytes.min(has.max_compute_workgroup_storage_size),
        },
        max_buffer_size: has.max_buffer_size,
        max_storage_buffer_binding_size: has.max_storage_buffer_binding_size,
        ..wgpu::Limits::default().or_worse_values_from(has)
    }
}
