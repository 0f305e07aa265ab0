//! Reads safetensors: one file, or several with an index. Produces named tensors; knows nothing of devices or configs.
//!
//! Headers are untrusted until checked. The crate `safetensors` bounds their size and verifies that tensors are
//! contiguous and fill the file; this module only slices their data, without copying. [`Layout`] holds what the headers
//! say, whether the files are mapped ([`Safetensors`]) or remote ([`super::remote`]).

use super::config_reader::{self, ConfigReader};
use super::source::{Element, TensorInfo, TensorRead, TensorSource};
use super::{LoadError, read_error};
use crate::plan::WeightFormat;
use crate::platform::{self, MappedFile};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, Metadata, SafeTensorError};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Component, Path};
use std::sync::Arc;

/// File name of a checkpoint in a single file.
pub(super) const SINGLE: &str = "model.safetensors";
/// The index that lists a large checkpoint's files.
pub(super) const INDEX: &str = "model.safetensors.index.json";
/// Maximum size of an index; the largest published ones have about 10 MB.
pub(super) const INDEX_BYTES_MAX: u64 = 100 << 20;
/// Bytes of the header length at the start of a file.
pub(super) const LENGTH_BYTES: u64 = 8;

/// The tensors of a checkpoint.
#[derive(Debug)]
pub struct Safetensors {
    name: String,
    shards: Vec<Shard>,
    layout: Layout,
}

#[derive(Debug)]
struct Shard {
    label: Arc<str>,
    file: MappedFile,
}

/// All tensors of a checkpoint, and where they are stored.
#[derive(Debug, Default)]
pub(super) struct Layout {
    pub(super) tensors: BTreeMap<String, TensorInfo>,
    pub(super) places: BTreeMap<String, Place>,
}

/// A byte range in one of a checkpoint's files.
#[derive(Debug)]
pub(super) struct Place {
    /// Index of the file, in the order the files were added.
    pub(super) file: usize,
    bytes: Range<u64>,
}

impl Layout {
    /// Adds the tensors of file number `file`; its header is `header_bytes` long.
    pub(super) fn add(&mut self, file: usize, label: &Arc<str>, header_bytes: u64, metadata: &Metadata) {
        let data = LENGTH_BYTES + header_bytes;
        for (name, info) in metadata.tensors() {
            let shape = info.shape.iter().map(|&size| size as u64).collect();
            let tensor = TensorInfo { file: label.clone(), shape, element: element(info.dtype) };
            let bytes = data + info.data_offsets.0 as u64..data + info.data_offsets.1 as u64;
            self.places.insert(name.clone(), Place { file, bytes });
            self.tensors.insert(name, tensor);
        }
    }

    /// Keeps only the tensors in the index, each from the file it names; `label` makes a file's label from its name.
    pub(super) fn keep_indexed(
        &mut self,
        shard_of: &BTreeMap<String, String>,
        label: impl Fn(&str) -> String,
    ) -> Result<(), LoadError> {
        for (tensor, shard) in shard_of {
            let file = label(shard);
            if self.tensors.get(tensor).is_none_or(|info| *info.file != *file) {
                return Err(LoadError::TensorMissing { file, tensor: tensor.clone() });
            }
        }
        self.tensors.retain(|tensor, _| shard_of.contains_key(tensor));
        Ok(())
    }
}

impl Place {
    /// The range of the file for a range of the tensor.
    pub(super) fn range(&self, bytes: &Range<u64>) -> Range<u64> {
        let range = self.bytes.start + bytes.start..self.bytes.start + bytes.end;
        assert!(range.end <= self.bytes.end, "a tensor is read within its bounds");
        range
    }
}

impl Safetensors {
    /// Maps the checkpoint in `folder`: `model.safetensors`, or the files that the index names.
    pub fn open(folder: &Path) -> Result<Self, LoadError> {
        let single = folder.join(SINGLE);
        let index = folder.join(INDEX);
        if single.exists() || !index.exists() {
            let label = single.display().to_string();
            let file = MappedFile::open(&single).map_err(|error| read_error(&label, &error))?;
            return Self::from_files(&label, vec![(label.clone(), file)]);
        }
        let label = index.display().to_string();
        let json = platform::read_file(&index, INDEX_BYTES_MAX).map_err(|error| read_error(&label, &error))?;
        let shard_of = read_index(&label, &json)?;
        let mut files = Vec::new();
        for name in shard_of.values().collect::<BTreeSet<_>>() {
            let path = folder.join(name);
            let label = path.display().to_string();
            let file = MappedFile::open(&path).map_err(|error| read_error(&label, &error))?;
            files.push((label, file));
        }
        let mut source = Self::from_files(&label, files)?;
        source.layout.keep_indexed(&shard_of, |shard| folder.join(shard).display().to_string())?;
        Ok(source)
    }

    /// A checkpoint from files in memory, with their names.
    pub fn from_files(name: &str, files: Vec<(String, MappedFile)>) -> Result<Self, LoadError> {
        let mut source = Self { name: name.into(), shards: Vec::new(), layout: Layout::default() };
        for (label, file) in files {
            source.add(&label, file)?;
        }
        Ok(source)
    }

