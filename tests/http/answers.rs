//! Replies to valid requests: bytes of streams, order of choices, stop strings, logprobs, seeds, usage.

use crate::agents;
use crate::harness::{
    Answer, CHAT, COMPLETIONS, MODEL, Server, blanked, config, demo_text, events, hello, merged,
    params, post, saying, send, with,
};
use folio::engine;
use folio::model::Model;
use folio::server::ServerOptions;
use folio::text::TextModel;
use serde_json::{Value, json};
use std::sync::Arc;

fn text_of(answer: &Answer) -> String {
    let choice = &answer.json()["choices"][0];
    choice["text"]
        .as_str()
        .or(choice["message"]["content"].as_str())
        .expect("a text")
        .to_owned()
}

/// Per choice: the text of all its chunks, its roles, its finish reasons.
fn streamed(answer: &Answer, choices: usize) -> Vec<(String, usize, Vec<String>)> {
    let mut all = vec![(String::new(), 0, Vec::new()); choices];
    for chunk in answer.chunks() {
        for choice in chunk["choices"].as_array().expect("a list") {
            let (text, roles, reasons) =
                &mut all[choice["index"].as_u64().expect("an index") as usize];
            assert!(reasons.is_empty(), "nothing follows the end of a choice");
            text.push_str(
                choice["text"]
                    .as_str()
                    .or(choice["delta"]["content"].as_str())
                    .unwrap_or(""),
            );
            *roles += usize::from(choice["delta"]["role"] == "assistant");
            reasons.extend(choice["finish_reason"].as_str().map(str::to_owned));
        }
    }
    all
}

#[test]
fn bytes_of_streams() {
    let server = Server::cpu();
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let chat = server.post(CHAT, &with(&hello(), &options));
    assert_eq!(chat.header("content-type"), "text/event-stream");
    assert_eq!(chat.header("cache-control"), "no-cache");
    assert_eq!(merged(&chat.text), include_str!("../data/http/chat.sse"));
    let prompt = json!({"prompt": "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n", "temperature": 0,
        "max_tokens": 3, "stream": true});
    let completion = server.post(COMPLETIONS, &prompt);
    assert_eq!(
        merged(&completion.text),
        include_str!("../data/http/completion.sse")
    );
    let whole = server.post(CHAT, &hello());
    assert_eq!(
        blanked(&whole.text),
        include_str!("../data/http/chat.json").trim_end()
    );
}

#[test]
fn tokens_come_as_they_are_made() {
    let server = Server::fake("pause=20", config(), ServerOptions::default());
    let mut open = server.open(
        CHAT,
        &with(&hello(), &json!({"stream": true, "ignore_eos": true})),
    );
    assert!(open.more(), "the first token");
    assert!(
        !open.text.contains("[DONE]"),
        "it did not wait for the last"
    );
    assert!(events(&open.rest()).len() > 5, "several pieces");
}

#[test]
fn ids_and_times_are_shared_by_all_chunks_and_unique_among_answers() {
    let server = Server::plain();
    let request = with(&hello(), &json!({"stream": true}));
    let mut ids = Vec::new();
    for _ in 0..2 {
        let chunks = server.post(CHAT, &request).chunks();
        let first = (
            chunks[0]["id"].clone(),
            chunks[0]["created"].clone(),
            chunks[0]["model"].clone(),
        );
        assert!(
            chunks
                .iter()
                .all(|c| (&c["id"], &c["created"], &c["model"]) == (&first.0, &first.1, &first.2))
        );
        assert_eq!(first.2, "demo");
        ids.push(first.0);
    }
    assert_ne!(ids[0], ids[1]);
}

