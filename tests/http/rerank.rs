//! Ranking documents: by the probabilities of two answers, and by embeddings.

use crate::harness::{CHAT, Server, config, renamed, server_of, with};
use crate::packed;
use folio::backend::reference::ReferenceBackend;
use folio::engine;
use folio::model::{Model, demo};
use folio::server::{Reranker, ServerOptions};
use folio::text::TextModel;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

const DOCUMENTS: [&str; 3] = [
    "The cat sleeps on the mat.",
    "It rains in the north.",
    "Dogs run.",
];

/// A server whose tokenizer has tokens for both answers, which the demo's does not have.
fn server(reranker: Option<Reranker>) -> Server {
    let text = TextModel::with_tokenizer(
        Some(renamed(["yes", "no", "<1>", "<2>"])),
        Some(demo::TOKENIZER_CONFIG_JSON),
        None,
    );
    let text = Arc::new(text.expect("the demo's files are right"));
    let spawn = |inbox| {
        engine::spawn(
            || Ok(ReferenceBackend::new()),
            Model::demo(),
            config(),
            inbox,
            |_| {},
        )
    };
    Server::start(
        spawn,
        ServerOptions {
            reranker,
            ..ServerOptions::default()
        },
        text,
    )
}

fn ranking() -> Value {
    json!({"query": "Who sleeps?", "documents": DOCUMENTS})
}

/// The scores in the order of the documents, after a check that results come best first.
fn scores(answer: &Value) -> Vec<f64> {
    let results = answer["results"].as_array().expect("a list");
    let score = |result: &Value| result["relevance_score"].as_f64().expect("a score");
    assert!(
        results.is_sorted_by(|a, b| score(a) >= score(b)),
        "{answer}"
    );
    let mut scores = vec![f64::NAN; results.len()];
    results.iter().for_each(|result| {
        scores[result["index"].as_u64().expect("an index") as usize] = score(result);
    });
    scores
}

/// What the chat route says of each of the two answers alone.
fn asked(server: &Server, instruction: &str, query: &str, document: &str) -> f64 {
    let judge = "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note \
                 that the answer can only be \"yes\" or \"no\".";
    let text = format!("<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}");
    let request = json!({"messages": [{"role": "system", "content": judge}, {"role": "user", "content": text}],
        "max_tokens": 1, "logprobs": true, "chat_template_kwargs": {"enable_thinking": false}});
    let [yes, no] = ["yes", "no"].map(|word| {
        let ids = server.post("/tokenize", &json!({"prompt": word})).json()["tokens"].clone();
        let forced = json!({"allowed_token_ids": ids});
        let answer = server.post(CHAT, &with(&request, &forced)).json();
        answer["choices"][0]["logprobs"]["content"][0]["logprob"]
            .as_f64()
            .unwrap_or_else(|| panic!("{answer}"))
            .exp()
    });
    yes / (yes + no)
}

#[test]
fn a_reranker_answers_yes_or_no() {
    let server = server(Some(Reranker::YesNo));
    let answer = server.post("/v1/rerank", &ranking());
    assert_eq!(answer.status, 200, "{}", answer.text);
    let found = scores(&answer.json());
    let usual = "Given a web search query, retrieve relevant passages that answer the query";
    for (document, score) in DOCUMENTS.iter().zip(&found) {
        let expected = asked(&server, usual, "Who sleeps?", document);
        assert!(
            (score - expected).abs() < 1e-4,
            "{document}: {score} is not {expected}"
        );
    }
    assert!(
        found.iter().any(|score| (score - found[0]).abs() > 1e-6),
        "{found:?}"
    );
    let own = with(
        &ranking(),
        &json!({"instruction": "Find weather.", "top_n": 1, "return_documents": false}),
    );
    let answer = server.post("/rerank", &own).json();
    let [best] = &answer["results"].as_array().expect("a list")[..] else {
        panic!("{answer}")
    };
    let document = DOCUMENTS[best["index"].as_u64().expect("an index") as usize];
    let expected = asked(&server, "Find weather.", "Who sleeps?", document);
    assert!(
        (best["relevance_score"].as_f64().expect("a score") - expected).abs() < 1e-4,
        "{answer}"
    );
    assert!(
        best["document"].is_null() && answer["usage"]["prompt_tokens"].as_u64() > Some(100),
        "{answer}"
    );
    server.wait_until_idle();
}

