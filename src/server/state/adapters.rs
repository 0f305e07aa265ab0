//! The LoRA adapters of a served model: models of their own, which clients may also combine, load and unload.

use super::ModelState;
use crate::engine::request::SlotContent;
use crate::model::adapters::{Adapter, AdapterLayout};
use crate::server::parameters::table::{AdapterPart, Target};
use crate::server::wire::error::{ApiError, shorten};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A LoRA adapter, and the name that requests call it by.
#[derive(Clone, Debug)]
pub struct ServedAdapter {
    /// The name.
    pub name: String,
    /// Where it was read, for lists.
    pub path: String,
    /// What it changes.
    pub adapter: Arc<Adapter>,
    /// Its factor in answers of the base to requests that do not say which adapters they want.
    pub scale: f32,
}

/// Reads the adapters that clients load while the server runs.
#[derive(Clone)]
pub struct AdapterReader {
    read: Read,
    /// Maximum number of adapters in host memory.
    adapters_max: usize,
}

/// Reads an adapter by its path; an error says what is wrong with it.
type Read = Arc<dyn Fn(&str) -> Result<Adapter, String> + Send + Sync>;

impl AdapterReader {
    /// Reads with this function, as long as there are fewer adapters than this.
    pub fn new(
        adapters_max: usize,
        read: impl Fn(&str) -> Result<Adapter, String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            read: Arc::new(read),
            adapters_max,
        }
    }
}

impl fmt::Debug for AdapterReader {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("AdapterReader")
            .field("adapters_max", &self.adapters_max)
            .finish_non_exhaustive()
    }
}

/// The adapters of a model. A request keeps those that it uses, so that they may be unloaded at any time.
#[derive(Debug)]
pub(crate) struct Adapters(Mutex<List>);

#[derive(Debug)]
struct List {
    entries: Vec<AdapterEntry>,
    /// The number of the next one.
    next_id: u32,
}

/// When a client may load an adapter.
#[derive(Clone, Copy)]
struct LoadRules {
    /// It takes the place of one that has its name.
    replaces: bool,
    /// Maximum number of adapters.
    adapters_max: usize,
}

impl List {
    /// Adds an adapter, or replaces the one that has its name.
    fn add(&mut self, served: ServedAdapter) {
        let mut entries = self.entries.iter_mut();
        if let Some(known) = entries.find(|entry| entry.served.name == served.name) {
            let scale = known.served.scale;
            known.served = ServedAdapter { scale, ..served };
            return;
        }
        self.entries.push(AdapterEntry {
            id: self.next_id,
            served,
            uses: Arc::default(),
        });
        self.next_id += 1;
    }

    /// Whether a client may load an adapter with this name. The words are vLLM's.
    fn check(&self, name: &str, rules: LoadRules) -> Result<(), ApiError> {
        let is_known = self.entries.iter().any(|entry| entry.served.name == name);
        let message = match (is_known, rules.replaces) {
            (true, true) => return Ok(()),
            (true, false) => format!(
                "The lora adapter {} has already been loaded. If you want to load the adapter in place, set \
                 'load_inplace' to True.",
                shorten(name)
            ),
            (false, _) if self.entries.len() < rules.adapters_max => return Ok(()),
            (false, _) => format!(
                "there are {} adapters already (--max-cpu-loras); unload one",
                self.entries.len()
            ),
        };
        Err(ApiError::invalid("lora_name", message))
    }
}

/// An adapter that may be asked for.
#[derive(Clone, Debug)]
pub(crate) struct AdapterEntry {
    /// Its number for llama.cpp's clients, which no later adapter has.
    pub(crate) id: u32,
    pub(crate) served: ServedAdapter,
    uses: Arc<Uses>,
}

/// Number of answers that an adapter has a part in.
#[derive(Debug, Default)]
struct Uses {
    waiting: AtomicUsize,
    running: AtomicUsize,
}

