//! LoRA adapters in GGUF, as llama.cpp's converter writes them: read as the tensors of peft.

use super::families::{self, Family};
use super::metadata::Metadata;
use super::own_names::OwnNames;
use super::reader::Entry;
use super::{GgufTensors, LocalFiles, Place, at_once};
use crate::model::error::LoadError;
use crate::model::source::{Element, TensorInfo, TensorSource};
use crate::platform::{FileAccess, ModelFile};
use std::collections::BTreeMap;
use std::path::Path;

/// Endings of an adapter's tensors, and those of peft's.
const HALVES: [(&str, &str); 2] = [(".lora_a", ".lora_A.weight"), (".lora_b", ".lora_B.weight")];

/// An adapter's file.
pub(in crate::model) struct GgufAdapter {
    /// Named as in peft, without its prefix: `model.layers.0.self_attn.q_proj.lora_A.weight`.
    pub(in crate::model) tensors: Box<dyn TensorSource>,
    /// The product of an adapter is multiplied by this, divided by its rank; 0: by 1.
    pub(in crate::model) alpha: f64,
    /// Rows of q and k are stored in the order of interleaved rotation.
    pub(in crate::model) is_interleaved: bool,
}

impl GgufAdapter {
    /// Opens a file.
    pub(in crate::model) fn open(path: &Path) -> Result<Self, LoadError> {
        let label = path.display().to_string();
        let file = ModelFile::open(path, FileAccess::default())
            .map_err(|error| LoadError::unreadable(&label, &error))?;
        let files = LocalFiles(vec![(label.clone(), file)]);
        let header = at_once(Metadata::read(&files, &label))?;
        let alpha = check(&header)?;
        let family = families::family(&header)?;
        let mut tensors = GgufTensors {
            files: Box::new(files),
            names: vec![(header.file().into(), header.file_bytes())],
            infos: BTreeMap::new(),
            places: BTreeMap::new(),
            numbers: BTreeMap::new(),
            own_names: OwnNames::default(),
        };
        for (own, entry) in header.tensors() {
            let name = name_of(family, own)
                .map_err(|message| header.invalid(&format!("tensor {own:?}"), message))?;
            tensors.add_half(name, entry);
        }
        Ok(Self {
            tensors: Box::new(tensors),
            alpha,
            is_interleaved: family.interleaved,
        })
    }
}

/// Checks that a file is of a LoRA adapter. Returns its α.
fn check(header: &Metadata) -> Result<f64, LoadError> {
    for (key, expected) in [("general.type", "adapter"), ("adapter.type", "lora")] {
        let found = header.required(key, header.text(key)?)?;
        if found != expected {
            return Err(header.invalid(key, format!("is {found:?}, not {expected:?}")));
        }
    }
    let key = "adapter.alora.invocation_tokens";
    if header.get(key).is_some() {
        return Err(header.invalid(key, "starts the adapter at certain tokens only"));
    }
    let key = "adapter.lora.alpha";
    header.required(key, header.number(key)?)
}

/// The name in peft of a tensor.
fn name_of(family: &Family, own: &str) -> Result<String, &'static str> {
    let half = HALVES
        .iter()
        .find_map(|(ending, theirs)| Some((own.strip_suffix(ending)?, theirs)));
    let Some((base, theirs)) = half else {
        return Err("is no part of an adapter: it replaces a weight of the base");
    };
    let name = family.tensor_name(base);
    match name.strip_suffix(".weight") {
        Some(module) if module.contains("{e}") => {
            Err("adapts single experts, which is not supported")
        }
        Some("model.embed_tokens") => Err("adapts the embedding, which is not supported"),
        Some(module) => Ok(format!("{module}{theirs}")),
        None => Err("adapts no matrix"),
    }
}

impl GgufTensors {
    /// Adds A or B of an adapter.
    fn add_half(&mut self, name: String, entry: &Entry) {
        let info = TensorInfo {
            file: self.names[0].0.clone(),
            shape: entry.shape.clone(),
            element: Element::Float(entry.blocks.format()),
        };
        let place = Place {
            file: 0,
            bytes: entry.bytes.clone(),
            blocks: entry.blocks,
            columns: entry.shape.last().map_or(0, |columns| *columns as usize),
            interleaved_head: None,
            factor: None,
        };
        self.infos.insert(name.clone(), info);
        self.places.insert(name, place);
    }
}
