//! GGUF: one or several files that hold tensors, config, tokenizer and chat template.
//!
//! [`Gguf`] gives tensors the names of Hugging Face checkpoints, and translates metadata to their `config.json` and
//! `tokenizer.json`, so that the rest of folio treats both alike. Tensors are repacked losslessly into device formats
//! as they are read ([`blocks`]).

mod adapter;
mod blocks;
mod config;
mod encode;
mod families;
mod grids;
mod metadata;
mod own_names;
mod reader;
mod requantize;
mod vocabulary;

use super::error::LoadError;
use super::remote::LocalFiles;
use super::remote::RangeFiles;
use super::source::{Element, TensorInfo, TensorRead, TensorSource};
use super::spec::ModelSpec;
use super::stored::Stored;
use crate::platform::{self, FileAccess, ModelFile};
pub(super) use adapter::GgufAdapter;
use blocks::BlockType;
use bytes::Bytes;
use families::Family;
use futures_util::FutureExt as _;
use metadata::Metadata;
use own_names::OwnNames;
use reader::Entry;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

pub use requantize::{Mixture, Requantization};
pub use vocabulary::Vocabulary;

/// Maximum files of a split model.
const SPLITS_MAX: u32 = 999;
/// Maximum tensors of a model, counting each expert's separately.
const TENSORS_MAX: u64 = 1 << 18;
/// Maximum bytes of a vector that is read while a file is opened.
const NUMBERS_BYTES_MAX: u64 = 16 << 10;
/// Rows per task of parallel repacking.
const PIECE_ROWS: usize = 16;

/// A model in GGUF.
#[derive(Debug)]
pub struct Gguf {
    texts: Texts,
    /// The metadata, translated to the `config.json` of a checkpoint.
    config_json: Vec<u8>,
    tensors: GgufTensors,
    family: &'static Family,
    /// Divisors of the rotary frequencies, if the file has any.
    rope_divisors: Vec<f32>,
}

/// Tokenizer and chat template of a GGUF file. They are translated when they are
/// asked for: a vocabulary is large, and not every command needs it.
#[derive(Clone, Debug)]
pub struct Texts(Arc<Metadata>);

impl Texts {
    /// Reads the header of a GGUF file, which needs no tensors and may have any architecture.
    pub fn from_gguf(label: &str, file: ModelFile) -> Result<Self, LoadError> {
        let files = LocalFiles(vec![(label.to_owned(), file)]);
        Ok(Self(Arc::new(at_once(Metadata::read(&files, label))?)))
    }

    /// The tokenizer, if there is a vocabulary.
    pub fn vocabulary(&self) -> Result<Option<Vocabulary<'_>>, LoadError> {
        vocabulary::vocabulary(&self.0)
    }

    /// The model's licence, if the file names one.
    pub fn licence(&self) -> Option<&str> {
        self.0.text("general.license").ok().flatten()
    }

    /// `tokenizer_config.json`: special tokens and the chat template.
    pub fn tokenizer_config_json(&self) -> Result<Vec<u8>, LoadError> {
        Ok(vocabulary::tokenizer_config_json(&self.0)?
            .to_string()
            .into_bytes())
    }
}

struct GgufTensors {
    /// Reads the files; `names` are their names, with their lengths in bytes.
    files: Box<dyn RangeFiles>,
    names: Vec<(Arc<str>, u64)>,
    infos: BTreeMap<String, TensorInfo>,
    places: BTreeMap<String, Place>,
    /// Tensors of a checkpoint that are metadata here, in f32.
    numbers: BTreeMap<String, Bytes>,
    own_names: OwnNames,
}

/// Where a tensor's blocks are, and how to read its rows.
#[derive(Debug)]
struct Place {
    file: usize,
    bytes: Range<u64>,
    blocks: BlockType,
    columns: usize,
    /// Rows per head, if the file stores them in the order of interleaved rotation.
    interleaved_head: Option<usize>,
    /// File and offset of an f32 that multiplies all weights, if there is one.
    factor: Option<(usize, u64)>,
}

