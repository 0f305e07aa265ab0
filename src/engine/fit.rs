//! Will it fit? Computes how much device memory an engine needs before anything is loaded.
//!
//! [`Fit`] is the only copy of this arithmetic: [`Engine::start`](super::Engine::start) allocates what it says. The
//! sizes of buffers come from [`layout`](crate::backend::layout), from which the devices take them too. [`FitReport`]
//! adds which other settings would fit better, as text; `folio plan` and a refused start print the same text.
//! [`SharedMemory`] divides a device among several models.

mod several;

pub use several::{Neighbour, Share, SharedMemory};

use super::draft_plan::DraftPlan;
use super::sizes;
use super::source::Source;
use super::states;
use super::tower_plan::TowerPlan;
use crate::backend::layout::{Excess, Layout, PoolLayout};
use crate::backend::{Capacity, Caps};
use crate::config::Config;
use crate::model::Quantization;
use crate::plan::{KvFormat, Plan};
use std::fmt;

/// The shortest context: a prompt token and an answer token.
const MODEL_LEN_MIN: u32 = 2;
/// How many times the pool size is doubled to find one that holds the whole context.
const POOL_DOUBLINGS_MAX: u32 = 4;

/// The plans of models that run beside a model, on the same device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Beside<'a> {
    /// A draft model.
    pub draft: Option<&'a DraftPlan>,
    /// A tower.
    pub tower: Option<&'a TowerPlan>,
}

impl Beside<'_> {
    /// The buffers of a model, and of those beside it.
    fn layouts(&self, model: &Plan, capacity: &Capacity, caps: &Caps) -> Vec<Layout> {
        let draft = self
            .draft
            .map(|draft| Layout::new(&draft.plan, capacity, caps));
        let tower = self
            .tower
            .map(|tower| Layout::new(&tower.plan, &tower.capacity, caps));
        let own = Layout::new(model, capacity, caps);
        [Some(own), draft, tower].into_iter().flatten().collect()
    }
}

/// What fits on a device: one model with one set of settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// Bytes of the weights, in the device's format.
    pub weight_bytes: u64,
    /// Bytes of the row buffers between steps and of everything else that a step needs.
    pub activation_bytes: u64,
    /// Bytes of the states of all sequences that may run at once and of snapshots; 0 if the model keeps none.
    pub state_bytes: u64,
    /// Bytes of the KV pool.
    pub kv_bytes: u64,
    /// Bytes of the machine's memory for KV blocks that leave the pool; 0 for none.
    pub host_bytes: u64,
    /// Whether they are part of the budget, because the device's memory is the machine's.
    pub host_is_shared: bool,
    /// Bytes of the smallest KV pool that holds one sequence of the requested context.
    pub kv_full_bytes: u64,
    /// Bytes of the smallest KV pool that works at all.
    pub kv_least_bytes: u64,
    /// Bytes of K and V per additional token, while no attention window has been exceeded.
    pub kv_token_bytes: u64,
    /// Blocks of each KV group.
    pub blocks: Vec<u32>,
    /// Tokens per block.
    pub block_size: u32,
    /// Element type of the KV pool.
    pub kv_format: KvFormat,
    /// Device memory in bytes, as the device reports it; for a given pool on a device that shares the machine's memory,
    /// what the machine has available.
    pub memory_bytes: Option<u64>,
    /// Where that size comes from, for display; empty if there is nothing to say.
    pub memory_source: &'static str,
    /// Bytes that weights, activations and pool may use together; `None` if unknown.
    pub budget_bytes: Option<u64>,
    /// Whether the user set the pool size.
    pub pool_is_given: bool,
    /// Capacity that the device is loaded with. A step may have fewer tokens than configured, so that its buffers fit
    /// one binding.
    pub capacity: Capacity,
    /// A device limit that the plan exceeds, independent of the memory size.
    pub excess: Option<Excess>,
    /// Requested context length in tokens: the configured one, or the model's own.
    pub model_len_requested: u32,
    /// Longest sequence that the pool holds, at most the requested context; 0 if there is no room for any.
    pub max_model_len: u32,
    /// Number of sequences of that length that the pool holds at once, at most `max_num_seqs`.
    pub sequences: u32,
    /// Bytes read per generated token of a sequence that runs alone: all weights, plus K and V of half its context and
    /// its state.
    pub token_bytes: u64,
}

