//! Embeddings: encodings, lengths, and equal numbers regardless of batching and caching.

use crate::harness::{Server, config, with};
use base64::Engine as _;
use folio::backend::fake::{PlainHistory, hidden};
use folio::config::Config;
use folio::server::ServerOptions;
use serde_json::{Value, json};

const EMBEDDINGS: &str = "/v1/embeddings";

fn vectors(answer: &Value) -> Vec<Vec<f64>> {
    let data = answer["data"]
        .as_array()
        .unwrap_or_else(|| panic!("{answer}"));
    let vector = |entry: &Value| {
        let values = entry["embedding"].as_array().expect("a vector");
        values
            .iter()
            .map(|value| value.as_f64().expect("a number"))
            .collect()
    };
    data.iter().map(vector).collect()
}

fn ask(server: &Server, input: &Value, more: &Value) -> Vec<Vec<f64>> {
    vectors(
        &server
            .post(EMBEDDINGS, &with(&json!({"input": input}), more))
            .json(),
    )
}

fn close(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len()
        && a.iter()
            .zip(b)
            .all(|(a, b)| (a - b).abs() <= 1e-4 * (1.0 + a.abs()))
}

#[test]
fn the_form_is_openai_s() {
    let server = Server::cpu();
    let answer = server
        .post(
            EMBEDDINGS,
            &json!({"input": ["Hello", "A fox"], "model": "demo", "user": "x"}),
        )
        .json();
    assert_eq!(
        (&answer["object"], &answer["model"]),
        (&json!("list"), &json!("demo"))
    );
    for (index, entry) in answer["data"]
        .as_array()
        .expect("a list")
        .iter()
        .enumerate()
    {
        assert_eq!(
            (&entry["object"], &entry["index"]),
            (&json!("embedding"), &json!(index))
        );
    }
    let usage = &answer["usage"];
    assert!(
        usage["prompt_tokens"].as_u64() >= Some(2)
            && usage["prompt_tokens"] == usage["total_tokens"]
    );
    let floats = vectors(&answer);
    for vector in &floats {
        let length: f64 = vector.iter().map(|value| value * value).sum();
        assert!(
            (length - 1.0).abs() < 1e-5,
            "a vector has length one: {length}"
        );
    }
    assert!(
        !close(&floats[0], &floats[1]),
        "different texts, different vectors"
    );
    let coded = server
        .post(
            EMBEDDINGS,
            &json!({"input": ["Hello", "A fox"], "encoding_format": "base64"}),
        )
        .json();
    for (index, vector) in floats.iter().enumerate() {
        let text = coded["data"][index]["embedding"].as_str().expect("base64");
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(text)
            .expect("it decodes");
        let values = bytes
            .chunks_exact(4)
            .map(|b| f64::from(f32::from_le_bytes(b.try_into().expect("four bytes"))));
        assert!(close(&values.collect::<Vec<_>>(), vector));
    }
    let short = ask(&server, &json!("Hello"), &json!({"dimensions": 8}));
    let length: f64 = short[0].iter().map(|value| value * value).sum();
    assert_eq!(short[0].len(), 8);
    assert!((length - 1.0).abs() < 1e-5);
    assert!(
        (short[0][0] / short[0][1] - floats[0][0] / floats[0][1]).abs() < 1e-3,
        "the leading elements"
    );
    let too_many = server.post(
        EMBEDDINGS,
        &json!({"input": "a", "dimensions": floats[0].len() + 1}),
    );
    assert_eq!(
        (too_many.status.as_u16(), &too_many.json()["error"]["param"]),
        (400, &json!("dimensions"))
    );
    server.wait_until_idle();
}