#[test]
fn golden_answers_of_the_demo_model() {
    let golden: Value =
        serde_json::from_str(include_str!("../../assets/demo/recipe/golden.json")).expect("JSON");
    let server = Server::cpu();
    for prompt in golden["prompts"].as_array().expect("a list").iter().take(3) {
        let count = prompt["greedy_ids"].as_array().expect("ids").len();
        let request =
            json!({"messages": prompt["messages"], "temperature": 0, "max_tokens": count});
        let answer = server.post(CHAT, &request);
        let text = prompt["greedy_text"]
            .as_str()
            .expect("a text")
            .trim_end_matches("<|im_end|>");
        assert_eq!(text_of(&answer), text);
        assert_eq!(answer.json()["usage"]["completion_tokens"], count);
        assert_eq!(
            answer.json()["usage"]["prompt_tokens"],
            prompt["prompt_ids"].as_array().expect("ids").len()
        );
        let ids = json!({"prompt": prompt["prompt_ids"], "temperature": 0, "max_tokens": count});
        assert_eq!(text_of(&server.post(COMPLETIONS, &ids)), text);
    }
}

#[test]
fn choice_index_is_prompt_times_n_plus_choice() {
    let server = Server::plain();
    let prompts = ["Hello", "A fox", "What is", "Tell me"];
    let base = json!({"max_tokens": 7, "seed": 3, "n": 2, "prompt": prompts});
    let all = server.post(COMPLETIONS, &base);
    let all = all.json()["choices"].as_array().expect("a list").clone();
    assert_eq!(all.len(), 8);
    for (at, choice) in all.iter().enumerate() {
        assert_eq!(choice["index"], at);
        let alone = server.post(
            COMPLETIONS,
            &with(&base, &json!({"prompt": prompts[at / 2]})),
        );
        assert_eq!(
            choice["text"],
            alone.json()["choices"][at % 2]["text"],
            "choice {at}"
        );
    }
    assert_ne!(all[0]["text"], all[1]["text"], "choices of a prompt differ");
    let stream = server.post(COMPLETIONS, &with(&base, &json!({"stream": true})));
    for (at, (text, _, reasons)) in streamed(&stream, 8).into_iter().enumerate() {
        assert_eq!(
            (Value::from(text), reasons.len()),
            (all[at]["text"].clone(), 1)
        );
    }
    let ids = server.post(
        COMPLETIONS,
        &with(&base, &json!({"prompt": [[5, 6], [7, 8, 9]], "n": 1})),
    );
    assert_eq!(ids.json()["choices"].as_array().map(Vec::len), Some(2));
    assert_eq!(ids.json()["usage"]["prompt_tokens"], 5);
}

#[test]
fn a_stream_says_what_the_whole_answer_says() {
    let server = Server::plain();
    for more in [
        json!({"n": 3, "seed": 1, "temperature": 1}),
        json!({"stop": ["e", "th"], "ignore_eos": true}),
    ] {
        let whole = server.post(CHAT, &with(&hello(), &more)).json();
        let stream = server.post(
            CHAT,
            &with(&with(&hello(), &more), &json!({"stream": true})),
        );
        let choices = whole["choices"].as_array().expect("a list");
        for (choice, (text, roles, reasons)) in choices.iter().zip(streamed(&stream, choices.len()))
        {
            assert_eq!(choice["message"]["content"], text);
            assert_eq!(choice["message"]["refusal"], Value::Null);
            assert_eq!(roles, 1, "the role comes once");
            assert_eq!(
                reasons,
                [choice["finish_reason"].as_str().expect("a reason")],
                "one finish_reason a choice"
            );
        }
    }
}

