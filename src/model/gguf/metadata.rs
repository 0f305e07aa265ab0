//! Typed access to the metadata of one file, by key.

use super::reader::{self, Container, Cursor, Entry, Kind, List, Value};
use crate::model::error::LoadError;
use crate::model::remote::RangeFiles;
use crate::model::remote::missing;
use crate::model::spec::LAYERS_MAX;
use bytes::{Bytes, BytesMut};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum strings in a list that is read: eight times the largest vocabulary.
const TEXTS_MAX: usize = 1 << 21;

/// The first read of a header; a vocabulary of 150,000 tokens fits.
const HEAD_BYTES: u64 = 4 << 20;
/// Maximum bytes of a header that are read.
const HEAD_BYTES_MAX: u64 = 256 << 20;

/// The parsed header of a file, and the file's first bytes, which hold its strings.
#[derive(Debug)]
pub(super) struct Metadata {
    file: String,
    /// Length of the whole file.
    file_bytes: u64,
    bytes: Bytes,
    container: Container,
    /// Its keys that were looked up.
    asked: Mutex<BTreeSet<String>>,
}

impl Metadata {
    /// Reads the header of a file.
    pub(super) async fn read(files: &dyn RangeFiles, name: &str) -> Result<Self, LoadError> {
        let file_bytes = files.size(name).await?.ok_or_else(|| missing(name))?;
        let mut head = BytesMut::new();
        let mut head_bytes = HEAD_BYTES;
        loop {
            let wanted = head_bytes.min(file_bytes);
            head.extend_from_slice(&files.read(name, head.len() as u64..wanted).await?);
            match reader::read(name, &head, file_bytes) {
                // A field that is cut off causes a field error, so more bytes are read.
                Err(LoadError::Field { .. })
                    if wanted < file_bytes && head_bytes < HEAD_BYTES_MAX =>
                {
                    head_bytes *= 4;
                }
                Err(error) => return Err(error),
                Ok(container) => {
                    return Ok(Self {
                        file: name.into(),
                        file_bytes,
                        bytes: head.freeze(),
                        container,
                        asked: Mutex::default(),
                    });
                }
            }
        }
    }

    pub(super) fn file(&self) -> &str {
        &self.file
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    pub(super) fn tensors(&self) -> impl Iterator<Item = (&String, &Entry)> {
        self.container.tensors.iter()
    }

    /// The keys in their order, each with the bytes of key and value.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let pairs = self.container.pairs.iter();
        pairs.map(|(key, range)| (key.as_str(), &self.bytes[range.clone()]))
    }

    pub(super) fn tensor(&self, name: &str) -> Option<&Entry> {
        self.container.tensors.get(name)
    }

    pub(super) fn invalid(&self, key: &str, message: impl Into<String>) -> LoadError {
        LoadError::Field {
            file: self.file.clone(),
            field: key.into(),
            message: message.into(),
        }
    }

