//! Where tensors come from: a file, a fetch, the binary itself, or a random number generator.

use super::LoadError;
use crate::plan::WeightFormat;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

/// Element type of a stored tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Element {
    /// A type that weights may have.
    Float(WeightFormat),
    /// Anything else, by the name its file gives it. Harmless in a tensor that no weight reads.
    Other(String),
}

/// What a file says about one of its tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The file that holds it, for errors.
    pub file: Arc<str>,
    /// Row-major dimensions.
    pub shape: Vec<u64>,
    /// Type of an element, little-endian.
    pub element: Element,
}

/// A read in progress.
pub type TensorRead<'a> = Pin<Box<dyn Future<Output = Result<Bytes, LoadError>> + 'a>>;

/// Named tensors whose bytes can be read piece by piece.
pub trait TensorSource: Send {
    /// The file that lists the tensors, for errors.
    fn name(&self) -> &str;

    /// All tensors by name. The lengths that follow from shape and type have been checked against the file.
    fn tensors(&self) -> &BTreeMap<String, TensorInfo>;

    /// Exactly the bytes `bytes` of a tensor that [`TensorSource::tensors`] lists, counted from its start; a slice of
    /// memory that is there already, where possible.
    fn read<'a>(&'a self, tensor: &'a str, bytes: Range<u64>) -> TensorRead<'a>;

    /// Called after the last read: fails if what was read may not have been what the file held.
    fn check(&self) -> Result<(), LoadError> {
        Ok(())
    }
}
