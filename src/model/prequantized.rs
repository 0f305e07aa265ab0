//! Checkpoints that were published quantized: GPTQ, AWQ, FP8 and MXFP4 safetensors, read without conversion.
//!
//! A [`Prequantized`] source wraps the files. For each quantized matrix it lists one tensor in a device format, under
//! the name it has in an ordinary checkpoint. Codes and scales are only moved, with one exception: in GPTQ with
//! act-order, scales change from column to column, so its weights are rounded to `q8`, by at most half a step of 1/127
//! of a group's largest weight.

use super::config_reader::{self, ConfigReader};
use super::error::LoadError;
use super::quantize::quantize_row;
use super::repack::RowWriter;
use super::source::{Element, TensorInfo, TensorRead, TensorSource};
use crate::plan::WeightFormat;
use crate::plan::format::GROUP;
use crate::platform;
use bytes::Bytes;
use half::{bf16, f16};
use std::collections::BTreeMap;
use std::ops::Range;

/// Rows per task of parallel repacking.
const PIECE_ROWS: usize = 16;
/// Nibble of a word, counted from the lowest, in which AWQ stores each of its outputs 0 to 7.
const AWQ_PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
/// Weights along each side of an FP8 block.
const BLOCK: usize = 128;

/// A checkpoint's quantization method, from its config.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// 4 bits, packed along the columns; with act-order, each column's group is looked up.
    Gptq {
        group: usize,
        act_order: bool,
        zero_offset: i16,
    },
    /// 4 bits, packed along the outputs.
    Awq { group: usize },
    /// E4M3 with scales.
    Fp8,
    /// E2M1 with a power-of-two scale per 32 weights.
    Mxfp4,
}

/// A source that wraps a quantized checkpoint's files.
pub(super) struct Prequantized {
    inner: Box<dyn TensorSource>,
    infos: BTreeMap<String, TensorInfo>,
    matrices: BTreeMap<String, Matrix>,
}

/// One quantized matrix.
#[derive(Debug)]
struct Matrix {
    kind: Kind,
    /// Names of the tensors it consists of: codes, scales, and others.
    parts: Vec<String>,
    rows: usize,
    columns: usize,
    format: WeightFormat,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Packed(Method),
    /// Scales per tensor, per row, or per block of 128 × 128; in bf16 or f32.
    Fp8 {
        scales: Fp8Scales,
        is_bf16: bool,
    },
    Mxfp4,
}

#[derive(Clone, Copy, Debug)]
enum Fp8Scales {
    Tensor,
    Row,
    Block,
}

/// The method that `config.json` names; `None` if the checkpoint is not quantized.
pub(super) fn method(file: &str, config_json: &[u8]) -> Result<Option<Method>, LoadError> {
    let value = config_reader::parse(file, config_json)?;
    let root = ConfigReader::root(file, &value)?;
    match root.object("quantization_config")? {
        Some(config) => read_method(&config).map(Some),
        None => Ok(None),
    }
}

fn read_method(config: &ConfigReader<'_>) -> Result<Method, LoadError> {
    match config.required("quant_method", config.text("quant_method")?)? {
        "gptq" => gptq(config),
        "awq" => awq(config),
        "fp8" | "fbgemm_fp8" => Ok(Method::Fp8),
        "compressed-tensors" => fp8_if(config, "format", &["float-quantized", "naive-quantized"]),
        "modelopt" => fp8_if(
            config,
            "quant_algo",
            &["FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO"],
        ),
        "mxfp4" => Ok(Method::Mxfp4),
        other => {
            let message = format!(
                "is {other:?}, not gptq, awq, fp8, fbgemm_fp8, compressed-tensors or mxfp4"
            );
            Err(config.invalid("quant_method", message))
        }
    }
}

fn gptq(config: &ConfigReader<'_>) -> Result<Method, LoadError> {
    check_four_bits(config)?;
    let is_new = config.text("checkpoint_format")? == Some("gptq_v2");
    let act_order = config.boolean("desc_act")?.unwrap_or(false);
    Ok(Method::Gptq {
        group: group(config)?,
        act_order,
        zero_offset: if is_new { 0 } else { 1 },
    })
}

