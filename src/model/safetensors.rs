//! Reads safetensors: one file, or several with an index. Produces named tensors; knows nothing of devices or configs.
//!
//! Headers are untrusted until checked: [`read_header`] bounds their size, and the crate `safetensors` verifies that
//! tensors are contiguous. [`Layout`] holds what the headers say, whether the files are here ([`Safetensors`]) or
//! remote ([`super::remote`]).

use super::config_reader::{self, ConfigReader};
use super::error::LoadError;
use super::source::{Element, TensorInfo, TensorRead, TensorSource};
use super::stand_in::{START_BYTES, stand_in};
use crate::plan::WeightFormat;
use crate::platform::{self, FileAccess, ModelFile};
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
/// Maximum header size that is read; the largest published headers have a few hundred kilobytes.
const HEADER_BYTES_MAX: u64 = 100_000_000;
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
    file: ModelFile,
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
    pub(super) fn add(
        &mut self,
        file: usize,
        label: &Arc<str>,
        header_bytes: u64,
        metadata: &Metadata,
    ) {
        let data = LENGTH_BYTES + header_bytes;
        for (name, info) in metadata.tensors() {
            let shape = info.shape.iter().map(|&size| size as u64).collect();
            let tensor = TensorInfo {
                file: label.clone(),
                shape,
                element: element(info.dtype),
            };
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
            // A tensor that no file has is missed where a layer needs it.
            if self
                .tensors
                .get(tensor)
                .is_some_and(|info| *info.file != *file)
            {
                return Err(LoadError::TensorMissing {
                    file,
                    tensor: tensor.clone(),
                });
            }
        }
        self.tensors
            .retain(|tensor, _| shard_of.contains_key(tensor));
        Ok(())
    }
}

impl Place {
    /// The range of the file for a range of the tensor.
    pub(super) fn range(&self, bytes: &Range<u64>) -> Range<u64> {
        let range = self.bytes.start + bytes.start..self.bytes.start + bytes.end;
        assert!(
            range.end <= self.bytes.end,
            "a tensor is read within its bounds"
        );
        range
    }
}

impl Safetensors {
    /// Opens the checkpoint in `folder`: `model.safetensors`, or the files that the index names.
    pub fn open(folder: &Path, access: FileAccess) -> Result<Self, LoadError> {
        let open = |path: &Path| {
            let label = path.display().to_string();
            let file = ModelFile::open(path, access)
                .map_err(|error| LoadError::unreadable(&label, &error))?;
            Ok((label, file))
        };
        let single = folder.join(SINGLE);
        let index = folder.join(INDEX);
        if !single.exists() && !index.exists() {
            return Err(no_weights(folder));
        }
        if single.exists() {
            return Self::from_files(&single.display().to_string(), vec![open(&single)?]);
        }
        let label = index.display().to_string();
        let json = platform::read_file(&index, INDEX_BYTES_MAX)
            .map_err(|error| LoadError::unreadable(&label, &error))?;
        let shard_of = read_index(&label, &json)?;
        let mut files = Vec::new();
        for name in shard_of.values().collect::<BTreeSet<_>>() {
            files.push(open(&folder.join(name))?);
        }
        let mut source = Self::from_files(&label, files)?;
        source
            .layout
            .keep_indexed(&shard_of, |shard| folder.join(shard).display().to_string())?;
        Ok(source)
    }

    /// A checkpoint from files in memory, with their names.
    pub fn from_files(name: &str, files: Vec<(String, ModelFile)>) -> Result<Self, LoadError> {
        let mut source = Self {
            name: name.into(),
            shards: Vec::new(),
            layout: Layout::default(),
        };
        for (label, file) in files {
            source.add(&label, file)?;
        }
        Ok(source)
    }

