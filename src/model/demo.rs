//! The demo model: five million parameters, part of the binary, so that everything works without a download.

use super::{Model, Safetensors};
use crate::platform::MappedFile;
use bytes::Bytes;

/// `config.json`.
pub const CONFIG_JSON: &[u8] = include_bytes!("../../assets/demo/config.json");
/// `generation_config.json`.
pub const GENERATION_CONFIG_JSON: &[u8] = include_bytes!("../../assets/demo/generation_config.json");
/// `tokenizer.json`.
pub const TOKENIZER_JSON: &[u8] = include_bytes!("../../assets/demo/tokenizer.json");
/// `tokenizer_config.json`, with the chat template.
pub const TOKENIZER_CONFIG_JSON: &[u8] = include_bytes!("../../assets/demo/tokenizer_config.json");

const WEIGHTS: &[u8] = include_bytes!("../../assets/demo/model.safetensors");

pub(super) fn model() -> Model {
    let name = "model.safetensors";
    let file = MappedFile::in_memory(Bytes::from_static(WEIGHTS));
    let source = Safetensors::from_files(name, vec![(name.into(), file)]).expect("the embedded weights are whole");
    Model::from_parts(CONFIG_JSON, Some(GENERATION_CONFIG_JSON), Box::new(source)).expect("the embedded model loads")
}
