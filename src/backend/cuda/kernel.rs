//! Kernels by name: their sources, and the images compiled from them.
//!
//! `cuda/<stem>.cu` and everything it includes are embedded, except one header, [`METADATA_CONSTANTS`], which is
//! generated from [`metadata::TABLE`]. A [`Kernel`] is a stem with defines. Images are cached on disk under a hash of
//! all inputs: source, included files, defines, and the compiler with its options. Images of another machine's compiler
//! may be [shipped](SHIPPED_VARIABLE): they are used whatever compiler is here, and without any.

use super::super::{BackendError, metadata};
use crate::plan::Storage;
use std::fmt;
use std::path::{Path, PathBuf};

/// Every kernel and every included file: path within `cuda/`, and text.
pub(super) const SOURCES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/cuda.rs"));

/// The header that is generated from the metadata table.
pub(super) const METADATA_CONSTANTS: &str = "common/metadata_constants.cuh";

/// The text of that header: a `constexpr` for each number of [`metadata::TABLE`].
pub(super) fn metadata_constants() -> String {
    let lines: String = metadata::TABLE
        .iter()
        .map(|(name, number)| format!("constexpr u32 {name} = {number}u;\n"))
        .collect();
    format!("// Generated from the table in src/backend/metadata.rs.\n\n#pragma once\n\n{lines}")
}

/// Paths of all headers that kernels include.
pub(super) fn headers() -> impl Iterator<Item = &'static str> {
    let files = SOURCES
        .iter()
        .map(|(path, _)| *path)
        .filter(|path| path.starts_with("common/"));
    files.chain([METADATA_CONSTANTS])
}

/// The embedded text of a file of `cuda/`, or the generated text of [`METADATA_CONSTANTS`].
pub(super) fn embedded(path: &str) -> Option<String> {
    if path == METADATA_CONSTANTS {
        return Some(metadata_constants());
    }
    SOURCES
        .iter()
        .find(|(known, _)| *known == path)
        .map(|(_, text)| (*text).to_owned())
}

/// A kernel and its variant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Kernel {
    /// File `cuda/<stem>.cu`, and the name of the function in it.
    pub(super) stem: &'static str,
    /// `-D` names and values, in the order added.
    pub(super) defines: Vec<(&'static str, String)>,
}

impl Kernel {
    /// The kernel without defines.
    pub(super) fn new(stem: &'static str) -> Self {
        Self {
            stem,
            defines: Vec::new(),
        }
    }

    /// Adds a define with a value.
    pub(super) fn define(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.defines.push((name, value.to_string()));
        self
    }

    /// Adds a define that names the C++ type of elements in `storage`.
    pub(super) fn define_type(self, name: &'static str, storage: Storage) -> Self {
        self.define(
            name,
            if storage == Storage::F32 {
                "float"
            } else {
                "u16"
            },
        )
    }

    /// Defines `name` as 1 if `condition` holds.
    pub(super) fn flag_if(self, condition: bool, name: &'static str) -> Self {
        if condition {
            self.define(name, 1)
        } else {
            self
        }
    }

    /// Compiler options of the defines.
    pub(super) fn options(&self) -> Vec<String> {
        self.defines
            .iter()
            .map(|(name, value)| format!("-D{name}={value}"))
            .collect()
    }
}

/// `stem(NAME=value, …)`.
impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let defines = self
            .defines
            .iter()
            .map(|(name, value)| format!("{name}={value}"));
        write!(
            f,
            "{}({})",
            self.stem,
            defines.collect::<Vec<_>>().join(", ")
        )
    }
}

/// Compiles kernels to images.
pub(super) trait Compiler: Send + Sync {
    /// Name, version, options and target: everything but the source that an image depends on.
    fn key(&self) -> String;

    /// Like [`key`](Self::key) without the compiler's version: machine code for one architecture runs whichever version
    /// made it. `None` for images that are not to be shipped.
    fn shipped_key(&self) -> Option<String> {
        None
    }

    /// The text of a file of `cuda/`.
    fn source(&self, path: &str) -> Option<String> {
        embedded(path)
    }

    /// Compiles a kernel from the text of its file; the error is the compiler's message.
    fn compile(&self, kernel: &Kernel, source: &str) -> Result<Vec<u8>, String>;
}

