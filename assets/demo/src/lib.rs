//! The files of folio's demo model, as bytes of the program that uses them. A crate of its own, because a registry
//! limits the size of one package, and most of folio's would be these weights.

/// `config.json`.
pub const CONFIG_JSON: &[u8] = include_bytes!("../config.json");
/// `generation_config.json`.
pub const GENERATION_CONFIG_JSON: &[u8] = include_bytes!("../generation_config.json");
/// `tokenizer.json`.
pub const TOKENIZER_JSON: &[u8] = include_bytes!("../tokenizer.json");
/// `tokenizer_config.json`, with the chat template.
pub const TOKENIZER_CONFIG_JSON: &[u8] = include_bytes!("../tokenizer_config.json");
/// `model.safetensors`. A static, not a constant: a constant could be embedded once per use.
pub static WEIGHTS: &[u8] = include_bytes!("../model.safetensors");
