//! Quantization of a GGUF file to another one, as `llama-quantize` does: metadata stay, matrices get another type.
//!
//! The header and the place of every tensor are known before the first row is read, so that an interrupted file can be
//! continued after its last whole tensor. Tensors are written in pieces of rows: memory does not grow with the model.

use super::blocks::BlockType;
use super::encode;
use super::metadata::Metadata;
use super::{PIECE_ROWS, at_once, check_parts, open_parts};
use crate::model::error::LoadError;
use crate::model::remote::{LocalFiles, RangeFiles as _};
use crate::plan::format::GROUP;
use crate::platform::{self, FileAccess};
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of f32 that a piece of a tensor has at most, unless a row has more.
const PIECE_BYTES: usize = 32 << 20;
/// Alignment of tensors in the written file: the default of GGUF.
const ALIGNMENT: u64 = 32;
/// Keys of the header that are written anew.
const FILE_TYPE: &str = "general.file_type";
const VERSION: &str = "general.quantization_version";
/// The types of U32 in metadata.
const U32: u32 = 4;

/// A mixture of types, by the names of `llama-quantize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mixture(usize);

/// Name, number as `general.file_type`, type of most matrices, and of those that the mixtures named M keep more of:
/// `attn_v` and `ffn_down` of some layers.
type Row = (&'static str, u32, BlockType, BlockType);

const MIXTURES: [Row; 12] = [
    ("q8_0", 7, BlockType::Q8_0, BlockType::Q8_0),
    ("q6_k", 18, BlockType::Q6K, BlockType::Q6K),
    ("q5_k_m", 17, BlockType::Q5K, BlockType::Q6K),
    ("q5_k_s", 16, BlockType::Q5K, BlockType::Q5K),
    ("q5_1", 9, BlockType::Q5_1, BlockType::Q5_1),
    ("q5_0", 8, BlockType::Q5_0, BlockType::Q5_0),
    ("q4_k_m", 15, BlockType::Q4K, BlockType::Q6K),
    ("q4_k_s", 14, BlockType::Q4K, BlockType::Q4K),
    ("q4_1", 3, BlockType::Q4_1, BlockType::Q4_1),
    ("q4_0", 2, BlockType::Q4_0, BlockType::Q4_0),
    ("q3_k_m", 12, BlockType::Q3K, BlockType::Q4K),
    ("q2_k", 10, BlockType::Q2K, BlockType::Q3K),
];

impl FromStr for Mixture {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = match text.to_lowercase().as_str() {
            "q5_k" => "q5_k_m".to_owned(),
            "q4_k" => "q4_k_m".to_owned(),
            "q3_k" => "q3_k_m".to_owned(),
            other => other.to_owned(),
        };
        let found = MIXTURES.iter().position(|row| row.0 == wanted);
        found.map(Self).ok_or_else(|| {
            let names: Vec<_> = MIXTURES.iter().map(|row| row.0).collect();
            format!("is none of {}", names.join(", "))
        })
    }
}

impl fmt::Display for Mixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&MIXTURES[self.0].0.to_uppercase())
    }
}

impl Mixture {
    /// The type of a matrix. `layers` is how many the model has; `is_head`: the matrix gives the logits.
    fn kind(self, name: &str, columns: u64, layers: u64, is_head: bool) -> Option<BlockType> {
        let (_, _, most, more) = MIXTURES[self.0];
        let layer = name
            .strip_prefix("blk.")
            .and_then(|rest| rest.split('.').next()?.parse().ok());
        let keeps_more = [".attn_v.", ".ffn_down.", ".ffn_down_exps."]
            .iter()
            .any(|part| name.contains(part));
        let kind = if is_head && most != BlockType::Q8_0 {
            BlockType::Q6K
        } else if keeps_more && layer.is_some_and(|layer| is_sensitive(layer, layers)) {
            more
        } else {
            most
        };
        encode::fitting(kind, columns)
    }
}

/// Layers whose errors cost most: the first and the last eighth, and every third of the others.
fn is_sensitive(layer: u64, layers: u64) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= layers - eighth || (layer - eighth) % 3 == 2
}

/// A file to be written.
pub struct Requantization {
    files: LocalFiles,
    header: Vec<u8>,
    targets: Vec<Target>,
}

