//! Tests of `text/grammar/costs.rs`.

use super::*;
use serde_json::json;

fn is_refused(schema: Value) -> bool {
    check(&GrammarSpec::Schema {
        schema,
        strict: true,
    })
    .is_err()
}

#[test]
fn lower_bounds_and_divisors_are_limited_and_upper_bounds_are_not() {
    assert!(is_refused(json!({"pattern": "a{10000000}"})));
    assert!(is_refused(json!({"items": {"pattern": "(a{1000}){1000}"}})));
    assert!(is_refused(json!({"anyOf": [{"minLength": 1e9}]})));
    assert!(is_refused(
        json!({"$defs": {"x": {"multipleOf": 1_953_125}}})
    ));
    assert!(is_refused(json!({"multipleOf": 0.999_983})));
    let long = "123456789012345678901234567890";
    for key in ["multipleOf", "minLength"] {
        let schema = integers::parse(&format!("{{\"{key}\": {long}}}"));
        assert!(is_refused(schema.expect("JSON")), "{key}");
    }
    assert!(is_refused(json!({"patternProperties": {"^x{30000}$": {}}})));
    assert!(
        is_refused(json!({"properties": {"a": {"minLength": 15_000}, "b": {"minLength": 15_000}}})),
        "the sum"
    );
    assert!(!is_refused(
        json!({"maxLength": 1_000_000_000, "pattern": "^a{0,5000}$", "maxItems": 1e9})
    ));
    assert!(!is_refused(
        json!({"multipleOf": 86_400, "properties": {"multipleOf": {"const": 1e9}}})
    ));
    assert!(!is_refused(
        json!({"multipleOf": 0.01, "enum": [{"minLength": 1e9}]})
    ));
}

#[test]
fn repetitions_in_a_grammars_text_are_limited() {
    let refused =
        |text: &str| check(&GrammarSpec::Lark(text.into())).map_err(|error| error.to_string());
    let error = refused("start: /a{100000000}/").expect_err("too many");
    assert!(
        error.contains("`{100000000`") && error.contains("20000"),
        "{error}"
    );
    for text in [
        "start: \"a\"~100000..2000000",
        "start: A{30000,}\nA: \"a\"",
        "start: /x{99999999999999999999999}/",
    ] {
        assert!(refused(text).is_err(), "{text}");
    }
    for text in [
        "start: A{0,1000000}\nA: \"a\"",
        "start: %json {\"type\": \"object\"}",
        "start: /[0-9]{4}-[0-9]{2}/",
    ] {
        assert!(refused(text).is_ok(), "{text}");
    }
}
