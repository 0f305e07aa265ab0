//! The models that a server serves, each with its own options: from the command line, or from `--config`.

use super::config::{Arguments, ConfigFile};
use super::foreign::ForeignArgs;
use super::generation::{Defaults, GenerationConfig};
use crate::cli::lora::ServedAdapterArgs;
use crate::cli::options::{EngineArgs, ModelArgs};
use crate::cli::session::{Opened, Session, Tells};
use anyhow::{Context as _, Result, anyhow, ensure};
use clap::builder::NonEmptyStringValueParser;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use folio::engine::fit::{Beside, FitReport};
use folio::engine::request::SamplingParams;
use folio::engine::{StartError, add_predictor};
use folio::server::{Reranker, ServerOptions};
use folio::text::RESERVED_KWARGS;
use folio::text::answer::{ReasoningParser, ToolParser};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Options of a served model.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServedArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// Name of the model in requests, or * for any; may be given several times [default: what --model says,
    /// of a GGUF file the name without folder and ending]
    #[arg(help_heading = "Server", long, visible_alias = "alias", env = "FOLIO_SERVED_MODEL_NAME", value_name = "NAME",
          value_delimiter = ',', num_args = 1.., value_parser = NonEmptyStringValueParser::new())]
    served_model_name: Vec<String>,
    #[arg(
        help = parser_help("tool calls", &ToolParser::NAMES),
        help_heading = "Server",
        long,
        env = "FOLIO_TOOL_CALL_PARSER",
        value_name = "NAME"
    )]
    tool_call_parser: Option<ToolParser>,
    #[arg(
        help = parser_help("reasoning", &ReasoningParser::NAMES),
        help_heading = "Server",
        long,
        env = "FOLIO_REASONING_PARSER",
        value_name = "NAME"
    )]
    reasoning_parser: Option<ReasoningParser>,
    /// How /v1/rerank and /score judge documents: yes-no (the probability of the answer yes, as Qwen3-Reranker is made)
    /// or embedding (the cosine of embeddings) [default: yes-no if the model's name has `rerank`, else embedding].
    /// Refused for a model with a head for classes, which judges by itself
    #[arg(
        help_heading = "Server",
        long,
        env = "FOLIO_RERANKER",
        value_name = "FORM"
    )]
    reranker: Option<Reranker>,
    /// Unload the model when nobody has used it for so many seconds, and load it again when it is asked for [default:
    /// it stays, unless another of several models needs its memory]
    #[arg(help_heading = "Server", long, env = "FOLIO_IDLE_UNLOAD", value_name = "SECONDS",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) idle_unload: Option<u32>,
    /// Variables of the chat template for requests that do not set them, as a JSON object
    #[arg(help_heading = "Server", long, env = "FOLIO_DEFAULT_CHAT_TEMPLATE_KWARGS", value_name = "JSON",
          value_parser = variables)]
    default_chat_template_kwargs: Option<Map<String, Value>>,
    /// Sampling defaults: auto takes those of the model's generation_config.json, vllm does not
    #[arg(help_heading = "Server", long, env = "FOLIO_GENERATION_CONFIG", value_name = "FORM", default_value = "auto",
          value_parser = GenerationConfig::parse)]
    generation_config: GenerationConfig,
    /// Sampling defaults for requests that do not set them, as a JSON object {"temperature": 0.5, "top_p": 0.9,
    /// "top_k": 20, "min_p": 0, "repetition_penalty": 1}; "max_new_tokens" limits every answer
    #[arg(help_heading = "Server", long, env = "FOLIO_OVERRIDE_GENERATION_CONFIG", value_name = "JSON",
          value_parser = Defaults::parse)]
    override_generation_config: Option<Defaults>,
    #[command(flatten)]
    pub(crate) adapters: ServedAdapterArgs,
    #[command(flatten)]
    pub(crate) foreign: ForeignArgs,
}

/// The value of --default-chat-template-kwargs.
fn variables(text: &str) -> Result<Map<String, Value>, String> {
    let variables: Map<String, Value> =
        serde_json::from_str(text).map_err(|error| error.to_string())?;
    match RESERVED_KWARGS
        .iter()
        .find(|name| variables.contains_key(**name))
    {
        Some(name) => Err(format!("`{name}` cannot be set")),
        None => Ok(variables),
    }
}

