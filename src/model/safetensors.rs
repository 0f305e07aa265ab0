//! Reads safetensors: one file, or several with an index. Bytes in, named tensors out; no device, no config.
//!
//! Headers are hostile until checked. The crate `safetensors` bounds their size and proves that tensors lie side by
//! side and fill the file; here their data is only sliced, never copied.

use super::fields::{self, Fields};
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

/// The single file of a small checkpoint.
const SINGLE: &str = "model.safetensors";
/// The list of a large checkpoint's files.
const INDEX: &str = "model.safetensors.index.json";
/// The index of the largest published checkpoints has about 10 MB.
const INDEX_BYTES_MAX: u64 = 100 << 20;

/// The tensors of a checkpoint.
#[derive(Debug)]
pub struct Safetensors {
    name: String,
    shards: Vec<Shard>,
    tensors: BTreeMap<String, TensorInfo>,
    places: BTreeMap<String, Place>,
}

#[derive(Debug)]
struct Shard {
    label: Arc<str>,
    file: MappedFile,
}

#[derive(Debug)]
struct Place {
    shard: usize,
    bytes: Range<usize>,
}

impl Safetensors {
    /// Maps the checkpoint in `folder`: `model.safetensors`, or the files that its index names.
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
        source.keep_indexed(folder, &shard_of)?;
        Ok(source)
    }

    /// A checkpoint whose files are in memory, by their names.
    pub fn from_files(name: &str, files: Vec<(String, MappedFile)>) -> Result<Self, LoadError> {
        let mut source =
            Self { name: name.into(), shards: Vec::new(), tensors: BTreeMap::new(), places: BTreeMap::new() };
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
        let data = 8 + header;
        for (name, info) in metadata.tensors() {
            let shape = info.shape.iter().map(|&size| size as u64).collect();
            let tensor = TensorInfo { file: label.clone(), shape, element: element(info.dtype) };
            let place = data + info.data_offsets.0..data + info.data_offsets.1;
            self.places.insert(name.clone(), Place { shard: self.shards.len(), bytes: place });
            self.tensors.insert(name, tensor);
        }
        self.shards.push(Shard { label, file });
        Ok(())
    }

    /// Keeps what the index lists, each tensor from the file that it names.
    fn keep_indexed(&mut self, folder: &Path, shard_of: &BTreeMap<String, String>) -> Result<(), LoadError> {
        for (tensor, shard) in shard_of {
            let file = folder.join(shard).display().to_string();
            if self.tensors.get(tensor).is_none_or(|info| *info.file != *file) {
                return Err(LoadError::TensorMissing { file, tensor: tensor.clone() });
            }
        }
        self.tensors.retain(|tensor, _| shard_of.contains_key(tensor));
        Ok(())
    }
}

impl TensorSource for Safetensors {
    fn name(&self) -> &str {
        &self.name
    }

    fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    fn read<'a>(&'a self, tensor: &'a str, bytes: Range<u64>) -> TensorRead<'a> {
        let place = &self.places[tensor];
        let shard = &self.shards[place.shard];
        Box::pin(async move {
            shard.check()?;
            let range = place.bytes.start + bytes.start as usize..place.bytes.start + bytes.end as usize;
            assert!(range.end <= place.bytes.end, "{tensor} is read within its bounds");
            Ok(shard.file.bytes().slice(range))
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

/// The file of each tensor. A name that leads out of the folder is refused.
fn read_index(label: &str, json: &[u8]) -> Result<BTreeMap<String, String>, LoadError> {
    let value = fields::parse(label, json)?;
    let index = Fields::root(label, &value)?;
    let map = index.required("weight_map", index.object("weight_map")?)?;
    map.entries()
        .map(|(tensor, _)| {
            let file = map.required(tensor, map.text(tensor)?)?;
            let mut components = Path::new(file).components();
            let plain = matches!((components.next(), components.next()), (Some(Component::Normal(_)), None));
            if !plain || file.contains(['/', '\\', ':']) {
                return Err(map.fault(tensor, format!("names {file:?}, which is not a file of the model's folder")));
            }
            Ok((tensor.clone(), file.to_owned()))
        })
        .collect()
}

/// The crate's error in one line; for a file cut short, with the first tensor that is not whole.
fn header_error(label: &str, bytes: &[u8], error: &SafeTensorError) -> LoadError {
    let file = label.to_owned();
    let lost = match error {
        SafeTensorError::MetadataIncompleteBuffer => first_lost(bytes),
        _ => None,
    };
    lost.map_or_else(
        || LoadError::Header { file: file.clone(), message: error.to_string() },
        |(tensor, missing)| LoadError::TensorShort { file: file.clone(), tensor, missing },
    )
}

fn first_lost(bytes: &[u8]) -> Option<(String, u64)> {
    let header = usize::try_from(u64::from_le_bytes(*bytes.first_chunk()?)).ok()?;
    let end = header.checked_add(8)?;
    let metadata: Metadata = serde_json::from_slice(bytes.get(8..end)?).ok()?;
    let data = bytes.len() - end;
    metadata.offset_keys().into_iter().find_map(|name| {
        let (_, end) = metadata.info(&name)?.data_offsets;
        (end > data).then(|| (name, (end - data) as u64))
    })
}
