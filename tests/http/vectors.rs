//! Vectors and classes in the forms of Text Embeddings Inference, Cohere and vLLM's `/pooling`.

use crate::encoders::{assert_close, changed, golden, numbers, unit};
use crate::harness::{Server, server_of, with};
use crate::packed;
use base64::Engine as _;
use serde_json::{Value, json};

const TEXT: &str = "The weather is lovely today.";

fn encoder(name: &str) -> Server {
    server_of(&packed::model(&format!("encoders/{name}")))
}

/// The vector of [`TEXT`] as sentence-transformers computes it.
fn expected(name: &str) -> Vec<f64> {
    let golden = golden(name);
    let texts = golden["texts"].as_array().expect("texts");
    let case = texts
        .iter()
        .find(|case| case["text"] == TEXT)
        .expect("the text");
    unit(&numbers(&case["embedding"]))
}

#[track_caller]
fn refused(server: &Server, path: &str, body: &Value, field: &str) {
    let answer = server.post(path, body);
    let said = (
        answer.status.as_u16(),
        answer.json()["error"]["param"].clone(),
    );
    assert_eq!(said, (400, json!(field)), "{path} {body}: {}", answer.text);
}

/// `/embed`, `/embed_all`, `/similarity` and `/info`: bare lists, prompts, and texts that are cut.
#[test]
fn text_embeddings_inference_s_vectors() {
    let server = encoder("bert-mean");
    let found = server
        .post("/embed", &json!({"inputs": [TEXT, "Bridge"]}))
        .json();
    assert_close(&numbers(&found[0]), &expected("bert-mean"));
    let raw = server
        .post("/embed", &json!({"inputs": TEXT, "normalize": false}))
        .json();
    let short = server
        .post("/embed", &json!({"inputs": TEXT, "dimensions": 5}))
        .json();
    assert_close(&numbers(&short[0]), &unit(&numbers(&raw[0])[..5]));
    let rows = server.post("/embed_all", &json!({"inputs": TEXT})).json();
    let rows: Vec<_> = rows[0]
        .as_array()
        .expect("rows")
        .iter()
        .map(numbers)
        .collect();
    let mean = |from: usize| -> Vec<f64> {
        let sum = |column: usize| rows[from..].iter().map(|row| row[column]).sum::<f64>();
        (0..rows[0].len())
            .map(|column| sum(column) / (rows.len() - from) as f64)
            .collect()
    };
    assert_close(&mean(0), &numbers(&raw[0]));
    let cosines = json!({"inputs": {"source_sentence": TEXT, "sentences": [TEXT, "Bridge"]}});
    let cosines = numbers(&server.post("/similarity", &cosines).json());
    let other: f64 = numbers(&found[0])
        .iter()
        .zip(numbers(&found[1]))
        .map(|(a, b)| a * b)
        .sum();
    assert_close(&cosines, &[1.0, other]);
    let info = server.get("/info").json();
    assert_eq!(
        info["model_type"],
        json!({"embedding": {"pooling": "mean"}})
    );
    assert_eq!(info["max_input_length"], 160);
    let long = "fox ".repeat(400);
    for path in ["/embed", "/embed_all"] {
        assert_eq!(
            server.post(path, &json!({"inputs": long})).status,
            200,
            "{path} cuts"
        );
        refused(
            &server,
            path,
            &json!({"inputs": long, "truncate": false}),
            "inputs",
        );
    }
    let all = server.post("/embed_all", &json!({"inputs": long})).json();
    assert_eq!(all[0].as_array().map(Vec::len), Some(160));
}

/// What is cut on the left keeps the tokens at both ends, of which a pooling by the first one lives.
#[test]
fn a_text_that_is_cut_on_either_side_keeps_its_ends() {
    let server = encoder("modernbert");
    let long = format!("{} Berlin", "fox ".repeat(400));
    let ask = |direction: &str| {
        let body = json!({"inputs": long, "truncation_direction": direction});
        numbers(&server.post("/embed", &body).json()[0])
    };
    let (left, right) = (ask("Left"), ask("Right"));
    assert_ne!(left, right);
    let vllm = |side: &str| {
        let body = json!({"input": long, "truncate_prompt_tokens": -1, "truncation_side": side});
        numbers(&server.post("/v1/embeddings", &body).json()["data"][0]["embedding"])
    };
    assert_close(&vllm("left"), &left);
    assert_close(&vllm("right"), &right);
}

/// A prompt whose rows are left out of the mean, as `include_prompt: false` says.
#[test]
fn a_prompt_that_is_not_pooled_is_read_and_left_out() {
    let files = [
        (
            "1_Pooling/config.json",
            json!({"pooling_mode_mean_tokens": true, "include_prompt": false}),
        ),
        (
            "config_sentence_transformers.json",
            json!({"prompts": {"query": "fox "}, "default_prompt_name": "query"}),
        ),
    ];
    let folder = changed("bert-mean", &files);
    let (server, plain) = (server_of(folder.path()), encoder("bert-mean"));
    let whole = format!("fox {TEXT}");
    let rows = plain.post("/embed_all", &json!({"inputs": whole})).json();
    let rows: Vec<_> = rows[0]
        .as_array()
        .expect("rows")
        .iter()
        .map(numbers)
        .collect();
    let prompt = plain.post("/tokenize", &json!({"prompt": "fox "})).json();
    let skipped = prompt["count"].as_u64().expect("a count") as usize - 1;
    assert!(skipped > 1 && skipped < rows.len(), "{prompt}");
    let kept = &rows[skipped..];
    let sum = |column: usize| kept.iter().map(|row| row[column]).sum::<f64>();
    let mean: Vec<f64> = (0..rows[0].len()).map(sum).collect();
    let found = server.post("/embed", &json!({"inputs": TEXT})).json();
    assert_close(&numbers(&found[0]), &unit(&mean));
}

