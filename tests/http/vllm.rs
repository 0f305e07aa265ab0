//! What clients of vLLM send, and read in the answers.

use crate::agents::thinking;
use crate::harness::{CHAT, COMPLETIONS, END, Server, config, hello, ids, say, saying, with};
use folio::config::{Config, Speculation};
use folio::server::ServerOptions;
use folio::text::answer::ReasoningParser;
use serde_json::{Value, json};

/// The last chunk with a finish reason, of each choice.
fn ends(chunks: &[Value]) -> Vec<&Value> {
    let choices = chunks.iter().filter_map(|chunk| chunk["choices"].get(0));
    choices
        .filter(|choice| !choice["finish_reason"].is_null())
        .collect()
}

#[test]
fn thoughts_have_both_names_in_whole_answers_and_in_streams() {
    let server = thinking(&["<think>\nHm.\n</think>\n\nHello."]);
    let whole = server.post(CHAT, &hello()).json();
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["reasoning"], "Hm.", "{whole}");
    assert_eq!(message["reasoning_content"], message["reasoning"]);
    let server = thinking(&["<think>\nHm.\n</think>\n\nHello."]);
    let stream = server.post(CHAT, &with(&hello(), &json!({"stream": true})));
    let mut thought = String::new();
    for chunk in stream.chunks() {
        let delta = &chunk["choices"][0]["delta"];
        assert_eq!(delta["reasoning"], delta["reasoning_content"], "{chunk}");
        thought.push_str(delta["reasoning"].as_str().unwrap_or_default());
    }
    assert_eq!(thought, "Hm.");
    let plain = saying(&["Hello."]).post(CHAT, &hello()).json();
    let message = plain["choices"][0]["message"]
        .as_object()
        .expect("a message");
    assert!(!message.contains_key("reasoning"), "{plain}");
}

#[test]
fn a_choice_says_which_stop_of_the_request_ended_it() {
    let answer = "One. Observation: two.";
    let token = ids(answer)[2];
    let prompt = json!({"prompt": "<|im_start|>assistant\n", "temperature": 0, "max_tokens": 24});
    for (path, base) in [(CHAT, hello()), (COMPLETIONS, prompt)] {
        for (more, reason, expected) in [
            (
                json!({"stop": ["Never", "Observation:"]}),
                "stop",
                json!("Observation:"),
            ),
            (
                json!({"stop": "Observation:", "include_stop_str_in_output": true}),
                "stop",
                json!("Observation:"),
            ),
            (json!({"stop_token_ids": [token]}), "stop", json!(token)),
            (
                json!({"stop_token_ids": [token], "include_stop_str_in_output": true}),
                "stop",
                json!(token),
            ),
            (json!({"stop_token_ids": [END]}), "stop", json!(null)),
            (
                json!({"stop_token_ids": [END], "ignore_eos": true}),
                "stop",
                json!(END),
            ),
            (json!({"stop": "Never"}), "stop", json!(null)),
            (json!({"max_tokens": 2}), "length", json!(null)),
            (
                json!({"n": 2, "stop": "Observation:"}),
                "stop",
                json!("Observation:"),
            ),
        ] {
            let request = with(&base, &more);
            let answers = [answer; 2];
            let whole = saying(&answers).post(path, &request).json();
            let choices = whole["choices"]
                .as_array()
                .unwrap_or_else(|| panic!("{whole}"));
            for choice in &choices[..1] {
                let choice = choice.as_object().expect("a choice");
                assert_eq!(choice["finish_reason"], reason, "{path} {more}: {whole}");
                assert_eq!(
                    choice.get("stop_reason"),
                    Some(&expected),
                    "{path} {more}: {whole}"
                );
            }
            let stream = saying(&answers).post(path, &with(&request, &json!({"stream": true})));
            let chunks = stream.chunks();
            let last = ends(&chunks);
            assert_eq!(last.len(), choices.len(), "{path} {more}");
            let last = last[0].as_object().expect("a choice");
            assert_eq!(last.get("stop_reason"), Some(&expected), "{path} {more}");
        }
    }
}