/// The text of the kernel's file.
fn text_of(compiler: &dyn Compiler, kernel: &Kernel) -> Result<String, String> {
    let path = format!("{}.cu", kernel.stem);
    compiler
        .source(&path)
        .ok_or_else(|| format!("cuda/{path} does not exist"))
}

/// The file name of an image: the kernel's stem and a hash of everything the image depends on. `key` is one of the
/// compiler's.
fn file_name(compiler: &dyn Compiler, key: &str, kernel: &Kernel, text: &str) -> String {
    let mut hash = blake3::Hasher::new();
    let mut add = |part: &str| {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    };
    add(key);
    add(text);
    kernel.options().iter().for_each(|option| add(option));
    for path in headers() {
        add(&compiler.source(path).unwrap_or_default());
    }
    format!("{}-{}.bin", kernel.stem, &hash.finalize().to_hex()[..32])
}

/// Names a folder of shipped images, which a device that only compiles ([`dry`](super::dry)) has written.
pub const SHIPPED_VARIABLE: &str = "FOLIO_CUDA_IMAGES";

/// A cache of images in a folder; without a folder, every image is compiled.
pub(super) struct ImageCache {
    folder: Option<PathBuf>,
    /// Images that came with the program, which are only read.
    shipped: Option<PathBuf>,
}

/// Header of a file of the cache. It is complete only if this matches and the hash that follows is correct.
const MAGIC: &[u8; 8] = b"folio-k1";

impl ImageCache {
    /// A cache in `folder`, beside the images in the folder that [`SHIPPED_VARIABLE`] names.
    pub(super) fn new(folder: Option<&Path>) -> Self {
        let shipped = std::env::var_os(SHIPPED_VARIABLE).map(PathBuf::from);
        Self {
            folder: folder.map(Path::to_owned),
            shipped,
        }
    }

    /// Uses no shipped image from now on; `false` if there were none.
    pub(super) fn leave_shipped(&mut self) -> bool {
        self.shipped.take().is_some()
    }

    /// The shipped image of a kernel, if there is one for this architecture and these sources.
    fn shipped(&self, compiler: &dyn Compiler, kernel: &Kernel, text: &str) -> Option<Vec<u8>> {
        let folder = self.shipped.as_ref()?;
        let key = compiler.shipped_key()?;
        read_sealed(&folder.join(file_name(compiler, &key, kernel, text)))
    }

    /// The image of a kernel: shipped, from the cache, or compiled. A cache that cannot be read or written costs time,
    /// but is never an error.
    pub(super) fn image(
        &self,
        compiler: &dyn Compiler,
        kernel: &Kernel,
    ) -> Result<Vec<u8>, BackendError> {
        let refused = |message| BackendError::Kernel {
            kernel: kernel.to_string(),
            message,
        };
        let text = text_of(compiler, kernel).map_err(refused)?;
        if let Some(image) = self.shipped(compiler, kernel, &text) {
            return Ok(image);
        }
        let name = file_name(compiler, &compiler.key(), kernel, &text);
        let path = self.folder.as_ref().map(|folder| folder.join(name));
        if let Some(image) = path.as_deref().and_then(read_sealed) {
            return Ok(image);
        }
        let image = compiler.compile(kernel, &text).map_err(refused)?;
        if let Some(path) = path
            && let Err(error) = write_sealed(&path, &image)
        {
            tracing::debug!("cannot write the kernel image {}: {error}", path.display());
        }
        Ok(image)
    }
}

/// The data of a file that [`write_sealed`] wrote.
pub(super) fn read_sealed(path: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::read(path).ok()?;
    let (head, data) = bytes.split_at_checked(MAGIC.len() + 32)?;
    let whole =
        head[..MAGIC.len()] == *MAGIC && head[MAGIC.len()..] == *blake3::hash(data).as_bytes();
    whole.then(|| data.to_vec())
}

/// Writes a temporary file beside the target and renames it, so that a reader never sees half of it.
pub(super) fn write_sealed(path: &Path, data: &[u8]) -> std::io::Result<()> {
    use std::sync::atomic::{AtomicU64, Ordering};
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let beside = path.with_extension(format!("{}-{number}.tmp", std::process::id()));
    path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    std::fs::write(
        &beside,
        [MAGIC.as_slice(), blake3::hash(data).as_bytes(), data].concat(),
    )?;
    std::fs::rename(&beside, path)
}

#[cfg(test)]
mod tests;
