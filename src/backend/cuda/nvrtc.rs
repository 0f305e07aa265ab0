//! NVRTC, the runtime compiler: CUDA C++ to machine code for one architecture, or to PTX, which the driver finishes. A
//! table of its functions.

use super::kernel::{self, Compiler, Kernel};
use super::library::{self, Candidate, Opened, Places};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

/// The oldest version that compiles every kernel for every device: older ones do not know `sm_90a`.
const VERSION_MIN: (i32, i32) = (12, 0);

type Program = *mut c_void;
type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type OnProgram = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Fill = unsafe extern "C" fn(Program, *mut c_char) -> c_int;

/// The functions, as `nvrtc.h` declares them.
struct Table {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    create: Create,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    image_size: OnProgram,
    image: Fill,
    ptx_size: OnProgram,
    ptx: Fill,
    architecture_count: unsafe extern "C" fn(*mut c_int) -> c_int,
    architectures: unsafe extern "C" fn(*mut c_int) -> c_int,
    log_size: OnProgram,
    log: Fill,
    _library: Opened,
}

impl Table {
    fn load(library: Opened) -> Result<Self, String> {
        Ok(Self {
            version: library.function("nvrtcVersion")?,
            error_string: library.function("nvrtcGetErrorString")?,
            create: library.function("nvrtcCreateProgram")?,
            destroy: library.function("nvrtcDestroyProgram")?,
            compile: library.function("nvrtcCompileProgram")?,
            image_size: library.function("nvrtcGetCUBINSize")?,
            image: library.function("nvrtcGetCUBIN")?,
            ptx_size: library.function("nvrtcGetPTXSize")?,
            ptx: library.function("nvrtcGetPTX")?,
            architecture_count: library.function("nvrtcGetNumSupportedArchs")?,
            architectures: library.function("nvrtcGetSupportedArchs")?,
            log_size: library.function("nvrtcGetProgramLogSize")?,
            log: library.function("nvrtcGetProgramLog")?,
            _library: library,
        })
    }
}

/// An open NVRTC.
pub(super) struct Nvrtc {
    table: Table,
    /// Path of the library.
    pub(super) path: PathBuf,
    /// Major and minor version of the compiler.
    pub(super) version: (i32, i32),
}

/// A program; destroyed when dropped.
struct Compilation<'a>(&'a Table, Program);

impl Drop for Compilation<'_> {
    #[allow(unsafe_code, reason = "a foreign call")]
    fn drop(&mut self) {
        // SAFETY: the program was created by this table and is destroyed once.
        unsafe { (self.0.destroy)(&raw mut self.1) };
    }
}

impl Nvrtc {
    /// Opens the best NVRTC on this machine whose major version is at most `major_max`; an error lists what was tried.
    pub(super) fn find(major_max: u32) -> Result<Self, String> {
        let found = Self::first(Places::here().candidates("nvrtc", major_max));
        found.unwrap_or_else(|| {
            Err(format!(
                "no NVRTC{} was found (`pip install nvidia-cuda-nvrtc` installs it; {} adds folders to search)",
                if major_max == u32::MAX { String::new() } else { format!(" up to version {major_max}") },
                library::FOLDERS_VARIABLE
            ))
        })
    }

    /// Opens the NVRTC in this folder.
    pub(super) fn of(folder: &Path) -> Result<Self, String> {
        let found = Self::first(library::candidates_in(folder, "nvrtc"));
        found.unwrap_or_else(|| Err(format!("no NVRTC is in {}", folder.display())))
    }

    /// The first of these that opens, or why none does. `None` if there are none.
    fn first(candidates: Vec<Candidate>) -> Option<Result<Self, String>> {
        let mut faults = Vec::new();
        for candidate in candidates {
            match Self::open(candidate.path.clone()) {
                Ok(nvrtc) => return Some(Ok(nvrtc)),
                Err(fault) => faults.push(format!("{}: {fault}", candidate.path.display())),
            }
        }
        (!faults.is_empty()).then(|| Err(faults.join("; ")))
    }

    #[allow(unsafe_code, reason = "a foreign call")]
    fn open(path: PathBuf) -> Result<Self, String> {
        let table = Table::load(library::open(
            &path,
            &["libnvrtc-builtins", "nvrtc-builtins"],
        )?)?;
        let mut version = (0, 0);
        // SAFETY: writes two integers.
        check(&table, unsafe {
            (table.version)(&raw mut version.0, &raw mut version.1)
        })?;
        is_new_enough(version)?;
        Ok(Self {
            table,
            path,
            version,
        })
    }

