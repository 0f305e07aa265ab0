//! Formats that differ in their markers only: the same promises for each of them.

use super::{check, known, read, told};
use crate::text::answer::tools::{CallDelta, CallParser, Parts, ToolParser};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::HashSet;

/// A format, and how it writes calls.
pub(in crate::text::answer::tools) struct Written {
    pub(in crate::text::answer::tools) parser: ToolParser,
    pub(in crate::text::answer::tools) calls: fn(&[(&str, Value)]) -> String,
    /// Whether text may stand before calls.
    follows_text: bool,
}

pub(in crate::text::answer::tools) const FORMATS: [Written; 19] = [
    written(ToolParser::DeepSeekV3, true, |calls| {
        let call = |(name, arguments): &(&str, Value)| {
            format!(
                "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"
            )
        };
        let calls = joined(calls, "\n", call);
        format!("<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>")
    }),
    written(ToolParser::DeepSeekV31, true, |calls| {
        let call = |(name, arguments): &(&str, Value)| {
            format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>")
        };
        let calls = joined(calls, "", call);
        format!("<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>")
    }),
    written(ToolParser::Granite, true, |calls| {
        format!("<|tool_call|>{}", list(calls, "name", "arguments"))
    }),
    written(ToolParser::Granite20b, true, |calls| {
        let object =
            |call: &(&str, Value)| format!("<function_call> {}", object(call, "name", "arguments"));
        joined(calls, " ", object)
    }),
    written(ToolParser::Pythonic, false, |calls| {
        format!("[{}]", joined(calls, ", ", python))
    }),
    written(ToolParser::Phi4Mini, true, |calls| {
        format!("functools{}", list(calls, "name", "arguments"))
    }),
    written(ToolParser::Olmo3, true, |calls| {
        let calls = joined(calls, "\n", python);
        format!("<function_calls>\n{calls}\n</function_calls>")
    }),
    written(ToolParser::Xlam, false, |calls| {
        list(calls, "name", "arguments")
    }),
    written(ToolParser::Hunyuan, true, |calls| {
        let list = list(calls, "name", "arguments");
        format!("<tool_calls>{list}</tool_calls>")
    }),
    written(ToolParser::InternLm, true, |calls| {
        let call = |call: &(&str, Value)| {
            let object = object(call, "name", "parameters");
            format!("<|action_start|><|plugin|>\n{object}<|action_end|>")
        };
        joined(calls, "", call)
    }),
    written(ToolParser::Nemotron, true, |calls| {
        let list = list(calls, "name", "arguments");
        format!("<TOOLCALL>{list}</TOOLCALL>")
    }),
    written(ToolParser::CommandR7b, true, |calls| {
        let list = list(calls, "tool_name", "parameters");
        let list = list.replace("{\"tool_name\"", "{\"tool_call_id\": \"0\", \"tool_name\"");
        format!("<|START_ACTION|>{list}<|END_ACTION|>")
    }),
    written(ToolParser::CommandR, true, |calls| {
        let list = list(calls, "tool_name", "parameters");
        format!("Action: ```json\n{list}\n```")
    }),
    written(ToolParser::Apertus, true, |calls| {
        let call = |(name, arguments): &(&str, Value)| format!("{{{}: {arguments}}}", json!(name));
        let calls = joined(calls, ", ", call);
        format!("<|tools_prefix|>[{calls}]<|tools_suffix|>")
    }),
    written(ToolParser::KimiK2, true, |calls| {
        let call = |(name, arguments): &(&str, Value)| {
            format!(
                "<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
            )
        };
        let calls = joined(calls, "", call);
        format!("<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>")
    }),
    written(ToolParser::MiniMaxM2, true, |calls| {
        let value = |(key, value): (&String, &Value)| {
            let text = value.as_str().map_or(value.to_string(), str::to_owned);
            format!("<parameter name=\"{key}\">{text}</parameter>\n")
        };
        let calls = joined(calls, "\n", |call| invoke(call, "", value));
        format!("<minimax:tool_call>\n{calls}\n</minimax:tool_call>")
    }),
    written(ToolParser::DeepSeekV32, true, |calls| {
        dsml(calls, "function_calls")
    }),
    written(ToolParser::DeepSeekV4, true, |calls| {
        dsml(calls, "tool_calls")
    }),
    written(ToolParser::Llama4Json, false, |calls| {
        joined(calls, "; ", |call| object(call, "name", "parameters"))
    }),
];

