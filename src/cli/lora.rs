//! LoRA adapters: those that a command begins with, and those that clients of a server may load.

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::{Args, ValueEnum};
use folio::config::Config;
use folio::engine;
use folio::model::Model;
use folio::model::adapters::{Adapter, AdapterLayout};
use folio::plan::WeightFormat;
use folio::server::{AdapterReader, ServedAdapter};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The rank that adapters have room for if nobody says otherwise, as in vLLM.
const RANK_DEFAULT: u32 = 16;

/// Adapters that change every answer, and how all of them are kept.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Adapters")]
pub(crate) struct AdapterArgs {
    /// LoRA adapter (folder of peft or GGUF file) that changes every answer; may be given several times
    #[arg(long, env = "FOLIO_LORA", value_name = "PATH", value_delimiter = ',')]
    lora: Vec<PathBuf>,
    /// The same with a factor
    #[arg(long, env = "FOLIO_LORA_SCALED", value_name = "PATH:FACTOR", value_delimiter = ',', value_parser = scaled)]
    lora_scaled: Vec<(PathBuf, f32)>,
    /// Data type of adapters on the device; auto is the one in which they are stored
    #[arg(
        long,
        env = "FOLIO_LORA_DTYPE",
        value_name = "TYPE",
        default_value = "auto"
    )]
    lora_dtype: LoraDtype,
}

/// Adapters that clients of a server name.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Adapters")]
pub(crate) struct ServedAdapterArgs {
    #[command(flatten)]
    all: AdapterArgs,
    /// LoRA adapters (folders of peft or GGUF files) that requests name as models, as NAME=PATH or {"name": …, "path":
    /// …}; several may be used in one step (--max-loras, --max-lora-rank)
    #[arg(long, env = "FOLIO_LORA_MODULES", value_name = "NAME=PATH", num_args = 1.., value_parser = LoraModule::parse)]
    lora_modules: Vec<LoraModule>,
    /// Adapters of --lora change only the answers to requests that ask for them
    #[arg(long, env = "FOLIO_LORA_INIT_WITHOUT_APPLY")]
    lora_init_without_apply: bool,
    /// Folder of adapters that clients may load (POST /v1/load_lora_adapter) and unload
    #[arg(long, env = "FOLIO_LORA_FOLDER", value_name = "PATH")]
    lora_folder: Option<PathBuf>,
    /// Maximum number of adapters in host memory, beyond which clients may load no more
    #[arg(
        long,
        env = "FOLIO_MAX_CPU_LORAS",
        value_name = "N",
        default_value_t = 64
    )]
    max_cpu_loras: u32,
}

/// Data type of adapters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum LoraDtype {
    #[default]
    Auto,
    #[value(alias = "f16")]
    Float16,
    #[value(alias = "bf16")]
    Bfloat16,
    #[value(alias = "f32")]
    Float32,
}

/// An adapter and the name that requests call it by, as vLLM writes it: `NAME=PATH`, or a JSON object.
#[derive(Clone, Debug, Deserialize)]
struct LoraModule {
    name: String,
    path: PathBuf,
    /// What vLLM's users tell of the base, which the shapes of the tensors prove.
    #[serde(rename = "base_model_name")]
    _base: Option<String>,
}

impl LoraModule {
    fn parse(text: &str) -> Result<Self, String> {
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

/// `PATH:FACTOR`; a path may have colons.
fn scaled(text: &str) -> Result<(PathBuf, f32), String> {
    let (path, factor) = text.rsplit_once(':').ok_or("expected PATH:FACTOR")?;
    let factor: f32 = factor
        .parse()
        .map_err(|_| format!("{factor:?} is no number"))?;
    if !factor.is_finite() {
        return Err(format!("{factor} is not finite"));
    }
    Ok((path.into(), factor))
}

/// An adapter to open.
struct Wanted {
    /// The option that names it, for errors.
    option: String,
    name: String,
    path: PathBuf,
    scale: f32,
}

/// The adapters that a command begins with.
#[derive(Default)]
pub(crate) struct Adapters {
    wanted: Vec<Wanted>,
    dtype: LoraDtype,
    /// Clients may load others.
    may_grow: bool,
}

impl AdapterArgs {
    pub(crate) fn adapters(&self) -> Adapters {
        let plain = self.lora.iter().map(|path| ("--lora", path, 1.0));
        let scaled = self.lora_scaled.iter();
        let scaled = scaled.map(|(path, scale)| ("--lora-scaled", path, *scale));
        let wanted = plain.chain(scaled).map(|(option, path, scale)| Wanted {
            option: format!("{option} {}", path.display()),
            name: name_of(path),
            path: path.clone(),
            scale,
        });
        Adapters {
            wanted: wanted.collect(),
            dtype: self.lora_dtype,
            may_grow: false,
        }
    }
}

/// The last part of an adapter's path, of a GGUF file without its ending.
fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    let name = name.to_string_lossy();
    name.strip_suffix(".gguf").unwrap_or(&name).to_owned()
}

impl ServedAdapterArgs {
    pub(crate) fn adapters(&self) -> Adapters {
        let Adapters {
            mut wanted, dtype, ..
        } = self.all.adapters();
        if self.lora_init_without_apply {
            for adapter in &mut wanted {
                adapter.scale = 0.0;
            }
        }
        let modules = self.lora_modules.iter().map(|module| Wanted {
            option: format!("--lora-modules {}", module.name),
            name: module.name.clone(),
            path: module.path.clone(),
            scale: 0.0,
        });
        wanted.extend(modules);
        Adapters {
            wanted,
            dtype,
            may_grow: self.lora_folder.is_some(),
        }
    }

