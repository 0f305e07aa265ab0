//! `folio run --input`: a file of requests, one per line, processed many at a time, so that the engine batches them,
//! and answered in order.
//!
//! A line has the OpenAI batch format (`custom_id`, `method`, `url`, `body`) or a short form ([`short`]); a file may
//! mix them. Both become calls of the server's own API. A line that is wrong fails alone; the command then fails at the
//! end and says how many did.

mod short;

use crate::cli::request::{server_options, set_default};
use crate::cli::session::Session;
use crate::cli::terminal::output::bar_style;
use anyhow::{Context as _, Result, anyhow, ensure};
use folio::platform;
use folio::server::{LocalApi, LocalError};
use futures_util::{Stream, StreamExt as _, stream};
use indicatif::ProgressBar;
use serde_json::{Map, Value, json};
use short::ShortForm;
use std::io::{self, BufRead, Write};
use std::time::Duration;
use tokio::sync::mpsc;

/// Maximum number of lines read ahead of the first unfinished one.
pub(crate) const LINES_IN_FLIGHT: u32 = 1024;
/// Size of the engine's queue: a line may hold many prompts.
pub(crate) const QUEUE_REQUESTS_MAX: u32 = 1 << 16;
/// Time before a line is retried if the API is too busy.
const RETRY_AFTER: Duration = Duration::from_millis(20);
/// Status of a server that is too busy.
const TOO_MANY_REQUESTS: u16 = 429;
/// Routes that a line in OpenAI's format may call, and whether they generate text.
const URLS: [(&str, bool); 10] = [
    ("/v1/chat/completions", true),
    ("/v1/completions", true),
    ("/v1/responses", true),
    ("/v1/messages", true),
    ("/v1/embeddings", false),
    ("/v1/rerank", false),
    ("/v2/rerank", false),
    ("/rerank", false),
    ("/v1/score", false),
    ("/score", false),
];
/// What /v1/responses calls a field of the others.
const OF_RESPONSES: (&str, &str) = ("max_tokens", "max_output_tokens");

/// Answers the lines of one file.
pub(crate) struct Batch<'a> {
    session: &'a Session,
    /// API for lines in OpenAI's format; it behaves like a server.
    api: LocalApi,
    /// API for lines in a short form; it refuses unknown fields, so that a misspelled one is not ignored.
    strict_api: LocalApi,
    /// Default values of fields that a line does not set.
    defaults: Map<String, Value>,
    /// A prompt is text to continue, unless its line says otherwise.
    raw: bool,
    lines_in_flight: usize,
}

/// A response of the API, whatever its status.
struct Response {
    status: u16,
    request_id: Option<String>,
    body: Value,
}

/// Why a line in OpenAI's format has no response.
struct LineError {
    code: &'static str,
    message: String,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(
        session: &'a Session,
        names: &[String],
        (defaults, raw): (Map<String, Value>, bool),
        lines_in_flight: usize,
    ) -> Self {
        let api = |strict| LocalApi::new(session.api_state(names.to_vec(), server_options(strict)));
        Self {
            session,
            api: api(false),
            strict_api: api(true),
            defaults,
            raw,
            lines_in_flight: lines_in_flight.max(1),
        }
    }

    /// Answers every line of `input` that is not blank. Fails at the end if a line failed.
    pub(crate) async fn answer(
        &self,
        input: Box<dyn BufRead + Send>,
        output: &mut dyn Write,
    ) -> Result<()> {
        let bar = ProgressBar::new_spinner()
            .with_style(bar_style("{spinner} {pos} answers, {per_sec}, {elapsed}"));
        let answers = lines(input).enumerate().map(|(index, line)| async move {
            match line {
                Ok(line) => Ok(self.answer_line(index, &line).await),
                Err(error) => Err(error),
            }
        });
        let mut answers = std::pin::pin!(answers.buffered(self.lines_in_flight));
        let (mut lines, mut failed) = (0_u64, 0_u64);
        while let Some(answer) = answers.next().await {
            let answer = answer.context("cannot read the input")?;
            serde_json::to_writer(&mut *output, &answer).map_err(io::Error::from)?;
            output.write_all(b"\n")?;
            output.flush()?;
            bar.inc(1);
            lines += 1;
            failed += u64::from(has_failed(&answer));
        }
        bar.finish_and_clear();
        ensure!(
            failed == 0,
            "{failed} of {lines} lines failed; their answers say why"
        );
        Ok(())
    }

    async fn answer_line(&self, index: usize, line: &[u8]) -> Value {
        let answer = match serde_json::from_slice(line) {
            Ok(Value::Object(line)) if is_openai(&line) => return self.answer_openai(line).await,
            Ok(Value::Object(line)) => self.answer_short(index, line).await,
            Ok(_) => Err(anyhow!("the line is not a JSON object")),
            Err(error) => Err(anyhow!("the line is not JSON: {error}")),
        };
        answer.unwrap_or_else(|error| json!({"index": index, "error": format!("{error:#}")}))
    }

