//! [`Allowed`]: the types of values that a schema allows. Notations in tags do not quote texts, so the schema decides
//! whether `2026` is a text or a number: here, for those who read such a notation and for the grammars that write it.

use super::super::json_text;
use super::python;
use crate::text::grammar::pointer;
use crate::text::integers;
use serde_json::{Map, Value};

/// Maximum number of schemas that are visited to resolve one. A schema beyond that allows any value.
const SCHEMAS_MAX: usize = 1000;
/// Maximum number of references and alternatives within each other.
const DEPTH_MAX: usize = 32;

/// A set of JSON types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Types(u8);

impl Types {
    const NONE: Self = Self(0);
    const NULL: Self = Self(1);
    const BOOLEAN: Self = Self(2);
    const INTEGER: Self = Self(4);
    const NUMBER: Self = Self(8 | 4);
    const STRING: Self = Self(16);
    const ARRAY: Self = Self(32);
    const OBJECT: Self = Self(64);
    const ANY: Self = Self(127);

    fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The type of this name; names that are no type allow nothing.
    fn named(name: &str) -> Self {
        match name {
            "null" => Self::NULL,
            "boolean" => Self::BOOLEAN,
            "integer" => Self::INTEGER,
            "number" => Self::NUMBER,
            "string" => Self::STRING,
            "array" => Self::ARRAY,
            "object" => Self::OBJECT,
            _ => Self::NONE,
        }
    }

    fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            _ if integers::digits(value).is_some() => Self::INTEGER,
            Value::Number(number)
                if number.as_f64().is_some_and(|number| number.fract() == 0.0) =>
            {
                Self::INTEGER
            }
            Value::Number(_) => Self::NUMBER,
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }
}

/// The types of values that a schema allows.
#[derive(Clone, Debug)]
pub(super) struct Allowed {
    types: Types,
    /// Texts that the schema names.
    constants: Vec<String>,
}

impl Allowed {
    /// What a schema allows. Its references are looked up in `root`.
    pub(super) fn by(schema: &Value, root: &Value) -> Self {
        let mut resolver = Resolver {
            root,
            left: SCHEMAS_MAX,
            constants: Vec::new(),
        };
        let types = resolver.types(schema, 0);
        Self {
            types,
            constants: resolver.constants,
        }
    }

    /// Whether a value may be a text.
    pub(super) fn has_text(&self) -> bool {
        self.types.has(Types::STRING)
    }

    /// Whether a value may be a text, which is then written without quotes. Where the schema says nothing, values are
    /// JSON.
    pub(super) fn texts_are_bare(&self) -> bool {
        self.types.has(Types::STRING) && self.types != Types::ANY
    }

    /// Whether a value that begins with this text is certainly a text.
    pub(super) fn is_text(&self, text: &str) -> bool {
        let text = text.trim();
        if self.types == Types::STRING || text.is_empty() {
            return self.types == Types::STRING;
        }
        if !self.types.has(Types::STRING) {
            return false;
        }
        if self.types == Types::STRING.or(Types::NULL) {
            return !["null", "None"].iter().any(|null| null.starts_with(text));
        }
        // All else begins with one of these, in JSON or in Python.
        !text.starts_with(|first: char| first.is_ascii_digit() || "\"'{[(-.tfnTFN".contains(first))
    }

    /// The JSON of the value that is written as this text, without quotes if it is a text: another type if the schema
    /// allows what the text says, else a text if it allows one. A value that the schema does not allow is JSON, or a
    /// text.
    pub(super) fn read(&self, text: &str) -> String {
        if self.constants.iter().any(|constant| constant == text) || self.types == Types::STRING {
            return json_text::quoted(text);
        }
        let json = serde_json::from_str::<Value>(text).ok();
        let is_other = |value: &Value| !value.is_string() && self.types.has(Types::of(value));
        if json.as_ref().is_some_and(is_other) {
            return json_text::compact(text);
        }
        if let Some(json) = self.python(text)
            && serde_json::from_str(&json).is_ok_and(|value| is_other(&value))
        {
            return json;
        }
        if self.texts_are_bare() || json.is_none() {
            json_text::quoted(text)
        } else {
            json_text::compact(text)
        }
    }

    /// A value as Python writes it. Where a schema says nothing, `None` may as well be a text.
    fn python(&self, text: &str) -> Option<String> {
        if self.types == Types::ANY {
            None
        } else {
            python::literal(text)
        }
    }
}

