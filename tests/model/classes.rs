//! Heads for classes: logits and scores of pairs of texts, compared with those of sentence-transformers' CrossEncoder.

use super::encoders::{folders, ids, pooled, text_of};
use super::tensors::{changed_model, some_numbers};
use super::{numbers, packed};
use folio::engine::handle::{ClassHead, Squash};
use folio::engine::request::{Pooling, Request};
use folio::model::Model;
use folio::text::PairLimits;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// Maximum deviation of a logit; the golden files have five digits after the point.
const LOGIT: f64 = 5e-5;

fn golden(folder: &Path) -> Value {
    let bytes = std::fs::read(folder.join("golden.json")).expect("it is there");
    serde_json::from_slice(&bytes).expect("it is JSON")
}

fn head(model: &Model) -> Arc<ClassHead> {
    model.classes().expect("it has a head").clone()
}

/// A request for the row that a head reads.
fn request(model: &Model, ids: Vec<u32>, second: Option<usize>) -> Request {
    let of_mean = head(model).spec.of_mean;
    Request {
        prompt: ids.into(),
        second_text: second.map(|at| at as u32),
        pooling: Some(if of_mean {
            Pooling::Mean
        } else {
            Pooling::First
        }),
        ..Request::default()
    }
}

/// Where the second text begins.
fn second(types: &Value) -> Option<usize> {
    ids(types).iter().position(|kind| *kind == 1)
}

/// Ids, types, cut and logits of pairs are those of a CrossEncoder, and so are the scores that it reports.
#[test]
fn rerankers_give_the_logits_and_scores_of_cross_encoders() {
    let mut seen = 0;
    for folder in folders() {
        let golden = golden(&folder);
        if golden["pairs"].as_array().is_none() || golden["kind"] == "yes-no" {
            continue;
        }
        seen += 1;
        let model = Model::open(&folder).expect("it opens");
        let head = head(&model);
        let text = text_of(&folder).expect("its text files are right");
        let tokenizer = text.tokenizer.as_ref().expect("it has a tokenizer");
        let limits = PairLimits {
            whole: golden["max_seq_length"].as_u64().expect("a length") as usize,
            second: usize::MAX,
            keeps_end: false,
        };
        let (mut requests, mut expected) = (Vec::new(), Vec::new());
        for case in golden["cases"].as_array().expect("cases") {
            requests.push(request(&model, ids(&case["ids"]), second(&case["types"])));
            expected.push((numbers(&case["logits"]), None));
        }
        for pair in golden["pairs"].as_array().expect("pairs") {
            let texts = ["query", "document"].map(|name| pair[name].as_str().expect("a text"));
            let found = tokenizer.encode_pair(texts, Some(limits)).expect("a pair");
            assert_eq!(
                found.ids,
                ids(&pair["ids"]),
                "{}: {texts:?}",
                folder.display()
            );
            assert_eq!(found.second, second(&pair["types"]), "{texts:?}");
            requests.push(request(&model, found.ids, found.second));
            expected.push((numbers(&pair["logits"]), Some(pair["score"].clone())));
        }
        for (row, (logits, score)) in pooled(model, requests).iter().zip(expected) {
            let mut found = head.logits(row);
            for (found, expected) in found.iter().zip(&logits) {
                let difference = (found - f64::from(*expected)).abs();
                assert!(difference <= LOGIT, "{}: {difference}", folder.display());
            }
            assert_eq!(found.len(), logits.len());
            head.spec.score.apply(&mut found);
            if let Some(score) = score.and_then(|score| score.as_f64()) {
                assert!((found[0] - score).abs() <= LOGIT, "{} {score}", found[0]);
            }
        }
    }
    assert!(seen > 1, "rerankers are among the golden models");
}

