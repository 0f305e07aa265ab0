//! Models by name: `org/repo[@revision][:QUANT_OR_FILE]` becomes a folder or a GGUF file in the Hugging Face cache.
//!
//! [`client`] lists the repository's files, [`repository`] selects those that a model needs, [`download`] downloads
//! those that [`cache`] does not have. After that the model is loaded from a path. Offline, files are selected from the
//! cache's list instead of the hub's.

mod cache;
pub(crate) mod cache_index;
mod client;
mod describe;
mod download;
mod name;
mod partial;
mod retry;
mod settings;

pub(crate) use describe::{Described, describe};
pub(crate) use name::HubName;

use super::folders::names_in;
use crate::cli::terminal::output::note;
use anyhow::{Context as _, Result, anyhow, bail};
use cache::RepoFolder;
use clap::Args;
use clap::builder::BoolishValueParser;
use client::{Client, FetchError};
use download::Download;
use folio::model::ShortName;
use folio::model::repository::{self, Selection};
use folio::server::nearest;
use settings::Settings;
use std::path::{Path, PathBuf};

/// Maximum bytes of an index; those of the largest published checkpoints have about 10 MB.
const INDEX_BYTES_MAX: u64 = 100 << 20;
/// Maximum names in a message.
const LISTED_MAX: usize = 10;

/// How models are found by name.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct HubArgs {
    /// Use only models in the local cache; do not access the network
    #[arg(long, env = "FOLIO_OFFLINE", value_parser = BoolishValueParser::new())]
    pub(crate) offline: bool,
}

/// The path of `--model`: the path itself if it exists, else a name on the hub, which is downloaded.
pub(crate) fn locate(model: &Path, options: HubArgs) -> Result<PathBuf> {
    if model.exists() {
        return Ok(model.to_owned());
    }
    fetch(&name_of(model)?, options, false).map_err(|error| no_path_either(error, model))
}

fn name_of(model: &Path) -> Result<HubName> {
    let text = model.display();
    let name = text.to_string().parse();
    name.map_err(|why| {
        let tip = similar(model);
        anyhow!("{text} is not an existing file or folder, and not a model name: {why}{tip}")
    })
}

/// What a mistyped model may be: a file beside it, or a model in the cache. With a leading `; `, or empty.
fn similar(model: &Path) -> String {
    let text = model.to_string_lossy();
    let folder = model.parent().map(|folder| {
        if folder.as_os_str().is_empty() {
            Path::new(".")
        } else {
            folder
        }
    });
    if let (Some(folder), Some(name)) = (folder.filter(|folder| folder.is_dir()), model.file_name())
    {
        let names = names_in(folder);
        if let Some(near) = nearest(&name.to_string_lossy(), names.iter().map(String::as_str)) {
            return format!("; did you mean {}?", model.with_file_name(near).display());
        }
        let models: Vec<&str> = names
            .iter()
            .filter(|name| name.to_lowercase().ends_with(".gguf") || folder.join(name).is_dir())
            .take(LISTED_MAX)
            .map(String::as_str)
            .collect();
        if folder != Path::new(".") && !models.is_empty() {
            return format!("; this folder has: {}", models.join(", "));
        }
    }
    let cached = Settings::from_env(true)
        .and_then(|settings| settings.cache.repos())
        .unwrap_or_default();
    let near = nearest(&text, cached.iter().map(String::as_str));
    if let Some(near) = near {
        return format!("; did you mean {near}, which is in the cache?");
    }
    let near = nearest(&text, ShortName::ALL.iter().map(|short| short.name));
    near.map_or_else(String::new, |near| {
        format!("; did you mean {near}? (`folio plan` lists such names)")
    })
}

fn no_path_either(error: anyhow::Error, model: &Path) -> anyhow::Error {
    match error.downcast_ref() {
        Some(FetchError::Missing(why)) => {
            let tip = similar(model);
            anyhow!(
                "{why}; there is also no file or folder {}{tip}",
                model.display()
            )
        }
        _ => error,
    }
}

