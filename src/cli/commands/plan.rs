//! `folio plan`: does a model fit a device? Without loading anything, it reports the memory that the model needs, the
//! memory left for the KV pool, the maximum speed, and what to change if the model does not fit.
//!
//! The numbers come from [`Fit`], which the engine itself uses to allocate. Exit code 1 means that the model does not
//! fit.

mod names;

use super::serve;
use super::serve::config::ConfigFile;
use super::serve::served::Sources;
use crate::cli::device::{self, Device};
use crate::cli::options::{EngineArgs, ModelArgs, TextFiles, shape_help};
use crate::cli::shares::{Member, Shares};
use crate::cli::terminal::output;
use crate::cli::units::parse_bytes;
use anyhow::{Context as _, Result, ensure};
use clap::{ArgMatches, Args};
use folio::backend::cpu::CpuBackend;
#[cfg(feature = "cuda")]
use folio::backend::cuda;
use folio::backend::wgpu::{bench::Yardstick, usual_allocation};
use folio::backend::{Caps, DeviceKind};
use folio::config::Config;
use folio::engine::fit::{Beside, Bytes, Change, Fit, FitReport};
use folio::engine::{self, DraftPlan, Source as _, TowerPlan};
use folio::model::{Model, ModelSpec};
use folio::plan::{Plan, Storage};
use folio::platform;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Bytes read to measure bandwidth: more than caches can hold.
const READ_BYTES: u64 = 256 << 20;
/// The binding limit of most GPU drivers, assumed with `--memory`.
const BINDING_BYTES_USUAL: u64 = i32::MAX as u64;

#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    /// The model, as --model names it
    #[arg(value_name = "MODEL", conflicts_with_all = ["shape", "config"])]
    first: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[arg(long, value_name = "SHAPE", conflicts_with = "model")]
    #[arg(help = shape_help("Shape to plan for instead of a model"))]
    shape: Option<String>,
    /// Plan for all models of a file for `folio serve --config`, on its devices
    #[arg(long, value_name = "FILE", conflicts_with_all = ["shape", "memory"])]
    config: Option<PathBuf>,
    /// Plan for a GPU with this much memory, for example 6GiB, instead of a device of this machine
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    memory: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The device to plan for.
struct Subject {
    caps: Caps,
    /// Why this device was selected.
    reason: String,
    /// Whether the device is in this machine, not assumed.
    is_here: bool,
    /// Measured memory bandwidth in GB/s.
    read_gbps: Option<f64>,
}

/// The report.
struct Report<'a> {
    name: String,
    model: &'a Model,
    plan: &'a Plan,
    config: &'a Config,
    subject: &'a Subject,
    fit_report: FitReport,
}

/// Prints the report. Returns whether the model fits, or all models.
pub(crate) fn run(args: &PlanArgs, given: &ArgMatches) -> Result<bool> {
    if let Some(file) = &args.config {
        return run_all(file, args.json, given);
    }
    let config = args.engine.config()?;
    let named = args.model.or_first(args.first.as_deref())?;
    let (mut model, text) = model(&named, args.shape.as_deref())?;
    if let Some(room) = engine::adapter_room(&config) {
        model.reserve_adapters(room);
    }
    engine::add_predictor(&config, &mut model)?;
    let subject = subject(args)?;
    let tower = tower_plan((&named, &text), &mut model, &config, &subject.caps)?;
    let plan = model.record(subject.caps.activations);
    let draft = args
        .engine
        .draft_model()
        .map(|name| draft_plan(&named, name, &plan, &subject.caps))
        .transpose()?;
    let beside = Beside {
        draft: draft.as_ref(),
        tower: tower.as_ref(),
    };
    let fit_report = FitReport::new(&model, &plan, beside, &config, &subject.caps);
    let name = args.shape.clone().unwrap_or_else(|| named.name());
    let report = Report {
        name,
        model: &model,
        plan: &plan,
        config: &config,
        subject: &subject,
        fit_report,
    };
    let text = if args.json {
        report.as_json().to_string()
    } else if named.model.is_none() && args.shape.is_none() {
        format!(
            "{}\n\n{}",
            report.as_text(),
            names::table(&config, &subject)?
        )
    } else {
        report.as_text()
    };
    output::result(text)?;
    Ok(report.fit_report.requested.fits())
}