impl Fit {
    /// Computes what fits on a device with these capabilities, with other models beside it.
    pub fn new(config: &Config, model: &Plan, beside: Beside<'_>, caps: &Caps) -> Self {
        let config = &states::adapted(config, model);
        let joined = beside.draft.map(|draft| draft.joined(model));
        let plan = joined.as_ref().unwrap_or(model);
        let capacity = sizes::capacity(config, plan, caps);
        let layouts = beside.layouts(model, &capacity, caps);
        let excess = layouts.iter().find_map(|layout| layout.excess.clone());
        let excess = excess.or_else(|| least_pool_excess(plan, &capacity, caps));
        let requested = sizes::model_len_requested(config, plan);
        let (memory_bytes, memory_source) = sizes::memory(config, caps).unzip();
        let mut fit = Self {
            weight_bytes: layouts.iter().map(Layout::weight_bytes).sum(),
            activation_bytes: layouts.iter().map(Layout::work_bytes).sum(),
            state_bytes: layouts.iter().map(Layout::state_bytes).sum(),
            kv_bytes: 0,
            host_bytes: sizes::host_bytes(config),
            host_is_shared: caps.kind.shares_memory(),
            kv_full_bytes: sizes::kv_bytes_min(config, plan, requested),
            kv_least_bytes: sizes::kv_bytes_min(config, plan, MODEL_LEN_MIN),
            kv_token_bytes: plan.token_kv_bytes(1, config.kv_format),
            blocks: Vec::new(),
            block_size: config.block_size,
            kv_format: config.kv_format,
            memory_bytes,
            memory_source: memory_source.unwrap_or(""),
            budget_bytes: sizes::budget_bytes(config, caps),
            pool_is_given: config.kv_cache_bytes.is_some(),
            excess,
            capacity,
            model_len_requested: requested,
            max_model_len: 0,
            sequences: 0,
            token_bytes: 0,
        };
        fit.give_pool(config, plan, caps);
        fit.token_bytes = model.token_weight_bytes()
            + model.token_kv_bytes(fit.max_model_len / 2, config.kv_format)
            + model.state_bytes();
        fit
    }

    /// Computes the pool that the rest leaves room for, and the sequences that it holds.
    fn give_pool(&mut self, config: &Config, plan: &Plan, caps: &Caps) {
        self.blocks = sizes::pool_blocks(config, plan, caps, &self.capacity, self.fixed_bytes());
        self.kv_bytes = sizes::kv_bytes(config, plan, &self.blocks);
        self.max_model_len = self.model_len_held(plan);
        if self.max_model_len > 0 {
            self.sequences = sizes::sequences_held(config, plan, &self.blocks, self.max_model_len);
        }
    }

    /// The longest sequence that the pool holds; 0 if there is no room for any, or not even for the pool.
    fn model_len_held(&self, plan: &Plan) -> u32 {
        let exceeds = self
            .budget_bytes
            .is_some_and(|budget| self.total_bytes() > budget);
        if self.excess.is_some() || exceeds {
            return 0;
        }
        let mut requested = self.model_len_requested;
        if plan.computes_whole_sequences() {
            requested = requested.min(self.capacity.tokens_max);
        }
        match sizes::model_len_held(requested, self.block_size, plan, &self.blocks) {
            held if held >= MODEL_LEN_MIN => held,
            _ => 0,
        }
    }

    /// Whether an engine can start.
    pub fn fits(&self) -> bool {
        self.max_model_len >= MODEL_LEN_MIN
    }

    /// Whether the pool holds a sequence of the requested context.
    pub fn is_full(&self) -> bool {
        self.fits() && self.max_model_len == self.model_len_requested
    }

