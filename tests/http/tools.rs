//! Tools: the loop from question to call to answer, streamed and not; forced calls; reasoning.

use crate::agents::{self, CALL};
use crate::document::golden;
use crate::harness::{Answer, CHAT, END, MODEL, Server, config, dotted, hello, ids, saying, with};
use crate::templates::post_text;
use folio::backend::fake::FakeBackend;
use folio::engine;
use folio::model::{Model, demo};
use folio::server::ServerOptions;
use folio::text::TextModel;
use folio::text::answer::{ReasoningParser, ToolParser};
use serde_json::{Value, json};
use std::sync::Arc;

fn weather() -> Value {
    json!({"type": "function", "function": {"name": "get_weather", "description": "The weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer",
        "minimum": 1, "maximum": 7}}, "required": ["city", "days"], "additionalProperties": false}, "strict": true}})
}

fn clock() -> Value {
    json!({"type": "function", "function": {"name": "get_time"}})
}

fn ask() -> Value {
    json!({"model": MODEL, "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [weather(), clock()], "max_tokens": 200})
}

/// What a client keeps of a response: content, tool calls, finish reason.
#[derive(Debug, PartialEq)]
struct Turn {
    content: Option<String>,
    reasoning: Option<String>,
    calls: Vec<(String, String, String)>,
    reason: String,
}

fn text(value: &Value) -> String {
    value
        .as_str()
        .unwrap_or_else(|| panic!("a string, not {value}"))
        .to_owned()
}

fn whole(answer: &Answer) -> Turn {
    let choice = answer.json()["choices"][0].clone();
    let message = &choice["message"];
    assert_eq!(
        (&message["role"], &message["refusal"]),
        (&json!("assistant"), &Value::Null)
    );
    let call = |call: &Value| {
        assert_eq!(call["type"], "function");
        (
            text(&call["id"]),
            text(&call["function"]["name"]),
            text(&call["function"]["arguments"]),
        )
    };
    Turn {
        content: message["content"].as_str().map(str::to_owned),
        reasoning: message["reasoning_content"].as_str().map(str::to_owned),
        calls: message["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
            .map(call)
            .collect(),
        reason: text(&choice["finish_reason"]),
    }
}

/// Assembles a stream strictly, as OpenAI's clients do.
fn streamed(answer: &Answer) -> Turn {
    let mut turn = Turn {
        content: None,
        reasoning: None,
        calls: Vec::new(),
        reason: String::new(),
    };
    let mut roles = 0;
    for chunk in answer.chunks() {
        let choice = &chunk["choices"][0];
        assert!(turn.reason.is_empty(), "nothing follows the end");
        let delta = &choice["delta"];
        roles += usize::from(delta["role"] == "assistant");
        assert_eq!(roles, 1, "the role comes first and once");
        if let Some(content) = delta["content"]
            .as_str()
            .filter(|content| !content.is_empty())
        {
            turn.content.get_or_insert_default().push_str(content);
        }
        if let Some(reasoning) = delta["reasoning_content"].as_str() {
            turn.reasoning.get_or_insert_default().push_str(reasoning);
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().expect("every delta has its index") as usize;
            if index == turn.calls.len() {
                assert_eq!(call["type"], "function");
                turn.calls.push((
                    text(&call["id"]),
                    text(&call["function"]["name"]),
                    String::new(),
                ));
            } else {
                assert_eq!(
                    (&call["id"], &call["function"]["name"]),
                    (&Value::Null, &Value::Null),
                    "told once"
                );
            }
            turn.calls[index]
                .2
                .push_str(call["function"]["arguments"].as_str().unwrap_or_default());
        }
        turn.reason = choice["finish_reason"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
    }
    turn
}

/// Requests the answer streamed and whole; both must be equal except for the calls' ids.
fn both(server: &Server, request: &Value) -> Turn {
    let answer = server.post(CHAT, request);
    assert_eq!(answer.status, 200, "{}", answer.text);
    let (whole, mut streamed) = (
        whole(&answer),
        streamed(&server.post(CHAT, &with(request, &json!({"stream": true})))),
    );
    for (streamed, whole) in streamed.calls.iter_mut().zip(&whole.calls) {
        assert_ne!(streamed.0, whole.0, "ids of calls are unique");
        streamed.0.clone_from(&whole.0);
    }
    let content = streamed
        .content
        .take()
        .or_else(|| whole.content.as_ref().map(|_| String::new()));
    assert_eq!(
        Turn {
            content,
            ..streamed
        },
        whole
    );
    whole
}

/// One turn of a client: answers every call, in the order of the calls.
fn follow(request: &Value, turn: &Turn, results: &[&str]) -> Value {
    let mut request = request.clone();
    let messages = request["messages"].as_array_mut().expect("a list");
    let call = |(id, name, arguments): &(String, String, String)| {
        let function = json!({"name": name, "arguments": arguments});
        json!({"id": id, "type": "function", "function": function})
    };
    let calls: Vec<_> = turn.calls.iter().map(call).collect();
    messages.push(json!({"role": "assistant", "content": turn.content, "tool_calls": calls}));
    for ((id, ..), result) in turn.calls.iter().zip(results) {
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": result}));
    }
    request
}

#[test]
fn the_loop_from_question_to_call_to_answer() {
    let call = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \
        \"days\": 2}}\n</tool_call>";
    let server = saying(&[call, "It is sunny in Paris."]);
    let first = both(&server, &ask());
    assert_eq!(
        (first.reason.as_str(), first.content.clone()),
        ("tool_calls", None)
    );
    let (id, name, arguments) = &first.calls[0];
    assert!(id.starts_with("call_") && id.len() > 20, "{id}");
    assert_eq!(
        (name.as_str(), arguments.as_str()),
        ("get_weather", "{\"city\": \"Paris\", \"days\": 2}")
    );
    let second = both(&server, &follow(&ask(), &first, &["sunny"]));
    assert_eq!(
        (second.content.as_deref(), second.reason.as_str()),
        (Some("It is sunny in Paris."), "stop")
    );
    assert!(second.calls.is_empty());
    server.wait_until_idle();
}

#[test]
fn several_calls_of_one_answer() {
    let one = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \
        \"days\": 1}}\n</tool_call>";
    let other = "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>";
    let calls = format!("I look twice.\n{one}\n{other}");
    let server = saying(&[calls.as_str(), "Sunny at noon."]);
    let turn = both(&server, &ask());
    assert_eq!(turn.content.as_deref(), Some("I look twice."));
    let names: Vec<_> = turn.calls.iter().map(|call| call.1.as_str()).collect();
    assert_eq!(names, ["get_weather", "get_time"]);
    assert_ne!(turn.calls[0].0, turn.calls[1].0);
    let last = both(&server, &follow(&ask(), &turn, &["sunny", "12:00"]));
    assert_eq!(last.content.as_deref(), Some("Sunny at noon."));
    let single = both(
        &server,
        &with(&ask(), &json!({"parallel_tool_calls": false})),
    );
    assert_eq!(
        (single.calls.len(), single.reason.as_str()),
        (1, "tool_calls"),
        "one call at most"
    );
    let two = whole_choices(&server.post(
        CHAT,
        &with(&ask(), &json!({"n": 2, "seed": 1, "temperature": 1})),
    ));
    assert_eq!(two, [2, 2], "every choice has its calls");
    server.wait_until_idle();
}

fn whole_choices(answer: &Answer) -> Vec<usize> {
    let choices = answer.json()["choices"].as_array().expect("a list").clone();
    choices
        .iter()
        .map(|choice| {
            choice["message"]["tool_calls"]
                .as_array()
                .map_or(0, Vec::len)
        })
        .collect()
}

#[test]
fn without_tools_a_call_is_text() {
    let call = "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>";
    let server = saying(&[call]);
    let plain = both(&server, &with(&ask(), &json!({"tools": null})));
    assert_eq!(
        (
            plain.content.as_deref(),
            plain.calls.len(),
            plain.reason.as_str()
        ),
        (Some(call), 0, "stop")
    );
    let none = both(&server, &with(&ask(), &json!({"tool_choice": "none"})));
    assert_eq!(none.calls.len(), 0);
    // Tools of unknown types are ignored, and the others work.
    let mixed =
        json!([{"type": "web_search"}, {"type": "custom", "custom": {"name": "x"}}, clock()]);
    assert_eq!(
        both(&server, &with(&ask(), &json!({"tools": mixed})))
            .calls
            .len(),
        1
    );
    assert_eq!(
        both(
            &server,
            &with(&ask(), &json!({"tools": [{"type": "web_search"}]}))
        )
        .calls
        .len(),
        0
    );
}

/// The stream of an answer with thoughts, a text and calls, as far as it does not depend on the reader's speed.
#[test]
fn a_stream_with_thoughts_and_calls() {
    let server = agents::thinking(&[&format!(
        "<think>\nHm.\n</think>\n\nI look.\n{CALL}\n{CALL}"
    )]);
    let more = json!({"stream": true, "stream_options": {"include_usage": true}});
    let chunks = server.post(CHAT, &with(&ask(), &more)).chunks();
    golden("tests/data/http/chat_tools.jsonl", &agents::lines(chunks));
}

/// Wherever a limit cuts an answer with a call, no API shows any of the call's markup, streamed or not.
#[test]
fn a_call_that_is_cut_off_shows_no_markup() {
    let answer = format!("I look.\n{CALL}");
    let server = saying(&[answer.as_str()]);
    let (tool, question) = (&ask()["tools"][0]["function"], &ask()["messages"]);
    let named = |more: Value| with(&json!({"name": tool["name"]}), &more);
    let apis = [
        (CHAT, ask(), "max_tokens"),
        (
            "/api/chat",
            json!({"messages": question, "tools": ask()["tools"]}),
            "num_predict",
        ),
        (
            "/v1/messages",
            json!({"messages": question, "tools": [named(json!({"input_schema": {}}))]}),
            "max_tokens",
        ),
        (
            "/v1/responses",
            json!({"input": "What is the weather?", "tools": [named(json!({"type": "function"}))], "store": false}),
            "max_output_tokens",
        ),
    ];
    for (path, request, limit) in apis {
        for count in 1..=ids(&answer).len() {
            for stream in [false, true] {
                let mut request = with(&request, &json!({"stream": stream}));
                match limit {
                    "num_predict" => request["options"] = json!({limit: count}),
                    limit => request[limit] = count.into(),
                }
                let answer = server.post(path, &request);
                assert_eq!(answer.status, 200, "{}", answer.text);
                let shows = ["<", "tool_call>", "\\\"name\\\""]
                    .iter()
                    .any(|mark| answer.text.contains(mark));
                assert!(!shows, "{path} after {count} tokens: {}", answer.text);
            }
        }
    }
    let turn = both(&server, &with(&ask(), &json!({"max_tokens": 20})));
    assert_eq!(
        (turn.reason.as_str(), turn.content.as_deref()),
        ("length", Some("I look."))
    );
}

#[test]
fn with_tools_a_schema_leaves_room_for_a_call() {
    let call = "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>";
    let schema = json!({"type": "object", "properties": {"noon": {"type": "boolean"}}, "required": ["noon"],
        "additionalProperties": false});
    let request = with(
        &ask(),
        &json!({"guided_json": schema, "parallel_tool_calls": false, "temperature": 0}),
    );
    let server = saying(&[call, "I am not JSON."]);
    let turn = both(&server, &request);
    assert_eq!(
        (turn.calls.len(), turn.reason.as_str()),
        (1, "tool_calls"),
        "{turn:?}"
    );
    let last = both(&server, &follow(&request, &turn, &["12:00"]));
    if last.calls.is_empty() {
        let answer: Value =
            serde_json::from_str(last.content.as_deref().expect("an answer")).expect("JSON");
        assert!(answer["noon"].is_boolean(), "{answer}");
    }
}

#[test]
fn some_of_the_tools_may_be_called() {
    let call = "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>";
    let allowed = |mode: &str, name: &str| {
        // A duplicate name is allowed if it is the same tool.
        let tool = json!({"type": "function", "function": {"name": name}});
        let tools = json!([tool, tool]);
        let choice =
            json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}});
        with(&ask(), &json!({"tool_choice": choice, "temperature": 0}))
    };
    let server = saying(&[call]);
    assert_eq!(both(&server, &allowed("auto", "get_time")).calls.len(), 1);
    let required = both(
        &Server::plain(),
        &with(
            &allowed("required", "get_weather"),
            &json!({"max_tokens": 300}),
        ),
    );
    assert!(
        required
            .calls
            .iter()
            .all(|(_, name, _)| name == "get_weather"),
        "{required:?}"
    );
    assert!(!required.calls.is_empty(), "{required:?}");
}

#[test]
fn what_a_model_refused_with_may_come_back() {
    let refused = json!({"role": "assistant", "content": null, "refusal": "No."});
    let messages =
        json!([{"role": "user", "content": "a"}, refused, {"role": "user", "content": "b"}]);
    let said = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "No."},
        {"role": "user", "content": "b"}]);
    let server = Server::plain();
    let ids = |messages: &Value| {
        server
            .post(
                "/v1/chat/completions/render",
                &json!({"messages": messages}),
            )
            .json()["token_ids"]
            .clone()
    };
    assert!(ids(&messages).is_array());
    assert_eq!(ids(&messages), ids(&said));
}

