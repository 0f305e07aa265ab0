//! Text in and out of token ids: tokenizer, chat template, incremental decoding with stop strings, grammars.
//!
//! [`TextModel`] holds a checkpoint's text files. It may lack a tokenizer (then only token ids can be served) or a
//! template (then there is no chat). A conversation becomes ids by [`TextModel::chat_prompt`]: the template renders it,
//! the tokenizer encodes the result, and special-token strings inside the conversation stay ordinary text. Each choice
//! has a [`TextStream`] that turns ids into text. A [`Grammar`], compiled by [`Grammars`] from a [`GrammarSpec`],
//! constrains an answer. [`answer`] splits reasoning and tool calls from an answer.
//!
//! Nothing here depends on the engine, HTTP, files or the clock: the time for `strftime_now` is an argument. Only the
//! grammars of clients look at a clock, for the time that they may take, and the limits of lines.

#[cfg(feature = "api")]
pub mod answer;
mod bpe;
mod charsmap;
mod chunks;
mod folder;
mod grammar;
mod growth;
mod infill;
pub(crate) mod integers;
mod lines;
mod literal;
mod marks;
mod python;
pub mod sentence;
mod stream;
mod template;
mod template_caps;
mod template_filters;
mod template_format;
mod template_html;
mod template_limits;
mod template_methods;
mod template_source;
mod tokenizer;
mod tokenizer_file;
mod tokenizer_parts;
mod word_pieces;

pub use folder::{MORE_TEMPLATES, TextFolder};
pub use grammar::{
    Grammar, GrammarError, GrammarSpec, GrammarState, Grammars, NoTokenAllowed, Running, Waiting,
    Watched, schema_as_json, schema_in_lark, structural_tag, watch,
};
pub use infill::{Gap, Infill};
pub use lines::LineLimits;
pub use sentence::SentenceModel;
pub use stream::{StopStrings, TextPiece, TextStream, Utf8Stream};
pub use template::{ChatInput, ChatTemplate, RESERVED_KWARGS, TemplateError};
pub use template_caps::TemplateCaps;
pub use tokenizer::{PairIds, PairLimits, Tokenizer, TokenizerError};

use serde_json::{Map, Value};
use std::sync::Arc;

/// Seconds since 1970 as `2026-01-31T23:59:59Z`.
pub fn iso_time(unix_time: u64) -> String {
    python::strftime("%Y-%m-%dT%H:%M:%SZ", unix_time)
}

/// The text side of a checkpoint: tokenizer, chat template and their configuration.
#[derive(Default)]
pub struct TextModel {
    /// `None`: prompts are token ids and answers have no text.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// `None`: no chat.
    pub template: Option<ChatTemplate>,
    /// Content of tokenizer_config.json and special_tokens_map.json, with the chat template in use.
    pub config: Map<String, Value>,
    /// What files of sentence-transformers say of vectors, if there are any.
    pub sentence: Option<SentenceModel>,
}

/// A text file of a checkpoint is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TextError {
    /// tokenizer.json.
    #[error("tokenizer.json: {0}")]
    Tokenizer(String),
    /// Another file.
    #[error("{name}: {message}")]
    File {
        /// The file's name.
        name: String,
        /// What is wrong.
        message: String,
    },
    /// The chat template, from any source.
    #[error("chat template: {0}")]
    Template(String),
}

/// Why a conversation cannot become a prompt.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PromptError {
    /// The model has no tokenizer.
    #[error("this model has no tokenizer: send token ids to /v1/completions")]
    NoTokenizer,
    /// The model has no chat template.
    #[error(
        "`messages` needs a chat template: pass --chat-template, or use `prompt` with /v1/completions"
    )]
    NoTemplate,
    /// The template refused the conversation, or failed.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The tokenizer failed.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The template does not show every image.
    #[error("the chat template shows {shown} of {images} images")]
    Images {
        /// Images that the template shows.
        shown: usize,
        /// Images of the conversation.
        images: usize,
    },
}

impl TextModel {
    /// Reads tokenizer.json and tokenizer_config.json; `chat_template` wins over the template in the latter. A missing
    /// file is `None`. See [`Self::from_folder`] for errors.
    pub fn from_parts(
        tokenizer_json: Option<&[u8]>,
        tokenizer_config_json: Option<&[u8]>,
        chat_template: Option<&str>,
    ) -> Result<Self, TextError> {
        let mut folder = TextFolder::default();
        let files = [
            ("tokenizer.json", tokenizer_json),
            ("tokenizer_config.json", tokenizer_config_json),
        ];
        for (name, bytes) in files {
            folder.extend(bytes.map(|bytes| (name, bytes.to_vec())));
        }
        Self::from_folder(&folder, chat_template)
    }

