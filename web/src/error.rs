//! Errors for JavaScript: an `Error` whose `name` is the kind.

use folio::backend::{BackendError, MACHINE_MEMORY};
use folio::engine::StartError;
use folio::engine::fit::FitReport;
use folio::model::LoadError;
use wasm_bindgen::JsValue;

/// Why an engine could not be loaded.
pub(crate) struct EngineError {
    name: &'static str,
    message: String,
}

impl EngineError {
    /// The model's files are invalid.
    pub(crate) fn model(message: impl Into<String>) -> Self {
        Self {
            name: "ModelError",
            message: message.into(),
        }
    }

    /// The requested limits do not fit the device.
    pub(crate) fn limit(message: impl Into<String>) -> Self {
        Self {
            name: "LimitError",
            message: message.into(),
        }
    }
}

impl From<LoadError> for EngineError {
    fn from(error: LoadError) -> Self {
        Self::model(error.to_string())
    }
}

impl From<BackendError> for EngineError {
    fn from(error: BackendError) -> Self {
        let name = match &error {
            BackendError::Limit { .. } | BackendError::OutOfMemory { .. } => "LimitError",
            BackendError::Lost(_) | BackendError::Hung(_) => "DeviceLostError",
            BackendError::Unavailable(_) => "NoAdapterError",
            BackendError::Validation(_)
            | BackendError::Kernel { .. }
            | BackendError::Unsupported { .. } => "DeviceError",
        };
        Self {
            name,
            message: error.to_string(),
        }
    }
}

impl From<StartError> for EngineError {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Backend(error) => error.into(),
            StartError::Weights(error) => error.into(),
            StartError::Plan(_) => Self {
                name: "DeviceError",
                message: error.to_string(),
            },
            StartError::DoesNotFit(report) => Self::limit(does_not_fit(&report)),
            StartError::Config(_) | StartError::Draft(_) | StartError::Disk { .. } => {
                Self::limit(error.to_string())
            }
        }
    }
}

/// Why a model does not fit, by the names of the page's limits instead of the command line's options.
fn does_not_fit(report: &FitReport) -> String {
    let mut told = report.to_string();
    for (option, limit) in [
        ("--kv-cache-bytes", "limits.kvCacheBytes"),
        ("--kv-host-bytes", "limits.kvHostBytes"),
    ] {
        told = told.replace(option, limit);
    }
    if report.requested.memory_source == MACHINE_MEMORY {
        told +=
            "; or load it with WebGPU, whose memory is not the tab's, or a smaller quantization";
    }
    told
}

impl From<EngineError> for JsValue {
    fn from(error: EngineError) -> Self {
        let thrown = js_sys::Error::new(&error.message);
        thrown.set_name(error.name);
        thrown.into()
    }
}
