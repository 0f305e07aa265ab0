//! The portable form of a KV block, or of the state after one, in a file: one record each; a file may hold several, one
//! after the other.
//!
//! All numbers are little-endian. A record is a header and the block's bytes:
//!
//! | Bytes | Content |
//! |---|---|
//! | 8 | `folio-kv` |
//! | 4 | [`VERSION`] |
//! | 4 | length of the header, at most [`HEADER_BYTES_MAX`] |
//! | 8 | length of the block's bytes |
//! | 32 | BLAKE3 of all other bytes of the record; in a folder of `--kv-disk` keyed with its [`FolderKey`] |
//! | 4 | 1 if its bits are those of one build only (`--deterministic`), else 0 |
//! | 32 | fingerprint of the model, as loaded |
//! | 16, 16 | chain hash of the block, and of the block before it or the chain's root |
//! | 4, 4 | group, number of groups: the KV groups, then that of the states, if the model keeps any |
//! | 4 | tokens per block |
//! | 4, then 4, 4 and 4 each | layers of the group: kind, and two sizes of it |
//! | 4 and text, three times | KV format, adapter, backend and build |
//! | 4 each | token ids of the block |
//!
//! | Kind | Sizes |
//! |---|---|
//! | 0: keys and values | KV heads, head size |
//! | 1: a latent, without values | KV heads, latent size with its rotated part |
//! | 2: a recurrent state | 1, bytes of a state |
//!
//! A record of the group of states has the state after the block with its chain hash, and the token ids of that block.
//! The block's bytes are in the form that [`BlockRef`](crate::backend::BlockRef) describes, the same on every backend.
//!
//! Nothing in a file is trusted: lengths are checked before they are used, and a record that does not say what it
//! should is an error, never a panic.

use super::key::FolderKey;
use crate::engine::memory::BlockHash;
use crate::engine::memory::Origin;
use crate::plan::{KvFormat, KvLayer, StateLayer};
use bytes::Bytes;
use std::ops::Range;

/// How each record begins.
pub const MAGIC: &[u8; 8] = b"folio-kv";
/// Version of the form. It is part of the key of the hashes, so that files of different versions have different names.
pub const VERSION: u32 = 2;
/// Maximum length of a header. One for 64 tokens and 100 layers takes 1.7 KB.
pub const HEADER_BYTES_MAX: u32 = 1 << 20;
/// Maximum number of blocks in a file that holds a whole prompt.
pub const RECORDS_MAX: usize = 1 << 16;
/// Maximum length of a text in a header.
const TEXT_BYTES_MAX: u32 = 1 << 10;
/// Maximum number of groups, layers, and tokens per block.
const COUNT_MAX: u32 = 1 << 12;
/// Where the checksum is.
const CHECKSUM: Range<usize> = 24..56;
/// Name of the adapter of a model without one.
pub const NO_ADAPTER: &str = "none";

/// What all blocks of one engine have in common. Blocks can be exchanged between engines for which it is equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    /// Identifies the model and its weights, as loaded.
    pub fingerprint: [u8; 32],
    /// Element type of the blocks.
    pub kv_format: KvFormat,
    /// Tokens per block.
    pub block_size: u32,
    /// The model's adapter, or [`NO_ADAPTER`].
    pub adapter: String,
    /// Backend, device and build.
    pub build: String,
    /// Whether only blocks of the same `build` are used.
    pub deterministic: bool,
    /// The layers of each KV group; then, in a group of their own, those that keep a state.
    pub layers: Vec<Vec<LayerForm>>,
}

/// What a layer keeps in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerForm {
    /// Keys and values.
    KeysAndValues {
        /// KV heads.
        heads: u32,
        /// Elements of a head.
        head_dim: u32,
    },
    /// Keys that are the values, too.
    Latent {
        /// KV heads.
        heads: u32,
        /// Elements of a latent, with its rotated part.
        size: u32,
    },
    /// A recurrent state, instead of keys and values of tokens.
    State {
        /// Bytes of a state, f32.
        bytes: u32,
    },
}

/// Why a record cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// It is not a record, or not a whole one.
    #[error("{0}")]
    Damaged(&'static str),
    /// It is of something else than expected.
    #[error("it has another {0}")]
    Other(&'static str),
    /// It was written by another version of this program.
    #[error(
        "it has version {0} of its form, and this program reads version {VERSION}: compute it again"
    )]
    Version(u32),
}

/// A block from a file.
#[derive(Clone, Debug)]
pub struct Record {
    /// What was in common for the engine that wrote it. Of `layers`, only those of the block's group are known.
    pub form: Form,
    /// Which block it is.
    pub origin: Origin,
    /// The block's bytes.
    pub data: Bytes,
    /// The whole record.
    pub whole: Bytes,
}