    /// Reads a checkpoint's files; `own` is a chat template that wins over theirs.
    ///
    /// # Errors
    ///
    /// If a file is invalid, or `own` does not compile. A template of the checkpoint that does not compile is reported
    /// when a conversation needs it, so that the model serves everything else.
    pub fn from_folder(folder: &TextFolder, own: Option<&str>) -> Result<Self, TextError> {
        let config = folder.config()?;
        let added = folder.added_tokens(&config)?;
        let tokenizer = folder
            .tokenizer_json(&config)?
            .map(|json| Tokenizer::with_added(&json, added))
            .transpose()?;
        let sentence = SentenceModel::read(|name| folder.sentence(name))?;
        Ok(Self {
            sentence,
            ..Self::new(tokenizer, config, own)?
        })
    }

    /// [`Self::from_parts`], with a tokenizer that was read before.
    pub fn with_tokenizer(
        tokenizer: Option<Tokenizer>,
        tokenizer_config_json: Option<&[u8]>,
        chat_template: Option<&str>,
    ) -> Result<Self, TextError> {
        let mut folder = TextFolder::default();
        folder.extend(tokenizer_config_json.map(|bytes| ("tokenizer_config.json", bytes.to_vec())));
        Self::new(tokenizer, folder.config()?, chat_template)
    }

    fn new(
        tokenizer: Option<Tokenizer>,
        mut config: Map<String, Value>,
        own: Option<&str>,
    ) -> Result<Self, TextError> {
        config.extend(own.map(|text| ("chat_template".to_owned(), Value::from(text))));
        let template = ChatTemplate::from_config(&config)?;
        if let Some(fault) = template.as_ref().and_then(ChatTemplate::fault) {
            if own.is_some() {
                return Err(TextError::Template(fault.to_owned()));
            }
            tracing::warn!("the model's chat template cannot be used: {fault}");
        }
        Ok(Self {
            tokenizer: tokenizer.map(Arc::new),
            template,
            config,
            sentence: None,
        })
    }

    /// Maximum tokens of a text with its special ones, of an encoder: what sentence-transformers' files say, else
    /// `model_max_length` of tokenizer_config.json, which is a huge number if it says nothing.
    pub fn encoder_tokens_max(&self) -> Option<usize> {
        let own = self.sentence.as_ref();
        let own = own.and_then(|sentence| sentence.max_tokens);
        let usual = || {
            let most = self.config.get("model_max_length")?.as_u64()?;
            usize::try_from(most).ok().filter(|most| *most > 0)
        };
        own.or_else(usual)
    }

    /// Renders a conversation to the prompt text that the model will see.
    pub fn chat_text(&self, input: &ChatInput<'_>) -> Result<String, PromptError> {
        let template = self.template.as_ref().ok_or(PromptError::NoTemplate)?;
        Ok(template.render(input)?)
    }

    /// [`Self::chat_prompt`] of a conversation with images: the template writes the special token `marker` for each of
    /// them, in whose place these texts are encoded.
    ///
    /// # Errors
    ///
    /// Those of [`Self::chat_prompt`]; and if the template shows more images or fewer than there are texts.
    pub fn chat_prompt_with_images(
        &self,
        input: &ChatInput<'_>,
        marker: &str,
        texts: &[String],
    ) -> Result<Vec<u32>, PromptError> {
        let template = self.template.as_ref().ok_or(PromptError::NoTemplate)?;
        let tokenizer = self.tokenizer.as_ref().ok_or(PromptError::NoTokenizer)?;
        let marked = tokenizer.literals().marked(input);
        let input = ChatInput {
            messages: &marked.messages,
            tools: marked.tools.as_ref(),
            ..*input
        };
        let rendered = template.render(&input)?;
        let images = texts.len();
        let replaced = tokenizer.literals().replace(&rendered, marker, texts);
        let replaced = replaced.map_err(|shown| PromptError::Images { shown, images })?;
        Ok(tokenizer.encode_marked(&replaced)?)
    }

    /// Renders and encodes a conversation, without the tokenizer's added special tokens: the template writes its own.
    pub fn chat_prompt(&self, input: &ChatInput<'_>) -> Result<Vec<u32>, PromptError> {
        let template = self.template.as_ref().ok_or(PromptError::NoTemplate)?;
        let tokenizer = self.tokenizer.as_ref().ok_or(PromptError::NoTokenizer)?;
        match tokenizer.literals().mark_input(input) {
            None => Ok(tokenizer.encode(&template.render(input)?, false)?),
            Some(marked) => {
                let input = ChatInput {
                    messages: &marked.messages,
                    tools: marked.tools.as_ref(),
                    ..*input
                };
                Ok(tokenizer.encode_marked(&template.render(&input)?)?)
            }
        }
    }
}

#[cfg(test)]
mod tests;
