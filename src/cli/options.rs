//! Options of every command that runs an engine, under vLLM's names. Each also has a `FOLIO_…` environment variable.

use super::device::{self, Device, DeviceArgs, Dtype};
use super::folders::names_in;
use super::hub::{self, Described, HubArgs};
use super::limits::LimitArgs;
use super::speculation::{self, SpeculativeConfig};
use super::tiers::{DiskTierArgs, HostTierArgs};
use anyhow::{Context as _, Result, bail, ensure};
use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};
use folio::config::{Config, Speculation, SpeculationMethod};
use folio::image::ImageProcessor;
use folio::model::{Gguf, Model, ModelSpec, Quantization, Texts, demo, stand_in};
use folio::platform::FileAccess;
use folio::server::ImageReader;
use folio::text::{MORE_TEMPLATES, TextFolder, TextModel, Tokenizer};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The help of an option that takes the name of a shape.
pub(crate) fn shape_help(what: &str) -> String {
    format!("{what}: {} or HxLxNxKxDxFxV", ModelSpec::SHAPES.join(", "))
}

/// Bits per weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum QuantizationChoice {
    Q8,
    Q4,
}

/// The model and its hub options.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArgs {
    /// Folder with config.json and safetensors, GGUF file, Hugging Face name org/repo[@revision][:QUANT or
    /// :FILE.gguf], or a short name such as qwen3:0.6b, which is downloaded [default: the built-in demo model]
    #[arg(short, long, env = "FOLIO_MODEL", value_name = "PATH_OR_NAME")]
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
    /// Path of the model, once it is located.
    #[arg(skip)]
    located: OnceLock<PathBuf>,
    /// Jinja file with a chat template to use instead of the model's own
    #[arg(long, env = "FOLIO_CHAT_TEMPLATE", value_name = "FILE")]
    pub(crate) chat_template: Option<PathBuf>,
    /// Map the model's files into memory instead of copying them; they must not be overwritten while folio runs
    #[arg(long, env = "FOLIO_MMAP", value_parser = BoolishValueParser::new())]
    pub(crate) mmap: bool,
    /// Quantize 16-bit weights while they load
    #[arg(long, env = "FOLIO_QUANTIZATION", value_name = "BITS")]
    pub(crate) quantization: Option<QuantizationChoice>,
}

/// The device, and the engine's limits on it.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Device and engine")]
pub(crate) struct EngineArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Data type of activations; auto is bfloat16 on CUDA and float32 elsewhere
    #[arg(long, env = "FOLIO_DTYPE", default_value = "auto", hide = cfg!(not(feature = "cuda")))]
    pub(crate) dtype: Dtype,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    #[command(flatten)]
    pub(crate) host_tier: HostTierArgs,
    #[command(flatten)]
    pub(crate) disk_tier: DiskTierArgs,
    /// Guess the next tokens and verify several in one step, as vLLM's JSON object {"method": "ngram",
    /// "num_speculative_tokens": 5, "prompt_lookup_max": 4}; null for off [default: these, and
    /// "disable_by_batch_size": 1]
    #[arg(long, env = "FOLIO_SPECULATIVE_CONFIG", value_name = "JSON", value_parser = speculation::parse)]
    speculative_config: Option<SpeculativeConfig>,
    /// Smaller model with the same tokenizer that guesses the next tokens, as "model" in --speculative-config
    #[arg(long, env = "FOLIO_DRAFT_MODEL", value_name = "PATH_OR_NAME")]
    draft_model: Option<PathBuf>,
}

impl EngineArgs {
    /// The requested device, not yet open.
    pub(crate) fn device(&self) -> Result<Device> {
        self.device.resolve()?.with_dtype(self.dtype)
    }

    /// The engine's limits, checked.
    pub(crate) fn config(&self) -> Result<Config> {
        let default = device::defaults(&self.device.choice);
        let config = Config {
            kv_host_bytes: self.host_tier.bytes(),
            kv_disk: self.disk_tier.config(),
            speculation: self.speculation(default.speculation)?,
            ..default
        };
        self.limits.over(config)
    }

    /// Maximum number of waiting requests.
    pub(crate) fn queue_requests_max(&self) -> u32 {
        let given = self.limits.get("queue_requests_max");
        given
            .and_then(|count| u32::try_from(count).ok())
            .unwrap_or(Config::default().queue_requests_max)
    }

    /// The seed for requests that have none.
    pub(crate) fn seed(&self) -> Option<u64> {
        self.limits.get("seed")
    }
}

