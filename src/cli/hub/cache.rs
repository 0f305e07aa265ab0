//! The Hugging Face cache: the folder that Python's `huggingface_hub` fills and reads, in the same layout.
//!
//! ```text
//! models--org--repo/refs/main                        the commit of a branch or tag when it was last requested
//! models--org--repo/blobs/<hash>                     contents, named by SHA-256 (large files) or git's hash (others)
//! models--org--repo/blobs/<hash>.incomplete          a partial download
//! models--org--repo/snapshots/<commit>/config.json   a link to a blob
//! .locks/models--org--repo/<hash>.lock               held while that blob is downloaded
//! ```
//!
//! A link is followed only if its target is in the repository's own folder. The cache folder itself may be a link.

use super::name::is_commit;
use anyhow::{Context as _, Result, bail, ensure};
use folio::model::repository::is_plain;
use folio::platform::open_no_link;
use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

/// Prefix of a model's folder; datasets and spaces have other prefixes.
const PREFIX: &str = "models--";
/// Suffix of an incomplete blob.
const INCOMPLETE: &str = ".incomplete";
/// Maximum bytes of a revision's file: a hash and perhaps a line break.
const REF_BYTES_MAX: u64 = 256;

/// The cache of one user.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    root: PathBuf,
}

/// One model's folder in the cache; it may not exist yet.
#[derive(Clone, Debug)]
pub(super) struct RepoFolder {
    root: PathBuf,
    folder: PathBuf,
    locks: PathBuf,
}

impl Cache {
    /// The cache in this folder.
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// Path of the cache.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of `org/repo`.
    pub(super) fn repo(&self, repo: &str) -> RepoFolder {
        let name = format!("{PREFIX}{}", repo.replace('/', "--"));
        let (folder, locks) = (self.root.join(&name), self.root.join(".locks").join(name));
        RepoFolder {
            root: self.root.clone(),
            folder,
            locks,
        }
    }

    /// Sorted names of all models that have a folder.
    pub(super) fn repos(&self) -> Result<Vec<String>> {
        let mut repos: Vec<String> = entries(&self.root)?
            .iter()
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                Some(name.strip_prefix(PREFIX)?.replacen("--", "/", 1))
            })
            .collect();
        repos.sort();
        Ok(repos)
    }
}

