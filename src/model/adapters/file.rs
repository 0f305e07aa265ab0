//! An adapter's tensors, as peft names them.

use super::config::{AdapterConfig, CONFIG};
use crate::model::error::LoadError;
use crate::model::gguf::GgufAdapter;
use crate::model::safetensors::Safetensors;
use crate::model::source::{Element, TensorInfo, TensorSource};
use crate::plan::WeightFormat;
use crate::platform::{self, FileAccess};
use futures_util::FutureExt as _;
use std::collections::BTreeMap;
use std::path::Path;

/// File name of an adapter's tensors.
const TENSORS: &str = "adapter_model.safetensors";
/// Maximum size of an adapter's config.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// What peft puts before the names of the base's modules.
const PREFIX: &str = "base_model.model.";
/// Of an embedding that was saved with its adapter: the base's own.
const OF_BASE: &str = ".base_layer.weight";

/// An adapter in host memory. It does not depend on where its model runs.
#[derive(Debug)]
pub struct Adapter {
    /// Where it was read, for errors.
    pub(super) file: String,
    /// Of all that its arithmetic depends on.
    pub(super) digest: [u8; 32],
    /// By the name of the module that each changes, such as `model.layers.0.self_attn.q_proj`.
    pub(super) modules: BTreeMap<String, LowRank>,
    /// The widest format of its matrices.
    pub(super) format: WeightFormat,
}

/// The change of one matrix: B · A.
#[derive(Debug, Default)]
pub(super) struct LowRank {
    pub(super) rank: u32,
    /// Elements of a row of A.
    pub(super) columns: u32,
    /// Rows of B.
    pub(super) rows: u32,
    /// `[rank × columns]`.
    pub(super) a: Vec<f32>,
    /// `[rows × rank]`, times the factor.
    pub(super) b: Vec<f32>,
    /// Rows of B are in the order of interleaved rotation, as llama.cpp stores q and k of some families.
    pub(super) is_interleaved: bool,
}

impl Adapter {
    /// The files of its folder.
    pub const FILES: [&str; 2] = [CONFIG, TENSORS];

    /// Opens a folder with an adapter of peft, or a GGUF file.
    pub fn open(place: &Path) -> Result<Self, LoadError> {
        if !place.is_file() {
            return Self::open_folder(place);
        }
        let file = GgufAdapter::open(place)?;
        let mut adapter = Self::read(&AdapterConfig::of_gguf(file.alpha), file.tensors.as_ref())?;
        for (module, change) in &mut adapter.modules {
            let is_rotated = [".q_proj", ".k_proj"]
                .iter()
                .any(|end| module.ends_with(end));
            change.is_interleaved = file.is_interleaved && is_rotated;
        }
        Ok(adapter)
    }

    fn open_folder(folder: &Path) -> Result<Self, LoadError> {
        let config_file = folder.join(CONFIG);
        let label = config_file.display().to_string();
        let json = platform::read_file(&config_file, CONFIG_BYTES_MAX)
            .map_err(|error| LoadError::unreadable(&label, &error))?;
        let config = AdapterConfig::read(&label, &json)?;
        let tensors = folder.join(TENSORS);
        let label = tensors.display().to_string();
        let file = platform::ModelFile::open(&tensors, FileAccess::default())
            .map_err(|error| LoadError::unreadable(&label, &error))?;
        Self::read(
            &config,
            &Safetensors::from_files(&label, vec![(label.clone(), file)])?,
        )
    }

    /// Digest of everything that answers depend on.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// The largest rank of its changes.
    pub fn rank(&self) -> u32 {
        let ranks = self.modules.values().map(|change| change.rank);
        ranks.max().unwrap_or(0)
    }

    /// The widest format in which its matrices are stored.
    pub fn format(&self) -> WeightFormat {
        self.format
    }

    fn read(config: &AdapterConfig, source: &dyn TensorSource) -> Result<Self, LoadError> {
        let mut halves: BTreeMap<String, [Option<Matrix>; 2]> = BTreeMap::new();
        let mut hasher = blake3::Hasher::new_derive_key("folio 2026 digest of an adapter");
        let mut format = None;
        for (name, info) in source.tensors() {
            let Some((module, half)) = half_of(source.name(), name)? else {
                continue;
            };
            let matrix = read_matrix(source, name, info)?;
            format = Some(format.map_or(matrix.format, |known| wider(known, matrix.format)));
            hasher.update(format!("{name:?} {:?}", info.shape).as_bytes());
            hasher.update(bytemuck::cast_slice(&matrix.values));
            halves.entry(module).or_default()[half] = Some(matrix);
        }
        if halves.is_empty() {
            return Err(LoadError::Header {
                file: source.name().into(),
                message: "has no tensor of an adapter".into(),
            });
        }
        let mut modules = BTreeMap::new();
        for (module, halves) in halves {
            let low_rank = low_rank(config, source.name(), &module, halves)?;
            hasher.update(&config.scale(&module, low_rank.rank).to_le_bytes());
            modules.insert(module, low_rank);
        }
        source.check()?;
        Ok(Self {
            file: source.name().into(),
            digest: *hasher.finalize().as_bytes(),
            modules,
            format: format.unwrap_or(WeightFormat::F32),
        })
    }
}

