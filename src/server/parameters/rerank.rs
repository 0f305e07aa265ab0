//! The fields of `/v1/rerank` (Jina's, Cohere's and vLLM's names, or TEI's), and of `/score` and `/classify` (vLLM's).

use crate::server::parameters::fields::fields;
use crate::server::parameters::kind::{Bounds, Kind, Most, wrong};
use crate::server::parameters::kinds::{Choice, Flag, Integer, NotZero, Optional, Required, Text};
use crate::server::parameters::prompts::{Prompts, PromptsKind};
use crate::server::parameters::table::{INPUTS_MAX, Queueing, Target};
use crate::server::wire::error::ApiError;
use serde_json::{Value, json};

fields! {
    /// What both requests have.
    Judging with target: Target, queueing: Queueing {
        /// What makes a document relevant, for models that read an instruction.
        instruction: Option<String> = Optional(Text::ANY),
        /// Keep only this many of each document's first tokens; 0 keeps all.
        max_tokens_per_doc: Option<i64> = Optional(Integer { min: 0, max: Most::Context }),
        /// Keep this many tokens of a pair (with a head for classes) or of a document; -1 keeps as many as fit.
        truncate_prompt_tokens: Option<i64> = Optional(NotZero(Integer { min: -1, max: Most::Context })),
        /// Which side of a document that is too long is cut: `right` (the default) keeps its beginning.
        truncation_side: Option<&'static str> = Optional(Choice(&["left", "right"])),
        /// False: report logits or the logarithm of the odds instead of probabilities; a cosine stays as it is.
        use_activation: bool = Flag(true),
    }
    refuses {
        activation: "a score is a probability or a cosine",
        chat_template_kwargs: "models are asked in the form that they are made for",
        max_chunks_per_doc: "a document is judged as a whole; `max_tokens_per_doc` cuts it",
        max_tokens_per_query: "a query is read as a whole",
        mm_processor_kwargs: "models take text only",
        rank_fields: "send documents as texts",
    }
    ignores {
        padding: "texts of different lengths are computed side by side",
    }
}

fields! {
    /// `POST /v1/rerank` with documents.
    RerankDocumentsRequest with judging: Judging {
        /// What the documents are compared with.
        query: String = Required(Document),
        /// What to rank: texts, or objects with `text`.
        documents: Vec<String> = Required(Documents { has_maximum: true }),
        /// Report only this many of the best documents.
        top_n: Option<i64> = Optional(Integer { min: 1, max: Most::Fixed(i32::MAX as i64) }),
        /// Repeat each document in its result.
        return_documents: bool = Flag(true),
    }
}

fields! {
    /// `POST /rerank` with texts, as clients of Hugging Face's Text Embeddings Inference send it.
    RerankTextsRequest with judging: Judging {
        /// What the texts are compared with.
        query: String = Required(Document),
        /// What to rank.
        texts: Vec<String> = Required(Documents { has_maximum: true }),
        /// Report only this many of the best texts, as llama.cpp's clients ask.
        top_n: Option<i64> = Optional(Integer { min: 1, max: Most::Fixed(i32::MAX as i64) }),
        /// Report the logarithm of the odds instead of a probability; a cosine stays as it is.
        raw_scores: bool = Flag(false),
        /// Repeat each text in its result.
        return_text: bool = Flag(false),
        /// Cut a text that does not fit into the context; it is refused otherwise.
        truncate: bool = Flag(true),
        /// Texts are cut at their end.
        #[expect(dead_code)]
        truncation_direction: Option<&'static str> = Optional(Choice(&["Right", "right"])),
    }
}

fields! {
    /// `POST /score`.
    ScoreTextsRequest with judging: Judging {
        /// A query, or one for each document.
        text_1: Vec<String> = Required(Documents { has_maximum: false }),
        /// A document, or several.
        text_2: Vec<String> = Required(Documents { has_maximum: true }),
    }
    refuses {
        data_1: "`text_1` is the same",
        data_2: "`text_2` is the same",
        documents: "`text_2` is the same",
        items: "`text_2` is the same",
        queries: "`text_1` is the same",
    }
}