impl Form {
    /// The key of the hashes of blocks without a salt: the same in every process with this form, as far as it decides
    /// whether blocks can be exchanged.
    pub fn key(&self) -> [u8; 32] {
        let mut hasher =
            blake3::Hasher::new_derive_key("folio 2026 key of the hashes of portable KV blocks");
        hasher.update(&VERSION.to_le_bytes());
        hasher.update(&self.fingerprint);
        hasher.update(&self.block_size.to_le_bytes());
        let build = if self.deterministic {
            &self.build[..]
        } else {
            ""
        };
        for text in [&self.kv_format.to_string(), &self.adapter[..], build] {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        *hasher.finalize().as_bytes()
    }

    /// Name of the folder for files of this form.
    pub fn folder_name(&self) -> String {
        let name = blake3::derive_key("folio 2026 name of a folder of KV blocks", &self.key());
        hex(&name[..16])
    }

    /// Bytes of a block of this group, or of a state.
    pub fn block_bytes(&self, group: usize) -> u64 {
        let layers = self.layers.get(group).into_iter().flatten();
        layers
            .map(|layer| layer.bytes(self.block_size, self.kv_format))
            .fold(0, u64::saturating_add)
    }

    /// Maximum bytes of a record of this form.
    pub fn record_bytes_max(&self) -> u64 {
        let largest = (0..self.layers.len())
            .map(|group| self.block_bytes(group))
            .max()
            .unwrap_or(0);
        u64::from(HEADER_BYTES_MAX) + largest
    }

    /// The header of a block's record, for a folder with this key, if any; the block's bytes follow it in the file.
    pub fn header(&self, origin: &Origin, data: &[u8], key: Option<&FolderKey>) -> Vec<u8> {
        let (group, hash) = origin.key;
        let mut header = Vec::with_capacity(512);
        header.extend_from_slice(MAGIC);
        let number =
            |header: &mut Vec<u8>, number: u32| header.extend_from_slice(&number.to_le_bytes());
        number(&mut header, VERSION);
        number(&mut header, 0);
        header.extend_from_slice(&(data.len() as u64).to_le_bytes());
        header.extend_from_slice(&[0; 32]);
        number(&mut header, self.deterministic.into());
        header.extend_from_slice(&self.fingerprint);
        header.extend_from_slice(&hash.bytes());
        header.extend_from_slice(&origin.parent.bytes());
        number(&mut header, count(group));
        number(&mut header, count(self.layers.len()));
        number(&mut header, self.block_size);
        number(&mut header, count(self.layers[group].len()));
        self.layers[group]
            .iter()
            .flat_map(LayerForm::words)
            .for_each(|word| number(&mut header, word));
        for text in [&self.kv_format.to_string(), &self.adapter, &self.build] {
            number(&mut header, count(text.len()));
            header.extend_from_slice(text.as_bytes());
        }
        origin
            .token_ids
            .iter()
            .for_each(|&id| number(&mut header, id));
        let length = count(header.len());
        header[12..16].copy_from_slice(&length.to_le_bytes());
        seal(&mut header, data, key);
        header
    }

    /// Checks that a record has this form, so that its block can be used by this engine.
    pub fn check(&self, record: &Record) -> Result<(), FileError> {
        let (found, group) = (&record.form, record.origin.key.0);
        other(found.fingerprint != self.fingerprint, "model")?;
        other(found.kv_format != self.kv_format, "KV format")?;
        other(found.block_size != self.block_size, "block size")?;
        other(found.adapter != self.adapter, "adapter")?;
        other(
            found.deterministic != self.deterministic,
            "rule about builds",
        )?;
        other(
            self.deterministic && found.build != self.build,
            "backend or build",
        )?;
        other(found.layers.len() != self.layers.len(), "number of groups")?;
        other(
            found.layers.get(group) != self.layers.get(group),
            "list of layers",
        )
    }
}

fn other(is_other: bool, what: &'static str) -> Result<(), FileError> {
    if is_other {
        Err(FileError::Other(what))
    } else {
        Ok(())
    }
}

impl Record {
    /// The first record of a file, and the bytes after it. What the record says of itself is consistent, and it was
    /// written for the folder with this key; without one, it is portable.
    pub fn read(file: &Bytes, key: Option<&FolderKey>) -> Result<(Self, Bytes), FileError> {
        let mut reader = Reader { bytes: file, at: 0 };
        if reader.take(8)? != MAGIC {
            return Err(FileError::Damaged("it is not a file of KV blocks"));
        }
        let version = reader.number()?;
        if version != VERSION {
            return Err(FileError::Version(version));
        }
        let header_bytes = reader.number_to(HEADER_BYTES_MAX, "its header is too long")? as usize;
        let data_bytes = u64::from_le_bytes(reader.array()?);
        let whole = data_bytes
            .checked_add(header_bytes as u64)
            .and_then(|length| usize::try_from(length).ok());
        let whole = whole
            .filter(|&whole| whole <= file.len())
            .ok_or(FileError::Damaged("it is too short"))?;
        if header_bytes < CHECKSUM.end {
            return Err(FileError::Damaged("its header is too short"));
        }
        let expected: [u8; 32] = reader.array()?;
        if checksum(&file[..header_bytes], &file[header_bytes..whole], key) != expected {
            return Err(FileError::Damaged(match key {
                Some(_) => "its checksum is not that of a block that was written to this folder",
                None => "its checksum is wrong",
            }));
        }
        let (form, origin) = Self::read_header(&file[..header_bytes], reader.at)?;
        let (data, whole, rest) = (
            file.slice(header_bytes..whole),
            file.slice(..whole),
            file.slice(whole..),
        );
        if form.block_bytes(origin.key.0) != data_bytes {
            return Err(FileError::Damaged(
                "its length does not follow from its layers",
            ));
        }
        if origin.parent.next(&form.key(), &origin.token_ids) != origin.key.1 {
            return Err(FileError::Damaged(
                "its chain hash does not follow from its tokens",
            ));
        }
        Ok((
            Self {
                form,
                origin,
                data,
                whole,
            },
            rest,
        ))
    }

