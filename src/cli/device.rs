//! Turns `--device` into a concrete backend; no other file does.
//!
//! `auto` selects the best GPU, or the CPU if there is none, or if the GPU is an integrated one and was measured to be
//! slower ([`rivals`]). A software adapter is used only if it is selected by number. [`DeviceArgs`] are the device
//! options of every command. For tests they also make an adapter run the kernels of another class or tier.

use super::drivers;
use super::folders;
use super::rivals::{self, Rivals, Speed};
use crate::cli::terminal::output::note;
use crate::cli::terminal::progress::{Phase, Unit};
#[cfg(all(feature = "cuda", unix))]
use anyhow::Context as _;
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use folio::backend::cpu::{CpuBackend, CpuOptions, Level};
#[cfg(feature = "cuda")]
use folio::backend::cuda::{CudaBackend, CudaDevice, CudaOptions, SHIPPED_VARIABLE, Survey};
use folio::backend::fake::{FakeBackend, Script};
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{
    AdapterReport, Choices, Class, Int8Activations, Tier, WgpuBackend, WgpuOptions, choices,
};
use folio::backend::{Backend, BackendError, Caps, DeviceKind};
use folio::config::Config;
use folio::platform;
#[cfg(feature = "cuda")]
use std::path::PathBuf;
use std::str::FromStr;

/// The parsed value of `--device`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeviceChoice {
    Auto,
    Cpu,
    Reference,
    Wgpu(Option<usize>),
    Cuda(Option<usize>),
    /// No device: CUDA kernels are compiled for this compute capability, and none runs.
    CudaDry((u32, u32)),
    /// CUDA kernels on the processor, as for this compute capability.
    CudaEmulator((u32, u32)),
    Fake(Option<String>),
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, detail) = text
            .split_once(':')
            .map_or((text, None), |(name, detail)| (name, Some(detail)));
        let index = |detail: Option<&str>| {
            detail
                .map(|text| {
                    text.parse()
                        .map_err(|_| format!("`{text}` is not a device number"))
                })
                .transpose()
        };
        match (name, detail) {
            ("auto", None) => Ok(Self::Auto),
            ("cpu", None) => Ok(Self::Cpu),
            ("reference", None) => Ok(Self::Reference),
            ("wgpu", detail) => Ok(Self::Wgpu(index(detail)?)),
            ("cuda", detail) => Ok(Self::Cuda(index(detail)?)),
            ("cuda-dry", Some(detail)) => Ok(Self::CudaDry(compute_capability(detail)?)),
            ("cuda-emulator", Some(detail)) => Ok(Self::CudaEmulator(compute_capability(detail)?)),
            ("fake", detail) => Ok(Self::Fake(detail.map(str::to_owned))),
            _ => {
                Err("expected auto, cpu, reference, wgpu[:N], cuda[:N] or fake[:SCRIPT]".to_owned())
            }
        }
    }
}

/// Reads an architecture, for example `sm_90a` for compute capability 9.0.
fn compute_capability(architecture: &str) -> Result<(u32, u32), String> {
    let number = architecture
        .strip_prefix("sm_")
        .map(|number| number.trim_end_matches('a'));
    let number: Option<u32> = number.and_then(|number| number.parse().ok());
    let number =
        number.ok_or_else(|| format!("`{architecture}` is not an architecture such as sm_90a"))?;
    Ok((number / 10, number % 10))
}

/// Data type of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Dtype {
    /// The fastest on the device
    Auto,
    /// 16 bits; only on CUDA devices
    Bfloat16,
    /// 32 bits
    Float32,
}

/// Class of GPU whose kernels are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ClassChoice {
    Discrete,
    Integrated,
    Software,
}

impl From<ClassChoice> for Class {
    fn from(choice: ClassChoice) -> Self {
        match choice {
            ClassChoice::Discrete => Self::Discrete,
            ClassChoice::Integrated => Self::Integrated,
            ClassChoice::Software => Self::Software,
        }
    }
}

/// Maximum tier of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TierChoice {
    T0,
    T1,
    T2,
}

impl From<TierChoice> for Tier {
    fn from(choice: TierChoice) -> Self {
        match choice {
            TierChoice::T0 => Self::T0,
            TierChoice::T1 => Self::T1,
            TierChoice::T2 => Self::T2,
        }
    }
}

/// When a single row of activations is rounded to bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Int8Choice {
    /// Never
    Off,
    /// If the GPU multiplies bytes in hardware (Vulkan only)
    Native,
    /// On every GPU; for tests
    #[value(hide = true)]
    Always,
}