/// The device's tokens are a hash, so only the grammar makes the output valid.
#[test]
fn forced_calls_are_made_whatever_the_model_would_say() {
    for (parser, n) in [
        (None, 4),
        (Some(ToolParser::Llama3Json), 2),
        (Some(ToolParser::Json), 2),
        (Some(ToolParser::Gemma), 2),
        (Some(ToolParser::DeepSeekV3), 2),
        (Some(ToolParser::MiniMaxM2), 2),
        (Some(ToolParser::Olmo3), 2),
    ] {
        let options = ServerOptions {
            tool_call_parser: parser,
            ..ServerOptions::default()
        };
        let server = Server::fake("", config(), options);
        for seed in 0..n {
            let more = json!({"temperature": 1, "seed": seed, "max_tokens": 1500, "parallel_tool_calls": false});
            let named =
                json!({"tool_choice": {"type": "function", "function": {"name": "get_weather"}}});
            let turn = both(&server, &with(&with(&ask(), &more), &named));
            assert_eq!(
                (turn.calls.len(), turn.content.as_deref()),
                (1, None),
                "{parser:?}, {seed}: {turn:?}"
            );
            if turn.reason == "tool_calls" {
                let (_, name, arguments) = &turn.calls[0];
                let arguments: Value =
                    serde_json::from_str(arguments).unwrap_or_else(|e| panic!("{e}: {arguments}"));
                assert_eq!(name, "get_weather");
                assert!(
                    arguments["city"].is_string()
                        && (1..=7).contains(&arguments["days"].as_i64().expect("a number"))
                );
            }
            let turn = both(
                &server,
                &with(&with(&ask(), &more), &json!({"tool_choice": "required"})),
            );
            assert_eq!(turn.calls.len(), 1, "{turn:?}");
            assert!(["get_weather", "get_time"].contains(&turn.calls[0].1.as_str()));
        }
        server.wait_until_idle();
    }
}

