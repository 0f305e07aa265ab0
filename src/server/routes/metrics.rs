//! `GET /metrics`: classic Prometheus text under vLLM's names, with a sample of each model.
//!
//! Routers scrape this many times a second, so it waits for no engine: gauges and counters come from the engines'
//! snapshots, latencies from the server's own histograms. The counters of an engine begin again when its model is
//! loaded again.

use crate::engine::handle::{EngineHandle, EngineInfo, Stat, Stats, Value};
use crate::platform;
use crate::server::counters::{HttpResponses, write_histogram};
use crate::server::state::{AdapterEntry, ModelView, ServerState};
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
        let model = escaped(&view.names[0]);
        let engine = view.state.as_ref().map(|state| &state.engine);
        let mut stats = engine.map(EngineHandle::stats).unwrap_or_default();
        stats.requests_waiting += view.waiting as u64;
        let info = engine.and_then(|engine| engine.info().cloned());
        Self {
            // As in vLLM, where several engines may serve a model.
            label: format!("engine=\"0\",model_name=\"{model}\""),
            stats,
            info,
            view,
        }
    }

    /// The labels and values of what the engine counts. Drafts are told of loaded models, and only the places that a
    /// step of theirs has.
    fn samples(&self, name: &str, stat: &Stat) -> Vec<(String, u64)> {
        let Self { label, info, .. } = self;
        let is_of_drafts = name.starts_with("spec_decode_");
        if is_of_drafts && info.is_none() {
            return Vec::new();
        }
        match (stat.value)(&self.stats) {
            Value::One(count) => vec![(label.clone(), count)],
            Value::Histogram(..) => Vec::new(),
            Value::By(key, mut counts) => {
                if key == "position" {
                    let places = info.as_ref().map_or(0, |info| info.num_speculative_tokens);
                    counts.truncate(places as usize);
                }
                counts
                    .into_iter()
                    .map(|(value, count)| (format!("{label},{key}=\"{value}\""), count))
                    .collect()
            }
        }
    }
}

