//! The fields of routes that give vectors and classes in other servers' forms: those of Hugging Face's Text Embeddings
//! Inference, of Cohere's `/v2/embed`, and of vLLM's `/pooling`.

use crate::server::parameters::fields::fields;
use crate::server::parameters::kind::{Bounds, Kind, Most, wrong};
use crate::server::parameters::kinds::{
    Choice, Choices, Flag, Integer, Nested, Optional, Required, Strings, Text,
};
use crate::server::parameters::prompts::{Prompts, PromptsKind};
use crate::server::parameters::rerank::Documents;
use crate::server::parameters::table::{INPUTS_MAX, Queueing, Target};
use crate::server::wire::error::ApiError;
use serde_json::{Value, json};

fields! {
    /// How texts are read, in the form of Text Embeddings Inference.
    TeiReading {
        /// Cut a text that does not fit into the context; it is refused otherwise.
        truncate: bool = Flag(true),
        /// Which side of a text that is too long is cut; the right one by default.
        truncation_direction: Option<&'static str> = Optional(Choice(&["Left", "left", "Right", "right"])),
        /// The name of the prompt of the model's files that is put before texts; the default one if there is one.
        prompt_name: Option<String> = Optional(Text::ANY),
    }
}

fields! {
    /// `POST /embed`, as clients of Text Embeddings Inference send it.
    TeiEmbedRequest with target: Target, queueing: Queueing, reading: TeiReading {
        /// What to embed: a text, several, a list of token ids, or several lists.
        inputs: Prompts = Required(PromptsKind { most: Most::Fixed(INPUTS_MAX) }),
        /// Scale vectors to length one.
        normalize: bool = Flag(true),
        /// Elements to keep of each vector.
        dimensions: Option<i64> = Optional(Integer { min: 1, max: Most::Embedding }),
    }
}

fields! {
    /// `POST /embed_all`, as clients of Text Embeddings Inference send it.
    TeiEmbedAllRequest with target: Target, queueing: Queueing, reading: TeiReading {
        /// What to embed: a text, several, a list of token ids, or several lists.
        inputs: Prompts = Required(PromptsKind { most: Most::Fixed(INPUTS_MAX) }),
    }
}

fields! {
    /// `POST /similarity`, as clients of Text Embeddings Inference send it.
    TeiSimilarityRequest with target: Target, queueing: Queueing {
        /// What is compared.
        inputs: TeiSentences = Required(Nested::<TeiSentences>::new()),
        /// How texts are read.
        parameters: Option<TeiReading> = Optional(Nested::<TeiReading>::new()),
    }
}

fields! {
    /// `inputs` of `/similarity`.
    TeiSentences {
        /// The text that the others are compared with.
        source_sentence: String = Required(Text::ANY),
        /// The others.
        sentences: Vec<String> = Required(Documents { has_maximum: true }),
    }
}

fields! {
    /// `POST /predict`, as clients of Text Embeddings Inference send it.
    TeiPredictRequest with target: Target, queueing: Queueing {
        /// A text, a pair of texts, or a list of lists of one text or two.
        inputs: TeiSequences = Required(TeiSequencesKind),
        /// Report logits instead of probabilities.
        raw_scores: bool = Flag(false),
        /// Cut a text that does not fit into the context; it is refused otherwise.
        truncate: bool = Flag(true),
        /// Which side of a text that is too long is cut; the right one by default.
        truncation_direction: Option<&'static str> = Optional(Choice(&["Left", "left", "Right", "right"])),
    }
}

fields! {
    /// `POST /v2/embed`, as Cohere's clients send it.
    CohereEmbedRequest with target: Target, queueing: Queueing {
        /// What to embed.
        texts: Vec<String> = Required(Documents { has_maximum: true }),
        /// What texts are for: one of Cohere's names, or that of a prompt of the model's files.
        input_type: Option<String> = Optional(Text::ANY),
        /// The forms of vectors: `float` by default.
        embedding_types: Option<Vec<&'static str>> = Optional(Choices(EMBEDDING_TYPES)),
        /// Elements to keep of each vector.
        output_dimension: Option<i64> = Optional(Integer { min: 1, max: Most::Embedding }),
        /// Which end of a text that is too long is cut: `END` by default; `NONE` refuses it.
        truncate: Option<&'static str> = Optional(Choice(&["NONE", "START", "END"])),
        /// Maximum tokens of a text.
        max_tokens: Option<i64> = Optional(Integer { min: 1, max: Most::Context }),
    }
    refuses {
        images: "only texts have vectors",
        inputs: "send `texts`",
    }
}