#[test]
fn the_beams_of_a_search_say_which_stop_ended_them() {
    let server = Server::plain();
    let search = json!({"use_beam_search": true, "n": 2, "return_token_ids": true});
    let choices = |more: Value| {
        let answer = server.post(CHAT, &with(&with(&hello(), &search), &more));
        answer.json()["choices"]
            .as_array()
            .expect("choices")
            .clone()
    };
    let token = choices(json!({}))[0]["token_ids"][2].clone();
    let choices = choices(json!({"stop_token_ids": [token]}));
    let has_it =
        |choice: &Value| choice["token_ids"].as_array().and_then(|ids| ids.last()) == Some(&token);
    assert!(choices.iter().any(has_it), "{choices:?}");
    for choice in choices.iter().filter(|choice| has_it(choice)) {
        assert_eq!(
            (&choice["finish_reason"], &choice["stop_reason"]),
            (&json!("stop"), &token)
        );
    }
}

#[test]
fn the_role_of_a_stream_counts_no_token() {
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    for n in [1, 2] {
        let request = json!({"stream": true, "n": n, "stream_options": options});
        let stream = Server::plain().post(CHAT, &with(&hello(), &request));
        let mut sent = 0;
        for chunk in stream.chunks() {
            let count = chunk["usage"]["completion_tokens"]
                .as_u64()
                .expect("a count");
            if chunk["choices"][0]["delta"]["role"].is_string() {
                assert_eq!(count, sent, "{chunk}");
            }
            assert!(count >= sent, "{chunk}");
            assert!(
                chunk["usage"]["prompt_tokens"].as_u64() > Some(0),
                "{chunk}"
            );
            sent = count;
        }
        assert!(sent > 0);
    }
}

#[test]
fn the_chosen_token_is_the_first_of_its_alternatives() {
    let request =
        json!({"prompt": "Once", "max_tokens": 8, "temperature": 2, "seed": 7, "logprobs": 3});
    let answer = Server::plain().post(COMPLETIONS, &request);
    let logprobs = &answer.json()["choices"][0]["logprobs"];
    let tokens = logprobs["tokens"].as_array().expect("tokens");
    for (at, token) in tokens.iter().enumerate() {
        let alternatives = &logprobs["top_logprobs"][at];
        assert!(alternatives.get(token.as_str().expect("a token")).is_some());
        let text = format!("{{{token}:");
        assert!(answer.text.contains(&text), "{text} in {}", answer.text);
    }
}

