//! The effects of the less common request fields.

use crate::harness::{CHAT, COMPLETIONS, Server, config, demo_text, hello, with};
use folio::model::demo;
use folio::server::ServerOptions;
use folio::text::TextModel;
use serde_json::{Value, json};
use std::sync::Arc;

fn text(answer: &Value) -> &str {
    let choice = &answer["choices"][0];
    choice["text"]
        .as_str()
        .or(choice["message"]["content"].as_str())
        .expect("a text")
}

#[test]
fn no_end_comes_before_its_time() {
    let server = Server::cpu();
    let ask = |more: Value| server.post(CHAT, &with(&hello(), &more)).json();
    let free = ask(json!({}));
    assert_eq!(
        (
            &free["usage"]["completion_tokens"],
            &free["choices"][0]["finish_reason"]
        ),
        (&json!(10), &json!("stop"))
    );
    let held = ask(json!({"min_tokens": 14}));
    assert!(
        held["usage"]["completion_tokens"].as_u64() >= Some(14),
        "{held}"
    );
    assert!(
        text(&held).starts_with(text(&free)),
        "only the end was held back: {held}"
    );
    assert_eq!(
        ask(json!({"min_tokens": 9}))["choices"],
        free["choices"],
        "after nine the end may come"
    );
    // A stop token id, a logit bias for the same id, and a stop string.
    let stop = json!({"stop_token_ids": [866], "max_tokens": 24});
    assert_eq!(ask(stop.clone())["usage"]["completion_tokens"], 3);
    let more = json!({"min_tokens": 6, "logit_bias": {"866": 50}});
    assert!(ask(with(&stop, &more))["usage"]["completion_tokens"].as_u64() >= Some(7));
    assert_eq!(text(&ask(json!({"stop": "!"}))), "Hi");
    let late = ask(json!({"stop": ["!", "I"], "min_tokens": 3}));
    assert_eq!(
        text(&late),
        "Hi! What can ",
        "the first stop string came too early"
    );
}

#[test]
fn a_stop_string_is_shown_if_asked() {
    let server = Server::cpu();
    let ask = |more: Value| server.post(CHAT, &with(&hello(), &more)).json();
    assert_eq!(
        text(&ask(
            json!({"stop": "can I", "include_stop_str_in_output": true})
        )),
        "Hi! What can I"
    );
    assert_eq!(text(&ask(json!({"stop": "can I"}))), "Hi! What ");
    let by_id = json!({"stop_token_ids": [866], "include_stop_str_in_output": true});
    assert_eq!(text(&ask(by_id)), "Hi! What");
}

#[test]
fn special_tokens_are_shown_if_asked() {
    let server = Server::cpu();
    let answer = server.post(
        CHAT,
        &with(
            &hello(),
            &json!({"skip_special_tokens": false, "ignore_eos": true}),
        ),
    );
    assert!(
        text(&answer.json()).starts_with("Hi! What can I do for you?<|im_end|>"),
        "{}",
        answer.text
    );
}

