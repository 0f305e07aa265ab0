//! The short forms of a line: the fields of a request beside `prompt`, `messages` or `prompt_token_ids`, answered with
//! texts and token ids: `{"index", "outputs": [{"text", "token_ids", "finish_reason"}], "usage"}`.
//!
//! `prompt` means what `--prompt` means: one message of a user if the model has a chat template. Without a template, or
//! with `"raw": true`, it is text to continue.
//!
//! `text` is everything that the model wrote. `reasoning_content` and `tool_calls` are added if the API finds them in
//! it.

use super::{Response, add_defaults};
use crate::cli::request::{MAX_TOKENS_ROOM, set_default};
use anyhow::{Context as _, Result, bail, ensure};
use folio::text::{TextModel, TextStream};
use serde_json::{Map, Value, json};

/// Prefix of a token in logprobs that name tokens by id.
const ID_PREFIX: &str = "token_id:";

/// A line as a call to the API.
pub(super) struct ShortForm {
    pub(super) path: &'static str,
    pub(super) body: Value,
}

impl ShortForm {
    /// `raw`: what the line means if it does not say `raw` itself.
    pub(super) fn new(
        mut line: Map<String, Value>,
        defaults: &Map<String, Value>,
        raw: bool,
        text: &TextModel,
    ) -> Result<Self> {
        let missing = "this model has no tokenizer: pass `prompt_token_ids`";
        let own_raw =
            take(&mut line, "raw").map(|raw| raw.as_bool().context("`raw` must be true or false"));
        let own_raw = own_raw.transpose()?;
        let is_chat = text.template.is_some() && !own_raw.unwrap_or(raw);
        let mut given =
            ["prompt", "messages", "prompt_token_ids"].map(|name| take(&mut line, name));
        let path = match &mut given {
            [Some(prompt), None, None] => {
                ensure!(text.tokenizer.is_some() || !prompt.is_string(), missing);
                if is_chat {
                    ensure!(
                        prompt.is_string(),
                        "`prompt` must be a text: it is the message of a user (several texts or token ids need \
                         \"raw\": true)"
                    );
                    line.insert("messages".to_owned(), user_message(prompt));
                    return Self::finish("/v1/chat/completions", line, defaults);
                }
                line.insert("prompt".to_owned(), prompt.take());
                "/v1/completions"
            }
            [None, Some(messages), None] => {
                ensure!(
                    own_raw != Some(true),
                    "`messages` needs the chat template, so it cannot be `raw`"
                );
                ensure!(text.tokenizer.is_some(), missing);
                ensure!(
                    text.template.is_some(),
                    "`messages` needs a chat template: pass --chat-template, or use `prompt`"
                );
                line.insert("messages".to_owned(), messages.take());
                "/v1/chat/completions"
            }
            [None, None, Some(ids)] => {
                let is_ids = ids
                    .as_array()
                    .is_some_and(|ids| ids.iter().all(Value::is_number));
                ensure!(is_ids, "`prompt_token_ids` must be a list of token ids");
                line.insert("prompt".to_owned(), ids.take());
                "/v1/completions"
            }
            _ => {
                bail!("a line must have exactly one of `prompt`, `messages` and `prompt_token_ids`")
            }
        };
        Self::finish(path, line, defaults)
    }

    /// Adds what the route needs.
    fn finish(
        path: &'static str,
        mut line: Map<String, Value>,
        defaults: &Map<String, Value>,
    ) -> Result<Self> {
        ensure!(
            line.get("stream").is_none_or(|stream| *stream == false),
            "`stream` must be false in a batch"
        );
        match path {
            "/v1/completions" => as_completion(&mut line),
            _ => as_chat(&mut line),
        }
        add_defaults(&mut line, defaults);
        if path == "/v1/completions" {
            set_default(&mut line, "max_tokens", MAX_TOKENS_ROOM.into());
        }
        line.insert("return_token_ids".to_owned(), true.into());
        if line.contains_key("logprobs") {
            line.insert("return_tokens_as_token_ids".to_owned(), true.into());
        }
        Ok(Self {
            path,
            body: line.into(),
        })
    }

    /// Converts the API's response to the line's answer.
    pub(super) fn answer(
        &self,
        index: usize,
        response: Response,
        text: &TextModel,
    ) -> Result<Value> {
        let Response {
            status, mut body, ..
        } = response;
        if !(200..300).contains(&status) {
            bail!(
                "{}",
                body["error"]["message"]
                    .as_str()
                    .unwrap_or("the request failed")
            );
        }
        let choices = body["choices"]
            .as_array_mut()
            .context("the response has no choices")?;
        let outputs: Vec<Value> = choices
            .iter_mut()
            .map(|choice| self.output(choice, text))
            .collect();
        let usage = &body["usage"];
        let usage = json!({
            "prompt_tokens": usage["prompt_tokens"],
            "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
            "completion_tokens": usage["completion_tokens"],
        });
        Ok(json!({"index": index, "outputs": outputs, "usage": usage}))
    }