#[test]
fn stop_strings_end_the_text_before_them() {
    let server = Server::cpu();
    let question = json!([{"role": "user", "content": "What is a KV cache?"}]);
    let base = with(&hello(), &json!({"messages": question, "max_tokens": 64}));
    let full = text_of(&server.post(CHAT, &base));
    for stop in [
        "keeps their keys",
        "ext, each",
        ".",
        "tokens before it. The KV",
    ] {
        let expected = full.split(stop).next().expect("at least one part");
        assert_ne!(expected, full, "the stop string occurs");
        let answer = server.post(CHAT, &with(&base, &json!({"stop": ["never said", stop]})));
        assert_eq!(text_of(&answer), expected);
        assert_eq!(answer.json()["choices"][0]["finish_reason"], "stop");
        let stream = server.post(CHAT, &with(&base, &json!({"stop": stop, "stream": true})));
        assert_eq!(streamed(&stream, 1)[0].0, expected);
        // Tokens are counted up to the one that completed the stop string.
        let tokenizer = demo_text().tokenizer.clone().expect("the demo has one");
        let said = format!("{expected}{stop}");
        let spelled = tokenizer.encode(&said, false).expect("it encodes").len() as u64;
        let counted = answer.json()["usage"]["completion_tokens"]
            .as_u64()
            .expect("a count");
        assert!(
            counted.abs_diff(spelled) <= 1,
            "{counted} tokens for {said:?}"
        );
        assert!(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].is_u64());
    }
    server.wait_until_idle();
}

#[test]
fn cached_tokens_are_told_however_a_choice_ends() {
    let server = Server::plain();
    let prompt: Vec<u32> = (0..100).collect();
    let base = json!({"prompt": prompt, "max_tokens": 40, "temperature": 0, "ignore_eos": true});
    let cached = |more| {
        server.post(COMPLETIONS, &with(&base, &more)).json()["usage"]["prompt_tokens_details"]
            .clone()
    };
    assert_eq!(cached(json!({})), json!({"cached_tokens": 0}));
    assert_eq!(cached(json!({})), json!({"cached_tokens": 96}));
    assert_eq!(
        cached(json!({"stop": ["a", "e", "i", "o", "u", " "]})),
        json!({"cached_tokens": 96})
    );
    assert_eq!(cached(json!({"n": 3})), json!({"cached_tokens": 96}));
    assert_eq!(
        cached(json!({"cache_salt": "mine"})),
        json!({"cached_tokens": 0})
    );
    assert_eq!(
        cached(json!({"prompt": [prompt, prompt]})),
        json!({"cached_tokens": 192})
    );
}

/// Otherwise the tokens of a secret could be found one by one, in another client's prompt or answer.
#[test]
fn clients_with_other_keys_share_no_prefix_unless_they_may() {
    let keys = || vec!["first".into(), "second".into()];
    for (options, shared) in [
        (
            ServerOptions {
                api_keys: keys(),
                ..ServerOptions::default()
            },
            0,
        ),
        (
            ServerOptions {
                api_keys: keys(),
                share_prefixes: true,
                ..ServerOptions::default()
            },
            96,
        ),
    ] {
        let server = Server::fake("", config(), options);
        let prompt: Vec<u32> = (0..100).collect();
        let ask = |key: &'static str, path: &str, more: Value| {
            let base = json!({"prompt": prompt, "max_tokens": 4, "ignore_eos": true, "debug": {"prefix": true}});
            let mut request = post(path, &with(&base, &more));
            request
                .headers_mut()
                .insert("x-api-key", axum::http::HeaderValue::from_static(key));
            let answer = server.send(request).json();
            let found = &answer["debug"]["prefix"][0];
            let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
            (
                cached.unwrap_or_else(|| panic!("{answer}")),
                found["matched_tokens"].as_u64().unwrap_or(0),
            )
        };
        assert_eq!(ask("first", COMPLETIONS, json!({})), (0, 0));
        assert_eq!(
            ask("second", COMPLETIONS, json!({})),
            (shared, shared),
            "shared: {shared}"
        );
        let mut other = prompt.clone();
        other[70] = 7;
        // Of the prompts of others, no report says where one differs.
        let differing = ask("second", COMPLETIONS, json!({"prompt": other}));
        assert_eq!(differing.0, 64, "its own blocks");
        assert_eq!(ask("first", COMPLETIONS, json!({})).0, 96, "it has its own");
    }
}