    /// Bytes of weights, activations, states and pool together, and of the tier in host memory where it is the same
    /// memory.
    pub fn total_bytes(&self) -> u64 {
        self.fixed_bytes() + self.kv_bytes
    }

    /// Bytes of all that except the pool.
    pub fn fixed_bytes(&self) -> u64 {
        self.weight_bytes + self.work_bytes() + self.shared_host_bytes()
    }

    /// Bytes of the tier in host memory that are part of the budget.
    fn shared_host_bytes(&self) -> u64 {
        if self.host_is_shared {
            self.host_bytes
        } else {
            0
        }
    }

    /// Upper bound of tokens per second for a sequence that runs alone, given the device's read bandwidth.
    pub fn tokens_per_s(&self, read_bytes_per_s: f64) -> f64 {
        read_bytes_per_s / self.token_bytes.max(1) as f64
    }

    /// Context length and number of sequences, as text.
    pub fn room(&self) -> String {
        let plural = if self.sequences == 1 { "" } else { "s" };
        format!(
            "context {} × {} sequence{plural}",
            self.max_model_len, self.sequences
        )
    }

    /// Bytes of the largest pool that could be given beside weights and activations; 0 if unknown.
    fn pool_left(&self) -> u64 {
        match self.budget_bytes {
            Some(budget) if self.pool_is_given => budget.saturating_sub(self.fixed_bytes()),
            _ => 0,
        }
    }

    /// Bytes of activations and states together.
    fn work_bytes(&self) -> u64 {
        self.activation_bytes + self.state_bytes
    }

    fn budget_in_words(&self) -> Option<String> {
        let (budget, memory) = (self.budget_bytes?, self.memory_bytes?);
        let share = (100.0 * budget as f64 / memory.max(1) as f64).round();
        let of = (budget != memory).then(|| format!("{share} % of {}", Bytes(memory)));
        let source = Some(self.memory_source.to_owned()).filter(|source| !source.is_empty());
        let details: Vec<_> = of.into_iter().chain(source).collect();
        let details = if details.is_empty() {
            String::new()
        } else {
            format!(" ({})", details.join(", "))
        };
        Some(format!("{}{details}", Bytes(budget)))
    }

    /// Why the engine cannot start.
    fn obstacle(&self) -> String {
        let (weights, activations) = (Bytes(self.weight_bytes), Bytes(self.work_bytes()));
        let (pool, least) = (Bytes(self.kv_bytes), Bytes(self.kv_least_bytes));
        if let Some(excess) = &self.excess {
            return excess.to_string();
        }
        let host = match self.shared_host_bytes() {
            0 => String::new(),
            bytes => format!(", --kv-host-bytes ({})", Bytes(bytes)),
        };
        match self.budget_in_words() {
            Some(budget) if self.pool_is_given && self.kv_bytes >= self.kv_least_bytes => format!(
                "weights ({weights}), activations ({activations}){host} and KV pool ({pool}) do not fit in {budget}"
            ),
            Some(budget) if !self.pool_is_given && host.is_empty() => {
                format!(
                    "weights ({weights}) and activations ({activations}) leave no room for a KV pool in {budget}"
                )
            }
            Some(budget) if !self.pool_is_given => format!(
                "weights ({weights}), activations ({activations}){host} leave no room for a KV pool in {budget}"
            ),
            _ => format!(
                "a KV pool of {pool} is too small for any sequence; the smallest that works is {least}"
            ),
        }
    }
}

/// A device limit that even the smallest pool exceeds.
fn least_pool_excess(plan: &Plan, capacity: &Capacity, caps: &Caps) -> Option<Excess> {
    PoolLayout::new(plan, capacity, caps, &sizes::blocks_least(plan)).excess
}

