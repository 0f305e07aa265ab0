//! A model: opened from wherever its files are, then recorded and uploaded.

use super::adapters::{AdapterLayout, AdapterRoom};
use super::classes::ClassHead;
use super::error::{LoadError, UploadError};
use super::generation::GenerationDefaults;
use super::gguf::Gguf;
use super::pooled::PooledLayer;
use super::predictor::{Predictor, is_beyond};
use super::prequantized;
use super::quantize::{self, Quantization, Quantized};
use super::remote::{self, FolderFiles, RangeFiles, RemoteTensors, read_whole};
use super::safetensors::Safetensors;
use super::source::{Element, TensorInfo, TensorSource};
use super::spec::ModelSpec;
use super::weights::WeightTable;
use super::{adapters, decoder, demo, dense, random};
use crate::plan::{Plan, Storage, WeightId};
use crate::platform::{self, FileAccess};
use bytes::Bytes;
use futures_util::FutureExt as _;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Maximum size of `config.json` and similar files, which are far smaller.
const CONFIG_BYTES_MAX: u64 = 16 << 20;
/// Bytes of each of the places at which two tensors are compared.
const COMPARED_BYTES: u64 = 4096;

/// A model, ready to be recorded and uploaded.
pub struct Model {
    spec: ModelSpec,
    generation: GenerationDefaults,
    has_head: bool,
    source: Box<dyn TensorSource>,
    /// The tensors as stored, if `source` quantizes them on load.
    stored: Option<BTreeMap<String, TensorInfo>>,
    weights: WeightTable,
    /// The layers that predict further tokens, if they were asked for.
    predictor: Option<Predictor>,
    adapters: Option<AdapterLayout>,
    classes: Option<Arc<ClassHead>>,
    /// What follows the pooled rows of a text.
    dense: Arc<[PooledLayer]>,
}

impl Model {
    /// Opens a folder with `config.json`, `generation_config.json` (optional) and safetensors. Weights are read later.
    pub fn open(folder: &Path) -> Result<Self, LoadError> {
        Self::open_with(folder, FileAccess::default())
    }

