//! Tests of `server/parameters/thinking.rs`.

use super::*;
use serde_json::json;

#[test]
fn the_variables_of_a_request_precede_those_of_its_effort() {
    let variables = |effort, own: Value| {
        let own = own.as_object().cloned();
        json!(Thinking::of_effort(effort).variables(own))
    };
    let on = json!({"enable_thinking": true, "thinking": true, "reasoning_effort": "low"});
    let off = json!({"enable_thinking": false, "thinking": false, "reasoning_effort": "none"});
    assert_eq!(variables(Some("low"), json!(null)), on);
    assert_eq!(variables(Some("none"), json!({})), off);
    assert_eq!(variables(None, json!({})), json!(null));
    for name in SWITCHES {
        assert_eq!(
            variables(Some("low"), json!({ (name): false, "a": 1 })),
            json!({ (name): false, "a": 1, "reasoning_effort": "low" })
        );
    }
    assert_eq!(
        variables(Some("none"), json!({"reasoning_effort": "own"}))["reasoning_effort"],
        "own"
    );
}