fields! {
    /// `POST /score` under vLLM's newer names.
    ScoreDocumentsRequest with judging: Judging {
        /// A query, or one for each document.
        queries: Vec<String> = Required(Documents { has_maximum: false }),
        /// A document, or several.
        documents: Vec<String> = Required(Documents { has_maximum: true }),
    }
}

fields! {
    /// `POST /score` with items.
    ScoreItemsRequest with judging: Judging {
        /// A query, or one for each item.
        queries: Vec<String> = Required(Documents { has_maximum: false }),
        /// An item, or several.
        items: Vec<String> = Required(Documents { has_maximum: true }),
    }
    refuses {
        documents: "`items` is the same",
    }
}

fields! {
    /// `POST /score` under vLLM's neutral names.
    ScoreDataRequest with judging: Judging {
        /// A text, or one for each of the others.
        data_1: Vec<String> = Required(Documents { has_maximum: false }),
        /// A text, or several.
        data_2: Vec<String> = Required(Documents { has_maximum: true }),
    }
    refuses {
        documents: "`data_2` is the same",
        items: "`data_2` is the same",
        queries: "`data_1` is the same",
    }
}

fields! {
    /// `POST /classify`.
    ClassifyRequest with target: Target, queueing: Queueing {
        /// What to classify: a text, several, a list of token ids, or several lists.
        input: Prompts = Required(PromptsKind { most: Most::Fixed(INPUTS_MAX) }),
        /// Encode texts with the special tokens that the tokenizer adds.
        add_special_tokens: bool = Flag(true),
        /// False: report logits.
        use_activation: bool = Flag(true) => activation = Flag(true),
    }
    refuses {
        messages: "`input` says what to classify",
    }
    ignores {
        padding: "texts of different lengths are computed side by side",
    }
}

impl Judging {
    /// Maximum tokens of a document.
    pub(crate) fn document_tokens_max(&self) -> Option<usize> {
        let most = self.max_tokens_per_doc.or(self.truncate_prompt_tokens);
        most.filter(|most| *most > 0).map(|most| most as usize)
    }

    /// Whether what does not fit is cut.
    pub(crate) fn is_cut_to_fit(&self) -> bool {
        self.truncate_prompt_tokens == Some(-1)
    }

    /// Whether a document that is too long keeps its end.
    pub(crate) fn keeps_end(&self) -> bool {
        self.truncation_side == Some("left")
    }
}

/// A text, or an object with `text`.
pub(crate) struct Document;

impl Kind for Document {
    type Value = String;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<String, ApiError> {
        match value {
            Value::String(text) => Ok(text),
            Value::Object(mut map) => match map.remove("text") {
                Some(Value::String(text)) => Ok(text),
                _ => Err(ApiError::missing(format!("{at}.text"))),
            },
            other => Err(wrong(at, "a text, or an object with `text`", &other)),
        }
    }

    fn schema(&self, _: &Bounds) -> Value {
        let text = json!({"type": "string"});
        json!({"anyOf": [text, {"type": "object", "required": ["text"], "properties": {"text": text}}]})
    }
}

/// A list of documents, or one.
pub(crate) struct Documents {
    /// Another field does not limit their number.
    pub(crate) has_maximum: bool,
}

impl Kind for Documents {
    type Value = Vec<String>;

    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<Vec<String>, ApiError> {
        let items = match value {
            Value::Array(items) if items.is_empty() || items.len() as i64 > INPUTS_MAX => {
                return Err(wrong(
                    at,
                    &format!("a list of 1 to {INPUTS_MAX} texts"),
                    &Value::Array(items),
                ));
            }
            Value::Array(items) => items,
            other => return Ok(vec![Document.read(at, other, bounds)?]),
        };
        items
            .into_iter()
            .enumerate()
            .map(|(index, item)| Document.read(&format!("{at}[{index}]"), item, bounds))
            .collect()
    }

    fn schema(&self, bounds: &Bounds) -> Value {
        let one = Document.schema(bounds);
        let mut list = json!({"type": "array", "minItems": 1, "items": one});
        if self.has_maximum {
            list["maxItems"] = INPUTS_MAX.into();
        }
        json!({"anyOf": [one, list]})
    }
}
