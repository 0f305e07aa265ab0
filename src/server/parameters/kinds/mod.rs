//! Kinds of request fields. Each reads a JSON value, refuses a wrong one with an error that names the field, and
//! describes itself as a JSON schema. Ranges that are the engine's own constants are checked by the engine, which does
//! it for every caller (`Request::check`).

pub(crate) mod images;
pub(crate) mod messages;
pub(crate) mod sampling;
pub(crate) mod structured;

use crate::engine::request::NumberRange;
use crate::server::parameters::kind::{
    Bounds, Group, Kind, Most, Presence, object_schema, take_foreign, wrong,
};
use crate::server::wire::error::ApiError;
use serde_json::{Map, Value, json};
use std::marker::PhantomData;

/// An optional field.
pub(crate) struct Optional<K>(pub(crate) K);

/// An optional text of which an empty one is none: some clients send what they have no value for.
pub(crate) struct MaybeEmpty<K>(pub(crate) Optional<K>);

/// A required field.
pub(crate) struct Required<K>(pub(crate) K);

/// A required field that may come under another name.
pub(crate) struct Needed<K>(pub(crate) Optional<K>);

/// A boolean with a default.
pub(crate) struct Flag(pub(crate) bool);

impl<K: Kind> Presence for Optional<K> {
    type Value = Option<K::Value>;

    fn take(
        &self,
        at: &str,
        value: Option<Value>,
        bounds: &Bounds,
    ) -> Result<Self::Value, ApiError> {
        value
            .map(|value| self.0.read(at, value, bounds))
            .transpose()
    }

    fn schema(&self, bounds: &Bounds) -> (Value, bool) {
        (nullable(self.0.schema(bounds)), false)
    }
}

impl<K: Kind> Presence for MaybeEmpty<K> {
    type Value = Option<K::Value>;

    fn take(
        &self,
        at: &str,
        value: Option<Value>,
        bounds: &Bounds,
    ) -> Result<Self::Value, ApiError> {
        let value = value.filter(|value| value.as_str() != Some(""));
        self.0.take(at, value, bounds)
    }

    fn schema(&self, bounds: &Bounds) -> (Value, bool) {
        self.0.schema(bounds)
    }
}

impl<K: Kind> Presence for Required<K> {
    type Value = K::Value;

    fn take(
        &self,
        at: &str,
        value: Option<Value>,
        bounds: &Bounds,
    ) -> Result<Self::Value, ApiError> {
        self.0
            .read(at, value.ok_or_else(|| ApiError::missing(at))?, bounds)
    }

    fn schema(&self, bounds: &Bounds) -> (Value, bool) {
        (self.0.schema(bounds), true)
    }
}

impl<K: Kind> Presence for Needed<K> {
    type Value = Option<K::Value>;

    fn take(
        &self,
        at: &str,
        value: Option<Value>,
        bounds: &Bounds,
    ) -> Result<Self::Value, ApiError> {
        self.0.take(at, value, bounds)
    }

    fn schema(&self, bounds: &Bounds) -> (Value, bool) {
        (self.0.0.schema(bounds), true)
    }
}

impl Presence for Flag {
    type Value = bool;

    fn take(&self, at: &str, value: Option<Value>, bounds: &Bounds) -> Result<bool, ApiError> {
        value.map_or(Ok(self.0), |value| Boolean.read(at, value, bounds))
    }

    fn schema(&self, bounds: &Bounds) -> (Value, bool) {
        let mut schema = nullable(Boolean.schema(bounds));
        schema["default"] = self.0.into();
        (schema, false)
    }
}

/// The schema of the same values or null.
fn nullable(mut schema: Value) -> Value {
    if schema.get("title").is_some() {
        return json!({"anyOf": [schema, {"type": "null"}]});
    }
    for (key, no_value) in [("anyOf", json!({"type": "null"})), ("enum", Value::Null)] {
        if let Some(Value::Array(values)) = schema.get_mut(key) {
            values.push(no_value);
            return schema;
        }
    }
    let types = match schema.get("type") {
        Some(Value::Array(types)) => types.clone(),
        kind => kind.cloned().into_iter().collect(),
    };
    schema["type"] = types.into_iter().chain(["null".into()]).collect();
    schema
}