    /// Checks that it is of this block.
    pub fn check_block(&self, origin: &Origin) -> Result<(), FileError> {
        other(self.origin.key.0 != origin.key.0, "group")?;
        other(
            self.origin.key.1 != origin.key.1 || self.origin.parent != origin.parent,
            "chain hash",
        )?;
        other(self.origin.token_ids != origin.token_ids, "text")
    }

    /// Whether it is of the state after a block.
    pub fn is_state(&self) -> bool {
        let layers = self.form.layers.get(self.origin.key.0);
        layers.is_some_and(|layers| {
            layers
                .iter()
                .any(|layer| matches!(layer, LayerForm::State { .. }))
        })
    }

    /// Its header, for a folder with this key or, without one, portable.
    pub fn header(&self, key: Option<&FolderKey>) -> Vec<u8> {
        let mut header = self.whole[..self.whole.len() - self.data.len()].to_vec();
        seal(&mut header, &self.data, key);
        header
    }

    /// All records of a portable file; at most `records_max`.
    pub fn read_all(file: &Bytes, records_max: usize) -> Result<Vec<Self>, FileError> {
        let (mut records, mut rest) = (Vec::new(), file.clone());
        while !rest.is_empty() {
            if records.len() == records_max {
                return Err(FileError::Damaged("it has too many blocks"));
            }
            let (record, after) = Self::read(&rest, None)?;
            records.push(record);
            rest = after;
        }
        Ok(records)
    }

    /// Name of the file for this record.
    pub fn file_name(&self) -> String {
        file_name(self.origin.key)
    }

    fn read_header(header: &[u8], at: usize) -> Result<(Form, Origin), FileError> {
        let mut reader = Reader { bytes: header, at };
        let deterministic = reader.number_to(1, "its flag is unknown")? == 1;
        let fingerprint = reader.array()?;
        let (hash, parent) = (
            BlockHash::from(reader.array()?),
            BlockHash::from(reader.array()?),
        );
        let group = reader.number()?;
        let groups = reader.number_to(COUNT_MAX, "it has too many groups")?;
        if group >= groups {
            return Err(FileError::Damaged("its group does not exist"));
        }
        let block_size = reader.number_to(COUNT_MAX, "its blocks are too large")?;
        if block_size == 0 {
            return Err(FileError::Damaged("its blocks hold no tokens"));
        }
        let mut layers = vec![Vec::new(); groups as usize];
        for _ in 0..reader.number_to(COUNT_MAX, "it has too many layers")? {
            let words = [reader.number()?, reader.number()?, reader.number()?];
            layers[group as usize].push(LayerForm::from_words(words)?);
        }
        let (format, adapter, build) = (reader.text()?, reader.text()?, reader.text()?);
        let known = KvFormat::ALL
            .into_iter()
            .find(|known| known.to_string() == format);
        let kv_format = known.ok_or(FileError::Other("KV format"))?;
        let token_ids: Result<Box<[u32]>, _> = (0..block_size).map(|_| reader.number()).collect();
        let origin = Origin {
            key: (group as usize, hash),
            parent,
            token_ids: token_ids?,
        };
        if reader.at != header.len() {
            return Err(FileError::Damaged("its header is longer than its content"));
        }
        Ok((
            Form {
                fingerprint,
                kv_format,
                block_size,
                adapter,
                build,
                deterministic,
                layers,
            },
            origin,
        ))
    }
}

/// Name of the file of a block.
pub fn file_name((group, hash): (usize, BlockHash)) -> String {
    format!("{}-{group}.kv", hex(&hash.bytes()))
}

/// The block that a file of this name is of; `None` if it is no such name.
pub fn block_of(name: &str) -> Option<(usize, BlockHash)> {
    let (hash, group) = name.strip_suffix(".kv")?.split_once('-')?;
    if hash.len() != 32 || !hash.is_ascii() {
        return None;
    }
    let mut bytes = [0; 16];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hash[2 * at..2 * at + 2], 16).ok()?;
    }
    let key = (group.parse().ok()?, BlockHash::from(bytes));
    // Only one name is that of a block.
    (file_name(key) == name).then_some(key)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn count(count: usize) -> u32 {
    u32::try_from(count).expect("counts of a model are small")
}