fn awq(config: &ConfigReader<'_>) -> Result<Method, LoadError> {
    check_four_bits(config)?;
    match config.text("version")? {
        None | Some("gemm" | "GEMM") => Ok(Method::Awq {
            group: group(config)?,
        }),
        Some(version) => Err(config.invalid("version", format!("is {version:?}, not gemm"))),
    }
}

/// FP8, unless the field says something that is not one of `known`.
fn fp8_if(config: &ConfigReader<'_>, field: &str, known: &[&str]) -> Result<Method, LoadError> {
    match config.text(field)? {
        Some(found) if !known.contains(&found) => {
            let message = format!("is {found:?}, which is not supported; only FP8 is");
            Err(config.invalid(field, message))
        }
        _ => Ok(Method::Fp8),
    }
}

fn check_four_bits(config: &ConfigReader<'_>) -> Result<(), LoadError> {
    match config.required_integer("bits", 1..=32)? {
        4 => Ok(()),
        found => Err(config.invalid("bits", format!("is {found}: only 4 bits are supported"))),
    }
}

/// Weights along a row that share a scale.
fn group(config: &ConfigReader<'_>) -> Result<usize, LoadError> {
    let group = config.required("group_size", config.get("group_size"))?;
    match group.as_i64() {
        Some(-1) => Ok(usize::MAX),
        Some(group @ (32 | 64 | 128)) => Ok(group as usize),
        _ => Err(config.invalid("group_size", format!("is {group}, not 32, 64, 128 or -1"))),
    }
}

/// Fails if the weights of a checkpoint are quantized although its config names no method.
pub(super) fn check_plain(
    file: &str,
    tensors: &BTreeMap<String, TensorInfo>,
) -> Result<(), LoadError> {
    let format = tensors
        .iter()
        .find_map(|(name, info)| match name.rsplit_once('.')?.1 {
            "qweight" => Some("GPTQ or AWQ"),
            "absmax" | "nf4" | "fp4" => Some("bitsandbytes"),
            "SCB" => Some("bitsandbytes (8 bits)"),
            "scales" if tensors.contains_key(&name.replace(".scales", ".biases")) => {
                Some("MLX's format")
            }
            "weight" if is_stored(info, "F8_E4M3") => Some("FP8"),
            "weight" if is_stored(info, "I8") => Some("signed bytes"),
            "weight" if is_stored(info, "U8") => Some("packed bytes"),
            "weight_packed" => Some("packed integers (compressed-tensors)"),
            _ => None,
        });
    let Some(format) = format else { return Ok(()) };
    let message = format!(
        "is missing, but the weights are quantized: {format}. Other files than {file} are not read"
    );
    Err(LoadError::Field {
        file: file.into(),
        field: "quantization_config".into(),
        message,
    })
}

fn is_stored(info: &TensorInfo, name: &str) -> bool {
    info.element == Element::Other(name.into())
}

/// Wraps `source` to show quantized tensors as ordinary ones, if the config says that the checkpoint is quantized.
pub(super) fn unpacked(
    file: &str,
    config_json: &[u8],
    source: Box<dyn TensorSource>,
) -> Result<Box<dyn TensorSource>, LoadError> {
    match method(file, config_json)? {
        Some(method) => Ok(Box::new(Prequantized::new(source, method)?)),
        None => {
            check_plain(file, source.tensors())?;
            Ok(source)
        }
    }
}

