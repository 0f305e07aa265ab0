//! Collects the tensors that form a matrix, and checks their shapes and types.

use super::matrix::{
    BLOCK, Codes, Factor, Groups, Matrix, Number, Numbers, Packing, Part, Places, Scale, Zero,
};
use crate::model::error::LoadError;
use crate::model::source::{Element, TensorInfo, TensorSource};
use crate::plan::WeightFormat;
use crate::plan::format::{GROUP, Levels};
use bytes::Bytes;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Maximum bytes of a tensor that is read while a checkpoint is opened.
const SMALL_BYTES_MAX: u64 = 64 << 10;

/// The tensors of a checkpoint while its matrices are sought.
#[derive(Clone, Copy)]
pub(super) struct Tensors<'a> {
    pub(super) source: &'a dyn TensorSource,
    pub(super) all: &'a BTreeMap<String, TensorInfo>,
}

/// A matrix whose parts are being collected.
pub(super) struct Parts<'a> {
    tensors: Tensors<'a>,
    near: &'a TensorInfo,
    parts: Vec<Part>,
}

impl<'a> Tensors<'a> {
    pub(super) fn missing(self, name: &str, near: &TensorInfo) -> LoadError {
        LoadError::TensorMissing {
            file: near.file.to_string(),
            tensor: name.into(),
        }
    }

    pub(super) fn part(self, name: &str, near: &TensorInfo) -> Result<&'a TensorInfo, LoadError> {
        self.all.get(name).ok_or_else(|| self.missing(name, near))
    }

    /// All bytes of a small tensor.
    pub(super) async fn small(self, name: &str, info: &TensorInfo) -> Result<Bytes, LoadError> {
        match tensor_bytes(info) {
            Some(bytes @ 0..=SMALL_BYTES_MAX) => self.source.read(name, 0..bytes).await,
            _ => Err(invalid(
                info,
                name,
                format!("has the shape {:?}", info.shape),
            )),
        }
    }
}

impl<'a> Parts<'a> {
    /// None yet; errors name the file of `near`.
    pub(super) fn new(tensors: Tensors<'a>, near: &'a TensorInfo) -> Self {
        Self {
            tensors,
            near,
            parts: Vec::new(),
        }
    }
}