/// Prints the plan of all models of a file.
fn run_all(file: &Path, json: bool, given: &ArgMatches) -> Result<bool> {
    let typed: Vec<_> = std::env::args_os().skip(2).collect();
    let command = crate::cli::command_line()
        .find_subcommand("plan")
        .cloned()
        .context("this command is gone")?;
    let sources = Sources {
        command,
        known: serve::command(),
        typed: &typed,
        given,
        file: Some(ConfigFile::read(file)?),
    };
    let mut models = sources.tables::<PlanArgs>()?;
    if models.is_empty() {
        let (all, _) = sources.parse::<PlanArgs>(None)?;
        models.push(("", all));
    }
    let names: Vec<_> = models
        .iter()
        .map(|(name, args)| match *name {
            "" => args.model.name(),
            name => name.to_owned(),
        })
        .collect();
    let members = models.iter().zip(&names).map(|((_, args), name)| Member {
        name,
        model: &args.model,
        engine: &args.engine,
    });
    let shares = Shares::new(&members.collect::<Vec<_>>())?;
    output::result(if json {
        shares.as_json().to_string()
    } else {
        shares.as_text()
    })?;
    Ok(shares.fits())
}

fn model(named: &ModelArgs, shape: Option<&str>) -> Result<(Model, TextFiles)> {
    match shape {
        Some(shape) => {
            let model = named.quantized(Model::random(ModelSpec::named(shape)?, 0))?;
            Ok((model, TextFiles::none()))
        }
        None => named.describe_with_text(),
    }
}

/// The tower of a model that reads images, whose rows get room in the model.
fn tower_plan(
    (named, text): (&ModelArgs, &TextFiles),
    model: &mut Model,
    config: &Config,
    caps: &Caps,
) -> Result<Option<TowerPlan>> {
    let tower = match config.max_image_rows {
        0 => None,
        _ => named.open_tower(text)?,
    };
    let Some((mut tower, _)) = tower else {
        return Ok(None);
    };
    model.reserve_image_rows(config.max_image_rows);
    let tile = tower.tile_patches(config.max_image_rows).unwrap_or(1);
    tower.reserve_patches(TowerPlan::patches(tile));
    let plan = tower.record(caps.activations);
    Ok(Some(TowerPlan::new(plan, tile, caps)))
}

fn draft_plan(named: &ModelArgs, name: &Path, model: &Plan, caps: &Caps) -> Result<DraftPlan> {
    let draft = named.beside(name).describe().context("the draft model")?;
    Ok(DraftPlan::new(draft.record(caps.activations), model)?)
}

fn subject(args: &PlanArgs) -> Result<Subject> {
    if let Some(memory) = args.memory {
        ensure!(memory > 0, "--memory must be greater than 0");
        let caps = Caps {
            name: format!("a GPU with {}", Bytes(memory)),
            api: "any",
            kind: DeviceKind::Discrete,
            tier: "unknown".into(),
            activations: Storage::F32,
            int8_activations: false,
            half_products: false,
            binding_bytes_max: BINDING_BYTES_USUAL,
            memory_bytes: Some(memory),
            memory_source: "",
            machine_bytes: None,
            allocation: usual_allocation(BINDING_BYTES_USUAL),
        };
        return Ok(Subject {
            caps,
            reason: "assumed because of --memory".into(),
            is_here: false,
            read_gbps: None,
        });
    }
    let device = args.engine.device()?;
    let read_gbps = read_gbps(&device)?;
    Ok(Subject {
        caps: device.caps()?,
        reason: device::reason(&args.engine.device.choice),
        is_here: true,
        read_gbps,
    })
}