impl Prequantized {
    pub(super) fn new(inner: Box<dyn TensorSource>, method: Method) -> Result<Self, LoadError> {
        let mut infos = BTreeMap::new();
        let mut matrices = BTreeMap::new();
        for (name, info) in inner.tensors() {
            match matrix(name, info, inner.tensors(), method)? {
                Some((own, matrix)) => {
                    let shape = match &info.shape[..] {
                        [experts, rows, ..] if matches!(matrix.kind, Kind::Mxfp4) => {
                            vec![*experts, *rows, matrix.columns as u64]
                        }
                        _ => vec![matrix.rows as u64, matrix.columns as u64],
                    };
                    let element = Element::Float(matrix.format);
                    infos.insert(
                        own.clone(),
                        TensorInfo {
                            file: info.file.clone(),
                            shape,
                            element,
                        },
                    );
                    matrices.insert(own, matrix);
                }
                None => {
                    infos.entry(name.clone()).or_insert_with(|| info.clone());
                }
            }
        }
        Ok(Self {
            inner,
            infos,
            matrices,
        })
    }

    /// All bytes of a tensor; a slice without copying if the files are mapped.
    async fn whole(&self, tensor: &str) -> Result<Bytes, LoadError> {
        let info = &self.inner.tensors()[tensor];
        let bytes = info.shape.iter().product::<u64>() * element_bytes(info).unwrap_or(0);
        self.inner.read(tensor, 0..bytes).await
    }
}

fn element_bytes(info: &TensorInfo) -> Option<u64> {
    Some(match &info.element {
        Element::Float(format) => u64::from(format.element_bytes()?),
        Element::Other(name) => match name.as_str() {
            "I32" | "U32" => 4,
            "U8" | "I8" | "F8_E4M3" => 1,
            "I64" => 8,
            _ => return None,
        },
    })
}

/// The quantized matrix whose codes are in the tensor `name`, with the matrix's own name.
fn matrix(
    name: &str,
    info: &TensorInfo,
    all: &BTreeMap<String, TensorInfo>,
    method: Method,
) -> Result<Option<(String, Matrix)>, LoadError> {
    match method {
        Method::Gptq { .. } | Method::Awq { .. } => match name.strip_suffix(".qweight") {
            Some(stem) => Ok(Some((
                format!("{stem}.weight"),
                packed(stem, info, all, method)?,
            ))),
            None => Ok(None),
        },
        Method::Fp8 if info.element == Element::Other("F8_E4M3".into()) => {
            Ok(Some((name.into(), fp8(name, info, all)?)))
        }
        Method::Mxfp4 => match name.strip_suffix("_blocks") {
            Some(stem) => Ok(Some((stem.into(), mxfp4(stem, info, all)?))),
            None => Ok(None),
        },
        Method::Fp8 => Ok(None),
    }
}

fn part<'a>(
    name: String,
    near: &TensorInfo,
    all: &'a BTreeMap<String, TensorInfo>,
) -> Result<&'a TensorInfo, LoadError> {
    all.get(&name).ok_or_else(|| LoadError::TensorMissing {
        file: near.file.to_string(),
        tensor: name,
    })
}

/// Checks that a tensor has this shape and element type.
fn expect(
    name: String,
    info: &TensorInfo,
    shape: &[usize],
    element: &Element,
) -> Result<(), LoadError> {
    let expected: Vec<u64> = shape.iter().map(|size| *size as u64).collect();
    let file = info.file.to_string();
    if info.shape != expected {
        return Err(LoadError::TensorShape {
            file,
            tensor: name,
            found: info.shape.clone(),
            expected,
        });
    }
    if info.element != *element {
        return Err(invalid(
            info,
            &name,
            format!("is stored as {}, not {element}", info.element),
        ));
    }
    Ok(())
}

fn invalid(info: &TensorInfo, name: &str, message: String) -> LoadError {
    LoadError::Field {
        file: info.file.to_string(),
        field: format!("tensor {name:?}"),
        message,
    }
}

fn sizes(name: &str, info: &TensorInfo, dimensions: usize) -> Result<Vec<usize>, LoadError> {
    let sizes: Option<Vec<usize>> = info
        .shape
        .iter()
        .map(|size| {
            usize::try_from(*size)
                .ok()
                .filter(|size| *size > 0 && *size < 1 << 28)
        })
        .collect();
    sizes
        .filter(|sizes| sizes.len() == dimensions)
        .ok_or_else(|| {
            invalid(
                info,
                name,
                format!("has shape {:?}, not {dimensions} sizes", info.shape),
            )
        })
}

