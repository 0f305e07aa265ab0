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
fn schemas_in_a_grammars_text_cost_what_they_cost_alone() {
    let refused = |text: String| check(&GrammarSpec::Lark(text)).is_err();
    for schema in [
        json!({"multipleOf": 1_999_993}),
        json!({"properties": {"a": {"minLength": 30_000}}}),
        json!({"items": {"pattern": "(a{1000}){1000}"}}),
    ] {
        assert!(refused(format!("start: %json {schema}")), "{schema}");
        assert!(refused(format!(
            "start: a\na: \"x\" %json\n  {schema} | \"%json\""
        )));
    }
    let divided = json!({"multipleOf": 60_000});
    assert!(
        !refused(format!("start: %json {divided} # %json nothing")),
        "one alone is allowed"
    );
    let divided = json!({"multipleOf": 60_001});
    assert!(
        refused(format!("start: %json {divided} | %json {divided}")),
        "the sum"
    );
}

#[test]
fn schemas_that_must_all_hold_are_limited() {
    let pair = |at: i32| json!({"anyOf": [{"minimum": at}, {"maximum": -at}]});
    let pairs = |count| json!({"allOf": (1..=count).map(pair).collect::<Vec<_>>()});
    assert!(!is_refused(pairs(6)));
    assert!(is_refused(pairs(7)));
    assert!(is_refused(
        json!({"properties": {"a": {"allOf": [pairs(3), pairs(4)]}}})
    ));
    let patterns = |count: i32| {
        let all = (0..count).map(|at| json!({"pattern": format!("a.*{at}")}));
        json!({"allOf": all.collect::<Vec<_>>()})
    };
    assert!(!is_refused(patterns(4)));
    assert!(is_refused(patterns(5)));
    let divided: Map<_, _> = (0..900)
        .map(|key| (key.to_string(), json!({"multipleOf": 69})))
        .collect();
    assert!(is_refused(json!({"properties": divided})));
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
