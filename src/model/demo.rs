//! The demo model: five million parameters, embedded in the binary, so that everything works without a download.

use super::safetensors::Safetensors;
use crate::platform::ModelFile;
use bytes::Bytes;
pub use folio_demo::{CONFIG_JSON, GENERATION_CONFIG_JSON, TOKENIZER_CONFIG_JSON, TOKENIZER_JSON};

/// The weights.
pub(super) fn tensors() -> Safetensors {
    let name = "model.safetensors";
    let file = ModelFile::in_memory(Bytes::from_static(folio_demo::WEIGHTS));
    Safetensors::from_files(name, vec![(name.into(), file)])
        .expect("the embedded weights are whole")
}

#[cfg(test)]
mod tests;