impl Adapters {
    pub(super) fn new(served: Vec<ServedAdapter>) -> Self {
        let mut list = List {
            entries: Vec::new(),
            next_id: 0,
        };
        for served in served {
            list.add(served);
        }
        Self(Mutex::new(list))
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of them.
    pub(crate) fn entries(&self) -> Vec<AdapterEntry> {
        self.list().entries.clone()
    }

    /// Their names.
    pub(crate) fn names(&self) -> Vec<String> {
        let list = self.list();
        let names = list.entries.iter().map(|entry| entry.served.name.clone());
        names.collect()
    }

    /// The one with this name.
    pub(crate) fn named(&self, name: &str) -> Option<AdapterEntry> {
        // Ollama's clients add the tag that they see in its lists.
        let plain = name.strip_suffix(":latest").unwrap_or(name);
        let list = self.list();
        let mut entries = list.entries.iter();
        entries
            .find(|entry| [name, plain].contains(&entry.served.name.as_str()))
            .cloned()
    }

    /// Adds an adapter that a client loaded, or replaces the one with its name.
    fn load(&self, served: ServedAdapter, rules: LoadRules) -> Result<(), ApiError> {
        let mut list = self.list();
        list.check(&served.name, rules)?;
        list.add(served);
        Ok(())
    }

    /// Removes the adapter with this name. Answers that use it go on.
    fn remove(&self, name: &str) -> Result<(), ApiError> {
        let mut list = self.list();
        let count = list.entries.len();
        list.entries.retain(|entry| entry.served.name != name);
        if list.entries.len() == count {
            return Err(ApiError::unknown_adapter(name));
        }
        Ok(())
    }

    /// Sets the factors of answers of the base; adapters that are not named have none.
    pub(crate) fn set_scales(&self, parts: &[AdapterPart]) -> Result<(), ApiError> {
        let mut list = self.list();
        for part in parts {
            find(&list.entries, part, "id")?;
        }
        for entry in &mut list.entries {
            entry.served.scale = scale_of(entry, parts).unwrap_or(0.0);
        }
        Ok(())
    }
}

/// The factor that a list gives an adapter; of two, the last.
fn scale_of(entry: &AdapterEntry, parts: &[AdapterPart]) -> Option<f32> {
    let own = parts.iter().rfind(|part| part.id == i64::from(entry.id))?;
    Some(own.scale.unwrap_or(1.0))
}

/// The adapter that a request asks for by its number.
fn find<'a>(
    entries: &'a [AdapterEntry],
    part: &AdapterPart,
    field: &str,
) -> Result<&'a AdapterEntry, ApiError> {
    let entry = entries.iter().find(|entry| i64::from(entry.id) == part.id);
    entry.ok_or_else(|| {
        let message = format!(
            "`{field}`: there is no adapter {} (GET /lora-adapters)",
            part.id
        );
        ApiError::invalid(field, message)
    })
}

/// What a request changes of its model, and whose uses it counts among.
#[derive(Clone, Debug)]
pub(crate) struct AskedAdapters {
    pub(crate) content: Arc<SlotContent>,
    uses: Vec<Arc<Uses>>,
}

impl ModelState {
    /// The served name that a request asks for, with the adapters that its answer takes.
    pub(crate) fn asked(
        &self,
        target: Target,
    ) -> Result<(String, Option<AskedAdapters>), ApiError> {
        let name = self.model(target.model)?;
        let parts = self.parts(&name, target.lora)?;
        if parts.is_empty() {
            return Ok((name, None));
        }
        let layout = self.ready()?.adapters.as_ref();
        let layout = layout.ok_or_else(ApiError::internal)?;
        let adapters: Vec<_> = parts
            .iter()
            .map(|(entry, scale)| (entry.served.adapter.clone(), *scale))
            .collect();
        let content = layout.combine(&adapters).ok_or_else(|| {
            let rank = layout.room().rank;
            let message = format!("`lora`: together, the ranks exceed {rank} (--max-lora-rank)");
            ApiError::invalid("lora", message)
        })?;
        let asked = AskedAdapters {
            content: Arc::new(content),
            uses: parts.into_iter().map(|(entry, _)| entry.uses).collect(),
        };
        Ok((name, Some(asked)))
    }

    /// The adapters that an answer takes, with their factors.
    fn parts(
        &self,
        name: &str,
        lora: Option<Vec<AdapterPart>>,
    ) -> Result<Vec<(AdapterEntry, f32)>, ApiError> {
        let own = self.adapters.named(name);
        let parts: Vec<(AdapterEntry, f32)> = match (own, lora) {
            (Some(_), Some(lora)) if !lora.is_empty() => {
                let message =
                    format!("`lora`: {name} is an adapter already; name its base as `model`");
                return Err(ApiError::invalid("lora", message));
            }
            (Some(entry), _) => vec![(entry, 1.0)],
            (None, Some(lora)) => {
                let entries = self.adapters.entries();
                for part in &lora {
                    find(&entries, part, "lora")?;
                }
                let parts = entries.into_iter().filter_map(|entry| {
                    let scale = scale_of(&entry, &lora)?;
                    Some((entry, scale))
                });
                parts.collect()
            }
            (None, None) => {
                let entries = self.adapters.entries().into_iter();
                entries
                    .map(|entry| (entry.clone(), entry.served.scale))
                    .collect()
            }
        };
        let taken = parts.into_iter().filter(|(_, scale)| *scale != 0.0);
        Ok(taken.collect())
    }

