//! Tests of `cli/commands/chat/commands.rs`.

use super::*;
use crate::cli::terminal::input::completed;
use serde_json::json;

#[test]
fn commands_and_fields_are_completed() {
    let complete = |line: &str| completed(candidates, line);
    assert_eq!(complete("/sy"), (0, vec!["/system".to_owned()]));
    assert_eq!(complete("/set temp"), (5, vec!["temperature".to_owned()]));
    assert_eq!(complete("and/or"), (0, Vec::new()));
}

#[test]
fn commands_have_texts_and_values() {
    let set = |name: &str, value: Option<Value>| Ok(Command::Set(Some((name.into(), value))));
    assert_eq!(
        parse("/set temperature 0.5"),
        set("temperature", Some(json!(0.5)))
    );
    assert_eq!(
        parse("/set stop  END now"),
        set("stop", Some(json!("END now")))
    );
    assert_eq!(parse("/set seed"), set("seed", None));
    assert_eq!(
        parse("/system Be brief."),
        Ok(Command::System(Some("Be brief.".into())))
    );
    assert_eq!(parse("/load"), Ok(Command::Load(None)));
    assert!(parse("/save").is_err() && parse("/read").is_err());
    let error = parse("/sytem x").expect_err("it is mistyped");
    assert!(error.contains("did you mean /system?"), "{error}");
    assert!(
        parse("/xyz")
            .expect_err("it is no command")
            .contains("/help")
    );
    for (name, _) in COMMANDS {
        assert!(parse(&format!("{name} x")).is_ok(), "{name}");
    }
}
