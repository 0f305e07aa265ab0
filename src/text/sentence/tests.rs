//! Tests of `text/sentence.rs`.

use super::*;
use serde_json::json;

const TRANSFORMER: &str = "sentence_transformers.models.Transformer";

fn read(
    modules: &Value,
    pooling: &Value,
    prompts: &Value,
) -> Result<Option<SentenceModel>, String> {
    let files = [
        (MODULES, modules.to_string()),
        (POOLING, pooling.to_string()),
        (PROMPTS, prompts.to_string()),
        (
            LENGTH,
            json!({"max_seq_length": 160, "do_lower_case": false}).to_string(),
        ),
    ];
    let file = |name: &str| {
        let found = files.iter().find(|(known, _)| *known == name);
        found.map(|(_, text)| text.as_bytes())
    };
    SentenceModel::read(file).map_err(|error| error.to_string())
}

/// A model, a pooling, and these modules in folders named after them.
fn modules(others: &[&str]) -> Value {
    let mut list = vec![
        json!({"idx": 0, "name": "0", "path": "", "type": TRANSFORMER}),
        json!({"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}),
    ];
    for (index, other) in (2..).zip(others) {
        list.push(json!({"idx": index, "path": format!("{index}_{other}"),
            "type": format!("sentence_transformers.models.{other}")}));
    }
    list.into()
}

#[test]
fn old_and_new_files_say_which_rows_count() {
    let table = [
        (json!({"pooling_mode": "cls"}), vec![RowsOfText::First]),
        (
            json!({"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false}),
            vec![RowsOfText::Mean],
        ),
        (
            json!({"pooling_mode_lasttoken": true, "pooling_mode_max_tokens": true, "pooling_mode_cls_token": true}),
            vec![RowsOfText::First, RowsOfText::Max, RowsOfText::Last],
        ),
    ];
    for (pooling, poolings) in table {
        let prompts = json!({"prompts": {"q": "query: "}, "default_prompt_name": "q"});
        let found = read(&modules(&["Dense", "Normalize"]), &pooling, &prompts)
            .unwrap()
            .unwrap();
        let expected = SentenceModel {
            poolings,
            pools_prompt: true,
            dense: 1,
            max_tokens: Some(160),
            lowercases: false,
            prompts: [("q".to_owned(), "query: ".to_owned())].into(),
            default_prompt: Some("query: ".into()),
        };
        assert_eq!(found, expected);
    }
    let left_out = json!({"pooling_mode": "mean", "include_prompt": false});
    let found = read(&modules(&[]), &left_out, &json!({})).unwrap().unwrap();
    assert!(!found.pools_prompt && found.dense == 0);
    assert_eq!(SentenceModel::read(|_| None).unwrap(), None);
}

#[test]
fn what_is_not_read_is_refused_by_its_name() {
    let mean = json!({"pooling_mode": "mean"});
    let table = [
        (
            modules(&["LayerNorm"]),
            mean.clone(),
            json!({}),
            "LayerNorm",
        ),
        (
            modules(&["Normalize", "Dense"]),
            mean.clone(),
            json!({}),
            "Normalize",
        ),
        (
            json!([{"path": "", "type": TRANSFORMER}, {"path": "1_Pooling", "type": "Pooling"},
                {"path": "../Dense", "type": "Dense"}]),
            mean.clone(),
            json!({}),
            "../Dense",
        ),
        (
            modules(&["Normalize"]),
            json!({"pooling_mode": "median"}),
            json!({}),
            "1_Pooling/config.json",
        ),
        (modules(&[]), json!({}), json!({}), "1_Pooling/config.json"),
        (
            modules(&["Normalize"]),
            mean.clone(),
            json!({"default_prompt_name": "q"}),
            "default_prompt_name",
        ),
        (
            modules(&[]),
            mean,
            json!({"prompts": {"q": 1}}),
            "prompts.q",
        ),
    ];
    for (modules, pooling, prompts, word) in table {
        let error = read(&modules, &pooling, &prompts).unwrap_err();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn poolings_follow_each_other_and_leave_a_prompt_out() {
    let rows = [1.0, -1.0, 2.0, 5.0, 3.0, -7.0];
    let all = [
        RowsOfText::First,
        RowsOfText::Max,
        RowsOfText::Mean,
        RowsOfText::MeanOfRoot,
        RowsOfText::WeightedMean,
        RowsOfText::Last,
    ];
    let root = 3.0_f32.sqrt();
    let close = |found: &[f32], expected: &[f32]| {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
    };
    close(
        &pool(&rows, 2, 0, &all),
        &[
            1.0,
            -1.0,
            3.0,
            5.0,
            2.0,
            -1.0,
            6.0 / root,
            -3.0 / root,
            14.0 / 6.0,
            -12.0 / 6.0,
            3.0,
            -7.0,
        ],
    );
    let root = 2.0_f32.sqrt();
    close(
        &pool(&rows, 2, 1, &all),
        &[
            2.0,
            5.0,
            3.0,
            5.0,
            2.5,
            -1.0,
            5.0 / root,
            -2.0 / root,
            13.0 / 5.0,
            -11.0 / 5.0,
            3.0,
            -7.0,
        ],
    );
    close(&pool(&rows, 2, 9, &all), &[0.0; 12]);
}