fn read_gbps(device: &Device) -> Result<Option<f64>> {
    Ok(match device {
        Device::Cpu(options) => Some(CpuBackend::new(options).read_gbps()),
        Device::Reference => Some(CpuBackend::default().read_gbps()),
        Device::Wgpu(options) => Some(
            platform::block_on(Yardstick::open(options))?
                .brief()
                .read_gbps(READ_BYTES)?,
        ),
        #[cfg(feature = "cuda")]
        Device::Cuda(options) => Some(cuda::bench::Yardstick::open(options)?.read_gbps()?),
        Device::Fake(_) => None,
    })
}

impl Report<'_> {
    fn as_text(&self) -> String {
        let (asked, caps) = (&self.fit_report.requested, &self.subject.caps);
        let (weights, activations) = (Bytes(asked.weight_bytes), Bytes(asked.activation_bytes));
        let mut lines = vec![
            format!("model        {}", self.model_in_words()),
            format!("device       {}: {}", caps.name, self.subject.reason),
            format!("limits       {}", limits(self.subject)),
            format!("memory       {}", self.memory_in_words()),
            format!("weights      {weights}"),
            format!("activations  {activations}, {}", self.step_in_words()),
        ];
        if asked.state_bytes > 0 {
            lines.push(format!("states       {}", self.states_in_words()));
        }
        lines.push(format!("KV pool      {}", self.pool_in_words()));
        lines.push(format!("context      {}", self.context_in_words()));
        if asked.host_bytes > 0 {
            lines.push(format!("host memory  {}", self.host_memory_in_words()));
        }
        if asked.fits() {
            lines.push(format!("decode       {}", self.speed_in_words(asked)));
        }
        let alternatives = &self.fit_report.alternatives;
        if !alternatives.is_empty() {
            lines.push(String::new());
            lines.push("alternatives:".to_owned());
            let others = alternatives.iter();
            lines.extend(others.map(|(change, fit)| self.other_in_words(change, fit)));
        }
        lines.push(String::new());
        lines.push(self.verdict());
        lines.join("\n")
    }

    fn memory_in_words(&self) -> String {
        let (asked, caps) = (&self.fit_report.requested, &self.subject.caps);
        let source = match asked.memory_source {
            "" => String::new(),
            source => format!(" ({source})"),
        };
        let sizes = asked.memory_bytes.zip(asked.budget_bytes);
        match sizes.map(|(memory, budget)| (Bytes(memory), Bytes(budget))) {
            Some((memory, budget)) if asked.pool_is_given => {
                format!("{memory}{source}, {budget} usable (the KV pool's size is set)")
            }
            Some((memory, budget)) => {
                let share = 100.0 * self.config.gpu_memory_utilization;
                format!(
                    "{memory}{source}, {budget} usable (--gpu-memory-utilization, {share:.0} %)"
                )
            }
            None if caps.kind != DeviceKind::Software && !asked.pool_is_given => {
                "unknown: a KV pool that the device refuses is halved until it fits".to_owned()
            }
            None => {
                "unknown or shared with other programs: not checked; the KV pool's size is fixed \
                     (--kv-cache-bytes)"
                    .to_owned()
            }
        }
    }

    fn states_in_words(&self) -> String {
        let asked = &self.fit_report.requested;
        let (bytes, each) = (Bytes(asked.state_bytes), Bytes(self.plan.state_bytes()));
        let slots = asked.capacity.state_slots;
        format!("{bytes}: {slots} of sequences and snapshots, {each} each")
    }

    fn host_memory_in_words(&self) -> String {
        let asked = &self.fit_report.requested;
        let from = if asked.host_is_shared {
            ", from the same memory"
        } else {
            ""
        };
        let bytes = Bytes(asked.host_bytes);
        format!("{bytes} for KV blocks that leave the pool{from} (--kv-host-bytes)")
    }

    /// Whether it fits, and what to do; the advice gets its own line.
    fn verdict(&self) -> String {
        let asked = &self.fit_report.requested;
        let verdict = match asked.fits() {
            true if asked.is_full() => "fits",
            true => "fits, with less context",
            false => "does not fit",
        };
        format!("{verdict}: {}", self.fit_report).replace("; ", ";\n")
    }

    fn model_in_words(&self) -> String {
        let spec = self.model.spec();
        let (layers, positions) = (spec.layers.len(), self.plan.positions_max);
        format!(
            "{}: {}, {layers} layers, context of {positions} tokens",
            self.name, spec.architecture
        )
    }

    fn step_in_words(&self) -> String {
        format!(
            "for up to {} tokens of {} sequences per step",
            self.fit_report.requested.capacity.tokens_max, self.config.max_num_seqs
        )
    }

    fn pool_in_words(&self) -> String {
        let asked = &self.fit_report.requested;
        let (blocks, token) = (
            asked.blocks.iter().sum::<u32>(),
            Bytes(asked.kv_token_bytes),
        );
        let (size, format) = (asked.block_size, asked.kv_format);
        let of = format!("{blocks} blocks of {size} tokens, {token} per token ({format})");
        format!("{}: {of}", Bytes(asked.kv_bytes))
    }

    fn context_in_words(&self) -> String {
        let asked = &self.fit_report.requested;
        let wanted = asked.model_len_requested;
        match asked.is_full() {
            true => format!(
                "{wanted}; {} sequences of this length at once",
                asked.sequences
            ),
            false if asked.fits() => format!(
                "{} of {wanted}; one sequence of this length",
                asked.max_model_len
            ),
            false => format!("0 of {wanted}"),
        }
    }

    /// Upper bound on the speed: the time to read the data that each token needs.
    fn speed_in_words(&self, fit: &Fit) -> String {
        let token = Bytes(fit.token_bytes);
        let read = format!("each token reads {token} (weights, and the KV of half the context)");
        match self.subject.read_gbps {
            Some(gbps) => {
                let speed = number(fit.tokens_per_s(gbps * 1e9));
                format!(
                    "at most {speed} tokens/s per sequence: {read} at {gbps:.1} GB/s, as measured"
                )
            }
            None => format!("{read}; tokens/s are at most the device's bandwidth divided by that"),
        }
    }

    fn other_in_words(&self, change: &Change, fit: &Fit) -> String {
        // 38 columns: the longest change is `--quantization q4 --kv-cache-dtype q8`.
        let change = format!("{change:<38}");
        if !fit.fits() {
            return format!(
                "  {change} weights {}: does not fit",
                Bytes(fit.weight_bytes)
            );
        }
        let speed = self.subject.read_gbps.map_or_else(String::new, |gbps| {
            format!(
                ", at most {} tokens/s",
                number(fit.tokens_per_s(gbps * 1e9))
            )
        });
        let (weights, pool) = (Bytes(fit.weight_bytes), Bytes(fit.kv_bytes));
        format!(
            "  {change} weights {weights}, KV pool {pool}: {}{speed}",
            fit.room()
        )
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
                "memory_source": Some(caps.memory_source).filter(|source| !source.is_empty()),
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
            "state_bytes": fit.state_bytes,
            "kv_bytes": fit.kv_bytes,
            "kv_host_bytes": fit.host_bytes,
            "kv_token_bytes": fit.kv_token_bytes,
            "kv_format": fit.kv_format.to_string(),
            "blocks": fit.blocks,
            "block_size": fit.block_size,
            "budget_bytes": fit.budget_bytes,
            "max_model_len_wanted": fit.model_len_requested,
            "max_model_len": fit.max_model_len,
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
        return format!("assumed as on most GPUs: {binding}");
    }
    let kind = format!("{:?}", caps.kind).to_lowercase();
    format!("{kind} ({}), kernels {}, {binding}", caps.api, caps.tier)
}

/// Formats about two digits, for people.
fn number(value: f64) -> String {
    if value < 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

/// Rounded to one decimal place: an estimate is no more precise.
fn rounded(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