fn packed(
    stem: &str,
    info: &TensorInfo,
    all: &BTreeMap<String, TensorInfo>,
    method: Method,
) -> Result<Matrix, LoadError> {
    let name = |part: &str| format!("{stem}.{part}");
    let found = sizes(&name("qweight"), info, 2)?;
    let (rows, columns, group) = match method {
        Method::Awq { group } => (8 * found[1], found[0], group),
        Method::Gptq { group, .. } => (found[1], 8 * found[0], group),
        Method::Fp8 | Method::Mxfp4 => unreachable!("only these two pack eight codes a word"),
    };
    let group = group.min(columns);
    if columns % GROUP != 0 || columns % group != 0 || rows % 8 != 0 {
        let message =
            format!("is {rows} × {columns}, which is not a multiple of the group size {group}");
        return Err(invalid(info, &name("qweight"), message));
    }
    let (groups, words) = (columns / group, Element::Other("I32".into()));
    expect(name("qweight"), info, &found, &words)?;
    let half = Element::Float(WeightFormat::F16);
    expect(
        name("scales"),
        part(name("scales"), info, all)?,
        &[groups, rows],
        &half,
    )?;
    expect(
        name("qzeros"),
        part(name("qzeros"), info, all)?,
        &[groups, rows / 8],
        &words,
    )?;
    let mut parts = vec![name("qweight"), name("scales"), name("qzeros")];
    let act_order = matches!(
        method,
        Method::Gptq {
            act_order: true,
            ..
        }
    );
    if act_order {
        expect(
            name("g_idx"),
            part(name("g_idx"), info, all)?,
            &[columns],
            &words,
        )?;
        parts.push(name("g_idx"));
    }
    let format = if act_order {
        WeightFormat::Q8
    } else {
        WeightFormat::Q4Zero
    };
    Ok(Matrix {
        kind: Kind::Packed(method),
        parts,
        rows,
        columns,
        format,
    })
}

fn fp8(
    name: &str,
    info: &TensorInfo,
    all: &BTreeMap<String, TensorInfo>,
) -> Result<Matrix, LoadError> {
    let found = sizes(name, info, 2)?;
    let (rows, columns) = (found[0], found[1]);
    let block = [rows.div_ceil(BLOCK) as u64, columns.div_ceil(BLOCK) as u64];
    let names = ["_scale_inv", "_scale"].map(|suffix| format!("{name}{suffix}"));
    let scale = names
        .iter()
        .find(|name| all.contains_key(*name))
        .unwrap_or(&names[1]);
    let scale_info = part(scale.clone(), info, all)?;
    let scales = match &scale_info.shape[..] {
        [] | [1] | [1, 1] if rows > 1 => Fp8Scales::Tensor,
        [count] | [count, 1] if *count == rows as u64 => Fp8Scales::Row,
        shape if *shape == block => Fp8Scales::Block,
        shape => {
            let message = format!(
                "has shape {shape:?}, not one per tensor, row or block of {rows} × {columns}"
            );
            return Err(invalid(scale_info, scale, message));
        }
    };
    let is_bf16 = match &scale_info.element {
        Element::Float(WeightFormat::F32) => false,
        Element::Float(WeightFormat::Bf16) => true,
        other => {
            return Err(invalid(
                scale_info,
                scale,
                format!("is stored as {other:?}, not F32 or BF16"),
            ));
        }
    };
    let (kind, format) = (Kind::Fp8 { scales, is_bf16 }, WeightFormat::E4m3);
    Ok(Matrix {
        kind,
        parts: vec![name.into(), scale.clone()],
        rows,
        columns,
        format,
    })
}

