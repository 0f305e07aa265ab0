//! What clients of llama.cpp's server send, as they send it.

use crate::agents;
use crate::harness::{
    Answer, CHAT, COMPLETIONS, END, QWEN, Server, config, dotted, hello, ids, renamed, saying, with,
};
use folio::engine::request::DrawDefaults;
use folio::model::demo;
use folio::server::ServerOptions;
use folio::text::TextModel;
use serde_json::{Value, json};
use std::sync::Arc;

/// A server of a model that fills every gap with this text.
fn filling(text: &str) -> Server {
    let model =
        TextModel::with_tokenizer(Some(renamed(QWEN)), Some(demo::TOKENIZER_CONFIG_JSON), None);
    let (gap, answer) = (4094, [ids(text), vec![END]].concat());
    Server::fake_with(
        &format!("say={}>{}", dotted(&[gap]), dotted(&answer)),
        config(),
        ServerOptions::default(),
        Arc::new(model.expect("the demo's files are right")),
    )
}

pub(crate) fn ok(server: &Server, path: &str, body: &Value) -> Value {
    let answer = server.post(path, body);
    assert_eq!(answer.status, 200, "{path} {body}: {}", answer.text);
    answer.json()
}

pub(crate) fn refused(server: &Server, path: &str, body: &Value) -> Value {
    let answer = server.post(path, body);
    assert_eq!(answer.status, 400, "{path} {body}: {}", answer.text);
    answer.json()["error"]["param"].clone()
}

/// The JSON of each event of a stream, `[DONE]` aside.
fn events(answer: &Answer) -> Vec<Value> {
    let data = answer
        .text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    data.filter_map(|json| serde_json::from_str(json).ok())
        .collect()
}

#[test]
fn the_requests_of_editor_plugins_are_answered_as_they_send_them() {
    let server = filling("return a + b\n\nprint(1)\n");
    let chunks = json!([{"text": "A = 1\n", "time": [1, 2], "filename": "a.py"}]);
    // llama.vim: a suggestion, and a request that fills the cache.
    let vim = json!({"id_slot": 0, "model": "", "input_prefix": "def f(a, b):\n",
        "input_suffix": "\nprint(2)\n", "input_extra": chunks, "prompt": "    ", "n_predict": 128, "stop": [],
        "n_indent": 0, "top_k": 40, "top_p": 0.99, "stream": false,
        "samplers": ["top_k", "top_p", "infill"], "cache_prompt": true, "t_max_prompt_ms": 500,
        "t_max_predict_ms": 1000, "response_fields": ["content", "timings/prompt_n", "timings/prompt_ms",
        "timings/prompt_per_token_ms", "timings/prompt_per_second", "timings/predicted_n", "timings/predicted_ms",
        "timings/predicted_per_token_ms", "timings/predicted_per_second", "truncated", "tokens_cached"]});
    // The demo's template marks its prompt by the token before the beginning, so the gap's token is the last one.
    let vim = with(&vim, &json!({"prompt": ""}));
    let reply = ok(&server, "/infill", &vim);
    assert_eq!(reply["content"], "return a + b\n\nprint(1)\n");
    assert_eq!(
        reply.as_object().map(serde_json::Map::len),
        Some(11),
        "{reply}"
    );
    assert!(reply["timings/prompt_n"].as_u64() > Some(0), "{reply}");
    let warm = json!({"id_slot": 0, "model": "", "input_prefix": "", "input_suffix": "", "input_extra": chunks,
        "prompt": "", "n_predict": 0,
        "temperature": 0.0, "stream": false, "samplers": [], "cache_prompt": true, "t_max_prompt_ms": 1,
        "t_max_predict_ms": 1, "response_fields": [""]});
    assert_eq!(ok(&server, "/infill", &warm), json!({}));
    let counted = ok(
        &server,
        "/infill",
        &with(&warm, &json!({"response_fields": null})),
    );
    assert_eq!(
        counted["tokens_predicted"], 1,
        "the prompt and one token are computed"
    );
    // Its instructions: a request that fills the cache while the user types one, and an edit.
    let blank =
        json!([{"role": "system", "content": "You edit code."}, {"role": "user", "content": ""}]);
    let typed = json!({"id_slot": 7, "model": "", "messages": blank, "samplers": [], "n_predict": 0, "stream": false,
        "cache_prompt": true, "response_fields": [""]});
    assert_eq!(ok(&server, CHAT, &typed)["usage"]["completion_tokens"], 1);
    let edited = json!({"id_slot": 7, "model": "", "messages": hello()["messages"], "min_p": 0.1, "temperature": 0.1,
        "samplers": ["min_p", "temperature"], "stream": true, "cache_prompt": true});
    let answer = server.post(CHAT, &edited);
    let parts = events(&answer);
    let last = &parts[parts.len() - 1]["choices"][0];
    assert!(last["finish_reason"].is_string(), "{}", answer.text);
    // llama.vscode: several suggestions, the first tokens of a chat, an edit.
    let vscode = json!({"id_slot": 0, "input_prefix": "def f(a, b):\n", "input_suffix": "\n", "input_extra": chunks,
        "prompt": "", "n_predict": 64, "n_cmpl": 2, "top_k": 40, "top_p": 0.99, "stream": false,
        "samplers": ["top_k", "top_p", "infill"], "cache_prompt": true, "t_max_prompt_ms": 500,
        "t_max_predict_ms": 250});
    let several = ok(&server, "/infill", &vscode);
    assert_eq!(several.as_array().map(Vec::len), Some(2), "{several}");
    assert_eq!([&several[0]["index"], &several[1]["index"]], [0, 1]);
    let edit = json!({"id_slot": 0, "messages": hello()["messages"], "stream": false, "temperature": 0.8,
        "dynatemp_range": 0, "top_k": 40, "top_p": 0.95, "samplers": "edkypmxt", "cache_prompt": true,
        "n_predict": 0, "t_max_predict_ms": 1});
    assert_eq!(ok(&server, CHAT, &edit)["usage"]["completion_tokens"], 1);
}