/// `GET /metrics`.
pub(crate) async fn metrics(State(server): State<ServerState>) -> impl IntoResponse {
    let all: Vec<_> = server.models.views().into_iter().map(Series::new).collect();
    (
        [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        render(&all, &server.shared.http_responses),
    )
}

fn render(all: &[Series], http_responses: &HttpResponses) -> String {
    let mut text = String::with_capacity(all.len() * (16 << 10));
    write_models(&mut text, all);
    write_stats(&mut text, all);
    write_histograms(&mut text, all);
    http_responses.write(&mut text);
    if let Some(bytes) = platform::memory_resident() {
        // Under the name that Prometheus' own clients give it.
        let name = "process_resident_memory_bytes";
        let _ = writeln!(
            text,
            "# HELP {name} Resident memory size in bytes.\n# TYPE {name} gauge\n{name} {bytes}"
        );
    }
    text
}

/// What the server knows of its models.
fn write_models(text: &mut String, all: &[Series]) {
    let samples = all.iter().map(|Series { label, stats, .. }| {
        let share = stats.blocks_used as f64 / stats.blocks_total.max(1) as f64;
        (label.clone(), share)
    });
    let help = "Share of the KV blocks in use.";
    write(text, "kv_cache_usage_perc", help, samples);
    let samples = all.iter().flat_map(
        |Series {
             label, stats, view, ..
         }| {
            let loading = view.waiting as u64;
            [
                ("capacity", stats.requests_waiting - loading),
                ("deferred", loading),
            ]
            .map(|(reason, count)| (format!("{label},reason=\"{reason}\""), count))
        },
    );
    let help = "Requests that wait, by whether for room or for their model to be loaded.";
    write(text, "num_requests_waiting_by_reason", help, samples);
    let samples = all.iter().map(|one| (one.label.clone(), one.view.loads));
    let help = "Times that the model was loaded.";
    write(text, "model_loads_total", help, samples);
    let samples = all.iter().flat_map(|Series { label, view, .. }| {
        view.metrics
            .ends
            .counts()
            .map(|(reason, count)| (format!("{label},finished_reason=\"{reason}\""), count))
    });
    let help = "Answers, by why they ended.";
    write(text, "request_success_total", help, samples);
    let loaded: Vec<_> = all
        .iter()
        .filter_map(|one| Some((&one.label, one.info.as_ref()?)))
        .collect();
    let samples = loaded
        .iter()
        .map(|(label, info)| ((*label).clone(), info.weight_bytes));
    let help = "Bytes of the weights of loaded models, as planned.";
    write(text, "weight_bytes", help, samples);
    let samples = loaded.iter().map(|(label, info)| {
        let (size, blocks) = (info.block_size, info.blocks);
        let labels = format!("{label},block_size=\"{size}\",num_gpu_blocks=\"{blocks}\"");
        (labels, 1)
    });
    let help = "Size and number of the KV blocks.";
    write(text, "cache_config_info", help, samples);
    write_adapters(text, all);
}

/// Which adapters are used now. The labels are vLLM's, and so is the value: the time.
fn write_adapters(text: &mut String, all: &[Series]) {
    let samples = all.iter().filter_map(
        |Series {
             label, info, view, ..
         }| {
            let room = info.as_ref()?.adapters.as_ref()?.room();
            let entries = view.state.as_ref()?.adapters.entries();
            let names = |count: fn(&AdapterEntry) -> usize| {
                let used = entries.iter().filter(|entry| count(entry) > 0);
                let names: Vec<_> = used.map(|entry| escaped(&entry.served.name)).collect();
                names.join(",")
            };
            let labels = format!(
                "{label},max_lora=\"{}\",running_lora_adapters=\"{}\",waiting_lora_adapters=\"{}\"",
                room.slots,
                names(AdapterEntry::running),
                names(AdapterEntry::waiting),
            );
            Some((labels, platform::unix_time()))
        },
    );
    let help = "Adapters in use, with the number of slots for them.";
    write(text, "lora_requests_info", help, samples);
}

/// The value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// What the engines count.
fn write_stats(text: &mut String, all: &[Series]) {
    for stat in Stats::TABLE {
        if let Some(name) = stat.metric {
            let samples = all.iter().flat_map(|series| series.samples(name, stat));
            write(text, name, stat.help, samples);
        }
    }
}

fn write_histograms(text: &mut String, all: &[Series]) {
    for stat in Stats::TABLE {
        let (Some(name), Value::Histogram(..)) = (stat.metric, (stat.value)(&Stats::default()))
        else {
            continue;
        };
        head(text, name, "histogram", stat.help);
        for Series { label, stats, .. } in all {
            if let Value::Histogram(bounds, counts, sum) = (stat.value)(stats) {
                write_histogram(text, name, label, bounds, counts, sum as f64);
            }
        }
    }
    let histograms: Vec<_> = all
        .iter()
        .map(|one| one.view.metrics.histograms())
        .collect();
    for index in 0..histograms.first().map_or(0, Vec::len) {
        let (name, help, _) = histograms[0][index];
        head(text, name, "histogram", help);
        for (one, histograms) in all.iter().zip(&histograms) {
            histograms[index].2.write(text, name, &one.label);
        }
    }
}

/// A metric with its samples, each with its labels; nothing if there are none.
fn write(
    text: &mut String,
    name: &str,
    help: &str,
    samples: impl Iterator<Item = (String, impl Display)>,
) {
    let mut samples = samples.peekable();
    if samples.peek().is_some() {
        let kind = if name.ends_with("_total") {
            "counter"
        } else {
            "gauge"
        };
        head(text, name, kind, help);
    }
    for (labels, value) in samples {
        let _ = writeln!(text, "vllm:{name}{{{labels}}} {value}");
    }
}

/// The lines before the values of a metric.
fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}");
}
