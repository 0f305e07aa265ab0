//! A JSON Schema validator for the schemas of the table, independent of the grammars under test.

use regex::Regex;
use serde_json::Value;

/// Why `value` violates `schema`; references are resolved in `root`.
pub(crate) fn judge(root: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    let Value::Object(rules) = schema else {
        return if schema == &Value::Bool(false) {
            Err(format!("{value} is not allowed"))
        } else {
            Ok(())
        };
    };
    rules.iter().try_for_each(|(rule, argument)| {
        let kept = keeps(root, schema, rule, argument, value);
        if kept {
            Ok(())
        } else {
            Err(format!("{value} breaks {rule}: {argument}"))
        }
    })
}

fn keeps(root: &Value, schema: &Value, rule: &str, argument: &Value, value: &Value) -> bool {
    let valid = |schema: &Value| judge(root, schema, value).is_ok();
    let list = || argument.as_array().expect("a list of schemas");
    match rule {
        "$ref" => {
            let path = argument
                .as_str()
                .and_then(|path| path.strip_prefix('#'))
                .expect("a reference within");
            valid(root.pointer(path).expect("a definition"))
        }
        "type" => match argument {
            Value::Array(kinds) => kinds.iter().any(|kind| is_a(kind, value)),
            kind => is_a(kind, value),
        },
        "enum" => list().contains(value),
        "const" => argument == value,
        "anyOf" => list().iter().any(valid),
        "oneOf" => list().iter().filter(|schema| valid(schema)).count() == 1,
        "allOf" => list().iter().all(valid),
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
            in_range(rule, argument, value)
        }
        "minLength" | "maxLength" | "pattern" | "format" => value
            .as_str()
            .is_none_or(|text| is_text(rule, argument, text)),
        "items" | "prefixItems" | "minItems" | "maxItems" => value
            .as_array()
            .is_none_or(|items| are_items(root, schema, rule, argument, items)),
        "properties"
        | "required"
        | "additionalProperties"
        | "patternProperties"
        | "maxProperties" => value
            .as_object()
            .is_none_or(|_| is_object(root, schema, rule, argument, value)),
        "$defs" | "definitions" | "title" | "description" => true,
        _ => panic!("this judge does not know {rule}"),
    }
}

fn is_a(kind: &Value, value: &Value) -> bool {
    match kind.as_str().expect("a type's name") {
        "string" => value.is_string(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("no type {other}"),
    }
}

fn in_range(rule: &str, limit: &Value, value: &Value) -> bool {
    let (Some(number), Some(limit)) = (value.as_f64(), limit.as_f64()) else {
        return true;
    };
    match rule {
        "minimum" => number >= limit,
        "maximum" => number <= limit,
        "exclusiveMinimum" => number > limit,
        _ => number < limit,
    }
}

fn is_text(rule: &str, argument: &Value, text: &str) -> bool {
    let count = || argument.as_u64().expect("a length") as usize;
    match rule {
        "minLength" => text.chars().count() >= count(),
        "maxLength" => text.chars().count() <= count(),
        "pattern" => Regex::new(argument.as_str().expect("a pattern"))
            .expect("a pattern")
            .is_match(text),
        _ => has_format(argument.as_str().expect("a format"), text),
    }
}

fn has_format(format: &str, text: &str) -> bool {
    const DATE: &str = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])";
    const TIME: &str = concat!(
        r"([01][0-9]|2[0-3]):[0-5][0-9]:([0-5][0-9]|60)(\.[0-9]+)?",
        r"([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
    );
    let pattern = match format {
        "date" => DATE.to_owned(),
        "time" => TIME.to_owned(),
        "date-time" => format!("{DATE}[Tt]{TIME}"),
        "email" => {
            r#"([^@\s"]+|"([^"\\]|\\.)*")@(\[[^\]]+\]|[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*)"#.to_owned()
        }
        "uuid" => "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}".to_owned(),
        "duration" => r"P([0-9]+[YMWD])*(T([0-9]+[HMS])+)?".to_owned(),
        "ipv4" => return text.parse::<std::net::Ipv4Addr>().is_ok(),
        "ipv6" => return text.parse::<std::net::Ipv6Addr>().is_ok(),
        other => panic!("no format {other}"),
    };
    Regex::new(&format!("^(?:{pattern})$"))
        .expect("a pattern")
        .is_match(text)
}

fn are_items(root: &Value, schema: &Value, rule: &str, argument: &Value, items: &[Value]) -> bool {
    let count = || argument.as_u64().expect("a count") as usize;
    let prefix = schema["prefixItems"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    match rule {
        "minItems" => items.len() >= count(),
        "maxItems" => items.len() <= count(),
        "prefixItems" => prefix
            .iter()
            .zip(items)
            .all(|(schema, item)| judge(root, schema, item).is_ok()),
        _ => items
            .iter()
            .skip(prefix.len())
            .all(|item| judge(root, argument, item).is_ok()),
    }
}

fn is_object(root: &Value, schema: &Value, rule: &str, argument: &Value, value: &Value) -> bool {
    let map = value.as_object().expect("an object");
    let matches = |pattern: &str, key: &str| Regex::new(pattern).expect("a pattern").is_match(key);
    match rule {
        "properties" => map.iter().all(|(key, item)| {
            argument
                .get(key)
                .is_none_or(|schema| judge(root, schema, item).is_ok())
        }),
        "required" => argument
            .as_array()
            .expect("names")
            .iter()
            .all(|name| map.contains_key(name.as_str().expect("a name"))),
        "maxProperties" => map.len() <= argument.as_u64().expect("a count") as usize,
        "patternProperties" => {
            argument
                .as_object()
                .expect("schemas")
                .iter()
                .all(|(pattern, schema)| {
                    map.iter()
                        .filter(|(key, _)| matches(pattern, key))
                        .all(|(_, item)| judge(root, schema, item).is_ok())
                })
        }
        _ => map.iter().all(|(key, item)| {
            let patterns = schema["patternProperties"].as_object();
            let is_other = schema["properties"].get(key).is_none()
                && !patterns
                    .is_some_and(|patterns| patterns.keys().any(|pattern| matches(pattern, key)));
            !is_other || judge(root, argument, item).is_ok()
        }),
    }
}
