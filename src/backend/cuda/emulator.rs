//! An emulator: runs the CUDA kernels on the CPU, for tests on machines without a GPU.
//!
//! Each kernel is compiled by the system's C++ compiler, linked with `cuda/emulator`, which runs CUDA's threads as
//! fibers, and loaded as a library. Memory is the host's own: every allocation ends at a guard page, so a
//! kernel that goes beyond its buffer crashes the test. Graphs are lists of commands.
//!
//! This verifies indices, layouts, barriers and arithmetic: the threads of a block run in random order between
//! barriers, asynchronous copies land at random moments, and several blocks take turns at atomic operations and fences.
//! With [`Watch::Races`], the compiler reports every access to memory to `cuda/emulator/races.cpp`, and a launch in
//! which two accesses are not ordered fails, whatever it computed. So does one that accesses device memory before it
//! has awaited the kernels before it ([`overlap`](super::overlap)): launches themselves run one after another.
//!
//! It does not verify speed, or how an assembler translates the PTX instructions: the emulator replaces those with C++.

use super::super::{BackendError, metadata};
use super::blas::Product;
use super::driver::{Command, Copies, Driver, Facts, Function, Graph, Launch, Products, Span};
use super::kernel::{self, Compiler, Kernel};
use super::library;
use std::ffi::{CStr, OsStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// What a launch in the emulator is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// What it computes.
    Results,
    /// Also the order of its accesses to memory, which takes several times as long.
    Races,
}

/// Entry point of a compiled kernel: params, grid, block, bytes of shared memory, seed of the execution order. Returns
/// the races that it found as text, or null.
type Entry = unsafe extern "C" fn(*const c_void, *const u32, *const u32, u32, u32) -> *const c_char;
type ParamsBytes = unsafe extern "C" fn() -> u32;

/// Compiles kernels for the CPU.
struct CpuCompiler {
    /// The repository's `cuda/`, read when a kernel is compiled.
    sources: PathBuf,
    /// The C++ compiler.
    compiler: PathBuf,
    version: String,
    watch: Watch,
    /// A folder with what every kernel is linked with, compiled for the first of them.
    runtime: OnceLock<Result<PathBuf, String>>,
}

/// Files of `cuda/emulator/` that kernels include, and those that they are linked with.
const HEADERS: [&str; 5] = ["emulator.h", "fiber.h", "races.h", "scheduler.h", "wgmma.h"];
const RUNTIME: [&str; 4] = ["emulator", "races", "scheduler", "wgmma"];
/// Clang first: it compiles these files in half the time.
const COMPILERS: [&str; 3] = ["clang++", "c++", "g++"];
const OPTIONS: [&str; 11] = [
    "-std=c++20",
    // C's own <math.h>: the wrapper around it takes longer to compile than most kernels.
    "-nostdinc++",
    "-O1",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-pthread",
    "-DFOLIO_EMULATOR",
    "-ffp-contract=off",
    "-x",
    "c++",
];
/// Not those of C++, which no kernel needs: reading them took a fifth of the time to compile a kernel. Nor the
/// sanitizer's own: `races.cpp` has the functions that the compiler calls.
const LIBRARIES: [&str; 4] = ["-nostdlib", "-lm", "-lpthread", "-lc"];
const RECORDS_RACES: &str = "-DFOLIO_RACES";
const RACES_OPTIONS: [&str; 3] = [RECORDS_RACES, "-fsanitize=thread", "-g1"];

impl CpuCompiler {
    fn find(sources: &Path, watch: Watch) -> Option<Self> {
        COMPILERS.iter().find_map(|name| {
            let output = Process::new(name).arg("--version").output().ok()?;
            let version = String::from_utf8_lossy(&output.stdout)
                .lines()
                .next()?
                .to_owned();
            let (sources, compiler) = (sources.to_owned(), name.into());
            output.status.success().then_some(Self {
                sources,
                compiler,
                version,
                watch,
                runtime: OnceLock::new(),
            })
        })
    }