impl RepoFolder {
    /// Removes the folder and its locks. A link is removed, not what it leads to.
    pub(super) fn remove(&self) -> Result<()> {
        for folder in [&self.folder, &self.locks] {
            match fs::remove_dir_all(folder) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                outcome => outcome.with_context(|| folder.display().to_string())?,
            }
        }
        Ok(())
    }

    /// The cached commit of a revision.
    pub(super) fn commit(&self, revision: &str) -> Result<Option<String>> {
        if is_commit(revision) {
            return Ok(Some(revision.to_owned()));
        }
        let path = self.folder.join("refs").join(revision);
        let Some(inside) = self.inside(&path)? else {
            return Ok(None);
        };
        let bytes = folio::platform::read_file(&inside, REF_BYTES_MAX)
            .with_context(|| path.display().to_string())?;
        let commit = String::from_utf8_lossy(&bytes).trim().to_owned();
        ensure!(
            is_commit(&commit),
            "{}: invalid commit hash {commit:?}",
            path.display()
        );
        Ok(Some(commit))
    }

    /// Records the commit of a revision.
    pub(super) fn set_commit(&self, revision: &str, commit: &str) -> Result<()> {
        assert!(is_commit(commit), "a commit is checked where it is read");
        if is_commit(revision) || self.commit(revision).ok().flatten().as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.folder.join("refs").join(revision);
        self.write_revision(&path, commit)
            .with_context(|| path.display().to_string())
    }

    fn write_revision(&self, path: &Path, commit: &str) -> io::Result<()> {
        self.make_folder(path)?;
        let new = self.spare("ref")?;
        open_no_link(fs::OpenOptions::new().write(true).create_new(true), &new)?
            .write_all(commit.as_bytes())?;
        fs::rename(&new, path)
    }

    /// Names and commits of all revisions, without damaged ones.
    pub(super) fn revisions(&self) -> Result<Vec<(String, String)>> {
        let mut names = Vec::new();
        walk(&self.folder.join("refs"), "", &mut names)?;
        Ok(names
            .iter()
            .filter_map(|name| Some((name.clone(), self.commit(name).ok().flatten()?)))
            .collect())
    }

    /// Commits that have a snapshot.
    pub(super) fn snapshots(&self) -> Result<Vec<String>> {
        let entries = entries(&self.folder.join("snapshots"))?;
        let names = entries
            .iter()
            .filter_map(|entry| entry.file_name().into_string().ok());
        let mut commits: Vec<String> = names.filter(|name| is_commit(name)).collect();
        commits.sort();
        Ok(commits)
    }

    /// The folder that holds a commit's files.
    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// Names of all entries of a snapshot, dangling links included.
    pub(super) fn names(&self, commit: &str) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let snapshot = self.snapshot(commit);
        if self.inside(&snapshot)?.is_some() {
            walk(&snapshot, "", &mut names)?;
        }
        names.sort();
        Ok(names)
    }

    /// The resolved path of a snapshot's file; `None` if it is missing or a dangling link, an error if it is outside
    /// the folder.
    pub(super) fn file(&self, commit: &str, name: &str) -> Result<Option<PathBuf>> {
        ensure!(is_plain(name), "invalid file name {name:?}");
        self.inside(&self.snapshot(commit).join(name))
    }

    /// The path of a complete blob.
    pub(super) fn blob(&self, hash: &str) -> PathBuf {
        self.folder.join("blobs").join(hash)
    }

    /// The path of an incomplete blob; creates its folder.
    pub(super) fn incomplete(&self, hash: &str) -> Result<PathBuf> {
        let path = self
            .folder
            .join("blobs")
            .join(format!("{hash}{INCOMPLETE}"));
        self.make_folder(&path)
            .with_context(|| path.display().to_string())?;
        Ok(path)
    }

    /// Bytes of each incomplete blob.
    pub(super) fn incompletes(&self) -> Result<Vec<u64>> {
        let entries = entries(&self.folder.join("blobs"))?;
        Ok(entries
            .iter()
            .filter(|entry| entry.file_name().to_string_lossy().ends_with(INCOMPLETE))
            .map(|entry| entry.metadata().map_or(0, |metadata| metadata.len()))
            .collect())
    }

    /// The file whose lock guards a blob.
    pub(super) fn lock_file(&self, hash: &str) -> Result<fs::File> {
        let path = self.locks.join(format!("{hash}.lock"));
        self.open_lock(&path)
            .with_context(|| path.display().to_string())
    }

    fn open_lock(&self, path: &Path) -> io::Result<fs::File> {
        fs::create_dir_all(&self.locks)?;
        open_no_link(
            fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false),
            path,
        )
    }

    /// Links a blob into a snapshot under its name. If the system does not allow links, moves the blob.
    pub(super) fn link(&self, commit: &str, name: &str, hash: &str) -> Result<()> {
        assert!(
            is_plain(name) && is_commit(commit),
            "names are checked where they are read"
        );
        let path = self.snapshot(commit).join(name);
        // `../../blobs/<hash>`, with one more step up for each folder in the name.
        let mut target: PathBuf = std::iter::repeat_n("..", name.split('/').count() + 1).collect();
        target.extend(["blobs", hash]);
        self.link_or_move(hash, &path, &target)
            .with_context(|| path.display().to_string())
    }

    /// Makes `path` a link to `target`, or else the blob itself.
    fn link_or_move(&self, hash: &str, path: &Path, target: &Path) -> io::Result<()> {
        self.make_folder(path)?;
        let new = self.spare(hash)?;
        match symlink(target, &new) {
            Ok(()) => fs::rename(&new, path),
            Err(_) if cfg!(windows) => fs::rename(self.blob(hash), path),
            Err(error) => Err(error),
        }
    }

    /// A temporary path beside the locks, for files that are renamed into place.
    fn spare(&self, stem: &str) -> io::Result<PathBuf> {
        fs::create_dir_all(&self.locks)?;
        Ok(self
            .locks
            .join(format!("{stem}.{:016x}", folio::platform::random_u64())))
    }

    /// Creates the folder of a file, and checks that no link leads outside.
    fn make_folder(&self, file: &Path) -> io::Result<()> {
        let folder = file.parent().unwrap_or(&self.folder);
        let there = folder.ancestors().find(|folder| folder.exists());
        let checked = there
            .filter(|there| there.starts_with(&self.folder))
            .map_or(Ok(None), |there| self.inside(there));
        checked.map_err(|error| io::Error::other(format!("{error:#}")))?;
        fs::create_dir_all(folder)
    }

    /// The resolved path; `None` if nothing exists there, an error if it is outside this folder.
    fn inside(&self, path: &Path) -> Result<Option<PathBuf>> {
        let real = |path: &Path| match path.canonicalize() {
            Ok(real) => Ok(Some(real)),
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                Ok(None)
            }
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        };
        let (Some(root), Some(found)) = (real(&self.root)?, real(path)?) else {
            return Ok(None);
        };
        let folder = root.join(self.folder.file_name().unwrap_or_default());
        if !found.starts_with(&folder) {
            bail!(
                "{} is a link to a place outside {}",
                path.display(),
                self.folder.display()
            );
        }
        Ok(Some(found))
    }
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}

/// A folder's entries; none if it does not exist.
fn entries(folder: &Path) -> Result<Vec<fs::DirEntry>> {
    match fs::read_dir(folder) {
        Ok(entries) => entries
            .collect::<io::Result<_>>()
            .with_context(|| folder.display().to_string()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| folder.display().to_string()),
    }
}

/// Names below `folder`, with `/`; links to folders are not followed.
fn walk(folder: &Path, prefix: &str, names: &mut Vec<String>) -> Result<()> {
    for entry in entries(folder)? {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let name = format!("{prefix}{name}");
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&entry.path(), &format!("{name}/"), names)?;
        } else {
            names.push(name);
        }
    }
    Ok(())
}
