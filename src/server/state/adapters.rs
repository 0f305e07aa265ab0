//! The LoRA adapters of a served model: models of their own, which clients may also combine, load and unload.

use crate::engine::request::{Adapter, SlotContent};
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
    pub(super) read: Read,
    /// Maximum number of adapters in host memory.
    pub(super) adapters_max: usize,
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

#[derive(Debug, Default)]
struct List {
    entries: Vec<AdapterEntry>,
    /// The number of the next one.
    next_id: u32,
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

/// When a client may load an adapter.
#[derive(Clone, Copy)]
pub(super) struct LoadRules {
    /// It takes the place of one that has its name.
    pub(super) replaces: bool,
    /// Maximum number of adapters.
    pub(super) adapters_max: usize,
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

impl Adapters {
    pub(super) fn new(served: Vec<ServedAdapter>) -> Self {
        let mut list = List::default();
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

    /// The adapters with these numbers, each with its factor: of two factors for one, the last. A number that no
    /// adapter has is refused by the name of its field.
    pub(crate) fn numbered(
        &self,
        parts: &[(u32, f32)],
        field: &str,
    ) -> Result<Vec<(AdapterEntry, f32)>, ApiError> {
        let entries = self.entries();
        for (id, _) in parts {
            if entries.iter().all(|entry| entry.id != *id) {
                let message = format!("`{field}`: there is no adapter {id} (GET /lora-adapters)");
                return Err(ApiError::invalid(field, message));
            }
        }
        let taken = entries.into_iter().filter_map(|entry| {
            let (_, factor) = parts.iter().rfind(|(id, _)| *id == entry.id)?;
            Some((entry, *factor))
        });
        Ok(taken.collect())
    }

    /// Sets the factors of answers of the base; adapters that are not named have none.
    pub(crate) fn set_scales(&self, parts: &[(u32, f32)]) -> Result<(), ApiError> {
        let named = self.numbered(parts, "id")?;
        for entry in &mut self.list().entries {
            let own = named.iter().find(|(named, _)| named.id == entry.id);
            entry.served.scale = own.map_or(0.0, |(_, factor)| *factor);
        }
        Ok(())
    }

    /// Whether a client may load an adapter with this name.
    pub(super) fn check(&self, name: &str, rules: LoadRules) -> Result<(), ApiError> {
        self.list().check(name, rules)
    }

    /// Adds an adapter that a client loaded, or replaces the one with its name.
    pub(super) fn load(&self, served: ServedAdapter, rules: LoadRules) -> Result<(), ApiError> {
        let mut list = self.list();
        list.check(&served.name, rules)?;
        list.add(served);
        Ok(())
    }

    /// Removes the adapter with this name. Answers that use it go on.
    pub(super) fn remove(&self, name: &str) -> Result<(), ApiError> {
        let mut list = self.list();
        let count = list.entries.len();
        list.entries.retain(|entry| entry.served.name != name);
        if list.entries.len() == count {
            return Err(ApiError::unknown_adapter(name));
        }
        Ok(())
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

/// What a request changes of its model, and whose uses it counts among.
#[derive(Clone, Debug)]
pub(crate) struct AskedAdapters {
    pub(crate) content: Arc<SlotContent>,
    uses: Vec<Arc<Uses>>,
}

impl AskedAdapters {
    /// The content of a slot that adapters were combined to.
    pub(super) fn new(content: SlotContent, parts: Vec<(AdapterEntry, f32)>) -> Self {
        Self {
            content: Arc::new(content),
            uses: parts.into_iter().map(|(entry, _)| entry.uses).collect(),
        }
    }
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
        for count in this.counts() {
            count.fetch_add(1, Ordering::Relaxed);
        }
        this
    }

    /// The answer is being computed.
    pub(crate) fn run(&mut self) {
        if self.is_running {
            return;
        }
        for uses in &self.uses {
            uses.waiting.fetch_sub(1, Ordering::Relaxed);
            uses.running.fetch_add(1, Ordering::Relaxed);
        }
        self.is_running = true;
    }

    /// Where it is counted.
    fn counts(&self) -> impl Iterator<Item = &AtomicUsize> {
        self.uses.iter().map(|uses| match self.is_running {
            true => &uses.running,
            false => &uses.waiting,
        })
    }
}

impl Drop for AdapterUse {
    fn drop(&mut self) {
        for count in self.counts() {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
