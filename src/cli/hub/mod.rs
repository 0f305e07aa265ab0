//! Models by name: `org/repo[@revision][:QUANT_OR_FILE]` becomes a folder or a GGUF file in the Hugging Face cache.
//!
//! One list of files is asked for ([`client`]); [`choice`] says which of them a model needs; [`download`] brings those
//! that [`cache`] has not. Behind that a model is a path like any other. Offline the cache's own list takes the place
//! of the hub's.

mod cache;
mod choice;
mod client;
mod describe;
mod download;
mod name;
mod partial;
mod patience;
mod settings;
pub(crate) mod shelf;

pub(crate) use describe::{Described, describe};
pub(crate) use name::HubName;

use super::output::note;
use anyhow::{Context as _, Result, anyhow, bail};
use cache::RepoFolder;
use choice::Choice;
use clap::Args;
use clap::builder::BoolishValueParser;
use client::{Client, Fault};
use download::Download;
use settings::Settings;
use std::path::{Path, PathBuf};

/// The index of the largest published checkpoints has about 10 MB.
const INDEX_BYTES_MAX: u64 = 100 << 20;

/// How to get at models by name.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct HubOptions {
    /// Take models by name from the cache alone, without any network
    #[arg(long, env = "FOLIO_OFFLINE", value_parser = BoolishValueParser::new())]
    pub(crate) offline: bool,
}

/// What `--model` means: a path, if there is one; else a name on the hub, which is fetched.
pub(crate) fn locate(model: &Path, options: HubOptions) -> Result<PathBuf> {
    if model.exists() {
        return Ok(model.to_owned());
    }
    fetch(&name_of(model)?, options).map_err(|error| no_path_either(error, model))
}

fn name_of(model: &Path) -> Result<HubName> {
    let text = model.display();
    let name = text.to_string().parse();
    name.map_err(|why| anyhow!("{text} does not exist as a file or folder, and is no model on the hub: {why}"))
}

fn no_path_either(error: anyhow::Error, model: &Path) -> anyhow::Error {
    match error.downcast_ref() {
        Some(Fault::Missing(why)) => anyhow!("{why}; {} is no file or folder either", model.display()),
        _ => error,
    }
}

/// Brings what `name` needs into the cache, and gives the path to load: a folder, or the first GGUF file.
pub(crate) fn fetch(name: &HubName, options: HubOptions) -> Result<PathBuf> {
    let settings = Settings::from_env(options.offline)?;
    let folder = settings.cache.repo(&name.repo);
    if settings.offline {
        return from_cache(&folder, name).with_context(|| format!("{name} cannot be had offline"));
    }
    let error = match from_hub(&Client::new(&settings), &folder, name) {
        Ok(path) => return Ok(path),
        Err(error) => error,
    };
    if !matches!(error.downcast_ref(), Some(Fault::Unreachable(_))) {
        return Err(error);
    }
    match from_cache(&folder, name) {
        Ok(path) => {
            note(format_args!("{error:#}; taking {name} as the cache has it"));
            Ok(path)
        }
        Err(why) => bail!("{error:#}; nor does the cache have {name} whole: {why:#}"),
    }
}

fn from_hub(client: &Client, folder: &RepoFolder, name: &HubName) -> Result<PathBuf> {
    let (repo, revision) = (name.repo.as_str(), name.revision());
    let listing = client.listing(repo, revision)?;
    let download = Download { client, folder, repo, commit: &listing.commit };
    let chosen = choice::choose(&listing.names, name.wanted.as_deref()).with_context(|| name.to_string())?;
    match &chosen {
        Choice::Folder { files, index } => {
            download.fetch(files)?;
            if let Some(index) = index {
                download.fetch(&shards(folder, &listing.commit, index, &listing.names)?)?;
            }
        }
        Choice::Gguf { files, by_default } => {
            if *by_default {
                note(format_args!("{name}: taking {}; `{name}:QUANT` or `{name}:FILE` takes another", files[0]));
            }
            download.fetch(files)?;
        }
    }
    folder.set_commit(revision, &listing.commit)?;
    path_of(folder, &listing.commit, &chosen)
}

/// The same from what is there already.
fn from_cache(folder: &RepoFolder, name: &HubName) -> Result<PathBuf> {
    let revision = name.revision();
    let commit = folder.commit(revision)?.with_context(|| format!("the cache knows no revision {revision} of it"))?;
    let names = there(folder, &commit)?;
    let chosen = choice::choose(&names, name.wanted.as_deref())?;
    if let Choice::Folder { index: Some(index), .. } = &chosen {
        shards(folder, &commit, index, &names)?;
    }
    path_of(folder, &commit, &chosen)
}

/// Names of a snapshot with something behind them.
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
    let path = folder.file(commit, index)?.with_context(|| format!("{index} is not there"))?;
    let json = folio::platform::read_file(&path, INDEX_BYTES_MAX).with_context(|| path.display().to_string())?;
    choice::shards(&json, names)
}

fn path_of(folder: &RepoFolder, commit: &str, chosen: &Choice) -> Result<PathBuf> {
    // Loading follows every link of the folder, also of files that nobody chose.
    there(folder, commit)?;
    let snapshot = folder.snapshot(commit);
    Ok(match chosen {
        Choice::Folder { .. } => snapshot,
        Choice::Gguf { files, .. } => snapshot.join(&files[0]),
    })
}