#[test]
fn the_demo_model_calls_its_tools() {
    let server = Server::cpu();
    let forced = with(
        &ask(),
        &json!({"tool_choice": "required", "temperature": 0, "max_tokens": 100}),
    );
    let turn = both(&server, &forced);
    assert_eq!(
        (turn.reason.as_str(), turn.calls.len()),
        ("tool_calls", 1),
        "{turn:?}"
    );
    let arguments: Value = serde_json::from_str(&turn.calls[0].2).expect("JSON");
    assert!(
        arguments["city"].is_string() || turn.calls[0].1 == "get_time",
        "{turn:?}"
    );
    // And without `tool_choice`, as the model was trained.
    let free = both(
        &server,
        &with(
            &ask(),
            &json!({"temperature": 0, "max_tokens": 100, "tools": [weather()]}),
        ),
    );
    println!("{free:?}");
    assert_eq!(
        (free.reason.as_str(), free.calls.len()),
        ("tool_calls", 1),
        "{free:?}"
    );
    assert_eq!(
        both(
            &server,
            &follow(
                &with(&ask(), &json!({"temperature": 0, "max_tokens": 60})),
                &free,
                &["{\"temperature\": 21}"]
            )
        )
        .reason,
        "stop"
    );
}

/// A server of a reasoning model that answers `answer` after `content`.
fn going_on(content: &str, answer: &str) -> Server {
    let begin = dotted(&ids(&format!("<|im_start|>assistant\n{content}")));
    let script = format!("say={begin}>{}", dotted(&[ids(answer), vec![END]].concat()));
    let options = ServerOptions {
        reasoning_parser: Some(ReasoningParser::Think),
        ..ServerOptions::default()
    };
    Server::fake(&script, config(), options)
}

