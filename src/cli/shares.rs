//! The memory of several models: which of them fit, how large the KV pool of each is, and whether all of them can be
//! loaded at the same time. `folio plan --config` prints it, and `folio serve` loads what it says.
//!
//! `--gpu-memory-utilization` is the share of all models of a device together. What their weights and activations leave
//! of it is shared equally by the KV pools of those that have no `--kv-cache-bytes`. If that is too little for any of
//! them, they cannot all be loaded at the same time: each then has the pool that one sequence of its whole context
//! needs, so that as many as possible can.

use super::device::Device;
use super::options::{EngineArgs, ModelArgs};
use anyhow::{Context as _, Result};
use folio::backend::Caps;
use folio::config::Config;
use folio::engine::fit::{Bytes, Fit, FitReport};
use folio::engine::request::SamplingParams;
use folio::engine::{DraftPlan, Turns};
use folio::plan::Plan;
use folio::server::ModelOutline;
use folio::text::TextModel;
use serde_json::{Value, json};
use std::sync::Arc;

/// A model and its options.
#[derive(Clone, Copy)]
pub(crate) struct Member<'a> {
    pub(crate) name: &'a str,
    pub(crate) model: &'a ModelArgs,
    pub(crate) engine: &'a EngineArgs,
}

/// The memory of one or more devices, which models share.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The devices that share it.
    key: String,
    caps: Caps,
    /// Bytes that models may take together; `None` if unknown.
    pub(crate) budget: Option<u64>,
    /// Its engines take turns.
    pub(crate) turns: Turns,
}

/// A model's part of a memory.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    pub(crate) name: String,
    /// Index of the memory.
    pub(crate) place: usize,
    /// What is loaded, with the pool that the plan gives it; an error says why it is never loaded.
    pub(crate) fit: Result<Box<Fit>, String>,
    /// Bytes of the pool that the plan gives it; `None`: the engine's own choice.
    pub(crate) kv_cache_bytes: Option<u64>,
    /// What a server tells of it before it is loaded; `None` if it never is.
    pub(crate) outline: Option<ModelOutline>,
}

/// The plan of all models.
#[derive(Clone, Debug)]
pub(crate) struct Shares {
    pub(crate) places: Vec<Place>,
    pub(crate) models: Vec<Share>,
}

/// A model that was described.
struct Described {
    place: usize,
    config: Config,
    plan: Plan,
    draft: Option<DraftPlan>,
    /// Its chat template.
    text: Arc<TextModel>,
    defaults: SamplingParams,
    /// What fits if it has the memory for itself.
    alone: FitReport,
}

impl Share {
    /// A model that is never loaded, and why.
    fn refused(name: String, place: usize, reason: String) -> Self {
        Self {
            name,
            place,
            fit: Err(reason),
            kv_cache_bytes: None,
            outline: None,
        }
    }

    /// Bytes that it takes when it is loaded.
    pub(crate) fn bytes(&self) -> u64 {
        self.fit.as_ref().map_or(0, |fit| fit.total_bytes())
    }
}