    /// The architectures that it compiles for, in ascending order; 90 is sm_90.
    #[allow(unsafe_code, reason = "foreign calls")]
    pub(super) fn architectures(&self) -> Result<Vec<u32>, String> {
        let mut count = 0;
        // SAFETY: writes an integer.
        check(&self.table, unsafe {
            (self.table.architecture_count)(&raw mut count)
        })?;
        let mut all: Vec<c_int> = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: writes as many integers as it has just said.
        check(&self.table, unsafe {
            (self.table.architectures)(all.as_mut_ptr())
        })?;
        Ok(all
            .into_iter()
            .filter_map(|architecture| u32::try_from(architecture).ok())
            .collect())
    }

    /// The architecture to compile for, on a device of this compute capability.
    pub(super) fn architecture(&self, compute: (u32, u32)) -> Result<String, String> {
        let known = self.architectures()?;
        architecture(compute, &known).ok_or_else(|| {
            let (major, minor) = self.version;
            format!(
                "NVRTC {major}.{minor} does not compile for compute capability {}.{}",
                compute.0, compute.1
            )
        })
    }

    /// Compiles to machine code for `architecture` (for example `sm_90a`), or to PTX (`compute_90`); also returns the
    /// log, with registers and spills.
    pub(super) fn compile(
        &self,
        architecture: &str,
        kernel: &Kernel,
        source: &str,
    ) -> Result<(Vec<u8>, String), String> {
        let mut options = vec![format!("--gpu-architecture={architecture}")];
        options.extend(OPTIONS.map(str::to_owned));
        options.extend(kernel.options());
        let options = c_strings(options)?;
        let program = self.program(kernel, source)?;
        let (result, log) = program.compile(&options)?;
        check(&self.table, result).map_err(|error| format!("{error}\n{log}"))?;
        let image = if is_ptx(architecture) {
            Output::Ptx
        } else {
            Output::Image
        };
        Ok((program.output(image)?, log))
    }

    /// A kernel with the headers, not compiled yet.
    #[allow(unsafe_code, reason = "a foreign call")]
    fn program(&self, kernel: &Kernel, source: &str) -> Result<Compilation<'_>, String> {
        let names = c_strings(kernel::headers())?;
        let bodies = kernel::headers().map(|path| kernel::embedded(path).unwrap_or_default());
        let bodies = c_strings(bodies)?;
        let source = c_string(source)?;
        let name = c_string(&format!("{}.cu", kernel.stem))?;
        let headers = count(names.len())?;
        let mut program = ptr::null_mut();
        // SAFETY: NVRTC copies strings and arrays, which live until the end of this function; the lengths are theirs.
        let result = unsafe {
            (self.table.create)(
                &raw mut program,
                source.as_ptr(),
                name.as_ptr(),
                headers,
                pointers(&bodies).as_ptr(),
                pointers(&names).as_ptr(),
            )
        };
        check(&self.table, result)?;
        Ok(Compilation(&self.table, program))
    }
}

impl Compilation<'_> {
    /// Returns NVRTC's result, and the log.
    #[allow(unsafe_code, reason = "a foreign call")]
    fn compile(&self, options: &[CString]) -> Result<(c_int, String), String> {
        let Self(table, program) = *self;
        let (options, count) = (pointers(options), count(options.len())?);
        // SAFETY: the program is not destroyed yet; the options live until the end of this function.
        let result = unsafe { (table.compile)(program, count, options.as_ptr()) };
        let log = self.output(Output::Log)?;
        let log = String::from_utf8_lossy(&log);
        Ok((result, log.trim_end_matches('\0').trim().to_owned()))
    }

    #[allow(unsafe_code, reason = "foreign calls")]
    fn output(&self, output: Output) -> Result<Vec<u8>, String> {
        let Self(table, program) = *self;
        let (size, fill) = match output {
            Output::Log => (table.log_size, table.log),
            Output::Ptx => (table.ptx_size, table.ptx),
            Output::Image => (table.image_size, table.image),
        };
        let mut bytes = 0;
        // SAFETY: the program is not destroyed yet, and the second call writes as many bytes as the first one reports.
        unsafe {
            check(table, size(program, &raw mut bytes))?;
            let mut buffer = vec![0u8; bytes];
            check(table, fill(program, buffer.as_mut_ptr().cast()))?;
            Ok(buffer)
        }
    }
}

/// What a compilation leaves.
#[derive(Clone, Copy)]
enum Output {
    Log,
    Ptx,
    Image,
}

fn c_string(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|error| error.to_string())
}