/// RoBERTa's head has a layer of its own; the labels have names, and the kind of problem says what a score is.
#[test]
fn a_classifier_of_several_labels_names_them() {
    let base = packed::model("encoders/roberta-mean");
    let hidden = Model::open(&base).expect("it opens").spec().hidden as usize;
    let weight = [
        some_numbers(hidden * hidden, 1.0),
        some_numbers(3 * hidden, 2.0),
    ];
    let bias = [some_numbers(hidden, 3.0), some_numbers(3, 4.0)];
    let tensors = [
        (
            "classifier.dense.weight",
            &[hidden, hidden][..],
            weight[0].clone(),
        ),
        ("classifier.dense.bias", &[hidden], bias[0].clone()),
        (
            "classifier.out_proj.weight",
            &[3, hidden],
            weight[1].clone(),
        ),
        ("classifier.out_proj.bias", &[3], bias[1].clone()),
    ];
    let product = |x: &[f64], layer: usize| -> Vec<f64> {
        let rows = weight[layer].chunks(hidden).zip(&bias[layer]);
        let sum = |row: &[f32]| {
            row.iter()
                .zip(x)
                .map(|(w, x)| f64::from(*w) * x)
                .sum::<f64>()
        };
        rows.map(|(row, bias)| sum(row) + f64::from(*bias))
            .collect()
    };
    let labels = json!({"2": "contradiction", "0": "entailment", "1": "neutral"});
    let table = [
        (json!({}), Squash::Softmax),
        (json!({"problem_type": "regression"}), Squash::Identity),
        (
            json!({"problem_type": "multi_label_classification"}),
            Squash::Sigmoid,
        ),
        (
            json!({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"},
                "problem_type": "multi_label_classification"}),
            Squash::Identity,
        ),
    ];
    for (fields, score) in table {
        let folder = tempfile::tempdir().expect("a folder is made");
        let mut fields = fields;
        fields["architectures"] = json!(["RobertaForSequenceClassification"]);
        fields["id2label"] = labels.clone();
        changed_model(&base, folder.path(), &fields, &tensors);
        let model = Model::open(folder.path()).expect("it opens");
        let head = head(&model);
        assert_eq!(head.spec.labels, ["entailment", "neutral", "contradiction"]);
        assert_eq!((head.spec.score, head.spec.of_mean), (score, false));
        let row = &pooled(model, vec![request_of_first(vec![0, 20, 21, 2])])[0];
        let inner = row.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
        let inner: Vec<f64> = product(&inner, 0).iter().map(|x| x.tanh()).collect();
        for (found, expected) in head.logits(row).iter().zip(product(&inner, 1)) {
            assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        }
    }
}

fn request_of_first(ids: Vec<u32>) -> Request {
    Request {
        prompt: ids.into(),
        pooling: Some(Pooling::First),
        ..Request::default()
    }
}

/// What is wrong with a head is found when the model is opened, and named.
#[test]
fn a_head_that_is_not_understood_is_refused() {
    let table = [
        ("bert-rerank", json!({"id2label": {"1": "a"}}), "id2label"),
        (
            "bert-rerank",
            json!({"id2label": {"0": "a", "1": "b"}}),
            "classifier.weight",
        ),
        (
            "bert-rerank",
            json!({"sbert_ce_default_activation_function": "torch.nn.Mish"}),
            "Mish",
        ),
        (
            "bert-rerank",
            json!({"sentence_transformers": {"activation_fn": "mine.Tanh"}}),
            "activation_fn",
        ),
        (
            "bert-rerank",
            json!({"sbert_ce_default_activation_function": null, "problem_type": "ranking"}),
            "problem_type",
        ),
        (
            "modernbert-rerank",
            json!({"classifier_pooling": "max"}),
            "classifier_pooling",
        ),
        (
            "modernbert-rerank",
            json!({"classifier_activation": "mish"}),
            "classifier_activation",
        ),
        (
            "modernbert-rerank",
            json!({"classifier_bias": true}),
            "head.dense.bias",
        ),
    ];
    for (name, fields, word) in table {
        let folder = tempfile::tempdir().expect("a folder is made");
        let base = packed::model(&format!("encoders/{name}"));
        changed_model(&base, folder.path(), &fields, &[]);
        let error = Model::open(folder.path()).err().expect("it is refused");
        assert!(error.to_string().contains(word), "{fields}: {error}");
    }
}
