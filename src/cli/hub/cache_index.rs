//! The models in the cache: one entry per snapshot, with its problems.

use super::cache::{Cache, RepoFolder};
use super::{INDEX_BYTES_MAX, shards};
use anyhow::Result;
use folio::model::repository::{self, Selection};
use folio::model::{Element, Safetensors, TensorSource as _};
use folio::platform::FileAccess;
use indicatif::BinaryBytes;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

pub(crate) use super::settings::Settings;

/// A model's files at one commit.
#[derive(Debug, Serialize)]
pub(crate) struct Entry {
    /// `org/repo`.
    pub(crate) repo: String,
    /// Branches and tags that point to this commit.
    pub(crate) revisions: Vec<String>,
    /// The commit; `None` if no file is complete.
    pub(crate) commit: Option<String>,
    /// Bytes of its files; duplicate contents count once.
    pub(crate) bytes: u64,
    /// Formats of the weights, such as `safetensors bf16` or `gguf Q4_K_M`.
    pub(crate) formats: Vec<String>,
    /// Why it cannot be loaded, and leftover partial files.
    pub(crate) problems: Vec<String>,
}

/// All models in the cache, by name.
pub(crate) fn entries(cache: &Cache) -> Result<Vec<Entry>> {
    let mut found = Vec::new();
    for repo in cache.repos()? {
        let folder = cache.repo(&repo);
        match of_repo(&repo, &folder) {
            Ok(entries) => found.extend(entries),
            Err(error) => found.push(Entry::broken(&repo, format!("{error:#}"))),
        }
    }
    Ok(found)
}

impl Entry {
    fn broken(repo: &str, problem: String) -> Self {
        let (revisions, formats) = (Vec::new(), Vec::new());
        Self {
            repo: repo.to_owned(),
            revisions,
            commit: None,
            bytes: 0,
            formats,
            problems: vec![problem],
        }
    }
}

fn of_repo(repo: &str, folder: &RepoFolder) -> Result<Vec<Entry>> {
    let revisions = folder.revisions()?;
    let partial = folder.incompletes()?;
    let partial = (!partial.is_empty()).then(|| {
        let bytes = BinaryBytes(partial.iter().sum());
        format!("incomplete downloads: {} ({bytes} so far)", partial.len())
    });
    let mut entries: Vec<Entry> = folder
        .snapshots()?
        .into_iter()
        .map(|commit| of_commit(repo, folder, commit, &revisions))
        .collect();
    match (partial, entries.last_mut()) {
        (Some(partial), Some(last)) => last.problems.push(partial),
        (Some(partial), None) => entries.push(Entry::broken(repo, partial)),
        (None, None) => entries.push(Entry::broken(repo, "no files".to_owned())),
        (None, Some(_)) => {}
    }
    Ok(entries)
}

fn of_commit(
    repo: &str,
    folder: &RepoFolder,
    commit: String,
    revisions: &[(String, String)],
) -> Entry {
    let mut problems = Vec::new();
    let mut names = folder.names(&commit).unwrap_or_else(|error| {
        problems.push(format!("{error:#}"));
        Vec::new()
    });
    let mut sizes = BTreeMap::new();
    names.retain(|name| match folder.file(&commit, name) {
        Ok(Some(path)) => {
            let bytes = path.metadata().map_or(0, |metadata| metadata.len());
            sizes.insert(path, bytes);
            true
        }
        Ok(None) => {
            problems.push(format!("{name} is missing"));
            false
        }
        Err(error) => {
            problems.push(format!("{error:#}"));
            false
        }
    });
    let formats = formats(folder, &commit, &names, &mut problems);
    let named = revisions.iter().filter(|(_, found)| *found == commit);
    let revisions = named.map(|(name, _)| name.clone()).collect();
    Entry {
        repo: repo.to_owned(),
        revisions,
        commit: Some(commit),
        bytes: sizes.values().sum(),
        formats,
        problems,
    }
}

fn formats(
    folder: &RepoFolder,
    commit: &str,
    names: &[String],
    problems: &mut Vec<String>,
) -> Vec<String> {
    let mut formats = BTreeSet::new();
    let models = repository::ggufs(names);
    for model in &models {
        if !model.is_whole() {
            problems.push(format!("parts of {} are missing", model.stem));
        }
        let quantization = repository::quantization_of(&model.stem);
        formats
            .insert(quantization.map_or_else(|| "gguf".to_owned(), |name| format!("gguf {name}")));
    }
    if !models.is_empty() && !names.iter().any(|name| name.ends_with(".safetensors")) {
        return formats.into_iter().collect();
    }
    let whole = repository::select(names, None)
        .map_err(anyhow::Error::from)
        .and_then(|chosen| match chosen {
            Selection::Folder {
                index: Some(index), ..
            } => shards(folder, commit, index, names).map(|_| ()),
            _ => Ok(()),
        });
    match whole.and_then(|()| stored_as(&folder.snapshot(commit))) {
        Ok(format) => drop(formats.insert(format!("safetensors {format}"))),
        Err(error) => problems.push(format!("{error:#}")),
    }
    formats.into_iter().collect()
}

/// The format of most weights of a folder: a quantization method or an element type.
fn stored_as(snapshot: &Path) -> Result<String> {
    let config = folio::platform::read_file(&snapshot.join("config.json"), INDEX_BYTES_MAX)?;
    let config: serde_json::Value = serde_json::from_slice(&config)?;
    let source = Safetensors::open(snapshot, FileAccess::Read)?;
    if let Some(method) = config["quantization_config"]["quant_method"].as_str() {
        return Ok(method.to_owned());
    }
    let mut elements: BTreeMap<String, u64> = BTreeMap::new();
    for info in source.tensors().values() {
        let name = match &info.element {
            Element::Float(format) => format!("{format:?}").to_lowercase(),
            Element::Other(name) => name.to_lowercase(),
        };
        *elements.entry(name).or_default() += info.shape.iter().product::<u64>();
    }
    let most = elements.into_iter().max_by_key(|(_, count)| *count);
    Ok(most.map_or_else(|| "no tensors".to_owned(), |(name, _)| name))
}