impl From<Int8Choice> for Int8Activations {
    fn from(choice: Int8Choice) -> Self {
        match choice {
            Int8Choice::Off => Self::Off,
            Int8Choice::Native => Self::Native,
            Int8Choice::Always => Self::Always,
        }
    }
}

/// Which device, and how its kernels are chosen.
#[derive(Args, Clone, Debug)]
pub(crate) struct DeviceArgs {
    /// auto, cpu, reference, wgpu[:N], cuda[:N] or fake[:SCRIPT]
    #[arg(
        long = "device",
        env = "FOLIO_DEVICE",
        default_value = "auto",
        value_name = "DEVICE"
    )]
    pub(crate) choice: DeviceChoice,
    /// Threads of the CPU device [default: one per physical core]
    #[arg(long, env = "FOLIO_THREADS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Use this instruction set on the CPU device, one that the processor has; for tests
    #[arg(
        long,
        env = "FOLIO_CPU_SIMD",
        value_name = "SET",
        hide_short_help = true
    )]
    cpu_simd: Option<Level>,
    /// Round activations to 8 bits in products with quantized weights, when a wgpu device runs a single sequence: less
    /// arithmetic per weight, for a loss far below that of 8-bit weights; never with --deterministic
    #[arg(
        long,
        env = "FOLIO_INT8_ACTIVATIONS",
        value_name = "WHEN",
        default_value = "off"
    )]
    int8_activations: Int8Choice,
    /// Use the kernels of this class of GPU on a wgpu device, whatever the adapter is; for tests
    #[arg(
        long,
        env = "FOLIO_WGPU_CLASS",
        value_name = "CLASS",
        hide_short_help = true
    )]
    class: Option<ClassChoice>,
    /// Use at most this tier of kernels on a wgpu device: t0 is WebGPU's baseline, t1 has subgroups, t2 cooperative
    /// matrices; for tests
    #[arg(
        long,
        env = "FOLIO_WGPU_TIER",
        value_name = "TIER",
        hide_short_help = true
    )]
    tier: Option<TierChoice>,
    /// Bind at most this many bytes at once on a wgpu device; for tests
    #[arg(long, value_name = "BYTES", hide = true)]
    binding_bytes_max: Option<u64>,
}

impl DeviceArgs {
    /// The requested device, or an error that lists the available ones.
    pub(crate) fn resolve(&self) -> Result<Device> {
        Ok(match resolve(&self.choice)? {
            Device::Cpu(_) => Device::Cpu(CpuOptions {
                threads: self.threads.map(usize::from),
                level: self.cpu_simd,
            }),
            Device::Wgpu(options) => Device::Wgpu(WgpuOptions {
                class: self.class.map(Class::from),
                tier: self.tier.map(Tier::from),
                int8_activations: self.int8_activations.into(),
                binding_bytes_max: self.binding_bytes_max,
                ..options
            }),
            device => device,
        })
    }
}

/// An existing device that is not open yet; the engine's thread opens it.
#[derive(Clone, Debug)]
pub(crate) enum Device {
    Cpu(CpuOptions),
    Reference,
    #[cfg(feature = "cuda")]
    Cuda(CudaOptions),
    Wgpu(WgpuOptions),
    Fake(Box<Script>),
}

/// Work that is generic over the backend; [`Device::with`] runs it on the selected one.
pub(crate) trait DeviceJob {
    type Output;

    /// Runs the work. `open` is called in the thread that will own the backend: once for each model.
    fn run<B, F>(self, open: F) -> Self::Output
    where
        B: Backend + 'static,
        F: Fn() -> Result<B, BackendError> + Send + 'static;
}

impl Device {
    /// Runs a job on this device's backend.
    pub(crate) fn with<J: DeviceJob>(self, job: J) -> J::Output {
        match self {
            Self::Cpu(options) => job.run(move || Ok(CpuBackend::new(&options))),
            Self::Reference => job.run(|| Ok(ReferenceBackend::new())),
            #[cfg(feature = "cuda")]
            Self::Cuda(options) => job.run(move || CudaBackend::open(&options)),
            Self::Wgpu(options) => job.run(move || platform::block_on(WgpuBackend::open(&options))),
            Self::Fake(script) => job.run(move || Ok(FakeBackend::new((*script).clone()))),
        }
    }
}