/// One line, printed when an engine starts.
impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [weights, activations, pool] =
            [self.weight_bytes, self.activation_bytes, self.kv_bytes].map(Bytes);
        write!(f, "weights {weights}, activations {activations}, ")?;
        if self.state_bytes > 0 {
            write!(f, "states {}, ", Bytes(self.state_bytes))?;
        }
        let host = Some(Bytes(self.host_bytes)).filter(|bytes| bytes.0 > 0);
        if let Some(host) = host
            && self.host_is_shared
        {
            write!(f, "KV in host memory {host}, ")?;
        }
        write!(f, "KV pool {pool}")?;
        if let Some(budget) = self.budget_in_words() {
            write!(f, " of {budget}")?;
        }
        if let Some(host) = host
            && !self.host_is_shared
        {
            write!(f, ", and {host} of host memory")?;
        }
        write!(f, ": {}", self.room())
    }
}

/// Settings to change; `None` keeps a setting.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Change {
    /// Quantize the weights on load.
    pub quantization: Option<Quantization>,
    /// Store keys and values in fewer bytes.
    pub kv_format: Option<KvFormat>,
    /// Size of the KV pool in bytes.
    pub kv_cache_bytes: Option<u64>,
}

/// Prints the change as command-line options.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = [
            self.quantization
                .map(|quantization| format!("--quantization {quantization}")),
            self.kv_format
                .map(|format| format!("--kv-cache-dtype {format}")),
            self.kv_cache_bytes
                .map(|bytes| format!("--kv-cache-bytes {}MiB", bytes >> 20)),
        ];
        f.pad(&options.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }
}

/// What fits with the requested settings, and which other settings would fit more.
#[derive(Clone, Debug, PartialEq)]
pub struct FitReport {
    /// The fit with the requested settings.
    pub requested: Fit,
    /// Fits with other settings, if the whole context does not fit; the smallest change first.
    pub alternatives: Vec<(Change, Fit)>,
}

impl FitReport {
    /// Computes the fit and, if it is below the whole context, the alternatives. `plan` is the plan that `source`
    /// recorded.
    pub fn new(
        source: &impl Source,
        plan: &Plan,
        beside: Beside<'_>,
        config: &Config,
        caps: &Caps,
    ) -> Self {
        let wanted = Wanted {
            beside,
            config,
            caps,
        };
        let requested = wanted.fit(plan);
        let mut alternatives = Vec::new();
        if requested.is_full() || requested.excess.is_some() {
            return Self {
                requested,
                alternatives,
            };
        }
        alternatives.extend(wanted.narrower_kv(&requested, Change::default(), plan));
        if requested.pool_is_given || requested.budget_bytes.is_none() {
            alternatives.extend(wanted.larger_pool(requested.kv_full_bytes, plan));
        }
        if requested.budget_bytes.is_some() {
            for quantization in [Quantization::Q8, Quantization::Q4] {
                let Some(smaller) = source.record_quantized(caps.activations, quantization) else {
                    continue;
                };
                let fit = wanted.fit(&smaller);
                if fit.weight_bytes < requested.weight_bytes {
                    let change = Change {
                        quantization: Some(quantization),
                        ..Change::default()
                    };
                    let narrower = wanted.narrower_kv(&fit, change, &smaller);
                    alternatives.push((change, fit));
                    alternatives.extend(narrower);
                }
            }
        }
        Self {
            requested,
            alternatives,
        }
    }

    /// The smallest change with which the whole context fits, else the change with the longest context; `None` if no
    /// change improves on the requested settings.
    pub fn advice(&self) -> Option<&(Change, Fit)> {
        let whole = self.alternatives.iter().find(|(_, fit)| fit.is_full());
        // `max_by_key` returns the last of equal elements, hence `rev`: the smallest change comes first.
        whole
            .or_else(|| {
                self.alternatives
                    .iter()
                    .rev()
                    .max_by_key(|(_, fit)| fit.max_model_len)
            })
            .filter(|(_, fit)| fit.max_model_len > self.requested.max_model_len)
    }

    /// Device memory in bytes needed for the smallest alternative and the shortest sequence.
    fn memory_least_bytes(&self) -> u64 {
        let forms = self
            .alternatives
            .iter()
            .map(|(_, fit)| fit)
            .chain([&self.requested]);
        let least = forms
            .map(|fit| fit.fixed_bytes() + fit.kv_least_bytes)
            .min()
            .unwrap_or(0);
        let share = match (self.requested.budget_bytes, self.requested.memory_bytes) {
            (Some(budget), Some(memory)) if budget > 0 => memory as f64 / budget as f64,
            _ => 1.0,
        };
        (least as f64 * share).ceil() as u64
    }
}