impl Parts<'_> {
    /// Adds a tensor, which must have this shape and one of these types.
    pub(super) fn add(
        &mut self,
        name: &str,
        shape: &[usize],
        elements: &[&str],
    ) -> Result<usize, LoadError> {
        let info = self.tensors.part(name, self.near)?;
        let expected: Vec<u64> = shape.iter().map(|size| *size as u64).collect();
        if info.shape != expected {
            return Err(LoadError::TensorShape {
                file: info.file.to_string(),
                tensor: name.into(),
                found: info.shape.clone(),
                expected,
            });
        }
        let stored = stored_as(info);
        if !elements.contains(&stored.as_str()) {
            let message = format!("is stored as {stored}, not {}", elements.join(" or "));
            return Err(invalid(info, name, message));
        }
        let bytes = 0..tensor_bytes(info).unwrap_or(0);
        self.parts.push(Part {
            name: name.into(),
            bytes,
        });
        Ok(self.parts.len() - 1)
    }

    /// Adds a tensor of floats.
    pub(super) fn numbers(&mut self, name: &str, shape: &[usize]) -> Result<Numbers, LoadError> {
        let part = self.add(name, shape, &["F32", "F16", "BF16"])?;
        let info = self.tensors.part(name, self.near)?;
        let number = number_of(info).unwrap_or(Number::F32);
        Ok(Numbers { part, number })
    }

    pub(super) fn optional_numbers(
        &mut self,
        name: &str,
        count: usize,
    ) -> Result<Option<Numbers>, LoadError> {
        match self.tensors.all.contains_key(name) {
            true => self.numbers(name, &[count]).map(Some),
            false => Ok(None),
        }
    }

    pub(super) fn one_number(&mut self, name: &str) -> Result<Numbers, LoadError> {
        let info = self.tensors.part(name, self.near)?;
        let shape: &[usize] = if info.shape.is_empty() { &[] } else { &[1] };
        self.numbers(name, shape)
    }

    /// Adds scales in rows, and returns how many each row has.
    pub(super) fn scales_of_rows(
        &mut self,
        name: &str,
        rows: usize,
    ) -> Result<(Numbers, usize), LoadError> {
        let info = self.tensors.part(name, self.near)?;
        let [found, groups] = sizes(name, info)?;
        let Some(number) = number_of(info) else {
            return Err(invalid(
                info,
                name,
                format!("is stored as {}", stored_as(info)),
            ));
        };
        if found != rows {
            let message = format!(
                "is {found} × {groups} of {}, not {rows} rows of scales",
                stored_as(info)
            );
            return Err(invalid(info, name, message));
        }
        let part = self.add(name, &[rows, groups], &[&stored_as(info)])?;
        Ok((Numbers { part, number }, groups))
    }

    /// Adds the scales of a matrix: one, one a row, one per block of 128 × 128, or exponents per 32 columns. Returns
    /// the columns that share one too.
    pub(super) fn scale_of(
        &mut self,
        name: &str,
        [rows, columns]: [usize; 2],
    ) -> Result<(Numbers, Places, usize), LoadError> {
        let info = self.tensors.part(name, self.near)?;
        let shape: Vec<usize> = info.shape.iter().map(|size| *size as usize).collect();
        let blocks = [rows.div_ceil(BLOCK), columns.div_ceil(BLOCK)];
        let number = number_of(info);
        let (places, group) = match (&shape[..], number) {
            ([found, groups], Some(Number::E8m0))
                if *found == rows && groups * GROUP == columns =>
            {
                (Places::Groups(*groups), GROUP)
            }
            ([] | [1] | [1, 1], Some(_)) if rows > 1 => (Places::One, columns),
            ([count] | [count, 1], Some(_)) if *count == rows => (Places::Row, columns),
            (shape, Some(_)) if *shape == blocks => (Places::Blocks(blocks[1]), BLOCK),
            ([found, groups], Some(_)) if *found == rows && columns % groups.max(&1) == 0 => {
                (Places::Groups(*groups), columns / groups)
            }
            (shape, _) => {
                let message = format!(
                    "has shape {shape:?} of {}, not one scale per tensor, row, group or block of {rows} × {columns}",
                    stored_as(info)
                );
                return Err(invalid(info, name, message));
            }
        };
        let part = self.add(name, &shape, &[&stored_as(info)])?;
        let number = number.unwrap_or(Number::F32);
        Ok((Numbers { part, number }, places, group))
    }

    /// MLX's float modes: E2M1 or E4M3 with exponents, or with E4M3 scales if 16 columns share one.
    pub(super) fn mlx_floats(
        self,
        size: [usize; 2],
        (packing, bits): (Packing, usize),
        group: usize,
        (part, places): (usize, Places),
    ) -> Matrix {
        let number = if group == GROUP / 2 {
            Number::E4m3
        } else {
            Number::E8m0
        };
        let scales = (Numbers { part, number }, places);
        let mut matrix = self.floats(size, packing, group, scales, Factor::None);
        matrix.codes.bits = bits;
        if bits == 8 {
            matrix.levels = Levels::E4m3;
        }
        matrix
    }

    /// Adds the scales of bitsandbytes' blocks, which may be quantized themselves.
    pub(super) fn absmax(
        &mut self,
        name: &str,
        state: &State,
    ) -> Result<(Numbers, Factor), LoadError> {
        let blocks = state.shape.iter().product::<usize>().div_ceil(state.block);
        let absmax = format!("{name}.absmax");
        let Some((block, offset)) = state.nested else {
            return Ok((self.numbers(&absmax, &[blocks])?, Factor::None));
        };
        let part = self.add(&absmax, &[blocks], &["U8"])?;
        let number = Number::U8;
        let table = self.numbers(&format!("{name}.nested_quant_map"), &[256])?;
        let count = [blocks.div_ceil(block)];
        let scales = self.numbers(&format!("{name}.nested_absmax"), &count)?;
        let nested = Factor::Nested {
            table,
            scales,
            block,
            offset,
        };
        Ok((Numbers { part, number }, nested))
    }

    /// A matrix without scales or zero points yet.
    pub(super) fn matrix(self, rows: usize, columns: usize) -> Matrix {
        Matrix {
            parts: self.parts,
            rows,
            columns,
            codes: Codes {
                packing: Packing::Columns,
                bits: 0,
                inverted: 0,
            },
            levels: Levels::Unsigned(0),
            groups: Groups::Of(columns),
            scale: Scale {
                numbers: Numbers {
                    part: 0,
                    number: Number::F32,
                },
                places: Places::One,
                factor: Factor::None,
            },
            zero: Zero::None,
            column_factors: None,
            format: WeightFormat::F32,
        }
    }

    pub(super) fn integers(
        self,
        [rows, columns]: [usize; 2],
        (packing, bits): (Packing, usize),
        groups: Groups,
        (numbers, places): (Numbers, Places),
        zero: Zero,
    ) -> Matrix {
        Matrix {
            codes: Codes {
                packing,
                bits,
                inverted: 0,
            },
            groups,
            scale: Scale {
                numbers,
                places,
                factor: Factor::None,
            },
            zero,
            ..self.matrix(rows, columns)
        }
    }

    /// E2M1.
    pub(super) fn floats(
        self,
        [rows, columns]: [usize; 2],
        packing: Packing,
        group: usize,
        (numbers, places): (Numbers, Places),
        factor: Factor,
    ) -> Matrix {
        Matrix {
            codes: Codes {
                packing,
                bits: 4,
                inverted: 0,
            },
            levels: Levels::E2m1,
            groups: Groups::Of(group),
            scale: Scale {
                numbers,
                places,
                factor,
            },
            ..self.matrix(rows, columns)
        }
    }
}