/// Sets the checksum of a record in its header, for a folder with this key, if any.
pub fn seal(header: &mut [u8], data: &[u8], key: Option<&FolderKey>) {
    let checksum = checksum(header, data, key);
    header[CHECKSUM].copy_from_slice(checksum.as_bytes());
}

/// Compared with that of a file, it takes the same time whatever the file has.
fn checksum(header: &[u8], data: &[u8], key: Option<&FolderKey>) -> blake3::Hash {
    let mut hasher = key.map_or_else(blake3::Hasher::new, FolderKey::hasher);
    hasher
        .update(&header[..CHECKSUM.start])
        .update(&header[CHECKSUM.end..])
        .update(data);
    hasher.finalize()
}

impl LayerForm {
    /// Kind and sizes, as headers have them.
    fn words(&self) -> [u32; 3] {
        match *self {
            Self::KeysAndValues { heads, head_dim } => [0, heads, head_dim],
            Self::Latent { heads, size } => [1, heads, size],
            Self::State { bytes } => [2, 1, bytes],
        }
    }

    fn from_words(words: [u32; 3]) -> Result<Self, FileError> {
        match words {
            [0, heads, head_dim] => Ok(Self::KeysAndValues { heads, head_dim }),
            [1, heads, size] => Ok(Self::Latent { heads, size }),
            [2, 1, bytes] => Ok(Self::State { bytes }),
            _ => Err(FileError::Damaged("it has a layer of an unknown kind")),
        }
    }

    /// Bytes in a block, without overflow whatever a file says.
    fn bytes(&self, block_size: u32, format: KvFormat) -> u64 {
        let rows = |halves, heads| halves * u64::from(block_size) * u64::from(heads);
        match *self {
            Self::KeysAndValues { heads, head_dim } => {
                rows(2, heads).saturating_mul(format.row_bytes(head_dim))
            }
            Self::Latent { heads, size } => rows(1, heads).saturating_mul(format.row_bytes(size)),
            Self::State { bytes } => bytes.into(),
        }
    }
}

impl From<&KvLayer> for LayerForm {
    fn from(layer: &KvLayer) -> Self {
        let KvLayer {
            heads,
            head_dim,
            latent,
            ..
        } = *layer;
        if latent {
            Self::Latent {
                heads,
                size: head_dim,
            }
        } else {
            Self::KeysAndValues { heads, head_dim }
        }
    }
}

impl From<&StateLayer> for LayerForm {
    fn from(layer: &StateLayer) -> Self {
        Self::State {
            bytes: u32::try_from(layer.bytes()).expect("a layer's state fits memory"),
        }
    }
}

/// Reads a header.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], FileError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let taken = rest
            .get(..length)
            .ok_or(FileError::Damaged("it is too short"))?;
        self.at += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FileError> {
        let taken = self.take(N)?;
        Ok(taken.try_into().expect("as many bytes were taken"))
    }

    fn number(&mut self) -> Result<u32, FileError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn number_to(&mut self, max: u32, message: &'static str) -> Result<u32, FileError> {
        let number = self.number()?;
        if number > max {
            Err(FileError::Damaged(message))
        } else {
            Ok(number)
        }
    }

    fn text(&mut self) -> Result<String, FileError> {
        let length = self.number_to(TEXT_BYTES_MAX, "a text in its header is too long")?;
        let text = std::str::from_utf8(self.take(length as usize)?);
        text.map(str::to_owned)
            .map_err(|_| FileError::Damaged("a text in its header is not UTF-8"))
    }
}

#[cfg(test)]
mod tests;
