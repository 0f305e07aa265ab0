//! Every call format, split into pieces of every size: the result must not depend on where the text is split.

mod brackets;
mod broken;
pub(super) mod formats;
mod invoked;
mod markup;
mod messages;
mod near_misses;
mod remarks;
mod streams;

use super::super::harmony::Harmony;
use super::super::reasoning::{ReasoningParser, ReasoningTracker, Splitter, Stage, Start};
use super::*;
use crate::model::demo;
use crate::text::TextModel;
use proptest::prelude::*;
use serde_json::json;

fn known() -> Arc<ToolSet> {
    let text = json!({"type": "object", "properties": {"city": {"type": "string"}, "code": {"type": "string"}}});
    let file = json!({"properties": {"path": {}, "content": {}, "mode": {"type": "string"}}});
    let functions = vec![
        json!({"name": "weather", "parameters": text}),
        json!({"name": "add"}),
        json!({"name": "write", "parameters": file}),
    ];
    Arc::new(ToolSet::new(functions))
}

/// All parts of an answer that arrives in pieces of `size` characters.
fn read(form: ToolParser, answer: &str, size: usize) -> Parts {
    let mut parser = CallParser::new(form, &known());
    let mut all = pushed(answer, size, |piece, parts| parser.push(piece, parts));
    let mut parts = Parts::default();
    parser.finish(&mut parts, false);
    all.extend(parts);
    all
}

/// The parts of pieces of `size` characters, for which `push` is called one after the other.
fn pushed(answer: &str, size: usize, mut push: impl FnMut(&str, &mut Parts)) -> Parts {
    let mut all = Parts::default();
    let characters: Vec<char> = answer.chars().collect();
    for piece in characters.chunks(size) {
        let mut parts = Parts::default();
        push(&piece.iter().collect::<String>(), &mut parts);
        all.extend(parts);
    }
    all
}

/// Content, then (name, arguments) of each call.
fn told(parts: &Parts) -> (String, Vec<(String, Value)>) {
    let mut calls: Vec<(String, String)> = Vec::new();
    for delta in &parts.calls {
        match &delta.name {
            Some(name) => {
                assert_eq!(delta.index, calls.len(), "calls come in order");
                calls.push((name.clone(), delta.arguments.clone()));
            }
            None => calls[delta.index].1.push_str(&delta.arguments),
        }
    }
    let parse = |(name, arguments): (String, String)| {
        let value =
            serde_json::from_str(&arguments).unwrap_or_else(|error| panic!("{error}: {arguments}"));
        (name, value)
    };
    (
        parts.content.clone(),
        calls.into_iter().map(parse).collect(),
    )
}

/// Checks the same result for every piece size.
fn check(form: ToolParser, answer: &str, content: &str, calls: &[(&str, Value)]) {
    for size in [1, 2, 3, 5, 8, 13, 1000] {
        let (said, made) = told(&read(form, answer, size));
        let made: Vec<(&str, Value)> = made
            .iter()
            .map(|(name, value)| (name.as_str(), value.clone()))
            .collect();
        assert_eq!(
            (said.as_str(), made.as_slice()),
            (content, calls),
            "{form:?} in pieces of {size}: {answer}"
        );
    }
}

fn paris() -> (&'static str, Value) {
    ("weather", json!({"city": "Paris \"{[]}\" \\ 🙂"}))
}

const PARIS: &str = r#"{"city": "Paris \"{[]}\" \\ 🙂"}"#;

