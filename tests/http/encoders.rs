//! Encoders over HTTP: what the files of sentence-transformers say of vectors, on golden models.

use crate::harness::{Server, server_of, with};
use crate::packed;
use crate::tensors::{changed_model, some_numbers, with_tensors};
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;

pub(crate) fn golden(name: &str) -> Value {
    let file = packed::model(&format!("encoders/{name}/golden.json"));
    serde_json::from_slice(&std::fs::read(file).expect("it is there")).expect("it is JSON")
}

pub(crate) fn numbers(value: &Value) -> Vec<f64> {
    let list = value
        .as_array()
        .unwrap_or_else(|| panic!("a list, not {value}"));
    list.iter().map(|x| x.as_f64().expect("a number")).collect()
}

#[track_caller]
pub(crate) fn assert_close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 2e-5, "{found}, not {expected}");
    }
}

pub(crate) fn unit(vector: &[f64]) -> Vec<f64> {
    let length = vector.iter().map(|x| x * x).sum::<f64>().sqrt();
    vector.iter().map(|x| x / length).collect()
}

/// The vector of a text.
fn embed(server: &Server, text: &str, more: &Value) -> Vec<f64> {
    let answer = server.post("/v1/embeddings", &with(&json!({"input": text}), more));
    numbers(&answer.json()["data"][0]["embedding"])
}

/// A folder with a golden model and other files.
pub(crate) fn changed(name: &str, files: &[(&str, Value)]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder is made");
    changed_model(
        &packed::model(&format!("encoders/{name}")),
        folder.path(),
        &json!({}),
        &[],
    );
    for (file, content) in files {
        let path = folder.path().join(file);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder is made");
        std::fs::write(path, content.to_string()).expect("it is written");
    }
    folder
}

/// `prompt_name` puts a prompt of the model's files before texts, as sentence-transformers does.
#[test]
fn a_prompt_is_asked_for_by_its_name() {
    let server = server_of(&packed::model("encoders/nomic"));
    let golden = golden("nomic");
    for case in golden["prompts"].as_array().expect("prompts") {
        let text = case["text"].as_str().expect("a text");
        let found = embed(&server, text, &json!({"prompt_name": case["prompt_name"]}));
        assert_close(&found, &unit(&numbers(&case["embedding"])));
        assert_ne!(found, embed(&server, text, &json!({})));
    }
    let refused = server.post(
        "/v1/embeddings",
        &json!({"input": "a", "prompt_name": "wish"}),
    );
    assert_eq!(
        (refused.status.as_u16(), &refused.json()["error"]["param"]),
        (400, &json!("prompt_name"))
    );
    assert!(
        refused.text.contains("query"),
        "it lists the names: {}",
        refused.text
    );
}

/// Poolings of a request and of files, one after the other.
#[test]
fn several_poolings_follow_each_other() {
    let plain = server_of(&packed::model("encoders/bert-mean"));
    let raw = |server: &Server, more: Value| {
        embed(
            server,
            "Berlin is a city.",
            &with(&json!({"normalize": false}), &more),
        )
    };
    let of = |name: &str| raw(&plain, json!({"pooling": name}));
    assert_eq!(raw(&plain, json!({})), of("mean"), "as the files say");
    let flags = json!({"pooling_mode_max_tokens": true, "pooling_mode_weightedmean_tokens": true,
        "pooling_mode_cls_token": true, "pooling_mode_lasttoken": true});
    let folder = changed("bert-mean", &[("1_Pooling/config.json", flags)]);
    let all = raw(&server_of(folder.path()), json!({}));
    let expected = ["cls", "max", "weightedmean", "last"].map(of).concat();
    assert_close(&all, &expected);
    let demo = Server::cpu();
    for pooling in ["cls", "max"] {
        let refused = demo.post("/v1/embeddings", &json!({"input": "a", "pooling": pooling}));
        assert_eq!(
            refused.json()["error"]["param"],
            "pooling",
            "the demo model is no encoder"
        );
    }
}