/// Downloads the files of `name` into the cache, and returns the path to load: a folder, or the first GGUF file.
/// `verifies`: also compares the hashes of files that the cache has, which takes as long as reading them.
pub(crate) fn fetch(name: &HubName, options: HubArgs, verifies: bool) -> Result<PathBuf> {
    let settings = Settings::from_env(options.offline)?;
    let folder = settings.cache.repo(&name.repo);
    if settings.offline {
        return from_cache(&folder, name)
            .with_context(|| format!("{name} is not in the local cache (--offline)"));
    }
    let error = match from_hub(&Client::new(&settings), &folder, name, verifies) {
        Ok(path) => return Ok(path),
        Err(error) => error,
    };
    if !matches!(error.downcast_ref(), Some(FetchError::Unreachable(_))) {
        return Err(error);
    }
    match from_cache(&folder, name) {
        Ok(path) => {
            note(format_args!("{error:#}; using {name} from the local cache"));
            Ok(path)
        }
        Err(why) => bail!("{error:#}; {name} is not complete in the local cache either: {why:#}"),
    }
}

/// Removes all files of a repository from the cache. Returns the bytes that they had.
pub(crate) fn remove(name: &HubName) -> Result<u64> {
    let cache = Settings::from_env(true)?.cache;
    if name.to_string() != name.repo {
        bail!(
            "{name} names a part of {}; only a whole repository can be removed",
            name.repo
        );
    }
    let known = cache.repos()?;
    if !known.contains(&name.repo) {
        let near = nearest(&name.repo, known.iter().map(String::as_str));
        let tip = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
        bail!("{name} is not in {}{tip}", cache.root().display());
    }
    let bytes = cache_index::entries(&cache)?
        .iter()
        .filter(|entry| entry.repo == name.repo)
        .map(|entry| entry.bytes)
        .sum();
    cache.repo(&name.repo).remove()?;
    Ok(bytes)
}

fn from_hub(
    client: &Client,
    folder: &RepoFolder,
    name: &HubName,
    verifies: bool,
) -> Result<PathBuf> {
    let (repo, revision) = (name.repo.as_str(), name.revision());
    let listing = client.listing(repo, revision)?;
    let download = Download {
        client,
        folder,
        repo,
        commit: &listing.commit,
        verifies,
    };
    let chosen = repository::select(&listing.names, name.requested.as_deref())
        .with_context(|| name.to_string())?;
    match &chosen {
        Selection::Folder { files, index } => {
            download.fetch(files)?;
            if let Some(index) = index {
                download.fetch(&shards(folder, &listing.commit, index, &listing.names)?)?;
            }
        }
        Selection::Gguf { files, by_default } => {
            if *by_default {
                note(format_args!(
                    "{name}: using {}; `{name}:QUANT` or `{name}:FILE` selects another file",
                    files[0]
                ));
            }
            download.fetch(files)?;
        }
    }
    folder.set_commit(revision, &listing.commit)?;
    path_of(folder, &listing.commit, &chosen)
}

/// Like [`fetch`], but only from the cache.
fn from_cache(folder: &RepoFolder, name: &HubName) -> Result<PathBuf> {
    let revision = name.revision();
    let commit = folder
        .commit(revision)?
        .with_context(|| format!("revision {revision} is not cached"))?;
    let names = there(folder, &commit)?;
    let chosen = repository::select(&names, name.requested.as_deref())?;
    if let Selection::Folder {
        index: Some(index), ..
    } = &chosen
    {
        shards(folder, &commit, index, &names)?;
    }
    path_of(folder, &commit, &chosen)
}

/// Names of a snapshot's files that are present.
fn there(folder: &RepoFolder, commit: &str) -> Result<Vec<String>> {
    let mut names = folder.names(commit)?;
    let mut fault = None;
    names.retain(|name| match folder.file(commit, name) {
        Ok(found) => found.is_some(),
        Err(error) => {
            fault.get_or_insert(error);
            false
        }
    });
    fault.map_or(Ok(names), Err)
}

fn shards(folder: &RepoFolder, commit: &str, index: &str, names: &[String]) -> Result<Vec<String>> {
    let path = folder
        .file(commit, index)?
        .with_context(|| format!("{index} is missing"))?;
    let json = folio::platform::read_file(&path, INDEX_BYTES_MAX)
        .with_context(|| path.display().to_string())?;
    Ok(repository::shards(&json, names)?)
}

fn path_of(folder: &RepoFolder, commit: &str, chosen: &Selection) -> Result<PathBuf> {
    // Checks all links, because loading follows every link in the folder, also those of files that were not selected.
    there(folder, commit)?;
    let snapshot = folder.snapshot(commit);
    Ok(match chosen {
        Selection::Folder { .. } => snapshot,
        Selection::Gguf { files, .. } => snapshot.join(&files[0]),
    })
}