#[test]
fn hermes() {
    let call = |arguments: &str| {
        format!("<tool_call>\n{{\"name\": \"weather\", \"arguments\": {arguments}}}\n</tool_call>")
    };
    check(ToolParser::Hermes, &call(PARIS), "", &[paris()]);
    check(
        ToolParser::Hermes,
        &format!("Let me see.\n\n{}", call(PARIS)),
        "Let me see.",
        &[paris()],
    );
    let two = format!("{}\n{}", call(PARIS), call("{}"));
    check(
        ToolParser::Hermes,
        &two,
        "",
        &[paris(), ("weather", json!({}))],
    );
    // Arguments before the name; arguments as a string; no arguments; an unknown tool.
    let odd =
        r#"<tool_call>{"arguments": {"a": [1, {"b": null}]}, "id": 7, "name": "add"}</tool_call>"#;
    check(
        ToolParser::Hermes,
        odd,
        "",
        &[("add", json!({"a": [1, {"b": null}]}))],
    );
    let text = r#"<tool_call>{"name": "add", "arguments": "{\"a\": 1}"}</tool_call>"#;
    check(ToolParser::Hermes, text, "", &[("add", json!({"a": 1}))]);
    check(
        ToolParser::Hermes,
        r#"<tool_call>{"name": "other"}</tool_call>"#,
        "",
        &[("other", json!({}))],
    );
    // No closing marker; no call; text that only resembles a marker.
    check(
        ToolParser::Hermes,
        r#"<tool_call>{"name": "add", "arguments": {}}"#,
        "",
        &[("add", json!({}))],
    );
    for content in [
        "Hello <tool> & <tool_cal> < ",
        "<tool_call>nothing</tool_call>",
        "a <tool_call> {\"x\": 1}",
        "\n",
        "",
    ] {
        check(ToolParser::Hermes, content, content, &[]);
    }
}

