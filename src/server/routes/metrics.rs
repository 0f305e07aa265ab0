//! `GET /metrics`: classic Prometheus text under vLLM's names, with a sample of each model.
//!
//! Routers scrape this many times a second, so it waits for no engine: gauges and counters come from the engines'
//! snapshots, latencies from the server's own histograms. The counters of an engine begin again when its model is
//! loaded again.

use crate::engine::handle::{EngineHandle, EngineInfo, Stats};
use crate::engine::request::DraftSkip;
use crate::platform;
use crate::server::state::{ModelView, ServerState};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use std::fmt::{Display, Write};

/// A model with its label.
struct Series {
    label: String,
    stats: Stats,
    /// Of a loaded model.
    info: Option<EngineInfo>,
    view: ModelView,
}

impl Series {
    fn new(view: ModelView) -> Self {
        let model = view.names[0]
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n");
        let engine = view.state.as_ref().map(|state| &state.engine);
        let mut stats = engine.map(EngineHandle::stats).unwrap_or_default();
        stats.requests_waiting += view.waiting as u64;
        let info = engine.and_then(|engine| engine.info().cloned());
        Self {
            label: format!("model_name=\"{model}\""),
            stats,
            info,
            view,
        }
    }
}

/// `GET /metrics`.
pub(crate) async fn metrics(State(server): State<ServerState>) -> impl IntoResponse {
    let all: Vec<_> = server.models.views().into_iter().map(Series::new).collect();
    (
        [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        render(&all),
    )
}

fn render(all: &[Series]) -> String {
    let mut text = String::with_capacity(all.len() * (16 << 10));
    write_stats(&mut text, all);
    write_causes(&mut text, all);
    write_speculation(&mut text, all);
    if let Some(bytes) = platform::memory_resident() {
        // Under the name that Prometheus' own clients give it.
        let name = "process_resident_memory_bytes";
        let _ = writeln!(
            text,
            "# HELP {name} Resident memory size in bytes.\n# TYPE {name} gauge\n{name} {bytes}"
        );
    }
    let infos = || {
        all.iter()
            .filter_map(|one| Some((&one.label, one.info.as_ref()?)))
    };
    if infos().next().is_some() {
        head(
            &mut text,
            "weight_bytes",
            "gauge",
            "Bytes of the weights of loaded models, as planned.",
        );
    }
    for (label, info) in infos() {
        let _ = writeln!(text, "vllm:weight_bytes{{{label}}} {}", info.weight_bytes);
    }
    if infos().next().is_some() {
        head(
            &mut text,
            "cache_config_info",
            "gauge",
            "Size and number of the KV blocks.",
        );
    }
    for (label, info) in infos() {
        let (size, blocks) = (info.block_size, info.blocks);
        let _ = writeln!(
            text,
            "vllm:cache_config_info{{{label},block_size=\"{size}\",num_gpu_blocks=\"{blocks}\"}} 1"
        );
    }
    let histograms: Vec<_> = all
        .iter()
        .map(|one| one.view.metrics.histograms())
        .collect();
    for index in 0..histograms.first().map_or(0, |first| first.len()) {
        let (name, help, _) = histograms[0][index];
        head(&mut text, name, "histogram", help);
        for (one, histograms) in all.iter().zip(&histograms) {
            histograms[index].2.write(&mut text, name, &one.label);
        }
    }
    text
}

/// Metrics with one value for each model.
fn write_stats(text: &mut String, all: &[Series]) {
    type Value<'a> = &'a dyn Fn(&Series) -> Box<dyn Display>;
    let mut one = |name: &str, kind: &str, help: &str, value: Value<'_>| {
        head(text, name, kind, help);
        for series in all {
            let _ = writeln!(text, "vllm:{name}{{{}}} {}", series.label, value(series));
        }
    };
    one(
        "kv_cache_usage_perc",
        "gauge",
        "Share of the KV blocks in use.",
        &|series| {
            Box::new(series.stats.blocks_used as f64 / series.stats.blocks_total.max(1) as f64)
        },
    );
    one(
        "model_loads_total",
        "counter",
        "Times that the model was loaded.",
        &|series| Box::new(series.view.loads),
    );
    let mut stat = |name: &str, kind: &str, help: &str, stat: fn(&Stats) -> u64| {
        one(name, kind, help, &|series| Box::new(stat(&series.stats)));
    };
    stat(
        "num_requests_running",
        "gauge",
        "Requests that run.",
        |stats| stats.requests_running,
    );
    stat(
        "num_requests_waiting",
        "gauge",
        "Requests that wait.",
        |stats| stats.requests_waiting,
    );
    stat(
        "kv_host_bytes",
        "gauge",
        "Bytes of KV blocks in host memory.",
        |stats| stats.host_bytes_used,
    );
    stat(
        "kv_disk_failing",
        "gauge",
        "Whether the folder of KV blocks cannot be used.",
        |stats| stats.disk_failing,
    );
    stat(
        "kv_disk_blocks",
        "gauge",
        "KV blocks that can be read from disk.",
        |stats| stats.blocks_on_disk,
    );
    let mut count =
        |name: &str, help: &str, count: fn(&Stats) -> u64| stat(name, "counter", help, count);
    count(
        "prefix_cache_queries_total",
        "Prompt tokens looked up in the cache.",
        |stats| stats.prefix_queries,
    );
    count(
        "prefix_cache_hits_total",
        "Prompt tokens found in the cache.",
        |stats| stats.prefix_hits,
    );
    count(
        "kv_blocks_saved_total",
        "KV blocks moved to host memory.",
        |stats| stats.blocks_saved,
    );
    count(
        "kv_blocks_restored_total",
        "KV blocks moved back.",
        |stats| stats.blocks_restored,
    );
    count(
        "kv_files_written_total",
        "Files of KV blocks written.",
        |stats| stats.files_written,
    );
    count("kv_files_read_total", "Files of KV blocks read.", |stats| {
        stats.files_read
    });
    count(
        "kv_files_refused_total",
        "Files that were damaged or of somebody else.",
        |stats| stats.files_refused,
    );
    count("prompt_tokens_total", "Tokens of prompts.", |stats| {
        stats.prompt_tokens
    });
    count("generation_tokens_total", "Generated tokens.", |stats| {
        stats.generation_tokens
    });
    count("num_preemptions_total", "Preemptions.", |stats| {
        stats.preemptions
    });
    count(
        "corrupted_requests_total",
        "Requests that ended because of invalid numbers.",
        |stats| stats.corrupted_requests,
    );
    count("engine_steps_total", "Steps of the engine.", |stats| {
        stats.steps
    });
}

