//! The model's folder, which the worker reads from its cache or with HTTP range requests.

use bytes::Bytes;
use folio::model::remote::SizeRead;
use folio::model::{LoadError, RangeFiles, TensorRead};
use js_sys::{Array, Uint8Array};
use send_wrapper::SendWrapper;
use std::ops::Range;
use wasm_bindgen::prelude::*;

#[wasm_bindgen]
extern "C" {
    /// The worker's reader of one folder.
    pub type Files;

    /// Names of all files, as an array of strings; `undefined` if they are not known.
    #[wasm_bindgen(method, catch)]
    async fn names(this: &Files) -> Result<JsValue, JsValue>;

    /// Size of a file in bytes; `undefined` if it does not exist.
    #[wasm_bindgen(method, catch)]
    async fn size(this: &Files, file: &str) -> Result<JsValue, JsValue>;

    /// Exactly these bytes, as a `Uint8Array`.
    #[wasm_bindgen(method, catch)]
    async fn read(this: &Files, file: &str, start: f64, end: f64) -> Result<JsValue, JsValue>;
}

/// [`Files`] for the engine, which requires `Send`. This is sound because a tab has one thread.
pub(crate) struct JsFiles(SendWrapper<Files>);

impl JsFiles {
    pub(crate) fn new(files: Files) -> Self {
        Self(SendWrapper::new(files))
    }

    /// Names of all files; `None` if they are not known, because they are a folder on a server that lists nothing.
    pub(crate) async fn names(&self) -> Result<Option<Vec<String>>, LoadError> {
        let names = self
            .0
            .names()
            .await
            .map_err(|error| read_error("the list of files", &error))?;
        let names: Option<Array> = names.dyn_into().ok();
        Ok(names.map(|names| names.iter().filter_map(|name| name.as_string()).collect()))
    }
}

impl RangeFiles for JsFiles {
    fn size<'a>(&'a self, file: &'a str) -> SizeRead<'a> {
        Box::pin(async move {
            let size = self
                .0
                .size(file)
                .await
                .map_err(|error| read_error(file, &error))?;
            Ok(size.as_f64().map(|size| size as u64))
        })
    }

    fn read<'a>(&'a self, file: &'a str, bytes: Range<u64>) -> TensorRead<'a> {
        Box::pin(async move {
            let read = self
                .0
                .read(file, bytes.start as f64, bytes.end as f64)
                .await;
            let read = read.map_err(|error| read_error(file, &error))?;
            let read: Uint8Array = read.dyn_into().map_err(|other| read_error(file, &other))?;
            let (found, wanted) = (u64::from(read.length()), bytes.end - bytes.start);
            if found != wanted {
                let message = format!(
                    "size mismatch: got {found} bytes, expected {wanted} at {}",
                    bytes.start
                );
                return Err(LoadError::Read {
                    file: file.into(),
                    message,
                });
            }
            Ok(Bytes::from(read.to_vec()))
        })
    }
}

/// The worker keeps the error itself; only its message is needed here.
fn read_error(file: &str, error: &JsValue) -> LoadError {
    let message = error
        .dyn_ref::<js_sys::Error>()
        .map(|error| String::from(error.message()));
    LoadError::Read {
        file: file.into(),
        message: message.unwrap_or_else(|| format!("{error:?}")),
    }
}
