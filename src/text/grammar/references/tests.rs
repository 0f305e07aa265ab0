//! Tests of `text/grammar/references.rs`.

use super::*;

#[test]
fn escaped_references_point_to_plain_names() {
    for (key, reference) in [
        ("a/b", "#/$defs/a~1b"),
        ("a~b", "#/$defs/a~0b"),
        ("50%", "#/$defs/50%25"),
        ("Page<Item>", "#/$defs/Page%3CItem%3E"),
        ("two words", "#/$defs/two%20words"),
        ("Größe", "#/$defs/Gr%C3%B6%C3%9Fe"),
    ] {
        let schema = json!({"$ref": reference, "$defs": {(key): {"items": {"$ref": reference}}, "reference0": {}}});
        let plain = json!({"$ref": "#/$defs/reference1"});
        let definitions = json!({(key): plain, "reference0": {}, "reference1": {"items": plain}});
        assert_eq!(
            unescaped(schema),
            json!({"$ref": "#/$defs/reference1", "$defs": definitions}),
            "{key}"
        );
    }
}

#[test]
fn other_references_stay() {
    for schema in [
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#"}}}),
        json!({"$ref": "#/$defs/none~1"}),
        json!({"$ref": "other.json#/a~1b", "properties": {"$ref": {"type": "string"}}}),
    ] {
        assert_eq!(unescaped(schema.clone()), schema);
    }
}

#[test]
fn a_target_within_a_target_moves_first() {
    let inner = "#/$defs/a~1b/properties/c~1d";
    let schema = json!({"anyOf": [{"$ref": inner}, {"$ref": "#/$defs/a~1b"}],
        "$defs": {"a/b": {"properties": {"c/d": {"type": "null"}}}}});
    let plain = unescaped(schema);
    let [inner, outer] = [0, 1].map(|at| {
        let reference = plain["anyOf"][at]["$ref"]
            .as_str()
            .expect("a reference")
            .to_owned();
        plain
            .pointer(&reference[1..])
            .expect("it points to something")
            .clone()
    });
    assert_eq!(inner, json!({"type": "null"}));
    assert_eq!(outer["properties"]["c/d"], plain["anyOf"][0]);
}