impl EngineArgs {
    /// Whether the options ask for drafts.
    pub(crate) fn asks_for_drafts(&self) -> bool {
        self.speculative_config.is_some() || self.draft_model.is_some()
    }

    /// How drafts are made.
    fn speculation(&self, default: Option<Speculation>) -> Result<Option<Speculation>> {
        let config = self.speculative_config.as_ref();
        let Some(draft_model) = &self.draft_model else {
            return Ok(config.map_or(default, |config| config.settings));
        };
        let taken = config.and_then(|config| config.model.as_ref());
        ensure!(
            taken.is_none_or(|model| model == draft_model),
            "--draft-model and `model` in --speculative-config name different models"
        );
        let settings = config.map_or(Some(speculation::BY_MODEL), |config| config.settings);
        let settings =
            settings.context("--draft-model: --speculative-config null turns drafts off")?;
        ensure!(
            settings.method != SpeculationMethod::Mtp,
            "--draft-model: by --speculative-config, drafts come from layers of the model"
        );
        Ok(Some(Speculation {
            method: SpeculationMethod::DraftModel,
            ..settings
        }))
    }

    /// The draft model, if drafts come from one.
    pub(crate) fn draft_model(&self) -> Option<&Path> {
        let named = self
            .speculative_config
            .as_ref()
            .and_then(|config| config.model.as_deref());
        self.draft_model.as_deref().or(named)
    }
}

impl ModelArgs {
    /// Whether --model is on the command line. A typed value that is also the variable's makes no difference.
    pub(crate) fn is_typed(&self) -> bool {
        self.model.is_some()
            && self.model.as_deref().map(Path::as_os_str)
                != std::env::var_os("FOLIO_MODEL").as_deref()
    }

    /// These options, with the model that is the command's first argument, if it has one. It wins over the variable.
    pub(crate) fn or_first(&self, first: Option<&Path>) -> Result<Self> {
        let Some(first) = first else {
            return Ok(self.clone());
        };
        ensure!(
            !self.is_typed(),
            "the model is named twice: as `{}` and by --model",
            first.display()
        );
        Ok(Self {
            model: Some(first.to_owned()),
            ..self.clone()
        })
    }

    /// The model and the words after it. After --model, the first argument is such a word.
    pub(crate) fn or_words(
        &self,
        first: Option<&Path>,
        rest: &[String],
    ) -> Result<(Self, Vec<String>)> {
        if !self.is_typed() {
            return Ok((self.or_first(first)?, rest.to_vec()));
        }
        let first = first.map(|word| word.to_string_lossy().into_owned());
        let words = first.into_iter().chain(rest.iter().cloned());
        Ok((self.clone(), words.collect()))
    }

    /// The same options for another model.
    pub(crate) fn instead(&self, model: &Path) -> Self {
        Self {
            model: Some(model.to_owned()),
            located: OnceLock::new(),
            ..self.clone()
        }
    }

    /// The same options for another model, whose chat template is not needed.
    pub(crate) fn beside(&self, model: &Path) -> Self {
        Self {
            chat_template: None,
            ..self.instead(model)
        }
    }

    /// Name of the model in reports: the path as typed, or the name of the demo model.
    pub(crate) fn name(&self) -> String {
        self.model.as_deref().map_or_else(
            || "folio-tiny".to_owned(),
            |path| path.to_string_lossy().into_owned(),
        )
    }

    /// Default name of the model in requests: the stem of a GGUF file, else [`Self::name`].
    pub(crate) fn served_name(&self) -> String {
        let stem = self
            .model
            .as_deref()
            .filter(|path| {
                path.extension()
                    .is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
            })
            .and_then(Path::file_stem);
        stem.map_or_else(|| self.name(), |stem| stem.to_string_lossy().into_owned())
    }

    /// Opens the weights and reads the config; tensors are read later.
    pub(crate) fn open(&self) -> Result<Model> {
        Ok(self.open_with_text()?.0)
    }

    /// [`Self::open`], with the files of tokenizer and chat template, which are also read later.
    pub(crate) fn open_with_text(&self) -> Result<(Model, TextFiles)> {
        let template = self.chat_template.as_deref().map(read_text).transpose()?;
        let (model, place) = match self.path()? {
            None => (Model::demo(), TextPlace::Demo),
            Some(path) => self.open_path(path.to_owned())?,
        };
        Ok((self.quantized(model)?, TextFiles { place, template }))
    }

    /// The model, quantized if that was requested.
    pub(crate) fn quantized(&self, model: Model) -> Result<Model> {
        Ok(match self.quantization {
            None => model,
            Some(QuantizationChoice::Q8) => model.quantized(Quantization::Q8)?,
            Some(QuantizationChoice::Q4) => model.quantized(Quantization::Q4)?,
        })
    }

