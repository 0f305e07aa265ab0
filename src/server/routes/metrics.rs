//! `GET /metrics`: classic Prometheus text under vLLM's names.
//!
//! Routers scrape this many times a second, so it takes no lock: gauges and counters come from the engine's snapshot,
//! latencies from histograms with fixed buckets, which cost the same however long nobody reads them.

use crate::server::state::ServerState;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

const FIRST_TOKEN_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
const TOKEN_SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0,
];
const REQUEST_SECONDS: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0, 50_000.0,
    100_000.0,
];

/// What the server itself measures.
pub(crate) struct Metrics {
    pub(crate) time_to_first_token: Histogram,
    pub(crate) inter_token_latency: Histogram,
    pub(crate) e2e_request_latency: Histogram,
    pub(crate) request_prompt_tokens: Histogram,
    pub(crate) request_generation_tokens: Histogram,
    /// Choices ended by a stop string, which only the text side sees.
    pub(crate) stopped_by_text: AtomicU64,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            time_to_first_token: Histogram::new(FIRST_TOKEN_SECONDS),
            inter_token_latency: Histogram::new(TOKEN_SECONDS),
            e2e_request_latency: Histogram::new(REQUEST_SECONDS),
            request_prompt_tokens: Histogram::new(TOKENS),
            request_generation_tokens: Histogram::new(TOKENS),
            stopped_by_text: AtomicU64::new(0),
        }
    }
}

/// Counts observations in fixed buckets.
pub(crate) struct Histogram {
    bounds: &'static [f64],
    /// One more than bounds: the last counts what is above all.
    counts: Vec<AtomicU64>,
    sum_bits: AtomicU64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(), sum_bits: AtomicU64::new(0) }
    }

    pub(crate) fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let add = |bits| Some((f64::from_bits(bits) + value).to_bits());
        // It never fails: `add` always gives a value.
        let _ = self.sum_bits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    fn write(&self, text: &mut String, name: &str, label: &str) {
        let _ = writeln!(text, "# TYPE vllm:{name} histogram");
        let mut total = 0;
        for (bound, count) in self.bounds.iter().map(Some).chain([None]).zip(&self.counts) {
            total += count.load(Ordering::Relaxed);
            let bound = bound.map_or("+Inf".to_owned(), |bound| format!("{bound:?}"));
            let _ = writeln!(text, "vllm:{name}_bucket{{{label},le=\"{bound}\"}} {total}");
        }
        let sum = f64::from_bits(self.sum_bits.load(Ordering::Relaxed));
        let _ = writeln!(text, "vllm:{name}_sum{{{label}}} {sum:?}\nvllm:{name}_count{{{label}}} {total}");
    }
}

/// `GET /metrics`.
pub(crate) async fn metrics(State(state): State<ServerState>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], render(&state))
}

fn render(state: &ServerState) -> String {
    let stats = state.engine.stats();
    let model = state.model_names[0].replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let label = format!("model_name=\"{model}\"");
    let mut text = String::with_capacity(16 << 10);
    let mut one = |name: &str, kind: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "# TYPE vllm:{name} {kind}\nvllm:{name}{{{label}}} {value}");
    };
    let used = stats.blocks_used as f64 / stats.blocks_total.max(1) as f64;
    one("num_requests_running", "gauge", &stats.requests_running);
    one("num_requests_waiting", "gauge", &stats.requests_waiting);
    one("kv_cache_usage_perc", "gauge", &used);
    one("prefix_cache_queries_total", "counter", &stats.prefix_queries);
    one("prefix_cache_hits_total", "counter", &stats.prefix_hits);
    one("prompt_tokens_total", "counter", &stats.prompt_tokens);
    one("generation_tokens_total", "counter", &stats.generation_tokens);
    one("num_preemptions_total", "counter", &stats.preemptions);
    one("corrupted_requests", "counter", &stats.corrupted_requests);
    one("engine_steps_total", "counter", &stats.steps);
    let by_text = state.metrics.stopped_by_text.load(Ordering::Relaxed);
    let finished = [
        ("stop", stats.finished_stop + by_text),
        ("length", stats.finished_length),
        ("abort", stats.finished_abort.saturating_sub(by_text)),
        ("error", stats.finished_error),
    ];
    text.push_str("# TYPE vllm:request_success_total counter\n");
    for (reason, count) in finished {
        let _ = writeln!(text, "vllm:request_success_total{{{label},finished_reason=\"{reason}\"}} {count}");
    }
    let ends = [
        ("end_of_prompt", stats.prefix_ends_prompt),
        ("difference", stats.prefix_ends_difference),
        ("salt", stats.prefix_ends_salt),
        ("eviction", stats.prefix_ends_eviction),
        ("disabled", stats.prefix_ends_disabled),
    ];
    text.push_str("# TYPE vllm:prefix_cache_ends_total counter\n");
    for (cause, count) in ends {
        let _ = writeln!(text, "vllm:prefix_cache_ends_total{{{label},cause=\"{cause}\"}} {count}");
    }
    if let Some(info) = state.engine.info() {
        let (size, blocks) = (info.block_size, info.blocks);
        let _ = writeln!(
            text,
            "# TYPE vllm:cache_config_info gauge\n\
             vllm:cache_config_info{{{label},block_size=\"{size}\",num_gpu_blocks=\"{blocks}\"}} 1"
        );
    }
    let metrics = &state.metrics;
    metrics.time_to_first_token.write(&mut text, "time_to_first_token_seconds", &label);
    metrics.inter_token_latency.write(&mut text, "inter_token_latency_seconds", &label);
    metrics.e2e_request_latency.write(&mut text, "e2e_request_latency_seconds", &label);
    metrics.request_prompt_tokens.write(&mut text, "request_prompt_tokens", &label);
    metrics.request_generation_tokens.write(&mut text, "request_generation_tokens", &label);
    text
}