#[test]
fn a_call_that_is_cut_off_is_told_as_far_as_it_came() {
    let mut parser = CallParser::new(ToolParser::Hermes, &known());
    let answer = r#"<tool_call>{"name": "weather", "arguments": {"city": "Pa"#;
    let mut parts = pushed(answer, 3, |piece, parts| parser.push(piece, parts));
    parser.finish(&mut parts, true);
    assert_eq!(parts.calls[0].name.as_deref(), Some("weather"));
    let arguments: String = parts
        .calls
        .iter()
        .map(|call| call.arguments.as_str())
        .collect();
    assert_eq!(
        (arguments.as_str(), parts.content.as_str()),
        (r#"{"city": "Pa"#, "")
    );
}

#[test]
fn arguments_stream_as_they_are_written() {
    let mut parser = CallParser::new(ToolParser::Hermes, &known());
    let mut parts = Parts::default();
    parser.push(
        r#"<tool_call>{"name": "weather", "arguments": {"city":"#,
        &mut parts,
    );
    assert_eq!(
        parts.calls,
        [CallDelta {
            index: 0,
            name: Some("weather".into()),
            arguments: r#"{"city":"#.into()
        }]
    );
    let mut parts = Parts::default();
    parser.push(r#" "Par"#, &mut parts);
    assert_eq!(
        parts.calls,
        [CallDelta {
            index: 0,
            name: None,
            arguments: r#" "Par"#.into()
        }]
    );
}

#[test]
fn qwen_coder() {
    let call = "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n\
                <parameter=code>\n75\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>";
    check(
        ToolParser::Hermes,
        call,
        "",
        &[("weather", json!({"city": "Paris", "code": "75", "days": 3}))],
    );
    check(
        ToolParser::Hermes,
        "<tool_call><b>bold</b>",
        "<tool_call><b>bold</b>",
        &[],
    );
}

#[test]
fn glm() {
    let call = "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>code</arg_key>\n\
                <arg_value>75</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>";
    let arguments = json!({"city": "Paris", "code": "75", "days": 3});
    check(ToolParser::Glm, call, "", &[("weather", arguments.clone())]);
    let tight = call.replace('\n', "");
    check(
        ToolParser::Glm,
        &format!("I look.\n{tight}\n{call}"),
        "I look.",
        &[("weather", arguments.clone()), ("weather", arguments)],
    );
    check(
        ToolParser::Glm,
        "<tool_call>add</tool_call>",
        "",
        &[("add", json!({}))],
    );
    check(
        ToolParser::Glm,
        r#"<tool_call>{"name": "add"}</tool_call>"#,
        "",
        &[("add", json!({}))],
    );
    // Without GLM's form, a bare name is no call.
    check(
        ToolParser::Hermes,
        "<tool_call>add</tool_call>",
        "<tool_call>add</tool_call>",
        &[],
    );
}

#[test]
fn seed_oss() {
    let call = "<seed:tool_call>\n<function=weather>\n<parameter=city>Paris</parameter>\n</function>\n\
                </seed:tool_call>";
    check(
        ToolParser::SeedOss,
        call,
        "",
        &[("weather", json!({"city": "Paris"}))],
    );
    check(ToolParser::SeedOss, "<tool_call>{}", "<tool_call>{}", &[]);
}

/// What the templates of today's families hold, and the formats that follow from it. Of families whose markers are not
/// known, the template decides: without any marker of a known format, calls are JSON and there is no reasoning.
#[test]
fn templates_decide() {
    let table = [
        (
            "Gemma 4",
            "<|tool_call>call:f{}<tool_call|> <|channel>thought",
            ToolParser::Gemma4,
            ReasoningParser::Gemma,
        ),
        (
            "GLM 4.5",
            "<think> <tool_call>f <arg_key> <arg_value>",
            ToolParser::Glm,
            ReasoningParser::Think,
        ),
        (
            "Mistral 3",
            "[TOOL_CALLS]f[ARGS]{} [THINK]",
            ToolParser::Mistral,
            ReasoningParser::Mistral,
        ),
        (
            "Granite 4",
            "<tool_call>{}</tool_call>",
            ToolParser::Hermes,
            ReasoningParser::None,
        ),
        (
            "EXAONE 4",
            "<think> <tool_call>{}</tool_call>",
            ToolParser::Hermes,
            ReasoningParser::Think,
        ),
        (
            "Seed-OSS",
            "<seed:think> <seed:tool_call>",
            ToolParser::SeedOss,
            ReasoningParser::Seed,
        ),
        (
            "LFM2",
            "<|tool_list_start|>[{}]<|tool_list_end|>",
            ToolParser::Lfm2,
            ReasoningParser::None,
        ),
        (
            "Qwen 3.5",
            "<think> <tool_call><function=f>",
            ToolParser::Hermes,
            ReasoningParser::Think,
        ),
        (
            "Hunyuan",
            "<think> <answer>",
            ToolParser::Json,
            ReasoningParser::Hunyuan,
        ),
        (
            "unknown",
            "{{ messages }}",
            ToolParser::Json,
            ReasoningParser::None,
        ),
    ];
    for (family, template, tools, reasoning) in table {
        assert_eq!(ToolParser::of_template(template), tools, "{family}");
        assert_eq!(
            ReasoningParser::of_template(template),
            reasoning,
            "{family}"
        );
    }
    for name in ToolParser::NAMES {
        name.parse::<ToolParser>().expect("a name is accepted");
    }
    for name in ReasoningParser::NAMES {
        name.parse::<ReasoningParser>().expect("a name is accepted");
    }
}

#[test]
fn llama() {
    let call = format!(r#"{{"name": "weather", "parameters": {PARIS}}}"#);
    check(ToolParser::Llama3Json, &call, "", &[paris()]);
    check(
        ToolParser::Llama3Json,
        &format!("<|python_tag|>{call}; {call}"),
        "",
        &[paris(), paris()],
    );
    check(
        ToolParser::Llama3Json,
        r#"{"type": "function", "name": "add", "parameters": {}}"#,
        "",
        &[("add", json!({}))],
    );
    // JSON that is not a call.
    for content in [
        "Hello",
        r#"{"answer": 42}"#,
        r#"{"name": "Bob", "age": 5}"#,
        "[1, 2]",
        "{",
        "<|py",
        "{\"name\": \"Bob\"} x",
    ] {
        check(ToolParser::Llama3Json, content, content, &[]);
    }
}

#[test]
fn mistral() {
    let list = format!(
        r#"[TOOL_CALLS] [{{"name": "weather", "arguments": {PARIS}}}, {{"name": "add", "arguments": {{}}}}]"#
    );
    check(
        ToolParser::Mistral,
        &list,
        "",
        &[paris(), ("add", json!({}))],
    );
    let named =
        format!("[TOOL_CALLS]weather[ARGS]{PARIS}[TOOL_CALLS]add[CALL_ID]abc123def[ARGS]{{}}");
    check(
        ToolParser::Mistral,
        &named,
        "",
        &[paris(), ("add", json!({}))],
    );
    check(
        ToolParser::Mistral,
        &format!("I look. [TOOL_CALLS]weather{PARIS}"),
        "I look.",
        &[paris()],
    );
    check(
        ToolParser::Mistral,
        "Just [TOOL] text",
        "Just [TOOL] text",
        &[],
    );
}

#[test]
fn gemma() {
    let call = "<start_function_call>call:weather{city:<escape>Paris, {\"x\"}<escape>,days:3,\
                deep:{list:[1,true,<escape>a<escape>]}}<end_function_call>";
    let arguments = json!({"city": "Paris, {\"x\"}", "days": 3, "deep": {"list": [1, true, "a"]}});
    check(
        ToolParser::Gemma,
        call,
        "",
        &[("weather", arguments.clone())],
    );
    let four = call
        .replace("<start_function_call>", "<|tool_call>")
        .replace("<end_function_call>", "<tool_call|>");
    let four = four.replace("<escape>", "<|\"|>");
    check(
        ToolParser::Gemma4,
        &format!("{four}{four}"),
        "",
        &[("weather", arguments.clone()), ("weather", arguments)],
    );
    check(
        ToolParser::Gemma,
        "<start_function_call>no call",
        "<start_function_call>no call",
        &[],
    );
}

#[test]
fn lfm2() {
    let call = |calls: &str| format!("<|tool_call_start|>{calls}<|tool_call_end|>");
    let text = r#"[weather(city='Pa"ris', code="\u00e9\\'\n", days=3), add(a=-1.5e3, b=[1, (True,)], c={"k": None})]"#;
    let weather = json!({"city": "Pa\"ris", "code": "é\\'\n", "days": 3});
    let add = json!({"a": -1500.0, "b": [1, [true]], "c": {"k": null}});
    check(
        ToolParser::Lfm2,
        &format!("I look. {}", call(text)),
        "I look.",
        &[("weather", weather), ("add", add)],
    );
    check(
        ToolParser::Lfm2,
        &call("[add()]"),
        "",
        &[("add", json!({}))],
    );
    check(
        ToolParser::Lfm2,
        &call("add(a=False)"),
        "",
        &[("add", json!({"a": false}))],
    );
    for other in [
        "no call",
        "[add(1)]",
        "[add(a=)]",
        "[add(a=1]",
        "[add(a=x)]",
    ] {
        check(ToolParser::Lfm2, &call(other), &call(other), &[]);
    }
    check(
        ToolParser::Lfm2,
        &call("[add(a=1)] and"),
        "and",
        &[("add", json!({"a": 1}))],
    );
}

#[test]
fn plain_json() {
    let one = format!(r#"{{"name": "weather", "arguments": {PARIS}}}"#);
    check(ToolParser::Json, &one, "", &[paris()]);
    check(
        ToolParser::Json,
        &format!("[{one}, {one}]"),
        "",
        &[paris(), paris()],
    );
    check(
        ToolParser::Json,
        "[{\"title\": \"x\"}]",
        "[{\"title\": \"x\"}]",
        &[],
    );
}

fn harmony(answer: &str, size: usize) -> Parts {
    let mut parser = Harmony::new(
        Start {
            stage: Stage::Undecided,
            is_blank: true,
        },
        known(),
    );
    let mut all = pushed(answer, size, |piece, parts| parser.push(piece, parts));
    parser.finish(&mut all, false);
    all
}

#[test]
fn harmony_has_reasoning_calls_and_an_answer() {
    let call = "<|channel|>analysis<|message|>They want < weather.<|end|><|start|>assistant<|channel|>commentary \
                to=functions.weather <|constrain|>json<|message|>{\"city\": \"Paris\"}<|call|>";
    let answer = "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant\
        <|channel|>final<|message|>It is <b>.<|return|>";
    for size in [1, 2, 7, 1000] {
        let parts = harmony(call, size);
        assert_eq!(parts.reasoning, "They want < weather.");
        assert_eq!(
            told(&parts),
            (
                String::new(),
                vec![("weather".into(), json!({"city": "Paris"}))]
            )
        );
        let parts = harmony(answer, size);
        assert_eq!(
            (parts.reasoning.as_str(), parts.content.as_str()),
            ("Easy.", "It is <b>.")
        );
        assert_eq!(harmony("no header", size).content, "no header");
    }
    let other = "<|start|>assistant to=functions.add<|channel|>commentary<|message|>{}<|call|>";
    assert_eq!(told(&harmony(other, 3)).1, [("add".to_owned(), json!({}))]);
}

fn split(answer: &str, is_begun: bool, size: usize) -> (String, String) {
    let stage = if is_begun {
        Stage::Reasoning
    } else {
        Stage::Undecided
    };
    let mut splitter = Splitter::new(
        ReasoningParser::Think,
        Start {
            stage,
            is_blank: true,
        },
    )
    .expect("it has tags");
    let (mut reasoning, mut content) = (String::new(), String::new());
    let characters: Vec<char> = answer.chars().collect();
    for piece in characters.chunks(size) {
        content.push_str(&splitter.push(&piece.iter().collect::<String>(), &mut reasoning));
    }
    content.push_str(&splitter.finish(&mut reasoning, false));
    (reasoning, content)
}

#[test]
fn a_tag_of_a_token_and_a_word_starts_with_the_token() {
    let json = String::from_utf8_lossy(demo::TOKENIZER_JSON).replace("<think>", "<|channel>");
    let text = TextModel::from_parts(Some(json.as_bytes()), None, None)
        .expect("the demo's tokenizer, renamed");
    let tokenizer = text.tokenizer.expect("it has one");
    let start = Start {
        stage: Stage::Undecided,
        is_blank: true,
    };
    let mut tracker = ReasoningTracker::new(ReasoningParser::Gemma, &tokenizer, start);
    let open = tokenizer.id_of("<|channel>").expect("a token");
    assert_eq!(tracker.state(), (true, Some(open)));
    let ids = [
        vec![open],
        tokenizer
            .encode("thought\nHm.<channel|>", false)
            .expect("it encodes"),
    ]
    .concat();
    assert!(
        ids.iter().all(|&id| !tracker.accept(id)),
        "the grammar waits"
    );
    assert_eq!(tracker.state(), (true, None));
}

#[test]
fn reasoning_come_first_or_not_at_all() {
    for size in [1, 2, 3, 7, 1000] {
        let split = |answer, is_begun| split(answer, is_begun, size);
        let own = |reasoning: &str, answer: &str| (reasoning.to_owned(), answer.to_owned());
        assert_eq!(
            split("<think>\nHm </thin.\n</think>\n\nYes.", false),
            own("Hm </thin.", "Yes.")
        );
        assert_eq!(
            split("Hm.\n</think>\n\nYes <think> no", true),
            own("Hm.", "Yes <think> no")
        );
        assert_eq!(
            split("Yes <think>x</think>", false),
            own("", "Yes <think>x</think>")
        );
        assert_eq!(split("<think>never ends", false), own("never ends", ""));
        assert_eq!(split("<thi", false), own("", "<thi"));
        assert_eq!(split("", true), own("", ""));
    }
}

proptest! {
    /// For any input, nothing panics, arguments are JSON, and the result does not depend on where the text is split.
    #[test]
    fn any_text_in_any_pieces(
        words in proptest::collection::vec(proptest::sample::select(vec![
            "<tool_call>", "</tool_call>",
            "{\"name\": \"add\"", ", \"arguments\": {", "}", "\"", "x", " ", "\n", "[", "]",
            "[TOOL_CALLS]", "[ARGS]", "add", "call:add{", "<|channel|>", "<|message|>", "final", "to=functions.add",
            "<|call|>", "<escape>",
            "<start_function_call>", "<end_function_call>", "<function=add>", "</function>", "é",
            "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<seed:tool_call>", "</seed:tool_call>",
            "<parameter=a>", "</parameter>", "\\", "}}", "```", "json\n", "{\"x\": ",
            "[add(", "a='", "', ", "')", ":add{a:", "b=[", "{'x': ",
            "write", "\n<parameter=mode>", "<parameter=path\n",
            "<function=write\n", "{\"a\": ", "tru", "<arg_key>mode</arg_key>", ", ", "[CALL_ID]x",
            "<|tool_call>", "<tool_call|>", "<|\"|>", "<|tool_call_start|>", "<|tool_call_end|>", "add(", "a=", ")",
        ]), 0..24),
        size in 1_usize..9,
    ) {
        let text = words.concat();
        use ToolParser::{Gemma, Gemma4, Glm, Hermes, Json, Lfm2, Llama3Json, Mistral, SeedOss};
        for form in [Hermes, Llama3Json, Mistral, Gemma, Gemma4, Glm, SeedOss, Lfm2, Json] {
            let (whole, cut) = (read(form, &text, usize::MAX), read(form, &text, size));
            let arguments = |parts: &Parts| {
                let text = |call: &CallDelta| (call.index, call.name.clone(), call.arguments.clone());
                parts.calls.iter().map(text).collect::<Vec<_>>()
            };
            prop_assert_eq!(&whole.content, &cut.content, "{:?} of {}", form, text);
            prop_assert_eq!(arguments(&whole), arguments(&cut), "{:?} of {}", form, text);
            for (_, name, arguments) in arguments(&whole) {
                let is_json = serde_json::from_str::<Value>(&arguments).is_ok();
                prop_assert!(name.is_some() && is_json, "{:?} of {}: {}", form, text, arguments);
            }
        }
        let (whole, cut) = (harmony(&text, usize::MAX), harmony(&text, size));
        prop_assert_eq!((whole.content, whole.reasoning), (cut.content, cut.reasoning));
    }
}

/// Clients parse arguments as JSON, which an empty text is not.
#[test]
fn a_call_with_blank_arguments_has_an_empty_object() {
    for blank in ["\"\"", "\" \"", "null", "{}"] {
        let call = format!("<tool_call>{{\"name\": \"add\", \"arguments\": {blank}}}</tool_call>");
        check(ToolParser::Hermes, &call, "", &[("add", json!({}))]);
        let list = format!("[TOOL_CALLS][{{\"name\": \"add\", \"arguments\": {blank}}}]");
        check(ToolParser::Mistral, &list, "", &[("add", json!({}))]);
    }
    check(
        ToolParser::Mistral,
        "[TOOL_CALLS]add[ARGS]",
        "",
        &[("add", json!({}))],
    );
    check(
        ToolParser::Mistral,
        "[TOOL_CALLS]add[CALL_ID]abc123def[ARGS] ",
        "",
        &[("add", json!({}))],
    );
    let two = "[TOOL_CALLS]add[ARGS][TOOL_CALLS]weather[ARGS]{\"city\": \"Oslo\"}";
    check(
        ToolParser::Mistral,
        two,
        "",
        &[("add", json!({})), ("weather", json!({"city": "Oslo"}))],
    );
    for body in ["", " ", "\n", "{}"] {
        let answer = format!("<|channel|>commentary to=functions.add<|message|>{body}");
        for end in ["", "<|call|>"] {
            let (content, calls) = told(&harmony(&format!("{answer}{end}"), 3));
            assert_eq!(
                (content.as_str(), calls),
                ("", vec![("add".to_owned(), json!({}))]),
                "{body:?} {end}"
            );
        }
    }
}