#[test]
fn a_mean_is_the_mean_of_the_last_states_of_all_beginnings() {
    let server = Server::cpu();
    let prompt: Vec<u32> = vec![879, 0, 866, 436, 90, 12, 7];
    let beginnings: Vec<_> = (1..=prompt.len())
        .map(|length| prompt[..length].to_vec())
        .collect();
    let plain = json!({"normalize": false});
    let last = ask(&server, &json!(beginnings), &plain);
    let mean = ask(
        &server,
        &json!(prompt),
        &with(&plain, &json!({"pooling": "mean"})),
    );
    let columns = last[0].len();
    let expected: Vec<f64> = (0..columns)
        .map(|c| last.iter().map(|state| state[c]).sum::<f64>() / last.len() as f64)
        .collect();
    assert!(
        close(&mean[0], &expected),
        "{:?} for {:?}",
        &mean[0][..4],
        &expected[..4]
    );
    assert!(!close(&mean[0], &last[6]));
    // Repeated with cached prompts, and batched with others.
    assert_eq!(
        ask(
            &server,
            &json!(prompt),
            &with(&plain, &json!({"pooling": "mean"}))
        ),
        mean
    );
    assert_eq!(ask(&server, &json!([[1, 2], prompt]), &plain)[1], last[6]);
}

/// The expected output of the fake device: a vector from the history of each token.
fn states(prompt: &[u32]) -> Vec<Vec<f64>> {
    let mut history = PlainHistory::new(&[None]);
    prompt
        .iter()
        .map(|&id| {
            hidden(history.push(id))
                .into_iter()
                .map(f64::from)
                .collect()
        })
        .collect()
}

#[test]
fn chunks_caches_and_company_change_nothing() {
    let small = Config {
        max_num_batched_tokens: 100,
        max_num_seqs: 4,
        ..config()
    };
    let tight = Config {
        kv_cache_bytes: Some(3 << 20),
        max_model_len: Some(900),
        ..config()
    };
    for config in [config(), small, tight] {
        let server = Server::fake("seed=5", config, ServerOptions::default());
        let prompts: Vec<Vec<u32>> = (0..12_u32)
            .map(|index| {
                (0..40 + 60 * index)
                    .map(|at| (at * 3 + index % 4) % 4000)
                    .collect()
            })
            .collect();
        for _ in 0..2 {
            for pooling in ["last", "mean"] {
                let found = ask(
                    &server,
                    &json!(prompts),
                    &json!({"normalize": false, "pooling": pooling}),
                );
                for (prompt, found) in prompts.iter().zip(&found) {
                    let states = states(prompt);
                    let first = if pooling == "last" {
                        states.len() - 1
                    } else {
                        0
                    };
                    let count = (states.len() - first) as f64;
                    let mean = (0..8)
                        .map(|c| states[first..].iter().map(|state| state[c]).sum::<f64>() / count);
                    assert!(
                        close(found, &mean.collect::<Vec<_>>()),
                        "{pooling} of {} tokens",
                        prompt.len()
                    );
                }
            }
        }
        server.wait_until_idle();
    }
}

#[test]
fn many_inputs_do_not_fill_the_queue() {
    let server = Server::fake(
        "pause=1",
        Config {
            max_num_seqs: 2,
            ..config()
        },
        ServerOptions::default(),
    );
    let inputs: Vec<Vec<u32>> = (0..300).map(|index| vec![index, 7, index % 5]).collect();
    let found = ask(&server, &json!(inputs), &json!({"normalize": false}));
    for (input, found) in inputs.iter().zip(&found) {
        assert!(
            close(found, &states(input)[2]),
            "in the order of the inputs"
        );
    }
}

#[test]
fn bad_numbers_and_long_inputs_end_their_own_request() {
    let server = Server::fake("nan=4000", config(), ServerOptions::default());
    for pooling in ["last", "mean"] {
        let bad = server.post(
            EMBEDDINGS,
            &json!({"input": [1, 4000, 2], "pooling": pooling}),
        );
        assert_eq!(
            (bad.status.as_u16(), &bad.json()["error"]["code"]),
            (500, &json!("numerical_error"))
        );
        assert_eq!(
            server
                .post(EMBEDDINGS, &json!({"input": [1, 2], "pooling": pooling}))
                .status,
            200
        );
    }
    let long = server.post(EMBEDDINGS, &json!({"input": vec![1; 2049]}));
    let error = &long.json()["error"];
    assert_eq!(
        (&error["code"], &error["param"]),
        (&json!("context_length_exceeded"), &json!("input"))
    );
    let cut = server
        .post(
            EMBEDDINGS,
            &json!({"input": vec![1; 2049], "truncate_prompt_tokens": 5}),
        )
        .json();
    assert_eq!(cut["usage"]["prompt_tokens"], 5);
    server.wait_until_idle();
}
