//! Tests of `cli/commands/serve/generation.rs`.

use super::*;

#[test]
fn defaults_are_checked_and_replace_those_of_the_model() {
    let over = Defaults::parse("{\"temperature\": 0.25, \"top_k\": -1}").expect("it is right");
    let mut model = SamplingParams::default();
    (model.draw.top_k, model.draw.top_p) = (20, 0.5);
    let draw = over.over(model).draw;
    assert_eq!((draw.temperature, draw.top_k, draw.top_p), (0.25, 0, 0.5));
    for (text, word) in [
        ("{\"temperature\": -1}", "`temperature` must be"),
        ("{\"eos_token_id\": 3}", "unknown field `eos_token_id`"),
        ("{\"top_k\": -2}", "`top_k`"),
        ("{\"max_new_tokens\": 0}", "`max_new_tokens`"),
        ("[]", "invalid"),
        ("{", "EOF"),
    ] {
        let error = Defaults::parse(text).expect_err(text);
        assert!(error.contains(word), "{text}: {error}");
    }
}
