//! Tests of `text/grammar/constants.rs`.

use super::super::spec::{schema_as_json, schema_in_lark};
use super::*;

const LONG: &str = "123456789012345678901234567890";

#[test]
fn a_constant_that_cannot_be_kept_is_dropped_by_a_lenient_schema_and_never_rounded() {
    for schema in [
        r#"{"allOf": [{"type": "integer", "const": N}]}"#,
        r#"{"type": "object", "patternProperties": {"const": {"type": "integer", "enum": [N]}}}"#,
        r##"{"$ref": "#/$defs/enum", "$defs": {"enum": {"type": "integer", "const": N}}}"##,
    ] {
        let schema = integers::parse(&schema.replace('N', LONG)).expect("JSON");
        schema_in_lark(&schema, true).expect_err("it is strict");
        let lark = schema_in_lark(&schema, false).expect("it is lenient");
        assert!(lark.contains("\"type\":\"integer\"}"), "{lark}");
    }
}

#[test]
fn constants_that_the_compiler_keeps_are_left_to_it() {
    for number in [
        "9007199254740992",
        "-9223372036854775808",
        "1e30",
        "0.5",
        "100000000000000000000",
    ] {
        let schema = format!(r#"{{"properties": {{"a": {{"const": {number}}}}}}}"#);
        let schema = integers::parse(&schema).expect("JSON");
        let lark = schema_in_lark(&schema, true).expect("an expression");
        assert_eq!(schema_as_json(&schema, true), Ok(lark), "{number}");
    }
}

#[test]
fn alternatives_that_begin_alike_are_no_constants_of_lark() {
    let object = r#"{"type": "object", "properties": {"a": {"const": N}}, "required": ["a"]}"#;
    let constant = r#"{"const": {"a": N}}"#;
    for (one, other, is_kept) in [
        (object, constant, false),
        (constant, object, false),
        (object, r#"{"type": ["object", "null"]}"#, false),
        (constant, r#"{"type": "object"}"#, false),
        (r#"{"const": N}"#, r#"{"type": "number"}"#, false),
        (r#"{"const": N}"#, "{}", false),
        (constant, r#"{"enum": [{}, 1]}"#, true),
        (object, r#"{"type": ["string", "null"]}"#, true),
        (r#"{"const": N}"#, object, true),
    ] {
        let schema = format!(r#"{{"anyOf": [{one}, {other}]}}"#).replace('N', LONG);
        let schema = integers::parse(&schema).expect("JSON");
        assert_eq!(schema_in_lark(&schema, true).is_ok(), is_kept, "{schema}");
    }
}

#[test]
fn the_size_of_lists_within_lists_is_bounded() {
    let mut schema = format!(r#"{{"const": {LONG}}}"#);
    for _ in 0..30 {
        schema = format!(r#"{{"type": "array", "items": {schema}}}"#);
    }
    let schema = integers::parse(&schema).expect("JSON");
    let error = schema_in_lark(&schema, true).expect_err("it is too large");
    assert!(error.to_string().contains(LONG), "{error}");
}