#[test]
fn values_that_vllm_takes_are_taken() {
    let tool =
        json!({"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}});
    let server = Server::plain();
    for more in [
        json!({"cache_salt": "Zm9sa2xvcmUgZm9yIHNhbHQgdGhhdCBpcyBsb25nLi4+/w=="}),
        json!({"cache_salt": "tenant.one two"}),
        json!({"repetition_penalty": 2.5}),
        json!({"repetition_penalty": 10}),
        json!({"tools": [tool], "tool_choice": {"function": {"name": "look"}}}),
    ] {
        let answer = server.post(CHAT, &with(&hello(), &more));
        assert_eq!(answer.status, 200, "{more}: {}", answer.text);
    }
    for (more, field) in [
        (json!({"cache_salt": ""}), "cache_salt"),
        (json!({"cache_salt": "s".repeat(1025)}), "cache_salt"),
        (
            json!({"tools": [tool], "tool_choice": {"name": "look"}}),
            "tool_choice",
        ),
    ] {
        let answer = server.post(CHAT, &with(&hello(), &more));
        assert_eq!(
            (answer.status.as_u16(), &answer.json()["error"]["param"]),
            (400, &json!(field)),
            "{more}"
        );
    }
}

/// Routes that cut prompts, with a request of more than four tokens for each, and the name of its text.
fn long_requests() -> [(&'static str, Value); 4] {
    let text = "One two three four five six seven eight.";
    let messages = json!([{"role": "user", "content": text}]);
    [
        (
            CHAT,
            json!({"messages": messages, "max_tokens": 1, "return_token_ids": true}),
        ),
        (
            COMPLETIONS,
            json!({"prompt": text, "max_tokens": 1, "return_token_ids": true}),
        ),
        (
            "/v1/responses",
            json!({"input": text, "max_output_tokens": 16}),
        ),
        (
            "/v1/messages",
            json!({"messages": messages, "max_tokens": 1}),
        ),
    ]
}

#[test]
fn the_side_of_a_prompt_that_is_cut_is_the_requests_choice() {
    let server = Server::plain();
    for (path, base) in long_requests() {
        let ids = |more: Value| {
            let answer = server.post(path, &with(&base, &more));
            assert_eq!(answer.status, 200, "{path}: {}", answer.text);
            let answer = answer.json();
            let found = [
                &answer["prompt_token_ids"],
                &answer["choices"][0]["prompt_token_ids"],
            ];
            let ids = found.into_iter().find_map(Value::as_array).cloned();
            (ids, answer["usage"].clone())
        };
        let (all, _) = ids(json!({}));
        for (more, keeps_end) in [
            (json!({"truncate_prompt_tokens": 4}), true),
            (
                json!({"truncate_prompt_tokens": 4, "truncation_side": "left"}),
                true,
            ),
            (
                json!({"truncate_prompt_tokens": 4, "truncation_side": "right"}),
                false,
            ),
        ] {
            let (cut, usage) = ids(more);
            let Some((all, cut)) = all.as_ref().zip(cut) else {
                assert_eq!(usage["input_tokens"], 4, "{path}");
                continue;
            };
            let expected = if keeps_end {
                &all[all.len() - 4..]
            } else {
                &all[..4]
            };
            assert_eq!(cut, expected, "{path}");
        }
    }
    let embed = |more: Value| {
        let base = json!({"input": "One two three four five six.", "add_special_tokens": false});
        server.post("/v1/embeddings", &with(&base, &more)).json()["data"][0]["embedding"].clone()
    };
    let of = |ids: &[u32]| embed(json!({"input": ids}));
    let ids = ids("One two three four five six.");
    let cut = |side: &str| embed(json!({"truncate_prompt_tokens": 4, "truncation_side": side}));
    assert_eq!(
        [cut("left"), cut("right")],
        [of(&ids[ids.len() - 4..]), of(&ids[..4])]
    );
    for (path, base) in [
        (
            "/v1/rerank",
            json!({"query": "a", "documents": ["one two three four five six"], "return_documents": false}),
        ),
        (
            "/score",
            json!({"text_1": "a", "text_2": "one two three four five six"}),
        ),
    ] {
        let ranked = |more: Value| {
            let answer = server.post(path, &with(&base, &more)).json();
            [answer["results"].clone(), answer["data"].clone()]
        };
        let cut = |side: &str| ranked(json!({"max_tokens_per_doc": 2, "truncation_side": side}));
        assert_ne!(cut("left"), cut("right"), "{path}");
        assert_eq!(
            cut("right"),
            ranked(json!({"max_tokens_per_doc": 2})),
            "{path}"
        );
        assert_eq!(
            ranked(json!({"max_tokens_per_doc": 0})),
            ranked(json!({})),
            "{path}"
        );
        let raw = ranked(json!({"use_activation": false}));
        assert_eq!(raw, ranked(json!({})), "{path}: a cosine stays as it is");
    }
}

#[test]
fn thoughts_are_left_out_where_a_request_says_so_and_still_counted() {
    let said = "<think>\nHm.\n</think>\n\nHello.";
    let hidden = json!({"include_reasoning": false});
    for path in [CHAT, "/v1/responses", "/v1/messages"] {
        let base = match path {
            "/v1/responses" => {
                json!({"input": "Hello!", "max_output_tokens": 24, "temperature": 0})
            }
            "/v1/messages" => with(&hello(), &json!({"thinking": {"type": "adaptive"}})),
            _ => hello(),
        };
        let ask = |more: Value| thinking(&[said]).post(path, &with(&base, &more));
        let (shown, left_out) = (ask(json!({})), ask(hidden.clone()));
        assert!(
            shown.text.contains("Hm.") && !left_out.text.contains("Hm."),
            "{}",
            left_out.text
        );
        assert!(left_out.text.contains("Hello."), "{}", left_out.text);
        let usage =
            |text: &str| serde_json::from_str::<Value>(text).expect("JSON")["usage"].clone();
        assert_eq!(usage(&shown.text), usage(&left_out.text), "{path}");
        let stream = ask(with(&hidden, &json!({"stream": true})));
        assert!(
            !stream.text.contains("Hm") && stream.text.contains("Hello"),
            "{}",
            stream.text
        );
    }
}

#[test]
fn an_answer_that_continues_a_message_repeats_it_if_asked() {
    let messages =
        json!([{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One,"}]);
    let base = json!({"messages": messages, "max_tokens": 4, "temperature": 0,
        "continue_final_message": true, "add_generation_prompt": false});
    let server = Server::plain();
    let content = |more: Value| {
        let whole = server.post(CHAT, &with(&base, &more)).json();
        whole["choices"][0]["message"]["content"]
            .as_str()
            .expect("a text")
            .to_owned()
    };
    let (plain, echoed) = (content(json!({})), content(json!({"echo": true})));
    assert_eq!(echoed, format!("One,{plain}"));
    let stream = server
        .post(CHAT, &with(&base, &json!({"echo": true, "stream": true})))
        .chunks();
    let deltas = stream
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str());
    assert_eq!(deltas.collect::<String>(), echoed);
    // The last message is not the assistant's.
    let whole = |more: Value| server.post(CHAT, &with(&hello(), &more)).json()["choices"].clone();
    assert_eq!(whole(json!({"echo": true})), whole(json!({})));
}

#[test]
fn fields_that_would_change_the_answer_are_refused_by_name() {
    let server = Server::plain();
    let messages = json!([{"role": "user", "content": "Hello!"}]);
    for (path, base, names) in [
        (
            CHAT,
            hello(),
            &[
                "add_special_tokens",
                "return_prompt_text",
                "return_token_offsets",
                "watermarking",
                "routed_experts_prompt_start",
                "mm_payload",
                "return_mm_kwargs",
                "ec_transfer_params",
            ][..],
        ),
        (
            COMPLETIONS,
            json!({"prompt": "a", "max_tokens": 1}),
            &[
                "return_token_offsets",
                "watermarking",
                "routed_experts_prompt_start",
                "mm_payload",
                "return_mm_kwargs",
                "ec_transfer_params",
            ],
        ),
        (
            "/v1/responses",
            json!({"input": "a", "max_output_tokens": 16}),
            &[
                "enable_response_messages",
                "previous_input_messages",
                "watermarking",
                "mm_payload",
                "return_mm_kwargs",
                "ec_transfer_params",
            ],
        ),
        (
            "/v1/messages",
            json!({"messages": messages, "max_tokens": 1}),
            &[
                "watermarking",
                "mm_payload",
                "return_mm_kwargs",
                "ec_transfer_params",
            ],
        ),
        (
            "/v1/rerank",
            json!({"query": "a", "documents": ["b"]}),
            &["max_tokens_per_query", "chat_template_kwargs"],
        ),
        (
            "/score",
            json!({"text_1": "a", "text_2": "b"}),
            &["max_tokens_per_query", "chat_template_kwargs"],
        ),
    ] {
        assert_eq!(server.post(path, &base).status, 200, "{path}");
        for name in names {
            let answer = server.post(path, &with(&base, &json!({ *name: {"a": 1} })));
            let json = answer.json();
            assert_eq!(
                (answer.status.as_u16(), &json["error"]["param"]),
                (400, &json!(name)),
                "{path}: {json}"
            );
        }
        for name in ["session_id", "request_id"] {
            assert_eq!(
                server
                    .post(path, &with(&base, &json!({ name: "a" })))
                    .status,
                200,
                "{path}"
            );
        }
    }
}

/// A server of a reasoning model, with these settings of the engine.
fn reasoning(script: &str, config: Config) -> Server {
    let options = ServerOptions {
        reasoning_parser: Some(ReasoningParser::Think),
        ..ServerOptions::default()
    };
    Server::fake(script, config, options)
}

/// A thought that nobody ends.
fn pondering() -> String {
    say(&[&format!(
        "<think>\n{}</think>\n\nYes.",
        "Hm, hm, hm. ".repeat(9)
    )])
}

/// The number of tokens of a thought, after its opening tag and before its closing one.
fn thought_tokens(ids: &Value) -> usize {
    let [open, close] = ["<think>", "</think>"].map(|tag| crate::harness::ids(tag)[0]);
    let ids: Vec<u32> = serde_json::from_value(ids.clone()).expect("token ids");
    let from = ids.iter().position(|id| *id == open).map_or(0, |at| at + 1);
    let end = ids.iter().position(|id| *id == close).unwrap_or(ids.len());
    end - from
}

#[test]
fn a_thought_ends_with_its_budget_and_the_answer_goes_on() {
    let base = with(
        &hello(),
        &json!({"return_token_ids": true, "max_tokens": 60}),
    );
    for budget in [0, 1, 5, 20] {
        let more = json!({"thinking_token_budget": budget});
        let whole = reasoning(&pondering(), config())
            .post(CHAT, &with(&base, &more))
            .json();
        let choice = &whole["choices"][0];
        assert_eq!(thought_tokens(&choice["token_ids"]), budget, "{whole}");
        let message = &choice["message"];
        assert!(
            message["content"]
                .as_str()
                .is_some_and(|content| !content.is_empty()),
            "{whole}"
        );
        assert_eq!(message["reasoning"].is_null(), budget < 2, "{whole}");
        let streamed = with(&with(&base, &more), &json!({"stream": true}));
        let stream = reasoning(&pondering(), config()).post(CHAT, &streamed);
        for (name, text) in [
            ("content", &message["content"]),
            ("reasoning", &message["reasoning"]),
        ] {
            let chunks = stream.chunks();
            let deltas = chunks
                .iter()
                .filter_map(|chunk| chunk["choices"][0]["delta"][name].as_str());
            assert_eq!(
                deltas.collect::<String>(),
                text.as_str().unwrap_or_default(),
                "{budget}"
            );
        }
    }
    let answer = |more: Value| {
        reasoning(&pondering(), config())
            .post(CHAT, &with(&base, &more))
            .json()["choices"]
            .clone()
    };
    let free = answer(json!({}));
    for budget in [-1, 59, 1_i64 << 31] {
        assert_eq!(
            answer(json!({"thinking_token_budget": budget})),
            free,
            "{budget}"
        );
    }
    for wrong in [json!(-2), json!("3"), json!(1.5)] {
        let refused = reasoning("", config())
            .post(CHAT, &with(&base, &json!({"thinking_token_budget": wrong})));
        assert_eq!(refused.json()["error"]["param"], "thinking_token_budget");
    }
}

#[test]
fn a_budget_of_thought_holds_for_every_choice_draft_and_grammar() {
    let more = json!({"thinking_token_budget": 4, "return_token_ids": true, "max_tokens": 40});
    let base = with(&hello(), &more);
    let drafting = Config {
        speculation: Some(Speculation::DEFAULT),
        ..config()
    };
    let plain = Config {
        speculation: None,
        ..config()
    };
    let answer = |config: &Config, more: Value| {
        let server = reasoning(&pondering(), config.clone());
        let answer = server.post(CHAT, &with(&base, &more));
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()["choices"].clone()
    };
    assert_eq!(answer(&plain, json!({})), answer(&drafting, json!({})));
    let form = json!({"structured_outputs": {"choice": ["certainly", "never"]}});
    for config in [&plain, &drafting] {
        for more in [
            json!({"n": 3}),
            json!({"n": 2, "temperature": 1, "seed": 3}),
            json!({"logprobs": true}),
        ] {
            for choice in answer(config, with(&more, &form))
                .as_array()
                .expect("choices")
            {
                let count = thought_tokens(&choice["token_ids"]);
                let ended = choice["message"]["content"].as_str().unwrap_or_default();
                assert!(count <= 4, "{choice}");
                assert!(["certainly", "never"].contains(&ended), "{choice}");
            }
        }
    }
}

#[test]
fn a_thought_that_a_prompt_begins_has_its_budget_too() {
    let prompts = [
        "<|im_start|>assistant\n<think>\n",
        "Once",
        "Twice <think>\n",
    ];
    let request = json!({"prompt": prompts, "thinking_token_budget": 3, "return_token_ids": true, "max_tokens": 9,
        "temperature": 0, "ignore_eos": true});
    let answer = reasoning("", config()).post(COMPLETIONS, &request).json();
    let counts = [0, 1, 2].map(|at| thought_tokens(&answer["choices"][at]["token_ids"]));
    assert_eq!(counts, [3, 9, 3], "{answer}");
    // A model without a form of thoughts has none to end.
    let plain = Server::fake(
        "",
        config(),
        ServerOptions {
            reasoning_parser: Some(ReasoningParser::None),
            ..ServerOptions::default()
        },
    );
    assert_eq!(plain.post(COMPLETIONS, &request).status, 200);
}
