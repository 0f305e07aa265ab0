//! Prompt logprobs: compared with those that generation reports for the same tokens, in chunks, under preemption, in
//! both forms.

use crate::harness::{CHAT, COMPLETIONS, Server, config, demo_text, hello, with};
use folio::backend::fake::{PlainHistory, scored_rank};
use folio::config::Config;
use folio::server::ServerOptions;
use serde_json::{Value, json};

fn numbers(values: &Value) -> Vec<f64> {
    values
        .as_array()
        .expect("a list")
        .iter()
        .map(|value| value.as_f64().expect("a number"))
        .collect()
}

#[test]
fn a_prompt_s_logprobs_are_those_of_its_generation() {
    let server = Server::cpu();
    let question = json!([{"role": "user", "content": "What is a KV cache?"}]);
    let request = json!({"messages": question, "temperature": 0, "max_tokens": 70, "return_token_ids": true,
        "logprobs": true, "top_logprobs": 3});
    let answer = server.post(CHAT, &request).json();
    let generated = answer["choices"][0]["logprobs"]["content"]
        .as_array()
        .expect("logprobs")
        .clone();
    let prompt = answer["prompt_token_ids"].as_array().expect("ids").clone();
    let own = answer["choices"][0]["token_ids"]
        .as_array()
        .expect("ids")
        .clone();
    assert!(
        prompt.len() + own.len() > 40,
        "more than one step can score"
    );
    let all: Vec<Value> = prompt.iter().chain(&own).cloned().collect();
    let echo = json!({"prompt": all, "max_tokens": 0, "echo": true, "logprobs": 3, "skip_special_tokens": false});
    let echoed = server.post(COMPLETIONS, &echo).json();
    let logprobs = &echoed["choices"][0]["logprobs"];
    assert_eq!(
        (&logprobs["token_logprobs"][0], &logprobs["top_logprobs"][0]),
        (&Value::Null, &Value::Null)
    );
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(
            logprobs[name].as_array().map(Vec::len),
            Some(all.len()),
            "{name}"
        );
    }
    for (index, expected) in generated.iter().enumerate() {
        let place = prompt.len() + index;
        let found = logprobs["token_logprobs"][place]
            .as_f64()
            .expect("a number");
        let wanted = expected["logprob"].as_f64().expect("a number");
        assert!(
            (found - wanted).abs() < 1e-6,
            "token {index}: {found} for {wanted}"
        );
        let top = logprobs["top_logprobs"][place]
            .as_object()
            .expect("alternatives");
        for alternative in expected["top_logprobs"].as_array().expect("a list") {
            let name = alternative["token"].as_str().expect("a name");
            let difference = top[name]
                .as_f64()
                .zip(alternative["logprob"].as_f64())
                .map(|(a, b)| (a - b).abs());
            assert!(difference < Some(1e-6), "{name} at {index}: {top:?}");
        }
    }
    let text = echoed["choices"][0]["text"].as_str().expect("a text");
    assert_eq!(
        logprobs["tokens"]
            .as_array()
            .expect("tokens")
            .iter()
            .filter_map(Value::as_str)
            .collect::<String>(),
        text
    );
    assert_eq!(
        (
            &echoed["choices"][0]["finish_reason"],
            &echoed["usage"]["completion_tokens"]
        ),
        (&json!("length"), &json!(0))
    );
    server.wait_until_idle();
}

/// The fake device's logprobs of each token of a prompt except the first.
fn expected(prompt: &[u32]) -> Vec<f64> {
    let mut history = PlainHistory::new(&[None]);
    prompt
        .windows(2)
        .map(|pair| -0.5 - f64::from(scored_rank(history.push(pair[0]), pair[1])))
        .collect()
}

