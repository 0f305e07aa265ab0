//! The schemas within a schema.

use serde_json::Value;

/// The schemas that a keyword contains. Names of properties and of definitions are no keywords, and values such as
/// examples are no schemas.
pub(super) fn subschemas<'a>(
    key: &str,
    value: &'a Value,
) -> Box<dyn Iterator<Item = &'a Value> + 'a> {
    match (key, value) {
        ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(schemas)) => {
            Box::new(schemas.values())
        }
        ("anyOf" | "oneOf" | "allOf" | "prefixItems" | "items", Value::Array(schemas)) => {
            Box::new(schemas.iter())
        }
        ("items" | "additionalItems" | "additionalProperties", schema) => {
            Box::new(std::iter::once(schema))
        }
        _ => Box::new(std::iter::empty()),
    }
}

/// As [`subschemas`], to change them.
pub(super) fn subschemas_mut<'a>(
    key: &str,
    value: &'a mut Value,
) -> Box<dyn Iterator<Item = &'a mut Value> + 'a> {
    match (key, value) {
        ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(schemas)) => {
            Box::new(schemas.values_mut())
        }
        ("anyOf" | "oneOf" | "allOf" | "prefixItems" | "items", Value::Array(schemas)) => {
            Box::new(schemas.iter_mut())
        }
        ("items" | "additionalItems" | "additionalProperties", schema) => {
            Box::new(std::iter::once(schema))
        }
        _ => Box::new(std::iter::empty()),
    }
}