impl Device {
    /// Sets the data type of activations.
    pub(crate) fn with_dtype(self, dtype: Dtype) -> Result<Self> {
        match (self, dtype) {
            #[cfg(feature = "cuda")]
            (Self::Cuda(options), Dtype::Float32) => Ok(Self::Cuda(CudaOptions {
                activations: folio::plan::Storage::F32,
                ..options
            })),
            #[cfg(feature = "cuda")]
            (device @ Self::Cuda(_), _) => Ok(device),
            (device, Dtype::Auto | Dtype::Float32) => Ok(device),
            (_, Dtype::Bfloat16) => {
                bail!("--dtype bfloat16 needs a CUDA device; other devices use float32 activations")
            }
        }
    }
}

/// Reads a device's capabilities.
struct ReadCaps;

impl DeviceJob for ReadCaps {
    type Output = Result<Caps, BackendError>;

    fn run<B, F>(self, open: F) -> Self::Output
    where
        B: Backend + 'static,
        F: Fn() -> Result<B, BackendError> + Send + 'static,
    {
        Ok(open()?.caps().clone())
    }
}

impl Device {
    /// Opens the device to read its capabilities, and closes it.
    pub(crate) fn caps(&self) -> Result<Caps, BackendError> {
        self.clone().with(ReadCaps)
    }
}

/// The devices of this machine.
pub(crate) struct Adapters {
    #[cfg(feature = "cuda")]
    pub(crate) cuda: Survey,
    pub(crate) reports: Vec<AdapterReport>,
    /// Index into `reports`; an NVIDIA device comes before all of them.
    pub(crate) chosen: Option<usize>,
    /// Why this device was chosen, or why none, as the end of a sentence.
    pub(crate) reason: String,
    /// What was measured of an integrated GPU and the processor.
    rivals: Option<Rivals>,
}

impl Adapters {
    /// Name of the device that `auto` selects.
    pub(crate) fn chosen_name(&self) -> String {
        #[cfg(feature = "cuda")]
        if self.cuda.obstacle.is_none() {
            return "cuda:0".to_owned();
        }
        self.best()
            .map_or_else(|| "cpu".to_owned(), |index| format!("wgpu:{index}"))
    }

    /// The chosen adapter, unless the processor was measured to be faster.
    fn best(&self) -> Option<usize> {
        if self.rivals.is_none_or(|rivals| rivals.gpu_wins()) {
            self.chosen
        } else {
            None
        }
    }

    /// The chosen adapter, if it is an integrated GPU that is yet to be compared with the processor.
    fn untried(&self) -> Option<&AdapterReport> {
        if self.rivals.is_none() {
            self.integrated()
        } else {
            None
        }
    }

    fn integrated(&self) -> Option<&AdapterReport> {
        let chosen = self.chosen.and_then(|index| self.reports.get(index));
        chosen.filter(|report| report.kind == DeviceKind::Integrated)
    }

    fn set_rivals(&mut self, rivals: Rivals) {
        self.rivals = Some(rivals);
        self.reason = rivals.to_string();
    }
}

/// Lists the devices and determines which one `auto` selects.
pub(crate) fn survey() -> Adapters {
    drivers::try_vulkan();
    let reports = WgpuBackend::adapters();
    let chosen = reports.iter().position(|report| report.chosen);
    let reason = match chosen {
        Some(_) => "the first adapter of the best kind (discrete, then integrated, then virtual)",
        None if reports.is_empty() => "no Vulkan, Metal or DX12 adapter found",
        None => "only software adapters found; --device wgpu:N selects one",
    };
    #[cfg(feature = "cuda")]
    let (cuda, reason) = {
        let cuda = CudaBackend::survey();
        let reason = match &cuda.obstacle {
            None => "CUDA is preferred".to_owned(),
            Some(obstacle) => format!("{obstacle}; {reason}"),
        };
        (cuda, reason)
    };
    let mut adapters = Adapters {
        #[cfg(feature = "cuda")]
        cuda,
        reports,
        chosen,
        reason: reason.to_string(),
        rivals: None,
    };
    if let Some(known) = adapters
        .integrated()
        .and_then(|report| rivals::known(&key(report)))
    {
        adapters.set_rivals(known);
    }
    adapters
}

/// Names a machine, a driver and a version of folio, for measurements.
fn key(report: &AdapterReport) -> String {
    let cpu = CpuBackend::default();
    let (gpu, driver, threads) = (&report.name, &report.driver, platform::parallelism());
    format!(
        "{gpu}, {driver}, {} with {threads} threads, folio {}",
        cpu.caps().tier,
        env!("CARGO_PKG_VERSION")
    )
}

