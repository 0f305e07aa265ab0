//! `GET /metrics`: classic Prometheus text under vLLM's names.
//!
//! Routers scrape this many times a second, so it takes no lock: gauges and counters come from the engine's snapshot,
//! latencies from the server's own histograms.

use crate::engine::handle::Stats;
use crate::server::state::ServerState;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use std::fmt::Write;
use std::sync::atomic::Ordering;

/// Drafts, and those accepted by their place among the drafts of a step.
fn write_speculation(text: &mut String, label: &str, places: u32, stats: &Stats) {
    for (name, count) in
        [("drafts", stats.drafts), ("draft_tokens", stats.draft_tokens), ("accepted_tokens", stats.accepted_tokens())]
    {
        let name = format!("vllm:spec_decode_num_{name}_total");
        let _ = writeln!(text, "# TYPE {name} counter\n{name}{{{label}}} {count}");
    }
    let name = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
    if places > 0 {
        let _ = writeln!(text, "# TYPE {name} counter");
    }
    for (place, count) in (0..places).zip(stats.accepted_at) {
        let _ = writeln!(text, "{name}{{{label},position=\"{place}\"}} {count}");
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
    let mut one = |name: &str, kind: &str, help: &str, value: &dyn std::fmt::Display| {
        head(&mut text, name, kind, help);
        let _ = writeln!(text, "vllm:{name}{{{label}}} {value}");
    };
    let used = stats.blocks_used as f64 / stats.blocks_total.max(1) as f64;
    one("num_requests_running", "gauge", "Requests that run.", &stats.requests_running);
    one("num_requests_waiting", "gauge", "Requests that wait.", &stats.requests_waiting);
    one("kv_cache_usage_perc", "gauge", "Share of the KV blocks in use.", &used);
    one("prefix_cache_queries_total", "counter", "Prompt tokens looked up in the cache.", &stats.prefix_queries);
    one("prefix_cache_hits_total", "counter", "Prompt tokens found in the cache.", &stats.prefix_hits);
    one("kv_host_bytes", "gauge", "Bytes of KV blocks in host memory.", &stats.host_bytes_used);
    one("kv_blocks_saved_total", "counter", "KV blocks moved to host memory.", &stats.blocks_saved);
    one("kv_blocks_restored_total", "counter", "KV blocks moved back.", &stats.blocks_restored);
    one("prompt_tokens_total", "counter", "Tokens of prompts.", &stats.prompt_tokens);
    one("generation_tokens_total", "counter", "Generated tokens.", &stats.generation_tokens);
    one("num_preemptions_total", "counter", "Preemptions.", &stats.preemptions);
    one("corrupted_requests", "counter", "Requests that ended because of invalid numbers.", &stats.corrupted_requests);
    one("engine_steps_total", "counter", "Steps of the engine.", &stats.steps);
    let by_text = state.metrics.stopped_by_text.load(Ordering::Relaxed);
    let finished = [
        ("stop", stats.finished_stop + by_text),
        ("length", stats.finished_length),
        ("abort", stats.finished_abort.saturating_sub(by_text)),
        ("error", stats.finished_error),
    ];
    let ends = [
        ("end_of_prompt", stats.prefix_ends_prompt),
        ("difference", stats.prefix_ends_difference),
        ("salt", stats.prefix_ends_salt),
        ("eviction", stats.prefix_ends_eviction),
        ("disabled", stats.prefix_ends_disabled),
    ];
    let tiers = [
        ("device", stats.prefix_hits - stats.prefix_hits_host.min(stats.prefix_hits)),
        ("host", stats.prefix_hits_host),
    ];
    let mut several = |(name, help): (&str, &str), key: &str, counts: &[(&str, u64)]| {
        head(&mut text, name, "counter", help);
        for (value, count) in counts {
            let _ = writeln!(text, "vllm:{name}{{{label},{key}=\"{value}\"}} {count}");
        }
    };
    several(("request_success_total", "Answers, by why they ended."), "finished_reason", &finished);
    several(("prefix_cache_tier_hits_total", "Prompt tokens found in the cache, by where."), "tier", &tiers);
    several(("prefix_cache_ends_total", "Lookups in the cache, by why they ended."), "cause", &ends);
    if let Some(info) = state.engine.info() {
        write_speculation(&mut text, &label, info.num_speculative_tokens, &stats);
        let (size, blocks) = (info.block_size, info.blocks);
        head(&mut text, "cache_config_info", "gauge", "Size and number of the KV blocks.");
        let _ = writeln!(text, "vllm:cache_config_info{{{label},block_size=\"{size}\",num_gpu_blocks=\"{blocks}\"}} 1");
    }
    let metrics = &state.metrics;
    for (name, help, histogram) in metrics.histograms() {
        head(&mut text, name, "histogram", help);
        histogram.write(&mut text, name, &label);
    }
    text
}

/// The lines before the values of a metric.
fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}");
}
