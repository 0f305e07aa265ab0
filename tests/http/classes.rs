//! Models with a head for classes: rerankers as people call them, and classifiers.

use crate::harness::{Server, server_of, with};
use crate::packed;
use crate::tensors::{changed_model, some_numbers};
use serde_json::{Value, json};

const QUERY: &str = "What is the capital of Germany?";

/// The golden pairs of a reranker.
fn pairs(name: &str) -> Vec<(String, String, f64, f64)> {
    let file = packed::model(&format!("encoders/{name}/golden.json"));
    let golden: Value =
        serde_json::from_slice(&std::fs::read(file).expect("it is there")).expect("it is JSON");
    let pairs = golden["pairs"].as_array().expect("pairs");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let number = |value: &Value| value.as_f64().expect("a number");
    pairs
        .iter()
        .map(|pair| {
            let (logit, score) = (number(&pair["logits"][0]), number(&pair["score"]));
            (text(&pair["query"]), text(&pair["document"]), logit, score)
        })
        .collect()
}

fn reranker(name: &str) -> Server {
    server_of(&packed::model(&format!("encoders/{name}")))
}

#[track_caller]
fn assert_close(found: &Value, expected: f64) {
    let found = found
        .as_f64()
        .unwrap_or_else(|| panic!("a number, not {found}"));
    assert!((found - expected).abs() < 1e-4, "{found}, not {expected}");
}

/// All routes that rank or score give sentence-transformers' scores, an empty document among them.
#[test]
fn a_reranker_s_scores_are_those_of_a_cross_encoder() {
    for name in ["bert-rerank", "modernbert-rerank"] {
        let server = reranker(name);
        let pairs = pairs(name);
        let (of_query, others): (Vec<_>, Vec<_>) =
            pairs.into_iter().partition(|pair| pair.0 == QUERY);
        let documents: Vec<_> = of_query.iter().map(|pair| pair.1.clone()).collect();
        let ask = json!({"query": QUERY, "documents": documents, "truncate_prompt_tokens": 160});
        let answer = server.post("/v1/rerank", &ask).json();
        let results = answer["results"]
            .as_array()
            .unwrap_or_else(|| panic!("{answer}"));
        assert_eq!(results.len(), documents.len());
        for result in results {
            let index = result["index"].as_u64().expect("an index") as usize;
            assert_close(&result["relevance_score"], of_query[index].3);
        }
        let scores = results
            .iter()
            .map(|result| result["relevance_score"].as_f64());
        assert!(scores.is_sorted_by(|a, b| a >= b), "the best comes first");
        let raw = with(&ask, &json!({"use_activation": false, "top_n": 1}));
        let best = server.post("/rerank", &raw).json()["results"][0].clone();
        let index = best["index"].as_u64().expect("an index") as usize;
        assert_close(&best["relevance_score"], of_query[index].2);
        // N:N.
        for (query, document, _, score) in others {
            let ask =
                json!({"text_1": [query], "text_2": [document], "truncate_prompt_tokens": 160});
            let answer = server.post("/score", &ask).json();
            assert_close(&answer["data"][0]["score"], score);
        }
        let tokens = |texts: [&str; 2]| {
            let answer = server.post("/score", &json!({"text_1": QUERY, "text_2": texts}));
            answer.json()["usage"]["prompt_tokens"]
                .as_u64()
                .expect("a count")
        };
        let (one, two) = (tokens(["", ""]), tokens(["", "Bread is fresh."]));
        assert!(
            two > one && one % 2 == 0,
            "tokens of both pairs count: {one}, {two}"
        );
        server.wait_until_idle();
    }
}

/// TEI's form has a sigmoid whatever the model's files say, logits if they are asked for, and cuts what is too long.
#[test]
fn text_embeddings_inference_s_form_has_probabilities_and_cuts() {
    let server = reranker("bert-rerank");
    let all = pairs("bert-rerank");
    let (_, document, logit, _) = &all[0];
    let ask = |more: Value| {
        let body = json!({"query": QUERY, "texts": [document]});
        server.post("/rerank", &with(&body, &more)).json()[0]["score"].clone()
    };
    assert_close(&ask(json!({})), 1.0 / (1.0 + (-logit).exp()));
    assert_close(&ask(json!({"raw_scores": true})), *logit);
    let long = "Berlin is the capital of Germany. ".repeat(60);
    let tei = json!({"query": QUERY, "texts": [long]});
    assert_eq!(
        server.post("/rerank", &tei).json().as_array().map(Vec::len),
        Some(1)
    );
    let refused = server.post("/rerank", &with(&tei, &json!({"truncate": false})));
    assert_eq!(
        (refused.status.as_u16(), &refused.json()["error"]["param"]),
        (400, &json!("texts"))
    );
    let vllm = json!({"query": QUERY, "documents": [long]});
    let refused = server.post("/rerank", &vllm);
    assert_eq!(
        (refused.status.as_u16(), &refused.json()["error"]["param"]),
        (400, &json!("documents"))
    );
    for cut in [
        json!({"truncate_prompt_tokens": -1}),
        json!({"max_tokens_per_doc": 40}),
    ] {
        let answer = server.post("/rerank", &with(&vllm, &cut));
        assert_eq!(answer.status, 200, "{cut}: {}", answer.text);
    }
}

