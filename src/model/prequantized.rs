//! Checkpoints that were published quantized, read without conversion: GPTQ and AutoRound, AWQ, FP8, MXFP4 and NVFP4,
//! compressed-tensors, ModelOpt, bitsandbytes and MLX.
//!
//! A [`Prequantized`] source wraps the files. For each quantized matrix it lists one tensor in a device format, under
//! the name it has in an ordinary checkpoint; [`matrix`] says what becomes of its numbers. Scales of activations and of
//! the KV cache are not used: weights are what the file says, and activations are not rounded.

mod config;
mod matrix;
mod parts;
mod tensors;

use super::error::LoadError;
use super::source::{Element, TensorInfo, TensorRead, TensorSource};
use crate::plan::WeightFormat;
use crate::platform;
use bytes::Bytes;
use config::Method;
pub(super) use config::OTHER_FILES;
use matrix::Matrix;
use parts::{Tensors, invalid, is_stored};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::OnceLock;
use tensors::Found;

/// Rows per task of parallel repacking.
const PIECE_ROWS: usize = 16;

/// A source that wraps a quantized checkpoint's files.
pub(super) struct Prequantized {
    inner: Box<dyn TensorSource>,
    infos: BTreeMap<String, TensorInfo>,
    matrices: BTreeMap<String, Matrix>,
}

/// Fails if the weights of a checkpoint are quantized although its config names no method.
fn check_plain(file: &str, tensors: &BTreeMap<String, TensorInfo>) -> Result<(), LoadError> {
    let format = tensors
        .iter()
        .find_map(|(name, info)| match name.rsplit_once('.')?.1 {
            "qweight" => Some("GPTQ or AWQ"),
            "absmax" | "nf4" | "fp4" => Some("bitsandbytes"),
            "SCB" => Some("bitsandbytes (8 bits)"),
            "scales" if tensors.contains_key(&name.replace(".scales", ".biases")) => {
                Some("MLX's format")
            }
            "trellis" => Some("EXL3"),
            "W_q" => Some("HQQ"),
            "weight" if is_stored(info, "F8_E4M3") => Some("FP8"),
            "weight" if is_stored(info, "I8") => Some("signed bytes"),
            "weight" if is_stored(info, "U8") => Some("packed bytes"),
            "weight_packed" => Some("packed integers (compressed-tensors)"),
            _ => None,
        });
    let Some(format) = format else { return Ok(()) };
    let message = format!(
        "is missing, but the weights are quantized: {format}. Other files than {file}, {} are not read",
        OTHER_FILES.join(" and ")
    );
    Err(LoadError::Field {
        file: file.into(),
        field: "quantization_config".into(),
        message,
    })
}

/// Wraps `source` to show quantized tensors as ordinary ones, if a config says that the checkpoint is quantized: the
/// first of `configs`, files with their contents, that names a method.
pub(super) async fn unpacked(
    configs: &[(&str, &[u8])],
    source: Box<dyn TensorSource>,
) -> Result<Box<dyn TensorSource>, LoadError> {
    for (file, json) in configs {
        if let Some(method) = config::method(file, json)? {
            return Ok(Box::new(Prequantized::new(source, &method).await?));
        }
    }
    check_plain(configs[0].0, source.tensors())?;
    Ok(source)
}

impl Prequantized {
    async fn new(inner: Box<dyn TensorSource>, method: &Method) -> Result<Self, LoadError> {
        let all = inner.tensors();
        let tensors = Tensors {
            source: inner.as_ref(),
            all,
        };
        let mut infos = all.clone();
        let mut matrices = BTreeMap::new();
        for (stored, info) in all {
            for found in tensors.matrices(stored, method).await? {
                let Found {
                    name,
                    shape,
                    matrix,
                } = found;
                let element = Element::Float(matrix.format);
                let file = info.file.clone();
                let info = TensorInfo {
                    file,
                    shape,
                    element,
                };
                infos.insert(name.clone(), info);
                matrices.insert(name, matrix);
            }
        }
        warn_of_widened(inner.name(), &matrices);
        Ok(Self {
            inner,
            infos,
            matrices,
        })
    }
}

/// Says which matrices take more memory on the device than in the file.
fn warn_of_widened(file: &str, matrices: &BTreeMap<String, Matrix>) {
    let is_wide = |matrix: &&Matrix| matrix.format == WeightFormat::F32;
    let count = matrices.values().filter(is_wide).count();
    let first = matrices.iter().find(|(_, matrix)| is_wide(matrix));
    if let Some((name, matrix)) = first {
        tracing::warn!(
            "{file}: {count} of {} quantized matrices fit none of the device's quantized formats and are widened to \
             f32, the first of them {name} ({} × {})",
            matrices.len(),
            matrix.rows,
            matrix.columns
        );
    }
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
                parts.push(self.inner.read(&part.name, part.bytes.clone()).await?);
            }
            let row_bytes = matrix.format.row_bytes(matrix.columns as u32);
            let rows = (bytes.start / row_bytes) as usize..(bytes.end / row_bytes) as usize;
            assert_eq!(
                rows.len() as u64 * row_bytes,
                bytes.end - bytes.start,
                "quantized tensors are read by rows"
            );
            matrix
                .read(&parts, rows)
                .map_err(|message| invalid(&self.infos[tensor], tensor, message.into()))
        })
    }

    fn check(&self) -> Result<(), LoadError> {
        self.inner.check()
    }
}

impl Matrix {
    /// Rows in the device's format.
    fn read(&self, parts: &[Bytes], rows: Range<usize>) -> Result<Bytes, &'static str> {
        let row_bytes = self.format.row_bytes(self.columns as u32) as usize;
        let mut out = vec![0; rows.len() * row_bytes];
        let fault = OnceLock::new();
        platform::for_each_chunk(&mut out, PIECE_ROWS * row_bytes, |piece, out| {
            let first = rows.start + piece * PIECE_ROWS;
            for (row, out) in (first..).zip(out.chunks_exact_mut(row_bytes)) {
                if let Err(message) = self.write(parts, row, out) {
                    fault.get_or_init(|| message);
                }
            }
        });
        match fault.into_inner() {
            Some(message) => Err(message),
            None => Ok(out.into()),
        }
    }
}

#[cfg(test)]
mod tests;
