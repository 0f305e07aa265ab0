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
    let mut one = |name: &str, kind: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "# TYPE vllm:{name} {kind}\nvllm:{name}{{{label}}} {value}");
    };
    let used = stats.blocks_used as f64 / stats.blocks_total.max(1) as f64;
    one("num_requests_running", "gauge", &stats.requests_running);
    one("num_requests_waiting", "gauge", &stats.requests_waiting);
    one("kv_cache_usage_perc", "gauge", &used);
    one("prefix_cache_queries_total", "counter", &stats.prefix_queries);
    one("prefix_cache_hits_total", "counter", &stats.prefix_hits);
    one("kv_host_bytes", "gauge", &stats.host_bytes_used);
    one("kv_blocks_saved_total", "counter", &stats.blocks_saved);
    one("kv_blocks_restored_total", "counter", &stats.blocks_restored);
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
    let tiers = [
        ("device", stats.prefix_hits - stats.prefix_hits_host.min(stats.prefix_hits)),
        ("host", stats.prefix_hits_host),
    ];
    text.push_str("# TYPE vllm:prefix_cache_tier_hits_total counter\n");
    for (tier, count) in tiers {
        let _ = writeln!(text, "vllm:prefix_cache_tier_hits_total{{{label},tier=\"{tier}\"}} {count}");
    }
    text.push_str("# TYPE vllm:prefix_cache_ends_total counter\n");
    for (cause, count) in ends {
        let _ = writeln!(text, "vllm:prefix_cache_ends_total{{{label},cause=\"{cause}\"}} {count}");
    }
    if let Some(info) = state.engine.info() {
        write_speculation(&mut text, &label, info.num_speculative_tokens, &stats);
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
