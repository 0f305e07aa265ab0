//! What the table of fields is made of: a [`Kind`] reads one field and describes it, a [`Group`] is a struct of fields.

use crate::engine::handle::EngineInfo;
use crate::server::state::{Limits, prompt_bytes_max};
use crate::server::wire::error::{ApiError, shorten};
use serde_json::{Map, Value, json};

/// What one kind of field holds.
pub(crate) trait Kind {
    /// A value that was read.
    type Value;

    /// Reads the value of the field called `at`.
    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<Self::Value, ApiError>;

    /// The values that [`Self::read`] and the engine take, as a JSON schema. One with a `title` becomes a component of
    /// the document.
    fn schema(&self, bounds: &Bounds) -> Value;
}

/// Ends of ranges that depend on the server's limits and on the model; a model that is loading has none of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Choices of one prompt.
    pub(crate) choices: u32,
    /// Prompts of one request.
    pub(crate) prompts: usize,
    /// Token ids are below.
    pub(crate) vocab: u32,
    /// Tokens of prompt and answer together.
    pub(crate) context: u32,
    /// Bytes of text in one prompt.
    pub(crate) prompt_bytes: usize,
    /// Elements of an embedding.
    pub(crate) embedding: u32,
}

impl Bounds {
    pub(crate) fn new(limits: &Limits, info: Option<&EngineInfo>) -> Self {
        let of_model = |get: fn(&EngineInfo) -> u32| info.map_or(u32::MAX, get);
        Self {
            choices: limits.choices_max,
            prompts: limits.prompts_max,
            vocab: of_model(|info| info.vocab),
            context: of_model(|info| info.max_model_len),
            prompt_bytes: info.map_or(usize::MAX, prompt_bytes_max),
            embedding: of_model(|info| info.embedding_len),
        }
    }
}

/// The upper end of a range.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Most {
    Fixed(i64),
    /// What is too much is clamped later.
    Any,
    Choices,
    Prompts,
    Context,
    Embedding,
}

impl Most {
    pub(crate) fn of(self, bounds: &Bounds) -> Option<i64> {
        match self {
            Self::Fixed(most) => Some(most),
            Self::Any => None,
            Self::Choices => Some(bounds.choices.into()),
            Self::Prompts => i64::try_from(bounds.prompts).ok(),
            Self::Context => Some(bounds.context.into()),
            Self::Embedding => Some(bounds.embedding.into()),
        }
    }
}

/// Whether a field must be there, and what it is if it is not. Null counts as absent.
pub(crate) trait Presence {
    type Value;

    fn take(&self, at: &str, value: Option<Value>, bounds: &Bounds) -> Result<Self::Value, ApiError>;

    /// The field's schema, and whether it is required.
    fn schema(&self, bounds: &Bounds) -> (Value, bool);
}

/// Fields that are read together: a whole request, an object within one, or a part that several requests have.
pub(crate) trait Group: Sized {
    /// Takes this group's fields out of `map`, an object that is called `at` (the body itself: an empty name).
    fn take(map: &mut Map<String, Value>, at: &str, bounds: &Bounds) -> Result<Self, ApiError>;

    /// What [`Self::take`] reads.
    fn rows(bounds: &Bounds) -> Vec<Row>;
}

/// One field as it is documented.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) sentence: String,
    pub(crate) schema: Value,
    pub(crate) required: bool,
}

/// Takes one field; null counts as absent.
pub(crate) fn take<P: Presence>(
    map: &mut Map<String, Value>,
    at: &str,
    name: &'static str,
    presence: &P,
    bounds: &Bounds,
) -> Result<P::Value, ApiError> {
    let value = map.remove(name).filter(|value| !value.is_null());
    if at.is_empty() {
        return presence.take(name, value, bounds);
    }
    presence.take(&format!("{at}.{name}"), value, bounds)
}

/// Documents one field.
pub(crate) fn row<P: Presence>(name: &'static str, sentence: &[&str], presence: &P, bounds: &Bounds) -> Row {
    let (schema, required) = presence.schema(bounds);
    let sentence = sentence.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
    Row { name, sentence, schema, required }
}

/// The rows of a group's parts, without those that its own rows hide, and its own.
pub(crate) fn joined(own: Vec<Row>, parts: Vec<Vec<Row>>) -> Vec<Row> {
    let hidden = |row: &Row| own.iter().any(|known| known.name == row.name);
    let mut rows: Vec<Row> = parts.into_iter().flatten().filter(|row| !hidden(row)).collect();
    rows.extend(own);
    rows
}

/// An object with these fields, as a JSON schema.
pub(crate) fn object_schema(rows: &[Row]) -> Value {
    let property = |row: &Row| {
        let mut schema = row.schema.clone();
        schema["description"] = row.sentence.as_str().into();
        (row.name.to_owned(), schema)
    };
    let properties: Map<String, Value> = rows.iter().map(property).collect();
    let required: Vec<_> = rows.iter().filter(|row| row.required).map(|row| row.name).collect();
    let mut schema = json!({"type": "object", "properties": properties});
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    schema
}

/// "`name` must be …, not …", with the value shortened.
pub(crate) fn wrong(name: &str, rule: &str, value: &Value) -> ApiError {
    let given = match value {
        Value::Array(items) if items.is_empty() => "an empty array".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::String(text) => format!("the string {}", shorten(text)),
        other => other.to_string(),
    };
    ApiError::invalid(name, format!("`{name}` must be {rule}, not {given}"))
}
