//! Errors in a model's files.

use std::io;

/// An error in a model's files: one line with the file and, if known, the field or tensor.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be opened or read.
    #[error("{file}: {message}")]
    Read {
        /// Path.
        file: String,
        /// The system's message.
        message: String,
    },
    /// The file is not valid JSON of the expected kind.
    #[error("{file}: {message}")]
    Json {
        /// Path.
        file: String,
        /// The parser's message.
        message: String,
    },
    /// A field is missing, of another type or out of range.
    #[error("{file}: {field} {message}")]
    Field {
        /// Path.
        file: String,
        /// Name, prefixed with the names of enclosing objects.
        field: String,
        /// What was found and what was expected, as the end of a sentence.
        message: String,
    },
    /// This architecture is not supported.
    #[error("{file}: architecture {found:?} is not supported{hint}; expected one of {known}")]
    Architecture {
        /// Path.
        file: String,
        /// The architecture that the file names.
        found: String,
        /// The nearest supported architecture, and what it lacks, each if known: words that follow a sentence.
        hint: String,
        /// The supported architectures.
        known: String,
    },
    /// The file's header (its list of tensors) is damaged.
    #[error("{file}: {message}")]
    Header {
        /// Path.
        file: String,
        /// The parser's message.
        message: String,
    },
    /// A tensor that the config needs is missing.
    #[error("{file}: tensor {tensor:?} is missing")]
    TensorMissing {
        /// Path.
        file: String,
        /// Name.
        tensor: String,
    },
    /// A tensor's shape does not match the config.
    #[error("{file}: tensor {tensor:?} has shape {found:?}, but config.json expects {expected:?}")]
    TensorShape {
        /// Path.
        file: String,
        /// Name.
        tensor: String,
        /// Shape in the file.
        found: Vec<u64>,
        /// Shape according to the config.
        expected: Vec<u64>,
    },
    /// A tensor's element type is unsupported.
    #[error("{file}: tensor {tensor:?} is stored as {found}; expected F32, F16 or BF16")]
    TensorType {
        /// Path.
        file: String,
        /// Name.
        tensor: String,
        /// Type in the file.
        found: String,
    },
    /// A tensor cannot be used.
    #[error("{file}: tensor {tensor:?} {message}")]
    TensorRefused {
        /// Path.
        file: String,
        /// Name.
        tensor: String,
        /// Why, as the end of a sentence.
        message: String,
    },
    /// The file is truncated within a tensor.
    #[error("{file}: tensor {tensor:?} is truncated: {missing} bytes are missing")]
    TensorShort {
        /// Path.
        file: String,
        /// Name.
        tensor: String,
        /// Number of missing bytes.
        missing: u64,
    },
    /// The file's length changed while it was being read.
    #[error("{file}: the file changed while it was being loaded")]
    Changed {
        /// Path.
        file: String,
    },
}

/// Why an upload failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum UploadError<E> {
    /// The model's files could not be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The device rejected the weights.
    #[error("{0}")]
    Write(E),
}

impl LoadError {
    /// The error for a file that the system cannot open or read.
    pub(super) fn unreadable(file: &str, error: &io::Error) -> Self {
        Self::Read {
            file: file.into(),
            message: error.to_string(),
        }
    }
}
