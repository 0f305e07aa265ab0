//! Tests of `cli/commands/serve/foreign.rs`.

use super::*;

fn check(arguments: &[&str]) -> Result<Vec<String>> {
    let arguments = with_long_names(arguments.iter().map(OsString::from));
    let command = ForeignArgs::augment_args(Command::new("serve").no_binary_name(true))
        .args_override_self(true);
    let matches = command.try_get_matches_from(arguments)?;
    ForeignArgs::from_arg_matches(&matches)?.check()
}

#[test]
fn an_option_of_vllm_is_accepted_and_said_or_refused_with_a_reason() {
    for row in TABLE {
        let name = format!("--{}", row.name);
        let typed = match row.takes {
            Nothing | Switch => vec![name.as_str()],
            Value | Values => vec![name.as_str(), "something"],
        };
        match (row.fate, check(&typed)) {
            (Fate::Ignored, Ok(said)) => {
                assert_eq!(
                    said,
                    [format!("{name} changes nothing here: {}", row.reason)]
                );
            }
            (Fate::Refused(except), Err(error)) => {
                let error = error.to_string();
                assert!(
                    error.starts_with(&name) && error.ends_with(row.reason),
                    "{error}"
                );
                if row.takes == Value {
                    for value in except {
                        let said = check(&[&format!("{name}={value}")]).expect(row.name);
                        assert_eq!(said, [""; 0], "{name} {value}");
                    }
                }
            }
            (fate, checked) => panic!("{name} {fate:?}: {checked:?}"),
        }
        if row.takes == Switch {
            let opposite = format!("--no-{}", row.name);
            assert_eq!(check(&[&opposite]).expect(row.name), [""; 0]);
        }
    }
}

#[test]
fn short_names_and_the_last_of_two_values_count() {
    assert!(check(&["-tp", "2", "-tp=1"]).is_ok());
    let error = check(&["-tp", "1", "--tensor-parallel-size", "2"]).expect_err("two devices");
    assert!(
        error
            .to_string()
            .starts_with("--tensor-parallel-size 2 is not"),
        "{error}"
    );
}