    /// Refuses adapters where only answers have one.
    pub(crate) fn base(&self, target: &Target) -> Result<String, ApiError> {
        let name = self.model(target.model.clone())?;
        if self.adapters.named(&name).is_some() {
            let message =
                format!("`model`: {name} is an adapter, which changes answers only; use its base");
            return Err(ApiError::invalid("model", message));
        }
        match &target.lora {
            Some(lora) if !lora.is_empty() => Err(ApiError::unsupported(
                "lora",
                "`lora`: adapters change answers only",
            )),
            _ => Ok(name),
        }
    }

    /// Forgets an adapter that a client names. Answers that use it go on.
    pub(crate) fn unload_adapter(&self, name: &str) -> Result<(), ApiError> {
        match self.options.adapter_reader {
            Some(_) => self.adapters.remove(name),
            None => Err(fixed()),
        }
    }

    /// Reads an adapter for clients, which call it by this name; another one with the name is replaced if the client
    /// says so.
    pub(crate) async fn load_adapter(
        &self,
        name: String,
        path: String,
        replaces: bool,
    ) -> Result<(), ApiError> {
        let Some(reader) = self.options.adapter_reader.clone() else {
            return Err(fixed());
        };
        if self.model_names.iter().any(|own| *own == name) {
            let name = shorten(&name);
            let message = format!("The lora adapter {name} conflicts with a served base model.");
            return Err(ApiError::invalid("lora_name", message));
        }
        let rules = LoadRules {
            replaces,
            adapters_max: reader.adapters_max,
        };
        self.adapters.list().check(&name, rules)?;
        let layout = self.ready()?.adapters.clone();
        let layout = layout.ok_or_else(ApiError::internal)?;
        // Reading takes a while, whatever its size.
        let read = self.shared.offload(usize::MAX, {
            let path = path.clone();
            move || read_checked(&reader, &path, &layout)
        });
        let adapter = read
            .await?
            .map_err(|why| ApiError::invalid("lora_path", format!("`lora_path`: {why}")))?;
        // Another client may have loaded one meanwhile.
        self.adapters.load(
            ServedAdapter {
                name,
                path,
                adapter: Arc::new(adapter),
                scale: 0.0,
            },
            rules,
        )
    }
}

/// The error of a server whose adapters are those that it began with.
fn fixed() -> ApiError {
    ApiError::not_implemented("clients may load and unload adapters only with --lora-folder")
}

fn read_checked(
    reader: &AdapterReader,
    path: &str,
    layout: &AdapterLayout,
) -> Result<Adapter, String> {
    let adapter = (reader.read)(path)?;
    layout.check(&adapter).map_err(|error| error.to_string())?;
    Ok(adapter)
}

/// A use of adapters by an answer, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct AdapterUse {
    uses: Vec<Arc<Uses>>,
    is_running: bool,
}

impl AdapterUse {
    /// The use by an answer that waits to be computed.
    pub(crate) fn waiting(asked: Option<&AskedAdapters>) -> Self {
        let this = Self {
            uses: asked.map(|asked| asked.uses.clone()).unwrap_or_default(),
            is_running: false,
        };
        this.count(|count| count.fetch_add(1, Ordering::Relaxed));
        this
    }

    /// The answer is being computed.
    pub(crate) fn run(&mut self) {
        if !self.is_running {
            self.count(|count| count.fetch_sub(1, Ordering::Relaxed));
            self.is_running = true;
            self.count(|count| count.fetch_add(1, Ordering::Relaxed));
        }
    }

    fn count(&self, change: impl Fn(&AtomicUsize) -> usize) {
        for uses in &self.uses {
            change(if self.is_running {
                &uses.running
            } else {
                &uses.waiting
            });
        }
    }
}

impl Drop for AdapterUse {
    fn drop(&mut self) {
        self.count(|count| count.fetch_sub(1, Ordering::Relaxed));
    }
}

impl AdapterEntry {
    /// Number of answers that wait for it.
    pub(crate) fn waiting(&self) -> usize {
        self.uses.waiting.load(Ordering::Relaxed)
    }

    /// Number of answers that it has a part in now.
    pub(crate) fn running(&self) -> usize {
        self.uses.running.load(Ordering::Relaxed)
    }
}