/// True or false.
pub(crate) struct Boolean;

impl Kind for Boolean {
    type Value = bool;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<bool, ApiError> {
        value
            .as_bool()
            .ok_or_else(|| wrong(at, "true or false", &value))
    }

    fn schema(&self, _: &Bounds) -> Value {
        json!({"type": "boolean"})
    }
}

/// A number in a range that the engine checks.
pub(crate) struct Number(pub(crate) NumberRange);

impl Number {
    pub(crate) fn narrow(at: &str, value: &Value, range: NumberRange) -> Result<f32, ApiError> {
        let number = value
            .as_f64()
            .ok_or_else(|| wrong(at, &format!("a number {range}"), value))?;
        // A positive f64 must not underflow to zero.
        Ok(if number > 0.0 {
            (number as f32).max(f32::MIN_POSITIVE)
        } else {
            number as f32
        })
    }
}

impl Kind for Number {
    type Value = f32;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<f32, ApiError> {
        Self::narrow(at, &value, self.0)
    }

    fn schema(&self, _: &Bounds) -> Value {
        let NumberRange {
            min,
            max,
            above_min,
        } = self.0;
        let end = |end: f32| {
            if end.fract() == 0.0 {
                Value::from(end as i64)
            } else {
                end.into()
            }
        };
        let lower = if above_min {
            "exclusiveMinimum"
        } else {
            "minimum"
        };
        json!({"type": "number", lower: end(min), "maximum": end(max)})
    }
}

/// A number without a fraction. Clients that know only floats write `1.0`.
pub(crate) fn whole(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        value
            .as_f64()
            .filter(|number| number.fract() == 0.0 && number.abs() < 9e15)
            .map(|number| number as i64)
    })
}

/// A count whose maximum, if any, the engine checks. A value beyond 32 bits becomes the largest 32-bit one.
pub(crate) struct Count {
    pub(crate) min: u32,
    pub(crate) max: Most,
}

impl Kind for Count {
    type Value = u32;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<u32, ApiError> {
        let count = value
            .as_u64()
            .or_else(|| whole(&value)?.try_into().ok())
            .filter(|count| *count >= self.min.into());
        let count = count.ok_or_else(|| {
            wrong(
                at,
                &format!("a whole number of at least {}", self.min),
                &value,
            )
        })?;
        Ok(u32::try_from(count).unwrap_or(u32::MAX))
    }

    fn schema(&self, bounds: &Bounds) -> Value {
        let mut schema = json!({"type": "integer", "minimum": self.min});
        if let Some(most) = self.max.of(bounds) {
            schema["maximum"] = most.into();
        }
        schema
    }
}

/// An integer in a range that only the server knows.
pub(crate) struct Integer {
    pub(crate) min: i64,
    pub(crate) max: Most,
}

impl Kind for Integer {
    type Value = i64;

    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<i64, ApiError> {
        let range = self.min..=self.max.of(bounds).unwrap_or(i64::MAX);
        whole(&value)
            .filter(|number| range.contains(number))
            .ok_or_else(|| {
                wrong(
                    at,
                    &(format!("a whole number from {} to {}", range.start(), range.end())),
                    &value,
                )
            })
    }

    fn schema(&self, bounds: &Bounds) -> Value {
        json!({"type": "integer", "minimum": self.min, "maximum": self.max.of(bounds).unwrap_or(i64::MAX)})
    }
}

/// How llama.cpp's clients say whether vectors are scaled to length one: 2, the default, or -1 for no scaling.
pub(crate) struct EmbdNormalize;

impl Presence for EmbdNormalize {
    type Value = bool;

    fn take(&self, at: &str, value: Option<Value>, _: &Bounds) -> Result<bool, ApiError> {
        match value.as_ref().map(whole) {
            None | Some(Some(2)) => Ok(true),
            Some(Some(-1)) => Ok(false),
            Some(_) => Err(wrong(at, "2 or -1", &value.unwrap_or_default())),
        }
    }

    fn schema(&self, _: &Bounds) -> (Value, bool) {
        (json!({"enum": [2, -1, null]}), false)
    }
}

/// A list of strings of any length.
pub(crate) struct Strings;