#[test]
fn an_answer_ends_before_a_line_that_is_indented_less_whatever_the_route() {
    let text = "if a:\n        b = 1\n    c = 2\n";
    let kept = "if a:\n        b = 1\n    ";
    let filled = filling(text);
    let gap = json!({"input_prefix": "", "input_suffix": "x", "n_predict": 60, "n_indent": 8});
    for stream in [false, true] {
        let answer = filled.post("/infill", &with(&gap, &json!({"stream": stream})));
        let parts = if stream {
            events(&answer)
        } else {
            vec![answer.json()]
        };
        let all: String = parts
            .iter()
            .filter_map(|part| part["content"].as_str())
            .collect();
        let last = parts.last().expect("an answer ends");
        assert_eq!((all.as_str(), &last["stop_type"]), (kept, &json!("limit")));
    }
    let chat = saying(&[text]);
    let answer = ok(&chat, CHAT, &with(&hello(), &json!({"n_indent": 5})));
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["message"]["content"], &choice["finish_reason"]),
        (&json!(kept), &json!("length"))
    );
    chat.wait_until_idle();
    let whole = ok(&chat, CHAT, &with(&hello(), &json!({"n_indent": 4})));
    assert_eq!(whole["choices"][0]["message"]["content"], text);
    let ends = chat.get("/metrics").text;
    let ended = |reason: &str, count: u32| {
        let line = format!("finished_reason=\"{reason}\"");
        assert!(
            ends.lines().any(
                |text| text.contains(&line) && text.ends_with(&format!(" {count}"))
                    || text.contains(&line) && text.ends_with(&format!(" {count}.0"))
            ),
            "{reason} {count}: {ends}"
        );
    };
    ended("length", 1);
    ended("abort", 0);
}

