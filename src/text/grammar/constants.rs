//! Constants with integers that the compiler of schemas would change: it makes floats of all numbers, and they have 53
//! bits. A schema with such constants is written in Lark's notation, whose texts have all digits.

use super::subschemas::{subschemas, subschemas_mut};
use crate::text::integers;
use serde_json::{Map, Value, json};
use std::cmp::Ordering;

/// Bytes of an item of a list. It is written twice, and lists may be within each other.
const ITEM_BYTES_MAX: usize = 64 << 10;
/// Keywords that say nothing about a value's form; there are no references to definitions where these are read.
const NOTES: [&str; 10] = [
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
];

/// The keyword and the digits of the first integer in the schema's constants that the compiler would change.
fn changed_in(schema: &Value) -> Option<(&str, String)> {
    let schema = schema.as_object()?;
    schema.iter().find_map(|(key, value)| match key.as_str() {
        "const" | "enum" => Some((key.as_str(), changed(value)?)),
        _ => subschemas(key, value).find_map(changed_in),
    })
}

fn changed(constant: &Value) -> Option<String> {
    match constant {
        _ if integers::is_integer(constant) => {
            let digits = integers::to_json(constant);
            (!is_kept(constant, &digits)).then_some(digits)
        }
        Value::Array(items) => items.iter().find_map(changed),
        Value::Object(entries) => entries.values().find_map(changed),
        _ => None,
    }
}

/// Whether the compiler writes an integer with these digits: as an integer of 64 bits, or with the digits that tell its
/// float from others.
fn is_kept(integer: &Value, digits: &str) -> bool {
    match integer.as_i64() {
        Some(integer) => integer as f64 as i128 == i128::from(integer),
        None => digits
            .parse::<f64>()
            .is_ok_and(|nearest| nearest.to_string() == digits),
    }
}

/// Refuses constants that the compiler would change, or drops them if the schema is not strict.
pub(super) fn keep_or_drop(schema: &mut Value, strict: bool) -> Result<(), String> {
    match changed_in(schema) {
        Some((key, digits)) if strict => Err(format!(
            "`{key}`: {digits} cannot be enforced exactly beside the other keywords of the schema"
        )),
        Some(_) => {
            drop_changed(schema);
            Ok(())
        }
        None => Ok(()),
    }
}

fn drop_changed(schema: &mut Value) {
    let Value::Object(map) = schema else { return };
    map.retain(|key, value| !matches!(key.as_str(), "const" | "enum") || changed(value).is_none());
    for (key, value) in map.iter_mut() {
        subschemas_mut(key, value).for_each(drop_changed);
    }
}

/// The schema as an expression in Lark's notation, if it has constants that the compiler would change, and if the
/// notation can say all of it. `options` are those of the compiler for the parts without such constants, and `space` is
/// the pattern of white space between two tokens.
pub(super) fn in_lark(schema: &Value, options: &Value, space: &str) -> Option<String> {
    changed_in(schema)?;
    (!refers(schema)).then_some(())?;
    let space = format!("(/{space}/)?");
    Writer { options, space }.value(schema)
}

/// Whether a schema has references.
fn refers(schema: &Value) -> bool {
    let Value::Object(map) = schema else {
        return false;
    };
    map.contains_key("$ref")
        || map
            .iter()
            .any(|(key, value)| subschemas(key, value).any(refers))
}

struct Writer<'a> {
    options: &'a Value,
    /// White space between two tokens, or none.
    space: String,
}

