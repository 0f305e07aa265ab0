//! Every limit of the system, checked once.
//!
//! [`Config`] holds what a user may set, under vLLM's names where vLLM has one. Its numbers, switches and words are
//! tables, from which the command line takes names, sentences, ranges and defaults, as a browser's page and its types
//! do of numbers. Sizes that depend on the model and the device are computed from it when the engine starts.

mod settings;

pub use settings::EngineSetting;

use crate::plan::{KvFormat, WeightFormat};
use std::path::PathBuf;

/// An option of an engine that is a number: a row of the table. Everyone who tells or takes options reads it.
#[derive(Clone, Copy, Debug)]
pub struct EngineOption {
    /// The field of [`Config`]. The command line writes it `--max-num-seqs`, its variable `FOLIO_MAX_NUM_SEQS`, a page
    /// in a browser `maxNumSeqs`.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub help: &'static str,
    /// What it counts, as help writes it: `BYTES`, `TOKENS`.
    pub unit: &'static str,
    /// The smallest and the largest value.
    pub range: (u64, u64),
    /// What holds where it is absent, in words; `None` if there is always a number.
    pub absent: Option<&'static str>,
    /// Its value.
    pub get: fn(&Config) -> Option<u64>,
    set: fn(&mut Config, u64),
}

impl EngineOption {
    /// The option with this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        Config::OPTIONS.iter().find(|option| option.name == name)
    }

    fn check(&self, value: u64) -> Result<(), ConfigError> {
        let (least, most) = self.range;
        if (least..=most).contains(&value) {
            return Ok(());
        }
        let range = match (least, most) {
            (0, _) => format!("at most {most}"),
            (_, WORD_MAX) => format!("at least {least}"),
            _ => format!("from {least} to {most}"),
        };
        Err(ConfigError {
            option: self.name,
            message: format!("must be {range}, not {value}"),
        })
    }
}

/// An option of an engine that is off unless it is given: a row of its own table.
#[derive(Clone, Copy, Debug)]
pub struct EngineSwitch {
    /// The name, which the command line writes `--no-look-ahead` and its variable `FOLIO_NO_LOOK_AHEAD`.
    pub name: &'static str,
    /// What it does, in a sentence.
    pub help: &'static str,
    /// Turns it on.
    pub turn_on: fn(&mut Config),
}

/// The largest `u32`: an option without a bound of its own.
const WORD_MAX: u64 = u32::MAX as u64;

/// The value as a field of a configuration. A checked value fits.
fn narrowed<T: TryFrom<u64>>(value: u64, largest: T) -> T {
    T::try_from(value).unwrap_or(largest)
}

