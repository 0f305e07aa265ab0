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

fn modules(last: &str) -> Value {
    json!([
        {"idx": 0, "name": "0", "path": "", "type": TRANSFORMER},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Last", "type": format!("sentence_transformers.models.{last}")},
    ])
}

#[test]
fn old_and_new_files_say_which_rows_count() {
    let table = [
        (json!({"pooling_mode": "cls"}), RowsOfText::First),
        (
            json!({"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false}),
            RowsOfText::Mean,
        ),
        (json!({"pooling_mode_lasttoken": true}), RowsOfText::Last),
    ];
    for (pooling, rows) in table {
        let prompts = json!({"prompts": {"q": "query: "}, "default_prompt_name": "q"});
        let found = read(&modules("Normalize"), &pooling, &prompts)
            .unwrap()
            .unwrap();
        let expected = SentenceModel {
            rows,
            max_tokens: Some(160),
            lowercases: false,
            default_prompt: Some("query: ".into()),
        };
        assert_eq!(found, expected);
    }
    assert_eq!(SentenceModel::read(|_| None).unwrap(), None);
}

#[test]
fn what_is_not_read_is_refused_by_its_name() {
    let mean = json!({"pooling_mode": "mean"});
    let table = [
        (modules("Dense"), mean.clone(), json!({}), "Dense"),
        (modules("LayerNorm"), mean.clone(), json!({}), "LayerNorm"),
        (
            modules("Normalize"),
            json!({"pooling_mode": "max"}),
            json!({}),
            "max",
        ),
        (
            modules("Normalize"),
            json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}),
            json!({}),
            "several",
        ),
        (
            modules("Normalize"),
            json!({}),
            json!({}),
            "1_Pooling/config.json",
        ),
        (
            modules("Normalize"),
            mean,
            json!({"default_prompt_name": "q"}),
            "default_prompt_name",
        ),
    ];
    let unpooled = read(
        &modules("Normalize"),
        &json!({"pooling_mode": "mean", "include_prompt": false}),
        &json!({"prompts": {"q": "query: "}, "default_prompt_name": "q"}),
    );
    assert!(unpooled.unwrap_err().contains("include_prompt"));
    for (modules, pooling, prompts, word) in table {
        let error = read(&modules, &pooling, &prompts).unwrap_err();
        assert!(error.contains(word), "{error}");
    }
}