    fn races_options(&self) -> &'static [&'static str] {
        if self.watch == Watch::Races {
            &RACES_OPTIONS
        } else {
            &[]
        }
    }

    /// Runs the compiler with these arguments. Files may include the kernels' headers; the generated one is written to
    /// `folder`.
    fn run<A: AsRef<OsStr>>(
        &self,
        folder: &Path,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<(), String> {
        let header = folder.join(kernel::METADATA_CONSTANTS);
        let written = header.parent().map_or(Ok(()), std::fs::create_dir_all);
        let written = written.and_then(|()| std::fs::write(&header, kernel::metadata_constants()));
        written.map_err(|error| error.to_string())?;
        let mut process = Process::new(&self.compiler);
        process
            .args(OPTIONS)
            .arg("-I")
            .arg(&self.sources)
            .arg("-I")
            .arg(folder)
            .args(arguments);
        let finished = process.output().map_err(|error| error.to_string())?;
        match finished.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&finished.stderr).into_owned()),
        }
    }

    /// The objects that every kernel is linked with.
    fn runtime(&self) -> Result<[PathBuf; RUNTIME.len()], String> {
        let compiled = || {
            let folder = tempfolder().map_err(|error| error.to_string())?;
            for name in RUNTIME {
                let file = self
                    .sources
                    .join("emulator")
                    .join(name)
                    .with_extension("cpp");
                let output = folder.join(name).with_extension("o");
                let records = (self.watch == Watch::Races).then_some(OsStr::new(RECORDS_RACES));
                let options = [OsStr::new("-O2"), OsStr::new("-c")]
                    .into_iter()
                    .chain(records);
                self.run(
                    &folder,
                    options.chain([file.as_os_str(), OsStr::new("-o"), output.as_os_str()]),
                )?;
            }
            Ok(folder)
        };
        let folder = self
            .runtime
            .get_or_init(compiled)
            .as_ref()
            .map_err(String::clone)?;
        Ok(RUNTIME.map(|name| folder.join(name).with_extension("o")))
    }
}