/// Declares [`Config`] and the table of its numbers. A row is `/// sentence`, name, type, default, range and unit; that
/// of a number that may be absent says what holds then. That of a switch says which field gets which value. Other
/// fields have no row.
macro_rules! config {
    (
        optional {
            $($(#[doc = $optional_help:literal])+
            $optional:ident: $optional_type:ty = $absent:literal,
                $optional_least:literal to $optional_most:expr, $optional_unit:literal;)*
        }
        numbers {
            $($(#[doc = $help:literal])+
            $number:ident: $number_type:ty = $default:expr, $least:literal to $most:expr, $unit:literal;)*
        }
        switches { $($(#[doc = $switch_help:literal])+ $switch:ident: $field:ident = $on:literal;)* }
        others { $($(#[$doc:meta])+ $other:ident: $other_type:ty = $other_default:expr;)* }
    ) => {
        /// Limits and switches of one engine.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $($(#[doc = $optional_help])+ pub $optional: Option<$optional_type>,)*
            $($(#[doc = $help])+ pub $number: $number_type,)*
            $($(#[$doc])+ pub $other: $other_type,)*
        }

        impl Default for Config {
            fn default() -> Self {
                Self {
                    $($optional: None,)*
                    $($number: $default,)*
                    $($other: $other_default,)*
                }
            }
        }

        impl Config {
            /// The table of its numbers.
            pub const OPTIONS: &'static [EngineOption] = &[
                $(EngineOption {
                    name: stringify!($optional),
                    help: concat!($($optional_help),+).trim_ascii_start(),
                    unit: $optional_unit,
                    range: ($optional_least, $optional_most),
                    absent: Some($absent),
                    get: |config| config.$optional.map(Into::into),
                    set: |config, value| config.$optional = Some(narrowed(value, <$optional_type>::MAX)),
                },)*
                $(EngineOption {
                    name: stringify!($number),
                    help: concat!($($help),+).trim_ascii_start(),
                    unit: $unit,
                    range: ($least, $most),
                    absent: None,
                    get: |config| Some(config.$number.into()),
                    set: |config, value| config.$number = narrowed(value, <$number_type>::MAX),
                },)*
            ];

            /// The table of its switches.
            pub const SWITCHES: &'static [EngineSwitch] = &[
                $(EngineSwitch {
                    name: stringify!($switch),
                    help: concat!($($switch_help),+).trim_ascii_start(),
                    turn_on: |config| config.$field = $on,
                },)*
            ];
        }
    };
}

config! {
    optional {
        /// Maximum tokens of a prompt and its answer together.
        max_model_len: u32 = "the model's context, or what fits the KV pool", 2 to WORD_MAX, "TOKENS";
        /// Size of the KV pool, in place of a share of the memory.
        kv_cache_bytes: u64 = "what the weights leave of the device's memory", 0 to u64::MAX, "BYTES";
        /// Number of states kept for requests with a common prefix, for models with a recurrent state.
        state_snapshots: u32 = "what a sixteenth of the memory holds, from 4 to twice the sequences", 0 to 65_536, "N";
        /// Seed for requests that have none.
        seed: u64 = "a random one", 0 to u64::MAX, "SEED";
    }
    numbers {
        /// Maximum number of sequences computed at once.
        max_num_seqs: u32 = 64, 1 to 1024, "N";
        /// Maximum tokens computed per step (prefill and decode together).
        max_num_batched_tokens: u32 = 512, 1 to 65_536, "TOKENS";
        /// Tokens per KV block: 16, 32 or 64.
        block_size: u32 = 32, 16 to 64, "TOKENS";
        /// Host memory for KV blocks that leave the pool; they return when a prompt needs them.
        kv_host_bytes: u64 = 0, 0 to u64::MAX, "BYTES";
        /// Number of LoRA adapters that may be used in one step; their matrices have room on the device.
        max_loras: u32 = 0, 0 to 1024, "N";
        /// Maximum rank of a LoRA adapter, rounded up to a multiple of 8.
        max_lora_rank: u32 = 16, 1 to 512, "N";
        /// Rows of images that are held at once, of models that read images; 0: they read text only.
        max_image_rows: u32 = 8192, 0 to 1_048_576, "N";
        /// Maximum number of waiting requests; more are refused with status 429.
        queue_requests_max: u32 = 256, 1 to 65_536, "N";
    }
    switches {
        /// Make results independent of batching, bit for bit, on one device.
        deterministic: deterministic = true;
        /// Do not share KV blocks between requests with a common prefix.
        no_prefix_caching: prefix_caching = false;
        /// Submit a step only after the tokens of the previous one are read.
        no_look_ahead: look_ahead = false;
    }
    others {
        /// Share of the device's memory that weights, activations and KV pool may use, from 0 to 1. A size of the pool
        /// overrides it.
        gpu_memory_utilization: f32 = 0.9;
        /// A folder for KV blocks that later requests and later processes may need; `None` for none.
        kv_disk: Option<DiskConfig> = None;
        /// Element type of the KV pool.
        kv_format: KvFormat = KvFormat::F16;
        /// Whether requests with equal prefixes share KV blocks.
        prefix_caching: bool = true;
        /// Whether a step is submitted before the tokens of the previous one are read.
        look_ahead: bool = true;
        /// Whether a request's results are bit-identical on a device, regardless of what else is in the batch or the
        /// prefix cache, and of preemptions. Only whole chunks of prompts are then shared, and what a preempted answer
        /// had is recomputed one token per step.
        deterministic: bool = false;
        /// Format of the matrices of LoRA adapters on the device: f32, f16 or bf16.
        lora_format: WeightFormat = WeightFormat::F16;
        /// How the next tokens are guessed, so that one step verifies several; `None`: they are not.
        speculation: Option<Speculation> = Some(Speculation::SINGLE_SEQUENCE);
    }
}

/// A folder for files of KV blocks. Several processes may use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// The folder; it is created if necessary.
    pub folder: PathBuf,
    /// Maximum bytes of its files; the least recently used ones are removed.
    pub bytes: u64,
}

/// Where drafts come from. Names are vLLM's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpeculationMethod {
    /// `ngram`: continuations of earlier occurrences of the last tokens.
    Ngram,
    /// `draft_model`: a smaller model with the same vocabulary.
    DraftModel,
    /// `mtp`: layers of the checkpoint that predict further tokens.
    Mtp,
}

/// How drafts are made. Names are vLLM's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speculation {
    /// Where drafts come from.
    pub method: SpeculationMethod,
    /// Maximum drafts per sequence and step, at most [`SPECULATIVE_TOKENS_MAX`].
    pub num_speculative_tokens: u32,
    /// Number of last tokens that must have occurred before.
    pub prompt_lookup_min: u32,
    /// Number of last tokens that are compared, at most [`PROMPT_LOOKUP_MAX`]: the longest equal run wins.
    pub prompt_lookup_max: u32,
    /// Maximum sequences that run at once while drafts are verified; `None`: any number.
    pub disable_by_batch_size: Option<u32>,
}

/// Maximum of [`Speculation::num_speculative_tokens`].
pub const SPECULATIVE_TOKENS_MAX: u32 = 32;
/// Maximum of [`Speculation::prompt_lookup_max`].
pub const PROMPT_LOOKUP_MAX: u32 = 64;

impl Speculation {
    /// Values of fields that are not set.
    pub const DEFAULT: Self = Self {
        method: SpeculationMethod::Ngram,
        num_speculative_tokens: 5,
        prompt_lookup_min: 4,
        prompt_lookup_max: 4,
        disable_by_batch_size: None,
    };

    /// N-grams for a sequence that runs alone: its steps wait for memory, so that verified drafts cost little.
    pub const SINGLE_SEQUENCE: Self = Self {
        disable_by_batch_size: Some(1),
        ..Self::DEFAULT
    };

    /// Maximum sequences that run at once while drafts are verified, of `max_num_seqs`.
    pub fn sequences_max(&self, max_num_seqs: u32) -> u32 {
        self.disable_by_batch_size
            .map_or(max_num_seqs, |most| most.min(max_num_seqs))
    }

    fn check(&self) -> Result<(), ConfigError> {
        let fail = |message| {
            Err(ConfigError {
                option: "speculative_config",
                message,
            })
        };
        let Self {
            num_speculative_tokens,
            prompt_lookup_min: min,
            prompt_lookup_max: max,
            ..
        } = *self;
        if !(1..=SPECULATIVE_TOKENS_MAX).contains(&num_speculative_tokens) {
            let range = format!("must be from 1 to {SPECULATIVE_TOKENS_MAX}");
            return fail(format!(
                "`num_speculative_tokens` {range}, not {num_speculative_tokens}"
            ));
        }
        if !(1..=PROMPT_LOOKUP_MAX).contains(&max) {
            return fail(format!(
                "`prompt_lookup_max` must be from 1 to {PROMPT_LOOKUP_MAX}, not {max}"
            ));
        }
        if !(1..=max).contains(&min) {
            return fail(format!(
                "`prompt_lookup_min` must be from 1 to `prompt_lookup_max` ({max}), not {min}"
            ));
        }
        if self.disable_by_batch_size == Some(0) {
            return fail("`disable_by_batch_size` must be at least 1, not 0".into());
        }
        Ok(())
    }
}

/// A setting outside its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("--{}: {message}", .option.replace('_', "-"))]
pub struct ConfigError {
    /// The option's name.
    pub option: &'static str,
    /// The problem, including the value.
    pub message: String,
}

impl Config {
    /// These settings with options that were given, checked. More sequences, or longer blocks, raise the tokens per
    /// step, unless those are given too.
    ///
    /// # Errors
    ///
    /// A value outside its range, by the option's name.
    pub fn with(mut self, given: &[(&EngineOption, u64)]) -> Result<Self, ConfigError> {
        for (option, value) in given {
            option.check(*value)?;
            (option.set)(&mut self, *value);
        }
        let mut names = given.iter().map(|(option, _)| option.name);
        if names.all(|name| name != "max_num_batched_tokens") {
            self.max_num_batched_tokens = self.max_num_batched_tokens.max(self.tokens_min());
        }
        self.check()?;
        Ok(self)
    }

    /// The fewest tokens per step with which prefill continues beside a full decode batch.
    fn tokens_min(&self) -> u32 {
        self.max_num_seqs.saturating_add(self.block_size)
    }

    /// Checks every range that does not depend on model or device.
    pub fn check(&self) -> Result<(), ConfigError> {
        let fail = |option, message| Err(ConfigError { option, message });
        if ![16, 32, 64].contains(&self.block_size) {
            let message = format!("must be 16, 32 or 64, not {}", self.block_size);
            return fail("block_size", message);
        }
        for option in Self::OPTIONS {
            if let Some(value) = (option.get)(self) {
                option.check(value)?;
            }
        }
        let (given, least) = (self.max_num_batched_tokens, self.tokens_min());
        if given < least {
            let rule =
                "max-num-seqs + block-size, so that prefill continues beside a full decode batch";
            let message = format!("must be from {least} ({rule}) to 65536, not {given}");
            return fail("max_num_batched_tokens", message);
        }
        let share = self.gpu_memory_utilization;
        if !(share > 0.0 && share <= 1.0) {
            let message = format!("must be above 0 and at most 1, not {share}");
            return fail("gpu_memory_utilization", message);
        }
        match &self.speculation {
            Some(speculation) => speculation.check(),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