    fn add(&mut self, label: &str, file: MappedFile) -> Result<(), LoadError> {
        let bytes = file.bytes();
        let (header, metadata) =
            SafeTensors::read_metadata(bytes).map_err(|error| header_error(label, bytes, &error))?;
        let label: Arc<str> = label.into();
        self.layout.add(self.shards.len(), &label, header as u64, &metadata);
        self.shards.push(Shard { label, file });
        Ok(())
    }
}

impl TensorSource for Safetensors {
    fn name(&self) -> &str {
        &self.name
    }

    fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.layout.tensors
    }

    fn read<'a>(&'a self, tensor: &'a str, bytes: Range<u64>) -> TensorRead<'a> {
        let place = &self.layout.places[tensor];
        let shard = &self.shards[place.file];
        Box::pin(async move {
            shard.check()?;
            let range = place.range(&bytes);
            Ok(shard.file.bytes().slice(range.start as usize..range.end as usize))
        })
    }

    fn check(&self) -> Result<(), LoadError> {
        self.shards.iter().try_for_each(Shard::check)
    }
}

impl Shard {
    fn check(&self) -> Result<(), LoadError> {
        match self.file.is_whole() {
            Ok(true) => Ok(()),
            Ok(false) => Err(LoadError::Changed { file: self.label.to_string() }),
            Err(error) => Err(read_error(&self.label, &error)),
        }
    }
}

fn element(dtype: Dtype) -> Element {
    match dtype {
        Dtype::F32 => Element::Float(WeightFormat::F32),
        Dtype::F16 => Element::Float(WeightFormat::F16),
        Dtype::BF16 => Element::Float(WeightFormat::Bf16),
        other => Element::Other(other.to_string()),
    }
}

/// Reads which file each tensor is in. A file name outside the folder is rejected.
pub(super) fn read_index(label: &str, json: &[u8]) -> Result<BTreeMap<String, String>, LoadError> {
    let value = config_reader::parse(label, json)?;
    let index = ConfigReader::root(label, &value)?;
    let map = index.required("weight_map", index.object("weight_map")?)?;
    map.entries()
        .map(|(tensor, _)| {
            let file = map.required(tensor, map.text(tensor)?)?;
            let mut components = Path::new(file).components();
            let plain = matches!((components.next(), components.next()), (Some(Component::Normal(_)), None));
            if !plain || file.contains(['/', '\\', ':']) {
                return Err(map.invalid(tensor, format!("names {file:?}, which is not a file of the model's folder")));
            }
            Ok((tensor.clone(), file.to_owned()))
        })
        .collect()
}

/// The crate's error in one line; for a truncated file, with the first incomplete tensor.
fn header_error(label: &str, bytes: &[u8], error: &SafeTensorError) -> LoadError {
    let file = label.to_owned();
    let lost = match error {
        SafeTensorError::MetadataIncompleteBuffer => short_file(bytes),
        _ => None,
    };
    lost.map_or_else(
        || LoadError::Header { file: file.clone(), message: error.to_string() },
        |(tensor, missing)| LoadError::TensorShort { file: file.clone(), tensor, missing },
    )
}

fn short_file(bytes: &[u8]) -> Option<(String, u64)> {
    let header = usize::try_from(u64::from_le_bytes(*bytes.first_chunk()?)).ok()?;
    let end = header.checked_add(LENGTH_BYTES as usize)?;
    let metadata: Metadata = serde_json::from_slice(bytes.get(LENGTH_BYTES as usize..end)?).ok()?;
    first_lost(&metadata, (bytes.len() - end) as u64)
}

/// The first tensor that `data_bytes` of data do not fully contain, and the number of missing bytes.
fn first_lost(metadata: &Metadata, data_bytes: u64) -> Option<(String, u64)> {
    metadata.offset_keys().into_iter().find_map(|name| {
        let end = metadata.info(&name)?.data_offsets.1 as u64;
        (end > data_bytes).then(|| (name, end - data_bytes))
    })
}

/// Parses a header without the file: `json` is the header without the length before it; `file_bytes` is the length of
/// the whole file.
pub(super) fn read_header(label: &str, json: &[u8], file_bytes: u64) -> Result<Metadata, LoadError> {
    let fault = |message: String| LoadError::Header { file: label.into(), message };
    let parsed = serde_json::from_slice(json);
    let metadata: Metadata = parsed.map_err(|error| fault(format!("invalid JSON in header: {error}")))?;
    let data_bytes = file_bytes.saturating_sub(LENGTH_BYTES + json.len() as u64);
    if let Some((tensor, missing)) = first_lost(&metadata, data_bytes) {
        return Err(LoadError::TensorShort { file: label.into(), tensor, missing });
    }
    if metadata.data_len() as u64 != data_bytes {
        return Err(fault(SafeTensorError::MetadataIncompleteBuffer.to_string()));
    }
    Ok(metadata)
}