#[test]
fn a_limit_has_one_meaning_under_each_of_its_names_on_every_route() {
    let server = Server::plain();
    let chat = json!({"messages": hello()["messages"], "ignore_eos": true});
    let text = json!({"prompt": "Hello", "ignore_eos": true});
    for name in ["n_predict", "max_tokens", "max_completion_tokens"] {
        let three = json!({name: 3});
        for (path, base) in [(CHAT, &chat), (COMPLETIONS, &text)] {
            let answer = ok(&server, path, &with(base, &three));
            assert_eq!(answer["usage"]["completion_tokens"], 3, "{path} {name}");
        }
        let answer = ok(&server, "/completion", &with(&text, &three));
        assert_eq!(answer["tokens_predicted"], 3, "{name}");
        let input = with(&three, &json!({"input": "Hello", "ignore_eos": true}));
        assert_eq!(
            ok(&server, "/v1/responses", &input)["usage"]["output_tokens"],
            3,
            "{name}"
        );
        let same = with(&three, &json!({"n_predict": 3}));
        ok(&server, CHAT, &with(&chat, &same));
        for (path, base) in [(CHAT, &chat), (COMPLETIONS, &text), ("/completion", &text)] {
            let other = if name == "n_predict" {
                "max_tokens"
            } else {
                "n_predict"
            };
            let param = refused(
                &server,
                path,
                &with(&with(base, &three), &json!({other: 4})),
            );
            assert!(param == name || param == other, "{path}: {param}");
        }
    }
    let two = ok(
        &server,
        CHAT,
        &with(&chat, &json!({"n_cmpl": 2, "n_predict": 2, "n_probs": 1})),
    );
    let choices = two["choices"].as_array().expect("choices");
    assert_eq!(choices.len(), 2);
    assert_eq!(
        choices[0]["logprobs"]["content"][0]["top_logprobs"]
            .as_array()
            .map(Vec::len),
        Some(1)
    );
    let none = ok(
        &server,
        CHAT,
        &with(&chat, &json!({"n_predict": 2, "n_probs": 0})),
    );
    assert!(none["choices"][0]["logprobs"].is_null());
    let ids = ok(
        &server,
        CHAT,
        &with(&chat, &json!({"n_predict": 2, "return_tokens": true})),
    );
    assert_eq!(
        ids["choices"][0]["token_ids"].as_array().map(Vec::len),
        Some(2)
    );
}

#[test]
fn penalties_count_as_many_tokens_as_repeat_last_n_says() {
    let server = Server::plain();
    let base = json!({"prompt": "one two three two one", "n_predict": 24, "temperature": 0, "ignore_eos": true});
    let text = |more: &Value| ok(&server, "/completion", &with(&base, more))["content"].clone();
    let plain = text(&json!({}));
    let penalty = |window: Value| text(&json!({"repeat_penalty": 1.2, "repeat_last_n": window}));
    assert_eq!(penalty(json!(0)), plain, "0 turns the penalty off");
    assert_eq!(penalty(json!(64)), penalty(json!(null)), "64 by default");
    assert_eq!(penalty(json!(-1)), penalty(json!(2048)), "-1 is all");
    assert_ne!(penalty(json!(2)), penalty(json!(-1)));
    assert_ne!(penalty(json!(2)), plain);
    // What LangChain and SillyTavern send by default, and the defaults of Ollama.
    for more in [
        json!({"repeat_penalty": 1.1, "repeat_last_n": 64}),
        json!({"repeat_penalty": 1.2, "repeat_last_n": 0}),
        json!({"presence_penalty": 0.5, "frequency_penalty": 0.5, "repeat_last_n": 3}),
    ] {
        ok(&server, CHAT, &with(&hello(), &more));
        ok(
            &server,
            "/api/generate",
            &json!({"prompt": "Hi", "stream": false, "options": more}),
        );
    }
}

#[test]
fn an_empty_grammar_is_none_under_every_name() {
    let server = Server::plain();
    for name in ["grammar", "ebnf", "guided_grammar", "regex", "guided_regex"] {
        let empty = json!({name: "", "max_tokens": 4});
        for (path, base) in [
            (CHAT, hello()),
            (COMPLETIONS, json!({"prompt": "Hello"})),
            ("/completion", json!({"prompt": "Hello"})),
        ] {
            ok(&server, path, &with(&base, &empty));
        }
    }
    // A server's own settings may be sent back.
    let settings = server.get("/props").json()["default_generation_settings"]["params"].clone();
    let request = with(&settings, &json!({"prompt": "Hello", "n_predict": 2}));
    assert_eq!(ok(&server, "/completion", &request)["tokens_predicted"], 2);
}