#[test]
fn stop_token_ids_and_ends_are_counted_but_not_shown() {
    let server = Server::cpu();
    let golden = [879, 0, 866, 436];
    let answer = server.post(
        CHAT,
        &with(
            &hello(),
            &json!({"stop_token_ids": [866], "logprobs": true}),
        ),
    );
    assert_eq!(text_of(&answer), "Hi!");
    let json = answer.json();
    assert_eq!(json["choices"][0]["finish_reason"], "stop");
    assert_eq!(json["usage"]["completion_tokens"], 3);
    assert_eq!(
        json["choices"][0]["logprobs"]["content"]
            .as_array()
            .map(Vec::len),
        Some(3)
    );
    let answer = server.post(CHAT, &with(&hello(), &json!({"max_tokens": golden.len()})));
    assert_eq!(answer.json()["choices"][0]["finish_reason"], "length");
}

#[test]
fn logprobs_of_chat() {
    let server = Server::cpu();
    let request = with(&hello(), &json!({"logprobs": true, "top_logprobs": 5}));
    let whole = server.post(CHAT, &request).json();
    let content = whole["choices"][0]["logprobs"]["content"]
        .as_array()
        .expect("a list")
        .clone();
    assert_eq!(
        content.len() as u64,
        whole["usage"]["completion_tokens"]
            .as_u64()
            .expect("a count")
    );
    let mut bytes: Vec<u8> = Vec::new();
    for token in &content {
        let top = token["top_logprobs"].as_array().expect("a list");
        assert_eq!(top.len(), 5);
        assert_eq!(
            top[0]["token"], token["token"],
            "greedy takes the most likely"
        );
        assert_eq!(top[0]["logprob"], token["logprob"]);
        let values: Vec<_> = top
            .iter()
            .map(|top| top["logprob"].as_f64().expect("a number"))
            .collect();
        assert!(
            values.is_sorted_by(|a, b| a >= b) && values[0] <= 0.0,
            "{values:?}"
        );
        bytes.extend(
            token["bytes"]
                .as_array()
                .expect("bytes")
                .iter()
                .map(|b| b.as_u64().expect("a byte") as u8),
        );
    }
    assert_eq!(
        String::from_utf8(bytes).expect("text"),
        "Hi! What can I do for you?<|im_end|>"
    );
    let first = content[0]["logprob"].as_f64().expect("a number");
    assert!(
        (first + 0.488_377).abs() < 0.03,
        "{first} is the reference's first logprob"
    );
    let stream = server.post(
        CHAT,
        &with(&request, &json!({"stream": true, "stop": ["for you"]})),
    );
    let mut tokens = Vec::new();
    for chunk in stream.chunks() {
        tokens.extend(
            chunk["choices"][0]["logprobs"]["content"]
                .as_array()
                .into_iter()
                .flatten()
                .cloned(),
        );
    }
    assert_eq!(tokens[..], content[..tokens.len()]);
    assert_eq!(
        tokens.last().expect("tokens")["token"],
        " you",
        "up to the token that completed the stop string"
    );
}

#[test]
fn the_tokens_of_a_chunk_are_its_text() {
    let server = Server::cpu();
    let request = with(&hello(), &json!({"logprobs": true, "stream": true}));
    // The second answer is drafted from the first, so that several tokens come at once.
    for _ in 0..2 {
        let mut all = String::new();
        for chunk in server.post(CHAT, &request).chunks() {
            let choice = &chunk["choices"][0];
            let tokens = choice["logprobs"]["content"]
                .as_array()
                .into_iter()
                .flatten();
            let tokens: String = tokens
                .map(|token| token["token"].as_str().expect("a text"))
                .collect();
            let text = choice["delta"]["content"].as_str().unwrap_or("");
            assert!(text.is_empty() || tokens == text, "{chunk}");
            all.push_str(&tokens);
        }
        assert_eq!(all, "Hi! What can I do for you?<|im_end|>");
    }
}