    async fn answer_short(&self, index: usize, line: Map<String, Value>) -> Result<Value> {
        let form = ShortForm::new(line, &self.defaults, self.raw, &self.session.text)?;
        let response = post(&self.strict_api, form.path, &form.body).await?;
        form.answer(index, response, &self.session.text)
    }

    async fn answer_openai(&self, mut line: Map<String, Value>) -> Value {
        let custom_id = line.remove("custom_id").unwrap_or_default();
        let outcome = match self.openai_request(&custom_id, line) {
            Ok((url, body)) => post(&self.api, url, &body)
                .await
                .map_err(|error| LineError {
                    code: "no_response",
                    message: error.to_string(),
                }),
            Err(error) => Err(error),
        };
        let (response, error) = match outcome {
            Ok(Response {
                status,
                request_id,
                body,
            }) => (
                json!({"status_code": status, "request_id": request_id, "body": body}),
                Value::Null,
            ),
            Err(LineError { code, message }) => {
                (Value::Null, json!({"code": code, "message": message}))
            }
        };
        let id = format!("batch_req_{:016x}", platform::random_u64());
        json!({"id": id, "custom_id": custom_id, "response": response, "error": error})
    }

    /// The route that a line in OpenAI's format calls, and the request's body.
    fn openai_request(
        &self,
        custom_id: &Value,
        mut line: Map<String, Value>,
    ) -> Result<(&'static str, Value), LineError> {
        let error = |code, message: String| Err(LineError { code, message });
        if !custom_id.is_string() {
            return error(
                "invalid_custom_id",
                format!("`custom_id` must be a string, not {custom_id}"),
            );
        }
        let method = line.remove("method").unwrap_or_default();
        if method != "POST" {
            return error(
                "invalid_method",
                format!("`method` must be \"POST\", not {method}"),
            );
        }
        let url = line.remove("url").unwrap_or_default();
        let Some((url, generates)) = URLS.into_iter().find(|(known, _)| url == *known) else {
            let known = URLS.map(|(known, _)| known).join(", ");
            return error(
                "invalid_url",
                format!("`url` must be one of {known}, not {url}"),
            );
        };
        let Some(Value::Object(mut body)) = line.remove("body") else {
            return error("invalid_body", "`body` must be an object".to_owned());
        };
        if body
            .get("stream")
            .is_some_and(|stream| *stream != false && !stream.is_null())
        {
            return error(
                "invalid_body",
                "`stream` must be false in a batch".to_owned(),
            );
        }
        // Other routes take no sampling fields.
        if generates {
            add_defaults(&mut body, &defaults_of(url, &self.defaults));
        }
        Ok((url, body.into()))
    }
}

/// Whether an answer, of either form, reports a failure.
fn has_failed(answer: &Value) -> bool {
    let status = &answer["response"]["status_code"];
    !answer["error"].is_null() || status.as_u64().is_some_and(|status| status >= 400)
}

/// Whether a line has the OpenAI batch format, valid or not.
fn is_openai(line: &Map<String, Value>) -> bool {
    ["custom_id", "method", "url", "body"]
        .iter()
        .any(|key| line.contains_key(*key))
}

/// The default values under the names that a route has for them.
fn defaults_of(url: &str, defaults: &Map<String, Value>) -> Map<String, Value> {
    let (name, of_responses) = OF_RESPONSES;
    let renamed = |(key, value): (&String, &Value)| {
        let key = if url == "/v1/responses" && key == name {
            of_responses
        } else {
            key
        };
        (key.to_owned(), value.clone())
    };
    defaults.iter().map(renamed).collect()
}

/// Adds fields that `body` does not have.
fn add_defaults(body: &mut Map<String, Value>, defaults: &Map<String, Value>) {
    for (name, value) in defaults {
        set_default(body, name, value.clone());
    }
}

/// Calls the API; retries while it is too busy.
async fn post(api: &LocalApi, path: &str, body: &Value) -> Result<Response, LocalError> {
    loop {
        let response = api.post(path, body).await?;
        if response.status == TOO_MANY_REQUESTS {
            tokio::time::sleep(RETRY_AFTER).await;
            continue;
        }
        let status = response.status;
        let id = response
            .headers
            .iter()
            .find(|(name, _)| name == "x-request-id");
        let request_id = id.map(|(_, value)| value.clone());
        return match response.json().await {
            Ok(body) | Err(LocalError::Api { body, .. }) => Ok(Response {
                status,
                request_id,
                body,
            }),
            Err(error) => Err(error),
        };
    }
}

/// The lines of `input` that are not blank. They are read in a separate thread, so that answers are written while a
/// pipe is still open.
fn lines(input: Box<dyn BufRead + Send>) -> impl Stream<Item = io::Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in input.split(b'\n') {
            let is_blank = line.as_ref().is_ok_and(|line| line.trim_ascii().is_empty());
            let is_last = line.is_err();
            // The receiver is dropped when the output is closed.
            if (!is_blank && sender.blocking_send(line).is_err()) || is_last {
                return;
            }
        }
    });
    stream::unfold(receiver, |mut receiver| async move {
        Some((receiver.recv().await?, receiver))
    })
}
