//! Tests of calls in tags with attributes: DeepSeek V3.2 and V4, MiniMax M2.

use super::*;

/// The tags of a call in a family's notation, with or without what says that a value is text.
struct Family {
    parser: ToolParser,
    mark: &'static str,
    section: &'static str,
}

const FAMILIES: [Family; 3] = [
    Family {
        parser: ToolParser::DeepSeekV32,
        mark: "｜DSML｜",
        section: "｜DSML｜function_calls",
    },
    Family {
        parser: ToolParser::DeepSeekV4,
        mark: "｜DSML｜",
        section: "｜DSML｜tool_calls",
    },
    Family {
        parser: ToolParser::MiniMaxM2,
        mark: "",
        section: "minimax:tool_call",
    },
];

impl Family {
    /// An argument up to its value.
    fn key(&self, key: &str, is_text: Option<bool>) -> String {
        let attribute = is_text.map_or(String::new(), |is_text| format!(" string=\"{is_text}\""));
        format!("<{}parameter name=\"{key}\"{attribute}>", self.mark)
    }

    fn argument(&self, key: &str, is_text: Option<bool>, value: &str) -> String {
        format!("{}{value}</{}parameter>", self.key(key, is_text), self.mark)
    }

    fn call(&self, name: &str, arguments: &str) -> String {
        let mark = self.mark;
        format!("<{mark}invoke name=\"{name}\">{arguments}</{mark}invoke>")
    }

    fn calls(&self, calls: &str) -> String {
        format!("<{0}>\n{calls}\n</{0}>", self.section)
    }
}

/// Functions whose arguments have types.
fn typed() -> Arc<ToolSet> {
    let wait = json!({"anyOf": [{"type": "object"}, {"type": "null"}]});
    let all = json!({"properties": {"count": {"type": "integer"}, "text": {"type": "string"}, "wait": wait,
        "name": {"type": ["string", "null"]}}});
    Arc::new(ToolSet::new(vec![
        json!({"name": "set", "parameters": all}),
    ]))
}

fn arguments(parser: ToolParser, tools: &Arc<ToolSet>, answer: &str) -> Value {
    let mut results = [1, 3, 1000].map(|size| {
        let mut reader = CallParser::new(parser, tools);
        let mut all = pushed(answer, size, |piece, parts| reader.push(piece, parts));
        let mut parts = Parts::default();
        reader.finish(&mut parts, false);
        all.extend(parts);
        told(&all).1.remove(0).1
    });
    assert!(
        results.iter().all(|result| *result == results[0]),
        "{answer}: {results:?}"
    );
    results[0].take()
}

#[test]
fn a_value_ends_where_an_argument_begins_that_is_due() {
    let both = json!({"path": "Paris a<b", "mode": "w"});
    for family in FAMILIES {
        let forgotten =
            family.key("path", None) + "Paris a<b" + &family.argument("mode", None, "w");
        let answer = family.calls(&family.call("write", &forgotten));
        check(family.parser, &answer, "", &[("write", both.clone())]);
        let stopped = answer.split("</").next().unwrap_or_default();
        check(family.parser, stopped, "", &[("write", both.clone())]);
    }
}

#[test]
fn a_value_ends_where_an_argument_begins_if_the_function_declares_none() {
    for family in FAMILIES {
        let arguments = family.key("a", None) + "x" + &family.argument("b", None, "y");
        let answer = family.calls(&family.call("add", &arguments));
        check(
            family.parser,
            &answer,
            "",
            &[("add", json!({"a": "x", "b": "y"}))],
        );
    }
}

#[test]
fn a_value_may_show_arguments_that_are_closed() {
    for family in FAMILIES {
        let shown = format!("see {}, or so", family.argument("mode", None, "w"));
        let arguments = family.argument("path", Some(true), &shown);
        let answer = family.calls(&family.call("write", &arguments));
        check(
            family.parser,
            &answer,
            "",
            &[("write", json!({"path": shown}))],
        );
    }
}

#[test]
fn a_value_ends_with_its_call_before_the_next_one_or_the_last() {
    let oslo = ("weather", json!({"city": "Oslo"}));
    for family in FAMILIES {
        let open = family.call("weather", &(family.key("city", None) + "Oslo"));
        let answer = family.calls(&format!("{open}\n{open}"));
        check(family.parser, &answer, "", &[oslo.clone(), oslo.clone()]);
        let call = family.call("weather", &family.argument("city", None, "Oslo"));
        let end = format!("</{}invoke>", family.mark);
        let answer = family.calls(&call.replace(&end, "")) + "Done.";
        check(family.parser, &answer, "Done.", std::slice::from_ref(&oslo));
    }
}

