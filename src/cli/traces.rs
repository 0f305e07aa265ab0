//! `--otlp-traces-endpoint`: one span for each request, by OTLP over HTTP as JSON, under the names of OpenTelemetry's
//! conventions for generative AI, and under vLLM's for times.
//!
//! A span is one JSON object. OpenTelemetry's own crates would add nine dependencies for it, and make everything that
//! uses a macro compile again. A thread of its own sends spans in batches; a collector that is gone loses them, and
//! nothing waits for it.

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use folio::platform;
use folio::server::{RequestTrace, TraceSink};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use ureq::Agent;

/// Timeout of one export.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Spans of one export, and its interval.
const BATCH: usize = 512;
const INTERVAL: Duration = Duration::from_secs(1);
/// Spans that wait to be sent; further ones are lost.
const WAITING: usize = 8 * BATCH;
/// A span of a server.
const KIND_SERVER: u32 = 2;
/// The status of a request that failed.
const STATUS_ERROR: u32 = 2;

#[derive(Args, Debug)]
pub(crate) struct TraceArgs {
    /// Send a trace of each request by OTLP over HTTP (JSON) to this URL, such as http://localhost:4318/v1/traces
    #[arg(long, env = "FOLIO_OTLP_TRACES_ENDPOINT", value_name = "URL", value_parser = endpoint)]
    otlp_traces_endpoint: Option<String>,
}

/// A URL as it is; its path is not completed.
fn endpoint(text: &str) -> Result<String> {
    let is_url = ["http://", "https://"].iter().any(|scheme| text.strip_prefix(scheme).is_some_and(|r| !r.is_empty()));
    ensure!(is_url, "expected a URL such as http://localhost:4318/v1/traces");
    Ok(text.to_owned())
}

/// What sends traces. [`Self::close`] sends the last ones.
pub(crate) struct Traces {
    sender: SyncSender<Option<RequestTrace>>,
    thread: JoinHandle<()>,
}

impl TraceArgs {
    /// Starts to send traces, if that is asked for.
    pub(crate) fn start(&self) -> Result<Option<Traces>> {
        let Some(endpoint) = self.otlp_traces_endpoint.clone() else { return Ok(None) };
        let agent = Agent::config_builder().timeout_global(Some(TIMEOUT)).build().into();
        let (sender, receiver) = sync_channel(WAITING);
        let thread = std::thread::Builder::new().name("traces".into());
        let thread = thread.spawn(move || export(&receiver, &agent, &endpoint)).context("a thread for traces")?;
        Ok(Some(Traces { sender, thread }))
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

    pub(crate) fn close(self) {
        // The end comes after all that wait. A thread that has ended takes nothing more.
        drop(self.sender.send(None));
        drop(self.thread.join());
    }
}

/// Sends batches until the end.
fn export(receiver: &Receiver<Option<RequestTrace>>, agent: &Agent, endpoint: &str) {
    let (mut is_open, mut told) = (true, false);
    while is_open {
        let Ok(Some(first)) = receiver.recv() else { return };
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
        let sent = agent.post(endpoint).content_type("application/json").send(request(&batch).to_string());
        if let (Err(error), false) = (sent, told) {
            told = true;
            tracing::warn!(%error, endpoint, "traces cannot be sent");
        }
    }
}

/// The body of an export.
fn request(spans: &[Value]) -> Value {
    let resource = [("service.name", json!("folio")), ("service.version", json!(env!("CARGO_PKG_VERSION")))];
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
    let trace_id = trace.parent.map_or_else(|| hex(&[random(), random()].concat()), |parent| hex(&parent.trace));
    // 64-bit numbers are texts in OTLP's JSON.
    let nanos = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string();
    let attributes: Vec<_> = attributes(trace).iter().map(|(key, value)| attribute(key, value)).collect();
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

/// An attribute in OTLP's form.
fn attribute(key: &str, value: &Value) -> Value {
    let value = match value {
        Value::Number(number) if number.is_f64() => json!({"doubleValue": number}),
        Value::Number(number) => json!({"intValue": number.to_string()}),
        Value::Array(texts) => {
            let values: Vec<_> = texts.iter().map(|text| json!({"stringValue": text})).collect();
            json!({"arrayValue": {"values": values}})
        }
        other => json!({"stringValue": other}),
    };
    json!({"key": key, "value": value})
}

/// What a span says. Fractions are f64, whatever their value.
fn attributes(trace: &RequestTrace) -> Vec<(&'static str, Value)> {
    // The shortest digits, not those of the nearest f64.
    let number = |value: f32| json!(value.to_string().parse::<f64>().unwrap_or_default());
    let seconds = |value: Duration| json!(value.as_secs_f64());
    let prefilled = trace.first_token.zip(trace.queued).map(|(first, queued)| first.saturating_sub(queued));
    let decoded = trace.first_token.map(|first| trace.duration.saturating_sub(first));
    let named = [
        ("gen_ai.operation.name", Some(json!(trace.operation))),
        ("gen_ai.provider.name", Some(json!("folio"))),
        ("gen_ai.request.model", Some(json!(trace.model))),
        ("gen_ai.response.model", Some(json!(trace.model))),
        ("gen_ai.request.choice.count", (trace.choices != 1).then(|| json!(trace.choices))),
        ("gen_ai.request.max_tokens", trace.max_tokens.map(|most| json!(most))),
        ("gen_ai.request.temperature", Some(number(trace.temperature))),
        ("gen_ai.request.top_p", Some(number(trace.top_p))),
        ("gen_ai.response.finish_reasons", Some(json!(trace.finish_reasons))),
        ("gen_ai.usage.input_tokens", Some(json!(trace.prompt_tokens))),
        ("gen_ai.usage.cache_read.input_tokens", Some(json!(trace.cached_tokens))),
        ("gen_ai.usage.output_tokens", Some(json!(trace.completion_tokens))),
        ("gen_ai.latency.time_in_queue", trace.queued.map(seconds)),
        ("gen_ai.latency.time_to_first_token", trace.first_token.map(seconds)),
        ("gen_ai.latency.time_in_model_prefill", prefilled.map(seconds)),
        ("gen_ai.latency.time_in_model_decode", decoded.map(seconds)),
        ("gen_ai.latency.e2e", Some(seconds(trace.duration))),
        ("error.type", trace.error.as_ref().map(|error| json!(error))),
    ];
    named.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}