/// A server whose template is the demo's with `tail` after the generation prompt.
fn thinking(answers: &[&str], tail: &str, parser: Option<ReasoningParser>) -> Server {
    let end = format!("<|im_start|>assistant\n{tail}");
    // In an expression, because a template's last line break is not part of its text.
    let messages = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + \
        '<|im_end|>\\n' }}{% endfor %}";
    let template = format!("{messages}{{{{ '{}' }}}}", end.replace('\n', "\\n"));
    let text = TextModel::from_parts(Some(demo::TOKENIZER_JSON), None, Some(&template))
        .expect("it compiles");
    let begin = dotted(&ids(&end));
    let answers = answers
        .iter()
        .map(|answer| format!(">{}", dotted(&[ids(answer), vec![END]].concat())));
    let script = format!("say={begin}{}", answers.collect::<String>());
    let spawn = move |inbox| {
        let open = move || Ok(FakeBackend::new(script.parse().expect("a script")));
        engine::spawn(open, Model::demo(), config(), inbox, |_| {})
    };
    Server::start(
        spawn,
        ServerOptions {
            reasoning_parser: parser,
            ..ServerOptions::default()
        },
        Arc::new(text),
    )
}

/// A template that knows no tools gets them as text, and a call is JSON as the whole answer.
#[test]
fn tools_work_with_a_template_that_ignores_them() {
    let call = "{\"name\": \"get_time\", \"arguments\": {}}";
    let server = thinking(&[call, "It is noon."], "", None);
    let first = both(&server, &ask());
    assert_eq!(
        (
            first.calls.len(),
            first.content.clone(),
            first.reason.as_str()
        ),
        (1, None, "tool_calls"),
        "{first:?}"
    );
    let last = both(&server, &follow(&ask(), &first, &["12:00"]));
    assert_eq!(last.content.as_deref(), Some("It is noon."));
    let prompt = |request: &Value| {
        server.post("/apply-template", request).json()["prompt"]
            .as_str()
            .map(str::to_owned)
    };
    let shown = prompt(&follow(&ask(), &first, &["12:00"])).expect("a prompt");
    let written = json!({"name": "get_time", "arguments": {}}).to_string();
    for part in ["get_weather", "The weather", "12:00", &written] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(
        !prompt(&with(&ask(), &json!({"tools": null})))
            .expect("a prompt")
            .contains("get_time")
    );
}

