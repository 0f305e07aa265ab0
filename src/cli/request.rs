//! The flags of `run` and `chat` that become fields of a request. A flag that is not given sets no field, so that the
//! model's own default applies.

use clap::Args;
use folio::server::{Limits, ServerOptions};
use serde_json::{Map, Number, Value};

/// `max_tokens` of a completion that may fill the context: the API lowers it to the rest of the context after the
/// prompt.
pub(crate) const MAX_TOKENS_ROOM: u32 = u32::MAX;

/// Sampling flags.
#[derive(Args, Clone, Debug)]
pub(crate) struct RequestArgs {
    /// Maximum number of tokens to generate [default: the rest of the context]
    #[arg(long, value_name = "N")]
    max_tokens: Option<u32>,
    /// Sampling temperature; 0 always takes the most likely token [default: the model's own]
    #[arg(long, value_parser = parse_number)]
    temperature: Option<Number>,
    /// Sample from the smallest set of tokens with this total probability
    #[arg(long, value_parser = parse_number)]
    top_p: Option<Number>,
    /// Sample from this many most likely tokens; 0 for all
    #[arg(long)]
    top_k: Option<u32>,
    /// Minimum probability of a token, relative to the most likely one
    #[arg(long, value_parser = parse_number)]
    min_p: Option<Number>,
    /// Stop before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Continue after the model's end-of-text token
    #[arg(long)]
    ignore_eos: bool,
    /// More fields of the request, as a JSON object, for example '{"response_format": {"type": "json_object"}}'
    #[arg(long, value_name = "JSON", value_parser = parse_object)]
    extra_body: Option<Map<String, Value>>,
}

impl RequestArgs {
    /// These flags as fields of a request's body.
    pub(crate) fn fields(&self) -> Map<String, Value> {
        let flags = [
            ("max_tokens", self.max_tokens.map(Value::from)),
            ("temperature", self.temperature.clone().map(Value::from)),
            ("top_p", self.top_p.clone().map(Value::from)),
            ("top_k", self.top_k.map(Value::from)),
            ("min_p", self.min_p.clone().map(Value::from)),
            ("stop", (!self.stop.is_empty()).then(|| Value::from(self.stop.clone()))),
            ("ignore_eos", self.ignore_eos.then_some(Value::Bool(true))),
        ];
        let mut fields = self.extra_body.clone().unwrap_or_default();
        fields.extend(flags.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        fields
    }

    /// Like [`Self::fields`], and with this seed unless the fields have one.
    pub(crate) fn fields_with_seed(&self, seed: Option<u64>) -> Map<String, Value> {
        let mut fields = self.fields();
        if let Some(seed) = seed {
            // The API takes a signed number with the same bits.
            fields.entry("seed").or_insert_with(|| seed.cast_signed().into());
        }
        fields
    }
}

/// API options for requests of the local user: without the limits that protect a server from its clients. `strict`
/// refuses unknown fields.
pub(crate) fn server_options(strict: bool) -> ServerOptions {
    let limits = Limits { body_bytes_max: usize::MAX, choices_max: 128, prompts_max: 2048 };
    ServerOptions { limits, strict_fields: strict, ..ServerOptions::default() }
}

fn parse_number(text: &str) -> Result<Number, String> {
    let number = text.parse().ok().and_then(Number::from_f64);
    number.ok_or_else(|| "expected a finite number".to_owned())
}

fn parse_object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("expected a JSON object: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::json;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        request: RequestArgs,
    }

    fn fields(arguments: &[&str]) -> Value {
        let command = Command::try_parse_from([&["folio"], arguments].concat()).expect("the arguments are right");
        command.request.fields_with_seed(Some(u64::MAX)).into()
    }

    #[test]
    fn flags_become_fields_and_the_rest_is_absent() {
        assert_eq!(fields(&[]), json!({"seed": -1}));
        let given = ["--temperature", "0.7", "--stop", "a", "--stop", "b", "--ignore-eos", "--max-tokens", "3"];
        let expected = json!({"temperature": 0.7, "stop": ["a", "b"], "ignore_eos": true, "max_tokens": 3, "seed": -1});
        assert_eq!(fields(&given), expected);
        let extra = ["--extra-body", r#"{"seed": 5, "top_k": 1, "logprobs": true}"#, "--top-k", "2"];
        assert_eq!(fields(&extra), json!({"seed": 5, "top_k": 2, "logprobs": true}), "a flag wins");
        for wrong in [["--temperature", "NaN"], ["--extra-body", "[]"], ["--extra-body", "{"]] {
            assert!(Command::try_parse_from([&["folio"], &wrong[..]].concat()).is_err(), "{wrong:?}");
        }
    }
}