#[test]
fn token_ids_of_prompt_and_answer() {
    let server = Server::cpu();
    let tokenizer = demo_text().tokenizer.clone().expect("the demo has one");
    let spelled = |ids: &Value| -> String {
        let ids = ids
            .as_array()
            .expect("ids")
            .iter()
            .map(|id| id.as_u64().expect("an id") as u32);
        ids.map(|id| String::from_utf8(tokenizer.token_bytes(id, None)).expect("text"))
            .collect()
    };
    let asked = with(&hello(), &json!({"return_token_ids": true}));
    let whole = server.post(CHAT, &asked).json();
    assert_eq!(
        spelled(&whole["choices"][0]["token_ids"]),
        "Hi! What can I do for you?<|im_end|>"
    );
    assert_eq!(
        spelled(&whole["prompt_token_ids"]),
        "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n"
    );
    let chunks = server
        .post(CHAT, &with(&asked, &json!({"stream": true})))
        .chunks();
    assert_eq!(chunks[0]["prompt_token_ids"], whole["prompt_token_ids"]);
    let ids = chunks.iter().flat_map(|c| {
        c["choices"][0]["token_ids"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    });
    assert_eq!(
        Value::from(ids.collect::<Vec<_>>()),
        whole["choices"][0]["token_ids"]
    );
    let request = json!({"prompt": [[5, 6], [7]], "max_tokens": 3, "return_token_ids": true, "temperature": 0});
    let answer = server.post(COMPLETIONS, &request).json();
    assert_eq!(answer["choices"][1]["prompt_token_ids"], json!([7]));
    assert_eq!(
        answer["choices"][0]["token_ids"].as_array().map(Vec::len),
        Some(3)
    );
    let streamed = server
        .post(COMPLETIONS, &with(&request, &json!({"stream": true})))
        .chunks();
    let repeats = |chunk: &&Value| !chunk["choices"][0]["prompt_token_ids"].is_null();
    assert_eq!(
        streamed.iter().filter(repeats).count(),
        2,
        "once for each prompt"
    );
    assert!(
        server
            .post(CHAT, &hello())
            .json()
            .get("prompt_token_ids")
            .is_none()
    );
}

#[test]
fn the_best_of_several_is_the_likeliest() {
    let server = Server::cpu();
    let base = json!({"prompt": ["Once", "The KV cache"], "max_tokens": 8, "temperature": 1,
        "seed": 11, "logprobs": 0});
    let all = server
        .post(COMPLETIONS, &with(&base, &json!({"n": 5})))
        .json();
    let best = server
        .post(COMPLETIONS, &with(&base, &json!({"n": 2, "best_of": 5})))
        .json();
    let choices = |answer: &Value| answer["choices"].as_array().expect("choices").clone();
    let mean = |choice: &Value| {
        let values = choice["logprobs"]["token_logprobs"]
            .as_array()
            .expect("logprobs");
        values
            .iter()
            .map(|value| value.as_f64().expect("a number"))
            .sum::<f64>()
            / values.len() as f64
    };
    let (all, best) = (choices(&all), choices(&best));
    assert_eq!(best.len(), 4);
    for prompt in 0..2 {
        let mut expected = all[prompt * 5..][..5].to_vec();
        expected.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
        for (place, choice) in best[prompt * 2..][..2].iter().enumerate() {
            assert_eq!(
                choice["text"], expected[place]["text"],
                "prompt {prompt}, place {place}"
            );
            assert_eq!(choice["index"], prompt * 2 + place);
        }
    }
    let silent = server
        .post(
            COMPLETIONS,
            &with(&base, &json!({"best_of": 3, "logprobs": null})),
        )
        .json();
    assert_eq!(
        silent["choices"][0]["logprobs"],
        Value::Null,
        "logprobs used only for `best_of` are not returned"
    );
    assert!(
        silent["usage"]["completion_tokens"].as_u64() > Some(16),
        "all generated tokens are counted"
    );
}

/// The sums of the logprobs of a completion's choices, in order.
fn sums(answer: &Value) -> Vec<f64> {
    let sum = |choice: &Value| {
        let values = choice["logprobs"]["token_logprobs"]
            .as_array()
            .expect("logprobs");
        values
            .iter()
            .map(|value| value.as_f64().expect("a number"))
            .sum()
    };
    answer["choices"]
        .as_array()
        .expect("choices")
        .iter()
        .map(sum)
        .collect()
}

#[test]
fn a_beam_search_finds_likelier_answers_than_greedy_sampling_best_first() {
    let server = Server::cpu();
    let base =
        json!({"prompt": "The KV cache", "max_tokens": 12, "logprobs": 1, "ignore_eos": true});
    let greedy = server
        .post(COMPLETIONS, &with(&base, &json!({"temperature": 0})))
        .json();
    let search = json!({"use_beam_search": true, "n": 3, "best_of": 6, "length_penalty": 0});
    let found = server.post(COMPLETIONS, &with(&base, &search)).json();
    let (one, found_sums) = (sums(&greedy)[0], sums(&found));
    assert_eq!(found_sums.len(), 3, "{found}");
    assert!(
        found_sums.is_sorted_by(|a, b| a >= b),
        "best first: {found_sums:?}"
    );
    assert!(found_sums[0] >= one - 1e-4, "{found_sums:?}, greedy {one}");
    assert_eq!(found["usage"]["completion_tokens"], 36);
    let texts: Vec<_> = (0..3).map(|index| text_of(&found, index)).collect();
    assert!(
        texts[0] != texts[1] && texts[1] != texts[2] && texts[0] != texts[2],
        "{texts:?}"
    );
    let single = with(&base, &json!({"use_beam_search": true, "n": 1}));
    assert_eq!(
        text(&server.post(COMPLETIONS, &single).json()),
        text(&greedy),
        "one beam is greedy"
    );
    let chat = json!({"use_beam_search": true, "n": 2, "max_tokens": 4});
    let chat = server.post(CHAT, &with(&hello(), &chat)).json();
    assert_eq!(chat["choices"].as_array().map(Vec::len), Some(2), "{chat}");
}

fn text_of(answer: &Value, index: usize) -> String {
    answer["choices"][index]["text"]
        .as_str()
        .expect("a text")
        .to_owned()
}

#[test]
fn beams_end_at_stop_strings_and_keep_to_grammars() {
    let server = Server::cpu();
    let base = json!({"prompt": "The KV cache", "max_tokens": 16, "use_beam_search": true, "n": 4, "logprobs": 0});
    let free = server.post(COMPLETIONS, &base).json();
    let stopped = server
        .post(COMPLETIONS, &with(&base, &json!({"stop": " KV"})))
        .json();
    for choice in stopped["choices"].as_array().expect("choices") {
        assert!(
            !choice["text"].as_str().expect("a text").contains(" KV"),
            "{stopped}"
        );
    }
    assert_ne!(
        free["choices"], stopped["choices"],
        "some beam has the stop string"
    );
    let colors = json!({"guided_choice": ["red", "green", "blue", "black"], "n": 3, "best_of": 4});
    let chosen = server.post(COMPLETIONS, &with(&base, &colors)).json();
    let texts: std::collections::BTreeSet<_> =
        (0..3).map(|index| text_of(&chosen, index)).collect();
    assert_eq!(texts.len(), 3, "{chosen}");
    assert!(
        texts
            .iter()
            .all(|text| ["red", "green", "blue", "black"].contains(&text.as_str())),
        "{chosen}"
    );
    let few = server.post(
        COMPLETIONS,
        &with(&base, &json!({"guided_choice": ["a", "b"]})),
    );
    assert_eq!(
        (few.status.as_u16(), &few.json()["error"]["param"]),
        (400, &json!("n")),
        "two, not four: {}",
        few.text
    );
}

#[test]
fn a_completion_may_begin_with_its_prompt() {
    let server = Server::cpu();
    let base = json!({"prompt": ["Hello, wörld", "A fox"], "max_tokens": 4, "temperature": 0});
    let plain = server.post(COMPLETIONS, &base).json();
    let echo = server
        .post(COMPLETIONS, &with(&base, &json!({"echo": true})))
        .json();
    let stream = server
        .post(
            COMPLETIONS,
            &with(&base, &json!({"echo": true, "stream": true})),
        )
        .chunks();
    for (index, prompt) in ["Hello, wörld", "A fox"].iter().enumerate() {
        let expected = format!(
            "{prompt}{}",
            plain["choices"][index]["text"].as_str().expect("a text")
        );
        assert_eq!(echo["choices"][index]["text"], expected);
        let of_choice = stream
            .iter()
            .map(|chunk| &chunk["choices"][0])
            .filter(|choice| choice["index"] == index);
        let streamed: String = of_choice
            .map(|choice| choice["text"].as_str().expect("a text"))
            .collect();
        assert_eq!(streamed, expected);
    }
    let ids = server
        .post(
            COMPLETIONS,
            &with(&base, &json!({"prompt": [866], "echo": true})),
        )
        .json();
    assert!(text(&ids).starts_with(" What"), "{ids}");
}

#[test]
fn a_long_prompt_may_lose_its_beginning() {
    let server = Server::plain();
    let long: Vec<u32> = (0..3000).map(|id| id % 4000).collect();
    let ask = |prompt: &[u32], most: Value| {
        let request = json!({"prompt": prompt, "max_tokens": 3, "temperature": 0, "truncate_prompt_tokens": most});
        server.post(COMPLETIONS, &request).json()
    };
    let cut = ask(&long, json!(20));
    assert_eq!(cut["usage"]["prompt_tokens"], 20);
    assert_eq!(
        text(&cut),
        text(&ask(&long[2980..], Value::Null)),
        "the end is kept"
    );
    assert_eq!(ask(&long, json!(-1))["usage"]["prompt_tokens"], 2047);
    assert_eq!(
        ask(&long, Value::Null)["error"]["code"],
        "context_length_exceeded"
    );
}

#[test]
fn a_text_of_many_bytes_is_cut_to_the_tokens_that_fit() {
    let server = Server::plain();
    let long = "a ".repeat(50_000);
    let messages = json!([{"role": "user", "content": long}]);
    let cut = json!({"truncate_prompt_tokens": -1, "max_tokens": 1});
    for (path, request) in [
        (COMPLETIONS, json!({"prompt": long})),
        (CHAT, json!({"messages": messages})),
    ] {
        let answer = server.post(path, &with(&request, &cut)).json();
        assert_eq!(answer["usage"]["prompt_tokens"], 2047, "{path}: {answer}");
        let refused = server
            .post(path, &with(&request, &json!({"max_tokens": 1})))
            .json();
        assert_eq!(
            refused["error"]["code"], "context_length_exceeded",
            "{path}: {refused}"
        );
    }
    let automatic = server
        .post(
            "/v1/responses",
            &json!({"input": long, "truncation": "auto"}),
        )
        .json();
    assert_eq!(automatic["usage"]["input_tokens"], 2047, "{automatic}");
}

#[test]
fn the_last_message_is_continued() {
    let server = Server::cpu();
    let messages = json!([{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hi! What can"}]);
    let base = with(
        &hello(),
        &json!({"messages": messages, "continue_final_message": true}),
    );
    let answer = server.post(CHAT, &base).json();
    assert_eq!(text(&answer), " I do for you?", "{answer}");
    // A template that writes text after every message; special-token text in the content; white space around it.
    let render = |content: &str| {
        let messages =
            json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": content}]);
        let request = json!({"messages": messages, "continue_final_message": true});
        server.post("/apply-template", &request).json()["prompt"]
            .as_str()
            .expect("a prompt")
            .to_owned()
    };
    assert!(render("so <|im_end|> it").ends_with("<|im_start|>assistant\nso <|im_end|> it"));
    assert!(render("a ").ends_with("assistant\na "));
    assert!(
        render("").ends_with("<|im_start|>assistant\n"),
        "an empty text is continued, too"
    );
}

#[test]
fn effort_is_the_template_s_to_read() {
    let template = "{{ reasoning_effort }}/{{ messages[0].content }}";
    let text = TextModel::from_parts(Some(demo::TOKENIZER_JSON), None, Some(template));
    let server = Server::plain_with(Arc::new(text.expect("it compiles")));
    let render = |more: Value| {
        server
            .post("/apply-template", &with(&hello(), &more))
            .json()["prompt"]
            .clone()
    };
    assert_eq!(render(json!({"reasoning_effort": "high"})), "high/Hello!");
    let both =
        json!({"reasoning_effort": "high", "chat_template_kwargs": {"reasoning_effort": "own"}});
    assert_eq!(render(both), "own/Hello!");
    assert_eq!(render(json!({})), "/Hello!");
}

/// Templates that refuse every conversation, and prompts that are found too long once they are encoded.
#[test]
fn what_needs_no_tokens_is_checked_before_the_prompt_is_encoded() {
    let text = TextModel::from_parts(
        Some(demo::TOKENIZER_JSON),
        None,
        Some("{{ raise_exception('rendered') }}"),
    );
    let server = Server::plain_with(Arc::new(text.expect("it compiles")));
    let prompt = json!({"prompt": "1 ".repeat(4000)});
    for (path, base, encoded) in [
        (CHAT, &hello(), "messages"),
        (COMPLETIONS, &prompt, "prompt"),
        ("/completion", &prompt, "prompt"),
    ] {
        let param =
            |more: Value| server.post(path, &with(base, &more)).json()["error"]["param"].clone();
        assert_eq!(param(json!({})), encoded, "{path}");
        for (name, value) in [
            ("temperature", json!(300)),
            ("logit_bias", json!({"4096": 1})),
            ("min_tokens", json!(9999)),
            ("cache_salt", json!("")),
            ("guided_regex", json!("(")),
        ] {
            assert_eq!(param(json!({name: value})), name, "{path}");
        }
    }
    let function = json!({"name": "f", "parameters": {"type": "object", "minProperties": "one"}});
    let tools =
        json!({"tools": [{"type": "function", "function": function}], "tool_choice": "required"});
    assert_eq!(
        server.post(CHAT, &with(&hello(), &tools)).json()["error"]["param"],
        "tools"
    );
    let input = json!({"input": prompt["prompt"], "cache_salt": ""});
    assert_eq!(
        server.post("/v1/embeddings", &input).json()["error"]["param"],
        "cache_salt"
    );
}

#[test]
fn why_a_prefix_missed() {
    let server = Server::plain();
    let prompt: Vec<u32> = (100..180).collect();
    let ask = |prompt: &[u32], more: Value| {
        let request = json!({"prompt": prompt, "max_tokens": 2, "ignore_eos": true, "debug": {"prefix": true}});
        server.post(COMPLETIONS, &with(&request, &more)).json()["debug"]["prefix"][0].clone()
    };
    let told = |report: &Value| {
        let number = |name: &str| report[name].as_u64().expect("a count");
        (
            number("cached_tokens"),
            number("matched_tokens"),
            report["stopped_by"].as_str().expect("a cause").to_owned(),
        )
    };
    let first = ask(&prompt, json!({}));
    assert_eq!(told(&first), (0, 0, "difference".into()), "{first}");
    let name = demo_text()
        .tokenizer
        .clone()
        .expect("the demo has one")
        .token_bytes(100, None);
    let difference =
        json!({"position": 0, "token_id": 100, "token": String::from_utf8_lossy(&name)});
    assert_eq!(first["first_difference"], difference);
    // Blocks have 16 tokens, and the last token is always computed.
    assert_eq!(
        told(&ask(&prompt, json!({}))),
        (64, 80, "end_of_prompt".into())
    );
    let mut other = prompt.clone();
    other[40] = 7;
    let report = ask(&other, json!({}));
    assert_eq!(told(&report), (32, 40, "difference".into()), "{report}");
    assert_eq!(report["first_difference"]["token_id"], 7);
    assert_eq!(
        told(&ask(&prompt, json!({"cache_salt": "own"}))),
        (0, 0, "salt".into())
    );
    assert_eq!(
        told(&ask(&prompt, json!({"cache_salt": "own"}))),
        (64, 80, "end_of_prompt".into())
    );
    let streamed =
        json!({"prompt": prompt, "max_tokens": 2, "stream": true, "debug": {"prefix": true}});
    let chunks = server.post(COMPLETIONS, &streamed).chunks();
    assert_eq!(
        chunks
            .iter()
            .filter(|chunk| chunk.get("debug").is_some())
            .count(),
        1
    );
    assert!(
        server
            .post(COMPLETIONS, &json!({"prompt": prompt, "max_tokens": 1}))
            .json()
            .get("debug")
            .is_none()
    );
    server.wait_until_idle();
    let metrics = server.get("/metrics").text;
    for (cause, count) in [
        ("difference", 2),
        ("end_of_prompt", 4),
        ("salt", 1),
        ("eviction", 0),
    ] {
        let line = format!(
            "vllm:prefix_cache_ends_total{{engine=\"0\",model_name=\"demo\",cause=\"{cause}\"}} {count}\n"
        );
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
}

#[test]
fn a_prefix_returns_from_host_memory() {
    let (kv_cache_bytes, kv_host_bytes) = (Some(1 << 20), 64 << 20);
    let small = folio::config::Config {
        kv_cache_bytes,
        kv_host_bytes,
        max_model_len: Some(400),
        ..config()
    };
    let server = Server::fake("", small, ServerOptions::default());
    let ask = |first: u32| {
        let prompt: Vec<u32> = (0..300).map(|place| (first + place) % 500).collect();
        let request = json!({"prompt": prompt, "max_tokens": 1, "debug": {"prefix": true}});
        server.post(COMPLETIONS, &request).json()
    };
    assert_eq!(
        ask(0)["usage"]["prompt_tokens_details"],
        json!({"cached_tokens": 0})
    );
    (1..12).for_each(|first| drop(ask(first)));
    let returned = ask(0);
    let details = &returned["usage"]["prompt_tokens_details"];
    assert_eq!(
        details,
        &json!({"cached_tokens": 288, "host_cached_tokens": 288})
    );
    assert_eq!(returned["debug"]["prefix"][0]["host_cached_tokens"], 288);
    assert_eq!(
        ask(0)["usage"]["prompt_tokens_details"],
        json!({"cached_tokens": 288}),
        "now it is on the device"
    );
    server.wait_until_idle();
    let metrics = server.get("/metrics").text;
    for line in [
        "prefix_cache_tier_hits_total{engine=\"0\",model_name=\"demo\",tier=\"host\"} 288\n",
        "kv_blocks_restored_total{",
    ] {
        assert!(metrics.contains(&format!("vllm:{line}")), "{line}{metrics}");
    }
}

#[test]
fn a_prefix_outlives_its_server_on_disk() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let kv_disk = Some(folio::config::DiskConfig {
        folder: folder.path().to_owned(),
        bytes: 64 << 20,
    });
    let config = folio::config::Config {
        kv_disk,
        ..config()
    };
    let ask = |server: &Server, salt: Option<&str>| {
        let prompt: Vec<u32> = (0..300).collect();
        let mut request = json!({"prompt": prompt, "max_tokens": 1, "debug": {"prefix": true}});
        request
            .as_object_mut()
            .expect("an object")
            .extend(salt.map(|salt| ("cache_salt".into(), salt.into())));
        server.post(COMPLETIONS, &request).json()
    };
    let metric = |server: &Server, line: &str| {
        server
            .get("/metrics")
            .text
            .contains(&format!("vllm:{line}"))
    };
    let first = Server::fake("", config.clone(), ServerOptions::default());
    assert_eq!(
        ask(&first, None)["usage"]["prompt_tokens_details"],
        json!({"cached_tokens": 0})
    );
    ask(&first, Some("secret"));
    while !metric(
        &first,
        "kv_files_written_total{engine=\"0\",model_name=\"demo\"} 18\n",
    ) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    drop(first);
    let second = Server::fake("", config, ServerOptions::default());
    let returned = ask(&second, None);
    let details = &returned["usage"]["prompt_tokens_details"];
    assert_eq!(
        details,
        &json!({"cached_tokens": 288, "disk_cached_tokens": 288})
    );
    assert_eq!(returned["debug"]["prefix"][0]["disk_cached_tokens"], 288);
    assert_eq!(
        ask(&second, None)["usage"]["prompt_tokens_details"],
        json!({"cached_tokens": 288}),
        "on the device"
    );
    let salted = ask(&second, Some("secret"));
    assert_eq!(
        salted["usage"]["prompt_tokens_details"],
        json!({"cached_tokens": 0}),
        "salted blocks are not written"
    );
    second.wait_until_idle();
    for line in [
        "prefix_cache_tier_hits_total{engine=\"0\",model_name=\"demo\",tier=\"disk\"} 288\n",
        "kv_files_read_total{",
    ] {
        assert!(metric(&second, line), "{line}");
    }
}

#[test]
fn a_server_goes_on_without_the_folder_of_its_blocks_and_says_so() {
    let parent = tempfile::tempdir().expect("a folder for this test");
    let folder = parent.path().join("kv");
    let kv_disk = Some(folio::config::DiskConfig {
        folder: folder.clone(),
        bytes: 64 << 20,
    });
    let config = folio::config::Config {
        kv_disk,
        ..config()
    };
    let server = Server::fake("", config, ServerOptions::default());
    let ask = |first: u32| {
        let prompt: Vec<u32> = (first..first + 100).collect();
        assert_eq!(
            server
                .post(COMPLETIONS, &json!({"prompt": prompt, "max_tokens": 1}))
                .status,
            200
        );
    };
    let wait_for = |health: &Value| {
        while server.get("/health").json() != *health {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    let metric = |line: &str| {
        assert!(
            server
                .get("/metrics")
                .text
                .contains(&format!("vllm:{line}\n")),
            "{line}"
        );
    };
    ask(0);
    wait_for(&json!({"status": "ok"}));
    let file = parent.path().join("file");
    std::fs::write(&file, "in its place").expect("the parent takes files");
    // The server may write a block, or make the folder again, meanwhile.
    while std::fs::rename(&file, &folder).is_err() {
        let _ = std::fs::remove_dir_all(&folder);
    }
    wait_for(&json!({"status": "ok", "kv_disk": "failing"}));
    assert_eq!(server.get("/health").status, 200, "requests are answered");
    metric("kv_disk_failing{engine=\"0\",model_name=\"demo\"} 1");
    ask(0);
    ask(200);
    std::fs::remove_file(&folder).expect("it is there");
    wait_for(&json!({"status": "ok"}));
    metric("kv_disk_failing{engine=\"0\",model_name=\"demo\"} 0");
    ask(300);
    while std::fs::read_dir(&folder).is_ok_and(|entries| entries.count() < 2) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_planted_block_is_not_used_and_counted() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let kv_disk = Some(folio::config::DiskConfig {
        folder: folder.path().to_owned(),
        bytes: 64 << 20,
    });
    let config = folio::config::Config {
        kv_disk,
        ..config()
    };
    let prompt: Vec<u32> = (0..300).collect();
    let ask = |server: &Server| {
        server
            .post(COMPLETIONS, &json!({"prompt": prompt, "max_tokens": 1}))
            .json()
    };
    let metric = |server: &Server, line: &str| {
        server
            .get("/metrics")
            .text
            .contains(&format!("vllm:{line}\n"))
    };
    let first = Server::fake("", config.clone(), ServerOptions::default());
    ask(&first);
    while !metric(
        &first,
        "kv_files_written_total{engine=\"0\",model_name=\"demo\"} 18",
    ) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    drop(first);
    // The same blocks, as somebody without the folder's key would have written them.
    let other_key: Vec<u8> = std::fs::read(folder.path().join("key")).expect("it is there");
    let other_key: Vec<u8> = other_key.iter().map(|byte| byte ^ 1).collect();
    std::fs::write(folder.path().join("key"), other_key).expect("it can be written");
    let second = Server::fake("", config, ServerOptions::default());
    assert_eq!(
        ask(&second)["usage"]["prompt_tokens_details"],
        json!({"cached_tokens": 0})
    );
    second.wait_until_idle();
    assert!(metric(
        &second,
        "kv_files_read_total{engine=\"0\",model_name=\"demo\"} 0"
    ));
    assert!(metric(
        &second,
        "kv_files_refused_total{engine=\"0\",model_name=\"demo\"} 18"
    ));
}

#[test]
fn an_evicted_prefix_is_told() {
    let small = folio::config::Config {
        kv_cache_bytes: Some(1 << 20),
        max_model_len: Some(400),
        ..config()
    };
    let server = Server::fake("", small, ServerOptions::default());
    let ask = |prompt: Vec<u32>| {
        let request = json!({"prompt": prompt, "max_tokens": 1, "debug": {"prefix": true}});
        server.post(COMPLETIONS, &request).json()["debug"]["prefix"][0]["stopped_by"].clone()
    };
    let prompt: Vec<u32> = (0..300).collect();
    assert_eq!(ask(prompt.clone()), "difference");
    for start in 1..12 {
        ask((start * 300..(start + 1) * 300).collect());
    }
    assert_eq!(ask(prompt), "eviction");
}

#[test]
fn without_a_cache_that_is_the_cause() {
    let off = folio::config::Config {
        prefix_caching: false,
        ..config()
    };
    let server = Server::fake("", off, ServerOptions::default());
    let answer = server
        .post(CHAT, &with(&hello(), &json!({"debug": {"prefix": true}})))
        .json();
    assert_eq!(answer["debug"]["prefix"][0]["stopped_by"], "disabled");
}
