//! [`ModelFacts`]: what routes tell of a model, whether it is loaded or not. Asking loads nothing: clients of Ollama's
//! API ask about every model that they list.

use crate::engine::handle::Figures;
use crate::engine::request::{DrawDefaults, SamplingParams};
use crate::text::TextModel;
use crate::text::answer::AnswerFormat;
use std::fmt;
use std::sync::Arc;

/// What is known of a model without loading it: from its files, and from the plan of its memory.
#[derive(Clone, Default)]
pub struct ModelOutline {
    /// Its chat template and the settings of its tokenizer, as far as they were read. Tokenizers are large, so this has
    /// none unless the model is loaded.
    pub text: Arc<TextModel>,
    /// Its sampling defaults.
    pub defaults: SamplingParams,
    /// Those of them that its files set.
    pub draw_defaults: DrawDefaults,
    /// Vocabulary size: every token id is below it.
    pub vocab: u32,
    /// Maximum tokens of prompt and answer together.
    pub max_model_len: u32,
    /// Maximum sequences that run at once.
    pub max_num_seqs: u32,
    /// Tokens per block of the KV pool.
    pub block_size: u32,
    /// Tokens of all blocks of the KV pool.
    pub pool_tokens: u64,
    /// Whether it gives vectors or classes only, and no answers.
    pub encodes: bool,
    /// Number of labels of its head for classes; 0 if it has none.
    pub labels: usize,
    /// Length of an embedding; 0 if the model produces none.
    pub embedding_len: u32,
    /// Bytes of the weights.
    pub weight_bytes: u64,
    /// Its size.
    pub figures: Figures,
}

/// What is known of a model now.
#[derive(Clone)]
pub(crate) struct ModelFacts {
    pub(crate) outline: ModelOutline,
    pub(crate) answer_format: AnswerFormat,
    /// Name of the device that it is loaded on.
    pub(crate) device: Option<String>,
    /// It is loaded, and reads images.
    pub(crate) reads_images: bool,
}

impl ModelOutline {
    /// What the model is for, in the words of llama.cpp's and Ollama's clients.
    pub(crate) fn capabilities(&self) -> Vec<&'static str> {
        let embeds = self.embedding_len > 0;
        match (self.encodes, self.labels) {
            (false, _) if embeds => vec!["completion", "embedding"],
            (false, _) => vec!["completion"],
            (true, 0) => vec!["embedding"],
            (true, 1) => vec!["rerank", "classification"],
            (true, _) => vec!["classification"],
        }
    }
}

impl fmt::Debug for ModelOutline {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ModelOutline")
            .field("weight_bytes", &self.weight_bytes)
            .finish_non_exhaustive()
    }
}