#[test]
fn a_json_schema_of_llama_cpp_may_say_what_cannot_be_enforced() {
    let server = saying(&["[1]"]);
    let schema =
        json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true, "maxItems": 1});
    let request = with(&hello(), &json!({"json_schema": schema}));
    ok(&server, CHAT, &request);
    let strict = with(&hello(), &json!({"guided_json": schema}));
    assert_eq!(refused(&server, CHAT, &strict), "guided_json");
}

#[test]
fn thoughts_and_calls_stay_in_the_content_if_a_request_says_so() {
    let answer = "<think>\nHm.\n</think>\n\nYes.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    let server = agents::thinking(&[answer]);
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let base = with(&hello(), &json!({"tools": tools, "max_tokens": 200}));
    let trimmed = |message: &Value| {
        let content = message["content"].as_str().expect("a text");
        content.trim_end().to_owned()
    };
    let message =
        |more: Value| ok(&server, CHAT, &with(&base, &more))["choices"][0]["message"].clone();
    let apart = message(json!({"reasoning_format": "auto", "parse_tool_calls": true}));
    let is_hm =
        |message: &Value| message["reasoning_content"].as_str().map(str::trim) == Some("Hm.");
    assert!(trimmed(&apart) == "Yes." && is_hm(&apart), "{apart}");
    let thoughts = message(json!({"reasoning_format": "none"}));
    assert_eq!(trimmed(&thoughts), "<think>\nHm.\n</think>\n\nYes.");
    assert_eq!(thoughts["tool_calls"][0]["function"]["name"], "f");
    assert!(thoughts["reasoning_content"].is_null());
    let calls = message(json!({"parse_tool_calls": false}));
    assert!(is_hm(&calls), "{calls}");
    assert!(
        calls["content"]
            .as_str()
            .is_some_and(|text| text.ends_with("</tool_call>")),
        "{calls}"
    );
    assert!(calls["tool_calls"].is_null());
    let all = message(json!({"parse_tool_calls": false, "reasoning_format": "none"}));
    assert_eq!(trimmed(&all), answer);
}

#[test]
fn chats_completions_and_responses_report_their_times() {
    let server = Server::plain();
    let keys = [
        "cache_n",
        "prompt_n",
        "prompt_ms",
        "prompt_per_token_ms",
        "prompt_per_second",
        "predicted_n",
        "predicted_ms",
        "predicted_per_token_ms",
        "predicted_per_second",
    ];
    let text = json!({"prompt": "Hello", "max_tokens": 4, "ignore_eos": true});
    let chat = json!({"messages": hello()["messages"], "max_tokens": 4, "ignore_eos": true});
    let input = json!({"input": "Hello", "max_output_tokens": 4, "ignore_eos": true});
    for (path, base) in [
        (CHAT, &chat),
        (COMPLETIONS, &text),
        ("/completion", &text),
        ("/v1/responses", &input),
    ] {
        let timings = ok(&server, path, base)["timings"].clone();
        assert!(
            keys.iter().all(|key| timings[key].is_number()),
            "{path}: {timings}"
        );
        assert_eq!(timings["predicted_n"], 4, "{path}");
    }
    for more in [
        json!({}),
        json!({"stream_options": {"include_usage": true}}),
    ] {
        let request = with(&with(&chat, &more), &json!({"stream": true}));
        let events = events(&server.post(CHAT, &request));
        assert_eq!(
            events.last().expect("a last chunk")["timings"]["predicted_n"],
            4
        );
        assert!(events[0]["timings"].is_null());
        let each = server.post(CHAT, &with(&request, &json!({"timings_per_token": true})));
        assert!(events_have_times(&each), "{}", each.text);
    }
    let each = server.post(
        "/completion",
        &with(&text, &json!({"stream": true, "timings_per_token": true})),
    );
    assert!(events_have_times(&each), "{}", each.text);
    let one = ok(
        &server,
        "/completion",
        &with(&text, &json!({"n_predict": 1, "max_tokens": 1})),
    );
    assert_eq!(
        one["timings"]["predicted_per_second"], 0.0,
        "the only token came with the prompt"
    );
}

fn events_have_times(answer: &Answer) -> bool {
    events(answer)
        .iter()
        .all(|event| event["timings"].is_object())
}

