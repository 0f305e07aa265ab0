//! `folio embed` and `folio rerank`, with golden models.

use crate::{packed, result, run, text};
use serde_json::{Value, json};
use std::path::PathBuf;

fn model(name: &str) -> (PathBuf, Value) {
    let folder = packed::model(&format!("encoders/{name}"));
    let golden = std::fs::read(folder.join("golden.json")).expect("it is there");
    (folder, serde_json::from_slice(&golden).expect("it is JSON"))
}

fn numbers(value: &Value) -> Vec<f64> {
    let list = value.as_array().expect("a list");
    list.iter().map(|x| x.as_f64().expect("a number")).collect()
}

/// A line for each text, with the numbers of sentence-transformers.
#[test]
fn texts_become_lines_of_numbers() {
    let (folder, golden) = model("bert-mean");
    let folder = folder.to_string_lossy();
    let cases = &golden["texts"].as_array().expect("texts")[1..4];
    let texts: Vec<_> = cases
        .iter()
        .map(|case| case["text"].as_str().expect("a text"))
        .collect();
    let printed = result(&[&["embed", &folder, "--device", "cpu"], &texts[..]].concat());
    let lines: Vec<Value> = printed
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line is JSON"))
        .collect();
    assert_eq!(lines.len(), texts.len());
    for (line, case) in lines.iter().zip(cases) {
        for (found, expected) in numbers(line).iter().zip(numbers(&case["embedding"])) {
            assert!((found - expected).abs() < 2e-5, "{found} {expected}");
        }
    }
    let file = tempfile::NamedTempFile::new().expect("a file is made");
    std::fs::write(file.path(), texts.join("\n")).expect("it is written");
    let path = file.path().to_string_lossy();
    let from_file = result(&[
        "embed", "--model", &folder, "--device", "cpu", "--input", &path,
    ]);
    assert_eq!(from_file, printed);
    let refused = run(&[
        "embed",
        &folder,
        "--device",
        "cpu",
        "--prompt-name",
        "wish",
        "a",
    ]);
    assert!(!refused.status.success() && text(&refused.stderr).contains("prompt_name"));
}

/// Documents with their scores, the best first.
#[test]
fn documents_are_printed_by_their_score() {
    let (folder, golden) = model("bert-rerank");
    let folder = folder.to_string_lossy();
    let pairs = &golden["pairs"].as_array().expect("pairs")[..2];
    let of = |pair: &Value, name: &str| pair[name].as_str().expect("a text").to_owned();
    let documents: Vec<_> = pairs.iter().map(|pair| of(pair, "document")).collect();
    let query = of(&pairs[0], "query");
    let command = [
        "rerank",
        &folder,
        "--device",
        "cpu",
        &query,
        &documents[1],
        &documents[0],
    ];
    let printed = result(&command);
    let lines: Vec<_> = printed
        .lines()
        .map(|line| line.split_once('\t').expect("two columns"))
        .collect();
    for ((score, document), pair) in lines.iter().zip(pairs) {
        let (score, expected) = (score.parse::<f64>().expect("a number"), &pair["score"]);
        assert_eq!(*document, of(pair, "document"));
        assert!(
            (score - expected.as_f64().expect("a number")).abs() < 1e-4,
            "{score} {expected}"
        );
    }
    let best = result(&[&command[..], &["--top-n", "1", "--json"]].concat());
    let best: Value = serde_json::from_str(&best).expect("it is JSON");
    assert_eq!(best["results"].as_array().map(Vec::len), Some(1));
    assert_eq!(
        best["results"][0]["document"],
        json!({"text": documents[0]})
    );
}

/// A head for classes says how documents are judged, so nothing else can.
#[test]
fn a_way_to_judge_is_refused_for_a_model_that_has_its_own() {
    let (folder, _) = model("bert-rerank");
    let folder = folder.to_string_lossy();
    let device = ["--device", "cpu"];
    let command = [&["serve", &folder, "--reranker", "yes-no"], &device[..]].concat();
    let refused = run(&command);
    let said = text(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("--reranker"),
        "{said}"
    );
}
