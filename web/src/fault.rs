//! Errors as JavaScript gets them: an `Error` whose `name` is the kind.

use folio::backend::BackendError;
use folio::engine::StartError;
use folio::model::LoadError;
use wasm_bindgen::JsValue;

/// What goes wrong while an engine is loaded.
pub(crate) struct Fault {
    name: &'static str,
    message: String,
}

impl Fault {
    /// The model's files are wrong.
    pub(crate) fn model(message: impl Into<String>) -> Self {
        Self { name: "ModelError", message: message.into() }
    }

    /// What was asked for does not fit.
    pub(crate) fn limit(message: impl Into<String>) -> Self {
        Self { name: "LimitError", message: message.into() }
    }
}

impl From<LoadError> for Fault {
    fn from(error: LoadError) -> Self {
        Self::model(error.to_string())
    }
}

impl From<BackendError> for Fault {
    fn from(error: BackendError) -> Self {
        let name = match &error {
            BackendError::Limit { .. } | BackendError::OutOfMemory { .. } => "LimitError",
            BackendError::Lost(_) | BackendError::Hung(_) => "DeviceLostError",
            BackendError::Unavailable(_) => "NoAdapterError",
            BackendError::Validation(_) | BackendError::Kernel { .. } => "DeviceError",
        };
        Self { name, message: error.to_string() }
    }
}

impl From<StartError> for Fault {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Backend(error) => error.into(),
            StartError::Weights(error) => error.into(),
            StartError::Config(_) | StartError::DoesNotFit(_) => Self::limit(error.to_string()),
        }
    }
}

impl From<Fault> for JsValue {
    fn from(fault: Fault) -> Self {
        let error = js_sys::Error::new(&fault.message);
        error.set_name(fault.name);
        error.into()
    }
}