impl Gguf {
    /// Opens a file and, if it is the first of a split model, the other files beside it.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        Self::open_with(path, FileAccess::default())
    }

    /// [`Gguf::open`], with the way in which tensors are read.
    pub fn open_with(path: &Path, access: FileAccess) -> Result<Self, LoadError> {
        let (files, parts) = open_parts(path, access)?;
        at_once(Self::from_parts(Box::new(files), parts))
    }

    /// Opens the file `name` of `files` and, if it is the first of a split model, the other files beside it. Reads only
    /// metadata and tensor lists.
    pub async fn open_remote(files: Box<dyn RangeFiles>, name: &str) -> Result<Self, LoadError> {
        let first = Metadata::read(files.as_ref(), name).await?;
        let siblings = siblings(&first, name)?;
        let mut parts = vec![first];
        for sibling in siblings {
            parts.push(Metadata::read(files.as_ref(), &sibling).await?);
        }
        Self::from_parts(files, parts).await
    }

    /// A model from its files, with their names; the first file comes first. Reads only metadata and tensor lists.
    pub fn from_files(files: Vec<(String, ModelFile)>) -> Result<Self, LoadError> {
        let files = LocalFiles(files);
        let parts = files
            .0
            .iter()
            .map(|(label, _)| at_once(Metadata::read(&files, label)))
            .collect::<Result<_, _>>()?;
        at_once(Self::from_parts(Box::new(files), parts))
    }

    /// A model from its files and their headers.
    async fn from_parts(
        files: Box<dyn RangeFiles>,
        parts: Vec<Metadata>,
    ) -> Result<Self, LoadError> {
        check_parts(&parts)?;
        let Some(first) = parts.first() else {
            return Err(LoadError::Header {
                file: "GGUF".into(),
                message: "there is no file".into(),
            });
        };
        let family = families::family(first)?;
        config::check_supported(first, family)?;
        let mut tensors = GgufTensors {
            files,
            names: parts
                .iter()
                .map(|part| (part.file().into(), part.file_bytes()))
                .collect(),
            infos: BTreeMap::new(),
            places: BTreeMap::new(),
            numbers: BTreeMap::new(),
            own_names: OwnNames::default(),
        };
        for index in 0..parts.len() {
            tensors.add(index, &parts, family)?;
        }
        tensors.add_xielu(first)?;
        let rope_divisors = tensors.vector("rope_freqs.weight").await?;
        let short = tensors.vector("rope_factors_short.weight").await?;
        let factors = [short, tensors.vector("rope_factors_long.weight").await?];
        let config_json = config::config_json(first, family, &tensors.infos, &factors)?
            .to_string()
            .into_bytes();
        let first = parts.into_iter().next().expect("there is a first file");
        let gguf = Self {
            texts: Texts(Arc::new(first)),
            config_json,
            tensors,
            family,
            rope_divisors,
        };
        for key in gguf.unread_keys() {
            tracing::warn!("{}: {key} is not read", gguf.texts.0.file());
        }
        Ok(gguf)
    }

    /// Keys of the metadata that are about this model, but that nothing reads: the file may ask for what the family
    /// does not do.
    pub fn unread_keys(&self) -> Vec<String> {
        let prefix = self.family.key("");
        let metadata = &self.texts.0;
        let mut keys = metadata.unread(&prefix);
        // Families that do not read how experts are scored have sigmoids.
        let has_sigmoids =
            |key: &String| matches!(metadata.integer(key, 0..=u32::MAX), Ok(Some(SIGMOID)));
        keys.retain(|key| match &key[prefix.len()..] {
            "expert_gating_func" => !has_sigmoids(key),
            known => !INFORMATIVE.contains(&known),
        });
        keys
    }

    /// Tokenizer and chat template.
    pub fn texts(&self) -> Texts {
        self.texts.clone()
    }

    /// The description of the model. The tensors themselves say which products of attention have biases.
    pub(super) fn spec(&self) -> Result<ModelSpec, LoadError> {
        let has = |end: &str| self.tensors.infos.keys().any(|name| name.ends_with(end));
        let qkv_bias = has(".self_attn.q_proj.bias") || has(".self_attn.qkv_proj.bias");
        let output_bias = has(".self_attn.o_proj.bias") || has(".self_attn.dense.bias");
        let stored = Stored {
            attention_biases: Some([qkv_bias, output_bias]),
            rope_divisors: &self.rope_divisors,
            ..self.family.stored
        };
        ModelSpec::from_complete_json(self.tensors.name(), &self.config_json, &stored)
    }

    /// What the file says of sampling, in the words of a generation_config.json; and the file's name.
    pub(super) fn generation_json(&self) -> (String, Vec<u8>) {
        let metadata = &self.texts.0;
        let mut config = serde_json::Map::new();
        for (key, name) in SAMPLING {
            let key = format!("general.sampling.{key}");
            match metadata.number(&key) {
                Ok(Some(number)) if number.fract() == 0.0 => {
                    config.insert(name.to_owned(), (number as i64).into());
                }
                Ok(Some(number)) => {
                    config.insert(name.to_owned(), number.into());
                }
                Ok(None) => {}
                Err(error) => tracing::warn!("{error}; it is ignored"),
            }
        }
        (
            metadata.file().to_owned(),
            serde_json::Value::from(config).to_string().into_bytes(),
        )
    }

    /// The tensors, and what the file calls them.
    pub(super) fn into_parts(mut self) -> (Box<dyn TensorSource>, OwnNames) {
        let own_names = std::mem::take(&mut self.tensors.own_names);
        (Box::new(self.tensors), own_names)
    }
}

