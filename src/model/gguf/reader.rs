//! Parses the container: metadata and the list of tensors. Every length is checked against the rest of the file before
//! it is used to allocate or skip anything, so a hostile file cannot use more memory than its size.

use super::blocks::BlockType;
use crate::model::error::LoadError;
use crate::model::stand_in::stand_in;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Default of `general.alignment`.
const ALIGNMENT_DEFAULT: u64 = 32;
const ALIGNMENT_MAX: u64 = 64 << 10;
/// Maximum dimensions of a tensor.
const DIMENSIONS_MAX: u32 = 4;
/// Maximum bytes of a name.
const NAME_BYTES_MAX: usize = 1024;
/// Maximum keys and tensors of a file: far more than any model has, and few enough not to exhaust memory.
const PAIRS_MAX: u64 = 1 << 16;
const ENTRIES_MAX: u64 = 1 << 20;
/// Minimum bytes of a key with its value, and of a tensor's entry.
const PAIR_BYTES_MIN: u64 = 13;
const ENTRY_BYTES_MIN: u64 = 32;

/// The parsed header of a file. Strings and lists are byte ranges of the file.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) metadata: BTreeMap<String, Value>,
    pub(super) tensors: BTreeMap<String, Entry>,
    /// The keys in their order, each with the bytes of key and value.
    pub(super) pairs: Vec<(String, Range<usize>)>,
}

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Integer(i128),
    Number(f64),
    Boolean(bool),
    Text(Range<usize>),
    List(List),
}

/// A metadata list; not nested.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct List {
    pub(super) kind: Kind,
    pub(super) count: usize,
    pub(super) bytes: Range<usize>,
}

/// A tensor's entry in the file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    /// Row-major dimensions, which the file stores in reverse.
    pub(super) shape: Vec<u64>,
    pub(super) blocks: BlockType,
    /// Byte range in the file.
    pub(super) bytes: Range<u64>,
}

/// Types of metadata values, by their numbers in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Boolean,
    Text,
    List,
    U64,
    I64,
    F64,
}

impl Kind {
    fn from_number(number: u32) -> Option<Self> {
        use Kind::{Boolean, F32, F64, I8, I16, I32, I64, List, Text, U8, U16, U32, U64};
        let kinds = [
            U8, I8, U16, I16, U32, I32, F32, Boolean, Text, List, U64, I64, F64,
        ];
        kinds.get(number as usize).copied()
    }

    /// Bytes of a value; the minimum for strings and lists.
    fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Boolean => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::Text => 8,
            Self::List => 12,
        }
    }
}

