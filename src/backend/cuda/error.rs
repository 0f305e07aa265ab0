//! What calls of the driver that fail are for the engine.

use crate::backend::BackendError;
use cudarc::driver::{DriverError, sys};

/// The error of a call that failed: out of memory, which a smaller pool may avoid, or a lost device. `what` names what
/// was tried.
pub(super) fn failed(what: &str, error: DriverError) -> BackendError {
    let name = error.error_name().map_or_else(
        |_| format!("{:?}", error.0),
        |name| name.to_string_lossy().into_owned(),
    );
    match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => BackendError::OutOfMemory {
            what: what.into(),
            bytes: 0,
        },
        _ => BackendError::Lost(format!("{what}: {name}")),
    }
}