const fn written(
    parser: ToolParser,
    follows_text: bool,
    calls: fn(&[(&str, Value)]) -> String,
) -> Written {
    Written {
        parser,
        calls,
        follows_text,
    }
}

fn joined<T>(items: &[T], between: &str, write: impl Fn(&T) -> String) -> String {
    items.iter().map(write).collect::<Vec<_>>().join(between)
}

fn object((name, arguments): &(&str, Value), name_key: &str, key: &str) -> String {
    format!("{{\"{name_key}\": \"{name}\", \"{key}\": {arguments}}}")
}

fn list(calls: &[(&str, Value)], name: &str, key: &str) -> String {
    format!("[{}]", joined(calls, ", ", |call| object(call, name, key)))
}

/// A call as Python writes it.
fn python((name, arguments): &(&str, Value)) -> String {
    let arguments: Vec<_> = pairs(arguments)
        .map(|(key, value)| format!("{key}={}", literal(value)))
        .collect();
    format!("{name}({})", arguments.join(", "))
}

fn literal(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Array(items) => format!("[{}]", joined(items, ", ", literal)),
        Value::Object(map) => {
            let pair =
                |(key, value): (&String, &Value)| format!("{}: {}", json!(key), literal(value));
            format!(
                "{{{}}}",
                map.iter().map(pair).collect::<Vec<_>>().join(", ")
            )
        }
        other => other.to_string(),
    }
}

fn dsml(calls: &[(&str, Value)], section: &str) -> String {
    let value = |(key, value): (&String, &Value)| {
        let text = value.as_str().map_or(value.to_string(), str::to_owned);
        let is_text = value.is_string();
        format!(
            "<｜DSML｜parameter name=\"{key}\" string=\"{is_text}\">{text}</｜DSML｜parameter>\n"
        )
    };
    let calls = joined(calls, "\n", |call| invoke(call, "｜DSML｜", value));
    format!("<｜DSML｜{section}>\n{calls}\n</｜DSML｜{section}>")
}

fn invoke(
    (name, arguments): &(&str, Value),
    mark: &str,
    value: impl Fn((&String, &Value)) -> String,
) -> String {
    let values: String = pairs(arguments).map(value).collect();
    format!("<{mark}invoke name=\"{name}\">\n{values}</{mark}invoke>")
}

fn pairs(arguments: &Value) -> impl Iterator<Item = (&String, &Value)> {
    arguments.as_object().expect("arguments").iter()
}

/// Checks the same result for every piece size, and for every place of one cut.
fn check_cut(parser: ToolParser, answer: &str, content: &str, calls: &[(&str, Value)]) {
    check(parser, answer, content, calls);
    let whole = told(&read(parser, answer, usize::MAX));
    for (at, _) in answer.char_indices() {
        let mut reader = CallParser::new(parser, &known());
        let mut parts = Parts::default();
        for piece in [&answer[..at], &answer[at..]] {
            let mut more = Parts::default();
            reader.push(piece, &mut more);
            parts.extend(more);
        }
        let mut last = Parts::default();
        reader.finish(&mut last, false);
        parts.extend(last);
        assert_eq!(told(&parts), whole, "{parser:?}, cut at {at}: {answer}");
    }
}

/// A text that has the marks of all notations.
const ODD: &str = "Paris \"{[(]})\" 'a' \\ 🙂\n``` , </invoke> </parameter> <|tool_call|> <tool_calls> \
                   <｜tool▁call▁end｜> functools[ <|END_ACTION|> <function_calls> end";

