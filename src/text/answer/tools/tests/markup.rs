//! Tests of calls whose values, names or ends look like markup.

use super::*;

/// Call of a function that writes files, in Qwen3-Coder's tags and in GLM's, with these values.
fn written(values: &[(&str, &str)]) -> [(ToolParser, String); 3] {
    let each = |open: &str, middle: &str, close: &str| {
        values
            .iter()
            .map(|(key, value)| format!("{open}{key}{middle}{value}{close}\n"))
            .collect::<String>()
    };
    let qwen = format!(
        "<function=write>\n{}</function>",
        each("<parameter=", ">\n", "\n</parameter>")
    );
    let glm = each("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>");
    [
        (
            ToolParser::Hermes,
            format!("<tool_call>\n{qwen}\n</tool_call>"),
        ),
        (
            ToolParser::SeedOss,
            format!("<seed:tool_call>\n{qwen}\n</seed:tool_call>"),
        ),
        (
            ToolParser::Glm,
            format!("<tool_call>write\n{glm}</tool_call>"),
        ),
    ]
}

/// Agents edit files that are about calls, and markup of their own.
#[test]
fn a_value_may_contain_any_tag() {
    let call = |parser: usize| {
        written(&[("path", "x"), ("content", "y")])[parser]
            .1
            .clone()
    };
    for text in [
        "A value ends with </parameter> or </arg_value>.",
        "A call ends with </function> and </tool_call>, or </seed:tool_call>",
        "</parameter></function>",
        "a </arg_value></arg_value> b",
        "</parameter>\n</parameter>\nmore",
        "<parameter=a>1</parameter>\n<parameter=b>2</parameter>",
        "<arg_key>a</arg_key><arg_value>1</arg_value> and\n<arg_key>b</arg_key><arg_value>2</arg_value>.",
        "<parameter=a> and <arg_key> without an end",
        "<function=write> begins one",
        "<tool_call> and <seed:tool_call> begin one",
        "<b>{\"a\": [</b>",
        &call(0),
        &call(1),
        &call(2),
        &format!("Before\n{}\nand after", call(0)),
        &format!("Before\n{}\nand after", call(2)),
    ] {
        let arguments = json!({"path": "a.md", "content": text, "mode": "w"});
        for (parser, answer) in written(&[("path", "a.md"), ("content", text), ("mode", "w")]) {
            check(parser, &answer, "", &[("write", arguments.clone())]);
            check(
                parser,
                &format!("I write.\n{answer}"),
                "I write.",
                &[("write", arguments.clone())],
            );
            let two = format!("{answer}\n{answer}");
            check(
                parser,
                &two,
                "",
                &[("write", arguments.clone()), ("write", arguments.clone())],
            );
        }
        // As the last value.
        let arguments = json!({"path": "a.md", "content": text});
        for (parser, answer) in written(&[("path", "a.md"), ("content", text)]) {
            check(parser, &answer, "", &[("write", arguments.clone())]);
        }
    }
}

/// A call that begins within a value and does not end there, so that the whole text decides.
#[test]
fn a_call_that_begins_in_a_value_ends_with_it() {
    let text = "<tool_call>\n<function=write> begins one, <tool_call>write\n<arg_key> too";
    let arguments = json!({"path": text, "content": "c"});
    let answers = written(&[("path", text), ("content", "c")]);
    for (parser, answer) in [answers[0].clone(), answers[2].clone()] {
        check(parser, &answer, "", &[("write", arguments.clone())]);
    }
}

#[test]
fn a_call_in_tags_may_lack_its_first_marker() {
    let call = "<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>";
    let oslo = ("weather", json!({"city": "Oslo"}));
    for end in ["</tool_call>", "\n</tool_call>", ""] {
        check(
            ToolParser::Hermes,
            &format!("{call}{end}"),
            "",
            std::slice::from_ref(&oslo),
        );
        check(
            ToolParser::Hermes,
            &format!("I look.\n\n{call}{end}"),
            "I look.",
            std::slice::from_ref(&oslo),
        );
        let two = format!("{call}{end}\n{call}{end}");
        check(ToolParser::Hermes, &two, "", &[oslo.clone(), oslo.clone()]);
        let both = format!("{call}{end}\n<tool_call>\n{call}\n</tool_call>");
        check(ToolParser::Hermes, &both, "", &[oslo.clone(), oslo.clone()]);
    }
    check(
        ToolParser::SeedOss,
        &format!("{call}</seed:tool_call>"),
        "",
        &[oslo],
    );
    for content in [
        "<function=other>\n</function>",
        "<function=weather",
        "use <function=NAME>",
        "</tool_call>",
    ] {
        check(ToolParser::Hermes, content, content, &[]);
    }
}

