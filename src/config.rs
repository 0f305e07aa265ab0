//! Every limit of the system, checked once.
//!
//! [`Config`] holds what a user may set, under vLLM's names where vLLM has one. Sizes that depend on the model and the
//! device are computed from it when the engine starts.

use crate::plan::KvFormat;
use std::path::PathBuf;

/// Limits and switches of one engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Maximum tokens of prompt and answer together. `None`: the model's own context, or what the pool can hold.
    pub max_model_len: Option<u32>,
    /// Maximum sequences that run at once.
    pub max_num_seqs: u32,
    /// Maximum tokens computed per step (prefill and decode together).
    pub max_num_batched_tokens: u32,
    /// Tokens per KV block: 16, 32 or 64.
    pub block_size: u32,
    /// Share of the device's memory that weights, activations and KV pool may use, from 0 to 1.
    pub gpu_memory_utilization: f32,
    /// Size of the KV pool in bytes; overrides the share of memory.
    pub kv_cache_bytes: Option<u64>,
    /// Bytes of host memory for KV blocks that leave the pool, and come back when a prompt needs them; 0 for none.
    pub kv_host_bytes: u64,
    /// A folder for KV blocks that later requests and later processes may need; `None` for none.
    pub kv_disk: Option<DiskConfig>,
    /// Element type of the KV pool.
    pub kv_format: KvFormat,
    /// Whether requests with equal prefixes share KV blocks.
    pub prefix_caching: bool,
    /// For a model that keeps a recurrent state per sequence: how many states at the ends of prompts and answers are
    /// kept for other requests. `None`: as many as a sixteenth of the memory holds, from 4 to twice `max_num_seqs`.
    pub state_snapshots: Option<u32>,
    /// Whether a step is submitted before the tokens of the previous one are read.
    pub look_ahead: bool,
    /// Whether a request's results are bit-identical on a device, regardless of what else is in the batch or the prefix
    /// cache, and of preemptions. Only whole chunks of prompts are then shared, and what a preempted answer had is
    /// recomputed one token per step.
    pub deterministic: bool,
    /// How the next tokens are guessed, so that one step verifies several; `None`: they are not.
    pub speculation: Option<Speculation>,
    /// Maximum waiting requests; further ones are refused.
    pub queue_requests_max: u32,
    /// Seed from which the seeds of requests without one are generated; `None`: a random one from the system.
    pub seed: Option<u64>,
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

/// Maximum of [`Config::state_snapshots`].
pub const STATE_SNAPSHOTS_MAX: u32 = 65_536;
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
                option: "speculative-config",
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

impl Default for Config {
    fn default() -> Self {
        Self {
            max_model_len: None,
            max_num_seqs: 64,
            max_num_batched_tokens: 512,
            block_size: 32,
            gpu_memory_utilization: 0.9,
            kv_cache_bytes: None,
            kv_host_bytes: 0,
            kv_disk: None,
            kv_format: KvFormat::F16,
            prefix_caching: true,
            state_snapshots: None,
            look_ahead: true,
            deterministic: false,
            speculation: Some(Speculation::SINGLE_SEQUENCE),
            queue_requests_max: 256,
            seed: None,
        }
    }
}

/// A setting outside its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("--{option}: {message}")]
pub struct ConfigError {
    /// The option's name on the command line.
    pub option: &'static str,
    /// The problem, including the value.
    pub message: String,
}

impl Config {
    /// Checks every range that does not depend on model or device.
    pub fn check(&self) -> Result<(), ConfigError> {
        let fail = |option, message| Err(ConfigError { option, message });
        if ![16, 32, 64].contains(&self.block_size) {
            return fail(
                "block-size",
                format!("must be 16, 32 or 64, not {}", self.block_size),
            );
        }
        if !(1..=1024).contains(&self.max_num_seqs) {
            return fail(
                "max-num-seqs",
                format!("must be from 1 to 1024, not {}", self.max_num_seqs),
            );
        }
        let tokens_min = self.max_num_seqs + self.block_size;
        if !(tokens_min..=65_536).contains(&self.max_num_batched_tokens) {
            let given = self.max_num_batched_tokens;
            let rule =
                "max-num-seqs + block-size, so that prefill continues beside a full decode batch";
            return fail(
                "max-num-batched-tokens",
                format!("must be from {tokens_min} ({rule}) to 65536, not {given}"),
            );
        }
        if let Some(count) = self
            .state_snapshots
            .filter(|count| *count > STATE_SNAPSHOTS_MAX)
        {
            return fail(
                "state-snapshots",
                format!("must be at most {STATE_SNAPSHOTS_MAX}, not {count}"),
            );
        }
        if self.max_model_len.is_some_and(|length| length < 2) {
            return fail(
                "max-model-len",
                "must be at least 2: one prompt token and one answer token".into(),
            );
        }
        if !(self.gpu_memory_utilization > 0.0 && self.gpu_memory_utilization <= 1.0) {
            return fail(
                "gpu-memory-utilization",
                format!(
                    "must be above 0 and at most 1, not {}",
                    self.gpu_memory_utilization
                ),
            );
        }
        if let Some(speculation) = &self.speculation {
            speculation.check()?;
        }
        if !(1..=65_536).contains(&self.queue_requests_max) {
            return fail(
                "queue-requests-max",
                format!("must be from 1 to 65536, not {}", self.queue_requests_max),
            );
        }
        Ok(())
    }
}
