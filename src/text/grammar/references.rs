//! [`unescaped`]: references within a schema in the form that the compiler reads.
//!
//! By the standard, a reference is a JSON pointer (`~1` is a slash, `~0` a tilde) that is percent-encoded. The compiler
//! compares its parts with keys as they are, so what an escaped reference points to gets a plain name.

use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The schema with plain references. Those that point to nothing stay, and the compiler refuses them.
pub(super) fn unescaped(mut schema: Value) -> Value {
    let mut pointers = BTreeSet::new();
    visit(&mut schema, &mut |reference| {
        pointers.extend(escaped_pointer(reference));
    });
    pointers.retain(|pointer| schema.pointer(pointer).is_some());
    if pointers.is_empty() {
        return schema;
    }
    let names = named(pointers, &schema);
    visit(&mut schema, &mut |reference| {
        if let Some(name) = escaped_pointer(reference).and_then(|pointer| names.get(&pointer)) {
            *reference = format!("#/$defs/{name}");
        }
    });
    // The innermost first: what contains it moves with a reference to it.
    let mut moves: Vec<_> = names.into_iter().collect();
    moves.sort_by_key(|(pointer, _)| std::cmp::Reverse(pointer.matches('/').count()));
    for (pointer, name) in moves {
        let reference = json!({"$ref": format!("#/$defs/{name}")});
        let target = schema
            .pointer_mut(&pointer)
            .map(|target| std::mem::replace(target, reference));
        let definitions = schema
            .as_object_mut()
            .map(|schema| schema.entry("$defs").or_insert_with(|| json!({})));
        if let (Some(target), Some(Value::Object(definitions))) = (target, definitions) {
            definitions.insert(name, target);
        }
    }
    schema
}

/// Calls `each` for every reference.
fn visit(schema: &mut Value, each: &mut impl FnMut(&mut String)) {
    match schema {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(reference) if key == "$ref" => each(reference),
                    value => visit(value, each),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| visit(item, each)),
        _ => {}
    }
}

/// The pointer of a reference that is escaped.
fn escaped_pointer(reference: &str) -> Option<String> {
    let is_escaped = reference.contains(['%', '~']);
    pointer(reference).filter(|pointer| is_escaped && !pointer.is_empty())
}

/// The JSON pointer of a reference within its schema.
pub(crate) fn pointer(reference: &str) -> Option<String> {
    let encoded = percent_encoding::percent_decode_str(reference.strip_prefix('#')?);
    encoded.decode_utf8().ok().map(std::borrow::Cow::into_owned)
}

/// A name for each pointer that is no definition yet.
fn named(pointers: BTreeSet<String>, schema: &Value) -> BTreeMap<String, String> {
    let nothing = Map::new();
    let definitions = schema["$defs"].as_object().unwrap_or(&nothing);
    let mut names = (0..)
        .map(|index| format!("reference{index}"))
        .filter(|name| !definitions.contains_key(name));
    pointers
        .into_iter()
        .filter_map(|pointer| Some((pointer, names.next()?)))
        .collect()
}

#[cfg(test)]
mod tests;
