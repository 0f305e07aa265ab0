//! Answers in every format that are cut at every place.

mod thoughts;

use super::reasoning::Stage;
use super::*;
use proptest::prelude::*;
use serde_json::json;

/// What the answers think, say and call.
const THOUGHT: &str = "Hm.";
const TEXT: &str = "I look.";
const PARIS: &str = r#"{"city": "Paris"}"#;

/// Answers with thoughts, a text and two calls, as far as the format has them.
fn answers() -> Vec<(ToolParser, ReasoningParser, String)> {
    use ReasoningParser as R;
    use ToolParser as T;
    let named = |key: &str| format!(r#"{{"name": "weather", "{key}": {PARIS}}}"#);
    let (call, add) = (
        named("arguments"),
        r#"{"arguments": {"a": [1, {"b": 2}]}, "name": "add"}"#,
    );
    let tags = "<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>";
    let keys = "weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n";
    let lines = |open: &str, close: &str, calls: [&str; 2]| {
        format!(
            "{TEXT}\n{open}\n{}\n{close}\n{open}\n{}\n{close}",
            calls[0], calls[1]
        )
    };
    let hermes = |calls| lines("<tool_call>", "</tool_call>", calls);
    let gemma = |[open, close, quote]: [&str; 3]| {
        format!(
            "{TEXT}{open}call:weather{{city:{quote}Paris{quote}}}{close}{open}call:add{{}}{close}"
        )
    };
    let thought = |open: &str, close: &str, rest: String| format!("{open}{THOUGHT}{close}{rest}");
    let harmony = format!(
        "<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant<|channel|>commentary<|message|>{TEXT}<|end|>\
         <|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{PARIS}<|call|>\
         <|start|>assistant to=functions.add<|channel|>commentary<|message|>{{}}<|call|>"
    );
    let seed = lines(
        "<seed:tool_call>",
        "</seed:tool_call>",
        [tags, "<function=add>\n</function>"],
    );
    let brackets = format!(
        "{TEXT}[TOOL_CALLS]weather[CALL_ID]abc123def[ARGS]{PARIS}[TOOL_CALLS]add[ARGS]{{}}"
    );
    let mut answers = vec![
        (
            T::Hermes,
            R::Think,
            thought("<think>\n", "\n</think>\n\n", hermes([&call, add])),
        ),
        (
            T::Hermes,
            R::None,
            hermes([tags, "<function=add>\n</function>"]),
        ),
        (
            T::Glm,
            R::Think,
            thought("<think>", "</think>", hermes([keys, "add"])),
        ),
        (
            T::SeedOss,
            R::Seed,
            thought("<seed:think>", "</seed:think>", seed),
        ),
        (
            T::Mistral,
            R::Mistral,
            thought(
                "[THINK]",
                "[/THINK]",
                format!("{TEXT}[TOOL_CALLS] [{call}, {add}]"),
            ),
        ),
        (T::Mistral, R::None, brackets),
        (
            T::Gemma,
            R::None,
            gemma(["<start_function_call>", "<end_function_call>", "<escape>"]),
        ),
        (
            T::Gemma4,
            R::Gemma,
            thought(
                "<|channel>thought\n",
                "<channel|>",
                gemma(["<|tool_call>", "<tool_call|>", "<|\"|>"]),
            ),
        ),
        (
            T::Lfm2,
            R::None,
            format!(
                "{TEXT}<|tool_call_start|>[weather(city=\"Paris\"), add(a=[1, True])]<|tool_call_end|>"
            ),
        ),
        (T::Harmony, R::Harmony, harmony),
        (
            T::Harmony,
            R::Harmony,
            format!(
                " to=functions.weather<|channel|>commentary json<|message|>{PARIS}<|call|>\
                 <|start|>assistant to=functions.add<|channel|>commentary<|message|>{{}}<|call|>"
            ),
        ),
        (
            T::Llama3Json,
            R::None,
            format!(
                "<|python_tag|>{}; {}",
                named("parameters"),
                add.replace("arguments", "parameters")
            ),
        ),
        (T::Json, R::None, format!("[{call}, {add}]")),
    ];
    answers.extend(answers_in_tags(&format!("[{call}, {add}]")));
    answers
}

/// Answers that stand between tags, beside the thoughts.
fn answers_in_tags(list: &str) -> [(ToolParser, ReasoningParser, String); 5] {
    use ReasoningParser as R;
    use ToolParser as T;
    let action = list.replace("\"name\"", "\"tool_name\"");
    let named = format!("[{{\"weather\": {PARIS}}}, {{\"add\": {{}}}}]");
    let hermes = "<tool_call>{\"name\": \"weather\"}</tool_call>\n<tool_call>{\"name\": \"add\"}</tool_call>";
    [
        (
            T::Hunyuan,
            R::Hunyuan,
            format!(
                "<think>\n{THOUGHT}</think>\n<answer>\n{TEXT}\n<tool_calls>{list}</tool_calls>\n</answer>"
            ),
        ),
        (
            T::Hermes,
            R::Ernie,
            format!("<think>{THOUGHT}</think>\n\n<response>\n{TEXT}\n</response>\n{hermes}"),
        ),
        (
            T::CommandR7b,
            R::Command,
            format!(
                "<|START_THINKING|>{THOUGHT}<|END_THINKING|><|START_RESPONSE|>{TEXT}<|END_RESPONSE|>\
                 <|START_ACTION|>{action}<|END_ACTION|>"
            ),
        ),
        (
            T::Granite,
            R::Granite,
            format!(
                "Here is my thought process:\n{THOUGHT}Here is my response:\n{TEXT}<|tool_call|>{list}"
            ),
        ),
        (
            T::Apertus,
            R::Apertus,
            format!(
                "<|inner_prefix|>{THOUGHT}<|inner_suffix|>{TEXT}<|tools_prefix|>{named}<|tools_suffix|>"
            ),
        ),
    ]
}

/// Wherever an answer is cut, its content is some of its text, and nothing of the markup of calls and thoughts.
#[test]
fn a_cut_answer_shows_no_markup() {
    let functions = vec![json!({"name": "weather"}), json!({"name": "add"})];
    let callable = Arc::new(ToolSet::new(functions));
    let tools = ToolChoice {
        shown: Some(json!([])),
        callable,
        ..ToolChoice::default()
    };
    for (form, reasoning, answer) in answers() {
        let text = if answer.contains(TEXT) { TEXT } else { "" };
        let ends = answer
            .char_indices()
            .map(|(at, _)| at)
            .chain([answer.len()]);
        for (end, size) in ends.flat_map(|end| [(end, 1), (end, 3), (end, answer.len())]) {
            let start = Start {
                stage: Stage::Undecided,
                is_blank: true,
            };
            let mut parser = AnswerParser::new(
                AnswerFormat {
                    tools: form,
                    reasoning,
                },
                start,
                &tools,
            );
            let mut all = Parts::default();
            let characters: Vec<char> = answer[..end].chars().collect();
            for piece in characters.chunks(size) {
                let mut parts = Parts::default();
                parser.push(&piece.iter().collect::<String>(), &mut parts);
                all.extend(parts);
            }
            let mut rest = Parts::default();
            parser.finish(&mut rest, true);
            all.extend(rest);
            let what = format!("{form:?} in pieces of {size}: {:?}", &answer[..end]);
            assert!(
                text.starts_with(all.content.trim_end()),
                "{what} shows {:?}",
                all.content
            );
            assert!(
                THOUGHT.starts_with(all.reasoning.trim_end()),
                "{what} thinks {:?}",
                all.reasoning
            );
            if end == answer.len() {
                let names: Vec<_> = all
                    .calls
                    .iter()
                    .filter_map(|call| call.name.as_deref())
                    .collect();
                assert_eq!(
                    (all.content.as_str(), names),
                    (text, vec!["weather", "add"]),
                    "{what}"
                );
            }
        }
    }
}

/// Thoughts and markup contain what ends lines and sentences, and clients send such texts as stop strings.
#[test]
fn stop_strings_see_the_content_and_neither_thoughts_nor_markup() {
    let functions = vec![json!({"name": "weather"}), json!({"name": "add"})];
    let callable = Arc::new(ToolSet::new(functions));
    let tools = ToolChoice {
        shown: Some(json!([])),
        callable,
        ..ToolChoice::default()
    };
    let hidden = [
        "Hm.",
        "</think>",
        "assistant",
        "<|channel|>",
        "message",
        "name",
        "weather",
        "Paris",
        "\n",
        "{",
        "[",
    ];
    for (form, reasoning, answer) in answers() {
        for stop in hidden {
            let (parts, found) = stopped((form, reasoning), &tools, &answer, stop);
            let names: Vec<_> = parts
                .calls
                .iter()
                .filter_map(|call| call.name.as_deref())
                .collect();
            assert_eq!(
                (names, found),
                (vec!["weather", "add"], None),
                "{form:?} with the stop string {stop:?}"
            );
        }
        if answer.contains(TEXT) {
            let (parts, found) = stopped((form, reasoning), &tools, &answer, "look");
            assert_eq!(
                (parts.content.as_str(), found.as_deref()),
                ("I ", Some("look")),
                "{form:?}"
            );
            assert!(
                parts.calls.is_empty(),
                "{form:?} goes on after its stop string"
            );
        }
    }
}

/// The parts of an answer until the stop string, and the stop string if it was found.
fn stopped(
    (form, reasoning): (ToolParser, ReasoningParser),
    tools: &ToolChoice,
    answer: &str,
    stop: &str,
) -> (Parts, Option<String>) {
    let start = Start {
        stage: Stage::Undecided,
        is_blank: true,
    };
    let parser = AnswerParser::new(
        AnswerFormat {
            tools: form,
            reasoning,
        },
        start,
        tools,
    );
    let mut parser = parser.stopping_at(StopStrings::new(&[stop.to_owned()]));
    let mut parts = Parts::default();
    for character in answer.chars() {
        parser.push(&character.to_string(), &mut parts);
        if parser.is_done() {
            break;
        }
    }
    parser.finish(&mut parts, false);
    let found = parser.stop().map(str::to_owned);
    (parts, found)
}

proptest! {
    /// Nothing depends on where an answer is split, whatever tags and markers it has in whatever order.
    #[test]
    fn any_answer_in_any_pieces(
        words in proptest::collection::vec(proptest::sample::select(vec![
            "<think>", "</think>", "[THINK]", "[/THINK]", "<|channel>", "thought", "<channel|>", "\n", " ", "x", "<",
            "<tool_call>", "</tool_call>", "{\"name\": \"add\", \"arguments\": {", "\"a\": ", "1", "\"", "}", "}}",
            "<function=add>", "<parameter=a>", "</parameter>", "</function>", "add", "[TOOL_CALLS]", "[ARGS]", "[",
            "<|tool_call>", "call:add{", "a:", "<|\"|>", "<tool_call|>", "<|tool_call_start|>", "[add(", "a=", ")]",
            "<|tool_call_end|>", "<arg_key>a</arg_key>", "<arg_value>", "</arg_value>", "<|python_tag|>",
        ]), 0..20),
        size in 1_usize..9,
        stage in proptest::sample::select(vec![Stage::Undecided, Stage::Reasoning]),
    ) {
        use ToolParser::{Gemma4, Glm, Hermes, Json, Lfm2, Llama3Json, Mistral};
        let answer = words.concat();
        for reasoning in [ReasoningParser::Think, ReasoningParser::Mistral, ReasoningParser::Gemma] {
            for tools in [Hermes, Glm, Mistral, Gemma4, Lfm2, Llama3Json, Json] {
                let format = (tools, reasoning);
                let whole = thoughts::parts(format, stage, &answer, usize::MAX);
                let cut = thoughts::parts(format, stage, &answer, size);
                prop_assert_eq!(whole, cut, "{:?} of {}", format, answer);
            }
        }
    }
}