impl Shares {
    /// Describes all models, without loading any. A model that cannot be read does not concern the others.
    pub(crate) fn new(members: &[Member<'_>]) -> Result<Self> {
        let mut places = Vec::new();
        let mut described = Vec::new();
        for member in members {
            let place = place(&mut places, member)?;
            let config = member
                .engine
                .config()
                .with_context(|| member.name.to_owned())?;
            let model = Described::new(member, config, place, &places[place].caps);
            described.push(model.map_err(|error| (place, format!("{error:#}"))));
        }
        for (index, place) in places.iter_mut().enumerate() {
            let here = described
                .iter()
                .flatten()
                .filter(|model| model.place == index);
            // With options of their own, the smallest share counts.
            place.budget = here.filter_map(|model| model.budget(&place.caps)).min();
        }
        let models = members.iter().zip(&described).map(|(member, model)| {
            let name = member.name.to_owned();
            match model {
                Err((place, reason)) => Share::refused(name, *place, reason.clone()),
                Ok(model) => {
                    let beside: Vec<_> = described
                        .iter()
                        .flatten()
                        .filter(|other| other.place == model.place)
                        .collect();
                    model.share(name, &beside, &places[model.place])
                }
            }
        });
        let models = models.collect();
        Ok(Self { places, models })
    }

    /// Whether every model can be loaded.
    pub(crate) fn fits(&self) -> bool {
        self.models.iter().all(|share| share.fit.is_ok())
    }

    /// Bytes of all models of a memory.
    fn sum(&self, place: usize) -> u64 {
        self.models
            .iter()
            .filter(|share| share.place == place)
            .map(Share::bytes)
            .sum()
    }

    /// Whether all models of a memory can be loaded at the same time.
    fn is_side_by_side(&self, place: usize) -> bool {
        self.places[place]
            .budget
            .is_none_or(|budget| self.sum(place) <= budget)
    }

    /// A table with a line for each model, and a sentence for each memory.
    pub(crate) fn as_text(&self) -> String {
        let has_host = self
            .models
            .iter()
            .filter_map(|share| share.fit.as_ref().ok())
            .any(|fit| fit.host_bytes > 0);
        let columns = ["model", "weights", "activations", "KV pool"]
            .into_iter()
            .chain(has_host.then_some("host memory"));
        let heads = columns.chain(["together", "context"]).map(str::to_owned);
        let mut rows = vec![heads.collect::<Vec<_>>()];
        let mut reasons = Vec::new();
        for share in &self.models {
            match &share.fit {
                Ok(fit) => {
                    let host = has_host.then_some(fit.host_bytes);
                    let sizes = [fit.weight_bytes, fit.activation_bytes, fit.kv_bytes]
                        .into_iter()
                        .chain(host);
                    let sizes = sizes
                        .chain([fit.total_bytes()])
                        .map(|bytes| Bytes(bytes).to_string());
                    let sizes: Vec<_> = sizes.collect();
                    let room = fit.room().trim_start_matches("context ").to_owned();
                    rows.push([&[share.name.clone()][..], &sizes, &[room]].concat());
                }
                Err(reason) => {
                    rows.push(vec![share.name.clone(), "not loaded".to_owned()]);
                    reasons.push(format!("{}: {reason}", share.name));
                }
            }
        }
        let mut lines = aligned(&rows);
        lines.push(String::new());
        lines.extend((0..self.places.len()).map(|place| self.place_in_words(place)));
        lines.extend(reasons);
        lines.join("\n")
    }

    fn place_in_words(&self, index: usize) -> String {
        let Place { key, budget, .. } = &self.places[index];
        let sum = Bytes(self.sum(index));
        match budget {
            None => format!(
                "{key}: {sum} together; its memory is not known, so nothing is unloaded for want of it"
            ),
            Some(budget) if self.is_side_by_side(index) => {
                format!(
                    "{key}: {sum} together of {}; all can be loaded at the same time",
                    Bytes(*budget)
                )
            }
            Some(budget) => format!(
                "{key}: {sum} together, but {} usable; the least recently used are unloaded for others",
                Bytes(*budget)
            ),
        }
    }

    pub(crate) fn as_json(&self) -> Value {
        let models = self.models.iter().map(|share| {
            let fit = share.fit.as_ref().ok();
            json!({
                "name": share.name,
                "device": self.places[share.place].key,
                "fits": fit.is_some(),
                "reason": share.fit.as_ref().err(),
                "weight_bytes": fit.map(|fit| fit.weight_bytes),
                "activation_bytes": fit.map(|fit| fit.activation_bytes),
                "kv_bytes": fit.map(|fit| fit.kv_bytes),
                "kv_host_bytes": fit.map(|fit| fit.host_bytes),
                "bytes": fit.map(|fit| fit.total_bytes()),
                "max_model_len": fit.map(|fit| fit.max_model_len),
                "sequences": fit.map(|fit| fit.sequences),
            })
        });
        let places = self.places.iter().enumerate().map(|(index, place)| {
            json!({
                "device": place.key,
                "budget_bytes": place.budget,
                "bytes": self.sum(index),
                "side_by_side": self.is_side_by_side(index),
            })
        });
        json!({"models": models.collect::<Vec<_>>(), "devices": places.collect::<Vec<_>>()})
    }
}

/// The index of the memory of a model's device, which is opened if it is new.
fn place(places: &mut Vec<Place>, member: &Member<'_>) -> Result<usize> {
    let device = member
        .engine
        .device()
        .with_context(|| member.name.to_owned())?;
    let key = key(&device);
    if let Some(known) = places.iter().position(|place| place.key == key) {
        return Ok(known);
    }
    let caps = device.caps()?;
    places.push(Place {
        key,
        caps,
        budget: None,
        turns: Turns::default(),
    });
    Ok(places.len() - 1)
}

/// What is the same for devices that share a memory.
fn key(device: &Device) -> String {
    match device {
        Device::Cpu(_) | Device::Reference => "cpu".to_owned(),
        #[cfg(feature = "cuda")]
        Device::Cuda(options) => options.device.to_string(),
        Device::Wgpu(options) => format!("wgpu:{}", options.adapter.unwrap_or(0)),
        Device::Fake(_) => "fake".to_owned(),
    }
}

impl Described {
    fn new(member: &Member<'_>, config: Config, place: usize, caps: &Caps) -> Result<Self> {
        let (model, files) = member.model.describe_with_text()?;
        // Texts that are damaged end its loading with an error.
        let text = Arc::new(files.read_template().unwrap_or_default());
        let defaults = SamplingParams::from_defaults(model.generation());
        let plan = model.record(caps.activations);
        let draft = member.engine.draft_model().map(|name| {
            let draft = member
                .model
                .beside(name)
                .describe()
                .context("the draft model")?;
            anyhow::Ok(DraftPlan::new(draft.record(caps.activations), &plan)?)
        });
        let draft = draft.transpose()?;
        let alone = FitReport::new(&model, &plan, draft.as_ref(), &config, caps);
        Ok(Self {
            place,
            config,
            plan,
            draft,
            text,
            defaults,
            alone,
        })
    }

