//! The flags of `run` and `chat` that become fields of a request. A flag that is not given sets no field, so that the
//! model's own default applies.

use clap::Args;
use folio::server::{Limits, ServerOptions, field_help, names_of};
use serde_json::{Map, Number, Value};

/// `max_tokens` of a completion that may fill the context: the API lowers it to the rest of the context after the
/// prompt.
pub(crate) const MAX_TOKENS_ROOM: u32 = u32::MAX;

/// Sampling flags. Their help is the API's documentation of the fields.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct RequestArgs {
    #[arg(long, value_name = "N", help = field_help("max_completion_tokens"))]
    max_tokens: Option<u32>,
    #[arg(long, value_parser = parse_number, help = field_help("temperature") + " [default: the model's own]")]
    temperature: Option<Number>,
    #[arg(long, value_parser = parse_number, help = field_help("top_p"))]
    top_p: Option<Number>,
    #[arg(long, allow_negative_numbers = true, help = field_help("top_k"))]
    top_k: Option<i64>,
    #[arg(long, value_parser = parse_number, help = field_help("min_p"))]
    min_p: Option<Number>,
    #[arg(long, value_name = "TEXT", help = field_help("stop") + "; may be given several times")]
    stop: Vec<String>,
    #[arg(long, help = field_help("ignore_eos"))]
    ignore_eos: bool,
    /// More fields of the request, as a JSON object, for example '{"response_format": {"type": "json_object"}}'
    #[arg(long, value_name = "JSON", value_parser = parse_object)]
    extra_body: Option<Map<String, Value>>,
}

/// Sets a field of a request, and takes away what it has under another name of the field.
pub(crate) fn set_field(body: &mut Map<String, Value>, name: &str, value: Value) {
    names_of(name).for_each(|other| drop(body.shift_remove(other)));
    body.insert(name.to_owned(), value);
}

/// Sets fields of a request as [`set_field`] does.
pub(crate) fn set_fields(body: &mut Map<String, Value>, fields: &Map<String, Value>) {
    for (name, value) in fields {
        set_field(body, name, value.clone());
    }
}

/// Sets a field of a request unless it has it, under whatever name.
pub(crate) fn set_default(body: &mut Map<String, Value>, name: &str, value: Value) {
    let has_field = names_of(name).any(|other| body.contains_key(other));
    if !has_field && !body.contains_key(name) {
        body.insert(name.to_owned(), value);
    }
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
            (
                "stop",
                (!self.stop.is_empty()).then(|| Value::from(self.stop.clone())),
            ),
            ("ignore_eos", self.ignore_eos.then_some(Value::Bool(true))),
        ];
        let mut fields = self.extra_body.clone().unwrap_or_default();
        for (name, value) in flags {
            if let Some(value) = value {
                set_field(&mut fields, name, value);
            }
        }
        fields
    }

    /// Like [`Self::fields`], and with this seed unless the fields have one.
    pub(crate) fn fields_with_seed(&self, seed: Option<u64>) -> Map<String, Value> {
        let mut fields = self.fields();
        if let Some(seed) = seed {
            // The API takes a signed number with the same bits.
            fields
                .entry("seed")
                .or_insert_with(|| seed.cast_signed().into());
        }
        fields
    }
}

/// API options for requests of the local user: without the limits that protect a server from its clients. `strict`
/// refuses unknown fields.
pub(crate) fn server_options(strict: bool) -> ServerOptions {
    let limits = Limits {
        body_bytes_max: Some(usize::MAX),
        images_max: u32::MAX,
        requests_bytes_max: u64::MAX,
        reply_bytes_max: u64::MAX,
        choices_max: 128,
        prompts_max: 2048,
    };
    ServerOptions {
        limits,
        strict_fields: strict,
        ..ServerOptions::default()
    }
}

fn parse_number(text: &str) -> Result<Number, String> {
    let number = text.parse().ok().and_then(Number::from_f64);
    number.ok_or_else(|| "expected a finite number".to_owned())
}

fn parse_object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("expected a JSON object: {error}"))
}

#[cfg(test)]
mod tests;