    /// The folder or GGUF file, downloaded if necessary; `None` means the demo model.
    fn path(&self) -> Result<Option<&Path>> {
        let Some(model) = &self.model else {
            return Ok(None);
        };
        if let Some(path) = self.located.get() {
            return Ok(Some(path));
        }
        let path = hub::locate(model, self.hub)?;
        Ok(Some(self.located.get_or_init(|| path)))
    }

    /// Like [`Self::open`], but does not download a model that is not cached; only the sizes of its weights are known
    /// then.
    pub(crate) fn describe(&self) -> Result<Model> {
        Ok(self.describe_with_text()?.0)
    }

    /// [`Self::describe`], with the files of tokenizer and chat template if they are here.
    pub(crate) fn describe_with_text(&self) -> Result<(Model, TextFiles)> {
        let template = self.chat_template.as_deref().map(read_text).transpose()?;
        let (model, place) = match &self.model {
            None => (Model::demo(), TextPlace::Demo),
            Some(model) => match hub::describe(model, self.hub)? {
                Described::At(path) => self.open_path(path)?,
                Described::Far(model) => (*model, TextPlace::Nowhere),
            },
        };
        Ok((self.quantized(model)?, TextFiles { place, template }))
    }

    /// The description of a model that is not cached; `None` for other models.
    pub(crate) fn describe_far(&self) -> Result<Option<Model>> {
        let described = self
            .model
            .as_deref()
            .map(|model| hub::describe(model, self.hub))
            .transpose()?;
        match described {
            Some(Described::Far(model)) => self.quantized(*model).map(Some),
            _ => Ok(None),
        }
    }

    fn access(&self) -> FileAccess {
        if self.mmap {
            FileAccess::Map
        } else {
            FileAccess::Read
        }
    }

    /// The tower of the model with these files, and what reads images for it; `None` if it reads text only.
    pub(crate) fn open_tower(&self, text: &TextFiles) -> Result<Option<(Model, ImageReader)>> {
        let TextPlace::Folder(folder) = &text.place else {
            return Ok(None);
        };
        let tower = Model::open_tower(folder, self.access()).context(WITHOUT_IMAGES)?;
        let Some(tower) = tower else {
            return Ok(None);
        };
        let processor = image_processor(folder).with_context(|| folder.display().to_string());
        let processor = processor.context(WITHOUT_IMAGES)?;
        Ok(Some((tower, ImageReader::new(processor))))
    }

    /// The model at `path`, and the place of its texts.
    fn open_path(&self, path: PathBuf) -> Result<(Model, TextPlace)> {
        let access = self.access();
        if is_gguf(&path) {
            let gguf = Gguf::open_with(&path, access)?;
            let texts = gguf.texts();
            return Ok((Model::from_gguf(gguf)?, TextPlace::Gguf(path, texts)));
        }
        let what = "is neither a GGUF file nor a folder with config.json and safetensors";
        ensure!(path.is_dir(), "{} {what}", path.display());
        if !path.join("config.json").exists() {
            let ggufs: Vec<String> = names_in(&path)
                .into_iter()
                .filter(|name| is_gguf(name.as_ref()))
                .collect();
            if let Some(first) = ggufs.first() {
                let first = path.join(first);
                let all = ggufs.join(", ");
                bail!(
                    "{} holds GGUF files ({all}); name the file: {}",
                    path.display(),
                    first.display()
                );
            }
        }
        Ok((Model::open_with(&path, access)?, TextPlace::Folder(path)))
    }
}

/// What is left of a model whose tower or image processor is refused.
const WITHOUT_IMAGES: &str = "images (with --max-image-rows 0, the model reads text only)";

/// The files of a model's tokenizer and chat template, to be read.
pub(crate) struct TextFiles {
    place: TextPlace,
    /// The text of `--chat-template`.
    template: Option<String>,
}

enum TextPlace {
    Nowhere,
    Demo,
    Folder(PathBuf),
    Gguf(PathBuf, Texts),
}

impl TextFiles {
    /// Whether they are those of the built-in model.
    pub(crate) fn is_demo(&self) -> bool {
        matches!(self.place, TextPlace::Demo)
    }

    /// Neither tokenizer nor template.
    pub(crate) fn none() -> Self {
        Self {
            place: TextPlace::Nowhere,
            template: None,
        }
    }