#[test]
fn thoughts_are_told_apart() {
    let server = thinking(&["Two and two.\n</think>\n\nFour."], "<think>\n", None);
    let turn = both(&server, &hello());
    assert_eq!(
        (turn.reasoning.as_deref(), turn.content.as_deref()),
        (Some("Two and two."), Some("Four."))
    );
    assert_eq!(turn.reason, "stop");
    let usage = server.post(CHAT, &hello()).json()["usage"].clone();
    let thoughts = usage["completion_tokens_details"]["reasoning_tokens"]
        .as_u64()
        .expect("a count");
    assert!(
        thoughts > 3 && thoughts < usage["completion_tokens"].as_u64().expect("a count"),
        "{usage}"
    );
    // Reasoning started by the model itself; no reasoning; reasoning cut off.
    let own = Some(ReasoningParser::Think);
    let turn = both(
        &thinking(&["<think>\nHm.\n</think>\n\nYes."], "", own),
        &hello(),
    );
    assert_eq!(
        (turn.reasoning.as_deref(), turn.content.as_deref()),
        (Some("Hm."), Some("Yes."))
    );
    let turn = both(&thinking(&["Just yes."], "", own), &hello());
    assert_eq!(
        (turn.reasoning, turn.content.as_deref()),
        (None, Some("Just yes."))
    );
    let turn = both(
        &thinking(&["Hm hm hm hm hm hm hm hm"], "<think>\n", None),
        &with(&hello(), &json!({"max_tokens": 4})),
    );
    assert_eq!(
        (turn.content.as_deref(), turn.reason.as_str()),
        (Some(""), "length")
    );
    assert!(turn.reasoning.is_some());
    let off = thinking(
        &["a\n</think>\nb"],
        "<think>\n",
        Some(ReasoningParser::None),
    );
    assert_eq!(
        both(&off, &hello()).content.as_deref(),
        Some("a\n</think>\nb")
    );
}

