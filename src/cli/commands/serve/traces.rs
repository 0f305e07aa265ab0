//! `--otlp-traces-endpoint`: one span for each request, by OTLP over HTTP as JSON, under the names of OpenTelemetry's
//! conventions for generative AI, and under vLLM's for times.
//!
//! OpenTelemetry's own crates (API, SDK and exporter, version 0.33, with ureq as their client) would add eleven
//! dependencies, among them Protocol Buffers and a second base64 even for JSON. They would replace one JSON object per
//! span and the thread below, which sends spans in batches; a collector that is gone loses them, and nothing waits for
//! it.

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use folio::platform;
use folio::server::{RequestTrace, TraceSink};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use ureq::Agent;
use ureq::http::{HeaderMap, HeaderName, HeaderValue};

/// Timeout of one export.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The longest that the end of the program waits for the last exports.
const END_MAX: Duration = Duration::from_secs(2);
/// Spans of one export, and its interval.
const BATCH: usize = 512;
const INTERVAL: Duration = Duration::from_secs(1);
/// Spans that wait to be sent; further ones are lost.
const WAITING: usize = 8 * BATCH;
/// The variables of OpenTelemetry that hold headers of an export; the first that is set counts. They are no options,
/// because headers carry keys, and a command line is no secret.
const HEADERS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    "OTEL_EXPORTER_OTLP_HEADERS",
];
/// A span of a server.
const KIND_SERVER: u32 = 2;
/// The status of a request that failed.
const STATUS_ERROR: u32 = 2;

#[derive(Args, Debug)]
pub(crate) struct TraceArgs {
    /// Send a trace of each request by OTLP over HTTP (JSON) to this URL, such as http://localhost:4318/v1/traces
    #[arg(help_heading = "Server", long, env = "FOLIO_OTLP_TRACES_ENDPOINT", value_name = "URL",
          value_parser = endpoint)]
    otlp_traces_endpoint: Option<String>,
}

/// A URL as it is; its path is not completed.
fn endpoint(text: &str) -> Result<String> {
    let is_url = ["http://", "https://"]
        .iter()
        .any(|scheme| text.strip_prefix(scheme).is_some_and(|r| !r.is_empty()));
    ensure!(
        is_url,
        "expected a URL such as http://localhost:4318/v1/traces"
    );
    Ok(text.to_owned())
}

/// The headers that the environment asks for.
fn headers_from_env() -> Result<HeaderMap> {
    let set = HEADERS.iter().filter_map(|name| {
        Some((
            name,
            std::env::var_os(name).filter(|value| !value.is_empty())?,
        ))
    });
    let Some((name, text)) = { set }.next() else {
        return Ok(HeaderMap::new());
    };
    let text = text
        .to_str()
        .with_context(|| format!("{name} is not UTF-8"))?;
    headers(text)
        .with_context(|| format!("{name}: expected NAME=VALUE,NAME=VALUE with percent codes"))
}

/// Reads OpenTelemetry's list of headers, `k=v,k2=v2` with percent-encoded values. Errors repeat no value: it may be a
/// key.
fn headers(text: &str) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (place, entry) in (1..).zip(text.split(',')) {
        let (name, value) = entry
            .split_once('=')
            .with_context(|| format!("entry {place} has no `=`"))?;
        let name = name.trim();
        let name = HeaderName::from_bytes(name.as_bytes())
            .with_context(|| format!("entry {place}: {name:?} is not the name of a header"))?;
        let value = percent_decode_str(value.trim()).decode_utf8();
        let value = value
            .ok()
            .and_then(|value| HeaderValue::from_str(&value).ok());
        let value = value
            .with_context(|| format!("entry {place}: a header cannot have the value of {name}"))?;
        headers.insert(name, value);
    }
    Ok(headers)
}

/// What sends traces. [`Self::close`] sends the last ones.
pub(crate) struct Traces {
    sender: SyncSender<Option<RequestTrace>>,
    /// Is closed when the thread has sent everything.
    ended: Receiver<()>,
}

