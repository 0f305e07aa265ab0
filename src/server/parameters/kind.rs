//! The traits behind the table of fields: a [`Kind`] reads and describes the value of one field, a [`Group`] is a
//! struct of fields.

use crate::engine::handle::EngineInfo;
use crate::server::state::Limits;
use crate::server::wire::error::{ApiError, shorten};
use crate::text::integers;
use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// The type of one field: how it is read and described.
pub(crate) trait Kind {
    /// The type of a value that was read.
    type Value;

    /// Reads the value of the field called `at`.
    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<Self::Value, ApiError>;

    /// JSON schema of the values that [`Self::read`] and the engine accept. A schema with a `title` becomes a component
    /// of the OpenAPI document.
    fn schema(&self, bounds: &Bounds) -> Value;
}

/// Upper ends of ranges that depend on the server's limits and on the model. While the model loads, only the server's
/// limits apply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Maximum choices of one prompt.
    pub(crate) choices: u32,
    /// Maximum prompts of one request.
    pub(crate) prompts: usize,
    /// Size of the vocabulary: all token ids are below it.
    pub(crate) vocab: u32,
    /// Maximum tokens of prompt and answer together.
    pub(crate) context: u32,
    /// Number of elements of an embedding.
    pub(crate) embedding: u32,
    /// The model reads images.
    pub(crate) reads_images: bool,
}

impl Bounds {
    pub(crate) fn new(limits: &Limits, info: Option<&EngineInfo>) -> Self {
        let of_model = |get: fn(&EngineInfo) -> u32| info.map_or(u32::MAX, get);
        Self {
            choices: limits.choices_max,
            prompts: limits.prompts_max,
            vocab: of_model(|info| info.vocab),
            context: of_model(|info| info.max_model_len),
            embedding: of_model(|info| info.embedding_len),
            reads_images: info.is_some_and(|info| info.images.is_some()),
        }
    }
}

/// The upper end of a range.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Most {
    Fixed(i64),
    /// No limit here: larger values are clamped later.
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

/// Whether a field is required, and its value if it is absent. Null counts as absent.
pub(crate) trait Presence {
    type Value;

    fn take(
        &self,
        at: &str,
        value: Option<Value>,
        bounds: &Bounds,
    ) -> Result<Self::Value, ApiError>;

    /// The field's schema, and whether it is required.
    fn schema(&self, bounds: &Bounds) -> (Value, bool);
}

/// Fields that are read together: a whole request, an object within one, or a part that several requests have.
pub(crate) trait Group: Sized {
    /// The name in the documentation.
    const NAME: &'static str;

    /// Removes this group's fields from `map`, the object at the path `at` (empty for the body itself), and reads them.
    fn take(map: &mut Map<String, Value>, at: &str, bounds: &Bounds) -> Result<Self, ApiError>;

    /// Documentation of the fields that [`Self::take`] reads.
    fn rows(bounds: &Bounds) -> Vec<Row>;

    /// Known fields of other servers that [`Self::take`] leaves in the map.
    fn foreign() -> Vec<Foreign>;
}

/// A known field of other servers.
pub(crate) struct Foreign {
    pub(crate) name: &'static str,
    /// What to use instead, or why nothing is lost if the field is ignored.
    pub(crate) reason: &'static str,
    pub(crate) is_refused: bool,
}

impl Foreign {
    pub(crate) fn refused((name, reason): (&'static str, &'static str)) -> Self {
        Self {
            name,
            reason,
            is_refused: true,
        }
    }

    pub(crate) fn ignored((name, reason): (&'static str, &'static str)) -> Self {
        Self {
            name,
            reason,
            is_refused: false,
        }
    }
}

/// Removes the known fields of other servers from the rest of the object at the path `at`. Those that would change the
/// answer are refused, unless their value means that they are not used.
pub(crate) fn take_foreign<G: Group>(
    rest: &mut Map<String, Value>,
    at: &str,
) -> Result<(), ApiError> {
    for Foreign {
        name,
        reason,
        is_refused,
    } in G::foreign()
    {
        if rest
            .remove(name)
            .is_some_and(|value| is_refused && !is_off(&value))
        {
            let path = path(at, name);
            return Err(ApiError::unsupported(
                path.clone(),
                format!("`{path}` is not supported: {reason}"),
            ));
        }
    }
    Ok(())
}

/// Whether an unsupported field has a value that means "not used".
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.values().all(is_off),
    }
}

/// The path of a field of the object at the path `at`.
pub(crate) fn path<'a>(at: &str, name: &'a str) -> Cow<'a, str> {
    if at.is_empty() {
        name.into()
    } else {
        format!("{at}.{name}").into()
    }
}

/// Documentation of one field.
pub(crate) struct Row {
    /// The group whose row this is; others may have it as a part.
    pub(crate) group: &'static str,
    pub(crate) name: &'static str,
    /// The first name of the field.
    pub(crate) field: &'static str,
    pub(crate) sentence: String,
    pub(crate) schema: Value,
    pub(crate) required: bool,
}