/// Measures a device.
struct Measure;

impl DeviceJob for Measure {
    type Output = Result<Speed>;

    fn run<B, F>(self, open: F) -> Self::Output
    where
        B: Backend + 'static,
        F: Fn() -> Result<B, BackendError> + Send + 'static,
    {
        rivals::speed(open)
    }
}

/// Compares an integrated GPU with the processor and keeps the result.
fn compare(report: &AdapterReport) -> Result<Rivals> {
    note(format_args!(
        "measuring whether {} or the processor is faster; later starts know it",
        report.name
    ));
    let _phase = Phase::start("measuring both devices", Unit::Pieces);
    let gpu = adapter(report.index).with(Measure)?;
    let cpu = Device::Cpu(CpuOptions::default()).with(Measure)?;
    let rivals = Rivals { gpu, cpu };
    rivals::keep(&key(report), rivals);
    Ok(rivals)
}

/// The NVIDIA device with this number, if it can be opened.
#[cfg(feature = "cuda")]
fn resolve_cuda(index: Option<usize>) -> Result<Device> {
    let adapters = survey();
    if let Some(obstacle) = &adapters.cuda.obstacle {
        bail!("CUDA: {obstacle}; available devices: {}", known(&adapters));
    }
    let device = index.unwrap_or(0);
    if device >= adapters.cuda.devices.len() {
        bail!(
            "no device cuda:{device}; available devices: {}",
            known(&adapters)
        );
    }
    Ok(cuda(CudaDevice::Gpu(device)))
}

#[cfg(feature = "cuda")]
fn cuda(device: CudaDevice) -> Device {
    Device::Cuda(CudaOptions {
        device,
        cache_dir: folders::cache("cuda"),
        ..CudaOptions::default()
    })
}

/// A device whose kernels are compiled and not run. Their images are written to the folder of shipped ones, if one is
/// named.
#[cfg(feature = "cuda")]
fn resolve_cuda_dry(compute: (u32, u32)) -> Result<Device> {
    let cache_dir = std::env::var_os(SHIPPED_VARIABLE).map(PathBuf::from);
    Ok(Device::Cuda(CudaOptions {
        device: CudaDevice::Dry(compute),
        cache_dir,
        ..CudaOptions::default()
    }))
}

/// The folder with the sources of the CUDA kernels, for their emulator.
#[cfg(all(feature = "cuda", unix))]
const SOURCES_VARIABLE: &str = "FOLIO_CUDA_SOURCES";

#[cfg(all(feature = "cuda", unix))]
fn resolve_cuda_emulator(compute: (u32, u32)) -> Result<Device> {
    let sources = std::env::var_os(SOURCES_VARIABLE).map(PathBuf::from);
    let sources = sources.with_context(|| {
        format!("the emulator needs {SOURCES_VARIABLE}, the repository's cuda/")
    })?;
    Ok(cuda(CudaDevice::Emulator(compute, sources)))
}

#[cfg(all(feature = "cuda", not(unix)))]
fn resolve_cuda_emulator(_compute: (u32, u32)) -> Result<Device> {
    bail!("the emulator of CUDA kernels needs Unix")
}

#[cfg(not(feature = "cuda"))]
fn resolve_cuda_dry(_compute: (u32, u32)) -> Result<Device> {
    resolve_cuda(None)
}

#[cfg(not(feature = "cuda"))]
fn resolve_cuda_emulator(_compute: (u32, u32)) -> Result<Device> {
    resolve_cuda(None)
}

#[cfg(not(feature = "cuda"))]
fn resolve_cuda(_index: Option<usize>) -> Result<Device> {
    bail!(
        "this build has no CUDA support; available devices: {}",
        known(&survey())
    )
}

/// The default limits of the engine: larger on an NVIDIA device.
#[cfg(feature = "cuda")]
pub(crate) fn defaults(choice: &DeviceChoice) -> Config {
    let is_cuda = match choice {
        DeviceChoice::Cuda(_) | DeviceChoice::CudaDry(_) => true,
        DeviceChoice::Auto => CudaBackend::survey().obstacle.is_none(),
        _ => false,
    };
    if is_cuda {
        cuda_defaults()
    } else {
        Config::default()
    }
}