    pub(super) fn required<T>(&self, key: &str, value: Option<T>) -> Result<T, LoadError> {
        value.ok_or_else(|| self.invalid(key, "is missing"))
    }

    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        let value = self.container.metadata.get(key);
        if value.is_some() {
            self.asked().insert(key.to_owned());
        }
        value
    }

    /// Keys of the file that begin so and were never looked up.
    pub(super) fn unread(&self, prefix: &str) -> Vec<String> {
        let asked = self.asked();
        let keys = self.container.metadata.keys();
        keys.filter(|key| key.starts_with(prefix) && !asked.contains(*key))
            .cloned()
            .collect()
    }

    fn asked(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An integer within `range`. If it is a list (one entry per layer), all entries must be equal.
    pub(super) fn integer(
        &self,
        key: &str,
        range: RangeInclusive<u32>,
    ) -> Result<Option<u32>, LoadError> {
        let number = match self.get(key) {
            None => return Ok(None),
            Some(Value::Integer(number)) => *number,
            Some(Value::List(list)) => {
                let numbers = self.integers(key, list)?;
                match numbers.first() {
                    Some(first) if numbers.iter().all(|number| number == first) => *first,
                    _ => {
                        return Err(self
                            .invalid(key, "differs from layer to layer, which is not supported"));
                    }
                }
            }
            Some(_) => return Err(self.invalid(key, "is not an integer")),
        };
        match u32::try_from(number)
            .ok()
            .filter(|number| range.contains(number))
        {
            Some(number) => Ok(Some(number)),
            None => Err(self.invalid(
                key,
                format!(
                    "is {number}, not an integer in {}..={}",
                    range.start(),
                    range.end()
                ),
            )),
        }
    }

    /// A number for each layer: one for all, or a list with one entry per layer.
    pub(super) fn integers_by_layer(
        &self,
        key: &str,
        layers: usize,
    ) -> Result<Option<Vec<u32>>, LoadError> {
        let Some(Value::List(list)) = self.get(key) else {
            return Ok(self
                .integer(key, 0..=1 << 24)?
                .map(|number| vec![number; layers]));
        };
        let numbers = self.integers(key, list)?;
        if numbers.len() != layers {
            return Err(self.invalid(
                key,
                format!("has {} entries, not block_count = {layers}", numbers.len()),
            ));
        }
        match numbers
            .iter()
            .map(|number| {
                u32::try_from(*number)
                    .ok()
                    .filter(|number| (0..=1 << 24).contains(number))
            })
            .collect()
        {
            Some(numbers) => Ok(Some(numbers)),
            None => Err(self.invalid(key, "has a number outside of 0..=2^24")),
        }
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Number(number)) if number.is_finite() => Ok(Some(*number)),
            Some(Value::Integer(number)) => Ok(Some(*number as f64)),
            Some(_) => Err(self.invalid(key, "is not a finite number")),
        }
    }

    /// A number as JSON: an integer if the file stores an integer. Zero counts as absent.
    pub(super) fn integer_or_number(
        &self,
        key: &str,
    ) -> Result<Option<serde_json::Value>, LoadError> {
        match self.get(key) {
            Some(Value::Integer(_) | Value::List(_)) => {
                let number = self.integer(key, 0..=u32::MAX)?;
                Ok(number.filter(|number| *number != 0).map(Into::into))
            }
            _ => Ok(self
                .number(key)?
                .filter(|number| *number != 0.0)
                .map(Into::into)),
        }
    }

    pub(super) fn boolean(&self, key: &str) -> Result<Option<bool>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Boolean(flag)) => Ok(Some(*flag)),
            Some(_) => Err(self.invalid(key, "is neither true nor false")),
        }
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&str>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(range)) => match std::str::from_utf8(&self.bytes[range.clone()]) {
                Ok(text) => Ok(Some(text)),
                Err(_) => Err(self.invalid(key, "is not UTF-8")),
            },
            Some(_) => Err(self.invalid(key, "is not a string")),
        }
    }

    fn list(&self, key: &str, of: &[Kind]) -> Result<Option<&List>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::List(list)) if of.contains(&list.kind) => Ok(Some(list)),
            Some(_) => Err(self.invalid(key, format!("is not a list of {:?}", of[0]))),
        }
    }

    /// The strings of a list; bytes that are not UTF-8 are replaced, as in a `tokenizer.json`.
    pub(super) fn texts(&self, key: &str) -> Result<Option<Vec<Cow<'_, str>>>, LoadError> {
        let Some(list) = self.list(key, &[Kind::Text])? else {
            return Ok(None);
        };
        if list.count > TEXTS_MAX {
            return Err(self.invalid(
                key,
                format!("has {} entries, more than {TEXTS_MAX}", list.count),
            ));
        }
        let mut cursor = Cursor::new(&self.file, &self.bytes[..list.bytes.end], list.bytes.start);
        let mut texts = Vec::with_capacity(list.count);
        for _ in 0..list.count {
            texts.push(String::from_utf8_lossy(&self.bytes[cursor.text(key)?]));
        }
        Ok(Some(texts))
    }

    /// A number for each layer, as in [`Metadata::integers_by_layer`].
    pub(super) fn numbers_by_layer(
        &self,
        key: &str,
        layers: usize,
    ) -> Result<Option<Vec<f32>>, LoadError> {
        let numbers = match self.get(key) {
            Some(Value::List(_)) => self.numbers(key)?,
            _ => self.number(key)?.map(|number| vec![number as f32; layers]),
        };
        match numbers {
            Some(numbers) if numbers.len() < layers => Err(self.invalid(
                key,
                format!(
                    "has {} entries, fewer than block_count = {layers}",
                    numbers.len()
                ),
            )),
            numbers => Ok(numbers),
        }
    }

    /// The numbers of a list of f32.
    pub(super) fn numbers(&self, key: &str) -> Result<Option<Vec<f32>>, LoadError> {
        let Some(list) = self.list(key, &[Kind::F32])? else {
            return Ok(None);
        };
        let words = self.bytes[list.bytes.clone()].chunks_exact(4);
        Ok(Some(
            words
                .map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]]))
                .collect(),
        ))
    }

    /// The numbers of a list of small integers.
    pub(super) fn kinds(&self, key: &str) -> Result<Option<Vec<u32>>, LoadError> {
        let Some(list) = self.list(key, &[Kind::I32, Kind::U32])? else {
            return Ok(None);
        };
        let words = self.bytes[list.bytes.clone()].chunks_exact(4);
        Ok(Some(
            words
                .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
                .collect(),
        ))
    }

    /// A list of booleans, one per layer.
    pub(super) fn booleans(&self, key: &str) -> Result<Option<Vec<bool>>, LoadError> {
        let Some(list) = self.list(key, &[Kind::Boolean])? else {
            return Ok(None);
        };
        let flags = &self.bytes[list.bytes.clone()];
        Ok(Some(
            flags
                .iter()
                .take(LAYERS_MAX as usize + 1)
                .map(|flag| *flag == 1)
                .collect(),
        ))
    }

    fn integers(&self, key: &str, list: &List) -> Result<Vec<i128>, LoadError> {
        let mut cursor = Cursor::new(&self.file, &self.bytes[..list.bytes.end], list.bytes.start);
        let mut numbers = Vec::new();
        for _ in 0..list.count.min(1 << 12) {
            match cursor.scalar(key, list.kind)? {
                Value::Integer(number) => numbers.push(number),
                _ => return Err(self.invalid(key, "is not a list of integers")),
            }
        }
        Ok(numbers)
    }

    /// Index of this file among the files of a split model, from 0, and their number.
    pub(super) fn splits(&self) -> Result<Option<(u32, u32)>, LoadError> {
        let count = self
            .integer("split.count", 0..=u32::from(u16::MAX))?
            .unwrap_or(0);
        if count == 0 {
            return Ok(None);
        }
        let number = self.integer("split.no", 0..=u32::from(u16::MAX))?;
        Ok(Some((self.required("split.no", number)?, count)))
    }
}