impl TraceArgs {
    /// Starts to send traces, if that is asked for.
    pub(crate) fn start(&self) -> Result<Option<Traces>> {
        let Some(endpoint) = self.otlp_traces_endpoint.clone() else {
            return Ok(None);
        };
        let collector = Collector {
            // The headers are for this endpoint, and for no other that it may name.
            agent: Agent::config_builder()
                .timeout_global(Some(TIMEOUT))
                .max_redirects(0)
                .build()
                .into(),
            endpoint,
            headers: headers_from_env()?,
        };
        let (sender, receiver) = sync_channel(WAITING);
        let (open, ended) = sync_channel(0);
        let thread = std::thread::Builder::new().name("traces".into());
        thread
            .spawn(move || {
                let _open = open;
                export(&receiver, &collector);
            })
            .context("a thread for traces")?;
        Ok(Some(Traces { sender, ended }))
    }
}

impl Traces {
    /// Where the server sends its traces.
    pub(crate) fn sink(&self) -> TraceSink {
        let sender = self.sender.clone();
        TraceSink(Arc::new(move |trace| {
            if sender.try_send(Some(trace)).is_err() {
                tracing::debug!("a trace is lost, because too many wait");
            }
        }))
    }

    /// Sends the last traces, if that takes no longer than [`END_MAX`].
    pub(crate) fn close(self) {
        let deadline = Instant::now() + END_MAX;
        // The end comes after all that wait; there may be no room for it yet.
        while let Err(TrySendError::Full(_)) = self.sender.try_send(None) {
            if Instant::now() >= deadline {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if self.ended.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the last traces are lost, because the collector is slow");
        }
    }
}

/// Where spans are sent.
struct Collector {
    agent: Agent,
    endpoint: String,
    /// Of every export, besides the type of its content.
    headers: HeaderMap,
}

impl Collector {
    fn send(&self, spans: &[Value]) -> Result<(), ureq::Error> {
        let mut post = self.agent.post(&self.endpoint);
        for (name, value) in &self.headers {
            post = post.header(name, value);
        }
        post.content_type("application/json")
            .send(request(spans).to_string())
            .map(drop)
    }
}

/// An address as it may be logged: a user's name and password are left out, and a query, which may hold a key.
fn without_credentials(address: &str) -> String {
    let address = address.split(['?', '#']).next().unwrap_or_default();
    let (scheme, rest) = address.split_once("://").unwrap_or(("", address));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

/// Sends batches until the end.
fn export(receiver: &Receiver<Option<RequestTrace>>, collector: &Collector) {
    let (mut is_open, mut told) = (true, false);
    while is_open {
        let Ok(Some(first)) = receiver.recv() else {
            return;
        };
        let (mut batch, deadline) = (vec![span(&first)], Instant::now() + INTERVAL);
        while batch.len() < BATCH {
            match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Some(trace)) => batch.push(span(&trace)),
                Ok(None) => {
                    is_open = false;
                    break;
                }
                Err(_) => break,
            }
        }
        if let (Err(error), false) = (collector.send(&batch), told) {
            told = true;
            tracing::warn!(%error, endpoint = without_credentials(&collector.endpoint), "traces cannot be sent");
        }
    }
}

/// The body of an export.
fn request(spans: &[Value]) -> Value {
    let resource = [
        ("service.name", json!("folio")),
        ("service.version", json!(env!("CARGO_PKG_VERSION"))),
    ];
    json!({"resourceSpans": [{
        "resource": {"attributes": resource.map(|(key, value)| attribute(key, &value))},
        "scopeSpans": [{"scope": {"name": "folio"}, "spans": spans}],
    }]})
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes text");
        text
    })
}

