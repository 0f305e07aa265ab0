//! A table of schemas: every leaf in every position, and complete schemas.

use serde_json::{Value, json};

/// Regular expressions that the grammar and the validator interpret alike.
pub(crate) const PATTERNS: [&str; 20] = [
    "[a-z]{3}",
    "(yes|no|maybe)",
    "\\d{4}-\\d{2}-\\d{2}",
    "[A-Z][a-z]{0,8}( [A-Z][a-z]{0,8}){0,2}",
    "(0|[1-9][0-9]{0,3})(\\.[0-9]{1,2})?",
    "a*b",
    "(ab){2,4}",
    "[^a-z\\n]{1,4}",
    "x?y?z",
    "\\$[0-9]{1,3}",
    "(foo|foobar|foobarbaz)",
    "[0-9a-f]{8}",
    "(\\+49|0)[1-9][0-9]{3,6}",
    "#[0-9A-F]{6}",
    "v[0-9]\\.[0-9]\\.[0-9](-rc[0-9])?",
    "[äöü]{1,3}",
    "\\[[0-9](,[0-9]){0,3}\\]",
    "\"[a-z]{1,5}\"",
    "(a|b)(c|d)(e|f)",
    "(true|false)(,(true|false)){0,3}",
];

fn leaves() -> Vec<(&'static str, Value)> {
    vec![
        ("string", json!({"type": "string"})),
        (
            "short",
            json!({"type": "string", "minLength": 2, "maxLength": 6}),
        ),
        (
            "pattern",
            json!({"type": "string", "pattern": "^[a-z]{2,5}$"}),
        ),
        (
            "pattern of digits",
            json!({"type": "string", "pattern": "^\\d{3}-\\d{2}$"}),
        ),
        ("date", json!({"type": "string", "format": "date"})),
        ("time", json!({"type": "string", "format": "time"})),
        (
            "date-time",
            json!({"type": "string", "format": "date-time"}),
        ),
        ("email", json!({"type": "string", "format": "email"})),
        ("uuid", json!({"type": "string", "format": "uuid"})),
        ("ipv4", json!({"type": "string", "format": "ipv4"})),
        ("ipv6", json!({"type": "string", "format": "ipv6"})),
        ("duration", json!({"type": "string", "format": "duration"})),
        ("integer", json!({"type": "integer"})),
        (
            "percent",
            json!({"type": "integer", "minimum": 0, "maximum": 100}),
        ),
        (
            "negative",
            json!({"type": "integer", "exclusiveMaximum": 0, "minimum": -1000}),
        ),
        ("number", json!({"type": "number"})),
        (
            "fraction",
            json!({"type": "number", "minimum": 0, "maximum": 1}),
        ),
        ("boolean", json!({"type": "boolean"})),
        ("null", json!({"type": "null"})),
        ("enum", json!({"enum": ["red", "green", "blue"]})),
        (
            "mixed enum",
            json!({"enum": ["one", 2, null, true, [3], {"four": 4}]}),
        ),
        ("const", json!({"const": "exactly this"})),
        ("const object", json!({"const": {"a": [1, 2, {"b": null}]}})),
        (
            "nullable",
            json!({"type": ["string", "null"], "maxLength": 8}),
        ),
        (
            "anyOf",
            json!({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 4}]}),
        ),
        (
            "oneOf",
            json!({"oneOf": [{"type": "boolean"}, {"type": "integer", "minimum": 1, "maximum": 9}]}),
        ),
        (
            "numbers",
            json!({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 4}),
        ),
        (
            "pair",
            json!({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}],
            "items": false, "minItems": 2}),
        ),
        (
            "quotes",
            json!({"enum": ["\"", "\\", "\n", "/", "ü", "🙂"]}),
        ),
        (
            "point",
            json!({"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
            "required": ["x", "y"], "additionalProperties": false}),
        ),
    ]
}

/// Positions of a leaf.
fn places(leaf: &Value) -> [(&'static str, Value); 7] {
    let object = |properties: Value, required: Value| {
        json!({"type": "object", "properties": properties,
        "required": required, "additionalProperties": false})
    };
    [
        ("alone", leaf.clone()),
        ("required", object(json!({"value": leaf}), json!(["value"]))),
        (
            "optional",
            object(
                json!({"id": {"type": "integer"}, "value": leaf}),
                json!(["id"]),
            ),
        ),
        (
            "in a list",
            json!({"type": "array", "items": leaf, "maxItems": 3}),
        ),
        (
            "deep",
            object(
                json!({"a": object(json!({"b": object(json!({"c": leaf}), json!(["c"]))}), json!(["b"]))}),
                json!(["a"]),
            ),
        ),
        (
            "referred to",
            json!({"$defs": {"leaf": leaf}, "type": "object",
            "properties": {"first": {"$ref": "#/$defs/leaf"}, "second": {"$ref": "#/$defs/leaf"}},
            "required": ["first", "second"], "additionalProperties": false}),
        ),
        (
            "of extra keys",
            json!({"type": "object", "additionalProperties": leaf, "maxProperties": 3}),
        ),
    ]
}

fn whole() -> Vec<(&'static str, Value)> {
    vec![
        ("anything", json!({})),
        (
            "tree",
            json!({"$defs": {"node": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 5},
            "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}},
            "required": ["name", "children"], "additionalProperties": false}}, "$ref": "#/$defs/node"}),
        ),
        (
            "linked list",
            json!({"$defs": {"cell": {"type": "object", "properties": {"head": {"type": "integer"},
            "tail": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/cell"}]}}, "required": ["head", "tail"],
            "additionalProperties": false}}, "$ref": "#/$defs/cell"}),
        ),
        (
            "tagged union",
            json!({"oneOf": [
            {"type": "object", "properties": {"kind": {"const": "circle"}, "radius": {"type": "number"}},
             "required": ["kind", "radius"], "additionalProperties": false},
            {"type": "object", "properties": {"kind": {"const": "square"}, "side": {"type": "number"}},
             "required": ["kind", "side"], "additionalProperties": false}]}),
        ),
        (
            "both",
            json!({"allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]}]}),
        ),
        (
            "patterns of keys",
            json!({"type": "object", "patternProperties": {"^n_[a-z]{1,3}$": {"type": "integer"}},
            "additionalProperties": false}),
        ),
        (
            "person",
            json!({"title": "Person", "description": "Somebody", "type": "object",
            "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 12}, "age": {"type": "integer",
            "minimum": 0, "maximum": 150}, "emails": {"type": "array", "items": {"type": "string", "format": "email"},
            "maxItems": 2}, "address": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/address"}]}},
            "required": ["name", "age", "emails", "address"], "additionalProperties": false,
            "$defs": {"address": {"type": "object", "properties": {"street": {"type": "string", "maxLength": 9},
            "zip": {"type": "string", "pattern": "^[0-9]{5}$"}}, "required": ["street", "zip"],
            "additionalProperties": false}}}),
        ),
        (
            "definitions",
            json!({"definitions": {"positive": {"type": "integer", "minimum": 1}},
            "type": "array", "items": {"$ref": "#/definitions/positive"}, "minItems": 2, "maxItems": 3}),
        ),
    ]
}

/// Named schemas.
pub(crate) fn all() -> Vec<(String, Value)> {
    let placed = leaves().into_iter().flat_map(|(leaf, value)| {
        places(&value).map(|(place, value)| (format!("{leaf}, {place}"), value))
    });
    placed
        .chain(
            whole()
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value)),
        )
        .collect()
}
