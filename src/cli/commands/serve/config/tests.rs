//! Tests of `cli/commands/serve/config.rs`.

use super::*;

fn command() -> Command {
    Command::new("serve")
        .arg(Arg::new("model").long("model").action(ArgAction::Append))
        .arg(
            Arg::new("host")
                .long("host")
                .env("FOLIO_TEST_OF_CONFIG_HOST"),
        )
        .arg(Arg::new("mmap").long("mmap").action(ArgAction::SetTrue))
        .arg(Arg::new("max_model_len").long("max-model-len"))
        .arg(Arg::new("speculative_config").long("speculative-config"))
        .arg(
            Arg::new("served_model_name")
                .long("served-model-name")
                .alias("alias")
                .action(ArgAction::Append),
        )
}

fn arguments(text: &str, model: Option<&str>, typed: &[&str]) -> Result<Vec<String>> {
    let file = ConfigFile::parse("f.toml".into(), text)?;
    let given = command()
        .try_get_matches_from([&["serve"], typed].concat())
        .expect("the arguments are right");
    let Arguments(list) = file.arguments(model, &command(), &command(), &given)?;
    Ok(list
        .into_iter()
        .map(|argument| argument.into_string().expect("it is text"))
        .collect())
}

#[test]
fn options_become_arguments() {
    let text = "host = \"::1\"\nmmap = true\nmax_model_len = 100\nspeculative-config = {method = \"ngram\"}\n\
                    [models.a]\nmodel = \"x.gguf\"\nalias = [\"b\", \"c\"]\nmax-model-len = -5\n";
    let json = "--speculative-config={\"method\":\"ngram\"}";
    assert_eq!(
        arguments(text, None, &[]).expect("it is right"),
        ["--host=::1", "--mmap", "--max-model-len=100", json]
    );
    let own = [
        "--model=x.gguf",
        "--served-model-name=b",
        "--served-model-name=c",
        "--max-model-len=-5",
    ];
    let of_model = arguments(text, Some("a"), &["--host", "h"]).expect("it is right");
    assert_eq!(
        of_model,
        [&own[..], &["--mmap", json]].concat(),
        "typed wins over the file, a table over its top"
    );
    assert_eq!(
        arguments("mmap = false", None, &[]).expect("it is right"),
        Vec::<String>::new()
    );
}

#[test]
fn what_is_wrong_is_named() {
    for (text, words) in [
        (
            "hots = 1",
            "f.toml: there is no option `hots`; did you mean `host`?",
        ),
        ("config = \"x\"", "there is no option `config`"),
        ("mmap = 1", "f.toml: mmap: expected true or false"),
        (
            "host = [\"a\", \"b\"]",
            "f.toml: host: this option takes one value",
        ),
        ("host = true", "f.toml: host: expected a value"),
        ("models = 1", "`models` is not a table"),
        ("[models]\na = 1", "`models.a` is not a table"),
        ("host = ", "f.toml: TOML parse error at line 1"),
    ] {
        let error = format!("{:#}", arguments(text, None, &[]).expect_err(text));
        assert!(error.contains(words), "{text}: {error}");
    }
    let error = format!(
        "{:#}",
        arguments("[models.a]\nhots = 1", Some("a"), &[]).expect_err("no such option")
    );
    assert!(
        error.starts_with("f.toml: models.a: there is no option `hots`"),
        "{error}"
    );
}