fn mxfp4(
    stem: &str,
    info: &TensorInfo,
    all: &BTreeMap<String, TensorInfo>,
) -> Result<Matrix, LoadError> {
    let (blocks, scales) = (format!("{stem}_blocks"), format!("{stem}_scales"));
    let found = sizes(&blocks, info, 4)?;
    let bytes = Element::Other("U8".into());
    expect(
        blocks.clone(),
        info,
        &[found[0], found[1], found[2], GROUP / 2],
        &bytes,
    )?;
    expect(
        scales.clone(),
        part(scales.clone(), info, all)?,
        &found[..3],
        &bytes,
    )?;
    let (rows, columns) = (found[0] * found[1], found[2] * GROUP);
    let parts = vec![blocks, scales];
    Ok(Matrix {
        kind: Kind::Mxfp4,
        parts,
        rows,
        columns,
        format: WeightFormat::Mxfp4,
    })
}

impl TensorSource for Prequantized {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.infos
    }

    fn read<'a>(&'a self, tensor: &'a str, bytes: Range<u64>) -> TensorRead<'a> {
        let Some(matrix) = self.matrices.get(tensor) else {
            return self.inner.read(tensor, bytes);
        };
        Box::pin(async move {
            let mut parts = Vec::with_capacity(matrix.parts.len());
            for part in &matrix.parts {
                parts.push(self.whole(part).await?);
            }
            let row_bytes = matrix.format.row_bytes(matrix.columns as u32);
            let rows = (bytes.start / row_bytes) as usize..(bytes.end / row_bytes) as usize;
            assert_eq!(
                rows.len() as u64 * row_bytes,
                bytes.end - bytes.start,
                "quantized tensors are read by rows"
            );
            matrix
                .check(&parts, &rows)
                .map_err(|message| invalid(&self.infos[tensor], tensor, message.into()))?;
            Ok(matrix.rows(&parts, rows))
        })
    }

    fn check(&self) -> Result<(), LoadError> {
        self.inner.check()
    }
}

