//! Options of `vllm serve` that folio does not have: the table of what becomes of them.
//!
//! Commands of model cards and charts made for vLLM start folio with its name in their place. An option that changes
//! nothing here is accepted and said; one that asks for something that folio cannot do is refused with what to use
//! instead, unless its value turns it off. They are given as other options are: on the command line, as `FOLIO_…`
//! variables, and in the file of `--config`. Help does not list them.

use anyhow::{Result, bail};
use clap::builder::BoolishValueParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use std::ffi::OsString;

/// What an option of vLLM's takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    Nothing,
    /// Nothing; `--no-NAME` is its opposite, which is always the case here.
    Switch,
    Value,
    /// One value or several.
    Values,
}

/// What becomes of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It changes nothing here.
    Ignored,
    /// It is refused, except with one of these values.
    Refused(&'static [&'static str]),
}

/// A row of the table.
#[derive(Debug)]
pub(crate) struct Foreign {
    /// As the command line writes it, without the dashes.
    name: &'static str,
    takes: Takes,
    fate: Fate,
    /// Why nothing is lost, or what to use instead.
    reason: &'static str,
}

const fn ignored(name: &'static str, takes: Takes, reason: &'static str) -> Foreign {
    Foreign {
        name,
        takes,
        fate: Fate::Ignored,
        reason,
    }
}

const fn refused(
    name: &'static str,
    takes: Takes,
    except: &'static [&'static str],
    reason: &'static str,
) -> Foreign {
    Foreign {
        name,
        takes,
        fate: Fate::Refused(except),
        reason,
    }
}

use Takes::{Nothing, Switch, Value, Values};

const ONE_DEVICE: &str = "one process serves one device; start one for each";
const OWN_KERNELS: &str = "folio has its own kernels and plans";
const OWN_SCHEDULER: &str = "the scheduler always does what it is for";
const LOGGED: &str = "FOLIO_LOG sets what is logged";
const TEXT_ONLY: &str = "models take text only";
const ADAPTERS: &str = "--lora-modules names the adapters";
const PROXY: &str = "let a proxy in front of folio do it";
const ITS_OWN: &str = "the model's files decide it";
const POOL: &str = "--kv-cache-dtype and --kv-cache-bytes set the pool";
const ONE: &[&str] = &["1"];
const OFF: &[&str] = &["", "0", "none", "None", "null", "{}", "false"];