/// `expert_gating_func` of scores that are sigmoids.
const SIGMOID: u32 = 2;

/// Keys, without the architecture's prefix, that only repeat what tensors, other keys or the architecture say.
const INFORMATIVE: [&str; 10] = [
    "attention.layer_norm_epsilon",
    "attention.sliding_window_pattern",
    "attention.value_length_swa",
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
    "full_attention_interval",
    "rope.dimension_count_swa",
    "rope.dimension_sections",
    "tensor_data_layout",
    "vocab_size",
];

/// Sampling defaults in GGUF, without their prefix, and in a generation_config.json.
const SAMPLING: [(&str, &str); 5] = [
    ("temp", "temperature"),
    ("top_k", "top_k"),
    ("top_p", "top_p"),
    ("min_p", "min_p"),
    ("penalty_repeat", "repetition_penalty"),
];

/// Checks that the parts of a split model are all there, and in order.
fn check_parts(parts: &[Metadata]) -> Result<(), LoadError> {
    let count = parts.len();
    if count == 1 {
        return Ok(());
    }
    for (index, part) in parts.iter().enumerate() {
        if part.splits()? != Some((index as u32, count as u32)) {
            return Err(part.invalid("split.no", format!("is not {index} of {count}")));
        }
    }
    Ok(())
}

/// Names of the files beside the first file, `name`, of a split model, in order. The first may have any name if it is
/// the only one.
fn siblings(first: &Metadata, name: &str) -> Result<Vec<String>, LoadError> {
    let Some((number, count)) = first.splits()?.filter(|(_, count)| *count > 1) else {
        return Ok(Vec::new());
    };
    let tail = format!("-{:05}-of-{count:05}.gguf", number + 1);
    let fault = |message: String| LoadError::Header {
        file: first.file().into(),
        message,
    };
    let stem = name.strip_suffix(&tail).ok_or_else(|| {
        fault(format!(
            "is file {} of {count}, so its name should end with {tail}",
            number + 1
        ))
    })?;
    if number != 0 || count > SPLITS_MAX {
        return Err(fault(format!(
            "is file {} of {count}; give the first",
            number + 1
        )));
    }
    Ok((2..=count)
        .map(|number| format!("{stem}-{number:05}-of-{count:05}.gguf"))
        .collect())
}