    /// The model's licence, if a GGUF file or the head of a folder's README.md names one.
    pub(crate) fn licence(&self) -> Option<String> {
        match &self.place {
            TextPlace::Gguf(_, texts) => texts.licence().map(str::to_owned),
            TextPlace::Folder(folder) => {
                let readme = read_if_there(&folder.join("README.md")).ok().flatten()?;
                let readme = String::from_utf8_lossy(&readme).into_owned();
                let head = readme.strip_prefix("---\n")?.split("\n---").next()?;
                let licence = head
                    .lines()
                    .find_map(|line| line.strip_prefix("license:"))?
                    .trim();
                Some(licence.trim_matches(['"', '\'']).to_owned())
            }
            TextPlace::Demo => {
                Some(concat!("that of folio: ", env!("CARGO_PKG_LICENSE")).to_owned())
            }
            TextPlace::Nowhere => None,
        }
    }

    /// Reads tokenizer and chat template; each may be missing. A large vocabulary takes a fifth of a second.
    pub(crate) fn read(self) -> Result<TextModel> {
        self.read_parts(true)
    }

    /// [`Self::read`], without the tokenizer, which takes most of the time and memory.
    pub(crate) fn read_template(self) -> Result<TextModel> {
        self.read_parts(false)
    }

    fn read_parts(self, with_tokenizer: bool) -> Result<TextModel> {
        let template = self.template;
        match self.place {
            TextPlace::Nowhere => Ok(TextModel::default()),
            TextPlace::Demo => {
                let tokenizer = with_tokenizer.then_some(demo::TOKENIZER_JSON);
                Ok(TextModel::from_parts(
                    tokenizer,
                    Some(demo::TOKENIZER_CONFIG_JSON),
                    template.as_deref(),
                )?)
            }
            TextPlace::Gguf(path, texts) => {
                let vocabulary = if with_tokenizer {
                    texts.vocabulary()?
                } else {
                    None
                };
                let tokenizer = vocabulary.map(|vocabulary| {
                    let tokens = vocabulary
                        .tokens
                        .iter()
                        .map(|(text, id)| (text.as_ref(), *id));
                    Tokenizer::from_tables(&vocabulary.tokenizer_json, tokens, &vocabulary.merges)
                });
                let config = texts.tokenizer_config_json()?;
                tokenizer
                    .transpose()
                    .and_then(|tokenizer| {
                        TextModel::with_tokenizer(tokenizer, Some(&config), template.as_deref())
                    })
                    .with_context(|| path.display().to_string())
            }
            TextPlace::Folder(folder) => {
                let files = text_folder(&folder, with_tokenizer)?;
                TextModel::from_folder(&files, template.as_deref())
                    .with_context(|| folder.display().to_string())
            }
        }
    }
}

/// The image processor of a folder with a tower.
fn image_processor(folder: &Path) -> Result<ImageProcessor> {
    let read = |name: &str| -> Result<Option<Value>> {
        let bytes = read_if_there(&folder.join(name))?;
        let value = bytes.map(|bytes| serde_json::from_slice(&bytes));
        value.transpose().with_context(|| name.to_owned())
    };
    let config = read("config.json")?.unwrap_or_default();
    let [older, newer] = ImageProcessor::FILES;
    let (older, newer) = (read(older)?, read(newer)?);
    let processor = ImageProcessor::read(&config, [older.as_ref(), newer.as_ref()])?;
    processor.context("there is a tower, but nothing that is known reads images for it")
}

/// The text files of a folder.
fn text_folder(folder: &Path, with_tokenizer: bool) -> Result<TextFolder> {
    let more = names_in(&folder.join(MORE_TEMPLATES))
        .into_iter()
        .map(|name| format!("{MORE_TEMPLATES}{name}"));
    let names = TextFolder::NAMES.map(str::to_owned).into_iter().chain(more);
    let mut files = TextFolder::default();
    for name in names
        .filter(|name| with_tokenizer || !["tokenizer.json", "vocab.txt"].contains(&name.as_str()))
    {
        let path = folder.join(&name);
        if let Some(bytes) = read_if_there(&path)? {
            if let Some(message) = stand_in(&bytes) {
                bail!("{} {message}", path.display());
            }
            files.insert(&name, bytes);
        }
    }
    Ok(files)
}

fn is_gguf(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

fn read_text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}

fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>> {
    let read = folio::platform::open_regular(path).and_then(|mut file| {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut file, &mut bytes)?;
        Ok(bytes)
    });
    match read {
        Ok(bytes) => Ok(Some(bytes)),
        Err(fault) if fault.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(fault) => Err(fault).with_context(|| path.display().to_string()),
    }
}
