//! Turns a checkpoint into a plan and its weights.
//!
//! A [`Model`] consists of a description ([`ModelSpec`], read from `config.json`), a source of tensors
//! ([`TensorSource`]) and the sampling defaults of `generation_config.json`. [`Model::record`] records the forward pass
//! ([`decoder`]), which is the same code for all models; [`Model::upload`] passes the weights to whatever executes it.
//! This module knows nothing of devices, batches or text.
//!
//! All errors in a model's files are found when it is opened, and are reported in one line ([`LoadError`]).

mod config;
mod config_layers;
mod config_reader;
mod decoder;
pub mod demo;
mod families;
mod generation;
pub mod gguf;
mod prequantized;
mod quantize;
mod random;
pub mod remote;
mod repack;
pub mod rope;
pub mod safetensors;
mod shapes;
pub mod source;
pub mod spec;
mod tensor_names;
mod weights;

pub use generation::GenerationDefaults;
pub use gguf::{Gguf, Texts};
pub use quantize::Quantization;
pub use remote::RangeFiles;
pub use safetensors::Safetensors;
pub use source::{Element, TensorInfo, TensorRead, TensorSource};
pub use spec::ModelSpec;

use crate::plan::{Plan, Storage, WeightId};
use crate::platform::{self, FileAccess};
use bytes::Bytes;
use prequantized::Prequantized;
use quantize::Quantized;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use weights::WeightTable;

/// Maximum size of `config.json` and similar files, which are far smaller.
const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// A model, ready to be recorded and uploaded.
pub struct Model {
    spec: ModelSpec,
    generation: GenerationDefaults,
    source: Box<dyn TensorSource>,
    /// The tensors as stored, if `source` quantizes them on load.
    stored: Option<BTreeMap<String, TensorInfo>>,
    weights: WeightTable,
}

/// An error in a model's files: one line with the file and, if known, the field or tensor.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be opened or read.
    #[error("{file}: {message}")]
    Read {
        /// Path.
        file: String,
        /// The system's message.
        message: String,
    },
    /// The file is not valid JSON of the expected kind.
    #[error("{file}: {message}")]
    Json {
        /// Path.
        file: String,
        /// The parser's message.
        message: String,
    },
    /// A field is missing, of another type or out of range.
    #[error("{file}: {field} {message}")]
    Field {
        /// Path.
        file: String,
        /// Name, prefixed with the names of enclosing objects.
        field: String,
        /// What was found and what was expected, as the end of a sentence.
        message: String,
    },
    /// This architecture is not supported.
    #[error("{file}: architecture {found:?} is not supported; expected one of {known}")]
    Architecture {
        /// Path.
        file: String,
        /// The architecture that the file names.
        found: String,
        /// The supported architectures.
        known: String,
    },
    /// The file's header (its list of tensors) is damaged.
    #[error("{file}: {message}")]
    Header {
        /// Path.
        file: String,
        /// The parser's message.
        message: String,
    },
    /// A tensor that the config needs is missing.
    #[error("{file}: tensor {tensor:?} is missing")]
    TensorMissing {
        /// Path.
        file: String,
        /// Name.
        tensor: String,
    },
    /// A tensor's shape does not match the config.
    #[error("{file}: tensor {tensor:?} has shape {found:?}, but config.json expects {expected:?}")]
    TensorShape {
        /// Path.
        file: String,
        /// Name.
        tensor: String,
        /// Shape in the file.
        found: Vec<u64>,
        /// Shape according to the config.
        expected: Vec<u64>,
    },
    /// A tensor's element type is unsupported.
    #[error("{file}: tensor {tensor:?} is stored as {found}; expected F32, F16 or BF16")]
    TensorType {
        /// Path.
        file: String,
        /// Name.
        tensor: String,
        /// Type in the file.
        found: String,
    },
    /// The file is truncated within a tensor.
    #[error("{file}: tensor {tensor:?} is truncated: {missing} bytes are missing")]
    TensorShort {
        /// Path.
        file: String,
        /// Name.
        tensor: String,
        /// Number of missing bytes.
        missing: u64,
    },
    /// The file's length changed while it was being read.
    #[error("{file}: the file changed while it was being loaded")]
    Changed {
        /// Path.
        file: String,
    },
}