/// The scores of a bare list in the order of the texts.
fn tei(answer: &Value) -> Vec<f64> {
    let results = answer.as_array().unwrap_or_else(|| panic!("{answer}"));
    let of = |index: usize| {
        results
            .iter()
            .find(|result| result["index"] == index)
            .expect("each text has a result")
    };
    assert!(
        results.is_sorted_by(|a, b| a["score"].as_f64() >= b["score"].as_f64()),
        "{answer}"
    );
    (0..results.len())
        .map(|index| of(index)["score"].as_f64().expect("a score"))
        .collect()
}

#[test]
fn texts_are_ranked_as_by_text_embeddings_inference() {
    for reranker in [Reranker::YesNo, Reranker::Embedding] {
        let server = server(Some(reranker));
        let ask = |more: Value| {
            let answer = server.post(
                "/rerank",
                &with(&json!({"query": "Who sleeps?", "texts": DOCUMENTS}), &more),
            );
            assert_eq!(answer.status, 200, "{}", answer.text);
            answer.json()
        };
        let expected = scores(&server.post("/rerank", &ranking()).json());
        let plain = ask(json!({}));
        let close = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4);
        assert!(close(&tei(&plain), &expected), "{plain}: {expected:?}");
        assert_eq!(
            plain[0].as_object().map(Map::len),
            Some(2),
            "an index and a score: {plain}"
        );
        let raw = tei(&ask(json!({"raw_scores": true})));
        let is_probability = matches!(reranker, Reranker::YesNo);
        let back = |raw: &f64| {
            if is_probability {
                1.0 / (1.0 + (-raw).exp())
            } else {
                *raw
            }
        };
        assert!(
            close(&raw.iter().map(back).collect::<Vec<_>>(), &expected),
            "{raw:?}: {expected:?}"
        );
        let named = ask(json!({"return_text": true}));
        for result in named.as_array().expect("a list") {
            assert_eq!(
                result["text"],
                DOCUMENTS[result["index"].as_u64().expect("an index") as usize]
            );
        }
        let best = with(
            &json!({"query": "Who sleeps?", "texts": DOCUMENTS}),
            &json!({"top_n": 2}),
        );
        assert_eq!(
            server
                .post("/rerank", &best)
                .json()
                .as_array()
                .map(Vec::len),
            Some(2)
        );
        let long = json!({"texts": ["The cat sleeps on the mat. ".repeat(500)]});
        let refused = server.post(
            "/rerank",
            &with(&long, &json!({"query": "Who?", "truncate": false})),
        );
        assert_eq!(
            (refused.status.as_u16(), &refused.json()["error"]["param"]),
            (400, &json!("texts"))
        );
        assert_eq!(tei(&ask(long)).len(), 1, "it is cut by default");
        server.wait_until_idle();
    }
}