/// Writes a dense module of so many inputs and outputs; returns its weight and bias.
fn dense(
    folder: &Path,
    index: usize,
    [inputs, outputs]: [usize; 2],
    activation: &str,
) -> [Vec<f32>; 2] {
    let path = folder.join(format!("{index}_Dense"));
    std::fs::create_dir(&path).expect("a folder is made");
    let config = json!({"in_features": inputs, "out_features": outputs, "bias": true,
        "activation_function": format!("torch.nn.modules.{activation}")});
    std::fs::write(path.join("config.json"), config.to_string()).expect("it is written");
    let weights = [
        some_numbers(inputs * outputs, 5.0),
        some_numbers(outputs, 6.0),
    ];
    let tensors = [
        ("linear.weight", &[outputs, inputs][..], weights[0].clone()),
        ("linear.bias", &[outputs], weights[1].clone()),
    ];
    let mut empty = 2_u64.to_le_bytes().to_vec();
    empty.extend(b"{}");
    std::fs::write(
        path.join("model.safetensors"),
        with_tensors(&empty, &tensors),
    )
    .expect("it is written");
    weights
}

/// Dense modules follow the pooling; the length of a vector is that of the last one.
#[test]
fn dense_modules_make_the_vector() {
    let kind = |name: &str| format!("sentence_transformers.models.{name}");
    let modules = json!([{"path": "", "type": kind("Transformer")}, {"path": "1_Pooling", "type": kind("Pooling")},
        {"path": "2_Dense", "type": kind("Dense")}, {"path": "3_Dense", "type": kind("Dense")},
        {"path": "4_Normalize", "type": kind("Normalize")}]);
    let folder = changed("bert-mean", &[("modules.json", modules)]);
    let first = dense(folder.path(), 2, [32, 48], "activation.Tanh");
    let second = dense(folder.path(), 3, [48, 40], "linear.Identity");
    let server = server_of(folder.path());
    let plain = server_of(&packed::model("encoders/bert-mean"));
    let text = "The weather is lovely today.";
    let product = |[weight, bias]: &[Vec<f32>; 2], x: &[f64]| -> Vec<f64> {
        let rows = weight.chunks(x.len()).zip(bias);
        let sum = |row: &[f32]| {
            row.iter()
                .zip(x)
                .map(|(w, x)| f64::from(*w) * x)
                .sum::<f64>()
        };
        rows.map(|(row, bias)| sum(row) + f64::from(*bias))
            .collect()
    };
    let inner = product(&first, &embed(&plain, text, &json!({"normalize": false})));
    let inner: Vec<f64> = inner.iter().map(|x| x.tanh()).collect();
    let expected = unit(&product(&second, &inner));
    assert_close(&embed(&server, text, &json!({})), &expected);
    assert_close(
        &embed(&server, text, &json!({"dimensions": 7})),
        &unit(&expected[..7]),
    );
    let refused = server.post("/v1/embeddings", &json!({"input": "a", "dimensions": 41}));
    assert_eq!(refused.json()["error"]["param"], "dimensions");
}

/// A folder with vocab.txt instead of tokenizer.json gives the same vectors.
#[test]
fn a_model_with_a_list_of_pieces_needs_no_other_tokenizer() {
    let folder = changed("bert-mean", &[]);
    let file = folder.path().join("tokenizer.json");
    let tokenizer: Value =
        serde_json::from_slice(&std::fs::read(&file).expect("it is there")).expect("it is JSON");
    let vocab = tokenizer["model"]["vocab"].as_object().expect("pieces");
    let mut pieces: Vec<_> = vocab
        .iter()
        .map(|(piece, id)| (id.as_u64(), piece.as_str()))
        .collect();
    pieces.sort_unstable();
    let lines: Vec<_> = pieces.into_iter().map(|(_, piece)| piece).collect();
    std::fs::remove_file(file).expect("it is removed");
    std::fs::write(folder.path().join("vocab.txt"), lines.join("\n")).expect("it is written");
    let (server, golden) = (server_of(folder.path()), golden("bert-mean"));
    for case in &golden["texts"].as_array().expect("texts")[1..5] {
        let found = embed(&server, case["text"].as_str().expect("a text"), &json!({}));
        assert_close(&found, &unit(&numbers(&case["embedding"])));
    }
}
