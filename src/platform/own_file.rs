//! Files that nobody else may have planted: they are opened without following a link.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};

/// Opens a file; fails if its last component is a link. A check before opening would leave time to plant one. Only Unix
/// has this; elsewhere creating a link takes special rights. Opening a pipe does not wait for its other end.
pub fn open_no_link(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(options, libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options.open(path)
}

/// Reads a whole file that this user wrote; fails if it is a link, belongs to another user, or has more than
/// `bytes_max` bytes.
pub fn read_own_file(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let (file, _) = open_own_file(path, bytes_max)?;
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a file of `N` bytes that this user wrote and that nobody else may read; fails if it is a link.
pub fn read_secret_file<const N: usize>(path: &Path) -> io::Result<[u8; N]> {
    let (mut file, found) = open_own_file(path, N as u64)?;
    let wrong = |message: String| io::Error::new(io::ErrorKind::InvalidData, message);
    if found.len() != N as u64 {
        return Err(wrong(format!(
            "a file of {} bytes in place of {N}",
            found.len()
        )));
    }
    if is_for_others(&found, 0o077) {
        return Err(wrong(
            "other users may read or write it: `chmod 600` and a new one, if they have".to_owned(),
        ));
    }
    let mut bytes = [0; N];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn open_own_file(path: &Path, bytes_max: u64) -> io::Result<(File, Metadata)> {
    let file = open_no_link(OpenOptions::new().read(true), path)?;
    let found = file.metadata()?;
    if !found.is_file() || !is_own(&found) || found.len() > bytes_max {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "not a file of this user and of the expected size",
        ));
    }
    Ok((file, found))
}

/// How the name of a file begins that [`write_own_file`] has not finished.
pub const TEMPORARY: &str = ".tmp-";

/// Writes a file that only this user can read. It appears whole, in place of one that was there; a process that ends
/// before leaves a file of a [`TEMPORARY`] name beside it.
pub fn write_own_file(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let temporary = write_temporary(path, parts)?;
    fs::rename(&temporary, path).inspect_err(|_| drop(fs::remove_file(&temporary)))
}

/// [`write_own_file`], unless there is a file: then it stays as it is. Returns whether this one was written. Of
/// several processes that do this at once, one writes it.
pub fn create_own_file(path: &Path, parts: &[&[u8]]) -> io::Result<bool> {
    let temporary = write_temporary(path, parts)?;
    // Renaming would replace what is there.
    let linked = fs::hard_link(&temporary, path);
    drop(fs::remove_file(&temporary));
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        outcome => outcome.map(|()| true),
    }
}

/// Writes a file of a [`TEMPORARY`] name beside `path`, and returns its path.
fn write_temporary(path: &Path, parts: &[&[u8]]) -> io::Result<PathBuf> {
    let temporary = path.with_file_name(format!("{TEMPORARY}{:016x}", super::random_u64()));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&temporary)?;
    let written = parts.iter().try_for_each(|part| file.write_all(part));
    written.inspect_err(|_| drop(fs::remove_file(&temporary)))?;
    Ok(temporary)
}

/// Creates a folder that only this user can use, and the folders that it is in; one that is there stays as it is.
pub fn create_own_folder(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Fails if others may write to a folder: they could replace the files in it.
pub fn check_own_folder(path: &Path) -> io::Result<()> {
    let found = fs::metadata(path)?;
    if is_own(&found) && !is_for_others(&found, 0o022) {
        return Ok(());
    }
    let message = format!("{}: other users may write to this folder", path.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

/// Whether others have one of these rights. Only Unix tells.
fn is_for_others(found: &Metadata, rights: u32) -> bool {
    #[cfg(unix)]
    return std::os::unix::fs::MetadataExt::mode(found) & rights != 0;
    #[cfg(not(unix))]
    {
        let _ = (found, rights);
        false
    }
}

#[cfg(unix)]
fn is_own(found: &Metadata) -> bool {
    #[allow(
        unsafe_code,
        reason = "the standard library does not tell the process's user"
    )]
    // SAFETY: the call has no preconditions.
    let user = unsafe { libc::geteuid() };
    std::os::unix::fs::MetadataExt::uid(found) == user
}

#[cfg(not(unix))]
fn is_own(_found: &Metadata) -> bool {
    true
}

#[cfg(all(test, unix))]
mod tests;