#[test]
fn calls_are_read_wherever_the_text_is_cut() {
    let nested = json!({"list": [1, true, null, {"deep": "]})\""}], "empty": {}});
    let (plain, odd) = (
        json!({"city": "Paris"}),
        json!({"city": ODD, "code": "a\tb"}),
    );
    let write = json!({"path": "a.py", "content": nested, "mode": "w"});
    let tests = [
        vec![("weather", plain)],
        vec![("add", json!({}))],
        vec![("weather", odd.clone())],
        vec![("write", write), ("add", json!({})), ("weather", odd)],
    ];
    for format in &FORMATS {
        for calls in &tests {
            check_cut(format.parser, &(format.calls)(calls), "", calls);
        }
    }
}

#[test]
fn text_around_calls_stays_content() {
    let calls = [("weather", json!({"city": "Oslo"})), ("add", json!({}))];
    for format in &FORMATS {
        let written = (format.calls)(&calls);
        if format.follows_text {
            let answer = format!("I look [here].\n\n{written}");
            check_cut(format.parser, &answer, "I look [here].", &calls);
            let answer = format!("I look [here].\n\n{written}\nThat is all, {{really}}.");
            check_cut(
                format.parser,
                &answer,
                "I look [here].That is all, {really}.",
                &calls,
            );
        }
        let answer = format!("\n{written}\n\n(Done.) {{\"a\": 1}}");
        check_cut(format.parser, &answer, "(Done.) {\"a\": 1}", &calls);
    }
}

#[test]
fn a_call_of_a_function_that_was_not_declared_is_content() {
    for format in &FORMATS {
        let other = (format.calls)(&[("other", json!({"city": "Oslo"}))]);
        check_cut(format.parser, &other, &other, &[]);
        let calls = [("add", json!({})), ("other", json!({"a": 1}))];
        let (said, made) = told(&read(format.parser, &(format.calls)(&calls), 3));
        assert_eq!(made, [("add".to_owned(), json!({}))], "{:?}", format.parser);
        assert!(said.contains("other"), "{:?}: {said}", format.parser);
    }
}

#[test]
fn what_only_resembles_a_call_is_content() {
    let texts = [
        "Use `<|tool_call|>` or functools, then a list.",
        "functools[1]",
        "[1, 2]",
        "[add]",
        "[]",
        "[add(1)]",
        "[add(a=b]",
        "{\"answer\": [1, {\"name\": \"add\"}]}",
        "```json\n{\"a\": 1}\n```",
        "<tool_calls>none</tool_calls>",
        "<function_calls>\nno call\n</function_calls>",
        "<function_calls>",
        "<minimax:tool_call> <invoke name",
        "<｜tool▁calls▁begin｜> <｜tool▁call",
        "<｜tool▁call▁begin｜>add",
        "<|tool_calls_section_begin|> and more",
        "<|tools_prefix|>[]<|tools_suffix|>",
        "<|tools_prefix|>[{\"x\": {}}]",
        "<|START_ACTION|>[{\"name\"",
        "Action: ```json",
        "\n",
        "",
    ];
    for text in texts {
        for format in &FORMATS {
            check_cut(format.parser, text, text, &[]);
        }
    }
}

#[test]
fn markers_around_no_calls_are_no_content() {
    for (parser, [open, close]) in [
        (
            ToolParser::MiniMaxM2,
            ["<minimax:tool_call>", "</minimax:tool_call>"],
        ),
        (
            ToolParser::DeepSeekV4,
            ["<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"],
        ),
        (
            ToolParser::DeepSeekV3,
            ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
        ),
        (
            ToolParser::KimiK2,
            ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"],
        ),
    ] {
        check_cut(parser, &format!("{open}{close}Hello."), "Hello.", &[]);
        check_cut(parser, &format!("Hello.\n{open}\n{close}"), "Hello.\n", &[]);
    }
}