#[test]
fn a_schema_counts_more_than_what_a_tag_says_of_its_value() {
    let table = [
        ("count", true, "42", json!(42)),
        ("wait", true, "{\"a\": 1}", json!({"a": 1})),
        ("text", true, "42", json!("42")),
        ("text", false, "null", json!("null")),
        ("text", false, "\"quoted\"", json!("quoted")),
        ("name", false, "null", json!(null)),
        ("name", true, "null", json!("null")),
        ("count", false, "many", json!("many")),
    ];
    for family in FAMILIES.iter().filter(|family| !family.mark.is_empty()) {
        for (key, is_text, value, expected) in &table {
            let argument = family.argument(key, Some(*is_text), value);
            let answer = family.calls(&family.call("set", &argument));
            let given = arguments(family.parser, &typed(), &answer);
            assert_eq!(given, json!({*key: expected}), "{answer}");
        }
    }
}

#[test]
fn arguments_within_an_argument_that_is_not_declared_are_those_of_the_call() {
    let tools = typed();
    for family in FAMILIES {
        for key in ["arguments", "input"] {
            for (is_text, value) in [
                (false, "{\"count\": 1}"),
                (true, "{\"count\": 1}"),
                (false, "\"{\\\"count\\\": 1}\""),
            ] {
                let argument = family.argument(key, Some(is_text), value);
                let answer = family.calls(&family.call("set", &argument));
                assert_eq!(
                    arguments(family.parser, &tools, &answer),
                    json!({"count": 1}),
                    "{answer}"
                );
            }
            let other = family.argument(key, Some(false), "{\"other\": 1}");
            let answer = family.calls(&family.call("set", &other));
            assert_eq!(
                arguments(family.parser, &tools, &answer),
                json!({key: {"other": 1}})
            );
            let two = other + &family.argument("count", Some(false), "2");
            let answer = family.calls(&family.call("set", &two));
            assert_eq!(
                arguments(family.parser, &tools, &answer),
                json!({key: {"other": 1}, "count": 2})
            );
        }
    }
}

#[test]
fn arguments_in_tags_with_attributes_are_passed_on_as_they_are_written() {
    for family in FAMILIES {
        let mut reader = CallParser::new(family.parser, &known());
        let mut told_so_far = |text: &str| {
            let mut parts = Parts::default();
            reader.push(text, &mut parts);
            let calls = parts.calls.into_iter();
            calls.map(|call| call.arguments).collect::<String>()
        };
        told_so_far(&format!(
            "<{}>\n<{}invoke name=\"weather\">",
            family.section, family.mark
        ));
        assert_eq!(
            told_so_far(&(family.key("city", Some(true)) + "Os")),
            "{\"city\":\"Os"
        );
        assert_eq!(told_so_far("lo\n\"x\""), "lo\\n\\\"x\\\"");
        let next = format!(
            "</{}parameter>\n{}",
            family.mark,
            family.argument("days", Some(false), "3")
        );
        assert_eq!(told_so_far(&next), "\"");
        assert_eq!(told_so_far(&family.key("code", Some(true))), ",\"days\":3");
    }
}

#[test]
fn a_misspelled_marker_before_calls_is_one() {
    let call = FAMILIES[1].call("weather", &FAMILIES[1].argument("city", Some(true), "Oslo"));
    for marker in ["<｜DSML｜toolcalls>", "<｜DSML｜tool>"] {
        let answer = format!("I look.\n{marker}\n{call}\n</｜DSML｜tool_calls>");
        check(
            ToolParser::DeepSeekV4,
            &answer,
            "I look.",
            &[("weather", json!({"city": "Oslo"}))],
        );
    }
}

#[test]
fn a_call_that_a_thought_mentions_without_the_marker_before_it_is_none() {
    for family in FAMILIES {
        let call = family.call("weather", &family.argument("city", None, "Oslo"));
        let mut reader = CallParser::new(family.parser, &known())
            .in_thought()
            .expect("a parser");
        let text = format!("Maybe {call} is wrong.");
        let mut parts = Parts::default();
        reader.push(&text, &mut parts);
        assert_eq!(
            (parts.content.as_str(), parts.calls.len()),
            (text.as_str(), 0)
        );
        reader.push(&format!("{}{call}", family.calls(&call)), &mut parts);
        assert_eq!(told(&parts).1.len(), 2, "{:?}", family.parser);
    }
}