impl Drop for CpuCompiler {
    fn drop(&mut self) {
        if let Some(Ok(folder)) = self.runtime.get() {
            _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// The constants of [`metadata::TABLE`] with their names, as printed by a program that is compiled with the kernels'
/// headers. `sources` is the repository's `cuda/`.
pub fn metadata_constants(sources: &Path) -> Result<Vec<(String, u32)>, BackendError> {
    let compiler = CpuCompiler::find(sources, Watch::Results).ok_or_else(no_compiler)?;
    let folder = tempfolder().map_err(|error| refused(error.to_string()))?;
    let (file, program) = (folder.join("constants.cpp"), folder.join("constants"));
    let lines: String = metadata::TABLE.iter().map(printing).collect();
    let text =
        format!("#include \"common/metadata.cuh\"\n#include <stdio.h>\nint main() {{\n{lines}}}\n");
    let built = std::fs::write(&file, text).map_err(|error| error.to_string());
    let built = built.and_then(|()| {
        compiler.run(
            &folder,
            [file.as_os_str(), OsStr::new("-o"), program.as_os_str()],
        )
    });
    let run = built.and_then(|()| {
        Process::new(&program)
            .output()
            .map_err(|error| error.to_string())
    });
    _ = std::fs::remove_dir_all(&folder);
    let printed = String::from_utf8_lossy(&run.map_err(refused)?.stdout).into_owned();
    printed
        .lines()
        .map(|line| constant(line).ok_or_else(|| refused(format!("{line:?} is not a constant"))))
        .collect()
}

fn constant(line: &str) -> Option<(String, u32)> {
    Some((
        line.split_once(' ')?.0.to_owned(),
        line.split_once(' ')?.1.parse().ok()?,
    ))
}

fn printing((name, _): &(&str, u32)) -> String {
    format!("  printf(\"{name} %u\\n\", {name});\n")
}

fn refused(message: String) -> BackendError {
    BackendError::Kernel {
        kernel: "metadata constants".into(),
        message,
    }
}

fn no_compiler() -> BackendError {
    BackendError::Unavailable(format!("no C++ compiler ({})", COMPILERS.join(", ")))
}

impl Compiler for CpuCompiler {
    fn key(&self) -> String {
        let runtime = RUNTIME.map(|name| format!("{name}.cpp"));
        let runtime: String = HEADERS
            .map(str::to_owned)
            .into_iter()
            .chain(runtime)
            .map(|name| {
                std::fs::read_to_string(self.sources.join("emulator").join(name))
                    .unwrap_or_default()
            })
            .collect();
        let options = [&OPTIONS[..], &LIBRARIES, self.races_options()];
        format!(
            "{} {options:?} {}",
            self.version,
            blake3::hash(runtime.as_bytes()).to_hex()
        )
    }

    fn source(&self, path: &str) -> Option<String> {
        if path == kernel::METADATA_CONSTANTS {
            return kernel::embedded(path);
        }
        std::fs::read_to_string(self.sources.join(path)).ok()
    }

    fn compile(&self, kernel: &Kernel, _source: &str) -> Result<Vec<u8>, String> {
        let runtime = self.runtime()?;
        let folder = tempfolder().map_err(|error| error.to_string())?;
        let library = folder.join("kernel.so");
        let file = self.sources.join(format!("{}.cu", kernel.stem));
        let defines = kernel.options();
        let arguments = ["-shared"]
            .into_iter()
            .chain(defines.iter().map(String::as_str))
            .map(OsStr::new);
        let objects = ["-x", "none"]
            .into_iter()
            .map(OsStr::new)
            .chain(runtime.iter().map(|path| path.as_os_str()));
        let arguments = arguments.chain([file.as_os_str()]).chain(objects);
        let arguments = arguments.chain([OsStr::new("-o"), library.as_os_str()]);
        let arguments =
            arguments.chain(LIBRARIES.iter().chain(self.races_options()).map(OsStr::new));
        let built = self.run(&folder, arguments);
        let image = built.and_then(|()| std::fs::read(&library).map_err(|error| error.to_string()));
        _ = std::fs::remove_dir_all(&folder);
        image
    }
}

/// Creates a new folder in the system's temporary folder.
fn tempfolder() -> std::io::Result<PathBuf> {
    use std::sync::atomic::{AtomicU64, Ordering};
    static MADE: AtomicU64 = AtomicU64::new(0);
    let name = format!(
        "folio-kernel-{}-{}",
        std::process::id(),
        MADE.fetch_add(1, Ordering::Relaxed)
    );
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Memory that ends at a guard page.
struct Guarded {
    mapped: *mut c_void,
    mapped_bytes: usize,
    address: u64,
    bytes: u64,
}

const PAGE: u64 = 4096;
const ALIGNMENT: u64 = 256;

impl Guarded {
    #[allow(unsafe_code, reason = "maps memory")]
    fn new(bytes: u64) -> Option<Self> {
        let inner = bytes.max(1).next_multiple_of(PAGE);
        let mapped_bytes = usize::try_from(inner + PAGE).ok()?;
        let both = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        // SAFETY: a new private mapping whose last page is protected before anything refers to it; both calls get the
        // bounds of this mapping.
        let mapped = unsafe {
            let flags = rustix::mm::MapFlags::PRIVATE;
            let mapped =
                rustix::mm::mmap_anonymous(std::ptr::null_mut(), mapped_bytes, both, flags).ok()?;
            let last = mapped.cast::<u8>().add(mapped_bytes - PAGE as usize).cast();
            rustix::mm::mprotect(last, PAGE as usize, rustix::mm::MprotectFlags::empty()).ok()?;
            mapped
        };
        // The memory ends as close to the guard page as alignment allows.
        let address = mapped as u64 + (inner - bytes) / ALIGNMENT * ALIGNMENT;
        Some(Self {
            mapped,
            mapped_bytes,
            address,
            bytes,
        })
    }
}

impl Drop for Guarded {
    #[allow(unsafe_code, reason = "unmaps memory")]
    fn drop(&mut self) {
        // SAFETY: the bounds are those from `new`, and nothing refers to the memory any more.
        _ = unsafe { rustix::mm::munmap(self.mapped, self.mapped_bytes) };
    }
}

/// Maximum shared memory per block on NVIDIA's devices, in bytes.
fn shared_bytes_max((major, minor): (u32, u32)) -> u32 {
    match (major, minor) {
        (8, 0) => 163 << 10,
        (9 | 10, _) => 227 << 10,
        _ => 99 << 10,
    }
}

struct LoadedFunction {
    entry: Entry,
    name: String,
    params_bytes: usize,
    /// With [`Watch::Races`], to find the places of races.
    image: Vec<u8>,
    _library: library::Opened,
}

/// Runs kernels on the CPU.
pub(super) struct Emulator {
    facts: Facts,
    compiler: Arc<CpuCompiler>,
    functions: Vec<LoadedFunction>,
    memory: Vec<Guarded>,
    graphs: Vec<Vec<Command>>,
    slots: Vec<Vec<u32>>,
    /// Copies that were not read yet; an empty place is free.
    copies: Vec<Vec<u8>>,
    /// Seed of the order in which threads and blocks run.
    seed: u32,
}

impl Emulator {
    /// Opens the emulator as a device with few multiprocessors and this compute capability. `sources` is the
    /// repository's `cuda/`.
    pub(super) fn open(
        sources: &Path,
        compute: (u32, u32),
        watch: Watch,
    ) -> Result<Self, BackendError> {
        let compiler = CpuCompiler::find(sources, watch).ok_or_else(no_compiler)?;
        let facts = Facts {
            name: "emulator".into(),
            compute,
            sm_count: 4,
            shared_bytes_max: shared_bytes_max(compute),
            memory_bytes: 2 << 30,
            products: Products {
                blas: true,
                refused: Vec::new(),
            },
            warpgroups: compute == (9, 0),
            versions: compiler.version.clone(),
        };
        let compiler = Arc::new(compiler);
        let (functions, memory, graphs) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self {
            facts,
            compiler,
            functions,
            memory,
            graphs,
            slots: Vec::new(),
            copies: Vec::new(),
            seed: 1,
        })
    }

    fn range(&self, address: u64, bytes: usize) -> Result<(), BackendError> {
        self.memory
            .iter()
            .any(|memory| {
                address >= memory.address && address + bytes as u64 <= memory.address + memory.bytes
            })
            .then_some(())
            .ok_or_else(|| {
                BackendError::Validation(format!(
                    "{bytes} bytes at {address:#x} are not device memory"
                ))
            })
    }

    #[allow(unsafe_code, reason = "calls a compiled kernel")]
    pub(super) fn launch(&mut self, launch: &Launch) -> Result<(), BackendError> {
        let function = &self.functions[launch.function.0 as usize];
        assert_eq!(
            launch.params.len(),
            function.params_bytes,
            "{}: size of params",
            function.name
        );
        self.seed = self.seed.wrapping_mul(0x9e37_79b9).wrapping_add(1);
        // Params may hold 64-bit addresses, so they are copied to aligned memory.
        let words: Vec<u64> = launch.params.chunks(8).map(word).collect();
        let block = [launch.threads, 1, 1];
        // SAFETY: the library was compiled from this repository's kernel, whose params have this size; its memory
        // accesses are what the test checks.
        let found = unsafe {
            let params = words.as_ptr().cast();
            let found = (function.entry)(
                params,
                launch.grid.as_ptr(),
                block.as_ptr(),
                launch.shared_bytes,
                self.seed,
            );
            // A text is the library's, and stays until its next launch.
            (!found.is_null()).then(|| CStr::from_ptr(found).to_string_lossy().into_owned())
        };
        match found {
            Some(races) => {
                let races = located(&races, &function.image);
                Err(BackendError::Validation(format!(
                    "races in {}:\n{races}",
                    function.name
                )))
            }
            None => Ok(()),
        }
    }
}

/// The text with `file:line` in place of offsets (`+0x1f0`) into the library, if binutils are there to tell.
fn located(races: &str, image: &[u8]) -> String {
    let offsets: Vec<&str> = races
        .split_whitespace()
        .filter_map(|word| word.strip_prefix('+'))
        .collect();
    let places = || {
        let folder = tempfolder().ok()?;
        let library = folder.join("kernel.so");
        let written = std::fs::write(&library, image);
        // The addresses are those to which calls return; the calls are before them.
        let calls = offsets
            .iter()
            .filter_map(|text| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok());
        let calls = calls.map(|address| format!("{:#x}", address - 1));
        let printed = Process::new("addr2line")
            .arg("-s")
            .arg("-e")
            .arg(&library)
            .args(calls)
            .output()
            .ok();
        _ = std::fs::remove_dir_all(&folder);
        written.ok()?;
        Some(String::from_utf8_lossy(&printed?.stdout).into_owned())
    };
    let places = places().unwrap_or_default();
    let named = offsets
        .iter()
        .zip(places.lines())
        .filter(|(_, place)| !place.starts_with('?'));
    named.fold(races.to_owned(), |text, (offset, place)| {
        text.replacen(&format!("+{offset}"), place, 1)
    })
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

impl Driver for Emulator {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn refuse_warpgroups(&mut self) {
        self.facts.warpgroups = false;
    }

    fn compiler(&self) -> Arc<dyn Compiler> {
        self.compiler.clone()
    }

    #[allow(unsafe_code, reason = "asks a library for the size of its params")]
    fn load(
        &mut self,
        kernel: &Kernel,
        image: &[u8],
        params_bytes: usize,
    ) -> Result<Function, BackendError> {
        let refused = |message: String| BackendError::Kernel {
            kernel: kernel.to_string(),
            message,
        };
        let folder = tempfolder().map_err(|error| refused(error.to_string()))?;
        let path = folder.join("kernel.so");
        let opened = std::fs::write(&path, image).map_err(|error| error.to_string());
        let opened = opened.and_then(|()| library::open(&path, &[]));
        _ = std::fs::remove_dir_all(&folder);
        let library = opened.map_err(refused)?;
        let entry: Entry = library.function("folio_launch").map_err(refused)?;
        let declared: ParamsBytes = library.function("folio_params_bytes").map_err(refused)?;
        // SAFETY: `KERNEL` in emulator.h defines this function unconditionally.
        let declared = unsafe { declared() } as usize;
        if declared != params_bytes {
            return Err(refused(format!(
                "params mismatch: kernel {declared} bytes, encoder {params_bytes}"
            )));
        }
        let image = if self.compiler.watch == Watch::Races {
            image.to_vec()
        } else {
            Vec::new()
        };
        self.functions.push(LoadedFunction {
            entry,
            name: kernel.to_string(),
            params_bytes,
            image,
            _library: library,
        });
        Ok(Function(self.functions.len() as u32 - 1))
    }

    fn allocate(&mut self, what: &str, bytes: u64) -> Result<u64, BackendError> {
        let used: u64 = self.memory.iter().map(|memory| memory.bytes).sum();
        let room = used + bytes <= self.facts.memory_bytes;
        let memory = room.then(|| Guarded::new(bytes)).flatten();
        let memory = memory.ok_or_else(|| BackendError::OutOfMemory {
            what: what.into(),
            bytes,
        })?;
        let address = memory.address;
        self.memory.push(memory);
        Ok(address)
    }

    fn free(&mut self, address: u64) {
        self.memory.retain(|memory| memory.address != address);
    }

    #[allow(unsafe_code, reason = "device memory is an address")]
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), BackendError> {
        self.range(address, bytes.len())?;
        // SAFETY: the range lies in memory of this driver.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
        Ok(())
    }

    #[allow(unsafe_code, reason = "device memory is an address")]
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.range(address, bytes.len())?;
        // SAFETY: the range lies in memory of this driver.
        unsafe {
            std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), bytes.len());
        };
        Ok(())
    }

