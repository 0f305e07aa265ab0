//! Checkpoints that are read in byte ranges, over HTTP or from a browser's cache. Whole weight files are never held in
//! memory.

use super::error::LoadError;
use super::safetensors::{self, Layout};
use super::source::{TensorInfo, TensorRead, TensorSource};
use super::stand_in::{START_BYTES, stand_in};
use crate::platform::{FileAccess, ModelFile};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::future::ready;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

/// A pending request for the length of a file.
pub type SizeRead<'a> = Pin<Box<dyn Future<Output = Result<Option<u64>, LoadError>> + 'a>>;

/// Access to the files of a model's folder, wherever they are.
pub trait RangeFiles: Send {
    /// Length of a file in bytes; `None` if there is no such file.
    fn size<'a>(&'a self, file: &'a str) -> SizeRead<'a>;

    /// Reads exactly these bytes of a file that exists.
    fn read<'a>(&'a self, file: &'a str, bytes: Range<u64>) -> TensorRead<'a>;

    /// Fails if a file may have changed since it was opened. Files elsewhere are checked by whoever fetches them.
    fn check(&self) -> Result<(), LoadError> {
        Ok(())
    }
}

/// Files of this machine, each under the name that errors show. Their reads complete at once.
pub(super) struct LocalFiles(pub(super) Vec<(String, ModelFile)>);

impl LocalFiles {
    fn find(&self, name: &str) -> Option<&ModelFile> {
        self.0
            .iter()
            .find_map(|(label, file)| (label == name).then_some(file))
    }
}

impl RangeFiles for LocalFiles {
    fn size<'a>(&'a self, file: &'a str) -> SizeRead<'a> {
        Box::pin(ready(Ok(self.find(file).map(ModelFile::bytes))))
    }

    fn read<'a>(&'a self, file: &'a str, bytes: Range<u64>) -> TensorRead<'a> {
        let read = self.find(file).ok_or_else(|| missing(file));
        Box::pin(ready(read.and_then(|found| {
            found
                .read(bytes)
                .map_err(|error| LoadError::unreadable(file, &error))
        })))
    }

    fn check(&self) -> Result<(), LoadError> {
        self.0
            .iter()
            .try_for_each(|(label, file)| match file.is_unchanged() {
                Ok(true) => Ok(()),
                Ok(false) => Err(LoadError::Changed {
                    file: label.clone(),
                }),
                Err(error) => Err(LoadError::unreadable(label, &error)),
            })
    }
}

/// The files of a folder of this machine. Their reads complete at once.
pub(super) struct FolderFiles<'a>(pub(super) &'a Path);

impl FolderFiles<'_> {
    /// Opens a file; `None` if there is none.
    fn open(&self, name: &str) -> Result<Option<ModelFile>, LoadError> {
        let path = self.0.join(name);
        match ModelFile::open(&path, FileAccess::Read) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(LoadError::unreadable(&path.display().to_string(), &error)),
        }
    }
}

impl RangeFiles for FolderFiles<'_> {
    fn size<'a>(&'a self, file: &'a str) -> SizeRead<'a> {
        let found = self.open(file);
        Box::pin(ready(found.map(|found| found.map(|file| file.bytes()))))
    }

    fn read<'a>(&'a self, file: &'a str, bytes: Range<u64>) -> TensorRead<'a> {
        let read = || {
            let found = self.open(file)?.ok_or_else(|| missing(file))?;
            if bytes.end > found.bytes() {
                return Err(LoadError::Changed { file: file.into() });
            }
            let read = found.read(bytes);
            read.map_err(|error| LoadError::unreadable(file, &error))
        };
        Box::pin(ready(read()))
    }
}

/// Reads a whole small file; `None` if there is no such file. Files larger than `bytes_max` are rejected.
pub async fn read_whole(
    files: &(impl RangeFiles + ?Sized),
    file: &str,
    bytes_max: u64,
) -> Result<Option<Bytes>, LoadError> {
    match files.size(file).await? {
        None => Ok(None),
        Some(bytes) if bytes > bytes_max => {
            Err(refusal(file, format!("more than {bytes_max} bytes")))
        }
        Some(bytes) => {
            let content = files.read(file, 0..bytes).await?;
            match stand_in(&content) {
                Some(message) => Err(refusal(file, message.into())),
                None => Ok(Some(content)),
            }
        }
    }
}

/// The tensors of a checkpoint that is read in byte ranges.
pub(super) struct RemoteTensors {
    name: &'static str,
    files: Box<dyn RangeFiles>,
    labels: Vec<Arc<str>>,
    layout: Layout,
}

impl RemoteTensors {
    /// Reads the headers of all files.
    pub(super) async fn open(files: Box<dyn RangeFiles>) -> Result<Self, LoadError> {
        let single = files.size(safetensors::SINGLE).await?;
        let mut source = Self {
            name: safetensors::SINGLE,
            files,
            labels: Vec::new(),
            layout: Layout::default(),
        };
        if let Some(bytes) = single {
            source.add(safetensors::SINGLE, bytes).await?;
            return Ok(source);
        }
        let index = read_whole(
            source.files.as_ref(),
            safetensors::INDEX,
            safetensors::INDEX_BYTES_MAX,
        )
        .await?;
        let shard_of = safetensors::read_index(
            safetensors::INDEX,
            &index.ok_or_else(|| missing(safetensors::SINGLE))?,
        )?;
        source.name = safetensors::INDEX;
        for file in shard_of.values().collect::<BTreeSet<_>>() {
            let bytes = source
                .files
                .size(file)
                .await?
                .ok_or_else(|| missing(file))?;
            source.add(file, bytes).await?;
        }
        source.layout.keep_indexed(&shard_of, str::to_owned)?;
        Ok(source)
    }

    /// Reads the header of one file and adds its tensors.
    async fn add(&mut self, file: &str, file_bytes: u64) -> Result<(), LoadError> {
        let start = self
            .files
            .read(file, 0..START_BYTES.min(file_bytes))
            .await?;
        let length = safetensors::header_bytes(file, &start, file_bytes)?;
        let json = self
            .files
            .read(
                file,
                safetensors::LENGTH_BYTES..safetensors::LENGTH_BYTES + length,
            )
            .await?;
        let metadata = safetensors::read_header(file, &json, file_bytes)?;
        let label: Arc<str> = file.into();
        self.layout
            .add(self.labels.len(), &label, length, &metadata);
        self.labels.push(label);
        Ok(())
    }
}

impl TensorSource for RemoteTensors {
    fn name(&self) -> &str {
        self.name
    }

    fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.layout.tensors
    }

    fn read<'a>(&'a self, tensor: &'a str, bytes: Range<u64>) -> TensorRead<'a> {
        let place = &self.layout.places[tensor];
        self.files
            .read(&self.labels[place.file], place.range(&bytes))
    }
}

pub(super) fn missing(file: &str) -> LoadError {
    refusal(file, "there is no such file".into())
}

fn refusal(file: &str, message: String) -> LoadError {
    LoadError::Read {
        file: file.into(),
        message,
    }
}
