//! A partly downloaded file. It is hashed as it grows, and an interrupted download can be resumed.

use super::client::Remote;
use anyhow::{Context as _, Result, anyhow, bail};
use folio::platform::open_no_link;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

/// Bytes per read.
pub(super) const PIECE_BYTES: usize = 1 << 18;

/// The downloaded beginning of a file.
pub(super) struct Partial<'a> {
    remote: &'a Remote,
    path: PathBuf,
    file: File,
    hasher: Hasher,
    bytes: u64,
}

/// The two hashes that a hub sends: SHA-256 of a large file, or git's hash of a small one.
enum Hasher {
    Sha256(Sha256),
    Git(Sha1),
}

impl Hasher {
    fn new(remote: &Remote) -> Self {
        if remote.hash.len() == 64 {
            return Self::Sha256(Sha256::new());
        }
        let mut sha1 = Sha1::new();
        sha1.update(format!("blob {}\0", remote.size));
        Self::Git(sha1)
    }

    /// Adds all that is left to read; returns its number of bytes. `told` gets that of each piece.
    fn read(&mut self, file: &mut File, told: &dyn Fn(u64)) -> io::Result<u64> {
        let (mut piece, mut bytes) = (vec![0; PIECE_BYTES], 0);
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(bytes),
                count => {
                    self.update(&piece[..count]);
                    told(count as u64);
                    bytes += count as u64;
                }
            }
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Git(hasher) => hasher.update(bytes),
        }
    }

    fn hex(self) -> String {
        let hash = match self {
            Self::Sha256(hasher) => hasher.finalize().to_vec(),
            Self::Git(hasher) => hasher.finalize().to_vec(),
        };
        hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Whether the file at `path` has the size and the hash that the hub tells. `told` gets the bytes of each piece that
/// was read.
pub(super) fn is_sound(path: &Path, remote: &Remote, told: &dyn Fn(u64)) -> Result<bool> {
    has_contents(path, remote, told).map_err(|error| anyhow!("{}: {error}", path.display()))
}

fn has_contents(path: &Path, remote: &Remote, told: &dyn Fn(u64)) -> io::Result<bool> {
    let mut file = open_no_link(OpenOptions::new().read(true), path)?;
    if file.metadata()?.len() != remote.size {
        return Ok(false);
    }
    let mut hasher = Hasher::new(remote);
    hasher.read(&mut file, told)?;
    Ok(hasher.hex() == remote.hash)
}

impl<'a> Partial<'a> {
    /// Opens the partial file at `path`, if there is one, and hashes it.
    pub(super) fn open(path: PathBuf, remote: &'a Remote) -> Result<Self> {
        let file = open_file(&path).with_context(|| path.display().to_string())?;
        let mut partial = Self {
            remote,
            path,
            file,
            hasher: Hasher::new(remote),
            bytes: 0,
        };
        partial
            .take_up()
            .with_context(|| partial.path.display().to_string())?;
        Ok(partial)
    }

    fn take_up(&mut self) -> io::Result<()> {
        if self.file.metadata()?.len() > self.remote.size {
            return self.start_over();
        }
        self.bytes = self.hasher.read(&mut self.file, &|_| {})?;
        Ok(())
    }

    fn start_over(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.hasher = Hasher::new(self.remote);
        self.bytes = 0;
        Ok(())
    }

    /// Bytes downloaded.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether all bytes are downloaded.
    pub(super) fn is_long_enough(&self) -> bool {
        self.bytes >= self.remote.size
    }

    /// Discards the bytes so far, because the response begins at the start of the file.
    pub(super) fn restart(&mut self) -> Result<()> {
        self.start_over()
            .with_context(|| self.path.display().to_string())
    }

    /// Adds the next bytes. If the file exceeds its expected size, it is removed and an error returned.
    pub(super) fn add(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() as u64 > self.remote.size - self.bytes {
            return self.discard(&format!(
                "size mismatch: got more than the expected {} bytes",
                self.remote.size
            ));
        }
        if let Err(error) = self.file.write_all(bytes) {
            bail!(write_error(
                &self.path,
                &error,
                self.remote.size - self.bytes
            ));
        }
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Removes the partial file and fails with `why`.
    pub(super) fn discard(&self, why: &str) -> Result<()> {
        let removed = fs::remove_file(&self.path).is_ok();
        let outcome = if removed {
            "the partial file was removed"
        } else {
            "the partial file cannot be removed"
        };
        bail!(
            "{}: {why}; {outcome} ({})",
            self.remote.name,
            self.path.display()
        );
    }

    /// Verifies the hash and moves the file to `to`.
    pub(super) fn finish(mut self, to: &Path) -> Result<()> {
        let found = std::mem::replace(&mut self.hasher, Hasher::new(self.remote)).hex();
        if found != self.remote.hash {
            return self.discard(&format!(
                "hash mismatch: got {found}, expected {}",
                self.remote.hash
            ));
        }
        let place = || to.display().to_string();
        // A file in the cache must have its full contents even after a power loss, so it is synced before the rename.
        self.file.sync_all().with_context(place)?;
        fs::rename(&self.path, to).with_context(place)
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    // A link here would redirect the writes to its target. One that appears after this check is not followed.
    if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        fs::remove_file(path)?;
    }
    open_no_link(
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false),
        path,
    )
}

/// The error for bytes that cannot be written.
fn write_error(path: &Path, error: &io::Error, missing: u64) -> String {
    let path = path.display();
    if matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded
    ) {
        let missing = indicatif::BinaryBytes(missing);
        return format!(
            "the disk is full: {path} needs {missing} more; run the command again to resume"
        );
    }
    format!("{path}: {error}")
}

#[cfg(test)]
mod tests;
