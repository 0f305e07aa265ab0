//! Tests of `cli/speculation.rs`.

use super::*;

#[test]
fn vllms_fields_are_read_with_vllms_defaults() {
    let read = |text: &str| parse(text).map(|config| config.settings);
    let settings = |num_speculative_tokens, prompt_lookup_min, prompt_lookup_max| {
        Some(Speculation {
            method: SpeculationMethod::Ngram,
            num_speculative_tokens,
            prompt_lookup_min,
            prompt_lookup_max,
            disable_by_batch_size: None,
        })
    };
    let text = r#"{"method":"ngram","num_speculative_tokens":7,"prompt_lookup_max":3}"#;
    assert_eq!(read(text), Ok(settings(7, 3, 3)));
    assert_eq!(
        read(r#"{"prompt_lookup_min":2,"prompt_lookup_max":6}"#),
        Ok(settings(5, 2, 6))
    );
    assert_eq!(read(r#"{"prompt_lookup_min":2}"#), Ok(settings(5, 2, 2)));
    assert_eq!(read("{}"), Ok(settings(5, 4, 4)));
    assert_eq!(
        read(r#"{"disable_by_batch_size":1}"#),
        Ok(Some(Speculation::SINGLE_SEQUENCE))
    );
    assert_eq!(read("null"), Ok(None));
    for text in [
        r#"{"method":"draft_model","model":"a/b"}"#,
        r#"{"model":"a/b"}"#,
    ] {
        let config = SpeculativeConfig {
            settings: Some(BY_MODEL),
            model: Some("a/b".into()),
        };
        assert_eq!(parse(text), Ok(config), "{text}");
    }
    for name in MTP {
        let text = format!(r#"{{"method":"{name}"}}"#);
        assert_eq!(read(&text), Ok(Some(BY_LAYERS)), "{text}");
    }
}

#[test]
fn other_fields_and_values_are_refused_by_name() {
    let refused = |text: &str, word: &str| {
        let error = parse(text).expect_err(text);
        assert!(error.contains(word), "{text}: {error}");
    };
    refused(
        r#"{"method":"eagle"}"#,
        "`method` must be \"ngram\", \"draft_model\" or \"mtp\", not \"eagle\"",
    );
    refused(r#"{"method":"mtp","model":"a/b"}"#, "takes no `model`");
    refused(r#"{"method":"ngram","model":"a/b"}"#, "takes no `model`");
    refused(r#"{"method":"draft_model"}"#, "needs a `model`");
    refused(
        r#"{"num_speculative_token":5}"#,
        "unknown field `num_speculative_token`",
    );
    refused(r#"{"num_speculative_tokens":-1}"#, "-1");
    refused("5", "expected struct");
    refused("{", "EOF");
}