#[test]
fn brackets_too_many_after_a_call_are_no_content() {
    let call = r#"{"name": "add", "arguments": {}}"#;
    let add = ("add", json!({}));
    for noise in ["}", "}}", "]", ",", ";", "}\n]", ""] {
        check(
            ToolParser::Hermes,
            &format!("<tool_call>\n{call}{noise}\n</tool_call>"),
            "",
            std::slice::from_ref(&add),
        );
        check(
            ToolParser::Hermes,
            &format!("<tool_call>\n{call}{noise}"),
            "",
            std::slice::from_ref(&add),
        );
        let said = format!("<tool_call>\n{call}{noise}\n</tool_call>\nDone.");
        check(
            ToolParser::Hermes,
            &said,
            "Done.",
            std::slice::from_ref(&add),
        );
    }
    for between in ["", "\n", ", ", "}\n"] {
        let two = format!("<tool_call>\n{call}{between}{call}\n</tool_call>");
        check(ToolParser::Hermes, &two, "", &[add.clone(), add.clone()]);
    }
    check(
        ToolParser::Hermes,
        &format!("<tool_call>\n<tool_call>{call}</tool_call>"),
        "",
        std::slice::from_ref(&add),
    );
    check(
        ToolParser::Hermes,
        &format!("<tool_call>{call}</tool_call></tool_call>"),
        "",
        &[add],
    );
}

