//! Tests of calls whose JSON is broken.

use super::*;

/// Calls of `weather` with these arguments in every notation whose arguments are JSON, with what is after them.
fn with_arguments(arguments: &str) -> Vec<(ToolParser, String)> {
    let object = |key: &str| format!("{{\"name\": \"weather\", \"{key}\": {arguments}");
    vec![
        (
            ToolParser::Hermes,
            format!("<tool_call>\n{}</tool_call>", object("arguments")),
        ),
        (
            ToolParser::Hermes,
            format!("<tool_call>\n{}\n</tool_call>", object("arguments")),
        ),
        (
            ToolParser::Hermes,
            format!("<tool_call>{}", object("arguments")),
        ),
        (ToolParser::Llama3Json, object("parameters")),
        (ToolParser::Json, object("arguments")),
        (
            ToolParser::Mistral,
            format!("[TOOL_CALLS][{}", object("arguments")),
        ),
        (
            ToolParser::Mistral,
            format!("[TOOL_CALLS]weather[ARGS]{arguments}"),
        ),
    ]
}

/// The parts of harmony's message to `weather` with this text.
fn message(arguments: &str, size: usize) -> Parts {
    let header = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>";
    harmony(&format!("{header}{arguments}<|call|>"), size)
}

#[test]
fn missing_brackets_of_a_call_are_added() {
    for (written, meant) in [
        (r#"{"city": "Paris""#, json!({"city": "Paris"})),
        (r#"{"city": "Paris", "#, json!({"city": "Paris"})),
        (r#"{"city": "Paris"}"#, json!({"city": "Paris"})),
        (
            r#"{"city": "a <b> </b>", "list": [1, {"x": "y""#,
            json!({"city": "a <b> </b>", "list": [1, {"x": "y"}]}),
        ),
        (
            r#"{"city": "Paris", "days": 3"#,
            json!({"city": "Paris", "days": 3}),
        ),
        (r#"{"city": "Paris"#, json!({"city": "Paris"})),
        (r#"{"city":"#, json!({"city": null})),
        (r#"{"city": "Paris", "co"#, json!({"city": "Paris"})),
    ] {
        for (form, answer) in with_arguments(written) {
            // A raw line break is a part of an open string.
            if !(written.ends_with("Paris") && answer.contains("\n</")) {
                check(form, &answer, "", &[("weather", meant.clone())]);
            }
        }
        for size in [1, 3, 1000] {
            let made = told(&message(written, size));
            assert_eq!(
                made,
                (String::new(), vec![("weather".to_owned(), meant.clone())])
            );
        }
    }
}

#[test]
fn an_end_marker_within_a_string_that_is_not_closed_ends_the_call() {
    let open = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris";
    let paris = ("weather", json!({"city": "Paris"}));
    check(
        ToolParser::Hermes,
        &format!("{open}</tool_call>\n{open}</tool_call>\n"),
        "",
        &[paris.clone(), paris],
    );
    let text = "Paris</tool_call> and <tool_call> </tool_call>";
    let call = format!(
        "<tool_call>\n{{\"name\": \"weather\", \"arguments\": {{\"city\": \"{text}\"}}}}\n</tool_call>"
    );
    check(
        ToolParser::Hermes,
        &call,
        "",
        &[("weather", json!({"city": text}))],
    );
}

#[test]
fn arguments_that_cannot_be_repaired_are_content() {
    for broken in [
        "{city: \"Paris\"}",
        "{invalid}",
        "{'city': 'Paris'}",
        "Paris",
        "{{}}",
        "{\"city\" 1}",
    ] {
        for (form, answer) in with_arguments(&format!("{broken}}}")) {
            check(form, &answer, &answer, &[]);
        }
        for size in [1, 3, 1000] {
            let parts = message(broken, size);
            assert_eq!(
                (parts.content.as_str(), parts.calls.len()),
                (broken, 0),
                "{size}"
            );
        }
    }
    // A text is JSON, too.
    let text = "<tool_call>{\"name\": \"add\", \"arguments\": \"hello\"}</tool_call>";
    check(ToolParser::Hermes, text, "", &[("add", json!("hello"))]);
    // What was sent of a call is completed where it breaks off.
    for (form, answer) in with_arguments(r#"{"city": "Paris", days: 3}}"#) {
        for size in [1, 3, 1000] {
            assert_eq!(
                told(&read(form, &answer, size)).1,
                [("weather".to_owned(), json!({"city": "Paris"}))]
            );
        }
    }
}