/// A tensor's values.
struct Matrix {
    rows: u32,
    columns: u32,
    format: WeightFormat,
    values: Vec<f32>,
}

/// The format that holds the values of both: neither half holds those of the other.
fn wider(one: WeightFormat, other: WeightFormat) -> WeightFormat {
    if one == other { one } else { WeightFormat::F32 }
}

/// The module that a tensor belongs to, and whether it is its A (0) or B (1). `None`: a copy of the base's.
fn half_of(file: &str, tensor: &str) -> Result<Option<(String, usize)>, LoadError> {
    let name = tensor.strip_prefix(PREFIX).unwrap_or(tensor);
    let refused = |message: &str| LoadError::TensorRefused {
        file: file.into(),
        tensor: tensor.into(),
        message: message.into(),
    };
    if name.ends_with(OF_BASE) {
        return Ok(None);
    }
    for (half, suffix) in [".lora_A.weight", ".lora_B.weight"].into_iter().enumerate() {
        if let Some(module) = name.strip_suffix(suffix) {
            return Ok(Some((module.to_owned(), half)));
        }
    }
    Err(refused(match name {
        _ if name.contains("lora_magnitude_vector") => "is of DoRA, which is not supported",
        _ if name.contains("lora_embedding") => "adapts the embedding, which is not supported",
        _ if name.ends_with("lora_B.bias") => "is a bias of B, which is not supported",
        _ if name.ends_with(".bias") => "is a trained bias, which is not supported",
        _ if name.ends_with(".weight") => {
            "replaces a weight of the base (modules_to_save), which is not supported"
        }
        _ => "is no part of an adapter",
    }))
}

fn read_matrix(
    source: &dyn TensorSource,
    tensor: &str,
    info: &TensorInfo,
) -> Result<Matrix, LoadError> {
    let refused = |message: String| LoadError::TensorRefused {
        file: source.name().into(),
        tensor: tensor.into(),
        message,
    };
    let format = match &info.element {
        Element::Float(format @ (WeightFormat::F32 | WeightFormat::F16 | WeightFormat::Bf16)) => {
            *format
        }
        other => {
            return Err(refused(format!(
                "is stored as {other}; expected f32, f16 or bf16"
            )));
        }
    };
    let &[rows, columns] = &info.shape[..] else {
        return Err(refused(format!(
            "has shape {:?}, not that of a matrix",
            info.shape
        )));
    };
    let [rows, columns] = [rows, columns].map(u32::try_from);
    let (Ok(rows), Ok(columns)) = (rows, columns) else {
        return Err(refused(format!(
            "has shape {:?}, which is too large",
            info.shape
        )));
    };
    let bytes = u64::from(rows) * format.row_bytes(columns);
    let bytes = source
        .read(tensor, 0..bytes)
        .now_or_never()
        .expect("files are read at once")?;
    let elements = rows as usize * columns as usize;
    let values: Vec<f32> = (0..elements)
        .map(|at| format.decode(&bytes, elements, at))
        .collect();
    if !values.iter().all(|value| value.is_finite()) {
        return Err(refused("has a value that is no finite number".into()));
    }
    Ok(Matrix {
        rows,
        columns,
        format,
        values,
    })
}

/// Checks the halves of a module against each other and the config, and multiplies B by the factor.
fn low_rank(
    config: &AdapterConfig,
    file: &str,
    module: &str,
    [a, b]: [Option<Matrix>; 2],
) -> Result<LowRank, LoadError> {
    let refused = |half: &str, message: String| LoadError::TensorRefused {
        file: file.into(),
        tensor: format!("{module}.lora_{half}.weight"),
        message,
    };
    let a = a.ok_or_else(|| refused("A", format!("is missing, but there is {module}.lora_B")))?;
    let b = b.ok_or_else(|| refused("B", format!("is missing, but there is {module}.lora_A")))?;
    let rank = config.rank(module).unwrap_or(a.rows);
    if a.rows != rank {
        let message = format!("has {} rows, but {CONFIG} says rank {rank}", a.rows);
        return Err(refused("A", message));
    }
    if b.columns != rank {
        let message = format!("has {} columns, but lora_A has {rank} rows", b.columns);
        return Err(refused("B", message));
    }
    let scale = config.scale(module, rank);
    Ok(LowRank {
        rank,
        columns: a.columns,
        rows: b.rows,
        a: a.values,
        b: b.values.iter().map(|value| value * scale).collect(),
        is_interleaved: false,
    })
}