/// A request as a span.
fn span(trace: &RequestTrace) -> Value {
    let random = || platform::random_u64().max(1).to_be_bytes();
    let trace_id = trace.parent.map_or_else(
        || hex(&[random(), random()].concat()),
        |parent| hex(&parent.trace),
    );
    // 64-bit numbers are texts in OTLP's JSON.
    let attributes: Vec<_> = attributes(trace)
        .iter()
        .map(|(key, value)| attribute(key, value))
        .collect();
    let mut span = json!({
        "traceId": trace_id,
        "spanId": hex(&random()),
        "name": format!("{} {}", trace.operation, trace.model),
        "kind": KIND_SERVER,
        "startTimeUnixNano": nanos(trace.started),
        "endTimeUnixNano": nanos(trace.started + trace.duration),
        "attributes": attributes,
    });
    if let Some(parent) = trace.parent {
        span["parentSpanId"] = hex(&parent.span).into();
        span["flags"] = u32::from(parent.sampled).into();
    }
    if let Some(error) = &trace.error {
        span["status"] = json!({"code": STATUS_ERROR, "message": error});
    }
    span
}

fn nanos(time: SystemTime) -> String {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos()
        .to_string()
}

/// An attribute in OTLP's form.
fn attribute(key: &str, value: &Value) -> Value {
    let value = match value {
        Value::Number(number) if number.is_f64() => json!({"doubleValue": number}),
        Value::Number(number) => json!({"intValue": number.to_string()}),
        Value::Array(texts) => {
            let values: Vec<_> = texts
                .iter()
                .map(|text| json!({"stringValue": text}))
                .collect();
            json!({"arrayValue": {"values": values}})
        }
        other => json!({"stringValue": other}),
    };
    json!({"key": key, "value": value})
}

/// What a span says. Fractions are f64, whatever their value.
fn attributes(trace: &RequestTrace) -> Vec<(&'static str, Value)> {
    // The shortest digits, not those of the nearest f64.
    let prefilled = trace
        .first_token
        .zip(trace.queued)
        .map(|(first, queued)| first.saturating_sub(queued));
    let decoded = trace
        .first_token
        .map(|first| trace.duration.saturating_sub(first));
    let named = [
        ("gen_ai.operation.name", Some(json!(trace.operation))),
        ("gen_ai.provider.name", Some(json!("folio"))),
        ("gen_ai.request.model", Some(json!(trace.model))),
        ("gen_ai.response.model", Some(json!(trace.model))),
        (
            "gen_ai.request.choice.count",
            (trace.choices != 1).then(|| json!(trace.choices)),
        ),
        (
            "gen_ai.request.max_tokens",
            trace.max_tokens.map(|most| json!(most)),
        ),
        (
            "gen_ai.request.temperature",
            Some(decimal(trace.temperature)),
        ),
        ("gen_ai.request.top_p", Some(decimal(trace.top_p))),
        (
            "gen_ai.response.finish_reasons",
            Some(json!(trace.finish_reasons)),
        ),
        (
            "gen_ai.usage.input_tokens",
            Some(json!(trace.prompt_tokens)),
        ),
        (
            "gen_ai.usage.cache_read.input_tokens",
            Some(json!(trace.cached_tokens)),
        ),
        (
            "gen_ai.usage.output_tokens",
            Some(json!(trace.completion_tokens)),
        ),
        ("gen_ai.latency.time_in_queue", trace.queued.map(seconds)),
        (
            "gen_ai.latency.time_to_first_token",
            trace.first_token.map(seconds),
        ),
        (
            "gen_ai.latency.time_in_model_prefill",
            prefilled.map(seconds),
        ),
        ("gen_ai.latency.time_in_model_decode", decoded.map(seconds)),
        ("gen_ai.latency.e2e", Some(seconds(trace.duration))),
        ("error.type", trace.error.as_ref().map(|error| json!(error))),
    ];
    named
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
}

fn seconds(value: Duration) -> Value {
    json!(value.as_secs_f64())
}

fn decimal(value: f32) -> Value {
    json!(value.to_string().parse::<f64>().unwrap_or_default())
}

#[cfg(test)]
mod tests;
