//! Tests of `text/grammar/spec.rs`.

use super::*;

#[test]
fn bounds_that_floats_cannot_express_are_refused_when_strict() {
    let schema = |bound: u64| json!({"properties": {"id": {"anyOf": [{"type": "integer", "minimum": bound}]}}});
    for (bound, is_exact) in [
        (1 << 53, true),
        ((1 << 53) + 1, false),
        (u64::MAX, false),
        (1 << 60, true),
    ] {
        assert_eq!(
            schema_in_lark(&schema(bound), true).is_ok(),
            is_exact,
            "{bound}"
        );
        schema_in_lark(&schema(bound), false).expect("not strict");
    }
    schema_in_lark(
        &json!({"properties": {"minimum": {"default": u64::MAX}}}),
        true,
    )
    .expect("no bound");
}

#[test]
fn the_reason_why_a_pattern_is_refused_is_told() {
    let shown = "regex parse error:\n    a(?=b)\n     ^^^\nerror: look-around is not supported";
    assert_eq!(
        GrammarError::told(shown).to_string(),
        "regex parse error: look-around is not supported"
    );
    assert_eq!(
        GrammarError::told("\n Invalid type: objekt\nmore").to_string(),
        "Invalid type: objekt"
    );
}

#[test]
fn names_of_properties_and_values_are_no_keywords() {
    for name in [
        "if",
        "not",
        "allOf",
        "dependentSchemas",
        "unevaluatedProperties",
        "patternProperties",
    ] {
        let text = json!({"type": "string"});
        let named = json!({"type": "object", "properties": {name: text}});
        assert!(!composes(&named), "a property called {name}");
        assert!(
            !composes(&json!({"type": "object", "properties": {"a": {"items": named}}})),
            "{name} deeper"
        );
        assert!(
            !composes(&json!({"$defs": {name: text}, "type": "object"})),
            "a definition called {name}"
        );
        for key in ["default", "const", "examples", "enum"] {
            assert!(
                !composes(&json!({"properties": {"a": {key: [{name: 1}]}}})),
                "{name} in {key}"
            );
        }
        assert!(
            composes(&json!({"properties": {"a": {"anyOf": [{name: {}}]}}})),
            "the keyword {name}"
        );
    }
}