/// A reading position in a file; errors name the file.
pub(super) struct Cursor<'a> {
    file: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(file: &'a str, bytes: &'a [u8], at: usize) -> Self {
        Self { file, bytes, at }
    }

    fn invalid(&self, field: &str, message: impl Into<String>) -> LoadError {
        LoadError::Field {
            file: self.file.into(),
            field: field.into(),
            message: message.into(),
        }
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn take(&mut self, field: &str, count: u64) -> Result<&'a [u8], LoadError> {
        let left = self.left();
        let count = usize::try_from(count)
            .ok()
            .filter(|count| *count <= left)
            .ok_or_else(|| {
                self.invalid(
                    field,
                    format!(
                        "needs {count} bytes at offset {}, the file has {left} left",
                        self.at
                    ),
                )
            })?;
        self.at += count;
        Ok(&self.bytes[self.at - count..self.at])
    }

    fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N], LoadError> {
        let bytes = self.take(field, N as u64)?;
        Ok(std::array::from_fn(|index| bytes[index]))
    }

    fn u32(&mut self, field: &str) -> Result<u32, LoadError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    fn u64(&mut self, field: &str) -> Result<u64, LoadError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// A count, at most `max`, of items that take at least `bytes_min` bytes each.
    fn count(&mut self, field: &str, bytes_min: u64, max: u64) -> Result<u64, LoadError> {
        let count = self.u64(field)?;
        if count > max {
            return Err(self.invalid(field, format!("is {count}, more than {max}")));
        }
        if count > self.left() as u64 / bytes_min {
            let left = self.left();
            return Err(self.invalid(
                field,
                format!("is {count}, more than {left} bytes can hold"),
            ));
        }
        Ok(count)
    }

    pub(super) fn text(&mut self, field: &str) -> Result<Range<usize>, LoadError> {
        let length = self.u64(field)?;
        let length = self.take(field, length)?.len();
        Ok(self.at - length..self.at)
    }

    fn name(&mut self, field: &str) -> Result<String, LoadError> {
        let range = self.text(field)?;
        if range.is_empty() || range.len() > NAME_BYTES_MAX {
            return Err(self.invalid(field, format!("has a name of {} bytes", range.len())));
        }
        match std::str::from_utf8(&self.bytes[range]) {
            Ok(name) => Ok(name.to_owned()),
            Err(_) => Err(self.invalid(field, "has a name that is not UTF-8")),
        }
    }

    fn kind(&mut self, field: &str) -> Result<Kind, LoadError> {
        let number = self.u32(field)?;
        Kind::from_number(number)
            .ok_or_else(|| self.invalid(field, format!("has a value of unknown type {number}")))
    }

    fn value(&mut self, field: &str) -> Result<Value, LoadError> {
        match self.kind(field)? {
            Kind::List => {
                let kind = self.kind(field)?;
                if kind == Kind::List {
                    return Err(self.invalid(field, "is a list of lists, which is not supported"));
                }
                let count = self.count(field, kind.bytes() as u64, u64::MAX)?;
                let start = self.at;
                for _ in 0..count {
                    self.scalar(field, kind)?;
                }
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                Ok(Value::List(List {
                    kind,
                    count,
                    bytes: start..self.at,
                }))
            }
            kind => self.scalar(field, kind),
        }
    }

    /// A value that is not a list.
    pub(super) fn scalar(&mut self, field: &str, kind: Kind) -> Result<Value, LoadError> {
        Ok(match kind {
            Kind::U8 => Value::Integer(u8::from_le_bytes(self.array(field)?).into()),
            Kind::I8 => Value::Integer(i8::from_le_bytes(self.array(field)?).into()),
            Kind::U16 => Value::Integer(u16::from_le_bytes(self.array(field)?).into()),
            Kind::I16 => Value::Integer(i16::from_le_bytes(self.array(field)?).into()),
            Kind::U32 => Value::Integer(self.u32(field)?.into()),
            Kind::I32 => Value::Integer(i32::from_le_bytes(self.array(field)?).into()),
            Kind::U64 => Value::Integer(self.u64(field)?.into()),
            Kind::I64 => Value::Integer(i64::from_le_bytes(self.array(field)?).into()),
            Kind::F32 => Value::Number(f32::from_le_bytes(self.array(field)?).into()),
            Kind::F64 => Value::Number(f64::from_le_bytes(self.array(field)?)),
            Kind::Text => Value::Text(self.text(field)?),
            Kind::Boolean => match self.array::<1>(field)?[0] {
                flag @ 0..=1 => Value::Boolean(flag == 1),
                other => {
                    return Err(self.invalid(field, format!("is {other}, neither true nor false")));
                }
            },
            Kind::List => return Err(self.invalid(field, "is a list within a list")),
        })
    }
}

/// Reads the header of a file from its first bytes and locates its tensors; `file_bytes` is the length of the whole
/// file.
pub(super) fn read(file: &str, bytes: &[u8], file_bytes: u64) -> Result<Container, LoadError> {
    let mut cursor = Cursor::new(file, bytes, 0);
    let header = |message: String| LoadError::Header {
        file: file.into(),
        message,
    };
    if let Some(message) = stand_in(bytes) {
        return Err(header(message.into()));
    }
    if cursor.array::<4>("magic")? != *b"GGUF" {
        return Err(header(
            "is not a GGUF file: it does not begin with GGUF".into(),
        ));
    }
    match cursor.u32("version")? {
        2 | 3 => {}
        version if version > 0xffff && version.swap_bytes() < 16 => {
            return Err(header(
                "is a big-endian GGUF file; only little-endian ones are supported".into(),
            ));
        }
        version => {
            return Err(header(format!(
                "is of GGUF version {version}; 2 and 3 are supported"
            )));
        }
    }
    // The number of entries comes before the metadata, the entries after it.
    let entries = cursor.count("tensor_count", ENTRY_BYTES_MIN, ENTRIES_MAX)?;
    let pairs = cursor.count("metadata_kv_count", PAIR_BYTES_MIN, PAIRS_MAX)?;
    let mut metadata = BTreeMap::new();
    let mut ranges = Vec::new();
    for index in 0..pairs {
        let start = cursor.at;
        let key = cursor.name(&format!("metadata[{index}]"))?;
        let value = cursor.value(&key)?;
        if metadata.insert(key.clone(), value).is_some() {
            return Err(cursor.invalid(&key, "is a duplicate"));
        }
        ranges.push((key, start..cursor.at));
    }
    let mut listed = Vec::new();
    let mut names = BTreeSet::new();
    for index in 0..entries {
        let (name, entry) = read_entry(&mut cursor, &format!("tensor[{index}]"))?;
        if !names.insert(name.clone()) {
            return Err(cursor.invalid(&format!("tensor {name:?}"), "is a duplicate"));
        }
        listed.push((name, entry));
    }
    let alignment = alignment(&cursor, &metadata)?;
    let data = (cursor.at as u64).next_multiple_of(alignment);
    Ok(Container {
        tensors: place(&cursor, listed, data..file_bytes, alignment)?,
        metadata,
        pairs: ranges,
    })
}