struct Resolver<'a> {
    root: &'a Value,
    /// Number of schemas that may still be visited.
    left: usize,
    constants: Vec<String>,
}

impl Resolver<'_> {
    fn types(&mut self, schema: &Value, depth: usize) -> Types {
        let Value::Object(schema) = schema else {
            return Types::ANY;
        };
        if self.left == 0 || depth > DEPTH_MAX {
            return Types::ANY;
        }
        self.left -= 1;
        let types = Self::named(schema).and(self.constants(schema));
        let types = types.and(self.composed(schema, depth + 1));
        if schema.get("nullable") == Some(&Value::Bool(true)) {
            types.or(Types::NULL)
        } else {
            types
        }
    }

    /// What `type` allows: a name, or a list of names.
    fn named(schema: &Map<String, Value>) -> Types {
        match schema.get("type") {
            Some(Value::String(name)) => Types::named(name),
            Some(Value::Array(names)) => names
                .iter()
                .filter_map(Value::as_str)
                .map(Types::named)
                .fold(Types::NONE, Types::or),
            _ => Types::ANY,
        }
    }

    /// What `const` and `enum` allow.
    fn constants(&mut self, schema: &Map<String, Value>) -> Types {
        let list = schema.get("enum").and_then(Value::as_array);
        let constants = schema
            .get("const")
            .into_iter()
            .chain(list.into_iter().flatten());
        let mut types = Types::NONE;
        for constant in constants {
            types = types.or(Types::of(constant));
            self.constants.extend(constant.as_str().map(str::to_owned));
        }
        if types == Types::NONE {
            Types::ANY
        } else {
            types
        }
    }

    /// What references and alternatives allow.
    fn composed(&mut self, schema: &Map<String, Value>, depth: usize) -> Types {
        let mut types = Types::ANY;
        let root = self.root;
        if let Some(target) = schema
            .get("$ref")
            .and_then(Value::as_str)
            .and_then(|to| referred(root, to))
        {
            types = types.and(self.types(target, depth));
        }
        for all in schema
            .get("allOf")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            types = types.and(self.types(all, depth));
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(Value::Array(alternatives)) = schema.get(key) {
                let each = alternatives
                    .iter()
                    .map(|alternative| self.types(alternative, depth));
                types = types.and(each.fold(Types::NONE, Types::or));
            }
        }
        types
    }
}

/// The properties of a schema of arguments, which may be a reference itself.
pub(super) fn properties(root: &Value) -> Option<&Map<String, Value>> {
    let mut schema = root;
    for _ in 0..DEPTH_MAX {
        if let Some(properties) = schema["properties"].as_object() {
            return Some(properties);
        }
        schema = referred(root, schema["$ref"].as_str()?)?;
    }
    None
}

/// The schema of a member of an object, if its schema has one.
pub(super) fn member<'a>(schema: &'a Value, root: &'a Value, key: &str) -> Option<&'a Value> {
    let mut left = SCHEMAS_MAX;
    find(schema, root, &mut left, |schema| {
        schema["properties"].get(key)
    })
}

/// The schema of the items of a list, if its schema has one.
pub(super) fn items<'a>(schema: &'a Value, root: &'a Value) -> Option<&'a Value> {
    let mut left = SCHEMAS_MAX;
    find(schema, root, &mut left, |schema| {
        schema.get("items").filter(|items| items.is_object())
    })
}

/// What `get` finds first in a schema, in what it refers to and in its alternatives; `left` schemas are visited.
fn find<'a>(
    schema: &'a Value,
    root: &'a Value,
    left: &mut usize,
    get: impl Fn(&'a Value) -> Option<&'a Value> + Copy,
) -> Option<&'a Value> {
    *left = left.checked_sub(1)?;
    if let Some(found) = get(schema) {
        return Some(found);
    }
    let target = schema["$ref"].as_str().and_then(|to| referred(root, to));
    let alternatives = ["allOf", "anyOf", "oneOf"].map(|key| schema[key].as_array());
    let all = alternatives.into_iter().flatten().flatten();
    target
        .into_iter()
        .chain(all)
        .find_map(|schema| find(schema, root, left, get))
}

/// The schema that a reference within `root` points to.
fn referred<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    root.pointer(&pointer(reference)?)
}

#[cfg(test)]
mod tests;
