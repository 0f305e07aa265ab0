//! [`Responses`]: the responses of the Responses API that clients may refer to, in memory, within a number of bytes.
//! With a folder, they are also written to files, and read again when a server starts.
//!
//! A response is kept with the items of its own input and the id of the one that it follows, so a conversation is a
//! chain. When there is no room, the one that was not used for the longest time goes. A client sees only its own: each
//! belongs to the API key it was made with.

mod folder;

use folder::{Folder, Found};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum responses of a chain.
const CHAIN_MAX: usize = 10_000;
/// Bytes of a stored response beside its text and its ids: its entries in three maps.
const ENTRY_BYTES: usize = 512;
/// Bytes of an item's id beside its text, which is kept twice.
const ITEM_BYTES: usize = 192;

/// A response with what it was made of.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// The response object, with its output.
    pub(crate) response: Value,
    /// The items of the request's own input.
    pub(crate) input: Vec<Value>,
    /// The response that it follows.
    pub(crate) previous: Option<String>,
}

/// The stored responses of a server.
#[derive(Debug)]
pub(crate) struct Responses {
    bytes_max: usize,
    folder: Option<Folder>,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    entries: HashMap<String, Entry>,
    /// Ids by the time of their last use.
    uses: BTreeMap<u64, String>,
    /// The response that has an item, and where in its text, by the item's client and id.
    items: HashMap<(u32, String), (String, Range<usize>)>,
    now: u64,
    bytes: usize,
}

/// A kept response, as text: a tree of values takes a multiple of it.
#[derive(Debug)]
struct Entry {
    client: u32,
    text: Arc<str>,
    /// The response that it follows.
    previous: Option<String>,
    /// Ids of its items, and where in the text they are.
    items: Vec<(String, Range<usize>)>,
    bytes: usize,
    used: u64,
}

impl Entry {
    fn new(client: u32, id: &str, stored: &Stored) -> Self {
        let text: Arc<str> = stored.text().into();
        let items: Vec<_> = stored
            .items()
            .filter_map(|item| Some((item["id"].as_str()?.to_owned(), place_of(item, &text)?)))
            .collect();
        let items_bytes: usize = items
            .iter()
            .map(|(item, _)| ITEM_BYTES + 2 * item.len())
            .sum();
        let bytes = ENTRY_BYTES + text.len() + 2 * id.len() + items_bytes;
        Self {
            client,
            text,
            previous: stored.previous.clone(),
            items,
            bytes,
            used: 0,
        }
    }
}

/// A response from its text.
fn parsed(text: &str) -> Option<Stored> {
    Stored::from_value(serde_json::from_str(text).ok()?)
}

/// Where a value is in a text that has it. If there are several like it, the first one is the same.
fn place_of(item: &Value, text: &str) -> Option<Range<usize>> {
    let item = item.to_string();
    let start = text.find(&item)?;
    Some(start..start + item.len())
}

impl Stored {
    /// All items of the conversation that it adds: of the input, then of the output.
    fn items(&self) -> impl Iterator<Item = &Value> {
        let output = self.response["output"].as_array().into_iter().flatten();
        self.input.iter().chain(output)
    }

    fn text(&self) -> String {
        let Self {
            response,
            input,
            previous,
        } = self;
        json!({"response": response, "input": input, "previous": previous}).to_string()
    }

    /// From the form of [`Self::text`]; other keys are ignored.
    fn from_value(mut value: Value) -> Option<Self> {
        let Some(Value::Array(input)) = value.get_mut("input").map(Value::take) else {
            return None;
        };
        let previous = value["previous"].as_str().map(str::to_owned);
        Some(Self {
            response: value["response"].take(),
            input,
            previous,
        })
    }
}

impl Kept {
    fn insert(&mut self, id: &str, entry: Entry) {
        self.remove(id);
        self.now += 1;
        self.bytes += entry.bytes;
        self.uses.insert(self.now, id.to_owned());
        for (item, place) in &entry.items {
            self.items
                .insert((entry.client, item.clone()), (id.to_owned(), place.clone()));
        }
        self.entries.insert(
            id.to_owned(),
            Entry {
                used: self.now,
                ..entry
            },
        );
    }

    fn remove(&mut self, id: &str) {
        let Some(entry) = self.entries.remove(id) else {
            return;
        };
        self.bytes -= entry.bytes;
        self.uses.remove(&entry.used);
        for (item, _) in entry.items {
            let key = (entry.client, item);
            // A later response may have the same item.
            if self
                .items
                .get(&key)
                .is_some_and(|(response, _)| response == id)
            {
                self.items.remove(&key);
            }
        }
    }