fn c_strings(texts: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Vec<CString>, String> {
    texts
        .into_iter()
        .map(|text| c_string(text.as_ref()))
        .collect()
}

fn count(items: usize) -> Result<c_int, String> {
    c_int::try_from(items).map_err(|error| error.to_string())
}

fn pointers(strings: &[CString]) -> Vec<*const i8> {
    strings
        .iter()
        .map(|string| string.as_ptr())
        .collect::<Vec<_>>()
}

/// Options for all kernels.
pub(super) const OPTIONS: [&str; 3] = ["--std=c++17", "-default-device", "--ptxas-options=-v"];

#[allow(unsafe_code, reason = "a foreign call")]
fn check(table: &Table, result: c_int) -> Result<(), String> {
    if result == 0 {
        return Ok(());
    }
    // SAFETY: NVRTC returns a static string for every number.
    let words = unsafe { CStr::from_ptr((table.error_string)(result)) };
    Err(words.to_string_lossy().into_owned())
}

/// NVRTC for one architecture, or the reason why there is none: then only shipped images can be used.
pub(super) struct ForArchitecture {
    pub(super) nvrtc: Result<Nvrtc, String>,
    pub(super) architecture: String,
}

impl ForArchitecture {
    /// The best NVRTC up to `major_max`, for a device of this compute capability. Without NVRTC it is an error, unless
    /// images were shipped with the program.
    pub(super) fn find(major_max: u32, compute: (u32, u32)) -> Result<Self, String> {
        match Nvrtc::find(major_max) {
            Ok(nvrtc) => Ok(Self {
                architecture: nvrtc.architecture(compute)?,
                nvrtc: Ok(nvrtc),
            }),
            Err(fault) if has_shipped_images() => Ok(Self {
                nvrtc: Err(fault),
                architecture: exact_architecture(compute),
            }),
            Err(fault) => Err(fault),
        }
    }

    /// Version and path of NVRTC, or what is used in its place.
    pub(super) fn described(&self) -> String {
        match &self.nvrtc {
            Ok(Nvrtc {
                version: (major, minor),
                path,
                ..
            }) => format!("NVRTC {major}.{minor} ({})", path.display()),
            Err(_) => "shipped kernels (no NVRTC)".to_owned(),
        }
    }
}

/// Whether kernels were compiled elsewhere and came with the program.
pub(super) fn has_shipped_images() -> bool {
    std::env::var_os(kernel::SHIPPED_VARIABLE).is_some()
}

/// The [`Compiler::shipped_key`] of an architecture.
pub(super) fn shipped_key(architecture: &str) -> Option<String> {
    (!is_ptx(architecture)).then(|| format!("{architecture} {OPTIONS:?}"))
}

impl Compiler for ForArchitecture {
    fn key(&self) -> String {
        let version = self.nvrtc.as_ref().map_or((0, 0), |nvrtc| nvrtc.version);
        format!(
            "nvrtc {}.{} {} {OPTIONS:?}",
            version.0, version.1, self.architecture
        )
    }

    fn shipped_key(&self) -> Option<String> {
        shipped_key(&self.architecture)
    }

    fn compile(&self, kernel: &Kernel, source: &str) -> Result<Vec<u8>, String> {
        let nvrtc = self
            .nvrtc
            .as_ref()
            .map_err(|fault| format!("it is not among the shipped kernels, and {fault}"))?;
        nvrtc
            .compile(&self.architecture, kernel, source)
            .map(|(image, _)| image)
    }
}

/// Whether kernels compile with this version.
fn is_new_enough(version: (i32, i32)) -> Result<(), String> {
    let ((major, minor), (major_min, minor_min)) = (version, VERSION_MIN);
    if version < VERSION_MIN {
        Err(format!(
            "NVRTC {major}.{minor} is too old; {major_min}.{minor_min} or newer is required"
        ))
    } else {
        Ok(())
    }
}

/// The architecture to compile for: exactly the device's, with architecture-specific instructions where there are any.
/// If the compiler is older than the device, the newest one that it knows, as PTX. None if all are newer.
fn architecture((major, minor): (u32, u32), known: &[u32]) -> Option<String> {
    let own = 10 * major + minor;
    match known.iter().copied().filter(|&known| known <= own).max()? {
        newest if newest == own => Some(exact_architecture((major, minor))),
        newest => Some(format!("compute_{newest}")),
    }
}

/// The architecture of this compute capability, with architecture-specific instructions where there are any.
fn exact_architecture((major, minor): (u32, u32)) -> String {
    let suffix = if (9..12).contains(&major) { "a" } else { "" };
    format!("sm_{major}{minor}{suffix}")
}

/// Whether this is an architecture of PTX rather than of machine code.
pub(super) fn is_ptx(architecture: &str) -> bool {
    architecture.starts_with("compute_")
}

#[cfg(test)]
mod tests;