/// Opens a file and, if it is the first of a split model, the other files beside it, and reads their headers.
fn open_parts(path: &Path, access: FileAccess) -> Result<(LocalFiles, Vec<Metadata>), LoadError> {
    let open = |path: &Path| {
        let label = path.display().to_string();
        let file =
            ModelFile::open(path, access).map_err(|error| LoadError::unreadable(&label, &error))?;
        Ok((label, file))
    };
    let mut files = LocalFiles(vec![open(path)?]);
    let mut parts = vec![at_once(Metadata::read(&files, &files.0[0].0))?];
    let name = path.file_name().and_then(|name| name.to_str());
    for sibling in siblings(&parts[0], name.unwrap_or_default())? {
        files.0.push(open(&path.with_file_name(sibling))?);
        let label = &files.0[files.0.len() - 1].0;
        parts.push(at_once(Metadata::read(&files, label))?);
    }
    Ok((files, parts))
}

/// The result of reading local files, whose reads complete at once.
fn at_once<T>(read: impl Future<Output = T>) -> T {
    read.now_or_never()
        .expect("nothing is awaited but local files")
}

impl GgufTensors {
    /// Adds the tensors of one of the files, whose headers are `parts`.
    fn add(&mut self, file: usize, parts: &[Metadata], family: &Family) -> Result<(), LoadError> {
        let part = &parts[file];
        for (own_name, entry) in part.tensors() {
            if is_scale(own_name, parts) {
                continue;
            }
            let fault = |message: String| part.invalid(&format!("tensor {own_name:?}"), message);
            let name = family.tensor_name(own_name);
            let interleaved_head = family.interleaved_head(own_name, part, &parts[0])?;
            let columns = columns_of(entry, interleaved_head).map_err(&fault)?;
            // A tensor of all experts is listed as one tensor per expert.
            let (copies, shape) = match entry.shape.split_first() {
                Some((copies, shape)) if name.contains("{e}") && !shape.is_empty() => {
                    (*copies, shape.to_vec())
                }
                _ => (1, family.tensor_shape(&name, &entry.shape)),
            };
            self.check_room(copies).map_err(&fault)?;
            self.own_names
                .add(name.replace("{e}", "0"), own_name.clone());
            let factor = factor_of(own_name, entry, parts, copies)?;
            let copy_bytes = (entry.bytes.end - entry.bytes.start) / copies;
            for copy in 0..copies {
                let name = name.replace("{e}", &copy.to_string());
                let element = Element::Float(entry.blocks.format());
                let info = TensorInfo {
                    file: self.names[file].0.clone(),
                    shape: shape.clone(),
                    element,
                };
                let start = entry.bytes.start + copy * copy_bytes;
                let bytes = start..start + copy_bytes;
                let place = Place {
                    file,
                    bytes,
                    blocks: entry.blocks,
                    columns,
                    interleaved_head,
                    factor: factor.map(|(file, first)| (file, first + 4 * copy)),
                };
                if self.infos.insert(name.clone(), info).is_some() {
                    return Err(fault("is a duplicate".into()));
                }
                self.places.insert(name, place);
            }
        }
        Ok(())
    }

    /// Fails if so many tensors more are too many.
    fn check_room(&self, copies: u64) -> Result<(), String> {
        if self.infos.len() as u64 + copies > TENSORS_MAX {
            return Err(format!(
                "exceeds the limit of {TENSORS_MAX} tensors, counting experts"
            ));
        }
        Ok(())
    }