/// What `--help` says of a parser's option.
fn parser_help(read: &str, names: &[&str]) -> String {
    format!(
        "Format of the model's {read}: {}; or vLLM's name of one [default: found in its chat template]",
        names.join(", ")
    )
}

/// A served model.
#[derive(Debug)]
pub(crate) struct Served {
    /// Names in requests; answers call the model by the first.
    pub(crate) names: Vec<String>,
    /// It is served by any name.
    pub(crate) takes_any_name: bool,
    pub(crate) args: ServedArgs,
}

impl Served {
    /// A model with these options; its name may stand in front of those that they have.
    fn new(name: Option<&str>, args: ServedArgs) -> Self {
        let (any, own): (Vec<_>, Vec<_>) = args
            .served_model_name
            .iter()
            .cloned()
            .partition(|name| name == "*");
        let mut names: Vec<String> = name.map(str::to_owned).into_iter().chain(own).collect();
        if names.is_empty() {
            names.push(args.model.served_name());
        }
        Self {
            names,
            takes_any_name: !any.is_empty(),
            args,
        }
    }

    /// The name of its file or folder.
    fn file(&self) -> String {
        let name = self.args.model.name();
        let name = name.trim_end_matches(['/', '\\']);
        name.rsplit(['/', '\\'])
            .next()
            .unwrap_or_default()
            .to_owned()
    }

    /// Finds, downloads and begins to load the model, as the only one of a server. One that does not fit is not
    /// downloaded.
    pub(crate) fn start(&self) -> Result<Session> {
        let ServedArgs {
            model,
            engine,
            adapters,
            ..
        } = &self.args;
        let (mut config, device) = (engine.config()?, engine.device()?);
        if let Some(mut model) = model.describe_far()? {
            add_predictor(&config, &mut model)?;
            let caps = device.caps()?;
            let plan = model.record(caps.activations);
            let report = FitReport::new(&model, &plan, Beside::default(), &config, &caps);
            ensure!(
                report.requested.fits(),
                StartError::DoesNotFit(Box::new(report))
            );
        }
        let opened = Opened::named(model, engine)?;
        self.check(&opened)?;
        let adapters = (&adapters.adapters(), &self.names[..]);
        opened
            .with(adapters, engine, &mut config)?
            .start(device, config, Tells::Everything)
    }

    /// Refuses an option that says how to judge documents, of a model that is made to judge them.
    pub(crate) fn check(&self, model: &Opened) -> Result<()> {
        ensure!(
            self.args.reranker.is_none() || !model.has_classes(),
            "--reranker: the model has a head for classes, which says how documents are judged"
        );
        Ok(())
    }

    /// How long it stays loaded without requests.
    pub(crate) fn idle_unload(&self) -> Option<Duration> {
        self.args
            .idle_unload
            .map(|seconds| Duration::from_secs(seconds.into()))
    }

    /// A server's options, with those of this model.
    pub(crate) fn options(&self, options: &ServerOptions) -> ServerOptions {
        let ServedArgs {
            tool_call_parser,
            reasoning_parser,
            reranker,
            ..
        } = self.args;
        ServerOptions {
            any_model: self.takes_any_name,
            file: Some(self.file()).filter(|file| !file.is_empty()),
            tool_call_parser,
            reasoning_parser,
            reranker,
            template_defaults: self
                .args
                .default_chat_template_kwargs
                .clone()
                .unwrap_or_default(),
            max_new_tokens: self.overrides().max_new_tokens,
            ..options.clone()
        }
    }

    /// The sampling defaults, of a model whose files have these.
    pub(crate) fn defaults(&self, of_model: SamplingParams) -> SamplingParams {
        let base = match self.args.generation_config {
            GenerationConfig::Auto => of_model,
            GenerationConfig::Vllm => SamplingParams::default(),
        };
        self.overrides().over(base)
    }

    fn overrides(&self) -> Defaults {
        self.args
            .override_generation_config
            .clone()
            .unwrap_or_default()
    }
}