    /// [`Model::open`], with the way in which weights are read.
    pub fn open_with(folder: &Path, access: FileAccess) -> Result<Self, LoadError> {
        let label = |name: &str| folder.join(name).display().to_string();
        let read = |name: &str| platform::read_file(&folder.join(name), CONFIG_BYTES_MAX);
        let (config, generation) = (label("config.json"), label("generation_config.json"));
        let config_json =
            read("config.json").map_err(|error| LoadError::unreadable(&config, &error))?;
        let spec = ModelSpec::from_json(&config, &config_json)?;
        let generation_json = match read("generation_config.json") {
            Ok(json) => Some(json),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(LoadError::unreadable(&generation, &error)),
        };
        let generation = GenerationDefaults::new(&spec, &generation, generation_json.as_deref())?;
        let source = Box::new(Safetensors::open(folder, access)?);
        let others = prequantized::OTHER_FILES.map(|name| (label(name), read(name)));
        let mut configs = vec![(config.as_str(), &config_json[..])];
        for (label, json) in &others {
            match json {
                Ok(json) => configs.push((label, json)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(LoadError::unreadable(label, error)),
            }
        }
        let source = prequantized::unpacked(&configs, source)
            .now_or_never()
            .expect("files are read at once")?;
        let spec = untied_if_they_differ(spec, source.as_ref())
            .now_or_never()
            .expect("files are read at once")?;
        let dense = dense::dense(&FolderFiles(folder), spec.hidden)
            .now_or_never()
            .expect("files are read at once")?;
        let model = Self::with_classes(spec, generation, source)
            .now_or_never()
            .expect("files are read at once")?;
        Ok(Self {
            dense: dense.into(),
            ..model
        })
    }

    /// Opens the tower of the model in a folder, as a model of its own; `None` if it has none that is known.
    pub fn open_tower(folder: &Path, access: FileAccess) -> Result<Option<Self>, LoadError> {
        let label = folder.join("config.json").display().to_string();
        let read = |name: &str| platform::read_file(&folder.join(name), CONFIG_BYTES_MAX);
        let config_json =
            read("config.json").map_err(|error| LoadError::unreadable(&label, &error))?;
        let text = ModelSpec::from_json(&label, &config_json)?;
        let Some(spec) = ModelSpec::tower_from_json(&label, &config_json, &text)? else {
            return Ok(None);
        };
        let source = Box::new(Safetensors::open(folder, access)?);
        let source = prequantized::unpacked(&[(&label, &config_json)], source)
            .now_or_never()
            .expect("files are read at once")?;
        let generation = GenerationDefaults::new(&spec, "generation_config.json", None)?;
        Self::new(spec, generation, source).map(Some)
    }

    /// A model from GGUF. Take tokenizer and template from [`Gguf::texts`] first.
    pub fn from_gguf(gguf: Gguf) -> Result<Self, LoadError> {
        let spec = gguf.spec()?;
        let (file, json) = gguf.generation_json();
        let generation = GenerationDefaults::new(&spec, &file, Some(&json))?;
        let (tensors, own_names) = gguf.into_parts();
        let model = Self::new(spec, generation, tensors)?;
        own_names.refuse_unread(model.source.name(), &model.spec)?;
        Ok(model)
    }

    /// Opens the folder behind `files`, as [`Model::open`] does for one on disk. Reads the small files and the headers.
    pub async fn open_remote(files: Box<dyn RangeFiles>) -> Result<Self, LoadError> {
        let (config, generation) = ("config.json", "generation_config.json");
        let config_json = read_whole(files.as_ref(), config, CONFIG_BYTES_MAX).await?;
        let config_json = config_json.ok_or_else(|| remote::missing(config))?;
        let spec = ModelSpec::from_json(config, &config_json)?;
        let generation_json = read_whole(files.as_ref(), generation, CONFIG_BYTES_MAX).await?;
        let generation = GenerationDefaults::new(&spec, generation, generation_json.as_deref())?;
        let mut others = Vec::new();
        for name in prequantized::OTHER_FILES {
            others.extend(
                read_whole(files.as_ref(), name, CONFIG_BYTES_MAX)
                    .await?
                    .map(|json| (name, json)),
            );
        }
        let mut configs = vec![(config, &config_json[..])];
        configs.extend(others.iter().map(|(name, json)| (*name, &json[..])));
        let dense = dense::dense(files.as_ref(), spec.hidden).await?;
        let source = Box::new(RemoteTensors::open(files).await?);
        let source = prequantized::unpacked(&configs, source).await?;
        let spec = untied_if_they_differ(spec, source.as_ref()).await?;
        Ok(Self {
            dense: dense.into(),
            ..Self::with_classes(spec, generation, source).await?
        })
    }

    /// A model from its parts, wherever they come from.
    pub fn from_parts(
        config_json: &[u8],
        generation_config_json: Option<&[u8]>,
        source: Box<dyn TensorSource>,
    ) -> Result<Self, LoadError> {
        let spec = ModelSpec::from_json("config.json", config_json)?;
        let generation =
            GenerationDefaults::new(&spec, "generation_config.json", generation_config_json)?;
        let source = prequantized::unpacked(&[("config.json", config_json)], source)
            .now_or_never()
            .expect("the tensors are in memory")?;
        Self::with_classes(spec, generation, source)
            .now_or_never()
            .expect("the tensors are in memory")
    }

    /// The same model, with its matrices quantized as they are read. Weights that are already quantized stay as they
    /// are.
    pub fn quantized(self, quantization: Quantization) -> Result<Self, LoadError> {
        let stored = self.source.tensors().clone();
        let source = Box::new(Quantized::new(self.source, quantization));
        let (has_head, classes, dense) = (self.has_head, self.classes, self.dense);
        Ok(Self {
            stored: Some(stored),
            has_head,
            classes,
            dense,
            ..Self::new(self.spec, self.generation, source)?
        })
    }

    /// Whether its matrices are quantized as they are read, as [`Self::quantized`] sets it.
    pub fn quantizes(&self) -> bool {
        self.stored.is_some()
    }

    /// The model embedded in the binary.
    pub fn demo() -> Self {
        Self::from_parts(
            demo::CONFIG_JSON,
            Some(demo::GENERATION_CONFIG_JSON),
            Box::new(demo::tensors()),
        )
        .expect("the embedded model loads")
    }

    /// A model of this shape with random bf16 weights, generated when they are read; the same seed gives the same
    /// weights.
    pub fn random(spec: ModelSpec, seed: u64) -> Self {
        // A head for classes takes no part in the plan.
        let spec = ModelSpec {
            classes: None,
            ..spec
        };
        let source = random::RandomTensors::new(&spec, seed);
        let generation = GenerationDefaults::new(&spec, "generation_config.json", None)
            .expect("no file has no faults");
        Self::new(spec, generation, Box::new(source))
            .expect("random tensors have the shapes the spec asks for")
    }

    /// A model with its head for classes, if it has one.
    async fn with_classes(
        spec: ModelSpec,
        generation: GenerationDefaults,
        source: Box<dyn TensorSource>,
    ) -> Result<Self, LoadError> {
        let mut model = Self::new(spec, generation, source)?;
        let spec = &model.spec;
        if let Some(classes) = &spec.classes {
            let (hidden, embedding) = (spec.hidden, spec.tensors.embedding);
            let source = model.source.as_ref();
            let head = ClassHead::read(classes, hidden, embedding, source).await?;
            model.classes = Some(Arc::new(head));
        }
        Ok(model)
    }

    fn new(
        mut spec: ModelSpec,
        generation: GenerationDefaults,
        source: Box<dyn TensorSource>,
    ) -> Result<Self, LoadError> {
        let exists = |tensor: &str| source.tensors().contains_key(tensor);
        let has_own_head = spec.tensors.head_in(exists).is_some();
        let has_head = !spec.is_encoder() && (spec.tied_embeddings || has_own_head);
        if !has_head && !spec.is_encoder() {
            // The plan has a product with a head, which no request for embeddings runs.
            tracing::warn!(
                "{} has no {}: it gives embeddings of texts, not answers",
                source.name(),
                spec.tensors.head
            );
            spec.tied_embeddings = true;
        }
        // safetensors' save_model keeps one name of tied weights.
        spec.embedding_in_head = has_head
            && spec.tied_embeddings
            && has_own_head
            && spec.tensors.embedding_in(exists).is_none();
        let weights = WeightTable::resolve(&spec, source.name(), source.tensors())?;
        Ok(Self {
            spec,
            generation,
            source,
            stored: None,
            weights,
            predictor: None,
            has_head,
            adapters: None,
            classes: None,
            dense: Arc::default(),
        })
    }

    /// Whether it can answer. Without a head, a model gives embeddings of texts only.
    pub fn has_head(&self) -> bool {
        self.has_head
    }

    /// The head for classes over its pooled rows, if it has one.
    pub fn classes(&self) -> Option<&Arc<ClassHead>> {
        self.classes.as_ref()
    }

    /// The dense modules of sentence-transformers that follow its pooled rows, in order.
    pub fn dense(&self) -> &Arc<[PooledLayer]> {
        &self.dense
    }

    /// What the checkpoint holds besides the text model, as a line for the user: towers for images and sound, and
    /// layers that predict further tokens. With rows of images, its tower is a model beside it.
    pub fn left_out(&self) -> Option<String> {
        let layers = self.spec.layers.len() as u64;
        let reads_images = self.weights.has(decoder::IMAGE_ROWS);
        let part = |name: &str| match name {
            _ if reads_images && holds(name, &VISION) => None,
            _ if holds(name, &VISION) => Some("vision"),
            _ if holds(name, &["audio"]) => Some("audio"),
            _ if self.predictor.is_some() => None,
            _ if name.starts_with("mtp.") || is_beyond(name, layers) => {
                Some("layers that predict further tokens")
            }
            _ => None,
        };
        let mut counts = BTreeMap::new();
        for part in self.source.tensors().keys().filter_map(|name| part(name)) {
            *counts.entry(part).or_insert(0) += 1;
        }
        let parts: Vec<_> = counts
            .iter()
            .map(|(part, count)| format!("{part} ({count} tensors)"))
            .collect();
        (!parts.is_empty()).then(|| {
            format!(
                "not loaded, because only text is supported: {}",
                parts.join(", ")
            )
        })
    }

    /// The same model with another context length; for devices that compute nothing with positions.
    pub fn with_positions(mut self, positions_max: u32) -> Self {
        self.spec.positions_max = positions_max;
        self
    }

    /// Says that no sequence will be longer than this, which selects the rotary frequencies of longrope.
    pub fn limit_context(&mut self, tokens: u32) {
        let positions_max = tokens.min(self.spec.positions_max);
        self.weights.compute_ropes(&ModelSpec {
            positions_max,
            ..self.spec.clone()
        });
    }

    /// Makes room in the plan for so many rows of images, of a tower. They are rows of
    /// [`Plan::image_rows`](crate::plan::Plan::image_rows).
    pub fn reserve_image_rows(&mut self, rows: u32) {
        self.weights
            .reserve(decoder::IMAGE_ROWS, rows, self.spec.hidden);
    }

    /// Makes room in the plan of a tower for so many patches in a step.
    pub fn reserve_patches(&mut self, patches: u32) {
        if let Some(tower) = &self.spec.tower {
            self.weights.reserve("patches", patches, tower.columns());
            self.spec.vocab = patches;
        }
    }

    /// Makes room for LoRA adapters in the plan. Returns which matrices they may change.
    pub fn reserve_adapters(&mut self, room: AdapterRoom) -> AdapterLayout {
        let layout = AdapterLayout::new(&self.spec, room);
        self.adapters = Some(layout.clone());
        layout
    }

    /// Makes the layers that predict further tokens part of what is recorded. Returns whether the checkpoint has any.
    ///
    /// # Errors
    ///
    /// A tensor of theirs that is missing or has another shape, or one that is not known: see [`LoadError`].
    pub fn add_predictor(&mut self) -> Result<bool, LoadError> {
        let tensors = self.source.tensors();
        self.predictor = Predictor::find(&self.spec, tensors);
        if let Some(predictor) = &self.predictor {
            self.weights
                .add_predictor(predictor, self.source.name(), tensors)?;
        }
        Ok(self.predictor.is_some())
    }

    /// The architecture.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Sampling defaults and end tokens.
    pub fn generation(&self) -> &GenerationDefaults {
        &self.generation
    }

    /// Identifies the model by its config and its list of tensors, as they are read; where its files are does not
    /// count.
    pub fn identity(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("folio 2026 identity of a model");
        hasher.update(format!("{:?}", self.spec).as_bytes());
        for (name, info) in self.source.tensors() {
            hasher.update(format!("{name:?} {:?} {:?}", info.shape, info.element).as_bytes());
        }
        *hasher.finalize().as_bytes()
    }

    /// Records the forward pass. `activations` is the element type between steps; residual stream and logits are f32.
    pub fn record(&self, activations: Storage) -> Plan {
        self.with_adapters(
            decoder::record(
                &self.spec,
                self.predictor.as_ref(),
                &self.weights,
                activations,
            ),
            activations,
        )
    }

    /// A plan with room for adapters, if there is any.
    fn with_adapters(&self, plan: Plan, activations: Storage) -> Plan {
        match &self.adapters {
            Some(layout) => adapters::with_slots(plan, layout, activations),
            None => plan,
        }
    }

    /// The plan that [`Model::record`] would return if the stored weights were quantized on load; only for its sizes.
    pub fn record_quantized(
        &self,
        activations: Storage,
        quantization: Quantization,
    ) -> Result<Plan, LoadError> {
        let stored = self
            .stored
            .as_ref()
            .unwrap_or_else(|| self.source.tensors());
        let tensors = quantize::quantized_infos(stored, quantization);
        let name = self.source.name();
        let mut weights = WeightTable::resolve(&self.spec, name, &tensors)?;
        let predictor = self.predictor.as_ref();
        if let Some(predictor) = predictor {
            weights.add_predictor(predictor, name, &tensors)?;
        }
        let plan = decoder::record(&self.spec, predictor, &weights, activations);
        Ok(self.with_adapters(plan, activations))
    }

    /// Reads every weight of `plan` and passes it to `write`: id, first row, and whole rows in the plan's format, at
    /// most 4 MiB at a time (or one row).
    pub async fn upload<E>(
        &self,
        plan: &Plan,
        write: impl FnMut(WeightId, u32, Bytes) -> Result<(), E>,
    ) -> Result<(), UploadError<E>> {
        self.weights.upload(self.source.as_ref(), plan, write).await
    }
}

/// Parts of the names of tensors that turn images into rows.
const VISION: [&str; 3] = ["vision", "visual", "multi_modal_projector"];

fn holds(name: &str, words: &[&str]) -> bool {
    words.iter().any(|word| name.contains(word))
}

/// The spec with a head of its own if a checkpoint whose config ties it to the embedding has both, and they differ: as
/// in transformers, with a warning. Compares a few kilobytes.
async fn untied_if_they_differ(
    mut spec: ModelSpec,
    source: &dyn TensorSource,
) -> Result<ModelSpec, LoadError> {
    let tensors = source.tensors();
    let exists = |name: &str| tensors.contains_key(name);
    let names = (
        spec.tensors.embedding_in(exists),
        spec.tensors.head_in(exists),
    );
    let ((Some(embedding), Some(head_name)), true) = (names, spec.tied_embeddings) else {
        return Ok(spec);
    };
    let head = &tensors[&head_name];
    let Element::Float(format) = &head.element else {
        return Ok(spec);
    };
    let is_alike =
        (&tensors[&embedding].shape, &tensors[&embedding].element) == (&head.shape, &head.element);
    let Some(element_bytes) = format.element_bytes() else {
        return Ok(spec);
    };
    if !is_alike {
        return Ok(spec);
    }
    let bytes = head.shape.iter().product::<u64>() * u64::from(element_bytes);
    for start in [0, bytes / 2, bytes.saturating_sub(COMPARED_BYTES)] {
        let range = start..bytes.min(start + COMPARED_BYTES);
        let (own, shared) = (
            source.read(&head_name, range.clone()).await?,
            source.read(&embedding, range).await?,
        );
        if own != shared {
            let file = source.name();
            tracing::warn!(
                "{file}: tie_word_embeddings is true, but {} is not the embedding: it is kept",
                spec.tensors.head
            );
            spec.tied_embeddings = false;
            return Ok(spec);
        }
    }
    Ok(spec)
}