    fn make_slots(
        &mut self,
        _upload_words: usize,
        download_words: usize,
    ) -> Result<(), BackendError> {
        self.slots = vec![vec![0; download_words]; super::driver::SLOTS];
        Ok(())
    }

    fn upload(&mut self, _slot: usize, words: &[u32], to: u64) -> Result<(), BackendError> {
        self.write(to, bytemuck::cast_slice(words))
    }

    fn download(
        &mut self,
        slot: usize,
        from: u64,
        words: usize,
        to: usize,
    ) -> Result<(), BackendError> {
        let mut read = vec![0; words];
        self.read(from, bytemuck::cast_slice_mut(&mut read))?;
        self.slots[slot][to..to + words].copy_from_slice(&read);
        Ok(())
    }

    fn wait(&mut self, slot: usize, _timeout: Duration) -> Result<&[u32], BackendError> {
        Ok(&self.slots[slot])
    }

    fn copy_out(&mut self, spans: &[Span]) -> Result<Copies, BackendError> {
        let mut copy = vec![0; spans.iter().map(|span| span.bytes).sum()];
        let mut rest = &mut copy[..];
        for span in spans {
            let (own, after) = rest.split_at_mut(span.bytes);
            self.read(span.address, own)?;
            rest = after;
        }
        let index = self
            .copies
            .iter()
            .position(Vec::is_empty)
            .unwrap_or(self.copies.len());
        self.copies
            .resize(self.copies.len().max(index + 1), Vec::new());
        let bytes = copy.len();
        self.copies[index] = copy;
        Ok(Copies {
            buffer: index,
            bytes,
        })
    }

