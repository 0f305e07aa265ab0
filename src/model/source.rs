//! Sources of tensors: a file, a download, the binary itself, or a random number generator.

use super::error::LoadError;
use crate::plan::WeightFormat;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

/// Element type of a stored tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Element {
    /// A type that weights may have.
    Float(WeightFormat),
    /// Any other type, by its name in the file. Allowed in tensors that no weight reads.
    Other(String),
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float(format) => format.fmt(f),
            Self::Other(name) => f.write_str(name),
        }
    }
}

/// Description of a tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The file that holds it, for errors.
    pub file: Arc<str>,
    /// Row-major dimensions.
    pub shape: Vec<u64>,
    /// Type of an element, little-endian.
    pub element: Element,
}

/// A pending read.
pub type TensorRead<'a> = Pin<Box<dyn Future<Output = Result<Bytes, LoadError>> + 'a>>;

/// Named tensors whose bytes can be read in ranges.
pub trait TensorSource: Send {
    /// Name of the file that lists the tensors, for errors.
    fn name(&self) -> &str;

    /// All tensors by name. The lengths that follow from shape and type have been checked against the file.
    fn tensors(&self) -> &BTreeMap<String, TensorInfo>;

    /// Reads exactly the range `bytes`, relative to the tensor's start, of a tensor that [`TensorSource::tensors`]
    /// lists. Returns a slice of existing memory if possible.
    fn read<'a>(&'a self, tensor: &'a str, bytes: Range<u64>) -> TensorRead<'a>;

    /// Must be called after the last read. Fails if the file may have changed during the reads.
    fn check(&self) -> Result<(), LoadError> {
        Ok(())
    }
}
