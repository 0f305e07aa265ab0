//! Where the blocks of one form are: a folder of their own in the folder of `--kv-disk`, whose key all forms share.

use super::key::FolderKey;
use super::{Form, file};
use crate::engine::memory::BlockKey;
use crate::platform;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The folder of a form, in a folder of `--kv-disk`.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The folder of `--kv-disk`.
    pub(super) all: PathBuf,
    /// The folder of the form.
    pub(super) own: PathBuf,
}

impl Place {
    pub(super) fn new(folder: &Path, form: &Form) -> Self {
        Self {
            all: folder.to_owned(),
            own: folder.join(form.folder_name()),
        }
    }

    /// The file of a block.
    pub(super) fn file(&self, key: BlockKey) -> PathBuf {
        self.own.join(file::file_name(key))
    }

    /// The key of the files; an error names its file.
    pub(super) fn key(&self) -> io::Result<FolderKey> {
        FolderKey::read(&self.all)
    }

    /// Whether there are both folders and a key.
    pub(super) fn is_there(&self) -> bool {
        self.own.is_dir() && self.key().is_ok()
    }

    /// Creates what is missing. Returns how many blocks were removed because there was no key: nothing tells who wrote
    /// them.
    pub(super) fn prepare(&self) -> io::Result<u64> {
        platform::create_own_folder(&self.own)?;
        [&self.all, &self.own]
            .into_iter()
            .try_for_each(|folder| platform::check_own_folder(folder))?;
        let is_new = match self.key() {
            Err(error) if error.kind() == ErrorKind::NotFound => FolderKey::make(&self.all)?,
            found => found.map(|_| false)?,
        };
        let removed = if is_new { self.remove_blocks() } else { 0 };
        if removed > 0 {
            let all = self.all.display();
            tracing::warn!(
                "{all}: the key of this folder is lost; its {removed} KV blocks are removed"
            );
        }
        Ok(removed)
    }

    /// Removes the blocks of all forms; returns how many there were.
    fn remove_blocks(&self) -> u64 {
        let files = folders_in(&self.all).flat_map(|folder| entries(&folder));
        let blocks = files.filter(|entry| {
            entry
                .file_name()
                .to_str()
                .and_then(file::block_of)
                .is_some()
        });
        blocks
            .filter(|block| fs::remove_file(block.path()).is_ok())
            .count() as u64
    }
}

/// The folders in a folder; none if it cannot be read.
pub(super) fn folders_in(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    entries(folder)
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
}

/// The entries of a folder; none if it cannot be read.
pub(super) fn entries(folder: &Path) -> impl Iterator<Item = fs::DirEntry> + use<> {
    fs::read_dir(folder).into_iter().flatten().flatten()
}