    fn copied(
        &mut self,
        Copies { buffer, .. }: Copies,
        _timeout: Duration,
    ) -> Result<Vec<u8>, BackendError> {
        Ok(std::mem::take(&mut self.copies[buffer]))
    }

    fn copy_in(&mut self, spans: &[Span], bytes: &[&[u8]]) -> Result<(), BackendError> {
        let bytes = bytes.concat();
        let mut rest = &bytes[..];
        for span in spans {
            let (own, after) = rest.split_at(span.bytes);
            self.write(span.address, own)?;
            rest = after;
        }
        Ok(())
    }

    fn run(&mut self, commands: &[Command]) -> Result<(), BackendError> {
        commands.iter().try_for_each(|command| match command {
            Command::Kernel(launch) => self.launch(launch),
            Command::Product(_) => Err(BackendError::Validation(
                "the emulator has no cuBLASLt".into(),
            )),
        })
    }

    fn record(&mut self, commands: &[Command]) -> Result<Graph, BackendError> {
        self.graphs.push(commands.to_vec());
        Ok(Graph(self.graphs.len() as u32 - 1))
    }

    fn run_graph(&mut self, graph: Graph) -> Result<(), BackendError> {
        let commands = std::mem::take(&mut self.graphs[graph.0 as usize]);
        let outcome = self.run(&commands);
        self.graphs[graph.0 as usize] = commands;
        outcome
    }

    fn drop_graphs(&mut self) {
        self.graphs.clear();
    }

    /// Like a cuBLASLt without an algorithm for any shape.
    fn prepare_products(
        &mut self,
        products: &[Product],
        _measure: bool,
    ) -> Result<bool, BackendError> {
        self.facts
            .products
            .refused
            .extend(products.iter().map(|product| product.shape));
        Ok(products.is_empty())
    }

    fn time(&mut self, commands: &[Command]) -> Result<f64, BackendError> {
        let start = std::time::Instant::now();
        self.run(commands)?;
        Ok(start.elapsed().as_secs_f64())
    }
}
