//! `folio plan`: will it fit? Says before anything is loaded what a model takes of a device and what is left for KV,
//! how fast it may get, and what to do where it does not fit.
//!
//! The numbers are the engine's own ([`Fit`]): it allocates by them. Exit code 1 means that it does not fit.

use super::device::{self, Device};
use super::options::{EngineOptions, ModelOptions, parse_bytes};
use super::output;
use anyhow::{Result, ensure};
use clap::Args;
use folio::backend::cpu::peaks;
#[cfg(feature = "cuda")]
use folio::backend::cuda;
use folio::backend::wgpu::bench::Yardstick;
use folio::backend::{Caps, DeviceKind};
use folio::config::Config;
use folio::engine::fit::{Bytes, Change, Fit, FitReport};
use folio::model::{Model, ModelSpec};
use folio::plan::{Plan, Storage};
use folio::platform;
use serde_json::{Value, json};

/// Bytes that bandwidth is measured on: beyond caches, and read within a second.
const READ_BYTES: u64 = 256 << 20;
/// What the drivers of most GPUs let a kernel bind, where there is no device to ask.
const BINDING_BYTES_USUAL: u64 = i32::MAX as u64;

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    engine: EngineOptions,
    /// A shape instead of a model: qwen3-0.6b, llama-3.2-1b, llama-3-8b or HxLxNxKxDxFxV
    #[arg(long, value_name = "SHAPE", conflicts_with = "model")]
    shape: Option<String>,
    /// Ask about a GPU with so much memory, for example 6GiB, instead of a device that is here
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    memory: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A device to judge by.
struct Subject {
    caps: Caps,
    /// Why this one.
    reason: String,
    /// Whether it was asked, not assumed.
    is_here: bool,
    /// Bytes it reads a second, 10⁹, where it is here and computes.
    read_gbps: Option<f64>,
}

/// All there is to say.
struct Report<'a> {
    name: String,
    model: &'a Model,
    plan: &'a Plan,
    config: &'a Config,
    subject: &'a Subject,
    fit_report: FitReport,
}

/// Whether it fits.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let config = options.engine.config()?;
    let model = model(options)?;
    let subject = subject(options)?;
    let plan = model.record(subject.caps.activations);
    let fit_report = FitReport::new(&model, &plan, &config, &subject.caps);
    let name = options.shape.clone().unwrap_or_else(|| options.model.name());
    let report = Report { name, model: &model, plan: &plan, config: &config, subject: &subject, fit_report };
    let text = if options.json { report.as_json().to_string() } else { report.as_text() };
    output::result(text)?;
    Ok(report.fit_report.requested.fits())
}

fn model(options: &Options) -> Result<Model> {
    match &options.shape {
        Some(shape) => options.model.quantized(Model::random(ModelSpec::named(shape)?, 0)),
        None => options.model.describe(),
    }
}

fn subject(options: &Options) -> Result<Subject> {
    if let Some(memory) = options.memory {
        ensure!(memory > 0, "--memory: a device without memory holds nothing");
        let caps = Caps {
            name: format!("a GPU with {}", Bytes(memory)),
            api: "any",
            kind: DeviceKind::Discrete,
            tier: "unknown".into(),
            activations: Storage::F32,
            binding_bytes_max: BINDING_BYTES_USUAL,
            memory_bytes: Some(memory),
        };
        return Ok(Subject {
            caps,
            reason: "--memory asks about it; no device was opened".into(),
            is_here: false,
            read_gbps: None,
        });
    }
    let device = options.engine.device()?;
    let read_gbps = read_gbps(&device)?;
    Ok(Subject { caps: device.caps()?, reason: device::reason(&options.engine.device), is_here: true, read_gbps })
}

fn read_gbps(device: &Device) -> Result<Option<f64>> {
    Ok(match device {
        Device::Cpu => Some(peaks::read_gbps()),
        Device::Wgpu(options) => Some(platform::block_on(Yardstick::open(options))?.brief().read_gbps(READ_BYTES)?),
        #[cfg(feature = "cuda")]
        Device::Cuda(options) => Some(cuda::bench::Yardstick::open(options)?.read_gbps()?),
        Device::Fake(_) => None,
    })
}

