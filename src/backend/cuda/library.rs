//! NVIDIA's libraries, found at run time by absolute path.
//!
//! The system loader misses what Python wheels and toolkits install, and its search path cannot be changed after start.
//! So folders are searched in a fixed order: toolkits, Python environments, the system. If there are several versions
//! of a library, the newest one whose major version the driver supports is used. Only what the user's own folders hold
//! comes before all of these, whatever its version: a user who names a folder wants its library.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Variable with the user's folders, searched before all others; separated as in `PATH`.
pub(super) const FOLDERS_VARIABLE: &str = "FOLIO_CUDA_LIBRARIES";

/// A library file and the major version in its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) path: PathBuf,
    pub(super) major: u32,
}

/// Looks up an environment variable.
type Variables = Box<dyn Fn(&str) -> Option<OsString>>;

/// The environment variables that say where things are installed.
pub(super) struct Places {
    variables: Variables,
    root: PathBuf,
}

impl Places {
    /// The environment of this process.
    pub(super) fn here() -> Self {
        Self {
            variables: Box::new(|name| std::env::var_os(name)),
            root: PathBuf::from("/"),
        }
    }

    /// Files of a library, best first: those in the user's folders, then those in the others.
    pub(super) fn candidates(&self, stem: &str, major_max: u32) -> Vec<Candidate> {
        let tiers = [self.named(), self.folders()];
        tiers
            .iter()
            .flat_map(|folders| candidates(stem, folders, major_max))
            .collect()
    }

    fn variable(&self, name: &str) -> Option<OsString> {
        (self.variables)(name).filter(|value| !value.is_empty())
    }

    /// The user's folders.
    fn named(&self) -> Vec<PathBuf> {
        self.variable(FOLDERS_VARIABLE)
            .map_or_else(Vec::new, |named| std::env::split_paths(&named).collect())
    }

    /// Other folders that may hold a library, in search order.
    fn folders(&self) -> Vec<PathBuf> {
        let mut folders = Vec::new();
        let toolkits = ["CUDA_PATH", "CUDA_HOME"]
            .into_iter()
            .filter_map(|name| self.variable(name))
            .map(PathBuf::from);
        let mut toolkits: Vec<PathBuf> = toolkits.collect();
        toolkits.push(self.root.join("usr/local/cuda"));
        toolkits.extend(newest_first(entries(&self.root.join("usr/local"), "cuda-")));
        toolkits.push(self.root.join("opt/cuda"));
        for toolkit in toolkits {
            folders.extend(
                ["lib64", "lib", "targets/x86_64-linux/lib", "bin", "bin/x64"]
                    .map(|part| toolkit.join(part)),
            );
        }
        let mut environments: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"]
            .into_iter()
            .filter_map(|name| self.variable(name))
            .map(PathBuf::from)
            .collect();
        environments.extend(
            self.variable("HOME")
                .map(|home| PathBuf::from(home).join(".local")),
        );
        environments.extend([self.root.join("usr/local"), self.root.join("usr")]);
        for environment in &environments {
            folders.extend(wheels(environment));
        }
        folders.extend(
            self.variable("CONDA_PREFIX")
                .map(|prefix| PathBuf::from(prefix).join("lib")),
        );
        let system = [
            "usr/lib/x86_64-linux-gnu",
            "usr/lib/aarch64-linux-gnu",
            "usr/lib64",
            "usr/lib",
            "usr/lib/wsl/lib",
        ];
        folders.extend(system.map(|folder| self.root.join(folder)));
        folders
    }
}

/// Library folders of NVIDIA's wheels in a Python environment.
fn wheels(environment: &Path) -> Vec<PathBuf> {
    let mut pythons = newest_first(entries(&environment.join("lib"), "python"));
    pythons.push(environment.join("Lib"));
    let packages = pythons
        .iter()
        .flat_map(|python| ["site-packages", "dist-packages"].map(|name| python.join(name)));
    let nvidia = packages
        .map(|packages| packages.join("nvidia"))
        .filter(|nvidia| nvidia.is_dir());
    let parts = nvidia.flat_map(|nvidia| entries(&nvidia, ""));
    parts
        .flat_map(|part| ["lib", "bin"].map(|name| part.join(name)))
        .filter(|folder| folder.is_dir())
        .collect()
}

