//! `--speculative-config`: vLLM's JSON object, with the part of it that folio has.

use folio::config::Speculation;
use serde::Deserialize;

/// The option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpeculativeConfig(pub(crate) Option<Speculation>);

/// vLLM's fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    method: Option<String>,
    model: Option<String>,
    num_speculative_tokens: Option<u32>,
    prompt_lookup_max: Option<u32>,
    prompt_lookup_min: Option<u32>,
}

/// Reads the JSON object; `null` turns speculation off. Ranges are checked with the other settings.
pub(crate) fn parse(text: &str) -> Result<SpeculativeConfig, String> {
    let fields: Option<Fields> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let Some(fields) = fields else { return Ok(SpeculativeConfig(None)) };
    match fields.method.as_deref() {
        None | Some("ngram") => {}
        Some(other) => return Err(format!("`method` must be \"ngram\", not \"{other}\"")),
    }
    if let Some(model) = fields.model {
        return Err(format!(
            "`model` must be left out (it is \"{model}\"): drafts come from the text, not from a model"
        ));
    }
    let default = Speculation::DEFAULT;
    // As in vLLM, one of the two stands for both.
    let max = fields.prompt_lookup_max.or(fields.prompt_lookup_min).unwrap_or(default.prompt_lookup_max);
    let min = fields.prompt_lookup_min.or(fields.prompt_lookup_max).unwrap_or(default.prompt_lookup_min);
    Ok(SpeculativeConfig(Some(Speculation {
        num_speculative_tokens: fields.num_speculative_tokens.unwrap_or(default.num_speculative_tokens),
        prompt_lookup_min: min,
        prompt_lookup_max: max,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vllms_fields_are_read_with_vllms_defaults() {
        let read = |text: &str| parse(text).map(|config| config.0);
        let settings = |tokens, min, max| {
            Some(Speculation { num_speculative_tokens: tokens, prompt_lookup_min: min, prompt_lookup_max: max })
        };
        let text = r#"{"method":"ngram","num_speculative_tokens":7,"prompt_lookup_max":3}"#;
        assert_eq!(read(text), Ok(settings(7, 3, 3)));
        assert_eq!(read(r#"{"prompt_lookup_min":2,"prompt_lookup_max":6}"#), Ok(settings(5, 2, 6)));
        assert_eq!(read(r#"{"prompt_lookup_min":2}"#), Ok(settings(5, 2, 2)));
        assert_eq!(read("{}"), Ok(Some(Speculation::DEFAULT)));
        assert_eq!(read("null"), Ok(None));
    }

    #[test]
    fn other_fields_and_values_are_refused_by_name() {
        let refused = |text: &str, word: &str| {
            let error = parse(text).expect_err(text);
            assert!(error.contains(word), "{text}: {error}");
        };
        refused(r#"{"method":"eagle"}"#, "`method` must be \"ngram\", not \"eagle\"");
        refused(r#"{"model":"a/b"}"#, "`model` must be left out (it is \"a/b\")");
        refused(r#"{"num_speculative_token":5}"#, "unknown field `num_speculative_token`");
        refused(r#"{"num_speculative_tokens":-1}"#, "-1");
        refused("5", "expected struct");
        refused("{", "EOF");
    }
}