impl Writer<'_> {
    /// A value of this schema; `None` if Lark's notation cannot say what the schema demands.
    fn value(&self, schema: &Value) -> Option<String> {
        if *schema == Value::Bool(true) {
            return Some(self.plain(json!({})));
        }
        let map = match schema {
            Value::Object(map) if integers::digits(schema).is_none() => map,
            _ => return None,
        };
        if changed_in(schema).is_none() {
            return Some(self.plain(schema.clone()));
        }
        if is_constant(map) {
            return constants(map);
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(Value::Array(all)) = map.get(key) {
                return has_only(map, &[key]).then(|| self.alternatives(all))?;
            }
        }
        match map.get("type")?.as_str()? {
            "object" => self.object(map),
            "array" if has_only(map, &["type", "items"]) => self.list(map.get("items")?),
            _ => None,
        }
    }

    /// What the compiler can take as it is.
    fn plain(&self, mut schema: Value) -> String {
        integers::round(&mut schema);
        schema["x-guidance"] = self.options.clone();
        format!("%json {schema}")
    }

    /// An object whose members are all declared. They have commas after them up to the first that is required, and
    /// before them behind it.
    fn object(&self, schema: &Map<String, Value>) -> Option<String> {
        let known = ["type", "properties", "required", "additionalProperties"];
        let is_closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
        (is_closed && has_only(schema, &known)).then_some(())?;
        let properties = schema.get("properties")?.as_object()?;
        let required = required(schema)?;
        let are_declared = required.iter().all(|name| properties.contains_key(*name));
        let first = properties
            .keys()
            .position(|name| required.contains(&name.as_str()));
        (are_declared && (first.is_some() || properties.len() == 1)).then_some(())?;
        let (mut members, space) = (String::new(), &self.space);
        for (at, (name, schema)) in properties.iter().enumerate() {
            let key = literal(&format!("{}:", Value::from(name.as_str())));
            let member = format!("{key} {space} {}", self.value(schema)?);
            let first = first.unwrap_or(at);
            let member = match at.cmp(&first) {
                Ordering::Less => format!("{member} \",\" {space}"),
                Ordering::Equal => member,
                Ordering::Greater => format!("\",\" {space} {member}"),
            };
            let is_required = required.contains(&name.as_str());
            members += &format!(" ({member}){}", if is_required { "" } else { "?" });
        }
        Some(format!("\"{{\" {space}{members} {space} \"}}\""))
    }

    fn list(&self, items: &Value) -> Option<String> {
        let item = self.value(items)?;
        let space = &self.space;
        (item.len() <= ITEM_BYTES_MAX)
            .then(|| format!("\"[\" {space} (({item}) (\",\" {space} ({item}))*)? {space} \"]\""))
    }

    /// One of several schemas. Those that list no values must have different types, and others than the listed values:
    /// an answer that has begun is in only one of them.
    fn alternatives(&self, all: &[Value]) -> Option<String> {
        let all: Vec<_> = all.iter().map(Value::as_object).collect::<Option<_>>()?;
        let (constant, other): (Vec<_>, Vec<_>) = all.into_iter().partition(|one| is_constant(one));
        let other = other.into_iter().map(|one| Value::from(one.clone()));
        let (own, plain): (Vec<_>, Vec<_>) = other.partition(|one| changed_in(one).is_some());
        let mut taken = Vec::new();
        for one in &plain {
            taken.extend(types(one.as_object()?)?);
        }
        let mut written = Vec::new();
        for one in &own {
            let types = types(one.as_object()?)?;
            are_other(&types, &taken).then_some(())?;
            taken.extend(types);
            written.push(self.value(one)?);
        }
        for one in constant {
            are_other(&types(one)?, &taken).then_some(())?;
            written.push(constants(one)?);
        }
        if !plain.is_empty() {
            written.push(self.plain(json!({"anyOf": plain})));
        }
        Some(format!("({})", written.join(" | ")))
    }
}

fn are_other(types: &[&str], taken: &[&str]) -> bool {
    types.iter().all(|name| !taken.contains(name))
}

/// The names of the members that an object must have; `None` if they are no names.
fn required(schema: &Map<String, Value>) -> Option<Vec<&str>> {
    match schema.get("required") {
        Some(names) => names.as_array()?.iter().map(Value::as_str).collect(),
        None => Some(Vec::new()),
    }
}

/// A text in Lark's notation.
fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

fn has_only(schema: &Map<String, Value>, known: &[&str]) -> bool {
    schema
        .keys()
        .all(|key| known.contains(&key.as_str()) || NOTES.contains(&key.as_str()))
}

/// Whether a schema lists its values, and demands nothing else but their type.
fn is_constant(schema: &Map<String, Value>) -> bool {
    (has_only(schema, &["const", "type"]) || has_only(schema, &["enum", "type"]))
        && (schema.contains_key("const") || schema.contains_key("enum"))
}

/// The values that a schema lists, with all their digits.
fn constants(schema: &Map<String, Value>) -> Option<String> {
    let allowed = listed(schema)?;
    let texts: Vec<String> = allowed
        .iter()
        .map(|value| literal(&integers::to_json(value)))
        .collect();
    (!texts.is_empty()).then(|| format!("({})", texts.join(" | ")))
}

/// The values that a schema lists and that have its type.
fn listed(schema: &Map<String, Value>) -> Option<Vec<&Value>> {
    let values = match (schema.get("const"), schema.get("enum")) {
        (Some(constant), _) => std::slice::from_ref(constant),
        (None, Some(Value::Array(values))) => values,
        _ => return None,
    };
    let named = named(schema)?;
    let has_type = |value: &&Value| {
        named.as_ref().is_none_or(|names| {
            names.iter().any(|name| match *name {
                "integer" => type_of(value) == "number" && !is_fraction(value),
                name => type_of(value) == name,
            })
        })
    };
    Some(values.iter().filter(has_type).collect())
}

fn is_fraction(value: &Value) -> bool {
    value.is_f64() && value.as_f64().is_some_and(|number| number.fract() != 0.0)
}

/// The types that a schema names, if it does; `None` if it does so wrongly.
fn named(schema: &Map<String, Value>) -> Option<Option<Vec<&str>>> {
    match schema.get("type") {
        None => Some(None),
        Some(Value::String(name)) => Some(Some(vec![name.as_str()])),
        Some(Value::Array(names)) => names
            .iter()
            .map(Value::as_str)
            .collect::<Option<_>>()
            .map(Some),
        Some(_) => None,
    }
}

/// The types of a schema's values; integers are numbers. `None` if it does not say them.
fn types(schema: &Map<String, Value>) -> Option<Vec<&str>> {
    if is_constant(schema) {
        return Some(listed(schema)?.into_iter().map(type_of).collect());
    }
    let number = |name| if name == "integer" { "number" } else { name };
    Some(named(schema)??.into_iter().map(number).collect())
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        _ if integers::is_integer(value) => "number",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests;