impl Report<'_> {
    fn as_text(&self) -> String {
        let (asked, caps) = (&self.fit_report.requested, &self.subject.caps);
        let share = 100.0 * self.config.gpu_memory_utilization;
        let memory = match (asked.memory_bytes, asked.budget_bytes) {
            (Some(memory), Some(budget)) if asked.pool_is_given => {
                format!("{}, of which {} may be used, as the KV pool's size is given", Bytes(memory), Bytes(budget))
            }
            (Some(memory), Some(budget)) => {
                let (memory, budget) = (Bytes(memory), Bytes(budget));
                format!("{memory}, of which {budget} may be used (--gpu-memory-utilization, {share:.0} %)")
            }
            _ => "unknown or shared with all else: weights are not held against it, and the KV pool has a fixed size \
                  (--kv-cache-bytes)"
                .to_owned(),
        };
        let mut lines = vec![
            format!("model        {}", self.model_in_words()),
            format!("device       {}: {}", caps.name, self.subject.reason),
            format!("limits       {}", limits(self.subject)),
            format!("memory       {memory}"),
            format!("weights      {}", Bytes(asked.weight_bytes)),
            format!("activations  {}, {}", Bytes(asked.activation_bytes), self.step_in_words()),
            format!("KV pool      {}", self.pool_in_words()),
            format!("context      {}", self.context_in_words()),
        ];
        if asked.fits() {
            lines.push(format!("decode       {}", self.speed_in_words(asked)));
        }
        if !self.fit_report.alternatives.is_empty() {
            lines.push(String::new());
            lines.push("other ways:".to_owned());
            lines.extend(self.fit_report.alternatives.iter().map(|(change, fit)| self.other_in_words(change, fit)));
        }
        lines.push(String::new());
        let verdict = match asked.fits() {
            true if asked.is_full() => "fits",
            true => "fits, with less context",
            false => "does not fit",
        };
        // What to do stands on a line of its own.
        lines.push(format!("{verdict}: {}", self.fit_report).replace("; ", ";\n"));
        lines.join("\n")
    }

    fn model_in_words(&self) -> String {
        let spec = self.model.spec();
        let (layers, positions) = (spec.layers.len(), self.plan.positions_max);
        format!("{}: {}, {layers} layers, knows {positions} positions", self.name, spec.architecture)
    }

    fn step_in_words(&self) -> String {
        format!(
            "for {} tokens of up to {} sequences a step",
            self.config.max_num_batched_tokens, self.config.max_num_seqs
        )
    }

    fn pool_in_words(&self) -> String {
        let asked = &self.fit_report.requested;
        let (blocks, token) = (asked.blocks.iter().sum::<u32>(), Bytes(asked.kv_token_bytes));
        let (size, format) = (asked.block_size, asked.kv_format);
        let of = format!("{blocks} blocks of {size} tokens; a token takes {token} ({format})");
        format!("{}: {of}", Bytes(asked.kv_bytes))
    }

    fn context_in_words(&self) -> String {
        let asked = &self.fit_report.requested;
        let wanted = asked.model_len_requested;
        match asked.is_full() {
            true => format!("{wanted}; {} sequences of that length at once", asked.sequences),
            false if asked.fits() => format!("{} of {wanted}; one sequence of that length", asked.model_len_max),
            false => format!("none of {wanted}"),
        }
    }

    /// An upper estimate: nothing is faster than reading what has to be read.
    fn speed_in_words(&self, fit: &Fit) -> String {
        let token = Bytes(fit.token_bytes);
        let read = format!("a token reads {token} (weights, K and V of half the context)");
        match self.subject.read_gbps {
            Some(gbps) => {
                let speed = number(fit.tokens_per_s(gbps * 1e9));
                format!("at most {speed} tokens/s alone: {read}, and {gbps:.1} GB/s were measured")
            }
            None => format!("{read}; tokens/s alone are at most the device's bytes/s divided by that"),
        }
    }

    fn other_in_words(&self, change: &Change, fit: &Fit) -> String {
        // The longest of them: `--quantization q4 --kv-cache-dtype q8`.
        let change = format!("{change:<38}");
        if !fit.fits() {
            return format!("  {change} weights {}: does not fit", Bytes(fit.weight_bytes));
        }
        let speed = self
            .subject
            .read_gbps
            .map_or_else(String::new, |gbps| format!(", at most {} tokens/s", number(fit.tokens_per_s(gbps * 1e9))));
        let (weights, pool) = (Bytes(fit.weight_bytes), Bytes(fit.kv_bytes));
        format!("  {change} weights {weights}, KV pool {pool}: {}{speed}", fit.room())
    }

    fn as_json(&self) -> Value {
        let (caps, fit_report) = (&self.subject.caps, &self.fit_report);
        let others = fit_report.alternatives.iter().map(|(change, fit)| {
            let mut object = self.fit_json(fit);
            object["option"] = change.to_string().into();
            object
        });
        json!({
            "model": self.name,
            "architecture": self.model.spec().architecture,
            "positions_max": self.plan.positions_max,
            "device": {
                "name": caps.name,
                "api": caps.api,
                "kind": format!("{:?}", caps.kind).to_lowercase(),
                "tier": caps.tier,
                "reason": self.subject.reason,
                "binding_bytes_max": (caps.binding_bytes_max < u64::MAX).then_some(caps.binding_bytes_max),
                "memory_bytes": caps.memory_bytes,
                "read_gbps": self.subject.read_gbps.map(rounded),
            },
            "asked": self.fit_json(&fit_report.requested),
            "others": others.collect::<Vec<_>>(),
            "advice": fit_report.advice().map(|(change, _)| change.to_string()),
            "summary": fit_report.to_string(),
        })
    }

    fn fit_json(&self, fit: &Fit) -> Value {
        json!({
            "fits": fit.fits(),
            "weight_bytes": fit.weight_bytes,
            "activation_bytes": fit.activation_bytes,
            "kv_bytes": fit.kv_bytes,
            "kv_token_bytes": fit.kv_token_bytes,
            "kv_format": fit.kv_format.to_string(),
            "blocks": fit.blocks,
            "block_size": fit.block_size,
            "budget_bytes": fit.budget_bytes,
            "max_model_len_wanted": fit.model_len_requested,
            "max_model_len": fit.model_len_max,
            "sequences": fit.sequences,
            "token_bytes": fit.token_bytes,
            "tokens_per_s_max": self.subject.read_gbps.map(|gbps| rounded(fit.tokens_per_s(gbps * 1e9))),
        })
    }
}

fn limits(subject: &Subject) -> String {
    let caps = &subject.caps;
    let binding = match caps.binding_bytes_max {
        u64::MAX => "bindings of any size".to_owned(),
        bytes => format!("bindings up to {}", Bytes(bytes)),
    };
    if !subject.is_here {
        return format!("taken as those of most GPUs: {binding}");
    }
    let kind = format!("{:?}", caps.kind).to_lowercase();
    format!("{kind} ({}), kernels {}, {binding}", caps.api, caps.tier)
}

/// Two digits or so, for people.
fn number(value: f64) -> String {
    if value < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

/// One digit behind the point: an estimate has no more.
fn rounded(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