/// A reranker does nothing else, and says so.
#[test]
fn a_model_with_a_head_for_classes_refuses_what_it_is_not_made_for() {
    let server = reranker("bert-rerank");
    let table = [
        ("/v1/embeddings", json!({"input": "a"}), "model"),
        ("/api/embed", json!({"input": "a"}), "model"),
        ("/v1/completions", json!({"prompt": "a"}), "model"),
        (
            "/rerank",
            json!({"query": "a", "documents": ["b"], "instruction": "c"}),
            "instruction",
        ),
    ];
    for (path, body, field) in table {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 400, "{path}: {}", answer.text);
        if !path.starts_with("/api") {
            assert_eq!(answer.json()["error"]["param"], field, "{path}");
        }
    }
    let demo = Server::cpu();
    let refused = demo.post("/classify", &json!({"input": "a"}));
    assert_eq!(
        (refused.status.as_u16(), &refused.json()["error"]["param"]),
        (400, &json!("model"))
    );
}

/// A classifier of three labels answers in vLLM's form: the probabilities add up to one, and name the likeliest label.
#[test]
fn classes_of_texts_are_reported_as_by_vllm() {
    let folder = tempfile::tempdir().expect("a folder is made");
    let hidden = 32;
    let tensors = [
        (
            "classifier.dense.weight",
            &[hidden, hidden][..],
            some_numbers(hidden * hidden, 1.0),
        ),
        (
            "classifier.dense.bias",
            &[hidden],
            some_numbers(hidden, 3.0),
        ),
        (
            "classifier.out_proj.weight",
            &[3, hidden],
            some_numbers(3 * hidden, 2.0),
        ),
        ("classifier.out_proj.bias", &[3], some_numbers(3, 4.0)),
    ];
    let fields = json!({"architectures": ["RobertaForSequenceClassification"],
        "id2label": {"0": "entailment", "1": "neutral", "2": "contradiction"}});
    changed_model(
        &packed::model("encoders/roberta-mean"),
        folder.path(),
        &fields,
        &tensors,
    );
    let server = server_of(folder.path());
    let ask = |more: Value| {
        let body = json!({"input": ["It rains.", "Berlin is a city."]});
        server.post("/classify", &with(&body, &more)).json()
    };
    let (usual, raw) = (ask(json!({})), ask(json!({"use_activation": false})));
    assert_eq!(usual["data"].as_array().map(Vec::len), Some(2), "{usual}");
    for (usual, raw) in [0, 1].map(|index| (&usual["data"][index], &raw["data"][index])) {
        let numbers = |entry: &Value| -> Vec<f64> {
            let probs = entry["probs"].as_array().expect("numbers");
            probs
                .iter()
                .map(|p| p.as_f64().expect("a number"))
                .collect()
        };
        let (shares, logits) = (numbers(usual), numbers(raw));
        let whole: f64 = logits.iter().map(|logit| logit.exp()).sum();
        for (share, logit) in shares.iter().zip(&logits) {
            assert!(
                (share - logit.exp() / whole).abs() < 1e-9,
                "a softmax: {shares:?} {logits:?}"
            );
        }
        let best = (0..3)
            .max_by(|a, b| logits[*a].total_cmp(&logits[*b]))
            .expect("three");
        assert_eq!(
            usual["label"],
            ["entailment", "neutral", "contradiction"][best]
        );
        assert_eq!(
            (&usual["label"], usual["num_classes"].as_u64()),
            (&raw["label"], Some(3))
        );
    }
    let refused = server.post("/rerank", &json!({"query": "a", "documents": ["b"]}));
    assert_eq!(
        (refused.status.as_u16(), &refused.json()["error"]["param"]),
        (400, &json!("model"))
    );
    assert!(refused.text.contains("/classify"), "{}", refused.text);
}