    /// The four numbers of xIELU of each layer, which a checkpoint has as tensors.
    fn add_xielu(&mut self, first: &Metadata) -> Result<(), LoadError> {
        let layers = self
            .infos
            .keys()
            .filter(|name| name.ends_with(".mlp.down_proj.weight"))
            .count();
        for (name, shape) in [
            ("alpha_p", vec![1]),
            ("alpha_n", vec![1]),
            ("beta", vec![]),
            ("eps", vec![]),
        ] {
            let Some(numbers) = first.numbers_by_layer(&format!("xielu.{name}"), layers)? else {
                continue;
            };
            for (layer, number) in numbers.into_iter().take(layers).enumerate() {
                let tensor = format!("model.layers.{layer}.mlp.act_fn.{name}");
                let (file, element) = (
                    self.names[0].0.clone(),
                    Element::Float(BlockType::F32.format()),
                );
                self.infos.insert(
                    tensor.clone(),
                    TensorInfo {
                        file,
                        shape: shape.clone(),
                        element,
                    },
                );
                self.numbers
                    .insert(tensor, number.to_le_bytes().to_vec().into());
            }
        }
        Ok(())
    }

    /// A short f32 vector; empty if there is no tensor of this name.
    async fn vector(&self, name: &str) -> Result<Vec<f32>, LoadError> {
        let Some(place) = self.places.get(name) else {
            return Ok(Vec::new());
        };
        if place.blocks != BlockType::F32 {
            let (file, field) = (
                self.names[place.file].0.to_string(),
                format!("tensor {name:?}"),
            );
            return Err(LoadError::Field {
                file,
                field,
                message: format!("has type {}, not F32", place.blocks),
            });
        }
        let range = 0..(place.bytes.end - place.bytes.start).min(NUMBERS_BYTES_MAX);
        let bytes = self.read_place(name, place, range).await?;
        let words = bytes.chunks_exact(4);
        Ok(words
            .map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect())
    }

    /// Reads a range of a tensor's blocks.
    async fn read_place(
        &self,
        tensor: &str,
        place: &Place,
        range: Range<u64>,
    ) -> Result<Bytes, LoadError> {
        let (label, file_bytes) = &self.names[place.file];
        if let Some(missing @ 1..) = place.bytes.end.checked_sub(*file_bytes) {
            return Err(LoadError::TensorShort {
                file: label.to_string(),
                tensor: tensor.into(),
                missing,
            });
        }
        let range = place.bytes.start + range.start..place.bytes.start + range.end;
        assert!(
            range.end <= place.bytes.end,
            "a tensor is read within its bounds"
        );
        self.files.read(label, range).await
    }

    /// What multiplies all weights of a tensor.
    async fn factor(&self, tensor: &str, place: &Place) -> Result<f32, LoadError> {
        let Some((file, start)) = place.factor else {
            return Ok(1.0);
        };
        let label = &self.names[file].0;
        let bytes = self.files.read(label, start..start + 4).await?;
        let factor = f32::from_le_bytes(*bytes.first_chunk().expect("four bytes were read"));
        if factor.is_finite() {
            return Ok(factor);
        }
        Err(LoadError::Field {
            file: label.to_string(),
            field: format!("the scale of tensor {tensor:?}"),
            message: format!("is {factor}"),
        })
    }

    /// Reads rows of a tensor, repacked; `bytes` is their range in the device's format.
    async fn rows(
        &self,
        tensor: &str,
        place: &Place,
        bytes: Range<u64>,
    ) -> Result<Bytes, LoadError> {
        let format = place.blocks.format();
        if !format.is_quantised() && place.interleaved_head.is_none() {
            return self.read_place(tensor, place, bytes).await;
        }
        let out_bytes = format.row_bytes(place.columns as u32);
        let row_bytes = place.blocks.row_bytes(place.columns) as u64;
        let is_whole = bytes.start.is_multiple_of(out_bytes) && bytes.end.is_multiple_of(out_bytes);
        assert!(is_whole, "quantized tensors are read by whole rows");
        let rows = bytes.start / out_bytes..bytes.end / out_bytes;
        // The rows of a head are stored in another order, but a head is stored as a whole.
        let head = place.interleaved_head.unwrap_or(1) as u64;
        let stored = rows.start / head * head..rows.end.next_multiple_of(head);
        let source = self
            .read_place(
                tensor,
                place,
                stored.start * row_bytes..stored.end * row_bytes,
            )
            .await?;
        let factor = self.factor(tensor, place).await?;
        let (out_bytes, row_bytes) = (out_bytes as usize, row_bytes as usize);
        let mut out = vec![0; (bytes.end - bytes.start) as usize];
        platform::for_each_chunk(&mut out, PIECE_ROWS * out_bytes, |piece, out| {
            let first = rows.start as usize + piece * PIECE_ROWS;
            for (row, out) in (first..).zip(out.chunks_exact_mut(out_bytes)) {
                let row = place
                    .interleaved_head
                    .map_or(row, |head| interleaved_row(row, head));
                let from = (row - stored.start as usize) * row_bytes;
                place
                    .blocks
                    .repack(&source[from..][..row_bytes], place.columns, factor, out);
            }
        });
        Ok(out.into())
    }
}

