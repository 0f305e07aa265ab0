//! Tests of `cli/request.rs`.

use super::*;
use clap::Parser;
use serde_json::json;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    request: RequestArgs,
}

fn fields(arguments: &[&str]) -> Value {
    let command =
        Command::try_parse_from([&["folio"], arguments].concat()).expect("the arguments are right");
    command.request.fields_with_seed(Some(u64::MAX)).into()
}

#[test]
fn every_flag_has_help() {
    let command = <Command as clap::CommandFactory>::command();
    let bare = |flag: &&clap::Arg| {
        flag.get_help()
            .is_none_or(|help| help.to_string().len() < 10)
    };
    assert!(
        command.get_arguments().find(bare).is_none(),
        "a field has another name in the API"
    );
    let help = command.clone().render_help().to_string();
    assert!(
        help.contains("[from 0 to 2]") && help.contains("[from 0 to 1]"),
        "{help}"
    );
}

#[test]
fn flags_become_fields_and_the_rest_is_absent() {
    assert_eq!(fields(&[]), json!({"seed": -1}));
    let given = [
        "--temperature",
        "0.7",
        "--stop",
        "a",
        "--stop",
        "b",
        "--ignore-eos",
        "--max-tokens",
        "3",
    ];
    let expected = json!({"temperature": 0.7, "stop": ["a", "b"], "ignore_eos": true, "max_tokens": 3, "seed": -1});
    assert_eq!(fields(&given), expected);
    let extra = [
        "--extra-body",
        r#"{"seed": 5, "top_k": 1, "logprobs": true}"#,
        "--top-k",
        "-1",
    ];
    assert_eq!(
        fields(&extra),
        json!({"seed": 5, "top_k": -1, "logprobs": true}),
        "a flag wins"
    );
    for wrong in [
        ["--temperature", "NaN"],
        ["--extra-body", "[]"],
        ["--extra-body", "{"],
    ] {
        assert!(
            Command::try_parse_from([&["folio"], &wrong[..]].concat()).is_err(),
            "{wrong:?}"
        );
    }
}
