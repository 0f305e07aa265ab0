//! Describes a model without its weights. For a model that is not cached, only its config and tensor headers are
//! downloaded, by range requests. Nothing is kept.

use super::client::{Client, FetchError};
use super::settings::Settings;
use super::{HubArgs, HubName, INDEX_BYTES_MAX, from_cache, name_of, no_path_either};
use crate::cli::terminal::output::note;
use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use folio::model::remote::SizeRead;
use folio::model::repository::{self, Selection};
use folio::model::{Gguf, LoadError, Model, RangeFiles, TensorRead};
use folio::platform;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The description of a model.
pub(crate) enum Described {
    /// In a folder or a GGUF file.
    At(PathBuf),
    /// On the hub: a model without its weights, which is enough for a plan.
    Far(Box<Model>),
}

/// The description of `--model`, as far as a plan needs it.
pub(crate) fn describe(model: &Path, options: HubArgs) -> Result<Described> {
    if model.exists() {
        return Ok(Described::At(model.to_owned()));
    }
    let name = name_of(model)?;
    let settings = Settings::from_env(options.offline)?;
    let cached = from_cache(&settings.cache.repo(&name.repo), &name);
    match cached {
        Ok(path) => Ok(Described::At(path)),
        Err(error) if settings.offline => {
            Err(error).with_context(|| format!("{name} is not in the local cache (--offline)"))
        }
        Err(_) => far(Client::new(&settings), &name).map_err(|error| no_path_either(error, model)),
    }
}

fn far(client: Client, name: &HubName) -> Result<Described> {
    let listing = client.listing(&name.repo, name.revision())?;
    let chosen = repository::select(&listing.names, name.requested.as_deref())
        .with_context(|| name.to_string())?;
    let files = HubFiles {
        client,
        repo: name.repo.clone(),
        commit: listing.commit,
        names: listing.names,
    };
    note(format_args!(
        "{name} is not cached: downloading only its config and tensor headers"
    ));
    let model = match chosen {
        Selection::Folder { index, .. } => {
            if let Some(index) = index {
                // Validates the shard names, as before a download.
                let size = files.bytes_of(index)?;
                if size > INDEX_BYTES_MAX {
                    bail!("{name}: {index} has more than {INDEX_BYTES_MAX} bytes");
                }
                repository::shards(&files.piece(index, 0..size)?, &files.names)?;
            }
            platform::block_on(Model::open_remote(Box::new(files)))?
        }
        Selection::Gguf { files: parts, .. } => Model::from_gguf(platform::block_on(
            Gguf::open_remote(Box::new(files), &parts[0]),
        )?)?,
    };
    Ok(Described::Far(Box::new(model)))
}

/// A repository's files, read by range requests.
struct HubFiles {
    client: Client,
    repo: String,
    commit: String,
    names: Vec<String>,
}

impl HubFiles {
    fn bytes_of(&self, file: &str) -> Result<u64, FetchError> {
        Ok(self.client.remote(&self.repo, &self.commit, file)?.size)
    }

    fn piece(&self, file: &str, bytes: Range<u64>) -> Result<Vec<u8>, FetchError> {
        self.client.piece(&self.repo, &self.commit, file, bytes)
    }

    fn load_error(&self, file: &str, error: &FetchError) -> LoadError {
        LoadError::Read {
            file: format!("{}/{file}", self.repo),
            message: error.to_string(),
        }
    }
}

impl RangeFiles for HubFiles {
    fn size<'a>(&'a self, file: &'a str) -> SizeRead<'a> {
        let is_there = self.names.iter().any(|name| name == file);
        let size = is_there.then(|| self.bytes_of(file)).transpose();
        Box::pin(std::future::ready(
            size.map_err(|error| self.load_error(file, &error)),
        ))
    }

    fn read<'a>(&'a self, file: &'a str, bytes: Range<u64>) -> TensorRead<'a> {
        let read = self.piece(file, bytes).map(Bytes::from);
        Box::pin(std::future::ready(
            read.map_err(|error| self.load_error(file, &error)),
        ))
    }
}