/// The default limits of the engine on an NVIDIA device.
pub(crate) fn cuda_defaults() -> Config {
    Config {
        max_num_seqs: 256,
        max_num_batched_tokens: 2048,
        ..Config::default()
    }
}

/// The default limits of the engine.
#[cfg(not(feature = "cuda"))]
pub(crate) fn defaults(_choice: &DeviceChoice) -> Config {
    Config::default()
}

/// The requested device, or an error that lists the available ones.
fn resolve(choice: &DeviceChoice) -> Result<Device> {
    match choice {
        DeviceChoice::Cpu => Ok(Device::Cpu(CpuOptions::default())),
        DeviceChoice::Reference => Ok(Device::Reference),
        DeviceChoice::Fake(script) => match script.as_deref().unwrap_or_default().parse() {
            Ok(script) => Ok(Device::Fake(Box::new(script))),
            Err(fault) => bail!("fake: {fault}"),
        },
        DeviceChoice::Cuda(index) => resolve_cuda(*index),
        DeviceChoice::CudaDry(compute) => resolve_cuda_dry(*compute),
        DeviceChoice::CudaEmulator(compute) => resolve_cuda_emulator(*compute),
        DeviceChoice::Auto => {
            let mut adapters = survey();
            #[cfg(feature = "cuda")]
            if adapters.cuda.obstacle.is_none() {
                return resolve_cuda(None);
            }
            match adapters.untried().map(compare) {
                None => {}
                Some(Ok(rivals)) => adapters.set_rivals(rivals),
                Some(Err(error)) => {
                    note(format_args!(
                        "the integrated GPU cannot be used: {error:#}; running on the CPU"
                    ));
                    return Ok(Device::Cpu(CpuOptions::default()));
                }
            }
            let Some(index) = adapters.best() else {
                let why = if adapters.rivals.is_some() {
                    "auto"
                } else {
                    "no GPU"
                };
                note(format_args!(
                    "{why}: {}; running on the CPU",
                    adapters.reason
                ));
                return Ok(Device::Cpu(CpuOptions::default()));
            };
            if adapters.rivals.is_some() {
                note(format_args!(
                    "auto: {}; running on wgpu:{index}",
                    adapters.reason
                ));
            }
            #[cfg(feature = "cuda")]
            {
                let obstacle = adapters.cuda.obstacle.unwrap_or_default();
                note(format_args!(
                    "no CUDA device: {obstacle}; running on wgpu:{index}"
                ));
            }
            Ok(adapter(index))
        }
        DeviceChoice::Wgpu(index) => {
            let adapters = survey();
            let index = index.or(adapters.chosen).unwrap_or(0);
            if index >= adapters.reports.len() {
                bail!(
                    "no device wgpu:{index}; available devices: {}",
                    known(&adapters)
                );
            }
            Ok(adapter(index))
        }
    }
}

/// The adapter with this index.
fn adapter(index: usize) -> Device {
    let cache_dir = folders::cache("wgpu");
    Device::Wgpu(WgpuOptions {
        adapter: Some(index),
        cache_dir,
        ..WgpuOptions::default()
    })
}

/// What earlier starts measured to be best on an adapter, by the shapes of models.
pub(crate) fn tuned(report: &AdapterReport) -> Choices {
    folders::cache("wgpu").map_or_else(Default::default, |folder| choices(report, &folder))
}

/// Why [`resolve`] selects its device, as the end of a sentence.
pub(crate) fn reason(choice: &DeviceChoice) -> String {
    match choice {
        DeviceChoice::Auto => {
            let adapters = survey();
            let cpu = if adapters.chosen_name() == "cpu" {
                "; running on the CPU"
            } else {
                ""
            };
            format!("{}{cpu}", adapters.reason)
        }
        DeviceChoice::Wgpu(None) => {
            "the adapter that auto prefers, or else the first one".to_owned()
        }
        _ => "selected by --device".to_owned(),
    }
}

fn known(adapters: &Adapters) -> String {
    let mut names = vec!["cpu".to_owned(), "reference".to_owned()];
    #[cfg(feature = "cuda")]
    names.extend(
        adapters
            .cuda
            .devices
            .iter()
            .map(|device| format!("cuda:{} ({})", device.index, device.name)),
    );
    names.extend(
        adapters
            .reports
            .iter()
            .enumerate()
            .map(|(index, report)| format!("wgpu:{index} ({})", report.name)),
    );
    names.join(", ")
}

#[cfg(test)]
mod tests;