#[test]
fn every_position_is_scored_once_whatever_the_steps_are() {
    let small = Config {
        max_num_batched_tokens: 100,
        max_num_seqs: 4,
        ..config()
    };
    let deterministic = Config {
        deterministic: true,
        ..config()
    };
    let tight = Config {
        kv_cache_bytes: Some(2 << 20),
        max_model_len: Some(900),
        ..config()
    };
    for config in [config(), small, deterministic, tight] {
        let server = Server::fake("seed=3", config, ServerOptions::default());
        let prompts: Vec<Vec<u32>> = (0..4_u32)
            .map(|index| {
                (0..150 + 100 * index)
                    .map(|at| (at * 7 + index) % 4000)
                    .collect()
            })
            .collect();
        // The second time, the prompts are in the prefix cache.
        for _ in 0..2 {
            let request = json!({"prompt": prompts, "echo": true, "logprobs": 0, "max_tokens": 40, "ignore_eos": true});
            let answer = server.post(COMPLETIONS, &request).json();
            for (index, prompt) in prompts.iter().enumerate() {
                let logprobs = &answer["choices"][index]["logprobs"]["token_logprobs"];
                let found =
                    &logprobs.as_array().unwrap_or_else(|| panic!("{answer}"))[1..prompt.len()];
                assert_eq!(
                    numbers(&Value::from(found)),
                    expected(prompt),
                    "prompt {index}"
                );
                assert_eq!(logprobs.as_array().map(Vec::len), Some(prompt.len() + 40));
            }
        }
        server.wait_until_idle();
    }
}

#[test]
fn all_choices_of_a_prompt_are_told_and_a_stream_says_the_same() {
    let server = Server::plain();
    let prompt: Vec<u32> = (0..90).collect();
    let base = json!({"prompt": prompt, "echo": true, "logprobs": 1, "n": 3, "max_tokens": 5,
        "seed": 4, "ignore_eos": true});
    let whole = server.post(COMPLETIONS, &base).json();
    let chunks = server
        .post(COMPLETIONS, &with(&base, &json!({"stream": true})))
        .chunks();
    for index in 0..3 {
        let logprobs = &whole["choices"][index]["logprobs"];
        assert_eq!(
            numbers(&Value::from(
                &logprobs["token_logprobs"].as_array().expect("a list")[1..90]
            )),
            expected(&prompt)
        );
        for name in ["tokens", "token_logprobs", "text_offset"] {
            let of_choice = chunks
                .iter()
                .map(|chunk| &chunk["choices"][0])
                .filter(|choice| choice["index"] == index);
            let parts = of_choice.flat_map(|choice| {
                choice["logprobs"][name]
                    .as_array()
                    .cloned()
                    .unwrap_or_default()
            });
            assert_eq!(
                Value::from(parts.collect::<Vec<_>>()),
                logprobs[name],
                "{name} of choice {index}"
            );
        }
    }
}

#[test]
fn in_vllm_s_words() {
    let server = Server::plain();
    let prompt = [5, 6, 7, 8];
    let request = json!({"prompt": prompt, "prompt_logprobs": 2, "max_tokens": 1});
    let answer = server.post(COMPLETIONS, &request).json();
    let told = answer["choices"][0]["prompt_logprobs"]
        .as_array()
        .expect("a list")
        .clone();
    assert_eq!((told.len(), &told[0]), (4, &Value::Null));
    for (place, id) in prompt.iter().enumerate().skip(1) {
        let own = &told[place][id.to_string()];
        assert_eq!(own["logprob"].as_f64(), Some(expected(&prompt)[place - 1]));
        let tokenizer = demo_text().tokenizer.clone().expect("the demo has one");
        assert_eq!(
            own["decoded_token"],
            String::from_utf8_lossy(&tokenizer.token_bytes(*id, None)).into_owned()
        );
        assert_eq!(
            (
                told[place].as_object().map(serde_json::Map::len),
                &own["rank"]
            ),
            (Some(2), &json!(1))
        );
    }
    let chat = server
        .post(CHAT, &with(&hello(), &json!({"prompt_logprobs": 0})))
        .json();
    let count = chat["usage"]["prompt_tokens"].as_u64().expect("a count") as usize;
    assert_eq!(
        chat["prompt_logprobs"].as_array().map(Vec::len),
        Some(count)
    );
    let chunks = server
        .post(
            CHAT,
            &with(&hello(), &json!({"prompt_logprobs": 0, "stream": true})),
        )
        .chunks();
    assert_eq!(chunks[0]["prompt_logprobs"], chat["prompt_logprobs"]);
    assert!(
        server
            .post(CHAT, &hello())
            .json()
            .get("prompt_logprobs")
            .is_none()
    );
}

