//! Kinds of fields for structured output.

use crate::server::parameters::kind::{Bounds, Kind, wrong};
use crate::server::parameters::kinds::Choice;
use crate::server::wire::error::ApiError;
use crate::text::{GrammarSpec, integers, structural_tag};
use serde_json::{Value, json};

/// A JSON schema as JSON, not as text.
pub(crate) struct JsonSchema;

impl Kind for JsonSchema {
    type Value = Value;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<Value, ApiError> {
        let is_number = integers::digits(&value).is_some();
        if !is_number && (value.is_object() || value.is_boolean()) {
            Ok(value)
        } else {
            Err(wrong(at, "an object", &value))
        }
    }

    fn schema(&self, _: &Bounds) -> Value {
        json!({"type": ["object", "boolean"]})
    }
}

/// The type of a `response_format`.
pub(crate) struct FormatType;

impl FormatType {
    const CHOICE: Choice = Choice(&["text", "json_object", "json_schema", "structural_tag"]);
}

impl Kind for FormatType {
    type Value = &'static str;

    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<&'static str, ApiError> {
        // Types of other servers, whose content has a field of its own here.
        if ["grammar", "regex"].iter().any(|kind| value == *kind) {
            let types = Self::CHOICE.0.join(", ");
            let rule = format!(
                "one of {types} (`structured_outputs` takes grammars and regular expressions)"
            );
            return Err(wrong(at, &rule, &value));
        }
        Self::CHOICE.read(at, value, bounds)
    }

    fn schema(&self, bounds: &Bounds) -> Value {
        Self::CHOICE.schema(bounds)
    }
}

/// Notations for a grammar.
#[derive(Clone, Copy)]
pub(crate) enum Notation {
    JsonSchema,
    /// A JSON schema whose keywords have no effect if they cannot be enforced.
    LenientSchema,
    Regex,
    Choice,
    Grammar,
    StructuralTag,
}

impl Kind for Notation {
    type Value = GrammarSpec;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<GrammarSpec, ApiError> {
        match self {
            Self::JsonSchema | Self::LenientSchema => {
                let parsed = value
                    .as_str()
                    .map(|text| integers::parse(text).ok_or(&value));
                let schema = parsed.unwrap_or_else(|| Ok(value.clone()));
                let schema = schema.map_err(|value| wrong(at, "a JSON schema", value))?;
                Ok(GrammarSpec::Schema {
                    schema,
                    strict: matches!(self, Self::JsonSchema),
                })
            }
            Self::Regex => string(&value)
                .map(GrammarSpec::Regex)
                .ok_or_else(|| wrong(at, "a regular expression", &value)),
            Self::Choice => {
                let strings = value
                    .as_array()
                    .and_then(|items| items.iter().map(string).collect());
                strings
                    .map(GrammarSpec::Choice)
                    .ok_or_else(|| wrong(at, "a list of strings", &value))
            }
            Self::Grammar => string(&value)
                .map(GrammarSpec::grammar)
                .ok_or_else(|| wrong(at, "a grammar in Lark's or llama.cpp's notation", &value)),
            Self::StructuralTag => {
                let parsed = value.as_str().and_then(integers::parse);
                tagged(at, parsed.as_ref().unwrap_or(&value))
            }
        }
    }

    fn schema(&self, _: &Bounds) -> Value {
        match self {
            // The schema itself, or its JSON text.
            Self::JsonSchema | Self::LenientSchema => {
                json!({"type": ["object", "boolean", "string"]})
            }
            Self::StructuralTag => json!({"type": ["object", "string"], "examples": [TAG_EXAMPLE]}),
            Self::Regex | Self::Grammar => json!({"type": "string"}),
            Self::Choice => json!({"type": "array", "items": {"type": "string"}, "minItems": 1}),
        }
    }
}

/// A structural tag as its JSON text.
const TAG_EXAMPLE: &str = "{\"structures\": [{\"begin\": \"<a>\", \"schema\": {\"type\": \"null\"}, \
                           \"end\": \"</a>\"}], \"triggers\": [\"<a>\"]}";

/// An answer with structural tags.
pub(crate) fn tagged(at: &str, tag: &Value) -> Result<GrammarSpec, ApiError> {
    if !tag.is_object() {
        return Err(wrong(at, "a structural tag", tag));
    }
    let grammar = structural_tag(tag).map_err(|error| ApiError::grammar(at, &error))?;
    Ok(GrammarSpec::Lark(grammar))
}

/// A part of a structural tag, which is checked with the others.
pub(crate) struct TagPart(pub(crate) &'static str);

impl Kind for TagPart {
    type Value = Value;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<Value, ApiError> {
        let is_right = match self.0 {
            "array" => value.is_array(),
            _ => value.is_object(),
        };
        if is_right {
            Ok(value)
        } else {
            Err(wrong(at, &format!("an {}", self.0), &value))
        }
    }

    fn schema(&self, _: &Bounds) -> Value {
        json!({"type": self.0})
    }
}

fn string(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}