impl Matrix {
    /// Checks contents that shapes do not determine.
    fn check(&self, parts: &[Bytes], rows: &Range<usize>) -> Result<(), &'static str> {
        match self.kind {
            Kind::Packed(Method::Gptq {
                group,
                act_order: true,
                ..
            }) => {
                let groups = self.columns / group.min(self.columns);
                let known =
                    (0..self.columns).all(|column| (word(&parts[3], column) as usize) < groups);
                known
                    .then_some(())
                    .ok_or("has a g_idx beyond its last group")
            }
            Kind::Fp8 { .. } => {
                let codes = &parts[0][rows.start * self.columns..rows.end * self.columns];
                let numbers = codes.iter().all(|code| code & 0x7f != 0x7f);
                numbers.then_some(()).ok_or("contains a NaN")
            }
            _ => Ok(()),
        }
    }

    /// Rows in the device's format.
    fn rows(&self, parts: &[Bytes], rows: Range<usize>) -> Bytes {
        let row_bytes = self.format.row_bytes(self.columns as u32) as usize;
        let mut out = vec![0; rows.len() * row_bytes];
        platform::for_each_chunk(&mut out, PIECE_ROWS * row_bytes, |piece, out| {
            let first = rows.start + piece * PIECE_ROWS;
            for (row, out) in (first..).zip(out.chunks_exact_mut(row_bytes)) {
                match self.kind {
                    Kind::Packed(Method::Gptq {
                        act_order: true,
                        zero_offset,
                        ..
                    }) => {
                        self.act_ordered(parts, row, zero_offset, out);
                    }
                    Kind::Packed(method) => self.four_bits(parts, row, method, out),
                    Kind::Fp8 { scales, is_bf16 } => self.e4m3(parts, row, (scales, is_bf16), out),
                    Kind::Mxfp4 => self.e2m1(parts, row, out),
                }
            }
        });
        out.into()
    }

    fn four_bits(&self, parts: &[Bytes], row: usize, method: Method, out: &mut [u8]) {
        let (rows, mut writer) = (self.rows, RowWriter::new(self.format, self.columns, out));
        let place = AWQ_PLACES[row % 8];
        for at in 0..self.columns / GROUP {
            writer.codes(
                at,
                &std::array::from_fn(|i: usize| {
                    let column = GROUP * at + i;
                    match method {
                        Method::Awq { .. } => {
                            nibble(&parts[0], column * (rows / 8) + row / 8, place)
                        }
                        _ => nibble(&parts[0], column / 8 * rows + row, column % 8),
                    }
                }),
            );
            let (group, zero_place, zero_offset) = match method {
                Method::Gptq {
                    group, zero_offset, ..
                } => (group, row % 8, zero_offset),
                Method::Awq { group } => (group, place, 0),
                Method::Fp8 | Method::Mxfp4 => {
                    unreachable!("only these two pack eight codes a word")
                }
            };
            let group = GROUP * at / group.min(self.columns);
            let scale = &parts[1][2 * (group * rows + row)..][..2];
            let zero = i16::from(nibble(&parts[2], group * (rows / 8) + row / 8, zero_place))
                + zero_offset;
            writer.scale(at, &[scale, &zero.to_le_bytes()].concat());
        }
    }

    fn act_ordered(&self, parts: &[Bytes], row: usize, zero_offset: i16, out: &mut [u8]) {
        let rows = self.rows;
        let value = |column: usize| {
            let group = word(&parts[3], column) as usize;
            let at = 2 * (group * rows + row);
            let scale = f16::from_le_bytes([parts[1][at], parts[1][at + 1]]).to_f32();
            let zero =
                i16::from(nibble(&parts[2], group * (rows / 8) + row / 8, row % 8)) + zero_offset;
            let code = i16::from(nibble(&parts[0], column / 8 * rows + row, column % 8));
            scale * f32::from(code - zero)
        };
        let values: Vec<f32> = (0..self.columns).map(value).collect();
        quantize_row(self.format, &values, self.columns, out);
    }

    fn e4m3(
        &self,
        parts: &[Bytes],
        row: usize,
        (scales, is_bf16): (Fp8Scales, bool),
        out: &mut [u8],
    ) {
        let blocks = self.columns.div_ceil(BLOCK);
        let codes = &parts[0][row * self.columns..][..self.columns];
        let mut writer = RowWriter::new(self.format, self.columns, out);
        for (at, codes) in codes.chunks(GROUP).enumerate() {
            writer.codes(
                at,
                &std::array::from_fn(|i| codes.get(i).copied().unwrap_or(0)),
            );
        }
        for block in 0..blocks {
            let at = match scales {
                Fp8Scales::Tensor => 0,
                Fp8Scales::Row => row,
                Fp8Scales::Block => row / BLOCK * blocks + block,
            };
            let scale = if is_bf16 {
                bf16::from_le_bytes([parts[1][2 * at], parts[1][2 * at + 1]]).to_f32()
            } else {
                f32::from_bits(word(&parts[1], at))
            };
            writer.scale(block, &scale.to_le_bytes());
        }
    }

    /// Decodes E2M1: elements 2i and 2i + 1 share a byte.
    fn e2m1(&self, parts: &[Bytes], row: usize, out: &mut [u8]) {
        let groups = self.columns / GROUP;
        let mut writer = RowWriter::new(self.format, self.columns, out);
        for at in 0..groups {
            let bytes = &parts[0][(row * groups + at) * GROUP / 2..][..GROUP / 2];
            writer.codes(
                at,
                &std::array::from_fn(|i| bytes[i / 2] >> (4 * (i % 2)) & 15),
            );
            writer.scale(at, &parts[1][row * groups + at..][..1]);
        }
    }
}

fn word(bytes: &[u8], index: usize) -> u32 {
    let word = &bytes[4 * index..][..4];
    u32::from_le_bytes([word[0], word[1], word[2], word[3]])
}

fn nibble(words: &[u8], index: usize, place: usize) -> u8 {
    (word(words, index) >> (4 * place)) as u8 & 15
}

#[cfg(test)]
mod tests;
