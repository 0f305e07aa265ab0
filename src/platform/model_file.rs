//! [`ModelFile`]: reads ranges of a large file that somebody may overwrite or truncate meanwhile.
//!
//! By default ranges are read into memory of our own, so whatever happens to the file later changes nothing. A file can
//! also be mapped, which saves that copy: the CPU then computes with the pages of the page cache.
//! [`ModelFile::is_unchanged`] says whether a file is still as it was when it was opened; readers ask before each read
//! and after the last.

#[cfg(not(target_arch = "wasm32"))]
use super::file_map::FileMap;
use bytes::Bytes;
use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::path::Path;

/// How the bytes of a file are accessed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileAccess {
    /// They are copied into memory.
    #[default]
    Read,
    /// They are mapped into memory. Overwriting the file later changes the weights.
    Map,
}

/// A model's file in one of the places where its bytes can be read.
pub struct ModelFile {
    content: Content,
    /// Length in bytes, when it was opened.
    bytes: u64,
}

enum Content {
    Memory(Bytes),
    File(File, Metadata),
    Map(Bytes, File, Metadata),
}

impl ModelFile {
    /// Opens a regular file.
    pub fn open(path: &Path, access: FileAccess) -> io::Result<Self> {
        let file = super::open_regular(path)?;
        let metadata = file.metadata()?;
        let bytes = metadata.len();
        let content = match access {
            FileAccess::Map => Content::Map(map(&file, bytes)?, file, metadata),
            FileAccess::Read => Content::File(file, metadata),
        };
        Ok(Self { content, bytes })
    }

    /// Wraps bytes without a file: embedded in the binary, or downloaded.
    pub fn in_memory(bytes: Bytes) -> Self {
        Self {
            bytes: bytes.len() as u64,
            content: Content::Memory(bytes),
        }
    }

    /// Length in bytes, when it was opened.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads exactly this range, which must lie within the length that the file had. Does not notice other contents;
    /// callers ask [`ModelFile::is_unchanged`].
    pub fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        assert!(
            range.start <= range.end && range.end <= self.bytes,
            "{range:?} of a file of {} bytes",
            self.bytes
        );
        let slice = |bytes: &Bytes| bytes.slice(range.start as usize..range.end as usize);
        match &self.content {
            Content::Memory(bytes) => Ok(slice(bytes)),
            Content::Map(bytes, ..) => Ok(slice(bytes)),
            Content::File(file, _) => {
                let mut bytes = vec![0; (range.end - range.start) as usize];
                read_exact_at(file, &mut bytes, range.start)?;
                Ok(bytes.into())
            }
        }
    }

    /// Whether the file is as it was when it was opened, as far as its length and time of modification tell.
    pub fn is_unchanged(&self) -> io::Result<bool> {
        let (Content::File(file, before) | Content::Map(_, file, before)) = &self.content else {
            return Ok(true);
        };
        let now = file.metadata()?;
        // Not every file system has a time of modification.
        let unmodified = now.modified().ok() == before.modified().ok();
        Ok(now.len() == before.len() && unmodified)
    }
}

impl fmt::Debug for ModelFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.content {
            Content::Memory(_) => "memory",
            Content::File(..) => "file",
            Content::Map(..) => "map",
        };
        write!(formatter, "ModelFile({kind}, {} bytes)", self.bytes)
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => (bytes, offset) = (&mut bytes[count..], offset + count as u64),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(not(any(unix, windows)))]
fn read_exact_at(_file: &File, _bytes: &mut [u8], _offset: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(target_arch = "wasm32"))]
fn map(file: &File, bytes: u64) -> io::Result<Bytes> {
    if bytes == 0 {
        return Ok(Bytes::new()); // an empty file cannot be mapped
    }
    let bytes = usize::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    Ok(Bytes::from_owner(FileMap::new(file, bytes)?))
}

#[cfg(target_arch = "wasm32")]
fn map(_file: &File, _bytes: u64) -> io::Result<Bytes> {
    Err(io::ErrorKind::Unsupported.into())
}