#[test]
fn other_models_compare_embeddings() {
    let server = server(None);
    let embeddings = |texts: &[&str]| {
        let answer = server
            .post("/v1/embeddings", &json!({"input": texts}))
            .json();
        let vector = |entry: &Value| {
            let numbers = entry["embedding"].as_array().expect("a list").iter();
            numbers
                .map(|number| number.as_f64().expect("a number"))
                .collect::<Vec<_>>()
        };
        answer["data"]
            .as_array()
            .expect("a list")
            .iter()
            .map(vector)
            .collect::<Vec<_>>()
    };
    let cosine = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let query = embeddings(&["Who sleeps?"]).remove(0);
    let expected: Vec<f64> = embeddings(&DOCUMENTS)
        .iter()
        .map(|document| cosine(&query, document))
        .collect();
    let close = |found: &[f64], expected: &[f64]| {
        assert_eq!(found.len(), expected.len());
        assert!(
            found
                .iter()
                .zip(expected)
                .all(|(a, b)| (a - b).abs() < 1e-4),
            "{found:?} is not {expected:?}"
        );
    };
    let objects = json!({"documents": DOCUMENTS.map(|text| json!({"text": text}))});
    for request in [ranking(), with(&ranking(), &objects)] {
        let answer = server.post("/v2/rerank", &request).json();
        close(&scores(&answer), &expected);
        let best = &answer["results"][0];
        assert_eq!(
            best["document"]["text"],
            DOCUMENTS[best["index"].as_u64().expect("an index") as usize]
        );
    }
    let score = |request: Value| {
        let answer = server.post("/score", &request).json();
        let data = answer["data"]
            .as_array()
            .unwrap_or_else(|| panic!("{answer}"))
            .iter();
        data.map(|entry| entry["score"].as_f64().expect("a score"))
            .collect::<Vec<_>>()
    };
    close(
        &score(json!({"text_1": "Who sleeps?", "text_2": DOCUMENTS})),
        &expected,
    );
    close(
        &score(json!({"text_1": "Who sleeps?", "text_2": DOCUMENTS[1]})),
        &expected[1..2],
    );
    close(
        &score(json!({"text_1": DOCUMENTS, "text_2": DOCUMENTS})),
        &[1.0; 3],
    );
    // A document is cut after its first tokens.
    let long = "The cat sleeps on the mat. ".repeat(500);
    assert_eq!(
        server
            .post("/rerank", &json!({"query": "a", "documents": [long]}))
            .status,
        400,
        "it is too long"
    );
    let cut =
        |text: &str| score(json!({"text_1": "Who?", "text_2": text, "max_tokens_per_doc": 4}));
    close(&cut(&long), &cut(&long[..200]));
    server.wait_until_idle();
}

/// A query is in each of the prompts, so one that no prompt has room for is refused before anything is made of it.
#[test]
fn a_query_that_no_prompt_has_room_for_is_refused_by_its_name() {
    let query = "a ".repeat(300_000);
    let documents: Vec<_> = (0..1000).map(|index| format!("{index}")).collect();
    let forms = [
        ("/v1/rerank", "query", "documents"),
        ("/v2/rerank", "query", "documents"),
        ("/rerank", "query", "texts"),
        ("/score", "text_1", "text_2"),
        ("/score", "data_1", "data_2"),
        ("/score", "queries", "documents"),
        ("/score", "queries", "items"),
    ];
    let cross_encoder = server_of(&packed::model("encoders/bert-rerank"));
    let others = [Reranker::YesNo, Reranker::Embedding].map(|reranker| server(Some(reranker)));
    for server in others.iter().chain([&cross_encoder]) {
        for (path, of_query, of_documents) in forms {
            for more in [json!({}), json!({"truncate_prompt_tokens": -1})] {
                let body = json!({of_query: query, of_documents: documents});
                let started = Instant::now();
                let answer = server.post(path, &with(&body, &more));
                assert_eq!(answer.status, 400, "{path}: {}", answer.text);
                let error = answer.json()["error"].clone();
                assert_eq!(error["param"], of_query, "{path}: {error}");
                assert_eq!(error["code"], "context_length_exceeded", "{path}: {error}");
                assert!(started.elapsed() < Duration::from_secs(5), "{path}");
            }
        }
        server.wait_until_idle();
    }
}

/// Errors of `/score` name the fields of its forms.
#[test]
fn a_document_that_is_too_long_is_refused_by_its_name() {
    let long = "The cat sleeps on the mat. ".repeat(500);
    let server = server(Some(Reranker::Embedding));
    for (of_query, of_documents) in [
        ("text_1", "text_2"),
        ("data_1", "data_2"),
        ("queries", "items"),
    ] {
        let answer = server.post("/score", &json!({of_query: "Who?", of_documents: long}));
        assert_eq!(answer.status, 400, "{}", answer.text);
        assert_eq!(answer.json()["error"]["param"], of_documents);
    }
    server.wait_until_idle();
}
