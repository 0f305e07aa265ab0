//! The demo model: five million parameters, embedded in the binary, so that everything works without a download.

use super::safetensors::Safetensors;
use crate::platform::ModelFile;
use bytes::Bytes;

/// `config.json`.
pub const CONFIG_JSON: &[u8] = include_bytes!("../../assets/demo/config.json");
/// `generation_config.json`.
pub const GENERATION_CONFIG_JSON: &[u8] =
    include_bytes!("../../assets/demo/generation_config.json");
/// `tokenizer.json`.
pub const TOKENIZER_JSON: &[u8] = include_bytes!("../../assets/demo/tokenizer.json");
/// `tokenizer_config.json`, with the chat template.
pub const TOKENIZER_CONFIG_JSON: &[u8] = include_bytes!("../../assets/demo/tokenizer_config.json");

/// A static, not a constant: a constant could be embedded once per use.
static WEIGHTS: &[u8] = include_bytes!("../../assets/demo/model.safetensors");

/// The weights.
pub(super) fn tensors() -> Safetensors {
    let name = "model.safetensors";
    let file = ModelFile::in_memory(Bytes::from_static(WEIGHTS));
    Safetensors::from_files(name, vec![(name.into(), file)])
        .expect("the embedded weights are whole")
}

#[cfg(test)]
mod tests;