    fn add(&mut self, label: &str, file: ModelFile) -> Result<(), LoadError> {
        let read = |range| {
            file.read(range)
                .map_err(|error| LoadError::unreadable(label, &error))
        };
        let header_bytes = header_bytes(
            label,
            &read(0..START_BYTES.min(file.bytes()))?,
            file.bytes(),
        )?;
        let json = read(LENGTH_BYTES..LENGTH_BYTES + header_bytes)?;
        let metadata = read_header(label, &json, file.bytes())?;
        let label: Arc<str> = label.into();
        self.layout
            .add(self.shards.len(), &label, header_bytes, &metadata);
        self.shards.push(Shard { label, file });
        Ok(())
    }
}

/// The error for a folder without safetensors, which says what is there instead.
fn no_weights(folder: &Path) -> LoadError {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    let first = |has: &dyn Fn(&str) -> bool| names.iter().find(|name| has(name));
    let message = if let Some(name) =
        first(&|name| name.starts_with("pytorch_model") && name.ends_with(".bin"))
    {
        format!("there is {name}, a format that is not supported: convert it to safetensors")
    } else if let Some(name) = first(&|name| name.starts_with("adapter_model.")) {
        format!("there is {name}, an adapter without its model: merge the two")
    } else if let Some(name) = first(&|name| name.starts_with("consolidated.")) {
        format!(
            "there is {name}, in Mistral's or Meta's own format: take the files in the format of transformers"
        )
    } else if let Some(name) = first(&|name| name.ends_with(".safetensors")) {
        format!("there is {name}, but no {INDEX}")
    } else {
        "there is no such file".to_owned()
    };
    LoadError::Read {
        file: folder.join(SINGLE).display().to_string(),
        message,
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
            shard
                .file
                .read(place.range(&bytes))
                .map_err(|error| LoadError::unreadable(&shard.label, &error))
        })
    }

    fn check(&self) -> Result<(), LoadError> {
        self.shards.iter().try_for_each(Shard::check)
    }
}

impl Shard {
    fn check(&self) -> Result<(), LoadError> {
        match self.file.is_unchanged() {
            Ok(true) => Ok(()),
            Ok(false) => Err(LoadError::Changed {
                file: self.label.to_string(),
            }),
            Err(error) => Err(LoadError::unreadable(&self.label, &error)),
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
            let plain = matches!(
                (components.next(), components.next()),
                (Some(Component::Normal(_)), None)
            );
            if !plain || file.contains(['/', '\\', ':']) {
                return Err(map.invalid(
                    tensor,
                    format!("names {file:?}, which is not a file of the model's folder"),
                ));
            }
            Ok((tensor.clone(), file.to_owned()))
        })
        .collect()
}

/// Length of a header, from the first bytes of a file of `file_bytes` bytes.
pub(super) fn header_bytes(label: &str, start: &[u8], file_bytes: u64) -> Result<u64, LoadError> {
    let fault = |message: &str| LoadError::Header {
        file: label.into(),
        message: message.into(),
    };
    if let Some(message) = stand_in(start) {
        return Err(fault(message));
    }
    let length = start
        .first_chunk()
        .map(|bytes| u64::from_le_bytes(*bytes))
        .ok_or_else(|| fault("header too small"))?;
    if length > HEADER_BYTES_MAX {
        return Err(fault("header too large"));
    }
    if LENGTH_BYTES + length > file_bytes {
        return Err(fault("invalid header length"));
    }
    Ok(length)
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
pub(super) fn read_header(
    label: &str,
    json: &[u8],
    file_bytes: u64,
) -> Result<Metadata, LoadError> {
    let fault = |message: String| LoadError::Header {
        file: label.into(),
        message,
    };
    let parsed = serde_json::from_slice(json);
    let metadata: Metadata = parsed.map_err(|error| fault(format!("invalid header: {error}")))?;
    let data_bytes = file_bytes.saturating_sub(LENGTH_BYTES + json.len() as u64);
    if let Some((tensor, missing)) = first_lost(&metadata, data_bytes) {
        return Err(LoadError::TensorShort {
            file: label.into(),
            tensor,
            missing,
        });
    }
    if metadata.data_len() as u64 != data_bytes {
        return Err(fault(SafeTensorError::MetadataIncompleteBuffer.to_string()));
    }
    Ok(metadata)
}
