//! Tests of `config.rs`.

use super::*;

#[test]
fn an_option_outside_its_range_is_refused_by_its_name() {
    for option in Config::OPTIONS {
        let (least, most) = option.range;
        let outside = [least.checked_sub(1), most.checked_add(1)];
        for value in outside.into_iter().flatten() {
            let error = Config::default()
                .with(&[(option, value)])
                .expect_err(option.name);
            assert_eq!(error.option, option.name);
            assert!(error.message.contains(&value.to_string()), "{error}");
        }
        for value in [least, most] {
            let taken = Config::default().with(&[(option, value)]);
            let value = taken.ok().and_then(|config| (option.get)(&config));
            let is_too_few = option.name == "max_num_batched_tokens" && value.is_none();
            assert!(is_too_few || value.is_some(), "{}", option.name);
        }
    }
}

#[test]
fn more_sequences_raise_the_tokens_per_step_unless_these_are_given() {
    let [sequences, tokens] = ["max_num_seqs", "max_num_batched_tokens"]
        .map(|name| EngineOption::named(name).expect("there is such an option"));
    let config = Config::default().with(&[(sequences, 1024)]);
    let tokens_max = config.map(|config| config.max_num_batched_tokens);
    assert_eq!(tokens_max, Ok(1024 + 32));
    let error = Config::default()
        .with(&[(sequences, 1024), (tokens, 512)])
        .expect_err("a full decode batch leaves no room");
    assert!(
        error
            .to_string()
            .starts_with("--max-num-batched-tokens: must be from 1056 ")
    );
}