/// The requested settings, for other forms of the model.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    beside: Beside<'a>,
    config: &'a Config,
    caps: &'a Caps,
}

impl Wanted<'_> {
    fn fit(&self, plan: &Plan) -> Fit {
        Fit::new(self.config, plan, self.beside, self.caps)
    }

    /// `change` plus 8-bit keys and values, if the whole context does not fit and this allows a longer one.
    fn narrower_kv(&self, fit: &Fit, change: Change, plan: &Plan) -> Option<(Change, Fit)> {
        if fit.is_full() || self.config.kv_format.is_coded() {
            return None;
        }
        let config = Config {
            kv_format: KvFormat::Q8,
            ..self.config.clone()
        };
        let narrower = Wanted {
            config: &config,
            ..*self
        }
        .fit(plan);
        let change = Change {
            kv_format: Some(KvFormat::Q8),
            ..change
        };
        (narrower.max_model_len > fit.max_model_len).then_some((change, narrower))
    }

    /// A pool that holds the whole context. Window groups and full-attention groups divide the pool by separate rules,
    /// so with both kinds the sum of what a sequence needs may not be enough.
    fn larger_pool(&self, kv_full_bytes: u64, plan: &Plan) -> Option<(Change, Fit)> {
        let first = kv_full_bytes.next_multiple_of(1 << 20);
        let fit = |bytes: u64| {
            let config = Config {
                kv_cache_bytes: Some(bytes),
                ..self.config.clone()
            };
            let change = Change {
                kv_cache_bytes: Some(bytes),
                ..Change::default()
            };
            (
                change,
                Wanted {
                    config: &config,
                    ..*self
                }
                .fit(plan),
            )
        };
        (0..POOL_DOUBLINGS_MAX)
            .map(|doublings| fit(first << doublings))
            .find(|(_, fit)| fit.is_full())
    }
}

/// One line: why the whole context does not fit, and what to do.
impl fmt::Display for FitReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let requested = &self.requested;
        if requested.is_full() {
            return write!(f, "{requested}");
        }
        if requested.fits() {
            let (model_len, held) = (requested.model_len_requested, requested.max_model_len);
            write!(
                f,
                "the context (max_model_len) is limited to {held} tokens instead of {model_len}, because the KV pool \
                 has no room for a longer sequence"
            )?;
        } else {
            write!(f, "{}", requested.obstacle())?;
        }
        match self.advice() {
            Some((change, fit)) if change.quantization.is_some() => {
                write!(
                    f,
                    "; with {change}: weights {}, {}",
                    Bytes(fit.weight_bytes),
                    fit.room()
                )
            }
            Some((change, fit)) => write!(f, "; with {change}: {}", fit.room()),
            None if requested.excess.is_some() => Ok(()),
            None if requested.fits() => write!(
                f,
                "; for more, use a smaller model or a device with more memory"
            ),
            None if requested.pool_left() >= requested.kv_least_bytes.max(1 << 20) => {
                write!(
                    f,
                    "; use --kv-cache-bytes {}MiB or less",
                    requested.pool_left() >> 20
                )
            }
            None if requested.shared_host_bytes() > 0 => {
                write!(f, "; use a smaller --kv-host-bytes")
            }
            None => {
                let least = Bytes(self.memory_least_bytes());
                write!(
                    f,
                    "; use a smaller model, or a device with more than {least}"
                )
            }
        }
    }
}

/// A number of bytes in human-readable form: about three digits, in powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let (mut value, mut unit) = (self.0 as f64, 0);
        while value >= 1000.0 && unit + 1 < UNITS.len() {
            (value, unit) = (value / 1024.0, unit + 1);
        }
        let digits = if unit == 0 || value >= 100.0 { 0 } else { 1 };
        f.pad(&format!("{value:.digits$} {}", UNITS[unit]))
    }
}

#[cfg(test)]
mod tests;
