//! Registers, spills and stack of compiled kernels, as reported by NVIDIA's assembler. Used by tests; needs no GPU.
//!
//! Compiling every kernel for every architecture takes minutes, and the same source, options and compiler give the same
//! code. So each compilation has a [key](Footprint::key), and a caller that keeps what earlier ones found has only the
//! others compiled, and a few of the known ones again.

use super::super::BackendError;
use super::CudaBackend;
use super::kernel::{self, Kernel};
use super::modules::by_workers;
use super::nvrtc::{self, Nvrtc};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// One in so many known kernels is compiled again.
const SAMPLED: u64 = 32;

/// One kernel on one architecture.
#[derive(Clone, PartialEq, Eq)]
pub struct Footprint {
    /// Stem and defines.
    pub kernel: String,
    /// For example `sm_90a`.
    pub architecture: String,
    /// Registers per thread.
    pub registers: u32,
    /// Bytes of register spills, stores and loads together.
    pub spill_bytes: u32,
    /// Bytes of the stack frame: arrays in local memory.
    pub stack_bytes: u32,
    /// Hash of all that the compiler is given, and of its version.
    pub key: u64,
    /// Major and minor version of NVRTC.
    pub compiler: (i32, i32),
    /// The machine code, as a cubin; empty if it was not compiled again.
    pub image: Vec<u8>,
}

/// Without the machine code.
impl fmt::Debug for Footprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kernel,
            architecture,
            registers,
            spill_bytes,
            stack_bytes,
            ..
        } = self;
        write!(
            f,
            "{kernel} for {architecture}: {registers} registers, {spill_bytes} bytes of spills, "
        )?;
        write!(f, "{stack_bytes} bytes of stack")
    }
}

/// An NVRTC that compiles kernels for tests.
pub struct Auditor(Nvrtc);

impl Auditor {
    /// The best NVRTC on this machine; without one, returns [`BackendError::Unavailable`].
    pub fn find() -> Result<Self, BackendError> {
        Nvrtc::find(u32::MAX)
            .map(Self)
            .map_err(BackendError::Unavailable)
    }

    /// The NVRTC in this folder.
    pub fn of(folder: &Path) -> Result<Self, BackendError> {
        Nvrtc::of(folder)
            .map(Self)
            .map_err(BackendError::Unavailable)
    }

    /// Major and minor version.
    pub fn version(&self) -> (i32, i32) {
        self.0.version
    }

    /// Whether it compiles to machine code for this architecture, for example `sm_90a`.
    pub fn knows(&self, architecture: &str) -> bool {
        let number = architecture
            .trim_start_matches("sm_")
            .trim_end_matches('a')
            .parse();
        let known = self.0.architectures().unwrap_or_default();
        number.is_ok_and(|number: u32| known.contains(&number))
    }
}

impl CudaBackend {
    /// For each of `architectures`, compiles the kernels that this backend has loaded so far and that are `selected`
    /// (called with the kernel as in [`Footprint::kernel`] and the architecture). `known` holds, by key, the registers
    /// of kernels without spills and stack; most of these are not compiled again. Kernels that do not compile are
    /// errors.
    pub fn audit(
        &self,
        auditor: &Auditor,
        architectures: &[&str],
        selected: impl Fn(&str, &str) -> bool,
        known: &BTreeMap<u64, u32>,
    ) -> Vec<Result<Footprint, BackendError>> {
        let kernels = self.modules.loaded();
        let all = kernels
            .iter()
            .flat_map(|kernel| architectures.iter().map(move |name| (kernel, *name)));
        let jobs: Vec<_> = all
            .filter(|(kernel, name)| selected(&kernel.to_string(), name))
            .collect();
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        by_workers(workers, jobs.into_iter(), |(kernel, architecture)| {
            footprint(&auditor.0, kernel, architecture, known)
        })
    }
}

fn footprint(
    nvrtc: &Nvrtc,
    kernel: &Kernel,
    architecture: &str,
    known: &BTreeMap<u64, u32>,
) -> Result<Footprint, BackendError> {
    let refused = |message: String| BackendError::Kernel {
        kernel: format!("{kernel} for {architecture}"),
        message,
    };
    let path = format!("{}.cu", kernel.stem);
    let source =
        kernel::embedded(&path).ok_or_else(|| refused(format!("there is no cuda/{path}")))?;
    let key = key(nvrtc, kernel, architecture, &source);
    let mut found = Footprint {
        kernel: kernel.to_string(),
        architecture: architecture.to_owned(),
        registers: 0,
        spill_bytes: 0,
        stack_bytes: 0,
        key,
        compiler: nvrtc.version,
        image: Vec::new(),
    };
    if let Some(&registers) = known.get(&key)
        && !key.is_multiple_of(SAMPLED)
    {
        return Ok(Footprint { registers, ..found });
    }
    let (image, log) = nvrtc
        .compile(architecture, kernel, &source)
        .map_err(refused)?;
    // The assembler makes products of warpgroups wait for each other, if it cannot tell when their registers are used.
    if ["are serialized", "is injected"]
        .iter()
        .any(|words| log.contains(words))
    {
        return Err(refused(log));
    }
    let spilled =
        number_before(&log, " bytes spill stores").zip(number_before(&log, " bytes spill loads"));
    let numbers = (
        number_before(&log, " registers"),
        spilled,
        number_before(&log, " bytes stack frame"),
    );
    let (Some(registers), Some((stores, loads)), Some(stack)) = numbers else {
        return Err(refused(format!(
            "cannot read registers and spills from the assembler's log: {log}"
        )));
    };
    (
        found.registers,
        found.spill_bytes,
        found.stack_bytes,
        found.image,
    ) = (registers, stores + loads, stack, image);
    Ok(found)
}

/// See [`Footprint::key`].
fn key(nvrtc: &Nvrtc, kernel: &Kernel, architecture: &str, source: &str) -> u64 {
    let mut hasher = blake3::Hasher::new();
    let mut add = |text: &str| {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    add(&format!(
        "{:?} {architecture} {}",
        nvrtc.version, kernel.stem
    ));
    nvrtc::OPTIONS.iter().for_each(|option| add(option));
    kernel.options().iter().for_each(|option| add(option));
    let mut files = BTreeMap::new();
    add_includes(source, &mut files);
    add(source);
    files
        .iter()
        .for_each(|(path, text)| [path, text].into_iter().for_each(|part| add(part)));
    let hash = hasher.finalize();
    u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("a hash has 32 bytes"))
}

/// Adds the files that a source includes, and those that they include.
fn add_includes(source: &str, files: &mut BTreeMap<String, String>) {
    for path in source
        .lines()
        .filter_map(|line| line.strip_prefix("#include \"")?.split('"').next())
    {
        if let Some(text) = kernel::embedded(path)
            && !files.contains_key(path)
        {
            files.insert(path.to_owned(), text.clone());
            add_includes(&text, files);
        }
    }
}

/// The number in front of these words.
fn number_before(log: &str, words: &str) -> Option<u32> {
    let before = &log[..log.find(words)?];
    let digits = before
        .rfind(|c: char| !c.is_ascii_digit())
        .map_or(0, |at| at + 1);
    before[digits..].parse().ok()
}

#[cfg(test)]
mod tests;
