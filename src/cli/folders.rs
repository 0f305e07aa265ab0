//! The user's folders for what folio keeps: compiled kernels and measurements, and conversations; and what a folder
//! has.

use anyhow::{Context as _, Result};
use folio::platform;
use std::path::{Path, PathBuf};

/// A folder in the user's cache folder, which may be deleted at any time.
pub(crate) fn cache(name: &str) -> Option<PathBuf> {
    let root = set("XDG_CACHE_HOME")
        .or_else(|| set("LOCALAPPDATA"))
        .or_else(|| Some(home()?.join(".cache")))?;
    Some(root.join("folio").join(name))
}

/// The folder for conversations, which only this user can read. It is created.
pub(crate) fn data() -> Result<PathBuf> {
    let root = set("XDG_DATA_HOME")
        .or_else(|| set("LOCALAPPDATA"))
        .or_else(|| Some(home()?.join(".local/share")));
    let folder = root.context("there is no home folder")?.join("folio");
    platform::create_own_folder(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

/// Sorted names in a folder; none if it cannot be read.
pub(crate) fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

fn set(name: &str) -> Option<PathBuf> {
    std::env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

fn home() -> Option<PathBuf> {
    set("HOME")
}
