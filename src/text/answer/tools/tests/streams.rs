//! Tests of what is told of a call while it is being written.

use super::*;

/// A text that is written into a file.
fn file() -> String {
    let words = (0..150).map(|n| if n % 10 == 9 { "\"word\"\n" } else { "word < " });
    words.collect::<String>() + "end"
}

/// Calls that write this text, in every notation.
fn writes(text: &str) -> Vec<(ToolParser, String)> {
    use ToolParser as T;
    let json = json!({"name": "write", "arguments": {"mode": text}});
    let tags = format!("<function=write>\n<parameter=mode>\n{text}\n</parameter>\n</function>");
    let python = text.replace('"', "\\\"").replace('\n', "\\n");
    vec![
        (T::Hermes, format!("<tool_call>\n{json}\n</tool_call>")),
        (T::Hermes, format!("<tool_call>\n{tags}\n</tool_call>")),
        (T::Hermes, tags.clone()),
        (
            T::SeedOss,
            format!("<seed:tool_call>\n{tags}\n</seed:tool_call>"),
        ),
        (
            T::Glm,
            format!(
                "<tool_call>write\n<arg_key>mode</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>"
            ),
        ),
        (T::Mistral, format!("[TOOL_CALLS][{json}]")),
        (
            T::Gemma,
            format!(
                "<start_function_call>call:write{{mode:<escape>{text}<escape>}}<end_function_call>"
            ),
        ),
        (
            T::Gemma4,
            format!("<|tool_call>call:write{{mode:<|\"|>{text}<|\"|>}}<tool_call|>"),
        ),
        (
            T::Lfm2,
            format!("<|tool_call_start|>[write(mode=\"{python}\")]<|tool_call_end|>"),
        ),
        (T::Json, json.to_string()),
    ]
}

#[test]
fn a_text_argument_streams_as_it_is_written() {
    let text = file();
    for (form, answer) in writes(&text) {
        let (mut parser, mut parts) = (CallParser::new(form, &known()), Parts::default());
        let begin = answer.find("word").expect("the text");
        for (at, character) in answer.char_indices() {
            parser.push(&character.to_string(), &mut parts);
            let arguments: usize = parts.calls.iter().map(|call| call.arguments.len()).sum();
            if at >= begin && at < begin + text.len() {
                assert_eq!(
                    parts.calls.first().and_then(|call| call.name.as_deref()),
                    Some("write")
                );
                // At most a quote, a line break and what may be a tag are held back.
                assert!(
                    arguments + 4 >= at - begin,
                    "{form:?}: {arguments} bytes at {}",
                    at - begin
                );
            }
        }
        parser.finish(&mut parts, false);
        check(form, &answer, "", &[("write", json!({"mode": text}))]);
    }
}

#[test]
fn the_name_of_a_call_in_tags_is_told_as_soon_as_it_is_known() {
    for (form, head) in [
        (ToolParser::Hermes, "<tool_call>\n<function=weather>"),
        (ToolParser::Hermes, "<function=weather>"),
        (ToolParser::SeedOss, "<seed:tool_call>\n<function=weather>"),
        (ToolParser::Glm, "<tool_call>weather\n"),
        (ToolParser::Gemma, "<start_function_call>call:weather{"),
        (ToolParser::Gemma4, "<|tool_call>call:weather{"),
    ] {
        let (mut parser, mut parts) = (CallParser::new(form, &known()), Parts::default());
        parser.push(head, &mut parts);
        assert_eq!(
            parts.calls.first().and_then(|call| call.name.as_deref()),
            Some("weather"),
            "{form:?}"
        );
    }
}

/// A value that may be of another type is told when it is complete: `12` may become `123`.
#[test]
fn values_of_other_types_are_told_when_they_are_complete() {
    let head = "<tool_call>\n<function=write>\n<parameter=path>\n[1, 2";
    let (mut parser, mut parts) = (
        CallParser::new(ToolParser::Hermes, &known()),
        Parts::default(),
    );
    parser.push(head, &mut parts);
    assert_eq!(parts.calls[0].arguments, "");
    parser.push("]\n</parameter>\n<parameter=mode>\n", &mut parts);
    let told: String = parts
        .calls
        .iter()
        .map(|call| call.arguments.as_str())
        .collect();
    assert_eq!(told, "{\"path\":[1, 2]".replace(' ', ""));
}