#[test]
fn a_call_that_is_cut_off_shows_no_markup_in_any_format() {
    let calls = [("weather", json!({"city": "Oslo"})), ("add", json!({}))];
    for format in &FORMATS {
        let written = (format.calls)(&calls);
        for (at, _) in written.char_indices() {
            let mut reader = CallParser::new(format.parser, &known());
            let mut parts = Parts::default();
            reader.push(&written[..at], &mut parts);
            reader.finish(&mut parts, true);
            let begun = &written[..at];
            assert_eq!(parts.content, "", "{:?}: {begun}", format.parser);
        }
    }
}

/// A model may stop within a call. What is missing is added, or the text is content.
#[test]
fn arguments_of_a_call_that_stops_are_json_in_any_format() {
    let odd = json!({"city": ODD, "code": "x"});
    let write =
        json!({"path": "a.py", "content": {"list": [1, true, {"deep": "]})\""}]}, "mode": "w"});
    let calls = [("weather", odd), ("write", write)];
    for format in &FORMATS {
        let written = (format.calls)(&calls);
        for (at, _) in written.char_indices() {
            let (_, made) = told(&read(format.parser, &written[..at], 7));
            for (name, arguments) in made {
                assert!(
                    arguments.is_object(),
                    "{:?}, {name}: {arguments}",
                    format.parser
                );
            }
        }
    }
}

/// Models leave out markers, and write others than their template shows.
#[test]
fn calls_are_read_without_markers_that_may_be_missing() {
    let oslo = || vec![("weather", json!({"city": "Oslo"}))];
    let call = r#"{"name": "weather", "arguments": {"city": "Oslo"}}"#;
    let table = [
        (ToolParser::Granite, format!("<tool_call> [{call}]")),
        (ToolParser::Granite, format!("<tool_call>{call}</tool_call>")),
        (ToolParser::Granite, format!("<|tool_call|>{call}")),
        (ToolParser::Phi4Mini, format!("<|tool_call|>[{call}]<|/tool_call|>")),
        (ToolParser::Phi4Mini, format!("functools[{call}")),
        (ToolParser::Xlam, format!("```json\n[{call}]\n```")),
        (ToolParser::Xlam, format!("<tool_call>[{call}]</tool_call>")),
        (ToolParser::Hunyuan, format!("<tool_calls>\n{call}\n")),
        (ToolParser::InternLm, format!("<|action_start|> <|plugin|>{call}")),
        (
            ToolParser::Hunyuan,
            format!("<tool_calls>\n{call}\n</tool_calls>"),
        ),
        (ToolParser::Xlam, format!("</think>\n\n[{call}]")),
        (
            ToolParser::DeepSeekV31,
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Oslo\"}\n```".to_owned(),
        ),
        (
            ToolParser::DeepSeekV3,
            "<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Oslo\"}<｜tool▁call▁end｜>".to_owned(),
        ),
        (
            ToolParser::KimiK2,
            "<|tool_call_section_begin|>\n<|tool_call_begin|> functions.weather:12 <|tool_call_argument_begin|> \
             {\"city\": \"Oslo\"} <|tool_call_end|>"
                .to_owned(),
        ),
        (
            ToolParser::MiniMaxM2,
            "<invoke name=\"weather\"><parameter name=\"city\">Oslo</parameter></invoke>".to_owned(),
        ),
        (
            ToolParser::MiniMaxM2,
            "<minimax:tool_call><invoke name=\"weather\"><parameter name=\"city\">Oslo</invoke>".to_owned(),
        ),
        (
            ToolParser::Pythonic,
            "<|python_start|>weather(city='Oslo')<|python_end|>".to_owned(),
        ),
        (
            ToolParser::Llama4Json,
            format!("<|python_start|>{call}<|python_end|>"),
        ),
        (
            ToolParser::Olmo3,
            "<function_calls>[weather(city=\"Oslo\",)]".to_owned(),
        ),
    ];
    for (parser, answer) in table {
        check_cut(parser, &answer, "", &oslo());
    }
}