/// Why an upload failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum UploadError<E> {
    /// The model's files could not be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The device rejected the weights.
    #[error("{0}")]
    Write(E),
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
        let config_json = read("config.json").map_err(|error| read_error(&config, &error))?;
        let spec = ModelSpec::from_json(&config, &config_json)?;
        let generation_json = match read("generation_config.json") {
            Ok(json) => Some(json),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(read_error(&generation, &error)),
        };
        let generation = GenerationDefaults::new(&spec, &generation, generation_json.as_deref())?;
        let source = as_prequantized(&config, &config_json, Box::new(Safetensors::open(folder, access)?))?;
        Self::new(spec, generation, source)
    }

    /// A model from GGUF. Take tokenizer and template from [`Gguf::texts`] first.
    pub fn from_gguf(gguf: Gguf) -> Result<Self, LoadError> {
        let (config_json, source, rope_divisors) = gguf.into_parts();
        let mut spec = ModelSpec::from_json(source.name(), &config_json)?;
        // In GGUF, norm weights include the 1 and experts are separate, whatever the checkpoint had.
        spec.norm.one_plus = false;
        spec.tensors = spec.tensors.with_experts_apart();
        for rope in &mut spec.ropes {
            rope.divide(source.name(), &rope_divisors)?;
        }
        let generation = GenerationDefaults::new(&spec, "generation_config.json", None)?;
        Self::new(spec, generation, source)
    }

    /// A model from its parts, wherever they come from.
    pub fn from_parts(
        config_json: &[u8],
        generation_config_json: Option<&[u8]>,
        source: Box<dyn TensorSource>,
    ) -> Result<Self, LoadError> {
        let spec = ModelSpec::from_json("config.json", config_json)?;
        let generation = GenerationDefaults::new(&spec, "generation_config.json", generation_config_json)?;
        Self::new(spec, generation, as_prequantized("config.json", config_json, source)?)
    }

    /// The same model, with its matrices quantized as they are read. Weights that are already quantized stay as they
    /// are.
    pub fn quantized(self, quantization: Quantization) -> Result<Self, LoadError> {
        let stored = self.source.tensors().clone();
        let source = Box::new(Quantized::new(self.source, quantization));
        Ok(Self { stored: Some(stored), ..Self::new(self.spec, self.generation, source)? })
    }

    /// The model embedded in the binary.
    pub fn demo() -> Self {
        demo::model()
    }

    /// A model of this shape with random bf16 weights, generated when they are read; the same seed gives the same
    /// weights.
    pub fn random(spec: ModelSpec, seed: u64) -> Self {
        let source = random::RandomTensors::new(&spec, seed);
        let generation = GenerationDefaults::new(&spec, "generation_config.json", None).expect("no file has no faults");
        Self::new(spec, generation, Box::new(source)).expect("random tensors have the shapes the spec asks for")
    }

    fn new(spec: ModelSpec, generation: GenerationDefaults, source: Box<dyn TensorSource>) -> Result<Self, LoadError> {
        let weights = WeightTable::resolve(&spec, source.name(), source.tensors())?;
        Ok(Self { spec, generation, source, stored: None, weights })
    }

    /// The same model with another context length; for devices that compute nothing with positions.
    pub fn with_positions(mut self, positions_max: u32) -> Self {
        self.spec.positions_max = positions_max;
        self
    }

    /// The architecture.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Sampling defaults and end tokens.
    pub fn generation(&self) -> &GenerationDefaults {
        &self.generation
    }

    /// Records the forward pass. `activations` is the element type between steps; residual stream and logits are f32.
    pub fn record(&self, activations: Storage) -> Plan {
        decoder::record(&self.spec, &self.weights, activations)
    }

    /// The plan that [`Model::record`] would return if the stored weights were quantized on load; only for its sizes.
    pub fn record_quantized(&self, activations: Storage, quantization: Quantization) -> Result<Plan, LoadError> {
        let stored = self.stored.as_ref().unwrap_or_else(|| self.source.tensors());
        let tensors = quantize::quantized_infos(stored, quantization);
        let weights = WeightTable::resolve(&self.spec, self.source.name(), &tensors)?;
        Ok(decoder::record(&self.spec, &weights, activations))
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

/// Wraps `source` to show quantized tensors as ordinary ones, if the config says that the checkpoint is quantized.
fn as_prequantized(
    file: &str,
    config_json: &[u8],
    source: Box<dyn TensorSource>,
) -> Result<Box<dyn TensorSource>, LoadError> {
    Ok(match prequantized::method(file, config_json)? {
        Some(method) => Box::new(Prequantized::new(source, method)?),
        None => source,
    })
}

fn read_error(file: &str, error: &io::Error) -> LoadError {
    LoadError::Read { file: file.into(), message: error.to_string() }
}
