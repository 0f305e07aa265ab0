//! Files that nobody else may have planted: they are opened without following a link.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

/// Opens a file; fails if its last component is a link. A check before opening would leave time to plant one. Only Unix
/// has this; elsewhere creating a link takes special rights.
pub fn open_no_link(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(options, libc::O_NOFOLLOW);
    options.open(path)
}

/// Reads a whole file that this user wrote; fails if it is a link, belongs to another user, or has more than
/// `bytes_max` bytes.
pub fn read_own_file(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = open_no_link(OpenOptions::new().read(true), path)?;
    let found = file.metadata()?;
    if !found.is_file() || !is_own(&found) || found.len() > bytes_max {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a file of this user and of the expected size"));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(unix)]
fn is_own(found: &Metadata) -> bool {
    #[allow(unsafe_code, reason = "the standard library does not tell the process's user")]
    // SAFETY: the call has no preconditions.
    let user = unsafe { libc::geteuid() };
    std::os::unix::fs::MetadataExt::uid(found) == user
}

#[cfg(not(unix))]
fn is_own(_found: &Metadata) -> bool {
    true
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn links_and_long_files_are_not_read() {
        let folder = tempfile::tempdir().expect("a folder for this test");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "text").expect("the folder takes files");
        std::os::unix::fs::symlink(&file, &link).expect("the folder takes links");
        assert_eq!(read_own_file(&file, 4).expect("it is ours"), b"text");
        assert!(read_own_file(&file, 3).is_err());
        assert!(read_own_file(&link, 4).is_err());
        assert!(read_own_file(folder.path(), 4).is_err());
        assert!(open_no_link(OpenOptions::new().write(true).create(true).truncate(true), &link).is_err());
        assert_eq!(read_own_file(&file, 4).expect("nothing was written through the link"), b"text");
    }
}