/// What stands in the templates of these families, or in those that vLLM has for them.
#[test]
fn the_format_is_found_in_the_template_of_each_family() {
    let table = [
        (
            "DeepSeek V3",
            "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + \
             '\\n' + '```json' + '\\n' + tool['function']['arguments'] + '\\n' + '```' + '<｜tool▁call▁end｜>'}}",
            "deepseek_v3",
        ),
        (
            "DeepSeek V3.1",
            "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'+ tool['function']['name'] + '<｜tool▁sep｜>' + \
             tool['function']['arguments'] + '<｜tool▁call▁end｜>'}}",
            "deepseek_v31",
        ),
        (
            "DeepSeek V3.2",
            "A block like:\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"$FUNCTION_NAME\">",
            "deepseek_v32",
        ),
        (
            "DeepSeek V3.2, with a variable",
            "{%- set dsml_token = \"｜DSML｜\" -%}{%- if message.tool_calls -%}<{{ dsml_token }}function_calls>",
            "deepseek_v32",
        ),
        (
            "DeepSeek V4",
            "A block like:\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"$TOOL_NAME\">",
            "deepseek_v4",
        ),
        (
            "Granite 3.3",
            "{{- '<|start_of_role|>available_tools<|end_of_role|>' }} respond with <|tool_call|> followed by a list",
            "granite",
        ),
        (
            "Granite 20B",
            "please output \\\"<function_call> {\\\"name\\\": \\\"no_function\\\"}\\\"",
            "granite-20b-fc",
        ),
        (
            "Llama 3.2, as in Python",
            "{{- \"<|start_header_id|>system<|end_header_id|>\\n\\n\" }} [func_name1(params_name1=params_value1), …]",
            "pythonic",
        ),
        (
            "Gemma 3, as in Python",
            "{{ '<start_of_turn>' + role + '\\n' -}} [func_name1(params_name1=params_value1), func_name2(params)]",
            "pythonic",
        ),
        (
            "Llama 4",
            "{{- '<|header_start|>assistant<|header_end|>\\n\\n' }} {{- '{\"name\": \"' + tool_call.name + '\", ' }}",
            "llama4_json",
        ),
        (
            "Llama 4, as in Python",
            "{{- \"<|header_start|>system<|header_end|>\" }} format: [func_name1(param1=value1), func_name2(...)]",
            "pythonic",
        ),
        (
            "OLMo 3",
            "{{- \"\\n<function_calls>\\nget_weather(city='New York')\\n</function_calls>\" }}",
            "olmo3",
        ),
        (
            "Phi-4-mini, vLLM's",
            "formatted as functools[{\"name\": [function name]}, ...]",
            "phi4_mini_json",
        ),
        (
            "Phi-4-mini",
            "{{ '<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>' }}",
            "phi4_mini_json",
        ),
        (
            "xLAM on Llama",
            "{{- \"<|start_header_id|>system\" }} You are developed by Salesforce xLAM team.",
            "xlam",
        ),
        (
            "Hunyuan",
            "{% set content = content + '<tool_calls>' + ns.tool_calls + '</tool_calls>' %}",
            "hunyuan_a13b",
        ),
        (
            "ERNIE 4.5",
            "{{- '<tool_call>\\n{\"name\": \"' + tool_call.name + '\", \"arguments\": ' }}",
            "hermes",
        ),
        (
            "InternLM 2.5",
            "{{ '<|action_start|><|plugin|>\\n' + tool_call + '<|action_end|>\\n' }}",
            "internlm",
        ),
        (
            "Nemotron Super",
            "{{- '<|start_header_id|>' }} use the format:\n<TOOLCALL>[{{\"name\": \"tool_name1\"}}]</TOOLCALL>",
            "nemotron_json",
        ),
        (
            "Kimi K2, first version",
            "{{ '<|im_system|>tool_declare<|im_middle|>' -}} {{- tools | tojson -}}",
            "kimi_k2",
        ),
        (
            "Command R7B",
            "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{{ '<|START_ACTION|>[' }}",
            "command_r7b",
        ),
        (
            "Command R",
            "{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Write \\'Action:\\' followed by a list <|CHATBOT_TOKEN|>' }}",
            "command_r",
        ),
        (
            "Apertus",
            "{%- set tool_calls_token = '<|tools_prefix|>' -%}",
            "apertus",
        ),
        (
            "Kimi K2",
            "<|tool_calls_section_begin|>{%- for tool_call in message['tool_calls'] -%}<|tool_call_begin|>",
            "kimi_k2",
        ),
        (
            "MiniMax M2",
            "{%- set toolcall_begin_token = '<minimax:tool_call>' -%}",
            "minimax_m2",
        ),
    ];
    for (family, template, name) in table {
        let parser = ToolParser::of_template(template);
        assert_eq!(parser.names()[0], name, "{family}");
        assert_eq!(ToolParser::detect(template), Some(parser), "{family}");
    }
    assert_eq!(ToolParser::detect("{{ tools | tojson }}"), None);
}

