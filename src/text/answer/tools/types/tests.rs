//! Tests of `text/answer/tools/types.rs`.

use super::*;
use serde_json::json;

/// What a value of this schema is, for each text.
fn check(schema: &Value, pairs: &[(&str, Value)]) {
    let root = json!({"$defs": {"Zip": {"type": "string"}, "a/b %": {"$ref": "#/$defs/Zip"}, "Loop": {
            "$ref": "#/$defs/Loop"}}});
    let allowed = Allowed::by(schema, &root);
    for (text, value) in pairs {
        let read: Value = serde_json::from_str(&allowed.read(text)).expect("JSON");
        assert_eq!(read, *value, "{text:?} by {schema}");
    }
}

#[test]
fn a_value_in_tags_has_the_type_that_its_schema_allows() {
    let texts = [
        "123",
        "2026",
        "true",
        "1.10",
        r#"{"a": 1}"#,
        "[1]",
        r#""a""#,
        "a",
        "",
        "None ",
        "[1",
    ];
    let same = texts.map(|text| (text, json!(text)));
    let string = json!({"type": "string"});
    check(&string, &same);
    check(&string, &[("null", json!("null")), ("None", json!("None"))]);
    let nothing = json!({"type": "null"});
    for optional in [
        json!({"anyOf": [string, nothing]}),
        json!({"oneOf": [nothing, string]}),
        json!({"type": ["string", "null"]}),
        json!({"type": "string", "nullable": true}),
        json!({"anyOf": [{"$ref": "#/$defs/Zip"}, nothing], "default": null}),
        json!({"anyOf": [{"anyOf": [string, nothing]}, nothing]}),
        json!({"allOf": [{"anyOf": [string, nothing]}, {"description": "A name."}]}),
    ] {
        check(&optional, &same[..9]);
        check(&optional, &[("null", Value::Null), ("None", Value::Null)]);
    }
    for text in [
        json!({"$ref": "#/$defs/Zip"}),
        json!({"$ref": "#/$defs/a~1b%20%25"}),
        json!({"allOf": [{"$ref": "#/$defs/Zip"}]}),
        json!({"enum": ["1", "2026", "true"]}),
        json!({"const": "1"}),
        json!({"anyOf": [{"const": "1"}, {"const": "2"}]}),
    ] {
        check(&text, &same[..4]);
    }
    check(
        &json!({"enum": ["1", "null", 1, null]}),
        &[("1", json!("1")), ("null", json!("null"))],
    );
    check(
        &json!({"enum": ["auto", 1, null]}),
        &[
            ("auto", json!("auto")),
            ("1", json!(1)),
            ("null", Value::Null),
        ],
    );
}

#[test]
fn a_value_that_another_type_allows_is_no_text() {
    let either = |kind: &str| json!({"anyOf": [{"type": "string"}, {"type": kind}]});
    check(
        &either("integer"),
        &[
            ("5", json!(5)),
            ("5.5", json!("5.5")),
            ("five", json!("five")),
        ],
    );
    check(
        &either("number"),
        &[("5.5", json!(5.5)), ("true", json!("true"))],
    );
    check(
        &either("boolean"),
        &[
            ("true", json!(true)),
            ("False", json!(false)),
            ("1", json!("1")),
        ],
    );
    check(
        &either("object"),
        &[
            ("{\"a\": 1}", json!({"a": 1})),
            ("{", json!("{")),
            ("[1]", json!("[1]")),
        ],
    );
    check(
        &either("array"),
        &[("['a', 1]", json!(["a", 1])), ("[x]", json!("[x]"))],
    );
}

#[test]
fn values_that_are_written_as_in_python_are_read() {
    let boolean = json!({"type": "boolean"});
    check(
        &boolean,
        &[
            ("True", json!(true)),
            ("False", json!(false)),
            ("true", json!(true)),
            ("1", json!(1)),
        ],
    );
    check(
        &json!({"anyOf": [boolean, {"type": "null"}]}),
        &[("None", Value::Null), ("True", json!(true))],
    );
    check(
        &json!({"type": "array"}),
        &[
            ("['a', True]", json!(["a", true])),
            ("(1, 2)", json!([1, 2])),
        ],
    );
    check(
        &json!({"type": "object"}),
        &[("{'a': None}", json!({"a": null})), ("{a}", json!("{a}"))],
    );
    // Where the schema says nothing, JSON is read and nothing else.
    for open in [
        json!({}),
        json!(true),
        Value::Null,
        json!({"$ref": "#/none"}),
        json!({"$ref": "#/$defs/Loop"}),
    ] {
        check(
            &open,
            &[
                ("1", json!(1)),
                ("True", json!("True")),
                ("None", json!("None")),
                ("\"a\"", json!("a")),
            ],
        );
    }
}

#[test]
fn a_schema_of_many_alternatives_is_resolved_in_bounded_time() {
    let twice = |name: String| json!({"anyOf": [{"$ref": name.clone()}, {"$ref": name}]});
    let deep: Map<_, _> = (0..40)
        .map(|n| (format!("d{n}"), twice(format!("#/$defs/d{}", n + 1))))
        .collect();
    let root = json!({"$defs": deep});
    assert_eq!(
        Allowed::by(&json!({"$ref": "#/$defs/d0"}), &root).read("1"),
        "1"
    );
}