impl Kind for Strings {
    type Value = Vec<String>;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<Vec<String>, ApiError> {
        let Value::Array(items) = value else {
            return Err(wrong(at, "a list of strings", &value));
        };
        items
            .into_iter()
            .map(|item| match item {
                Value::String(text) => Ok(text),
                other => Err(wrong(at, "a list of strings", &other)),
            })
            .collect()
    }

    fn schema(&self, _: &Bounds) -> Value {
        json!({"type": "array", "items": {"type": "string"}})
    }
}

/// An integer that is not 0.
pub(crate) struct NotZero(pub(crate) Integer);

impl Kind for NotZero {
    type Value = i64;

    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<i64, ApiError> {
        let rule = "negative, or at least 1";
        if whole(&value) == Some(0) {
            Err(wrong(at, rule, &value))
        } else {
            self.0.read(at, value, bounds)
        }
    }

    fn schema(&self, bounds: &Bounds) -> Value {
        let mut schema = self.0.schema(bounds);
        schema["not"] = json!({"const": 0});
        schema
    }
}

/// A string with a maximum number of bytes.
pub(crate) struct Text {
    pub(crate) bytes_max: usize,
}

impl Text {
    /// A string of any length.
    pub(crate) const ANY: Self = Self {
        bytes_max: usize::MAX,
    };
}

impl Kind for Text {
    type Value = String;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<String, ApiError> {
        match value {
            Value::String(text) if text.len() <= self.bytes_max => Ok(text),
            other if self.bytes_max == usize::MAX => Err(wrong(at, "a string", &other)),
            other => Err(wrong(
                at,
                &format!("a string of at most {} bytes", self.bytes_max),
                &other,
            )),
        }
    }

    fn schema(&self, _: &Bounds) -> Value {
        if self.bytes_max == usize::MAX {
            return json!({"type": "string"});
        }
        json!({"type": "string", "maxLength": self.bytes_max})
    }
}

/// One of several strings.
pub(crate) struct Choice(pub(crate) &'static [&'static str]);

impl Kind for Choice {
    type Value = &'static str;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<&'static str, ApiError> {
        let known = self.0.iter().find(|known| value == **known);
        known
            .copied()
            .ok_or_else(|| wrong(at, &format!("one of {}", self.0.join(", ")), &value))
    }

    fn schema(&self, _: &Bounds) -> Value {
        json!({"enum": self.0})
    }
}

/// A list of some of several strings.
pub(crate) struct Choices(pub(crate) &'static [&'static str]);

impl Kind for Choices {
    type Value = Vec<&'static str>;

    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<Self::Value, ApiError> {
        match value {
            Value::Array(items) if !items.is_empty() => items
                .into_iter()
                .enumerate()
                .map(|(index, item)| Choice(self.0).read(&format!("{at}[{index}]"), item, bounds))
                .collect(),
            other => Err(wrong(
                at,
                &format!("a list of {}", self.0.join(", ")),
                &other,
            )),
        }
    }

    fn schema(&self, bounds: &Bounds) -> Value {
        json!({"type": "array", "minItems": 1, "items": Choice(self.0).schema(bounds)})
    }
}

/// A list of token ids of the model.
pub(crate) struct TokenIds;

impl Kind for TokenIds {
    type Value = Vec<u32>;

    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<Vec<u32>, ApiError> {
        let Value::Array(items) = &value else {
            return Err(wrong(at, "a list of token ids", &value));
        };
        items
            .iter()
            .map(|item| token_id(at, item, bounds))
            .collect()
    }

    fn schema(&self, bounds: &Bounds) -> Value {
        json!({"type": "array", "items": token_id_schema(bounds)})
    }
}

/// Reads a token id of the model.
pub(crate) fn token_id(at: &str, value: &Value, bounds: &Bounds) -> Result<u32, ApiError> {
    let id = whole(value)
        .and_then(|id| u32::try_from(id).ok())
        .filter(|id| *id < bounds.vocab);
    id.ok_or_else(|| {
        wrong(
            at,
            &format!("token ids from 0 to {}", bounds.vocab - 1),
            value,
        )
    })
}

