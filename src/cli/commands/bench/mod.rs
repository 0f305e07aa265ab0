//! `folio bench`: tokens per second, latencies and bandwidth, always compared with the device's own peaks.
//!
//! First the device's own peaks are measured ([`peaks`]), then the scenarios: [`steps`] runs each kernel alone with
//! real shapes, [`generate`] decodes and prefills through the engine, [`serve`] loads it with seeded requests,
//! [`beams`] counts the memory that beams share, [`speculation`] compares answers with and without drafts,
//! [`returning`] the first tokens of conversations with and without tiers of the KV cache, [`host`] measures the host
//! time of a step.
//!
//! `docs/measurements.md` has the figures measured so far.

mod beams;
mod generate;
mod host;
mod peaks;
mod report;
mod returning;
mod serve;
mod speculation;
mod steps;

use crate::cli::device::Device;
use crate::cli::options::{EngineArgs, ModelArgs, TextFiles, shape_help};
use crate::cli::session::{Opened, Session, Tells};
use crate::cli::terminal::output;
use anyhow::{Result, bail, ensure};
use clap::{Args, ValueEnum};
use folio::config::Config;
use folio::model::{Model, ModelSpec};
use generate::Generation;
use report::Report;

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// Each kernel alone, over the model's shapes
    Steps,
    /// Only the matrix products of `steps`
    Products,
    /// Tokens per second during generation
    Decode,
    /// Prompt tokens per second
    Prefill,
    /// Many requests of mixed lengths at once
    Serve,
    /// Memory that the beams of a search save by sharing blocks
    Beams,
    /// The same answers without drafts and with them
    Speculation,
    /// Conversations that return after others have taken their KV blocks, without and with colder tiers
    Returning,
}

#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[arg(long, value_name = "SHAPE", conflicts_with = "model")]
    #[arg(help = shape_help("Random weights of this shape instead of a model"))]
    shape: Option<String>,
    /// What to measure; may be given several times [default: decode and prefill]
    #[arg(long, value_name = "SCENARIO")]
    scenario: Vec<Scenario>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print the peaks and then each row as soon as it is measured, a JSON object a line
    #[arg(long, conflicts_with = "json")]
    json_lines: bool,
    /// Batch sizes of decode and prefill [default: 1,8]; rows of the products in steps [default: 1,8,64]; searches of
    /// beams, the first number only [default: 8]; conversations of returning, the first number only [default: 40];
    /// sequences of speculation, from 64 on of random text [default: 1,64]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    batch: Vec<u32>,
    /// Prompt tokens of decode, prefill, beams and returning [default: 512, or the rest of the context; 1500 for
    /// returning]
    #[arg(long, value_name = "TOKENS")]
    context: Option<u32>,
    /// Prompt tokens of prefill: a row for each, whose prompts come one at a time [default: --context and --batch]
    #[arg(long, value_name = "TOKENS", value_delimiter = ',')]
    prompt_lens: Vec<u32>,
    /// Rounds of decode; the median counts, and the report has the spread
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of decoding before decode and prefill are measured, in which a GPU raises its clocks
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    warm_up: f64,
    /// Decode greedily only, and not also sampled
    #[arg(long)]
    greedy: bool,
    /// Tokens that decode and beams generate per sequence
    #[arg(long, value_name = "TOKENS", default_value_t = 64)]
    new_tokens: u32,
    /// Share of the drafts of speculation that is accepted with as many in each step as the settings allow
    #[arg(long, value_name = "SHARE", default_value_t = 0.8)]
    acceptance: f64,
    #[command(flatten)]
    load: serve::LoadArgs,
}

impl BenchArgs {
    fn scenarios(&self) -> &[Scenario] {
        if self.scenario.is_empty() {
            &[Scenario::Decode, Scenario::Prefill]
        } else {
            &self.scenario
        }
    }
}

/// A model to measure; it is opened again for every engine.
struct Subject<'a> {
    args: &'a BenchArgs,
    spec: ModelSpec,
}

impl Subject<'_> {
    fn model(&self) -> Result<Model> {
        match &self.args.shape {
            Some(_) => {
                let model = Model::random(self.spec.clone(), self.args.engine.seed().unwrap_or(0));
                self.args.model.quantized(model)
            }
            None => self.args.model.open(),
        }
    }

    /// Whether `scenario` will be measured.
    fn has(&self, scenario: Scenario) -> bool {
        self.args.scenarios().contains(&scenario)
    }

    /// Batch sizes of decode and prefill.
    fn batches(&self) -> Vec<u32> {
        if self.args.batch.is_empty() {
            vec![1, 8]
        } else {
            self.args.batch.clone()
        }
    }

    /// The name of the shape in reports.
    fn name(&self) -> String {
        self.args
            .shape
            .clone()
            .unwrap_or_else(|| self.args.model.name())
    }

    /// Starts an engine for this model with these limits, and waits until it is ready.
    fn session(&self, config: Config) -> Result<Session> {
        let device = self.args.engine.device()?;
        Opened::new(self.model()?, TextFiles::none())
            .start(device, config, Tells::Nothing)?
            .wait_ready()
    }
}

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let config = config(args)?;
    let device = args.engine.device()?;
    ensure!(
        !matches!(device, Device::Fake(_)),
        "the fake device does no computation to measure"
    );
    let spec = match &args.shape {
        Some(name) => ModelSpec::named(name)?,
        None => args.model.open()?.spec().clone(),
    };
    let subject = Subject { args, spec };
    let measured = device.clone();
    let mut report = Report::new(subject.name(), Box::new(move || peaks::measure(&measured)))?;
    if args.json_lines {
        report = report.streaming()?;
    }
    measure(&device, &subject, &config, &mut report)?;
    match (args.json, args.json_lines) {
        (true, _) => output::result(report.as_json())?,
        (_, true) => output::result(report.extra())?,
        _ => output::result(report.as_text())?,
    }
    match report.impossible() {
        Some(row) => bail!("{row}, which is impossible: this is a measurement error"),
        None => Ok(()),
    }
}

/// The settings of all engines. Random weights repeat themselves: drafts that are not asked for would be measured
/// instead of the device.
fn config(args: &BenchArgs) -> Result<Config> {
    let config = args.engine.config()?;
    let speculation = if args.engine.asks_for_drafts() {
        config.speculation
    } else {
        None
    };
    Ok(Config {
        speculation,
        ..config
    })
}

/// Measures each scenario in turn.
fn measure(
    device: &Device,
    subject: &Subject<'_>,
    config: &Config,
    report: &mut Report,
) -> Result<()> {
    let mut generation = Generation::new(subject, config);
    for scenario in subject.args.scenarios() {
        if !matches!(scenario, Scenario::Decode | Scenario::Prefill) {
            // The others open engines of their own.
            generation.close()?;
        }
        match scenario {
            Scenario::Steps => {
                steps::measure(device, subject, config, report)?;
                host::measure(device, subject, config, report)?;
            }
            Scenario::Products => steps::products(device, subject, config, report)?,
            Scenario::Decode => generation.decode(report)?,
            Scenario::Prefill => generation.prefill(report)?,
            Scenario::Serve => serve::measure(subject, config, report)?,
            Scenario::Beams => beams::measure(subject, config, report)?,
            Scenario::Returning => returning::measure(subject, config, report)?,
            Scenario::Speculation => speculation::measure(subject, config, report)?,
        }
    }
    generation.close()
}
