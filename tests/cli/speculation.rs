//! `--speculative-config`: what it refuses, and that drafts change no answer.

use super::{packed, refusal, repository, run, text};

#[test]
fn speculation_is_refused_by_the_name_of_the_field() {
    for (config, words) in [
        (
            r#"{"method":"eagle"}"#,
            "`method` must be \"ngram\", \"draft_model\" or \"mtp\"",
        ),
        (r#"{"draft_tokens":4}"#, "unknown field `draft_tokens`"),
        (
            r#"{"num_speculative_tokens":33}"#,
            "`num_speculative_tokens` must be from 1 to 32, not 33",
        ),
        (
            r#"{"prompt_lookup_max":0}"#,
            "`prompt_lookup_max` must be from 1 to 64, not 0",
        ),
        (
            r#"{"prompt_lookup_max":2,"prompt_lookup_min":3}"#,
            "must be from 1 to `prompt_lookup_max` (2), not 3",
        ),
        (
            r#"{"method":"mtp"}"#,
            "needs layers of the model that predict further tokens",
        ),
        (
            r#"{"method":"qwen3_next_mtp","model":"a/b"}"#,
            "takes no `model`",
        ),
    ] {
        let command = [
            "run",
            "--prompt",
            "a",
            "--device",
            "fake",
            "--speculative-config",
            config,
        ];
        refusal(&command, &["--speculative-config", words]);
    }
}

#[test]
fn drafts_do_not_change_an_answer() {
    let lookup = r#"{"method":"ngram","prompt_lookup_min":1,"prompt_lookup_max":3}"#;
    let prompt = "one two three one two three one two";
    for device in ["reference", "cpu"] {
        for sampling in [["--temperature", "0"], ["--temperature", "0.8"]] {
            let fixed = [
                "run",
                "--device",
                device,
                "--max-tokens",
                "48",
                "--seed",
                "7",
                "--prompt",
                prompt,
            ];
            let plain = run(&[&fixed[..], &sampling, &["--speculative-config", "null"]].concat());
            let drafted = run(&[&fixed[..], &sampling, &["--speculative-config", lookup]].concat());
            assert!(
                plain.status.success() && drafted.status.success(),
                "{}",
                text(&drafted.stderr)
            );
            assert_eq!(
                text(&plain.stdout),
                text(&drafted.stdout),
                "{device}, {sampling:?}"
            );
        }
    }
}

fn path(path: &str) -> String {
    repository(path)
        .to_str()
        .expect("the path is UTF-8")
        .to_owned()
}

#[test]
fn a_draft_model_changes_no_answer() {
    let demo = path("assets/demo");
    for sampling in [["--temperature", "0"], ["--temperature", "0.8"]] {
        let fixed = [
            "run",
            "--device",
            "cpu",
            "--max-tokens",
            "32",
            "--seed",
            "7",
            "--prompt",
            "the moon",
            "--raw",
        ];
        let plain = run(&[&fixed[..], &sampling, &["--speculative-config", "null"]].concat());
        let drafted = run(&[&fixed[..], &sampling, &["--draft-model", &demo]].concat());
        assert!(
            plain.status.success() && drafted.status.success(),
            "{}",
            text(&drafted.stderr)
        );
        assert_eq!(text(&plain.stdout), text(&drafted.stdout), "{sampling:?}");
    }
    let llama = packed::model("golden/llama").to_string_lossy().into_owned();
    let other = [
        "run",
        "--prompt",
        "a",
        "--device",
        "cpu",
        "--draft-model",
        &llama,
    ];
    refusal(
        &other,
        &["the draft model has no tokenizer, but the model has one"],
    );
    let both = [
        "run",
        "--prompt",
        "a",
        "--device",
        "cpu",
        "--draft-model",
        &llama,
    ];
    refusal(
        &[&both[..], &["--speculative-config", "null"]].concat(),
        &["--speculative-config null turns drafts off"],
    );
}

/// Bytes of weights and of a token's keys and values, as `plan` reports them.
fn planned(more: &[&str]) -> (u64, u64) {
    let output = run(&[&["plan", "--json", "--memory", "1GiB"], more].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value =
        serde_json::from_str(&text(&output.stdout)).expect("it is JSON");
    let bytes = |field: &str| report["asked"][field].as_u64().expect("a number");
    (bytes("weight_bytes"), bytes("kv_token_bytes"))
}

#[test]
fn a_draft_model_is_part_of_the_plan() {
    let (alone, _) = planned(&[]);
    let (with, _) = planned(&["--draft-model", &path("assets/demo")]);
    assert_eq!(with, 2 * alone);
}

#[test]
fn layers_that_predict_are_part_of_the_plan_if_they_draft() {
    let model = packed::model("golden-mtp/glm4_moe");
    let model = model.to_str().expect("the path is UTF-8");
    let without = planned(&[model]);
    let with = planned(&[model, "--speculative-config", r#"{"method":"mtp"}"#]);
    assert!(
        with.0 > without.0 && with.1 > without.1,
        "{without:?} {with:?}"
    );
}