/// Models write line breaks and tabs of code as they are.
#[test]
fn control_characters_in_a_string_are_escaped() {
    let written = "{\"city\": \"a\n\tb\r\nc \\\" \\p\", \"code\":\n\"1\"}";
    let meant = json!({"city": "a\n\tb\r\nc \" \\p", "code": "1"});
    let [hermes, llama] = ["arguments", "parameters"]
        .map(|key| format!(r#"{{"name": "weather", "{key}": {written}}}"#));
    let call = [("weather", meant)];
    check(
        ToolParser::Hermes,
        &format!("<tool_call>{hermes}</tool_call>"),
        "",
        &call,
    );
    check(ToolParser::Llama3Json, &llama, "", &call);
    check(ToolParser::Json, &hermes, "", &call);
    check(
        ToolParser::Mistral,
        &format!("[TOOL_CALLS][{hermes}]"),
        "",
        &call,
    );
    check(
        ToolParser::Mistral,
        &format!("[TOOL_CALLS]weather[ARGS]{written}"),
        "",
        &call,
    );
    let in_string =
        "<tool_call>{\"name\": \"add\", \"arguments\": \"{\\\"a\\\": \\\"x\ny\\\"}\"}</tool_call>";
    check(
        ToolParser::Hermes,
        in_string,
        "",
        &[("add", json!({"a": "x\ny"}))],
    );
    let message = format!("<|channel|>commentary to=functions.weather<|message|>{written}<|call|>");
    for size in [1, 3, 1000] {
        assert_eq!(
            told(&harmony(&message, size)).1,
            [("weather".to_owned(), call[0].1.clone())]
        );
    }
}

/// gpt-oss leaves out `functions.` in long conversations.
#[test]
fn a_harmony_message_to_a_function_of_the_request_is_a_call() {
    let read = |header: &str| {
        let answer = format!("{header}<|message|>{{}}<|call|>");
        let parts = harmony(&answer, 3);
        let names: Vec<_> = told(&parts).1.into_iter().map(|(name, _)| name).collect();
        (names.join(","), parts.content, parts.reasoning)
    };
    let own = |[name, content, reasoning]: [&str; 3]| {
        (name.to_owned(), content.to_owned(), reasoning.to_owned())
    };
    for channel in ["commentary", "analysis", "final"] {
        for recipient in ["functions.add", "function.add", "add"] {
            for header in [
                format!("<|channel|>{channel} to={recipient} <|constrain|>json"),
                format!(" to={recipient}<|channel|>{channel} json"),
            ] {
                assert_eq!(read(&header), own(["add", "", ""]), "{header}");
            }
        }
    }
    assert_eq!(
        read("<|channel|>commentary to=functions.other"),
        own(["other", "", ""])
    );
    for other in ["python", "browser.search", "other", "function.other"] {
        assert_eq!(
            read(&format!("<|channel|>commentary to={other}")),
            own(["", "", "{}"]),
            "{other}"
        );
    }
    for person in ["assistant", "user", "all"] {
        assert_eq!(
            read(&format!("<|channel|>commentary to={person}")),
            own(["", "{}", ""]),
            "{person}"
        );
        assert_eq!(
            read(&format!("<|channel|>analysis to={person}")),
            own(["", "", "{}"]),
            "{person}"
        );
    }
}

/// Ids of 128 bits and amounts of money have more digits than a float.
#[test]
fn numbers_in_tags_keep_their_digits() {
    let number = "123456789012345678901234567890.12345678901234567890";
    for (parser, answer) in written(&[
        ("path", number),
        ("content", &format!("{{\"a\": [{number}, -0.10]}}")),
    ]) {
        let parts = read(parser, &answer, 5);
        let expected = format!("{{\"path\":{number},\"content\":{{\"a\":[{number},-0.10]}}}}");
        assert_eq!(parts.calls[0].arguments, expected);
    }
    let expected = format!("{{\"a\":{number},\"b\":[{number}]}}");
    let gemma = format!("<|tool_call>call:add{{a:{number},b:[{number}]}}<tool_call|>");
    let python = format!("<|tool_call_start|>[add(a={number}, b=[{number}])]<|tool_call_end|>");
    for (parser, answer) in [(ToolParser::Gemma4, gemma), (ToolParser::Lfm2, python)] {
        assert_eq!(
            read(parser, &answer, 5).calls[0].arguments,
            expected,
            "{parser:?}"
        );
    }
}

/// Calls of `write` in Qwen3-Coder's tags, with the tags as in `change`.
fn changed(change: impl Fn(&str) -> String) -> [(ToolParser, String); 2] {
    let call = "<function=write>\n<parameter=path>\na.py\n</parameter>\n<parameter=mode>\nw\n</parameter>\n</function>";
    let call = change(call);
    [
        (
            ToolParser::Hermes,
            format!("<tool_call>\n{call}\n</tool_call>"),
        ),
        (
            ToolParser::SeedOss,
            format!("<seed:tool_call>\n{call}\n</seed:tool_call>"),
        ),
    ]
}

#[test]
fn a_missing_tag_loses_neither_a_call_nor_an_argument() {
    let add = ("add", json!({}));
    let write = ("write", json!({"path": "a.py", "mode": "w"}));
    for missing in [
        vec![("</parameter>\n", "")],
        vec![("\n</function>", "")],
        vec![("\n</function>", ""), ("\n</parameter>", "")],
        vec![("</parameter>\n<parameter=mode", "<parameter=mode")],
        vec![(">\na.py", "\na.py")],
        vec![(">\nw", "\nw")],
        vec![(">\n<parameter=path", "\n<parameter=path")],
        vec![("write>", "write >")],
    ] {
        let answers = changed(|call| {
            let all = missing.iter();
            all.fold(call.to_owned(), |call, (before, after)| {
                call.replace(before, after)
            })
        });
        for (form, answer) in answers {
            check(form, &answer, "", std::slice::from_ref(&write));
            check(
                form,
                &format!("{answer}\nDone."),
                "Done.",
                std::slice::from_ref(&write),
            );
            check(
                form,
                &format!("{answer}\n{answer}"),
                "",
                &[write.clone(), write.clone()],
            );
            if form == ToolParser::Hermes {
                let next = "<tool_call>\n<function=add>\n</function>\n</tool_call>";
                check(
                    form,
                    &format!("{answer}\n{next}"),
                    "",
                    &[write.clone(), add.clone()],
                );
            }
            // The marker that closes the call may be missing, too.
            let end = answer.rfind('\n').expect("a line");
            check(form, &answer[..end], "", std::slice::from_ref(&write));
        }
    }
}

#[test]
fn a_missing_tag_of_glm_loses_neither_a_call_nor_an_argument() {
    let write = ("write", json!({"path": "a.py", "mode": "w"}));
    for space in ["\n", ""] {
        let whole = [
            "write",
            "<arg_key>path</arg_key>",
            "<arg_value>a.py</arg_value>",
            "<arg_key>mode</arg_key>",
            "<arg_value>w</arg_value>",
        ]
        .join(space);
        for missing in ["", "</arg_value>", "</arg_key>"] {
            let answer = format!(
                "<tool_call>{}{space}</tool_call>",
                whole.replace(missing, "")
            );
            check(ToolParser::Glm, &answer, "", std::slice::from_ref(&write));
            check(
                ToolParser::Glm,
                &format!("{answer}\n{answer}"),
                "",
                &[write.clone(), write.clone()],
            );
        }
    }
    for body in [
        "weather\n{\"city\": \"Oslo\"}",
        "weather{\"city\": \"Oslo\"}\n",
        "weather\n\n{\"city\": \"Oslo\"",
    ] {
        let answer = format!("<tool_call>{body}</tool_call>");
        check(
            ToolParser::Glm,
            &answer,
            "",
            &[("weather", json!({"city": "Oslo"}))],
        );
    }
}

#[test]
fn a_call_in_tags_names_a_function_of_the_request() {
    for content in [
        "<tool_call>\n<function=other>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=write and more>\n</function>\n</tool_call>",
        "<tool_call>\n<function=>\n</function>\n</tool_call>",
    ] {
        check(ToolParser::Hermes, content, content, &[]);
        let seed = content.replace("tool_call>", "seed:tool_call>");
        check(ToolParser::SeedOss, &seed, &seed, &[]);
        // A call after it is one.
        let call = "<tool_call>\n<function=add>\n</function>\n</tool_call>";
        check(
            ToolParser::Hermes,
            &format!("{content}\n{call}"),
            content,
            &[("add", json!({}))],
        );
        check(
            ToolParser::Hermes,
            &format!("{call}\n{content}"),
            content,
            &[("add", json!({}))],
        );
    }
    for content in [
        "<tool_call>other\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        "<tool_call>add and more</tool_call>",
        "<tool_call>other</tool_call>",
    ] {
        check(ToolParser::Glm, content, content, &[]);
    }
}

#[test]
fn an_empty_block_of_a_call_is_dropped() {
    for (form, [open, close]) in [
        (ToolParser::Hermes, ["<tool_call>", "</tool_call>"]),
        (ToolParser::Glm, ["<tool_call>", "</tool_call>"]),
        (
            ToolParser::SeedOss,
            ["<seed:tool_call>", "</seed:tool_call>"],
        ),
        (
            ToolParser::Gemma,
            ["<start_function_call>", "<end_function_call>"],
        ),
        (ToolParser::Gemma4, ["<|tool_call>", "<tool_call|>"]),
        (
            ToolParser::Lfm2,
            ["<|tool_call_start|>", "<|tool_call_end|>"],
        ),
        (
            ToolParser::Lfm2,
            ["<|tool_call_start|>[", "]<|tool_call_end|>"],
        ),
        (ToolParser::Mistral, ["[TOOL_CALLS][", "]"]),
    ] {
        for space in ["", "\n", " \n "] {
            for after in ["", "\n\n"] {
                check(
                    form,
                    &format!("{open}{space}{close}{after}Hello."),
                    "Hello.",
                    &[],
                );
            }
            check(form, &format!("Hello.{open}{space}{close}"), "Hello.", &[]);
            check(
                form,
                &format!("{open}{space}{close}{open}{space}{close}"),
                "",
                &[],
            );
        }
    }
}
