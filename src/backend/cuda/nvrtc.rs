//! NVRTC, the runtime compiler: CUDA C++ to machine code for one architecture. A table of nine functions.

use super::kernel::{self, Compiler, Kernel};
use super::library::{self, Opened, Places};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::ptr;

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
        let candidates = Places::here().candidates("nvrtc", major_max);
        let mut faults = Vec::new();
        for candidate in candidates {
            match Self::open(candidate.path.clone()) {
                Ok(nvrtc) => return Ok(nvrtc),
                Err(fault) => faults.push(format!("{}: {fault}", candidate.path.display())),
            }
        }
        Err(match faults.is_empty() {
            true => format!(
                "no NVRTC{} was found (`pip install nvidia-cuda-nvrtc` installs it; {} adds folders to search)",
                if major_max == u32::MAX { String::new() } else { format!(" up to version {major_max}") },
                library::FOLDERS_VARIABLE
            ),
            false => faults.join("; "),
        })
    }

    #[allow(unsafe_code, reason = "a foreign call")]
    fn open(path: PathBuf) -> Result<Self, String> {
        let table = Table::load(library::open(&path, &["libnvrtc-builtins", "nvrtc-builtins"])?)?;
        let mut version = (0, 0);
        // SAFETY: writes two integers.
        check(&table, unsafe { (table.version)(&raw mut version.0, &raw mut version.1) })?;
        Ok(Self { table, path, version })
    }

    /// Compiles to machine code for `architecture` (for example `sm_90a`); also returns the log, with registers and
    /// spills.
    #[allow(unsafe_code, reason = "foreign calls")]
    pub(super) fn compile(
        &self,
        architecture: &str,
        kernel: &Kernel,
        source: &str,
    ) -> Result<(Vec<u8>, String), String> {
        let text = |text: &str| CString::new(text).map_err(|error| error.to_string());
        let names = kernel::headers().map(text).collect::<Result<Vec<_>, _>>()?;
        let bodies = kernel::headers().map(|path| text(&kernel::embedded(path).unwrap_or_default()));
        let bodies = bodies.collect::<Result<Vec<_>, _>>()?;
        let mut options = vec![format!("--gpu-architecture={architecture}")];
        options.extend(OPTIONS.map(str::to_owned));
        options.extend(kernel.options());
        let options = options.iter().map(|option| text(option)).collect::<Result<Vec<_>, _>>()?;
        let pointers = |strings: &[CString]| strings.iter().map(|string| string.as_ptr()).collect::<Vec<_>>();
        let (source, name) = (text(source)?, text(&format!("{}.cu", kernel.stem))?);
        let (names, bodies, options) = (pointers(&names), pointers(&bodies), pointers(&options));
        let count = |items: usize| c_int::try_from(items).map_err(|error| error.to_string());
        let table = &self.table;
        let mut program = ptr::null_mut();
        // SAFETY: strings and arrays live until the end of this function, and the lengths are theirs.
        unsafe {
            let (created, headers) = (&raw mut program, count(names.len())?);
            let result =
                (table.create)(created, source.as_ptr(), name.as_ptr(), headers, bodies.as_ptr(), names.as_ptr());
            check(table, result)?;
            let compilation = Compilation(table, program);
            let result = (table.compile)(program, count(options.len())?, options.as_ptr());
            let log = filled(table, program, table.log_size, table.log)?;
            let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_owned();
            check(table, result).map_err(|error| format!("{error}\n{log}"))?;
            let image = filled(table, program, table.image_size, table.image)?;
            drop(compilation);
            Ok((image, log))
        }
    }
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

/// Output of a program: its size from `size`, its bytes from `fill`.
///
/// # Safety
/// `program` must belong to this table, and `fill` must write as many bytes as `size` reports.
#[allow(unsafe_code, reason = "foreign calls")]
unsafe fn filled(table: &Table, program: Program, size: OnProgram, fill: Fill) -> Result<Vec<u8>, String> {
    let mut bytes = 0;
    // SAFETY: the caller guarantees it.
    unsafe {
        check(table, size(program, &raw mut bytes))?;
        let mut buffer = vec![0u8; bytes];
        check(table, fill(program, buffer.as_mut_ptr().cast()))?;
        Ok(buffer)
    }
}

/// NVRTC for one architecture.
pub(super) struct ForArchitecture {
    pub(super) nvrtc: Nvrtc,
    pub(super) architecture: String,
}

impl Compiler for ForArchitecture {
    fn key(&self) -> String {
        let (major, minor) = self.nvrtc.version;
        format!("nvrtc {major}.{minor} {} {OPTIONS:?}", self.architecture)
    }

    fn compile(&self, kernel: &Kernel, source: &str) -> Result<Vec<u8>, String> {
        self.nvrtc.compile(&self.architecture, kernel, source).map(|(image, _)| image)
    }
}

/// The architecture to compile for: exactly the device's, with architecture-specific instructions where there are any.
pub(super) fn architecture((major, minor): (u32, u32)) -> String {
    let suffix = if (9..12).contains(&major) { "a" } else { "" };
    format!("sm_{major}{minor}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::architecture;

    #[test]
    fn architectures_have_their_names() {
        let names = [(8, 0), (8, 9), (9, 0), (10, 0), (12, 0)].map(architecture);
        assert_eq!(names, ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120"]);
    }
}