#[test]
fn logprobs_of_completions() {
    let server = Server::cpu();
    let request = json!({"prompt": "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n", "temperature": 0,
        "max_tokens": 6, "logprobs": 2});
    let logprobs = server.post(COMPLETIONS, &request).json()["choices"][0]["logprobs"].clone();
    assert_eq!(
        logprobs["tokens"],
        json!(["Hi", "!", " What", " can", " I", " do"])
    );
    assert_eq!(logprobs["text_offset"], json!([0, 2, 3, 8, 12, 14]));
    assert_eq!(logprobs["token_logprobs"].as_array().map(Vec::len), Some(6));
    let tops = logprobs["top_logprobs"].as_array().expect("a list");
    for (at, top) in tops.iter().enumerate() {
        let chosen = logprobs["tokens"][at].as_str().expect("a token");
        assert_eq!(
            top[chosen], logprobs["token_logprobs"][at],
            "the chosen token is among them"
        );
        assert_eq!(top.as_object().map(serde_json::Map::len), Some(2));
    }
    let none = server
        .post(COMPLETIONS, &with(&request, &json!({"logprobs": 0})))
        .json();
    assert_eq!(
        none["choices"][0]["logprobs"]["top_logprobs"][0]
            .as_object()
            .map(serde_json::Map::len),
        Some(1)
    );
    let without = server
        .post(COMPLETIONS, &with(&request, &json!({"logprobs": null})))
        .json();
    assert_eq!(without["choices"][0]["logprobs"], Value::Null);
}

#[test]
fn a_seed_repeats_whatever_runs_beside() {
    let server = Server::plain();
    let request = with(&hello(), &json!({"temperature": 1, "seed": 42}));
    let alone = text_of(&server.post(CHAT, &request));
    let noise: Vec<_> = (0..6)
        .map(|at| {
            with(
                &hello(),
                &json!({"temperature": 1, "seed": at, "stream": true}),
            )
        })
        .collect();
    let open: Vec<_> = noise
        .iter()
        .map(|request| server.open(CHAT, request))
        .collect();
    assert_eq!(text_of(&server.post(CHAT, &request)), alone);
    drop(open);
    let other = text_of(&server.post(CHAT, &with(&request, &json!({"seed": 43}))));
    assert_ne!(other, alone);
}