/// Answers in tags beside the thoughts are those of two families; MiniMax has such tags around results of tools.
#[test]
fn the_form_of_thoughts_is_found_in_the_template_of_each_family() {
    use crate::text::answer::ReasoningParser;
    let table = [
        (
            "ERNIE 4.5",
            "<global_setting>\nthink_mode=True\n</global_setting>{{- '<response>\n' + content + '\n</response>' }}",
            "ernie45",
        ),
        (
            "Granite 3.3",
            "thoughts between <think></think> and write your response between <response></response>",
            "ernie45",
        ),
        (
            "Granite 3.2",
            "Write your thoughts after 'Here is my thought process:' and your response after 'Here is my response:'",
            "granite",
        ),
        (
            "MiniMax M2",
            "{{- '<think>' ~ reasoning_content ~ '</think>' }}{{- '\n<response>' }}{{- '</response>' }}",
            "think",
        ),
        (
            "Hunyuan",
            "{{- '<think>\n\n</think>\n' }}<|extra_0|>",
            "hunyuan_a13b",
        ),
        (
            "Command R7B",
            "<|START_THINKING|>{{ message.reasoning_content }}<|END_THINKING|>",
            "command_r7b",
        ),
        (
            "Apertus",
            "{%- set inner_token = '<|inner_prefix|>' -%}",
            "apertus",
        ),
    ];
    for (family, template, name) in table {
        let parser = ReasoningParser::of_template(template);
        assert_eq!(parser.names()[0], name, "{family}");
    }
}

/// A name that is accepted means its notation.
#[test]
fn vllms_names_are_accepted_for_what_is_parsed_and_for_nothing_else() {
    use crate::text::answer::ReasoningParser;
    let tools = "deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4 cohere_command3 cohere_command4 \
                 ernie45 glm45 glm47 granite-20b-fc granite granite4 hermes hunyuan_a13b internlm jamba \
                 minimax lfm2 kimi_k2 llama3_json llama4_json llama4_pythonic mimo minimax_m2 mistral \
                 olmo3 openai phi4_mini_json pythonic qwen3_coder qwen3_json qwen3_xml seed_oss step3p5 \
                 xlam functiongemma gemma4 apertus";
    for name in tools.split_whitespace() {
        name.parse::<ToolParser>()
            .expect("a name of what is parsed");
    }
    let thoughts = "deepseek_r1 deepseek_v3 deepseek_v4 cohere_command3 cohere_command4 ernie45 gemma4 glm45 glm47 \
                    openai_gptoss granite granite_thinking_parser holo2 hunyuan_a13b hy_v3 kimi_k2 mimo minimax_m2 \
                    mistral nemotron_v3 olmo3 qwen3 seed_oss step3p5";
    for name in thoughts.split_whitespace() {
        name.parse::<ReasoningParser>()
            .expect("a name of what is parsed");
    }
    let others = "longcat minimax_m3 minicpm5 gigachat3 step3 poolside_v1 zaya_xml kimi_k3";
    for name in others.split_whitespace() {
        name.parse::<ToolParser>().expect_err("it is not parsed");
        name.parse::<ReasoningParser>()
            .expect_err("it is not parsed");
    }
    let names: Vec<_> = ToolParser::all().flat_map(ToolParser::names).collect();
    assert_eq!(
        names.iter().collect::<HashSet<_>>().len(),
        names.len(),
        "{names:?}"
    );
    let names: Vec<_> = ReasoningParser::all()
        .flat_map(ReasoningParser::names)
        .collect();
    assert_eq!(
        names.iter().collect::<HashSet<_>>().len(),
        names.len(),
        "{names:?}"
    );
}