/// `/v2/embed`: every form of a vector, and what a text is for.
#[test]
fn cohere_s_vectors_have_every_form() {
    let server = encoder("nomic");
    let types = ["float", "int8", "uint8", "binary", "ubinary", "base64"];
    let body = json!({"texts": [TEXT, ""], "embedding_types": types});
    let answer = server.post("/v2/embed", &body).json();
    let of = |name: &str| answer["embeddings"][name][0].clone();
    let floats = numbers(&of("float"));
    assert_close(&floats, &expected("nomic"));
    let scaled: Vec<f64> = floats.iter().map(|x| (x * 127.0).round()).collect();
    assert_eq!(numbers(&of("int8")), scaled);
    assert_eq!(numbers(&of("ubinary")).len(), floats.len() / 8);
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(of("base64").as_str().expect("base64"))
        .expect("it decodes");
    assert_eq!(bytes.len(), floats.len() * 4);
    assert_eq!(answer["texts"], json!([TEXT, ""]));
    assert!(
        answer["meta"]["billed_units"]["input_tokens"].as_u64() > Some(2),
        "{answer}"
    );
    let prompted = |name: &str| {
        let body = json!({"texts": [TEXT], "input_type": name});
        numbers(&server.post("/v2/embed", &body).json()["embeddings"]["float"][0])
    };
    let by_name = json!({"input": TEXT, "prompt_name": "query"});
    let by_name = server.post("/v1/embeddings", &by_name).json();
    assert_close(
        &prompted("search_query"),
        &numbers(&by_name["data"][0]["embedding"]),
    );
    refused(
        &server,
        "/v2/embed",
        &json!({"texts": ["a"], "input_type": "wish"}),
        "input_type",
    );
    refused(&server, "/v2/embed", &json!({"texts": []}), "texts");
    let long = json!({"texts": ["fox ".repeat(400)]});
    assert_eq!(
        server.post("/v2/embed", &long).status,
        200,
        "it is cut by default"
    );
    refused(
        &server,
        "/v2/embed",
        &with(&long, &json!({"truncate": "NONE"})),
        "texts",
    );
}

/// `/pooling`: vectors of texts and of tokens, and classes.
#[test]
fn pooling_gives_what_a_model_is_made_for() {
    let server = encoder("bert-mean");
    let ask = |server: &Server, more: Value| {
        server
            .post("/pooling", &with(&json!({"input": TEXT}), &more))
            .json()["data"][0]["data"]
            .clone()
    };
    assert_close(
        &numbers(&ask(&server, json!({"task": "embed"}))),
        &expected("bert-mean"),
    );
    let rows = ask(&server, json!({"use_activation": false}));
    let all = server.post("/embed_all", &json!({"inputs": TEXT})).json();
    assert_eq!(rows, all[0]);
    refused(
        &server,
        "/pooling",
        &json!({"input": "a", "task": "classify"}),
        "model",
    );
    let reranker = encoder("bert-rerank");
    let logit = numbers(&ask(&reranker, json!({})));
    assert_eq!(logit.len(), 1);
    let predicted = reranker.post("/predict", &json!({"inputs": TEXT})).json();
    let share = 1.0 / (1.0 + (-logit[0]).exp());
    assert_close(
        &[predicted[0]["score"].as_f64().expect("a score")],
        &[share],
    );
    assert_eq!(predicted[0]["label"], "LABEL_0");
    let batch = json!({"inputs": [[TEXT], ["What is the capital of Germany?", "Bread is fresh."]], "raw_scores": true});
    let batch = reranker.post("/predict", &batch).json();
    assert_close(&[batch[0][0]["score"].as_f64().expect("a score")], &logit);
    let golden = golden("bert-rerank");
    let pair = golden["pairs"].as_array().expect("pairs").iter();
    let pair = pair
        .clone()
        .find(|pair| pair["document"] == "Bread is fresh.")
        .expect("a pair");
    assert_close(
        &[batch[1][0]["score"].as_f64().expect("a score")],
        &numbers(&pair["logits"]),
    );
    refused(&reranker, "/embed", &json!({"inputs": "a"}), "model");
    refused(&server, "/predict", &json!({"inputs": "a"}), "model");
}

/// What a model is for is in the list of models; routes that generate refuse an encoder.
#[test]
fn the_list_of_models_says_what_a_model_is_for() {
    let table = [
        ("bert-mean", json!(["embedding"])),
        ("bert-rerank", json!(["rerank", "classification"])),
    ];
    for (name, capabilities) in table {
        let server = encoder(name);
        let list = server.get("/v1/models").json();
        assert_eq!(list["data"][0]["capabilities"], capabilities);
        for (path, body) in [
            ("/v1/completions", json!({"prompt": "a"})),
            (
                "/v1/chat/completions",
                json!({"messages": [{"role": "user", "content": "a"}]}),
            ),
            ("/completion", json!({"prompt": "a"})),
            ("/api/generate", json!({"prompt": "a", "stream": false})),
        ] {
            let answer = server.post(path, &body);
            assert_eq!(answer.status, 400, "{path}: {}", answer.text);
        }
    }
    let demo = Server::cpu().get("/v1/models").json();
    assert_eq!(
        demo["data"][0]["capabilities"],
        json!(["completion", "embedding"])
    );
}
