//! Tests of `cli/terminal/printer.rs`.

use super::*;

#[test]
fn content_and_calls_are_put_together() {
    let mut output = Vec::new();
    let mut printer = Printer::new(&mut output);
    let part = |index: u32, part: Value| json!({"choices": [{"index": index, "delta": part}]});
    let call = |function: Value| json!({"tool_calls": [{"index": 0, "function": function}]});
    for event in [
        part(0, json!({"role": "assistant", "content": ""})),
        part(0, json!({"reasoning_content": "Hm."})),
        part(0, json!({"content": "Let me "})),
        part(1, json!({"content": "another choice"})),
        part(0, json!({"content": "look."})),
        part(0, call(json!({"name": "look", "arguments": "{\"at\""}))),
        part(0, call(json!({"arguments": ": 1}"}))),
        json!({"choices": []}),
    ] {
        printer.print(&event).expect("a vector takes everything");
    }
    let message = printer.finish().expect("a vector takes everything");
    assert_eq!(message["content"], "Let me look.");
    assert_eq!(
        message["tool_calls"][0]["function"],
        json!({"name": "look", "arguments": "{\"at\": 1}"})
    );
    let printed = String::from_utf8(output).expect("UTF-8");
    assert_eq!(
        printed,
        "Let me look.\n{\"tool_call\":{\"name\":\"look\",\"arguments\":\"{\\\"at\\\": 1}\"}}\n"
    );
}
