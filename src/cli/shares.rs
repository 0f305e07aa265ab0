//! The memory of several models: what each of them gets of the devices' memories, which [`SharedMemory`] divides.
//! `folio plan --config` prints it, and `folio serve` loads what it says.

use super::device::Device;
use super::options::{EngineArgs, ModelArgs};
use anyhow::{Context as _, Result};
use folio::backend::Caps;
use folio::config::Config;
use folio::engine::fit::{Bytes, Fit, Neighbour, SharedMemory};
use folio::engine::request::{DrawDefaults, SamplingParams};
use folio::engine::{DeviceQueue, DraftPlan};
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
    /// Its engines stand in line for it.
    pub(crate) device_queue: DeviceQueue,
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
    model: Neighbour,
    /// Its chat template.
    text: Arc<TextModel>,
    defaults: SamplingParams,
    draw_defaults: DrawDefaults,
}

impl Share {
    /// A model that is never loaded, and why.
    fn refused(name: &str, place: usize, reason: String) -> Self {
        Self {
            name: name.to_owned(),
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
        let memories = places.iter().enumerate().map(|(index, place)| {
            let described = described.iter().flatten();
            let here = described.filter(|described| described.place == index);
            SharedMemory::new(&place.caps, here.map(|here| &here.model).collect())
        });
        let memories: Vec<_> = memories.collect();
        let models = members.iter().zip(described.iter());
        let models = models.map(|(member, described)| match described {
            Ok(described) => described.share(member.name, &memories[described.place]),
            Err((place, reason)) => Share::refused(member.name, *place, reason.clone()),
        });
        let models = models.collect();
        let budgets: Vec<_> = memories.iter().map(SharedMemory::budget).collect();
        for (place, budget) in places.iter_mut().zip(budgets) {
            place.budget = budget;
        }
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
        device_queue: DeviceQueue::default(),
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
        Ok(Self {
            place,
            model: Neighbour::new(&model, plan, draft, config, caps),
            text,
            defaults,
            draw_defaults: model.generation().draw,
        })
    }

    /// What this model gets of its memory.
    fn share(&self, name: &str, memory: &SharedMemory<'_>) -> Share {
        match memory.share(&self.model) {
            Err(reason) => Share::refused(name, self.place, reason),
            Ok(share) => Share {
                name: name.to_owned(),
                place: self.place,
                kv_cache_bytes: share.kv_cache_bytes,
                outline: Some(self.outline(&share.fit)),
                fit: Ok(Box::new(share.fit)),
            },
        }
    }

    /// What is known of the model, which this part of the memory makes of it.
    fn outline(&self, fit: &Fit) -> ModelOutline {
        let blocks: u32 = fit.blocks.iter().sum();
        ModelOutline {
            text: self.text.clone(),
            defaults: self.defaults.clone(),
            draw_defaults: self.draw_defaults,
            vocab: self.model.plan.vocab,
            max_model_len: fit.max_model_len,
            max_num_seqs: self.model.config.max_num_seqs,
            block_size: fit.block_size,
            pool_tokens: u64::from(blocks) * u64::from(fit.block_size),
            encodes: self.model.plan.computes_whole_sequences(),
            labels: 0,
            embedding_len: self.model.plan.pooled_columns(),
            weight_bytes: fit.weight_bytes,
            figures: self.model.plan.figures(),
        }
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
