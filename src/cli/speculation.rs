//! `--speculative-config`: vLLM's JSON object, with the part of it that folio has.

use folio::config::{Speculation, SpeculationMethod};
use serde::Deserialize;
use std::path::PathBuf;

/// With a draft model, unless it is set: drafts for any number of sequences.
pub(crate) const BY_MODEL: Speculation = Speculation {
    method: SpeculationMethod::DraftModel,
    ..Speculation::DEFAULT
};

/// The option's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpeculativeConfig {
    /// `None`: off.
    pub(crate) settings: Option<Speculation>,
    /// The draft model.
    pub(crate) model: Option<PathBuf>,
}

/// vLLM's fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    method: Option<String>,
    model: Option<PathBuf>,
    num_speculative_tokens: Option<u32>,
    prompt_lookup_max: Option<u32>,
    prompt_lookup_min: Option<u32>,
    disable_by_batch_size: Option<u32>,
}

/// Reads the JSON object; `null` turns speculation off. Ranges are checked with the other settings.
pub(crate) fn parse(text: &str) -> Result<SpeculativeConfig, String> {
    let fields: Option<Fields> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let Some(fields) = fields else {
        return Ok(SpeculativeConfig {
            settings: None,
            model: None,
        });
    };
    let method = match (fields.method.as_deref(), &fields.model) {
        (None | Some("ngram"), None) => SpeculationMethod::Ngram,
        (None | Some("draft_model"), Some(_)) => SpeculationMethod::DraftModel,
        (Some("draft_model"), None) => {
            return Err("the method \"draft_model\" needs a `model`".into());
        }
        (Some("ngram"), Some(_)) => return Err("the method \"ngram\" takes no `model`".into()),
        (Some(other), _) => {
            return Err(format!(
                "`method` must be \"ngram\" or \"draft_model\", not \"{other}\""
            ));
        }
    };
    let default = Speculation::DEFAULT;
    // As in vLLM, one of the two stands for both.
    let max = fields
        .prompt_lookup_max
        .or(fields.prompt_lookup_min)
        .unwrap_or(default.prompt_lookup_max);
    let min = fields
        .prompt_lookup_min
        .or(fields.prompt_lookup_max)
        .unwrap_or(default.prompt_lookup_min);
    let settings = Speculation {
        method,
        num_speculative_tokens: fields
            .num_speculative_tokens
            .unwrap_or(default.num_speculative_tokens),
        prompt_lookup_min: min,
        prompt_lookup_max: max,
        disable_by_batch_size: fields.disable_by_batch_size,
    };
    Ok(SpeculativeConfig {
        settings: Some(settings),
        model: fields.model,
    })
}

#[cfg(test)]
mod tests {
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
    }

    #[test]
    fn other_fields_and_values_are_refused_by_name() {
        let refused = |text: &str, word: &str| {
            let error = parse(text).expect_err(text);
            assert!(error.contains(word), "{text}: {error}");
        };
        refused(
            r#"{"method":"eagle"}"#,
            "`method` must be \"ngram\" or \"draft_model\", not \"eagle\"",
        );
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
}