#[test]
fn usage_on_every_chunk_if_asked() {
    let server = Server::plain();
    let options = json!({"stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    let chunks = server.post(CHAT, &with(&hello(), &options)).chunks();
    let counts: Vec<_> = chunks
        .iter()
        .map(|c| c["usage"]["completion_tokens"].as_u64().expect("a count"))
        .collect();
    assert!(counts.is_sorted() && counts.last() > Some(&1), "{counts:?}");
    let last = chunks.last().expect("chunks");
    assert_eq!(last["choices"], json!([]));
    let usage = &last["usage"];
    let sum = usage["prompt_tokens"]
        .as_u64()
        .zip(usage["completion_tokens"].as_u64())
        .map(|(a, b)| a + b);
    assert_eq!(usage["total_tokens"].as_u64(), sum);
}

#[test]
fn the_context_is_used_to_its_end() {
    let server = Server::plain();
    let full = server.post(
        COMPLETIONS,
        &json!({"prompt": vec![5; 2047], "max_tokens": 9, "ignore_eos": true}),
    );
    assert_eq!(full.json()["usage"]["completion_tokens"], 1);
    assert_eq!(full.json()["choices"][0]["finish_reason"], "length");
    let base = json!({"prompt": vec![5; 2000], "ignore_eos": true});
    assert_eq!(
        server.post(COMPLETIONS, &base).json()["usage"]["completion_tokens"],
        16,
        "the default of completions"
    );
    let long = with(&base, &json!({"max_tokens": 10_u64.pow(18)}));
    assert_eq!(
        server.post(COMPLETIONS, &long).json()["usage"]["completion_tokens"],
        48
    );
    let chat = with(&hello(), &json!({"max_tokens": null, "ignore_eos": true}));
    let usage = server.post(CHAT, &chat).json()["usage"].clone();
    assert_eq!(
        usage["total_tokens"], 2048,
        "by default a chat may fill the context"
    );
}

#[test]
fn an_unbroken_megabyte_is_refused_and_a_context_full_is_tokenized() {
    let server = Server::plain();
    for text in [
        "a".repeat(16_384),
        " ".repeat(16_384),
        "\u{301}".repeat(8_000),
        "1+".repeat(8_000),
    ] {
        let answer = server.post(COMPLETIONS, &json!({"prompt": text, "max_tokens": 1}));
        assert!(
            [200, 400].contains(&answer.status.as_u16()),
            "{}",
            answer.text
        );
    }
}

#[test]
fn a_model_without_a_tokenizer_serves_ids() {
    let spawn = |inbox| {
        let open = || {
            Ok(folio::backend::fake::FakeBackend::new(
                "".parse().expect("a script"),
            ))
        };
        engine::spawn(open, Model::demo(), config(), inbox, |_| {})
    };
    let server = Server::start(
        spawn,
        ServerOptions::default(),
        Arc::new(TextModel::default()),
    );
    let answer = server.post(
        COMPLETIONS,
        &json!({"prompt": [5, 6], "max_tokens": 3, "logprobs": 1, "stop": "x"}),
    );
    assert_eq!(
        (answer.status.as_u16(), text_of(&answer)),
        (200, String::new())
    );
    let refused = server.post(COMPLETIONS, &json!({"prompt": "Hello"}));
    assert_eq!(
        (refused.status.as_u16(), &refused.json()["error"]["param"]),
        (400, &json!("prompt"))
    );
    let refused = server.post(CHAT, &hello());
    assert_eq!(
        (refused.status.as_u16(), &refused.json()["error"]["param"]),
        (400, &json!("messages"))
    );
}

#[test]
fn defaults_of_the_model_hold_until_a_request_says_otherwise() {
    let defaults = engine::request::SamplingParams {
        draw: engine::request::DrawParams::greedy(),
        ..params()
    };
    let server = Server::fake(
        "",
        config(),
        ServerOptions {
            defaults,
            ..ServerOptions::default()
        },
    );
    let mut request = hello();
    request
        .as_object_mut()
        .expect("an object")
        .remove("temperature");
    let greedy = text_of(&server.post(CHAT, &hello()));
    assert_eq!(text_of(&server.post(CHAT, &request)), greedy);
    let drawn = text_of(&server.post(CHAT, &with(&request, &json!({"temperature": 1, "seed": 1}))));
    assert_ne!(drawn, greedy);
}

#[test]
fn the_template_s_own_refusal_is_told() {
    let template = "{{ raise_exception('roles must alternate') }}";
    let text = TextModel::from_parts(
        Some(folio::model::demo::TOKENIZER_JSON),
        None,
        Some(template),
    )
    .expect("it compiles");
    let spawn = |inbox| {
        let open = || {
            Ok(folio::backend::fake::FakeBackend::new(
                "".parse().expect("a script"),
            ))
        };
        engine::spawn(open, Model::demo(), config(), inbox, |_| {})
    };
    let server = Server::start(spawn, ServerOptions::default(), Arc::new(text));
    let answer = server.post(CHAT, &hello());
    assert_eq!(answer.status, 400);
    let error = &answer.json()["error"];
    assert_eq!(
        (&error["message"], &error["param"]),
        (&json!("roles must alternate"), &json!("messages"))
    );
}

#[test]
fn many_clients_at_once() {
    let server = Server::plain();
    let requests: Vec<_> = (0..40)
        .map(|seed| with(&hello(), &json!({"temperature": 1, "seed": seed})))
        .collect();
    let alone: Vec<_> = requests
        .iter()
        .map(|request| text_of(&server.post(CHAT, request)))
        .collect();
    let together = folio::platform::block_on(futures_util::future::join_all(
        requests
            .iter()
            .map(|request| send(&server.app, post(CHAT, request))),
    ));
    let together: Vec<_> = together.iter().map(text_of).collect();
    assert_eq!(together, alone);
}

/// Some readers of streams split lines at more characters than the standard does.
#[test]
fn a_stream_has_no_line_ends_within_an_event() {
    let said = "a\u{2028}b\u{2029}c\u{85}d";
    let server = saying(&[said]);
    let user = json!([{"role": "user", "content": "Hello!"}]);
    for (path, request) in [
        (CHAT, hello()),
        (
            "/v1/messages",
            json!({"model": MODEL, "messages": user, "max_tokens": 60}),
        ),
        ("/v1/responses", json!({"model": MODEL, "input": "Hello!"})),
        ("/api/chat", json!({"model": MODEL, "messages": user})),
    ] {
        let request = with(&request, &json!({"stream": true, "temperature": 0}));
        let request = if path == CHAT {
            with(&request, &json!({"max_tokens": 60}))
        } else {
            request
        };
        let text = server.post(path, &request).text;
        assert!(
            !text.contains(['\u{2028}', '\u{2029}', '\u{85}']),
            "{path}: {text}"
        );
        assert!(
            text.contains("\\u2028") && text.contains("\\u2029") && text.contains("\\u0085"),
            "{path}: {text}"
        );
    }
    let whole = server.post(CHAT, &with(&hello(), &json!({"max_tokens": 60})));
    assert_eq!(whole.json()["choices"][0]["message"]["content"], said);
}

/// The content of an answer, streamed or whole, of any API.
fn content_of(path: &str, text: &str) -> String {
    let lines = text
        .lines()
        .map(|line| line.strip_prefix("data: ").unwrap_or(line));
    let values = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of_event = |event: Value| -> String {
        let one = |pointer: &str| {
            event
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        match path {
            "/v1/messages" => {
                let whole = event["content"].as_array().into_iter().flatten();
                whole
                    .filter_map(|block| block["text"].as_str())
                    .collect::<String>()
                    + &one("/delta/text")
            }
            "/v1/responses" if event["type"] == "response.output_text.delta" => one("/delta"),
            "/v1/responses" => {
                let items = event["output"].as_array().into_iter().flatten();
                let messages = items.filter(|item| item["type"] == "message");
                messages
                    .filter_map(|item| item["content"][0]["text"].as_str())
                    .collect()
            }
            "/api/chat" => one("/message/content"),
            _ => one("/choices/0/message/content") + &one("/choices/0/delta/content"),
        }
    };
    values.map(of_event).collect()
}

/// Clients always send stop strings, and know neither thoughts nor their tags.
#[test]
fn a_stop_string_ends_no_answer_within_its_thought_whatever_the_api() {
    let server = agents::thinking(&[
        "<think>\nOne STOP.\n\nTwo.\n</think>\n\nThe answer is 42. STOP Not this.",
    ]);
    let user = json!([{"role": "user", "content": "What is it?"}]);
    let base = json!({"model": MODEL, "messages": user, "max_tokens": 100, "temperature": 0});
    for (path, request) in [
        (
            CHAT,
            with(&base, &json!({"stop": ["STOP", "\n\n", "</think>", "Two"]})),
        ),
        (
            "/v1/messages",
            with(
                &base,
                &json!({"stop_sequences": ["STOP", "\n\n", "</think>", "Two"],
            "thinking": {"type": "adaptive"}}),
            ),
        ),
        (
            "/v1/responses",
            json!({"model": MODEL, "input": "What is it?", "stop": ["STOP", "\n\n", "</think>", "Two"]}),
        ),
        (
            "/api/chat",
            json!({"model": MODEL, "messages": user, "think": true,
            "options": {"stop": ["STOP", "\n\n", "</think>", "Two"], "temperature": 0}}),
        ),
    ] {
        for stream in [false, true] {
            let answer = server.post(path, &with(&request, &json!({"stream": stream})));
            assert_eq!(
                content_of(path, &answer.text),
                "The answer is 42. ",
                "{path} {stream}: {}",
                answer.text
            );
        }
    }
    // Several choices of one request.
    let several = with(&base, &json!({"stop": ["STOP", "Two"], "n": 2}));
    let answer = server.post(CHAT, &several).json();
    let contents = [0, 1].map(|choice| &answer["choices"][choice]["message"]["content"]);
    assert_eq!(contents, ["The answer is 42. "; 2]);
}
