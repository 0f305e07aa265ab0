//! Counters and gauges of an engine: one table, from which follow what the scheduler counts, what clients of the engine
//! read, `/metrics`, and what a page in a browser gets.

use super::request::{DraftSkip, PrefixEnd};
use crate::config::SPECULATIVE_TOKENS_MAX;

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Stat {
    /// The field or method of [`Stats`].
    pub name: &'static str,
    /// What it is, in a sentence.
    pub help: &'static str,
    /// Its name in `/metrics` without the prefix, if it is told there. That of a counter ends with `_total`.
    pub metric: Option<&'static str>,
    /// What it is at a moment.
    pub value: fn(&Stats) -> Value,
}

/// What a counter or gauge is at a moment.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A number.
    One(u64),
    /// Numbers by the values of a label.
    By(&'static str, Vec<(String, u64)>),
    /// How often values up to each bound, and above the last, have been seen; and the sum of all values.
    Histogram(&'static [f64], Vec<u64>, u64),
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::One(number)
    }
}

/// Upper bounds of the buckets of [`StepTokens`], which are vLLM's.
pub(super) const STEP_TOKENS: &[f64] = &[
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
];

/// Numbers of steps by how many token rows they had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTokens {
    steps: [u64; STEP_TOKENS.len() + 1],
    tokens: u64,
}

impl StepTokens {
    /// Counts a step with this many token rows.
    pub(crate) fn count(&mut self, tokens: usize) {
        let bucket = STEP_TOKENS.partition_point(|&bound| bound < tokens as f64);
        self.steps[bucket] += 1;
        self.tokens += tokens as u64;
    }
}

impl From<StepTokens> for Value {
    fn from(counts: StepTokens) -> Self {
        Self::Histogram(STEP_TOKENS, counts.steps.into(), counts.tokens)
    }
}

impl Value {
    fn by(
        label: &'static str,
        names: impl IntoIterator<Item = impl ToString>,
        counts: &[u64],
    ) -> Self {
        let names = names.into_iter().map(|name| name.to_string());
        Self::By(label, names.zip(counts.iter().copied()).collect())
    }
}

/// One number, or several by the values of a label.
macro_rules! value {
    ($number:expr) => {
        Value::from($number)
    };
    ($numbers:expr, $label:ident, $names:expr) => {
        Value::by(stringify!($label), $names, &$numbers)
    };
}