#[test]
fn the_defaults_of_llama_cpp_hold_on_its_routes_unless_the_model_has_others() {
    let own = DrawDefaults {
        temperature: Some(1.0),
        ..DrawDefaults::default()
    };
    let options = ServerOptions {
        draw_defaults: own,
        ..ServerOptions::default()
    };
    for (server, temperature) in [
        (Server::plain(), 0.8),
        (Server::fake("", config(), options), 1.0),
    ] {
        let of_reply = ok(
            &server,
            "/completion",
            &json!({"prompt": "Hello", "n_predict": 1}),
        );
        let props = server.get("/props").json()["default_generation_settings"]["params"].clone();
        for settings in [&of_reply["generation_settings"], &props] {
            let number = |name: &str| {
                settings[name]
                    .as_f64()
                    .map(|number| (number * 1e3).round() / 1e3)
            };
            assert_eq!(
                ["temperature", "top_k", "top_p", "min_p", "repeat_last_n"].map(number),
                [temperature, 40.0, 0.95, 0.05, 64.0].map(Some)
            );
        }
    }
}

#[test]
fn apply_template_continues_a_last_message_of_the_assistant() {
    let server = Server::plain();
    let messages =
        json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The fox is"}]);
    let prompt = |more: Value| {
        ok(
            &server,
            "/apply-template",
            &with(&json!({"messages": messages}), &more),
        )["prompt"]
            .clone()
    };
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    assert!(text(&prompt(json!({}))).ends_with("The fox is"));
    let closed = text(&prompt(json!({"add_generation_prompt": true})));
    assert!(closed.ends_with("<|im_start|>assistant\n"), "{closed}");
    // Chats continue it if they say so, as in vLLM.
    let count = |more: Value| {
        let chat = with(&json!({"messages": messages, "max_tokens": 1}), &more);
        ok(&server, CHAT, &chat)["usage"]["prompt_tokens"].as_u64()
    };
    let going_on = json!({"continue_final_message": true, "add_generation_prompt": false});
    assert!(count(json!({})) > count(going_on));
}

#[test]
fn several_prompts_and_choices_have_a_list_of_replies() {
    let server = Server::plain();
    let base = json!({"n_predict": 3, "ignore_eos": true, "temperature": 0});
    let post = |more: Value| ok(&server, "/completion", &with(&base, &more));
    let both = post(json!({"prompt": ["Hello", [1, 2, 3]]}));
    assert_eq!(both.as_array().map(Vec::len), Some(2));
    assert_eq!(
        both[0]["content"],
        post(json!({"prompt": "Hello"}))["content"]
    );
    assert_eq!(
        [&both[0]["tokens_evaluated"], &both[1]["tokens_evaluated"]],
        [1, 3]
    );
    let choices = post(json!({"prompt": ["Hello", "Bye"], "n_cmpl": 2}));
    let indexes: Vec<_> = choices
        .as_array()
        .expect("a list")
        .iter()
        .map(|reply| reply["index"].as_u64())
        .collect();
    assert_eq!(indexes, [0, 1, 2, 3].map(Some));
    let stream = server.post(
        "/completion",
        &with(&base, &json!({"prompt": ["Hello", "Bye"], "stream": true})),
    );
    assert_eq!(
        events(&stream)
            .iter()
            .filter(|event| event["stop"] == true)
            .count(),
        2
    );
}