    /// The fit with a pool of this size.
    fn fit(&self, kv_cache_bytes: Option<u64>, caps: &Caps) -> Fit {
        let config = Config {
            kv_cache_bytes,
            ..self.config.clone()
        };
        Fit::new(&config, &self.plan, self.draft.as_ref(), caps)
    }

    /// Its share of the device's memory.
    fn budget(&self, caps: &Caps) -> Option<u64> {
        self.fit(None, caps).budget_bytes
    }

    fn fixed_bytes(&self) -> u64 {
        self.alone.requested.fixed_bytes()
    }

    /// This model's part, beside all models of its memory.
    fn share(&self, name: String, all: &[&Self], place: &Place) -> Share {
        if !self.alone.requested.fits() {
            return Share::refused(name, self.place, self.alone.to_string());
        }
        let kv_cache_bytes = self
            .config
            .kv_cache_bytes
            .or_else(|| self.pool_bytes(all, place));
        let fit = self.fit(kv_cache_bytes, &place.caps);
        let budget = place.budget.unwrap_or(u64::MAX);
        if !fit.fits() || fit.total_bytes() > budget {
            let (needed, budget) = (Bytes(fit.total_bytes()), Bytes(budget));
            let reason = format!("it needs {needed}, but models may take {budget} together");
            return Share::refused(name, self.place, reason);
        }
        let outline = Some(self.outline(&fit));
        Share {
            name,
            place: self.place,
            fit: Ok(Box::new(fit)),
            kv_cache_bytes,
            outline,
        }
    }

    /// What is known of the model, which this part of the memory makes of it.
    fn outline(&self, fit: &Fit) -> ModelOutline {
        let blocks: u32 = fit.blocks.iter().sum();
        ModelOutline {
            text: self.text.clone(),
            defaults: self.defaults.clone(),
            vocab: self.plan.vocab,
            max_model_len: fit.max_model_len,
            max_num_seqs: self.config.max_num_seqs,
            block_size: fit.block_size,
            pool_tokens: u64::from(blocks) * u64::from(fit.block_size),
            embedding_len: self.plan.pooled_columns(),
            weight_bytes: fit.weight_bytes,
        }
    }

    /// Bytes of the pool of a model that has no size of its own; `None` if the memory is not known.
    fn pool_bytes(&self, all: &[&Self], place: &Place) -> Option<u64> {
        let budget = place.budget?;
        let fixed: u64 = all.iter().map(|model| model.fixed_bytes()).sum();
        let given: u64 = all
            .iter()
            .filter_map(|model| model.config.kv_cache_bytes)
            .sum();
        let sharers: Vec<_> = all
            .iter()
            .filter(|model| model.config.kv_cache_bytes.is_none())
            .collect();
        let left = budget.saturating_sub(fixed + given);
        let left = place.caps.kind.pool_share(left);
        let equal = left / (sharers.len() as u64).max(1);
        let alone = &self.alone.requested;
        let is_enough = sharers
            .iter()
            .all(|model| equal >= model.alone.requested.kv_least_bytes);
        let wanted = if is_enough {
            equal
        } else {
            alone.kv_full_bytes
        };
        Some(wanted.min(alone.kv_bytes))
    }
}

/// Lines whose columns are as wide as their widest cell; the first column is text, the others are numbers.
fn aligned(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
    };
    let widths: Vec<_> = (0..columns)
        .map(|column| width(column).unwrap_or(0))
        .collect();
    rows.iter()
        .map(|row| {
            let cells = row.iter().zip(&widths).enumerate();
            let cells = cells.map(|(column, (cell, width))| match column {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        })
        .collect()
}