/// The only element, if there is one.
const fn optional(names: &[&'static str]) -> Option<&'static str> {
    match names {
        [] => None,
        [name, ..] => Some(name),
    }
}

/// Declares all counters and gauges: `/// sentence`, name, type, and if it is in `/metrics`, its name there and the
/// label of its numbers with the values of the label. The sentence is the help of the metric.
macro_rules! stats {
    (
        gauges { $($(#[doc = $gauge_help:literal])+ $gauge:ident: $gauge_type:ty $(=> $gauge_metric:literal)?;)* }
        counts {
            $($(#[doc = $count_help:literal])+ $count:ident: $count_type:ty
                $(=> $count_metric:literal $(by $count_label:ident in $count_names:expr)?)?;)*
        }
        sums {
            $($(#[doc = $sum_help:literal])+ $sum:ident($stats:ident): $sum_type:ty = $sum_value:expr
                => $sum_metric:literal $(by $sum_label:ident in $sum_names:expr)?;)*
        }
    ) => {
        /// What the scheduler has counted since the start; it only grows.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[doc = $count_help])+ pub $count: $count_type,)*
        }

        /// Counters and gauges at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Stats {
            $($(#[doc = $gauge_help])+ pub $gauge: $gauge_type,)*
            $($(#[doc = $count_help])+ pub $count: $count_type,)*
        }

        impl From<Counts> for Stats {
            fn from(counts: Counts) -> Self {
                Self { $($count: counts.$count,)* ..Self::default() }
            }
        }

        impl Stats {
            /// The table.
            pub const TABLE: &'static [Stat] = &[
                $(Stat {
                    name: stringify!($gauge),
                    help: concat!($($gauge_help),+).trim_ascii_start(),
                    metric: optional(&[$($gauge_metric)?]),
                    value: |stats| value!(stats.$gauge),
                },)*
                $(Stat {
                    name: stringify!($count),
                    help: concat!($($count_help),+).trim_ascii_start(),
                    metric: optional(&[$($count_metric)?]),
                    value: |stats| value!(stats.$count $($(, $count_label, $count_names)?)?),
                },)*
                $(Stat {
                    name: stringify!($sum),
                    help: concat!($($sum_help),+).trim_ascii_start(),
                    metric: Some($sum_metric),
                    value: |stats| value!(stats.$sum() $(, $sum_label, $sum_names)?),
                },)*
            ];

            $($(#[doc = $sum_help])+
            pub fn $sum(&self) -> $sum_type {
                let $stats = self;
                $sum_value
            })*
        }
    };
}

stats! {
    gauges {
        /// Requests that run.
        requests_running: u64 => "num_requests_running";
        /// Requests that wait.
        requests_waiting: u64 => "num_requests_waiting";
        /// KV blocks in use. Cached blocks without holders do not count.
        blocks_used: u64;
        /// Entries of all block tables: KV blocks in use, where a shared block counts once for each of its holders.
        blocks_held: u64;
        /// KV blocks of all groups.
        blocks_total: u64;
        /// Tokens stored in the KV blocks in use; divided by their slots, it shows how well the pool is filled.
        tokens_stored: u64;
        /// Bytes of KV blocks in host memory.
        host_bytes_used: u64 => "kv_host_bytes";
        /// Most bytes of KV blocks that host memory may hold.
        host_bytes_total: u64;
        /// Whether the folder of KV blocks cannot be used.
        disk_failing: u64 => "kv_disk_failing";
        /// KV blocks that can be read from disk.
        blocks_on_disk: u64 => "kv_disk_blocks";
        /// Kernels that the last step was dispatched as; 0 if the device does not count them.
        step_dispatches: u64;
        /// Recoveries from a lost device.
        recoveries: u64;
    }
    counts {
        /// Requests that left the queue for the first time, by admission or by abort.
        requests_dequeued: u64;
        /// Prompt tokens looked up in the cache.
        prefix_queries: u64 => "prefix_cache_queries_total";
        /// Prompt tokens found in the cache.
        prefix_hits: u64 => "prefix_cache_hits_total";
        /// Those of them that came from host memory.
        prefix_hits_host: u64;
        /// Those of `prefix_hits` that were read from disk.
        prefix_hits_disk: u64;
        /// Lookups in the cache, by why they ended.
        prefix_ends: [u64; PrefixEnd::ALL.len()]
            => "prefix_cache_ends_total" by cause in PrefixEnd::ALL.map(PrefixEnd::name);
        /// KV blocks moved to host memory.
        blocks_saved: u64 => "kv_blocks_saved_total";
        /// KV blocks moved back.
        blocks_restored: u64 => "kv_blocks_restored_total";
        /// Files of KV blocks written.
        files_written: u64 => "kv_files_written_total";
        /// Files of KV blocks read.
        files_read: u64 => "kv_files_read_total";
        /// Files that were damaged or of somebody else.
        files_refused: u64 => "kv_files_refused_total";
        /// Tokens of prompts.
        prompt_tokens: u64 => "prompt_tokens_total";
        /// Generated tokens.
        generation_tokens: u64 => "generation_tokens_total";
        /// Choices that ended at an end token or stop token, or that were complete for another reason.
        finished_stop: u64;
        /// Choices that reached their length limit.
        finished_length: u64;
        /// Choices whose receiver was dropped before they were complete.
        finished_abort: u64;
        /// Choices that ended with an error.
        finished_error: u64;
        /// Preemptions.
        preemptions: u64 => "num_preemptions_total";
        /// Requests that ended because of invalid numbers.
        corrupted_requests: u64 => "corrupted_requests_total";
        /// Steps of the engine.
        steps: u64 => "engine_steps_total";
        /// Tokens of a step of the engine.
        step_tokens: StepTokens => "iteration_tokens_total";
        /// Steps of a sequence that verified drafts.
        drafts: u64 => "spec_decode_num_drafts_total";
        /// Drafts.
        draft_tokens: u64 => "spec_decode_num_draft_tokens_total";
        /// Draws of a sequence without drafts, by why there were none.
        draft_skips: [u64; DraftSkip::ALL.len()]
            => "spec_decode_num_skips_total" by reason in DraftSkip::ALL.map(|(_, name)| name);
        /// Drafts that were right, by their place in a step.
        accepted_at: [u64; SPECULATIVE_TOKENS_MAX as usize]
            => "spec_decode_num_accepted_tokens_per_pos_total" by position in 0..SPECULATIVE_TOKENS_MAX;
    }
    sums {
        /// Prompt tokens found in the cache.
        prompt_tokens_cached(stats): u64 = stats.prefix_hits => "prompt_tokens_cached_total";
        /// Tokens of prompts, by where they came from.
        prompt_tokens_by_source(stats): [u64; 2] = {
            [stats.prompt_tokens.saturating_sub(stats.prefix_hits), stats.prefix_hits]
        } => "prompt_tokens_by_source_total" by source in ["local_compute", "local_cache_hit"];
        /// Drafts that were right.
        accepted_tokens(stats): u64 = stats.accepted_at.iter().sum() => "spec_decode_num_accepted_tokens_total";
        /// Prompt tokens found in the cache, by where.
        prefix_hits_by_tier(stats): [u64; 3] = {
            let (host, disk) = (stats.prefix_hits_host, stats.prefix_hits_disk);
            [stats.prefix_hits - host - disk, host, disk]
        } => "prefix_cache_tier_hits_total" by tier in ["device", "host", "disk"];
    }
}