pub(crate) fn token_id_schema(bounds: &Bounds) -> Value {
    json!({"type": "integer", "minimum": 0, "maximum": bounds.vocab - 1})
}

/// A list of at most so many values of a kind.
pub(crate) struct List<K> {
    pub(crate) of: K,
    pub(crate) most: usize,
}

impl<K: Kind> Kind for List<K> {
    type Value = Vec<K::Value>;

    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<Self::Value, ApiError> {
        let Value::Array(values) = value else {
            return Err(wrong(at, "a list", &value));
        };
        if values.len() > self.most {
            let (most, count) = (self.most, values.len());
            let message = format!("`{at}` must have at most {most} entries, not {count}");
            return Err(ApiError::invalid(at, message));
        }
        let values = values.into_iter().enumerate();
        values
            .map(|(index, value)| self.of.read(&format!("{at}[{index}]"), value, bounds))
            .collect()
    }

    fn schema(&self, bounds: &Bounds) -> Value {
        json!({"type": "array", "maxItems": self.most, "items": self.of.schema(bounds)})
    }
}

/// An object with its own table of fields; unknown keys are ignored.
pub(crate) struct Nested<G> {
    title: Option<&'static str>,
    group: PhantomData<G>,
}

impl<G> Nested<G> {
    pub(crate) const fn new() -> Self {
        Self {
            title: None,
            group: PhantomData,
        }
    }

    /// An object whose schema is a component of the document.
    pub(crate) const fn named(title: &'static str) -> Self {
        Self {
            title: Some(title),
            group: PhantomData,
        }
    }
}

impl<G: Group> Kind for Nested<G> {
    type Value = G;

    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<G, ApiError> {
        G::take(&mut object(at, value)?, at, bounds)
    }

    fn schema(&self, bounds: &Bounds) -> Value {
        let mut schema = object_schema(&G::rows(bounds));
        if let Some(title) = self.title {
            schema["title"] = title.into();
        }
        schema
    }
}

/// An object with its own table of fields; unknown keys are refused.
pub(crate) struct Closed<G>(PhantomData<G>);

impl<G> Closed<G> {
    pub(crate) const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<G: Group> Kind for Closed<G> {
    type Value = G;

    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<G, ApiError> {
        let mut map = object(at, value)?;
        let group = G::take(&mut map, at, bounds)?;
        take_foreign::<G>(&mut map, at)?;
        match map.iter().find(|(_, value)| !value.is_null()) {
            None => Ok(group),
            Some((key, _)) => Err(ApiError::not_supported(&format!("{at}.{key}"))),
        }
    }

    fn schema(&self, bounds: &Bounds) -> Value {
        let mut schema = with_foreign::<G>(object_schema(&G::rows(bounds)));
        schema["additionalProperties"] = json!({"type": "null"});
        schema
    }
}

/// An object with its own table of fields, in which fields of other servers are refused or ignored by name, as in a
/// whole request. Unknown keys are returned, to be reported.
pub(crate) struct Open<G>(PhantomData<G>);

impl<G> Open<G> {
    pub(crate) const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<G: Group> Kind for Open<G> {
    type Value = (G, Map<String, Value>);

    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<Self::Value, ApiError> {
        let mut map = object(at, value)?;
        let group = G::take(&mut map, at, bounds)?;
        take_foreign::<G>(&mut map, at)?;
        Ok((group, map))
    }

    fn schema(&self, bounds: &Bounds) -> Value {
        with_foreign::<G>(object_schema(&G::rows(bounds)))
    }
}

/// A schema that also lists fields of other servers, with what to use instead or why nothing is lost.
pub(crate) fn with_foreign<G: Group>(mut schema: Value) -> Value {
    for (list, is_refused) in [("x-unsupported-fields", true), ("x-ignored-fields", false)] {
        let listed = G::foreign()
            .into_iter()
            .filter(|field| field.is_refused == is_refused);
        schema[list] = listed
            .map(|field| (field.name.to_owned(), Value::from(field.reason)))
            .collect();
    }
    schema
}

/// Reads an object.
pub(crate) fn object(at: &str, value: Value) -> Result<Map<String, Value>, ApiError> {
    match value {
        Value::Object(map) => Ok(map),
        other => Err(wrong(at, "an object", &other)),
    }
}