fields! {
    /// `POST /pooling`, as vLLM's clients send it.
    PoolingRequest with target: Target, queueing: Queueing {
        /// What to pool: a text, several, a list of token ids, or several lists.
        input: Prompts = Required(PromptsKind { most: Most::Fixed(INPUTS_MAX) }),
        /// Encode texts with the special tokens that the tokenizer adds.
        add_special_tokens: bool = Flag(true),
        /// Vectors of texts, of their tokens, or classes; by default what the model is made for.
        task: Option<&'static str> = Optional(Choice(&["embed", "token_embed", "classify"])),
        /// Numbers (the default), or base64 of 32-bit floats.
        encoding_format: Option<&'static str> = Optional(Choice(&["float", "base64"])),
        /// Elements to keep of each vector.
        dimensions: Option<i64> = Optional(Integer { min: 1, max: Most::Embedding }),
        /// False: vectors are not scaled, and logits are reported instead of probabilities.
        use_activation: bool = Flag(true) => activation = Flag(true) => normalize = Flag(true),
    }
    refuses {
        messages: "`input` says what to pool",
        embed_dtype: "/v1/embeddings has other formats of numbers",
        endianness: "/v1/embeddings has other formats of numbers",
        softmax: "`use_activation` is the same",
    }
    ignores {
        padding: "texts of different lengths are computed side by side",
    }
}

/// The forms of Cohere's vectors.
pub(crate) const EMBEDDING_TYPES: &[&str] =
    &["float", "int8", "uint8", "binary", "ubinary", "base64"];

impl TeiReading {
    /// Whether the end of a text that is too long is kept.
    pub(crate) fn keeps_end(direction: Option<&str>) -> bool {
        direction.is_some_and(|direction| direction.eq_ignore_ascii_case("left"))
    }
}

/// A text, or a pair of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TeiSequence {
    One(String),
    Pair([String; 2]),
}

/// What `/predict` classifies.
pub(crate) struct TeiSequences {
    pub(crate) sequences: Vec<TeiSequence>,
    /// They came as a list, and so does the answer.
    pub(crate) is_batch: bool,
}

/// A text, a pair of texts, or a list of lists of one text or two.
pub(crate) struct TeiSequencesKind;

impl Kind for TeiSequencesKind {
    type Value = TeiSequences;

    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<TeiSequences, ApiError> {
        let items = match value {
            Value::Array(items) if items.iter().any(Value::is_array) => items,
            other => {
                return Ok(TeiSequences {
                    sequences: vec![sequence(at, other, bounds)?],
                    is_batch: false,
                });
            }
        };
        if items.len() as i64 > INPUTS_MAX {
            let rule = format!("at most {INPUTS_MAX} lists");
            return Err(wrong(at, &rule, &Value::Array(items)));
        }
        let sequences = items.into_iter().enumerate().map(|(index, item)| {
            let at = format!("{at}[{index}]");
            if item.is_array() {
                sequence(&at, item, bounds)
            } else {
                Err(wrong(&at, SEQUENCE_RULE, &item))
            }
        });
        Ok(TeiSequences {
            sequences: sequences.collect::<Result<_, _>>()?,
            is_batch: true,
        })
    }

    fn schema(&self, _: &Bounds) -> Value {
        let text = json!({"type": "string"});
        let list = json!({"type": "array", "items": text, "minItems": 1, "maxItems": 2});
        let batch = json!({"type": "array", "items": list, "minItems": 1, "maxItems": INPUTS_MAX});
        json!({"anyOf": [text, list, batch]})
    }
}

/// What a sequence may be.
const SEQUENCE_RULE: &str = "a list of one text or two";

fn sequence(at: &str, value: Value, bounds: &Bounds) -> Result<TeiSequence, ApiError> {
    if let Value::String(text) = value {
        return Ok(TeiSequence::One(text));
    }
    let is_fit = value
        .as_array()
        .is_some_and(|items| (1..=2).contains(&items.len()));
    if !is_fit {
        return Err(wrong(at, SEQUENCE_RULE, &value));
    }
    let texts = Strings.read(at, value, bounds)?;
    match <[String; 2]>::try_from(texts) {
        Ok(pair) => Ok(TeiSequence::Pair(pair)),
        Err(mut one) => Ok(TeiSequence::One(one.pop().unwrap_or_default())),
    }
}