/// Drafts, why there were none, and those accepted by their place among the drafts of a step; of loaded models.
fn write_speculation(text: &mut String, all: &[Series]) {
    type Count = (&'static str, &'static str, fn(&Stats) -> u64);
    let loaded: Vec<_> = all
        .iter()
        .filter_map(|one| Some((one, one.info.as_ref()?.num_speculative_tokens)))
        .collect();
    if loaded.is_empty() {
        return;
    }
    let counts: [Count; 3] = [
        (
            "drafts",
            "Steps of a sequence that verified drafts.",
            |stats| stats.drafts,
        ),
        ("draft_tokens", "Drafts.", |stats| stats.draft_tokens),
        (
            "accepted_tokens",
            "Drafts that were right.",
            Stats::accepted_tokens,
        ),
    ];
    for (name, help, count) in counts {
        let name = format!("spec_decode_num_{name}_total");
        head(text, &name, "counter", help);
        for (one, _) in &loaded {
            let _ = writeln!(text, "vllm:{name}{{{}}} {}", one.label, count(&one.stats));
        }
    }
    let name = "spec_decode_num_skips_total";
    head(
        text,
        name,
        "counter",
        "Draws of a sequence without drafts, by why there were none.",
    );
    for (one, _) in &loaded {
        for ((_, reason), count) in DraftSkip::ALL.iter().zip(one.stats.draft_skips) {
            let _ = writeln!(
                text,
                "vllm:{name}{{{},reason=\"{reason}\"}} {count}",
                one.label
            );
        }
    }
    let name = "spec_decode_num_accepted_tokens_per_pos_total";
    if loaded.iter().any(|(_, places)| *places > 0) {
        head(
            text,
            name,
            "counter",
            "Drafts that were right, by their place in a step.",
        );
    }
    for (one, places) in loaded {
        for (place, count) in (0..places).zip(one.stats.accepted_at) {
            let _ = writeln!(
                text,
                "vllm:{name}{{{},position=\"{place}\"}} {count}",
                one.label
            );
        }
    }
}

/// Counters with a label that says why or where.
fn write_causes(text: &mut String, all: &[Series]) {
    type Counts = Vec<(&'static str, u64)>;
    let mut several =
        |(name, help): (&str, &str), key: &str, counts: &dyn Fn(&Series) -> Counts| {
            head(text, name, "counter", help);
            for series in all {
                for (value, count) in counts(series) {
                    let _ = writeln!(
                        text,
                        "vllm:{name}{{{},{key}=\"{value}\"}} {count}",
                        series.label
                    );
                }
            }
        };
    several(
        ("request_success_total", "Answers, by why they ended."),
        "finished_reason",
        &|Series { view, .. }| view.metrics.ends.counts().to_vec(),
    );
    let tiers = (
        "prefix_cache_tier_hits_total",
        "Prompt tokens found in the cache, by where.",
    );
    several(tiers, "tier", &|Series { stats, .. }| {
        vec![
            ("device", stats.prefix_hits_device),
            ("host", stats.prefix_hits_host),
            ("disk", stats.prefix_hits_disk),
        ]
    });
    let ends = (
        "prefix_cache_ends_total",
        "Lookups in the cache, by why they ended.",
    );
    several(ends, "cause", &|Series { stats, .. }| {
        vec![
            ("end_of_prompt", stats.prefix_ends_prompt),
            ("difference", stats.prefix_ends_difference),
            ("salt", stats.prefix_ends_salt),
            ("eviction", stats.prefix_ends_eviction),
            ("no_snapshot", stats.prefix_ends_no_snapshot),
            ("disabled", stats.prefix_ends_disabled),
        ]
    });
}

/// The lines before the values of a metric.
fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}");
}