    /// A client's response, which is now the one that was used last.
    fn find(&mut self, client: u32, id: &str) -> Option<&Entry> {
        let entry = self
            .entries
            .get_mut(id)
            .filter(|entry| entry.client == client)?;
        self.now += 1;
        self.uses.remove(&entry.used);
        entry.used = self.now;
        self.uses.insert(self.now, id.to_owned());
        Some(entry)
    }
}

impl Responses {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            folder: None,
            kept: Mutex::default(),
        }
    }

    /// A store whose responses are also files of this folder, which belong to the clients of these API keys.
    pub(crate) fn with_folder(bytes_max: usize, path: &Path, api_keys: &[String]) -> Self {
        let (mut store, folder) = (Self::new(bytes_max), Folder::new(path, api_keys));
        let found = folder.read(bytes_max);
        store.folder = Some(folder);
        for Found { client, id, stored } in found {
            if let Some(entry) = store.fitting(client, &id, &stored) {
                store.insert(&id, entry);
            }
        }
        store
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a response, unless it alone is larger than the store.
    pub(crate) fn keep(&self, client: u32, id: &str, stored: &Stored) {
        let Some(entry) = self.fitting(client, id, stored) else {
            return;
        };
        // First, so that it can be removed from the folder as soon as others can remove it here.
        if let Some(folder) = &self.folder {
            folder.write(client, id, &entry.text);
        }
        self.insert(id, entry);
    }

    /// A response as it is kept; `None` if it is larger than the store.
    fn fitting(&self, client: u32, id: &str, stored: &Stored) -> Option<Entry> {
        let entry = Entry::new(client, id, stored);
        if entry.bytes > self.bytes_max {
            tracing::warn!(
                entry.bytes,
                "a response is larger than --response-store-bytes and is not stored"
            );
            return None;
        }
        Some(entry)
    }

    /// Adds a response, and removes the oldest ones until there is room for it.
    fn insert(&self, id: &str, entry: Entry) {
        let mut kept = self.kept();
        kept.insert(id, entry);
        while kept.bytes > self.bytes_max {
            let Some(oldest) = kept.uses.values().next().cloned() else {
                break;
            };
            kept.remove(&oldest);
            self.remove_file(&oldest);
        }
    }

    fn remove_file(&self, id: &str) {
        if let Some(folder) = &self.folder {
            folder.remove(id);
        }
    }

    /// A response of this client.
    pub(crate) fn get(&self, client: u32, id: &str) -> Option<Stored> {
        let text = self.kept().find(client, id)?.text.clone();
        parsed(&text)
    }

    /// Forgets a response. Returns whether this client had it.
    pub(crate) fn delete(&self, client: u32, id: &str) -> bool {
        let mut kept = self.kept();
        let found = kept.find(client, id).is_some();
        if found {
            kept.remove(id);
            self.remove_file(id);
        }
        found
    }

    /// A response and all that it follows, newest first; `None` if one of them is not stored.
    pub(crate) fn chain(&self, client: u32, id: &str) -> Option<Chain> {
        let (mut next, mut texts) = (Some(id.to_owned()), Vec::new());
        while let Some(id) = next.take() {
            if texts.len() == CHAIN_MAX {
                return None;
            }
            let (text, previous) = {
                let mut kept = self.kept();
                let entry = kept.find(client, &id)?;
                (entry.text.clone(), entry.previous.clone())
            };
            texts.push(text);
            next = previous;
        }
        Some(Chain(texts))
    }

    /// An item of this client's responses.
    pub(crate) fn item(&self, client: u32, id: &str) -> Option<StoredItem> {
        let mut kept = self.kept();
        let (response, place) = kept.items.get(&(client, id.to_owned()))?.clone();
        let text = kept.find(client, &response)?.text.clone();
        Some(StoredItem { text, place })
    }
}

/// The texts of responses that follow each other, newest first. Reading them takes time that grows with their length.
#[derive(Default)]
pub(crate) struct Chain(Vec<Arc<str>>);

impl Chain {
    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(|text| text.len()).sum()
    }

    /// The items of all responses, oldest first; `None` if a response cannot be read.
    pub(crate) fn items(&self) -> Option<Vec<Value>> {
        let mut all = Vec::new();
        for text in self.0.iter().rev() {
            all.extend(parsed(text)?.items().cloned());
        }
        Some(all)
    }
}

/// The text of an item, within that of its response.
pub(crate) struct StoredItem {
    text: Arc<str>,
    place: Range<usize>,
}

impl StoredItem {
    pub(crate) fn bytes(&self) -> usize {
        self.place.len()
    }

    pub(crate) fn value(&self) -> Option<Value> {
        serde_json::from_str(&self.text[self.place.clone()]).ok()
    }
}

#[cfg(test)]
mod tests;