/// Files of a library in one folder, best first.
pub(super) fn candidates_in(folder: &Path, stem: &str) -> Vec<Candidate> {
    candidates(stem, &[folder.to_owned()], u32::MAX)
}

/// Entries of a folder whose names start with `start`, sorted by name.
fn entries(folder: &Path, start: &str) -> Vec<PathBuf> {
    let Ok(listed) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = listed
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(start))
        })
        .collect();
    paths.sort();
    paths
}

fn newest_first(mut paths: Vec<PathBuf>) -> Vec<PathBuf> {
    paths.sort_by_key(|path| std::cmp::Reverse(version_numbers(path)));
    paths
}

fn version_numbers(path: &Path) -> Vec<u32> {
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let parts = name
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|part| part.parse().ok());
    parts.collect::<Vec<u32>>()
}

/// Files of a library in these folders, best first: the newest major version up to `major_max`, and for equal versions
/// the folder that comes first.
fn candidates(stem: &str, folders: &[PathBuf], major_max: u32) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = Vec::new();
    for folder in folders {
        for path in entries(folder, "") {
            let name = path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default();
            if let Some(major) = major_of(&name, stem).filter(|major| *major <= major_max) {
                found.push(Candidate { path, major });
            }
        }
    }
    found.sort_by_key(|candidate| std::cmp::Reverse(candidate.major));
    found
}

/// Major version of a file name: `libnvrtc.so.13`, `libnvrtc.so.12.8.93` or `nvrtc64_130_0.dll`.
fn major_of(file: &str, stem: &str) -> Option<u32> {
    if let Some(version) = file.strip_prefix(&format!("lib{stem}.so.")) {
        return version.split('.').next()?.parse().ok();
    }
    // On Windows, the number in cuBLASLt's file name is the major version; in NVRTC's it is ten times that.
    let version = file
        .strip_prefix(&format!("{stem}64_"))?
        .strip_suffix(".dll")?;
    let number: u32 = version.split('_').next()?.parse().ok()?;
    Some(if number >= 100 { number / 10 } else { number })
}

/// Opens a library. First opens its companions in the same folder, which it loads by name alone.
#[allow(unsafe_code, reason = "a library is opened by path")]
pub(super) fn open(path: &Path, companions: &[&str]) -> Result<Opened, String> {
    let beside = companions
        .iter()
        .flat_map(|stem| entries(path.parent().unwrap_or(Path::new("")), stem));
    // SAFETY: these are NVIDIA's own libraries, whose initializers have no preconditions; opening one twice is allowed.
    let open =
        |path: &Path| unsafe { libloading::Library::new(path) }.map_err(|error| error.to_string());
    let companions = beside.filter_map(|path| open(&path).ok()).collect();
    Ok(Opened {
        library: open(path)?,
        _companions: companions,
    })
}

/// An open library.
pub(super) struct Opened {
    library: libloading::Library,
    _companions: Vec<libloading::Library>,
}

impl Opened {
    /// Whether the library has a function of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.function::<*const ()>(name).is_ok()
    }

    /// A function of the library. The caller chooses its type.
    #[allow(unsafe_code, reason = "symbols have no type")]
    pub(super) fn function<T: Copy>(&self, name: &str) -> Result<T, String> {
        // SAFETY: callers declare each function as NVIDIA's headers do, and keep the library open as long as the
        // pointer.
        let symbol = unsafe { self.library.get::<T>(name.as_bytes()) };
        symbol
            .map(|symbol| *symbol)
            .map_err(|error| format!("{name} is missing: {error}"))
    }
}

#[cfg(test)]
mod tests;