fn alignment(cursor: &Cursor<'_>, metadata: &BTreeMap<String, Value>) -> Result<u64, LoadError> {
    let key = "general.alignment";
    match metadata.get(key) {
        None => Ok(ALIGNMENT_DEFAULT),
        Some(Value::Integer(value)) => u64::try_from(*value)
            .ok()
            .filter(|value| value.is_power_of_two() && *value <= ALIGNMENT_MAX)
            .ok_or_else(|| {
                cursor.invalid(
                    key,
                    format!("is {value}, not a power of two up to {ALIGNMENT_MAX}"),
                )
            }),
        Some(_) => Err(cursor.invalid(key, "is not an integer")),
    }
}

/// A tensor's entry, with its offset from the start of the data.
struct Listed {
    shape: Vec<u64>,
    blocks: BlockType,
    offset: u64,
    bytes: u64,
}

fn read_entry(cursor: &mut Cursor<'_>, field: &str) -> Result<(String, Listed), LoadError> {
    let name = cursor.name(field)?;
    let field = format!("tensor {name:?}");
    let dimensions = cursor.u32(&field)?;
    if dimensions == 0 || dimensions > DIMENSIONS_MAX {
        return Err(cursor.invalid(
            &field,
            format!("has {dimensions} dimensions, not 1 to {DIMENSIONS_MAX}"),
        ));
    }
    let mut shape = Vec::new();
    for _ in 0..dimensions {
        shape.push(cursor.u64(&field)?);
    }
    shape.reverse();
    let number = cursor.u32(&field)?;
    let blocks = BlockType::from_number(number).ok_or_else(|| {
        cursor.invalid(&field, format!("has type {number}, which is not supported"))
    })?;
    let columns = shape[shape.len() - 1];
    let (block, block_bytes) = (blocks.weights() as u64, blocks.bytes() as u64);
    let elements = shape
        .iter()
        .try_fold(1u64, |product, size| product.checked_mul(*size));
    let elements = elements.filter(|elements| *elements > 0 && *elements < 1 << 56);
    let elements = elements
        .ok_or_else(|| cursor.invalid(&field, format!("has the impossible shape {shape:?}")))?;
    if columns % block != 0 {
        let message =
            format!("has {columns} columns, not a multiple of the {blocks} block size {block}");
        return Err(cursor.invalid(&field, message));
    }
    let offset = cursor.u64(&field)?;
    Ok((
        name,
        Listed {
            shape,
            blocks,
            offset,
            bytes: elements / block * block_bytes,
        },
    ))
}

/// Checks that tensors are within the file, aligned, and do not overlap.
fn place(
    cursor: &Cursor<'_>,
    mut listed: Vec<(String, Listed)>,
    data: Range<u64>,
    alignment: u64,
) -> Result<BTreeMap<String, Entry>, LoadError> {
    listed.sort_by_key(|(_, entry)| entry.offset);
    let (mut placed, mut free) = (BTreeMap::new(), 0);
    for (name, entry) in listed {
        let field = format!("tensor {name:?}");
        if entry.offset % alignment != 0 {
            return Err(cursor.invalid(
                &field,
                format!("starts at {}, not a multiple of {alignment}", entry.offset),
            ));
        }
        if entry.offset < free {
            return Err(cursor.invalid(&field, "overlaps another tensor"));
        }
        let end = entry.offset.checked_add(entry.bytes);
        let file_end = end.and_then(|end| data.start.checked_add(end));
        let (Some(end), Some(file_end)) = (end, file_end) else {
            return Err(cursor.invalid(
                &field,
                format!("starts at {}, beyond the end of any file", entry.offset),
            ));
        };
        if file_end > data.end {
            let missing = file_end - data.end;
            return Err(LoadError::TensorShort {
                file: cursor.file.into(),
                tensor: name,
                missing,
            });
        }
        free = end;
        let bytes = file_end - entry.bytes..file_end;
        placed.insert(
            name,
            Entry {
                shape: entry.shape,
                blocks: entry.blocks,
                bytes,
            },
        );
    }
    Ok(placed)
}