/// A tensor of it.
#[derive(Debug)]
struct Target {
    name: String,
    /// Which file has it, and where.
    file: usize,
    source: Range<u64>,
    /// As it is stored, and as it will be.
    stored: BlockType,
    kind: BlockType,
    rows: u64,
    columns: u64,
    /// Where it will be, from the end of the header on.
    offset: u64,
}

impl Target {
    fn bytes(&self) -> u64 {
        self.rows * self.kind.row_bytes(self.columns as usize) as u64
    }

    fn piece_rows(&self) -> u64 {
        (PIECE_BYTES as u64 / (4 * self.columns)).clamp(1, self.rows)
    }
}

impl Requantization {
    /// Reads the header of a file (and of those beside it, if it is the first of a split model). Matrices that are
    /// quantized already are refused unless `from_quantized`: their errors add up.
    pub fn open(path: &Path, mixture: Mixture, from_quantized: bool) -> Result<Self, LoadError> {
        let (files, parts) = open_parts(path, FileAccess::default())?;
        check_parts(&parts)?;
        let mut targets = targets(&parts, mixture)?;
        if let Some(target) = targets.iter().find(|target| {
            target.stored.format().is_quantised() && target.stored != target.kind && !from_quantized
        }) {
            let message = format!(
                "is quantized already ({}): errors add up; --allow-requantize does it anyway",
                target.stored
            );
            return Err(parts[target.file].invalid(&format!("tensor {:?}", target.name), message));
        }
        let mut end = 0u64;
        for target in &mut targets {
            target.offset = end;
            end = (end + target.bytes()).next_multiple_of(ALIGNMENT);
        }
        let header = header(&parts, &targets, mixture);
        Ok(Self {
            files,
            header,
            targets,
        })
    }

    /// The first bytes of the file, before the tensors.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// Bytes of all files that are read.
    pub fn source_bytes(&self) -> u64 {
        self.files.0.iter().map(|(_, file)| file.bytes()).sum()
    }

    /// Bytes of the whole file.
    pub fn file_bytes(&self) -> u64 {
        let end = self.targets.last();
        self.header.len() as u64 + end.map_or(0, |last| last.offset + last.bytes())
    }

    /// Where each tensor begins in the file, and how many pieces it has.
    pub fn tensors(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let header = self.header.len() as u64;
        self.targets.iter().map(move |target| {
            let pieces = target.rows.div_ceil(target.piece_rows());
            (header + target.offset, pieces)
        })
    }

    /// A piece of a tensor, as it is written.
    pub fn piece(&self, tensor: usize, piece: u64) -> Result<Vec<u8>, LoadError> {
        let target = &self.targets[tensor];
        let columns = target.columns as usize;
        let first = piece * target.piece_rows();
        let rows = first..(first + target.piece_rows()).min(target.rows);
        let [from, to] = [target.stored, target.kind].map(|kind| kind.row_bytes(columns));
        let label = &self.files.0[target.file].0;
        let start = target.source.start;
        let range = start + rows.start * from as u64..start + rows.end * from as u64;
        let source = at_once(self.files.read(label, range))?;
        if target.stored == target.kind {
            return Ok(source.to_vec());
        }
        let mut out = vec![0; (rows.end - rows.start) as usize * to];
        let is_finite = AtomicBool::new(true);
        platform::for_each_chunk(&mut out, PIECE_ROWS * to, |chunk, out| {
            let source = source.chunks_exact(from).skip(chunk * PIECE_ROWS);
            let mut values = vec![0.0; columns.next_multiple_of(GROUP)];
            for (source, out) in source.zip(out.chunks_exact_mut(to)) {
                widen(target.stored, source, columns, &mut values);
                if !values.iter().all(|value| value.is_finite()) {
                    is_finite.store(false, Ordering::Relaxed);
                }
                encode::encode(target.kind, &values[..columns], out);
            }
        });
        if is_finite.into_inner() {
            return Ok(out);
        }
        Err(LoadError::Field {
            file: label.clone(),
            field: format!("tensor {:?}", target.name),
            message: "contains a number that is not finite".into(),
        })
    }
}