/// The table.
#[rustfmt::skip]
const TABLE: &[Foreign] = &[
    // The HTTP server.
    ignored("enable-auto-tool-choice", Switch, "calls are always found in answers"),
    ignored("exclude-tools-when-tool-choice-none", Switch, "tools are not shown if none may be called"),
    ignored("disable-log-requests", Switch, LOGGED),
    ignored("enable-log-requests", Switch, LOGGED),
    ignored("enable-log-outputs", Switch, LOGGED),
    ignored("enable-log-deltas", Switch, LOGGED),
    ignored("disable-log-stats", Switch, "/metrics reports them"),
    ignored("aggregate-engine-logging", Switch, LOGGED),
    ignored("disable-uvicorn-access-log", Switch, LOGGED),
    ignored("disable-access-log-for-endpoints", Value, LOGGED),
    ignored("uvicorn-log-level", Value, LOGGED),
    ignored("log-config-file", Value, LOGGED),
    ignored("log-error-stack", Switch, LOGGED),
    ignored("max-log-len", Value, "prompts are not logged"),
    ignored("enable-request-id-headers", Switch, "answers always have `x-request-id`"),
    ignored("enable-server-load-tracking", Switch, "/load reports it in any case"),
    ignored("enable-prompt-tokens-details", Switch, "usage always has them"),
    ignored("enable-per-request-metrics", Switch, "/metrics reports times; traces report them by request"),
    ignored("enable-tokenizer-info-endpoint", Switch, "/tokenizer_info is there"),
    ignored("disable-fastapi-docs", Switch, "only /openapi.json describes the API"),
    ignored("enable-offline-docs", Switch, "only /openapi.json describes the API"),
    ignored("disable-frontend-multiprocessing", Switch, "there is one process"),
    ignored("api-server-count", Value, "one process reads all requests"),
    ignored("h11-max-incomplete-event-size", Value, "heads of requests have a limit of their own"),
    ignored("h11-max-header-count", Value, "heads of requests have a limit of their own"),
    ignored("chat-template-content-format", Value, "the template shows which form it reads"),
    ignored("allow-credentials", Switch, "keys come in a header, not in cookies"),
    ignored("allowed-methods", Value, "pages of --allowed-origins may use all methods that there are"),
    ignored("allowed-headers", Value, "pages of --allowed-origins may send all headers"),
    ignored("show-hidden-metrics-for-version", Value, "no metric is hidden"),
    ignored("kv-cache-metrics", Switch, "/metrics has them"),
    ignored("cudagraph-metrics", Switch, OWN_KERNELS),
    ignored("collect-detailed-traces", Value, "traces have all that is measured"),
    refused("trust-request-chat-template", Switch, OFF, "set a template with --chat-template"),
    refused("response-role", Value, &["assistant"], "answers have the role `assistant`"),
    refused("ssl-keyfile", Value, OFF, PROXY),
    refused("ssl-certfile", Value, OFF, PROXY),
    refused("ssl-ca-certs", Value, OFF, PROXY),
    refused("ssl-cert-reqs", Value, OFF, PROXY),
    refused("ssl-ciphers", Value, OFF, PROXY),
    refused("enable-ssl-refresh", Switch, OFF, PROXY),
    refused("middleware", Value, OFF, PROXY),
    refused("tool-parser-plugin", Value, OFF, "--tool-call-parser names a format that folio knows"),
    refused("reasoning-parser-plugin", Value, OFF, "--reasoning-parser names a format that folio knows"),
    refused("tool-server", Value, OFF, "tools run where the client runs"),
    refused("headless", Switch, OFF, ONE_DEVICE),
    refused("tokens-only", Switch, OFF, "requests may send token ids, and `return_token_ids` returns them"),
    // The model.
    ignored("trust-remote-code", Switch, "no code of a model is run"),
    ignored("runner", Value, "every model generates and embeds"),
    ignored("task", Value, "every model generates and embeds"),
    ignored("convert", Value, "every model generates and embeds"),
    ignored("enforce-eager", Switch, "there are no CUDA graphs to disable"),
    ignored("model-impl", Value, OWN_KERNELS),
    ignored("load-format", Value, "the model's files show their format"),
    ignored("config-format", Value, "the model's files show their format"),
    ignored("tokenizer-mode", Value, "the model's files show their tokenizer"),
    ignored("safetensors-load-strategy", Value, "--mmap maps files"),
    ignored("max-parallel-loading-workers", Value, "files are read as fast as they can be"),
    ignored("pt-load-map-location", Value, "weights go to the device directly"),
    ignored("use-tqdm-on-load", Switch, "progress is shown on a terminal"),
    ignored("ignore-patterns", Values, "only files that are needed are downloaded"),
    ignored("allowed-local-media-path", Value, TEXT_ONLY),
    ignored("allowed-media-domains", Values, TEXT_ONLY),
    ignored("enable-sleep-mode", Switch, "--idle-unload frees the memory of models that nobody uses"),
    ignored("override-attention-dtype", Value, OWN_KERNELS),
    ignored("renderer-num-workers", Value, "prompts are rendered beside the engine"),
    refused("tokenizer", Value, OFF, "a model is served with the tokenizer among its files"),
    refused("revision", Value, &["main"], "name it with the model: NAME@REVISION"),
    refused("code-revision", Value, &["main"], "no code of a model is run"),
    refused("tokenizer-revision", Value, &["main"], "name it with the model: NAME@REVISION"),
    refused("download-dir", Value, OFF, "HF_HUB_CACHE sets the folder of downloads"),
    refused("hf-token", Value, OFF, "HF_TOKEN has the token"),
    refused("hf-config-path", Value, OFF, "put the config.json among the model's files"),
    refused("hf-overrides", Value, OFF, "change the model's config.json"),
    refused("skip-tokenizer-init", Switch, OFF, "requests may send token ids in any case"),
    refused("enable-prompt-embeds", Switch, OFF, "send the prompt as text or token ids"),
    refused("logits-processors", Values, OFF, "use `logit_bias`, `bad_words` or a grammar in requests"),
    refused("logprobs-mode", Value, &["raw_logprobs"], "logprobs are those of the model, before sampling"),
    refused("max-logprobs", Value, &["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14",
        "15", "16", "17", "18", "19", "20"], "at most 20 alternatives are reported"),
    refused("disable-sliding-window", Switch, OFF, ITS_OWN),
    refused("pooler-config", Value, OFF, "`pooling` and `normalize` of /v1/embeddings say it"),
    refused("override-pooler-config", Value, OFF, "`pooling` and `normalize` of /v1/embeddings say it"),
    refused("io-processor-plugin", Value, OFF, "there are no plugins"),
    refused("model-loader-extra-config", Value, OFF, ITS_OWN),
    // Devices.
    refused("tensor-parallel-size", Value, ONE, ONE_DEVICE),
    refused("pipeline-parallel-size", Value, ONE, ONE_DEVICE),
    refused("data-parallel-size", Value, ONE, ONE_DEVICE),
    refused("data-parallel-size-local", Value, ONE, ONE_DEVICE),
    refused("data-parallel-rank", Value, &["0"], ONE_DEVICE),
    refused("data-parallel-start-rank", Value, &["0"], ONE_DEVICE),
    refused("data-parallel-address", Value, OFF, ONE_DEVICE),
    refused("data-parallel-rpc-port", Value, OFF, ONE_DEVICE),
    refused("data-parallel-hybrid-lb", Switch, OFF, ONE_DEVICE),
    refused("data-parallel-external-lb", Switch, OFF, ONE_DEVICE),
    refused("decode-context-parallel-size", Value, ONE, ONE_DEVICE),
    refused("prefill-context-parallel-size", Value, ONE, ONE_DEVICE),
    refused("nnodes", Value, ONE, ONE_DEVICE),
    refused("node-rank", Value, &["0"], ONE_DEVICE),
    ignored("data-parallel-backend", Value, ONE_DEVICE),
    ignored("distributed-executor-backend", Value, ONE_DEVICE),
    ignored("master-addr", Value, ONE_DEVICE),
    ignored("master-port", Value, ONE_DEVICE),
    ignored("enable-expert-parallel", Switch, ONE_DEVICE),
    ignored("expert-placement-strategy", Value, ONE_DEVICE),
    ignored("all2all-backend", Value, ONE_DEVICE),
    ignored("enable-dbo", Switch, ONE_DEVICE),
    ignored("enable-eplb", Switch, ONE_DEVICE),
    ignored("eplb-config", Value, ONE_DEVICE),
    ignored("disable-custom-all-reduce", Switch, ONE_DEVICE),
    ignored("ray-workers-use-nsight", Switch, ONE_DEVICE),
    ignored("mm-encoder-tp-mode", Value, ONE_DEVICE),
    refused("worker-cls", Value, &["auto"], OWN_KERNELS),
    refused("worker-extension-cls", Value, OFF, OWN_KERNELS),
    // The engine.
    ignored("enable-prefix-caching", Nothing, "prefixes are shared, unless --no-prefix-caching is given"),
    ignored("prefix-caching-hash-algo", Value, "blocks are found by BLAKE3"),
    ignored("enable-chunked-prefill", Switch, OWN_SCHEDULER),
    ignored("async-scheduling", Switch, "steps are submitted ahead, unless --no-look-ahead is given"),
    ignored("scheduling-policy", Value, "requests run by their `priority`, then in the order in which they come"),
    ignored("stream-interval", Value, "a chunk has the tokens that are ready when the client reads"),
    ignored("max-num-partial-prefills", Value, OWN_SCHEDULER),
    ignored("max-long-partial-prefills", Value, OWN_SCHEDULER),
    ignored("long-prefill-token-threshold", Value, OWN_SCHEDULER),
    ignored("num-lookahead-slots", Value, OWN_SCHEDULER),
    ignored("num-scheduler-steps", Value, OWN_SCHEDULER),
    ignored("scheduler-delay-factor", Value, OWN_SCHEDULER),
    ignored("preemption-mode", Value, OWN_SCHEDULER),
    ignored("use-v2-block-manager", Switch, OWN_SCHEDULER),
    ignored("disable-hybrid-kv-cache-manager", Switch, OWN_SCHEDULER),
    ignored("disable-chunked-mm-input", Switch, TEXT_ONLY),
    ignored("max-seq-len-to-capture", Value, OWN_KERNELS),
    ignored("cuda-graph-sizes", Values, OWN_KERNELS),
    ignored("cudagraph-capture-sizes", Values, OWN_KERNELS),
    ignored("max-cudagraph-capture-size", Value, OWN_KERNELS),
    ignored("compilation-config", Value, OWN_KERNELS),
    ignored("optimization-level", Value, OWN_KERNELS),
    ignored("performance-mode", Value, OWN_KERNELS),
    ignored("attention-backend", Value, OWN_KERNELS),
    ignored("attention-config", Value, OWN_KERNELS),
    ignored("moe-backend", Value, OWN_KERNELS),
    ignored("disable-cascade-attn", Switch, OWN_KERNELS),
    ignored("kv-sharing-fast-prefill", Switch, OWN_KERNELS),
    ignored("kv-offloading-backend", Value, "--kv-host-bytes and --kv-disk keep blocks"),
    ignored("mamba-cache-dtype", Value, POOL),
    ignored("mamba-ssm-cache-dtype", Value, POOL),
    ignored("mamba-block-size", Value, POOL),
    ignored("mamba-cache-mode", Value, POOL),
    ignored("calculate-kv-scales", Switch, POOL),
    ignored("guided-decoding-backend", Value, "there is one implementation of grammars"),
    ignored("guided-decoding-disable-fallback", Switch, "there is one implementation of grammars"),
    ignored("structured-outputs-config", Value, "there is one implementation of grammars"),
    ignored("language-model-only", Switch, TEXT_ONLY),
    ignored("mm-processor-kwargs", Value, TEXT_ONLY),
    ignored("media-io-kwargs", Value, TEXT_ONLY),
    ignored("mm-processor-cache-gb", Value, TEXT_ONLY),
    ignored("disable-mm-preprocessor-cache", Switch, TEXT_ONLY),
    ignored("interleave-mm-strings", Switch, TEXT_ONLY),
    ignored("skip-mm-profiling", Switch, TEXT_ONLY),
    ignored("video-pruning-rate", Value, TEXT_ONLY),
    ignored("enable-lora", Switch, ADAPTERS),
    ignored("lora-extra-vocab-size", Value, ADAPTERS),
    ignored("fully-sharded-loras", Switch, ADAPTERS),
    ignored("enable-layerwise-nvtx-tracing", Switch, OWN_KERNELS),
    ignored("enable-mfu-metrics", Switch, OWN_KERNELS),
    ignored("additional-config", Value, OWN_KERNELS),
    refused("default-mm-loras", Value, OFF, TEXT_ONLY),
    refused("enable-mm-embeds", Switch, OFF, TEXT_ONLY),
    refused("cpu-offload-gb", Value, OFF, "a smaller --quantization makes weights fit the device"),
    refused("num-gpu-blocks-override", Value, OFF, "--kv-cache-bytes sets the size of the pool"),
    refused("scheduler-cls", Value, OFF, OWN_SCHEDULER),
    refused("kv-transfer-config", Value, OFF, "one server computes a prompt and its answer"),
    refused("kv-events-config", Value, OFF, "/metrics counts blocks"),
    refused("ec-transfer-config", Value, OFF, "one server computes a prompt and its answer"),
];