/// The page has a row for each parser, with all of its names, in the order in which templates are looked at.
#[test]
fn the_page_lists_every_parser_with_all_of_its_names() {
    use crate::text::answer::ReasoningParser;
    let page = include_str!("../../../../../docs/api.md");
    let rows = |option: &str| -> Vec<Vec<&str>> {
        let (_, table) = page
            .split_once(&format!("| `{option}` |"))
            .expect("a table");
        let rows = table
            .lines()
            .skip(2)
            .take_while(|line| line.starts_with('|'));
        rows.map(|row| {
            let (names, _) = row
                .trim_start_matches("| ")
                .rsplit_once(" | ")
                .expect("a row");
            names.split('`').skip(1).step_by(2).collect()
        })
        .collect()
    };
    let tools: Vec<_> = ToolParser::all().map(ToolParser::names).collect();
    assert_eq!(rows("--tool-call-parser"), tools);
    let thoughts: Vec<_> = ReasoningParser::all().map(ReasoningParser::names).collect();
    assert_eq!(rows("--reasoning-parser"), thoughts);
}

proptest! {
    /// For any input, nothing panics, and the result does not depend on where the text is split.
    #[test]
    fn any_text_of_their_marks_in_any_pieces(
        words in proptest::collection::vec(proptest::sample::select(vec![
            "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "function<｜tool▁sep｜>", "\n```json\n", "```",
            "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<|tool_call|>", "<tool_call>", "</tool_call>",
            "<function_call>", "functools", "<|/tool_call|>", "<tool_calls>", "</tool_calls>", "<|START_ACTION|>",
            "<|END_ACTION|>", "Action: ```json", "<|tools_prefix|>", "<|tools_suffix|>", "<|tool_calls_section_begin|>",
            "<|tool_call_begin|>", "functions.add:0", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
            "<function_calls>", "</function_calls>", "<|python_start|>", "<|python_end|>", "<minimax:tool_call>",
            "<invoke name=\"add\">", "</invoke>", "<parameter name=\"a\">", "</parameter>", "<｜DSML｜function_calls>",
            "<｜DSML｜invoke name=\"add\">", "</｜DSML｜invoke>", "<｜DSML｜parameter name=\"a\" string=\"true\">",
            "</｜DSML｜parameter>", "[", "]", "{", "}", "{\"add\": ", "{\"name\": \"add\"", "\"tool_name\": \"add\"",
            ", \"arguments\": {", "}}", "add", "add(", "a=", "'", "\"", ")", ",", ";", " ", "\n", "\\", "é", "1",
        ]), 0..24),
        size in 1_usize..9,
    ) {
        let text = words.concat();
        for format in &FORMATS {
            let (whole, cut) = (read(format.parser, &text, usize::MAX), read(format.parser, &text, size));
            let calls = |parts: &Parts| {
                let call = |call: &CallDelta| (call.index, call.name.clone(), call.arguments.clone());
                parts.calls.iter().map(call).collect::<Vec<_>>()
            };
            prop_assert_eq!(&whole.content, &cut.content, "{:?} of {}", format.parser, text);
            prop_assert_eq!(calls(&whole), calls(&cut), "{:?} of {}", format.parser, text);
        }
    }
}