/// What the JSON text beside a matrix of bitsandbytes says.
pub(super) struct State {
    pub(super) block: usize,
    pub(super) shape: [usize; 2],
    /// Codes of scales that share a scale, and what is added to them.
    pub(super) nested: Option<(usize, f32)>,
}

impl State {
    pub(super) async fn read(
        tensors: Tensors<'_>,
        name: &str,
        near: &TensorInfo,
    ) -> Result<Self, LoadError> {
        #[derive(Deserialize)]
        struct Stored {
            blocksize: u32,
            shape: Vec<u32>,
            nested_blocksize: Option<u32>,
            nested_offset: Option<f32>,
        }
        let info = tensors.part(name, near)?;
        let bytes = tensors.small(name, info).await?;
        let stored: Stored = serde_json::from_slice(&bytes)
            .map_err(|error| invalid(info, name, format!("is not its JSON: {error}")))?;
        let shape: Vec<usize> = stored.shape.iter().map(|size| *size as usize).collect();
        let is_size = |size: &usize| (1..1 << 28).contains(size);
        let (Ok(shape), true) = (<[usize; 2]>::try_from(shape), stored.blocksize > 0) else {
            return Err(invalid(
                info,
                name,
                "has no shape of two sizes or no block size".into(),
            ));
        };
        if !shape.iter().all(is_size) {
            return Err(invalid(info, name, format!("has the shape {shape:?}")));
        }
        let nested = match (stored.nested_blocksize, stored.nested_offset) {
            (Some(block @ 1..), offset) => Some((block as usize, offset.unwrap_or(0.0))),
            (Some(0), _) => return Err(invalid(info, name, "has nested blocks of nothing".into())),
            (None, _) => None,
        };
        Ok(Self {
            block: stored.blocksize as usize,
            shape,
            nested,
        })
    }
}

/// The sizes of a tensor, which must be this many.
pub(super) fn sizes<const N: usize>(
    name: &str,
    info: &TensorInfo,
) -> Result<[usize; N], LoadError> {
    let sizes = info.shape.iter().map(|size| *size as usize);
    let sizes: Vec<usize> = sizes.filter(|size| (1..1 << 28).contains(size)).collect();
    <[usize; N]>::try_from(sizes).map_err(|_| {
        let message = format!("has shape {:?}, not {N} sizes", info.shape);
        invalid(info, name, message)
    })
}

pub(super) fn tensor_bytes(info: &TensorInfo) -> Option<u64> {
    let elements = info
        .shape
        .iter()
        .try_fold(1u64, |all, size| all.checked_mul(*size));
    elements?.checked_mul(element_bytes(info)?)
}

pub(super) fn element_bytes(info: &TensorInfo) -> Option<u64> {
    Some(match &info.element {
        Element::Float(format) => u64::from(format.element_bytes()?),
        Element::Other(name) => match name.as_str() {
            "I32" | "U32" => 4,
            "U8" | "I8" | "F8_E4M3" | "F8_E8M0" => 1,
            "I64" => 8,
            _ => return None,
        },
    })
}

/// The name of a tensor's type in its file.
pub(super) fn stored_as(info: &TensorInfo) -> String {
    match &info.element {
        Element::Float(format) => format.to_string().to_uppercase(),
        Element::Other(name) => name.clone(),
    }
}

fn number_of(info: &TensorInfo) -> Option<Number> {
    Some(match stored_as(info).as_str() {
        "F32" => Number::F32,
        "F16" => Number::F16,
        "BF16" => Number::Bf16,
        "U8" | "F8_E8M0" => Number::E8m0,
        "F8_E4M3" => Number::E4m3,
        _ => return None,
    })
}

pub(super) fn is_stored(info: &TensorInfo, name: &str) -> bool {
    info.element == Element::Other(name.into())
}

pub(super) fn invalid(info: &TensorInfo, name: &str, message: String) -> LoadError {
    LoadError::Field {
        file: info.file.to_string(),
        field: format!("tensor {name:?}"),
        message,
    }
}