    fn output(&self, choice: &mut Value, text: &TextModel) -> Value {
        let ids: Vec<u32> = choice["token_ids"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(token_id)
            .collect();
        let mut message = choice["message"].take();
        let parts = ["reasoning_content", "tool_calls"];
        let said = if text.tokenizer.is_none() {
            Value::Null
        } else if parts.iter().any(|part| !message[part].is_null()) {
            self.decoded(&ids, text).into()
        } else {
            choice["text"]
                .as_str()
                .or(message["content"].as_str())
                .unwrap_or_default()
                .into()
        };
        let mut output =
            json!({"text": said, "token_ids": ids, "finish_reason": choice["finish_reason"]});
        for part in parts {
            if !message[part].is_null() {
                output[part] = message[part].take();
            }
        }
        if !choice["logprobs"].is_null() {
            output["logprobs"] = self.logprobs(&choice["logprobs"]);
        }
        output
    }

    /// The text of all tokens, up to a stop string.
    fn decoded(&self, ids: &[u32], text: &TextModel) -> String {
        let stops: Vec<String> = match &self.body["stop"] {
            Value::String(stop) => vec![stop.clone()],
            stops => stops
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|stop| stop.as_str().map(str::to_owned))
                .collect(),
        };
        let mut stream = TextStream::new(text.tokenizer.clone(), &stops, true);
        let mut decoded = String::new();
        for id in ids {
            let piece = stream.push(*id);
            decoded.push_str(&piece.text);
            if piece.stopped {
                return decoded;
            }
        }
        decoded + &stream.finish().text
    }

    /// Converts the API's logprobs, in either of its two forms, to one entry per token.
    fn logprobs(&self, logprobs: &Value) -> Value {
        let entry =
            |token: &Value, logprob: &Value| json!({"token_id": id_of(token), "logprob": logprob});
        let with_top = |mut entry: Value, top: Vec<Value>| {
            entry["top"] = top.into();
            entry
        };
        if logprobs["content"].is_array() {
            let tokens = list(&logprobs["content"]).into_iter().map(|token| {
                let top = list(&token["top_logprobs"]);
                let top = top
                    .iter()
                    .map(|top| entry(&top["token"], &top["logprob"]))
                    .collect();
                with_top(entry(&token["token"], &token["logprob"]), top)
            });
            return tokens.collect();
        }
        // A completion lists the chosen token among the alternatives even if it is not one of the likeliest.
        let count = self.body["logprobs"].as_u64().unwrap_or(0) as usize;
        let tokens = list(&logprobs["tokens"])
            .into_iter()
            .zip(list(&logprobs["token_logprobs"]));
        let tokens =
            tokens
                .zip(list(&logprobs["top_logprobs"]))
                .map(|((token, logprob), alternatives)| {
                    let alternatives = alternatives.as_object().into_iter().flatten();
                    let top = alternatives
                        .take(count)
                        .map(|(token, logprob)| entry(&json!(token), logprob))
                        .collect();
                    with_top(entry(&token, &logprob), top)
                });
        tokens.collect()
    }
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// A prompt as a conversation.
fn user_message(prompt: &Value) -> Value {
    json!([{"role": "user", "content": prompt}])
}

/// A field's value; null counts as absent.
fn take(line: &mut Map<String, Value>, name: &str) -> Option<Value> {
    line.shift_remove(name).filter(|value| !value.is_null())
}

/// Renames chat fields to those of completions.
fn as_completion(line: &mut Map<String, Value>) {
    if let Some(max_tokens) = take(line, "max_completion_tokens") {
        line.insert("max_tokens".to_owned(), max_tokens);
    }
    match line.get("logprobs") {
        Some(Value::Bool(true)) => {
            let top = take(line, "top_logprobs").unwrap_or_else(|| 0.into());
            line.insert("logprobs".to_owned(), top);
        }
        Some(Value::Bool(false) | Value::Null) => drop(line.shift_remove("logprobs")),
        _ => {}
    }
}

/// Converts a completion's number of logprobs to the fields of chat.
fn as_chat(line: &mut Map<String, Value>) {
    if line.get("logprobs").is_some_and(Value::is_number) {
        let top = line
            .insert("logprobs".to_owned(), true.into())
            .unwrap_or_default();
        line.entry("top_logprobs").or_insert(top);
    }
}

fn token_id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

/// The id in `token_id:123`.
fn id_of(token: &Value) -> Option<u32> {
    token.as_str()?.strip_prefix(ID_PREFIX)?.parse().ok()
}

#[cfg(test)]
mod tests;