/// Elements of a tensor's rows. Those of a bias are permuted as the rows of its matrix: each counts as a row.
fn columns_of(entry: &Entry, interleaved_head: Option<usize>) -> Result<usize, String> {
    if interleaved_head.is_none() || entry.shape.len() > 1 {
        return Ok(entry.shape[entry.shape.len() - 1] as usize);
    }
    if entry.blocks.format().is_quantised() {
        return Err(format!("is a vector of type {}", entry.blocks));
    }
    Ok(1)
}

/// Whether a tensor is the factor of a matrix in NVFP4, or of the activations that it is multiplied with, which are not
/// quantized here.
fn is_scale(own: &str, parts: &[Metadata]) -> bool {
    let stem = own
        .strip_suffix(".input_scale")
        .or_else(|| own.strip_suffix(".scale"));
    let Some(stem) = stem else { return false };
    let matrix = format!("{stem}.weight");
    let mut entries = parts.iter().filter_map(|part| part.tensor(&matrix));
    entries.any(|entry| entry.blocks == BlockType::Nvfp4)
}

/// Where the factors of a tensor's `copies` begin, if it has any: a file and an offset.
fn factor_of(
    own: &str,
    entry: &Entry,
    parts: &[Metadata],
    copies: u64,
) -> Result<Option<(usize, u64)>, LoadError> {
    if entry.blocks != BlockType::Nvfp4 {
        return Ok(None);
    }
    let name = format!("{}.scale", own.strip_suffix(".weight").unwrap_or(own));
    for (file, part) in parts.iter().enumerate() {
        let Some(scale) = part.tensor(&name) else {
            continue;
        };
        let count: u64 = scale.shape.iter().product();
        if scale.blocks != BlockType::F32 || count != copies {
            let message = format!("is not {copies} × F32, one for each matrix of {own:?}");
            return Err(part.invalid(&format!("tensor {name:?}"), message));
        }
        return Ok(Some((file, scale.bytes.start)));
    }
    Ok(None)
}

/// The file's row for row `row` of a matrix whose heads are stored in pairs: `(i, i + head / 2)` adjacent.
pub(super) fn interleaved_row(row: usize, head: usize) -> usize {
    let (start, within) = (row / head * head, row % head);
    start + 2 * (within % (head / 2)) + within / (head / 2)
}

impl TensorSource for GgufTensors {
    fn name(&self) -> &str {
        &self.names[0].0
    }

    fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.infos
    }

    fn read<'a>(&'a self, tensor: &'a str, bytes: Range<u64>) -> TensorRead<'a> {
        Box::pin(async move {
            self.files.check()?;
            if let Some(number) = self.numbers.get(tensor) {
                return Ok(number.slice(bytes.start as usize..bytes.end as usize));
            }
            self.rows(tensor, &self.places[tensor], bytes).await
        })
    }

    fn check(&self) -> Result<(), LoadError> {
        self.files.check()
    }
}

impl fmt::Debug for GgufTensors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} tensors of {:?}",
            self.infos.len(),
            self.names
        )
    }
}

#[cfg(test)]
mod tests;