/// Short forms of vLLM's that have two letters.
const SHORT: [(&str, &str); 7] = [
    ("-tp", "--tensor-parallel-size"),
    ("-pp", "--pipeline-parallel-size"),
    ("-dp", "--data-parallel-size"),
    ("-dcp", "--decode-context-parallel-size"),
    ("-dpn", "--data-parallel-rank"),
    ("-ep", "--enable-expert-parallel"),
    ("-asc", "--api-server-count"),
];

/// Arguments with the long names of vLLM's short options.
pub(crate) fn with_long_names(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let long = |argument: OsString| {
        let known = argument.to_str().and_then(|text| {
            let (name, value) = text
                .split_once('=')
                .map_or((text, None), |(name, value)| (name, Some(value)));
            let (_, long) = SHORT.iter().find(|(short, _)| *short == name)?;
            Some(value.map_or_else(|| (*long).into(), |value| format!("{long}={value}").into()))
        });
        known.unwrap_or(argument)
    };
    arguments.map(long).collect()
}

/// The options of the table that were given, with their values.
#[derive(Clone, Debug, Default)]
pub(crate) struct ForeignArgs(Vec<(&'static Foreign, Option<String>)>);

impl ForeignArgs {
    /// What is to be said about options that change nothing here.
    ///
    /// # Errors
    /// One that asks for something that folio cannot do, by its name.
    pub(crate) fn check(&self) -> Result<Vec<String>> {
        let mut said = Vec::new();
        for (
            Foreign {
                name, fate, reason, ..
            },
            value,
        ) in &self.0
        {
            let is_harmless = match fate {
                Fate::Ignored => true,
                Fate::Refused(except) => value
                    .as_deref()
                    .is_some_and(|value| except.contains(&value)),
            };
            if !is_harmless {
                let given = value
                    .as_deref()
                    .map_or_else(String::new, |value| format!(" {value}"));
                bail!("--{name}{given} is not supported: {reason}");
            }
            if *fate == Fate::Ignored {
                said.push(format!("--{name} changes nothing here: {reason}"));
            }
        }
        Ok(said)
    }
}

impl FromArgMatches for ForeignArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = TABLE.iter().filter(|row| {
            let source = matches.value_source(row.name);
            matches!(
                source,
                Some(ValueSource::CommandLine | ValueSource::EnvVariable)
            )
        });
        let with_values = given.filter_map(|row| match row.takes {
            // A variable may say that it is off.
            Nothing | Switch => matches.get_flag(row.name).then_some((row, None)),
            Value => Some((row, matches.get_one::<String>(row.name).cloned())),
            Values => {
                let values = matches.get_many::<String>(row.name)?;
                let values: Vec<_> = values.map(String::as_str).collect();
                Some((row, Some(values.join(" "))))
            }
        });
        Ok(Self(with_values.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for ForeignArgs {
    fn augment_args(command: Command) -> Command {
        let opposites = TABLE.iter().filter(|row| row.takes == Switch).map(|row| {
            Arg::new(format!("no-{}", row.name))
                .long(format!("no-{}", row.name))
                .action(ArgAction::SetTrue)
                .hide(true)
        });
        command.args(TABLE.iter().map(arg)).args(opposites)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn arg(row: &Foreign) -> Arg {
    let variable = format!("FOLIO_{}", row.name.replace('-', "_").to_uppercase());
    let arg = Arg::new(row.name).long(row.name).env(variable).hide(true);
    match row.takes {
        Nothing | Switch => arg
            .action(ArgAction::SetTrue)
            .value_parser(BoolishValueParser::new()),
        Value => arg.value_name("VALUE").allow_hyphen_values(true),
        Values => arg
            .value_name("VALUE")
            .num_args(1..)
            .action(ArgAction::Append),
    }
}

#[cfg(test)]
mod tests;
