//! Tests of Mistral's calls that are not written as its template shows them.

use super::*;

#[test]
fn a_mistral_call_may_lack_its_list_or_have_its_marker_twice() {
    let [one, two] = ["a", "b"].map(|city| {
        let call = json!({"name": "weather", "arguments": {"city": city}}).to_string();
        (call, ("weather", json!({"city": city})))
    });
    for (answer, calls) in [
        (format!("[TOOL_CALLS] {}", one.0), vec![&one.1]),
        (
            format!("[TOOL_CALLS]{}, {}", one.0, two.0),
            vec![&one.1, &two.1],
        ),
        (format!("[TOOL_CALLS][TOOL_CALLS][{}]", one.0), vec![&one.1]),
        (format!("[TOOL_CALLS] [TOOL_CALLS] {}", one.0), vec![&one.1]),
        (
            format!("[TOOL_CALLS][ {}\n,\n{} ]", one.0, two.0),
            vec![&one.1, &two.1],
        ),
        (
            "[TOOL_CALLS] [TOOL_CALLS]weather[ARGS]{\"city\": \"a\"}".to_owned(),
            vec![&one.1],
        ),
        (
            "[TOOL_CALLS]weather [CALL_ID]abcdef123 [ARGS] {\"city\": \"a\"}".to_owned(),
            vec![&one.1],
        ),
    ] {
        let calls: Vec<_> = calls.into_iter().cloned().collect();
        check(ToolParser::Mistral, &answer, "", &calls);
        let before = format!("I look.\n{answer}");
        check(ToolParser::Mistral, &before, "I look.", &calls);
        check(
            ToolParser::Mistral,
            &format!("{answer}\nDone."),
            "Done.",
            &calls,
        );
    }
}

#[test]
fn a_text_in_a_list_of_calls_of_mistral_has_no_meaning() {
    let [one, two] = [1, 2].map(|number| ("add", json!({"a": number})));
    let [first, second] =
        [&one, &two].map(|(name, arguments)| json!({"name": name, "arguments": arguments}));
    for (list, content, calls) in [
        (
            format!("[{first}, \"junk, {{]\\\"\"]Done."),
            "Done.",
            vec![&one],
        ),
        (format!("[{first}, \"x\", {second}]"), "", vec![&one, &two]),
        (format!("[{first}, \"junk"), "", vec![&one]),
        (format!("[{first}\nDone."), "Done.", vec![&one]),
    ] {
        let calls: Vec<_> = calls.into_iter().cloned().collect();
        check(
            ToolParser::Mistral,
            &format!("[TOOL_CALLS]{list}"),
            content,
            &calls,
        );
    }
}

#[test]
fn text_after_the_marker_of_mistral_that_is_no_call_is_content_unchanged() {
    for answer in [
        "[TOOL_CALLS] junk [{\"name\": \"add\", \"arguments\": {}}] trail",
        "[TOOL_CALLS][\"add\"]",
        "[TOOL_CALLS] [1, 2]",
        "[TOOL_CALLS][{\"x\": 1}]",
        "[TOOL_CALLS] {\"x\": 1}",
        "[TOOL_CALLS]other[ARGS]{\"x\": 1}",
        "[TOOL_CALLS]other{\"x\": 1}",
        "[TOOL_CALLS]add and more",
        "[TOOL_CALLS]add[ARGS]more",
        "[TOOL_CALLS]add",
        "[TOOL_CALLS]",
        "bash[TOOL_CALLS]{\"x\": 1}",
        "One may write [TOOL_CALLS], then [ARGS].",
    ] {
        check(ToolParser::Mistral, answer, answer, &[]);
    }
    check(ToolParser::Mistral, "[TOOL_CALLS][]Hello.", "Hello.", &[]);
}