    /// Reads adapters for clients, if they may load any: only those in the folder, once links are followed.
    pub(crate) fn reader(&self) -> Result<Option<AdapterReader>> {
        let Some(folder) = &self.lora_folder else {
            return Ok(None);
        };
        let option = || format!("--lora-folder {}", folder.display());
        let folder = folder.canonicalize().with_context(option)?;
        let adapters_max = self.max_cpu_loras as usize;
        Ok(Some(AdapterReader::new(adapters_max, move |path| {
            open_within(&folder, path)
                .ok_or("there is no such adapter in the folder of --lora-folder")?
        })))
    }
}

/// An adapter of a folder; `None` if the path, or a file of the adapter, is elsewhere, about which nothing is told.
fn open_within(folder: &Path, path: &str) -> Option<Result<Adapter, String>> {
    let place = folder.join(path).canonicalize().ok()?;
    let mut files = vec![place.clone()];
    if !place.is_file() {
        files.extend(Adapter::FILES.map(|file| place.join(file)));
    }
    for file in files {
        let is_inside = file.canonicalize().ok()?.starts_with(folder);
        is_inside.then_some(())?;
    }
    let prefix = format!("{}{}", folder.display(), std::path::MAIN_SEPARATOR);
    let opened = Adapter::open(&place);
    Some(opened.map_err(|error| error.to_string().replace(&prefix, "")))
}

impl Adapters {
    /// Whether there are none, and none can come.
    pub(crate) fn is_empty(&self) -> bool {
        self.wanted.is_empty() && !self.may_grow
    }

    /// Reads the adapters, and makes room for them in the model. `rank` is the one that was given.
    pub(crate) fn open(
        &self,
        served: &[String],
        model: &mut Model,
        (config, rank): (&mut Config, Option<u64>),
    ) -> Result<Vec<ServedAdapter>> {
        let opened = self.read(served)?;
        self.size(&opened, config, rank)?;
        match engine::adapter_room(config) {
            Some(room) => self.check(opened, &Arc::new(model.reserve_adapters(room)), room.rank),
            None => Ok(Vec::new()),
        }
    }

    /// Reads the adapters, which have other names than those that are served.
    fn read(&self, served: &[String]) -> Result<Vec<Adapter>> {
        let mut names: BTreeSet<&str> = served.iter().map(String::as_str).collect();
        let mut opened = Vec::new();
        for wanted in &self.wanted {
            let option = &wanted.option;
            ensure!(
                names.insert(&wanted.name),
                "{option}: another model or adapter has this name"
            );
            opened.push(Adapter::open(&wanted.path).with_context(|| option.clone())?);
        }
        Ok(opened)
    }

    /// Sets how much room there is: one slot for each, and the rank that they have together, unless the settings say
    /// how many and which.
    fn size(&self, opened: &[Adapter], config: &mut Config, rank: Option<u64>) -> Result<()> {
        if config.max_loras == 0 {
            let slots = opened.len().max(self.may_grow.into());
            config.max_loras = u32::try_from(slots).context("--max-loras")?;
        }
        if rank.is_none() {
            config.max_lora_rank = self.rank(opened);
        }
        config.lora_format = self.format(opened, config);
        Ok(())
    }

    /// Checks that each adapter is one of the model, and that those that change every answer fit together into `rank`.
    fn check(
        &self,
        opened: Vec<Adapter>,
        layout: &Arc<AdapterLayout>,
        rank: u32,
    ) -> Result<Vec<ServedAdapter>> {
        let mut adapters = Vec::new();
        for (wanted, adapter) in self.wanted.iter().zip(opened) {
            layout
                .check(&adapter)
                .with_context(|| wanted.option.clone())?;
            adapters.push(ServedAdapter {
                name: wanted.name.clone(),
                path: wanted.path.display().to_string(),
                adapter: Arc::new(adapter),
                scale: wanted.scale,
            });
        }
        let applied = adapters.iter().filter(|adapter| adapter.scale != 0.0);
        let applied: Vec<_> = applied
            .map(|adapter| (adapter.adapter.clone(), adapter.scale))
            .collect();
        layout.combine(&applied).ok_or_else(|| {
            anyhow!(
                "--lora: together, the adapters have a larger rank than {rank} (--max-lora-rank)"
            )
        })?;
        Ok(adapters)
    }

    /// The rank that every adapter has room in, and those that change every answer together.
    fn rank(&self, opened: &[Adapter]) -> u32 {
        let ranks = opened.iter().map(Adapter::rank);
        let applied = self.wanted.iter().zip(opened);
        let applied = applied.filter(|(wanted, _)| wanted.scale != 0.0);
        let together: u32 = applied.map(|(_, adapter)| adapter.rank()).sum();
        ranks
            .chain([together, RANK_DEFAULT])
            .max()
            .unwrap_or(RANK_DEFAULT)
    }

    /// The format of the slots. Without a given one, it holds the matrices of all adapters as they are stored, those of
    /// clients too.
    fn format(&self, opened: &[Adapter], config: &Config) -> WeightFormat {
        let formats: BTreeSet<String> = opened
            .iter()
            .map(|adapter| adapter.format().to_string())
            .collect();
        match (self.dtype, opened.first()) {
            (LoraDtype::Float16, _) => WeightFormat::F16,
            (LoraDtype::Bfloat16, _) => WeightFormat::Bf16,
            (LoraDtype::Float32, _) => WeightFormat::F32,
            (LoraDtype::Auto, _) if self.may_grow => WeightFormat::F32,
            (LoraDtype::Auto, Some(first)) if formats.len() == 1 => first.format(),
            (LoraDtype::Auto, Some(_)) => WeightFormat::F32,
            (LoraDtype::Auto, None) => config.lora_format,
        }
    }
}