/// The weights of a row.
fn widen(kind: BlockType, blocks: &[u8], columns: usize, values: &mut [f32]) {
    let format = kind.format();
    if !format.is_quantised() {
        for (index, value) in values.iter_mut().enumerate().take(columns) {
            *value = format.decode(blocks, columns, index);
        }
        return;
    }
    let layout = format.layout(columns);
    let mut row = vec![0; layout.row_bytes];
    kind.repack(blocks, columns, 1.0, &mut row);
    for (group, values) in values.chunks_exact_mut(GROUP).enumerate() {
        values.copy_from_slice(&format.decode_group(&row, &layout, group));
    }
}

/// The tensors of all parts in the order in which they are stored.
fn targets(parts: &[Metadata], mixture: Mixture) -> Result<Vec<Target>, LoadError> {
    let mut targets = Vec::new();
    let layers = layers(parts);
    let has_head = parts
        .iter()
        .any(|part| part.tensor("output.weight").is_some());
    for (file, part) in parts.iter().enumerate() {
        let mut entries: Vec<_> = part.tensors().collect();
        entries.sort_by_key(|(_, entry)| entry.bytes.start);
        for (name, entry) in entries {
            let columns = entry.shape[entry.shape.len() - 1];
            let is_head = name == "output.weight" || name == "token_embd.weight" && !has_head;
            let wanted = is_quantized(name, &entry.shape)
                .then(|| mixture.kind(name, columns, layers, is_head))
                .flatten();
            let target = Target {
                name: name.clone(),
                file,
                source: entry.bytes.clone(),
                stored: entry.blocks,
                kind: wanted.unwrap_or(entry.blocks),
                rows: entry.shape.iter().product::<u64>() / columns,
                columns,
                offset: 0,
            };
            if target.stored == BlockType::Nvfp4 && wanted.is_some() {
                let message = "has a factor in another tensor: NVFP4 is not quantized again";
                return Err(part.invalid(&format!("tensor {name:?}"), message));
            }
            targets.push(target);
        }
    }
    Ok(targets)
}

/// One more than the largest number of a layer.
fn layers(parts: &[Metadata]) -> u64 {
    let names = parts
        .iter()
        .flat_map(|part| part.tensors().map(|(name, _)| name));
    let layers = names.filter_map(|name| {
        let number = name.strip_prefix("blk.")?.split('.').next()?;
        number.parse::<u64>().ok()
    });
    layers.max().map_or(0, |last| last + 1)
}

/// Matrices but norms, routers, convolutions and tables of positions and types, which cost much and save little.
fn is_quantized(name: &str, shape: &[u64]) -> bool {
    let kept = [
        "_norm.weight",
        "ffn_gate_inp",
        "ssm_conv1d",
        "shortconv.conv",
        "position_embd",
        "token_types",
        "attn_rel_b",
    ];
    shape.len() >= 2 && name.ends_with("weight") && !kept.iter().any(|part| name.contains(part))
}

fn header(parts: &[Metadata], targets: &[Target], mixture: Mixture) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let number = |key: &str, value: u32| {
        [&text(key), &U32.to_le_bytes()[..], &value.to_le_bytes()[..]].concat()
    };
    let is_new = |key: &str| {
        [FILE_TYPE, VERSION, "general.alignment"].contains(&key) || key.starts_with("split.")
    };
    let kept: Vec<_> = parts[0]
        .pairs()
        .filter(|(key, _)| !is_new(key))
        .map(|(_, bytes)| bytes)
        .collect();
    let mut header = b"GGUF".to_vec();
    header.extend(3u32.to_le_bytes());
    header.extend((targets.len() as u64).to_le_bytes());
    header.extend((kept.len() as u64 + 2).to_le_bytes());
    kept.into_iter().for_each(|bytes| header.extend(bytes));
    header.extend(number(FILE_TYPE, MIXTURES[mixture.0].1));
    header.extend(number(VERSION, 2));
    for target in targets {
        let shape = &parts[target.file]
            .tensor(&target.name)
            .expect("targets are tensors of the parts")
            .shape;
        header.extend(text(&target.name));
        header.extend((shape.len() as u32).to_le_bytes());
        for size in shape.iter().rev() {
            header.extend(size.to_le_bytes());
        }
        header.extend(target.kind.number().to_le_bytes());
        header.extend(target.offset.to_le_bytes());
    }
    header.resize(header.len().next_multiple_of(ALIGNMENT as usize), 0);
    header
}

#[cfg(test)]
mod tests;
