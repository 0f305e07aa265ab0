//! Kinds of fields for structured output.

use crate::server::parameters::kind::{Bounds, Kind, wrong};
use crate::server::parameters::kinds::object;
use crate::server::wire::error::ApiError;
use crate::text::GrammarSpec;
use serde_json::{Map, Value, json};

/// OpenAI's `response_format`; `None` if it asks for plain text.
pub(crate) struct ResponseFormat;

impl Kind for ResponseFormat {
    type Value = Option<GrammarSpec>;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<Option<GrammarSpec>, ApiError> {
        let format = object(at, value)?;
        let (schema, strict) = json_schema(at, &format)?;
        match format.get("type").and_then(Value::as_str) {
            Some("text") => Ok(None),
            Some("json_object") => match schema {
                Some(schema) => Ok(Some(GrammarSpec::Schema { schema, strict: false })),
                None => Ok(Some(GrammarSpec::json_object())),
            },
            Some("json_schema") => {
                let schema = schema.ok_or_else(|| ApiError::missing(format!("{at}.json_schema.schema")))?;
                Ok(Some(GrammarSpec::Schema { schema, strict }))
            }
            Some(kind @ ("grammar" | "structural_tag" | "regex")) => {
                let message = format!("`{at}` of type {kind} is not supported: use `structured_outputs`");
                Err(ApiError::unsupported(at, message))
            }
            _ => {
                let message = format!("`{at}.type` must be \"text\", \"json_object\" or \"json_schema\"");
                Err(ApiError::invalid(at, message))
            }
        }
    }

    fn schema(&self, _: &Bounds) -> Value {
        let inner = json!({
            "name": {"type": ["string", "null"]},
            "schema": {"type": ["object", "boolean", "null"]},
            "strict": {"type": ["boolean", "null"]},
        });
        json!({
            "title": "ResponseFormat",
            "type": "object",
            "required": ["type"],
            "properties": {
                "type": {"enum": ["text", "json_object", "json_schema"]},
                "json_schema": {"type": ["object", "null"], "properties": inner},
            },
        })
    }
}

/// The schema of a `response_format` and whether it is strict. Both are in `json_schema` or, as llama.cpp has it,
/// beside the type.
fn json_schema(at: &str, format: &Map<String, Value>) -> Result<(Option<Value>, bool), ApiError> {
    let (inner, place) = match format.get("json_schema") {
        Some(Value::Object(inner)) => (inner, format!("{at}.json_schema")),
        None | Some(Value::Null) => (format, at.to_owned()),
        Some(value) => return Err(wrong(&format!("{at}.json_schema"), "an object", value)),
    };
    let given = |name: &str| inner.get(name).filter(|value| !value.is_null());
    let at = |name: &str| format!("{place}.{name}");
    if let Some(name) = given("name").filter(|name| !name.is_string()) {
        return Err(wrong(&at("name"), "a string", name));
    }
    let strict = match given("strict") {
        None => false,
        Some(strict) => strict.as_bool().ok_or_else(|| wrong(&at("strict"), "true or false", strict))?,
    };
    match given("schema") {
        None => Ok((None, strict)),
        Some(schema @ (Value::Object(_) | Value::Bool(_))) => Ok((Some(schema.clone()), strict)),
        Some(schema) => Err(wrong(&at("schema"), "an object", schema)),
    }
}

/// Notations for a grammar.
#[derive(Clone, Copy)]
pub(crate) enum Notation {
    JsonSchema,
    Regex,
    Choice,
    Lark,
}

impl Kind for Notation {
    type Value = GrammarSpec;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<GrammarSpec, ApiError> {
        let string = |value: &Value| value.as_str().map(str::to_owned);
        match self {
            Self::JsonSchema => {
                let parsed = value.as_str().map(|text| serde_json::from_str(text).map_err(|_| &value));
                let schema = parsed.unwrap_or_else(|| Ok(value.clone()));
                let schema = schema.map_err(|value| wrong(at, "a JSON schema", value))?;
                Ok(GrammarSpec::Schema { schema, strict: true })
            }
            Self::Regex => {
                string(&value).map(GrammarSpec::Regex).ok_or_else(|| wrong(at, "a regular expression", &value))
            }
            Self::Choice => {
                let strings = value.as_array().and_then(|items| items.iter().map(string).collect());
                strings.map(GrammarSpec::Choice).ok_or_else(|| wrong(at, "a list of strings", &value))
            }
            Self::Lark => {
                string(&value).map(GrammarSpec::Lark).ok_or_else(|| wrong(at, "a grammar in Lark's notation", &value))
            }
        }
    }

    fn schema(&self, _: &Bounds) -> Value {
        match self {
            // The schema itself, or its JSON text.
            Self::JsonSchema => json!({"type": ["object", "boolean", "string"]}),
            Self::Regex | Self::Lark => json!({"type": "string"}),
            Self::Choice => json!({"type": "array", "items": {"type": "string"}, "minItems": 1}),
        }
    }
}