/// Whoever evaluates a model counts how often a prompt's token was the likeliest.
#[test]
fn every_token_of_a_prompt_has_its_rank() {
    let server = Server::cpu();
    let asked = json!({"prompt": "Once upon a time, there was", "temperature": 0, "max_tokens": 8,
        "return_token_ids": true});
    let answer = server.post(COMPLETIONS, &asked).json()["choices"][0].take();
    let ids = |field: &str| answer[field].as_array().expect("a list").clone();
    let (asked, drawn) = (ids("prompt_token_ids"), ids("token_ids"));
    let prompt: Vec<Value> = asked.iter().chain(&drawn).cloned().collect();
    let told = |count: u32| {
        let request = json!({"prompt": prompt, "prompt_logprobs": count, "max_tokens": 1});
        server.post(COMPLETIONS, &request).json()["choices"][0]["prompt_logprobs"].take()
    };
    let (alone, listed) = (told(0), told(20));
    let (mut likeliest, mut unlikely) = (0, 0);
    for (place, id) in prompt.iter().enumerate().skip(1) {
        let id = id.to_string();
        let rank = alone[place][&id]["rank"].as_u64().expect("a rank");
        let likely = listed[place].as_object().expect("a map");
        assert_eq!(likely[&id]["rank"], rank, "token {place}");
        assert_eq!(likely.len(), 20 + usize::from(rank > 20), "token {place}");
        likeliest += usize::from(rank == 1 && place >= asked.len());
        unlikely += usize::from(rank > 20);
    }
    assert_eq!(
        likeliest,
        drawn.len(),
        "what was drawn greedily is the likeliest"
    );
    assert!(
        unlikely > 0,
        "some token of the prompt is not among the twenty likeliest"
    );
}

#[test]
fn the_longest_prompts_at_once_are_scored_in_bounded_memory() {
    let server = Server::plain();
    let prompt: Vec<u32> = (0..2047).collect();
    let request = json!({"prompt": vec![prompt; 8], "echo": true, "logprobs": 20, "max_tokens": 1});
    let answer = server.post(COMPLETIONS, &request);
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(
        answer.json()["choices"][7]["logprobs"]["tokens"]
            .as_array()
            .map(Vec::len),
        Some(2048)
    );
    server.wait_until_idle();
}

#[test]
fn a_prompt_without_valid_numbers_ends_its_own_request() {
    let server = Server::fake("nan=4000", config(), ServerOptions::default());
    let ask = |prompt: &Value| {
        server.post(
            COMPLETIONS,
            &json!({"prompt": prompt, "echo": true, "logprobs": 1, "max_tokens": 2}),
        )
    };
    let bad = ask(&json!([1, 2, 4000, 3, 4]));
    assert_eq!(
        (bad.status.as_u16(), &bad.json()["error"]["code"]),
        (500, &json!("numerical_error"))
    );
    assert_eq!(bad.header("x-should-retry"), "false");
    assert_eq!(ask(&json!([1, 2, 3])).status, 200);
    server.wait_until_idle();
}

/// `text[text_offset[i]..]` begins with the token, if it is shown.
#[test]
fn offsets_count_the_characters_that_the_text_shows() {
    let server = Server::plain();
    let prompt = "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\nHi";
    for (skips, stream) in [(true, false), (true, true), (false, false), (false, true)] {
        let request = json!({"prompt": prompt, "max_tokens": 4, "echo": true, "logprobs": 0, "stream": stream,
            "skip_special_tokens": skips, "temperature": 0});
        let answer = server.post(COMPLETIONS, &request);
        let choices: Vec<Value> = if stream {
            answer
                .chunks()
                .iter()
                .filter(|chunk| chunk["choices"][0].is_object())
                .map(|c| c["choices"][0].clone())
                .collect()
        } else {
            vec![answer.json()["choices"][0].clone()]
        };
        let text: String = choices
            .iter()
            .filter_map(|choice| choice["text"].as_str())
            .collect();
        let text: Vec<char> = text.chars().collect();
        let list = |name: &str| {
            let lists = choices
                .iter()
                .filter_map(|choice| choice["logprobs"][name].as_array());
            lists.flatten().cloned().collect::<Vec<Value>>()
        };
        let (tokens, offsets) = (list("tokens"), list("text_offset"));
        assert!(
            tokens.len() > 8 && tokens.len() == offsets.len(),
            "{}",
            answer.text
        );
        for (token, offset) in tokens.iter().zip(&offsets) {
            let (token, offset) = (
                token.as_str().expect("a token"),
                offset.as_u64().expect("a number") as usize,
            );
            let is_hidden = skips && token.starts_with("<|im_");
            let shown: String = text[offset..].iter().take(token.chars().count()).collect();
            assert!(
                is_hidden || token.starts_with("bytes:") || shown == token,
                "{token:?} at {offset}: {shown:?}"
            );
        }
    }
}