#[test]
fn a_prompt_may_mix_texts_and_token_ids_on_every_route() {
    let server = Server::plain();
    let mixed = [ids("Hello"), vec![END], ids(" fox")].concat();
    let prompt = json!(["Hello", END, " fox"]);
    let of = |path: &str, body: Value| ok(&server, path, &body);
    let text = of(
        "/completion",
        json!({"prompt": prompt, "n_predict": 2, "return_tokens": true}),
    );
    assert_eq!(text["tokens_evaluated"], mixed.len());
    let same = json!({"prompt": mixed, "max_tokens": 4, "temperature": 0});
    let (one, other) = (
        of(COMPLETIONS, same.clone()),
        of(COMPLETIONS, with(&same, &json!({"prompt": prompt}))),
    );
    assert_eq!(one["choices"], other["choices"]);
    let embeddings = |input: Value| of("/v1/embeddings", json!({"input": input}))["data"].clone();
    assert_eq!(embeddings(json!(mixed)), embeddings(prompt.clone()));
    let texts = embeddings(json!(["Hello", {"prompt_string": "Hello"}, ids("Hello"),
        {"content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}]));
    assert!(
        texts
            .as_array()
            .expect("vectors")
            .iter()
            .all(|entry| entry["embedding"] == texts[0]["embedding"])
    );
    let bare = json!({"input": {"content": "a list of parts is expected"}});
    assert_eq!(refused(&server, "/v1/embeddings", &bare), "input.content");
}

#[test]
fn embeddings_have_the_form_of_llama_cpp_on_its_own_route() {
    let server = Server::cpu();
    let reply = ok(
        &server,
        "/embedding",
        &json!({"content": ["Hello", "A fox"]}),
    );
    let openai = ok(
        &server,
        "/v1/embeddings",
        &json!({"input": ["Hello", "A fox"]}),
    );
    for index in [0, 1] {
        assert_eq!(reply[index]["index"], index);
        assert_eq!(
            reply[index]["embedding"][0],
            openai["data"][index]["embedding"]
        );
    }
    let raw = ok(
        &server,
        "/embedding",
        &json!({"content": "Hello", "embd_normalize": -1}),
    );
    let plain = ok(
        &server,
        "/v1/embeddings",
        &json!({"input": "Hello", "normalize": false}),
    );
    assert_eq!(raw[0]["embedding"][0], plain["data"][0]["embedding"]);
    assert_ne!(raw[0]["embedding"], reply[0]["embedding"]);
    let hello = &reply[0]["embedding"];
    assert_eq!(
        ok(&server, "/embedding", &json!({"input": "Hello"}))[0]["embedding"],
        *hello
    );
    for path in ["/embeddings", "/v1/embeddings"] {
        let reply = ok(&server, path, &json!({"content": "Hello"}));
        assert_eq!(reply[0]["embedding"], *hello, "{path}");
        let both = json!({"input": "Hello", "content": "Hello"});
        assert_eq!(ok(&server, path, &both)["object"], "list", "{path}");
    }
}

#[test]
fn a_text_in_logit_bias_biases_each_of_its_tokens_in_both_forms() {
    let server = Server::cpu();
    let first = ids("Hi")[0];
    let content = |path: &str, bias: &Value| {
        let prompt = "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n";
        let request = json!({"prompt": prompt, "messages": hello()["messages"], "temperature": 0, "max_tokens": 1,
            "logit_bias": bias});
        let answer = ok(&server, path, &request);
        let texts = [
            &answer["content"],
            &answer["choices"][0]["text"],
            &answer["choices"][0]["message"]["content"],
        ];
        texts
            .iter()
            .find_map(|text| text.as_str())
            .expect("a text")
            .to_owned()
    };
    assert!(content(CHAT, &json!({})).starts_with("Hi"));
    for path in [CHAT, COMPLETIONS, "/completion"] {
        for bias in [json!({"Hi": -100}), json!([["Hi", false], [first, 0]])] {
            assert!(!content(path, &bias).starts_with("Hi"), "{path} {bias}");
        }
    }
}

#[test]
fn a_reply_tells_its_stop_string_its_prompt_and_a_full_context() {
    let server = saying(&["one two three"]);
    let prompt = "<|im_start|>assistant\n";
    let stopped = ok(
        &server,
        "/completion",
        &json!({"prompt": prompt, "stop": ["two"]}),
    );
    assert_eq!(
        (
            &stopped["stop_type"],
            &stopped["stopping_word"],
            &stopped["prompt"],
            &stopped["truncated"]
        ),
        (&json!("word"), &json!("two"), &json!(prompt), &json!(false))
    );
    assert_eq!(stopped["id_slot"], 0);
    let endless = Server::plain();
    let long = json!({"prompt": vec![5; 2040], "ignore_eos": true});
    let full = ok(&endless, "/completion", &long);
    assert_eq!(
        (&full["truncated"], &full["stop_type"]),
        (&json!(true), &json!("limit"))
    );
    let cut = ok(
        &endless,
        "/completion",
        &with(&long, &json!({"n_predict": 2})),
    );
    assert_eq!(cut["truncated"], false);
    assert_eq!(cut["stopping_word"], "");
}

#[test]
fn a_reply_has_only_the_fields_that_a_request_names() {
    let server = Server::plain();
    let fields = json!([
        "content",
        "generation_settings/n_predict",
        "no/such",
        "timings/predicted_n"
    ]);
    let request =
        json!({"prompt": "Hello", "n_predict": 2, "response_fields": fields, "ignore_eos": true});
    let reply = ok(&server, "/completion", &request);
    let keys: Vec<_> = reply
        .as_object()
        .expect("an object")
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(
        keys,
        [
            "content",
            "generation_settings/n_predict",
            "timings/predicted_n"
        ]
    );
    assert_eq!(reply["generation_settings/n_predict"], 2);
    let all = ok(
        &server,
        "/completion",
        &with(&request, &json!({"response_fields": []})),
    );
    assert!(all["generation_settings"].is_object(), "{all}");
    let both = ok(
        &server,
        "/completion",
        &with(&request, &json!({"prompt": ["Hello", "Bye"]})),
    );
    assert_eq!(both[1].as_object().map(serde_json::Map::len), Some(3));
}

#[test]
fn temperatures_and_stop_strings_have_the_ranges_of_llama_cpp_on_its_routes() {
    let server = Server::plain();
    let base = json!({"prompt": "Hello", "n_predict": 2});
    let greedy = ok(
        &server,
        "/completion",
        &with(&base, &json!({"temperature": 0})),
    );
    let below = ok(
        &server,
        "/completion",
        &with(&base, &json!({"temperature": -1})),
    );
    assert_eq!(greedy["content"], below["content"]);
    for more in [
        json!({"temperature": 5}),
        json!({"temperature": 100}),
        json!({"top_k": -5}),
    ] {
        ok(&server, "/completion", &with(&base, &more));
    }
    let stops: Vec<_> = (0..64).map(|member| format!("\n{member}:")).collect();
    for (path, base) in [
        (CHAT, hello()),
        (COMPLETIONS, json!({"prompt": "a"})),
        ("/completion", base),
    ] {
        ok(&server, path, &with(&base, &json!({"stop": stops})));
    }
    assert_eq!(
        refused(&server, CHAT, &with(&hello(), &json!({"temperature": 2.5}))),
        "temperature"
    );
}

#[test]
fn names_of_special_tokens_are_text_if_a_request_says_so() {
    let server = Server::plain();
    let tokens = |more: Value| {
        let request = with(&json!({"content": "<|im_end|>"}), &more);
        ok(&server, "/tokenize", &request)["tokens"].clone()
    };
    assert_eq!(tokens(json!({})), json!([END]));
    assert_eq!(tokens(json!({"parse_special": true})), json!([END]));
    let text = tokens(json!({"parse_special": false}));
    assert!(
        text.as_array().expect("ids").len() > 1
            && !text.as_array().expect("ids").contains(&json!(END))
    );
    let back = ok(&server, "/detokenize", &json!({"tokens": text}));
    assert_eq!(back["content"], "<|im_end|>");
}

#[test]
fn what_is_counted_or_shown_may_be_longer_than_the_context() {
    let server = Server::plain();
    let text = "a ".repeat(150_000);
    let messages = json!([{"role": "user", "content": text}]);
    let count = |path: &str, body: Value| ok(&server, path, &body);
    let tokens = count("/tokenize", json!({"content": text}))["tokens"]
        .as_array()
        .map(Vec::len);
    assert!(tokens > Some(2048), "{tokens:?}");
    assert!(count("/tokenize", json!({"prompt": text}))["count"].as_u64() > Some(2048));
    for (path, body, key) in [
        (
            "/v1/chat/completions/input_tokens",
            json!({"messages": messages}),
            "input_tokens",
        ),
        (
            "/v1/messages/count_tokens",
            json!({"messages": messages}),
            "input_tokens",
        ),
        (
            "/v1/responses/input_tokens",
            json!({"input": text}),
            "input_tokens",
        ),
        ("/tokenize", json!({"messages": messages}), "count"),
    ] {
        assert!(count(path, body)[key].as_u64() > Some(2048), "{path}");
    }
    let shown = count("/apply-template", json!({"messages": messages}))["prompt"].clone();
    assert!(shown.as_str().is_some_and(|prompt| prompt.contains(&text)));
    let cut = json!({"truncate_prompt_tokens": -1, "max_tokens": 1});
    count(CHAT, with(&cut, &json!({"messages": messages})));
    count("/completion", with(&cut, &json!({"prompt": text})));
    count(COMPLETIONS, with(&cut, &json!({"prompt": text})));
    assert_eq!(
        refused(&server, COMPLETIONS, &json!({"prompt": text})),
        "prompt"
    );
    assert_eq!(
        refused(&server, CHAT, &json!({"messages": messages})),
        "messages"
    );
}

#[test]
fn a_stream_reports_how_much_of_its_prompt_is_computed() {
    let steps = folio::config::Config {
        max_num_batched_tokens: 64,
        max_num_seqs: 8,
        ..config()
    };
    let server = Server::fake("", steps, ServerOptions::default());
    let prompt: Vec<u32> = (0..200).map(|at| at % 50 + 5).collect();
    let base = json!({"max_tokens": 2, "stream": true, "ignore_eos": true});
    let text = with(&base, &json!({"prompt": prompt}));
    let chat = with(
        &base,
        &json!({"messages": [{"role": "user", "content": "one two three ".repeat(60)}]}),
    );
    let input = with(&base, &json!({"input": "one two three ".repeat(60)}));
    for (path, request) in [
        ("/completion", &text),
        (COMPLETIONS, &text),
        (CHAT, &chat),
        ("/v1/responses", &input),
    ] {
        let asked = with(
            request,
            &json!({"return_progress": true, "timings_per_token": true, "cache_salt": path.replace('/', "-")}),
        );
        let events = events(&server.post(path, &asked));
        let told: Vec<&Value> = events
            .iter()
            .filter(|event| event["prompt_progress"].is_object())
            .collect();
        assert!(told.len() > 2, "{path}: {events:?}");
        let times: Vec<_> = told
            .iter()
            .map(|event| event["timings"]["prompt_ms"].as_f64())
            .collect();
        assert!(
            times[0] == Some(0.0) && times.is_sorted(),
            "{path}: {times:?}"
        );
        assert!(times[times.len() - 1] > Some(0.0), "{path}: {times:?}");
        let progress: Vec<&Value> = told.iter().map(|event| &event["prompt_progress"]).collect();
        let (first, last) = (progress[0], progress[progress.len() - 1]);
        assert_eq!(
            (&first["processed"], &first["cache"]),
            (&json!(0), &json!(0)),
            "{path}"
        );
        assert_eq!(last["processed"], last["total"], "{path}");
        let counts = progress
            .iter()
            .map(|progress| progress["processed"].as_u64());
        assert!(counts.is_sorted(), "{path}: {progress:?}");
        assert!(!server.post(path, request).text.contains("prompt_progress"));
        let cached = server.post(path, &asked);
        assert!(cached.text.contains("\"cache\":"), "{}", cached.text);
    }
}

#[test]
fn a_stream_of_a_response_reports_its_times_with_each_text_and_at_the_end() {
    let server = Server::fake("", config(), ServerOptions::default());
    let request =
        json!({"input": "Hello", "max_output_tokens": 8, "ignore_eos": true, "stream": true});
    let timed = with(&request, &json!({"timings_per_token": true}));
    let events = events(&server.post("/v1/responses", &timed));
    let of = |kind: &str| events.iter().find(|event| event["type"] == kind);
    for kind in ["response.output_text.delta", "response.incomplete"] {
        let timings = &of(kind).expect(kind)["timings"];
        assert!(
            timings["predicted_per_second"].is_f64(),
            "{kind}: {timings}"
        );
    }
    let added = of("response.output_item.added").expect("an item");
    assert!(added["timings"].is_null(), "{added}");
    let plain = server.post("/v1/responses", &request).text;
    let end = plain.find("response.incomplete").expect("an end");
    assert!(!plain[..end].contains("predicted_n"), "{plain}");
}