/// Where the options of a command come from: what was typed, and a file.
pub(crate) struct Sources<'a> {
    /// The command with all its options.
    pub(crate) command: Command,
    /// The command that has every option that a file may have.
    pub(crate) known: Command,
    /// What was typed after the command's name.
    pub(crate) typed: &'a [OsString],
    pub(crate) given: &'a ArgMatches,
    pub(crate) file: Option<ConfigFile>,
}

impl Sources<'_> {
    /// The options of a command, or of one of its models.
    pub(crate) fn parse<A: FromArgMatches>(&self, model: Option<&str>) -> Result<(A, ArgMatches)> {
        let Arguments(mut arguments) = match &self.file {
            None => Arguments(Vec::new()),
            Some(file) => file.arguments(model, &self.known, &self.command, self.given)?,
        };
        arguments.insert(0, self.command.get_name().into());
        arguments.extend_from_slice(self.typed);
        let parsed = self.command.clone().try_get_matches_from(arguments);
        let parsed = parsed.and_then(|matches| Ok((A::from_arg_matches(&matches)?, matches)));
        parsed.map_err(|fault| anyhow!("{}", first_paragraph(&fault)))
    }

    /// The models that have a table in the file, each with its options.
    pub(crate) fn tables<A: FromArgMatches>(&self) -> Result<Vec<(&str, A)>> {
        let Some(file) = &self.file else {
            return Ok(Vec::new());
        };
        let mut tables = Vec::new();
        for name in file.model_names() {
            let (args, _) = self
                .parse(Some(name))
                .with_context(|| format!("model {name}"))?;
            tables.push((name, args));
        }
        let is_named = is_typed(self.given, "model") || file.has_at_top("model");
        ensure!(
            tables.is_empty() || !is_named,
            "the file's tables name the models; --model cannot add another"
        );
        Ok(tables)
    }
}

/// What is wrong, without usage and tips.
fn first_paragraph(fault: &clap::Error) -> String {
    let text = fault.to_string();
    text.split("\n\n")
        .next()
        .unwrap_or_default()
        .trim()
        .trim_start_matches("error: ")
        .to_owned()
}

/// Whether an option was typed, not set by a variable or by default.
pub(crate) fn is_typed(given: &ArgMatches, id: &str) -> bool {
    given.value_source(id) == Some(ValueSource::CommandLine)
}

/// The models: those of the file's tables, else those that are named, else the built-in one.
pub(crate) fn models(
    tables: Vec<(&str, ServedArgs)>,
    named: &[PathBuf],
    args: &ServedArgs,
) -> Result<Vec<Served>> {
    let served: Vec<_> = match (tables.is_empty(), named) {
        (false, _) => tables
            .into_iter()
            .map(|(name, args)| Served::new(Some(name), args))
            .collect(),
        (true, [] | [_]) => {
            let model = named
                .first()
                .map_or_else(|| args.model.clone(), |model| args.model.instead(model));
            vec![Served::new(
                None,
                ServedArgs {
                    model,
                    ..args.clone()
                },
            )]
        }
        (true, several) => {
            let has_names = !args.served_model_name.is_empty();
            ensure!(
                !has_names,
                "--served-model-name names one model; a file for --config can name several"
            );
            several
                .iter()
                .map(|model| {
                    Served::new(
                        None,
                        ServedArgs {
                            model: args.model.instead(model),
                            ..args.clone()
                        },
                    )
                })
                .collect()
        }
    };
    let mut seen = BTreeSet::new();
    let names = served.iter().flat_map(|model| &model.names);
    for name in names {
        ensure!(seen.insert(name), "two models have the name {name}");
    }
    Ok(served)
}

/// The models that were named: by arguments, or by --model.
pub(crate) fn named(first: &[PathBuf], given: &ArgMatches) -> Result<Vec<PathBuf>> {
    let by_option: Vec<PathBuf> = given
        .get_many("model")
        .into_iter()
        .flatten()
        .cloned()
        .collect();
    let Some(one) = first.first() else {
        return Ok(by_option);
    };
    ensure!(
        !is_typed(given, "model"),
        "the model is named twice: as `{}` and by --model",
        one.display()
    );
    Ok(first.to_vec())
}
