//! Tests of `cli/commands/run/batch/short.rs`.

use super::*;

fn form(line: &str, defaults: &Value) -> Result<ShortForm> {
    let line: Map<String, Value> = serde_json::from_str(line).expect("the line is an object");
    ShortForm::new(
        line,
        defaults.as_object().expect("an object"),
        false,
        &TextModel::default(),
    )
}

#[test]
fn a_line_has_one_prompt_and_no_stream() {
    let check = |line: &str, part: &str| {
        let error = form(line, &json!({}))
            .map(|_| ())
            .expect_err("the line is wrong")
            .to_string();
        assert!(error.contains(part), "{line}: {error}");
    };
    check("{}", "exactly one of");
    check(r#"{"prompt": "a", "messages": []}"#, "exactly one of");
    check(r#"{"prompt": "a"}"#, "no tokenizer");
    check(
        r#"{"prompt": "a", "raw": 1}"#,
        "`raw` must be true or false",
    );
    check(
        r#"{"messages": [], "raw": true}"#,
        "`messages` needs the chat template",
    );
    check(r#"{"messages": []}"#, "no tokenizer");
    check(r#"{"prompt_token_ids": "a"}"#, "list of token ids");
    check(r#"{"prompt_token_ids": [1], "stream": true}"#, "`stream`");
}

#[test]
fn fields_of_a_line_win_over_flags() {
    let body = |line: &str, defaults: Value| form(line, &defaults).expect("the line is right").body;
    let defaults = json!({"max_tokens": 9, "temperature": 0.5});
    let line = r#"{"prompt_token_ids": [1], "max_completion_tokens": 3, "logprobs": true, "top_logprobs": 4}"#;
    let expected = json!({
        "prompt": [1], "max_tokens": 3, "logprobs": 4, "temperature": 0.5,
        "return_token_ids": true, "return_tokens_as_token_ids": true,
    });
    assert_eq!(body(line, defaults), expected);
    let open = body(r#"{"prompt_token_ids": [1], "logprobs": false}"#, json!({}));
    assert_eq!(
        open,
        json!({"prompt": [1], "max_tokens": MAX_TOKENS_ROOM, "return_token_ids": true})
    );
}

#[test]
fn a_limit_of_a_line_wins_under_each_of_its_names() {
    for name in ["max_tokens", "max_completion_tokens", "n_predict"] {
        let line = json!({"prompt_token_ids": [1], name: 3}).to_string();
        let body = form(&line, &json!({"max_tokens": 9}))
            .expect("the line is right")
            .body;
        let limits =
            ["max_tokens", "max_completion_tokens", "n_predict"].map(|name| body.get(name));
        assert_eq!(
            limits.into_iter().flatten().collect::<Vec<_>>(),
            [3],
            "{name}: {body}"
        );
    }
}

#[test]
fn both_forms_of_logprobs_become_one() {
    let form = ShortForm {
        path: "/v1/completions",
        body: json!({"logprobs": 1}),
    };
    let completion = json!({
        "tokens": ["token_id:7"], "token_logprobs": [-2.0],
        "top_logprobs": [{"token_id:5": -0.5, "token_id:7": -2.0}],
    });
    let top = json!([{"token_id": 5, "logprob": -0.5}]);
    let expected = json!([{"token_id": 7, "logprob": -2.0, "top": top}]);
    assert_eq!(form.logprobs(&completion), expected);
    let alternatives = json!([{"token": "token_id:5", "logprob": -0.5}]);
    let chat = json!({"content": [{"token": "token_id:7", "logprob": -2.0, "top_logprobs": alternatives}]});
    assert_eq!(form.logprobs(&chat), expected);
}