impl Row {
    /// The sentence as help for a flag, with the range of a fraction.
    pub(crate) fn help(&self) -> String {
        let sentence = self.sentence.trim_end_matches('.');
        let ends = ["minimum", "exclusiveMinimum", "maximum"].map(|name| self.schema.get(name));
        let range = match ends {
            _ if self.schema["type"][0] != "number" => String::new(),
            [Some(min), _, Some(max)] => format!(" [from {min} to {max}]"),
            [_, Some(min), Some(max)] => format!(" [above {min}, at most {max}]"),
            _ => String::new(),
        };
        sentence.to_owned() + &range
    }
}

/// The value of a field that was read, and the name under which the request gave it.
pub(crate) struct Given<T> {
    pub(crate) value: T,
    by: Option<&'static str>,
}

impl<T> Given<T> {
    /// Removes and reads one field; null counts as absent.
    pub(crate) fn take<P: Presence<Value = T>>(
        map: &mut Map<String, Value>,
        at: &str,
        name: &'static str,
        presence: &P,
        bounds: &Bounds,
    ) -> Result<Self, ApiError> {
        let value = map.remove(name).filter(|value| !value.is_null());
        let by = value.as_ref().map(|_| name);
        let value = presence.take(&path(at, name), value, bounds)?;
        Ok(Self { value, by })
    }

    /// Also removes and reads another name of the field. A value that means "absent" there says nothing.
    pub(crate) fn or<P: Presence<Value = T>>(
        self,
        map: &mut Map<String, Value>,
        at: &str,
        name: &'static str,
        presence: &P,
        bounds: &Bounds,
    ) -> Result<Self, ApiError>
    where
        T: PartialEq,
    {
        let other = Given::take(map, at, name, presence, bounds)?;
        if other.by.is_none() || other.value == presence.take(&path(at, name), None, bounds)? {
            return Ok(self);
        }
        match self.by {
            Some(first) if self.value != other.value => {
                let (first, second) = (path(at, first), path(at, name));
                let message =
                    format!("`{second}` is another name of `{first}`, which has another value");
                Err(ApiError::invalid(second, message))
            }
            _ => Ok(other),
        }
    }
}

/// The name of a field whose member in Rust may be a raw identifier.
pub(crate) fn field_name(member: &'static str) -> &'static str {
    member.trim_start_matches("r#")
}

/// Documents one field.
pub(crate) fn row<P: Presence>(
    (group, name): (&'static str, &'static str),
    sentence: &[&str],
    presence: &P,
    bounds: &Bounds,
) -> Row {
    let (schema, required) = presence.schema(bounds);
    let sentence = sentence
        .iter()
        .map(|line| line.trim())
        .collect::<Vec<_>>()
        .join(" ");
    Row {
        group,
        name,
        field: name,
        sentence,
        schema,
        required,
    }
}

/// Documents another name of a field.
pub(crate) fn alias_row<P: Presence>(
    (group, name): (&'static str, &'static str),
    field: &'static str,
    presence: &P,
    bounds: &Bounds,
) -> Row {
    let sentence = format!("Another name of `{field}`.");
    Row {
        field,
        ..row((group, name), &[&sentence], presence, bounds)
    }
}

/// All rows of a group: those of its parts, except the ones that its own rows hide, then its own.
pub(crate) fn joined(own: Vec<Row>, parts: Vec<Vec<Row>>) -> Vec<Row> {
    let mut rows: Vec<Row> = parts
        .into_iter()
        .flatten()
        .filter(|row| !own.iter().any(|known| known.name == row.name))
        .collect();
    rows.extend(own);
    rows
}

/// JSON schema of an object with these fields.
pub(crate) fn object_schema(rows: &[Row]) -> Value {
    let properties: Map<String, Value> = rows
        .iter()
        .map(|row| {
            let mut schema = row.schema.clone();
            schema["description"] = row.sentence.as_str().into();
            (row.name.to_owned(), schema)
        })
        .collect();
    let required: Vec<_> = rows
        .iter()
        .filter(|row| row.required)
        .map(|row| row.name)
        .collect();
    let mut schema = json!({"type": "object", "properties": properties});
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    schema
}

/// The error "`name` must be …, not …", with the value shortened.
pub(crate) fn wrong(name: &str, rule: &str, value: &Value) -> ApiError {
    let given = match value {
        Value::Array(items) if items.is_empty() => "an empty array".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        _ if integers::digits(value).is_some() => integers::to_json(value),
        Value::Object(_) => "an object".to_owned(),
        Value::String(text) => format!("the string {}", shorten(text)),
        other => other.to_string(),
    };
    ApiError::invalid(name, format!("`{name}` must be {rule}, not {given}"))
}
