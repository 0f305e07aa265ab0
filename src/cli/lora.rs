//! `--lora-modules`: LoRA adapters that a server offers as models of their own.

use anyhow::{Context as _, Result, bail, ensure};
use folio::config::Config;
use folio::engine;
use folio::model::Model;
use folio::model::adapters::Adapter;
use folio::plan::WeightFormat;
use folio::server::ServedAdapter;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

/// An adapter and the name that requests call it by, as vLLM writes it: `NAME=PATH`, or a JSON object.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct LoraModule {
    name: String,
    path: PathBuf,
    /// What vLLM's users tell of the base, which the shapes of the tensors prove.
    #[serde(rename = "base_model_name")]
    _base: Option<String>,
}

impl LoraModule {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.trim_start().starts_with('{') {
            return serde_json::from_str(text).map_err(|error| error.to_string());
        }
        match text.split_once('=') {
            Some((name, path)) if !name.is_empty() && !path.is_empty() => Ok(Self {
                name: name.to_owned(),
                path: path.into(),
                _base: None,
            }),
            _ => Err("expected NAME=PATH or {\"name\": …, \"path\": …}".into()),
        }
    }
}

/// Reads adapters, and makes room for them in the model: one slot for each, unless the settings say how many.
pub(crate) fn open(
    modules: &[LoraModule],
    served: &[String],
    model: &mut Model,
    config: &mut Config,
) -> Result<Vec<ServedAdapter>> {
    let mut names: BTreeSet<&str> = served.iter().map(String::as_str).collect();
    let mut opened = Vec::new();
    for module in modules {
        let option = || format!("--lora-modules {}", module.name);
        ensure!(
            names.insert(&module.name),
            "{}: another model or adapter has this name",
            option()
        );
        opened.push(Adapter::open(&module.path).with_context(option)?);
    }
    if config.max_loras == 0 {
        config.max_loras = u32::try_from(modules.len()).context("--lora-modules")?;
    }
    config.lora_format = widest(&opened);
    let Some(room) = engine::adapter_room(config) else {
        return Ok(Vec::new());
    };
    let layout = model.reserve_adapters(room);
    let mut adapters = Vec::new();
    for (module, adapter) in modules.iter().zip(&opened) {
        layout
            .check(adapter)
            .with_context(|| format!("--lora-modules {}", module.name))?;
        let Some(content) = layout.fill(&[(adapter, 1.0)]) else {
            bail!(
                "--lora-modules {}: its rank exceeds --max-lora-rank",
                module.name
            );
        };
        adapters.push(ServedAdapter {
            name: module.name.clone(),
            path: module.path.display().to_string(),
            content: Arc::new(content),
        });
    }
    Ok(adapters)
}

/// The format that holds the matrices of all adapters as they are stored.
fn widest(adapters: &[Adapter]) -> WeightFormat {
    let formats: BTreeSet<String> = adapters
        .iter()
        .map(|adapter| adapter.format().to_string())
        .collect();
    match adapters.first() {
        Some(first) if formats.len() == 1 => first.format(),
        Some(_) => WeightFormat::F32,
        None => Config::default().lora_format,
    }
}