#[test]
fn a_structure_holds_once_the_thoughts_have_ended() {
    let schema = json!({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
        "additionalProperties": false});
    let named = json!({"name": "x", "strict": true, "schema": schema});
    let format = json!({"response_format": {"type": "json_schema", "json_schema": named}, "max_tokens": 100});
    let begun = thinking(&["Not { JSON at all.\n</think>"], "<think>\n", None);
    let own = thinking(
        &["<think>Not { JSON.</think>"],
        "",
        Some(ReasoningParser::Think),
    );
    let none = thinking(&["Nothing of the kind"], "", Some(ReasoningParser::Think));
    for (server, thinks) in [(begun, true), (own, true), (none, false)] {
        let turn = both(&server, &with(&hello(), &format));
        let content: Value =
            serde_json::from_str(turn.content.as_deref().expect("an answer")).expect("JSON");
        assert!(content["ok"].is_boolean(), "{content}");
        assert_eq!(
            (turn.reasoning.is_some(), turn.reason.as_str()),
            (thinks, "stop")
        );
    }
}

#[test]
fn calls_come_with_ids_logprobs_and_the_prefix() {
    let call = "I look.<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>";
    let server = saying(&[call]);
    let more = json!({"return_token_ids": true, "logprobs": true, "debug": {"prefix": true}, "prompt_logprobs": 0});
    let request = with(&ask(), &more);
    let whole = server.post(CHAT, &request).json();
    let chunks = server
        .post(CHAT, &with(&request, &json!({"stream": true})))
        .chunks();
    let gathered = |pointer: &str| -> Vec<Value> {
        let lists = chunks
            .iter()
            .filter_map(|chunk| chunk.pointer(pointer)?.as_array());
        lists.flatten().cloned().collect()
    };
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(
        choice["message"]["tool_calls"][0]["function"]["name"],
        "get_time"
    );
    let token_ids = gathered("/choices/0/token_ids");
    assert_eq!(choice["token_ids"], Value::from(token_ids.clone()));
    let mut all = ids(call);
    all.push(END);
    assert_eq!(Value::from(token_ids), Value::from(all));
    assert_eq!(
        choice["logprobs"]["content"],
        Value::from(gathered("/choices/0/logprobs/content"))
    );
    let calls: Vec<_> = gathered("/choices/0/delta/tool_calls");
    assert_eq!(calls[0]["function"]["name"], "get_time");
    assert_eq!(whole["prompt_token_ids"], chunks[0]["prompt_token_ids"]);
    assert_eq!(whole["prompt_logprobs"], chunks[0]["prompt_logprobs"]);
    let has = |chunk: &&Value| chunk.get("debug").is_some();
    assert_eq!(
        (
            whole.get("debug").is_some(),
            chunks.iter().filter(has).count()
        ),
        (true, 1)
    );
}

#[test]
fn thoughts_and_answers_are_continued() {
    let continuing = |content: &str| {
        let messages = json!([{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": content}]);
        json!({"messages": messages, "continue_final_message": true})
    };
    let turn = |content: &str, answer: &str| {
        let server = going_on(content, answer);
        both(&server, &continuing(content))
    };
    let thinking = turn("<think>\nTwo and", " two.\n</think>\n\nFour.");
    assert_eq!(
        (thinking.reasoning.as_deref(), thinking.content.as_deref()),
        (Some(" two."), Some("Four."))
    );
    let answering = turn("<think>\nHm.\n</think>\n\nIt is", " four, I <think> so.");
    assert_eq!(
        (answering.reasoning.as_deref(), answering.content.as_deref()),
        (None, Some(" four, I <think> so."))
    );
}

#[test]
fn a_forced_call_has_long_integers_with_all_digits() {
    let server = Server::plain();
    let long = "123456789012345678901234567890";
    let parameters =
        json!({"type": "object", "properties": {"id": {"const": "N"}}, "required": ["id"]});
    let tool = json!({"type": "function", "function": {"name": "look", "parameters": parameters}});
    let request = with(&ask(), &json!({"tools": [tool], "tool_choice": "required"}));
    let item = json!({"type": "function", "name": "look", "parameters": parameters});
    let input =
        json!({"model": MODEL, "input": "Look.", "tools": [item], "tool_choice": "required"});
    let arguments = "/choices/0/message/tool_calls/0/function/arguments";
    for (path, request, place) in [
        (CHAT, request, arguments),
        ("/v1/responses", input, "/output/0/arguments"),
    ] {
        let body = request.to_string().replace("\"N\"", long);
        let answer = post_text(&server, path, body).json();
        let arguments = answer.pointer(place).and_then(Value::as_str);
        let arguments = arguments.unwrap_or_else(|| panic!("{path}: {answer}"));
        let plain: String = arguments.split_whitespace().collect();
        assert_eq!(plain, format!("{{\"id\":{long}}}"), "{path}");
    }
}
