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
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_others_may_write_to_is_refused() {
        let folder = tempfile::tempdir().expect("a folder for this test");
        for (mode, is_own) in [
            (0o700, true),
            (0o755, true),
            (0o770, false),
            (0o777, false),
            (0o702, false),
        ] {
            let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
            fs::set_permissions(folder.path(), permissions).expect("it is ours");
            assert_eq!(check_own_folder(folder.path()).is_ok(), is_own, "{mode:o}");
        }
    }

    #[test]
    fn links_and_long_files_are_not_read() {
        let folder = tempfile::tempdir().expect("a folder for this test");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        write_own_file(&file, &[b"long", b" text"]).expect("the folder takes files");
        write_own_file(&file, &[b"text"]).expect("it is replaced");
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &fs::metadata(&file).expect("it is there").permissions(),
        );
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(
            fs::read_dir(folder.path()).expect("it is there").count(),
            1,
            "no temporary file is left"
        );
        std::os::unix::fs::symlink(&file, &link).expect("the folder takes links");
        assert_eq!(read_own_file(&file, 4).expect("it is ours"), b"text");
        assert!(read_own_file(&file, 3).is_err());
        assert!(read_own_file(&link, 4).is_err());
        assert!(read_own_file(folder.path(), 4).is_err());
        assert!(
            open_no_link(
                OpenOptions::new().write(true).create(true).truncate(true),
                &link
            )
            .is_err()
        );
        assert_eq!(
            read_own_file(&file, 4).expect("nothing was written through the link"),
            b"text"
        );
    }

    #[test]
    fn of_several_who_create_a_file_one_writes_it() {
        let folder = tempfile::tempdir().expect("a folder for this test");
        let file = folder.path().join("file");
        let create = |text: &'static str| {
            create_own_file(&file, &[text.as_bytes()]).expect("the folder takes files")
        };
        let created: Vec<bool> = std::thread::scope(|scope| {
            let threads =
                ["1111", "2222", "3333", "4444"].map(|text| scope.spawn(move || create(text)));
            threads
                .into_iter()
                .map(|thread| thread.join().expect("it does not panic"))
                .collect()
        });
        assert_eq!(created.iter().filter(|&&is_first| is_first).count(), 1);
        let [first, others @ ..]: [u8; 4] = read_secret_file(&file).expect("it is ours");
        assert_eq!(others, [first; 3], "it is whole");
        assert_eq!(
            fs::read_dir(folder.path()).expect("it is there").count(),
            1,
            "no temporary file is left"
        );
    }

    #[test]
    fn a_secret_that_others_may_read_is_none() {
        let folder = tempfile::tempdir().expect("a folder for this test");
        let file = folder.path().join("file");
        write_own_file(&file, &[b"text"]).expect("the folder takes files");
        for (mode, is_secret) in [
            (0o600, true),
            (0o400, true),
            (0o640, false),
            (0o602, false),
            (0o644, false),
        ] {
            let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
            fs::set_permissions(&file, permissions).expect("it is ours");
            assert_eq!(read_secret_file::<4>(&file).is_ok(), is_secret, "{mode:o}");
        }
        assert!(read_secret_file::<5>(&file).is_err(), "it is shorter");
        assert!(read_secret_file::<3>(&file).is_err(), "it is longer");
    }
}
