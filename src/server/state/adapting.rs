//! What a model does with adapters: it combines them for an answer, and loads and unloads them for clients.

use super::ModelState;
use super::adapters::{AdapterEntry, AdapterReader, AskedAdapters, LoadRules, ServedAdapter};
use crate::engine::request::{Adapter, AdapterLayout};
use crate::server::wire::error::{ApiError, shorten};
use std::sync::Arc;

impl ModelState {
    /// What an answer changes of the model with adapters, each times a factor; `None`: nothing.
    pub(crate) fn combine(
        &self,
        parts: Vec<(AdapterEntry, f32)>,
    ) -> Result<Option<AskedAdapters>, ApiError> {
        let taken = parts.into_iter().filter(|(_, factor)| *factor != 0.0);
        let parts: Vec<_> = taken.collect();
        if parts.is_empty() {
            return Ok(None);
        }
        let layout = self.ready()?.adapters.as_ref();
        let layout = layout.ok_or_else(ApiError::internal)?;
        let adapters: Vec<_> = parts
            .iter()
            .map(|(entry, factor)| (entry.served.adapter.clone(), *factor))
            .collect();
        let content = layout.combine(&adapters).ok_or_else(|| {
            let rank = layout.room().rank;
            let message = format!("`lora`: together, the ranks exceed {rank} (--max-lora-rank)");
            ApiError::invalid("lora", message)
        })?;
        Ok(Some(AskedAdapters::new(content, parts)))
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
        let reader = self.options.adapter_reader.clone().ok_or_else(fixed)?;
        if self.model_names.contains(&name) {
            let name = shorten(&name);
            let message = format!("The lora adapter {name} conflicts with a served base model.");
            return Err(ApiError::invalid("lora_name", message));
        }
        let rules = LoadRules {
            replaces,
            adapters_max: reader.adapters_max,
        };
        self.adapters.check(&name, rules)?;
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
        let served = ServedAdapter {
            name,
            path,
            adapter: Arc::new(adapter),
            scale: 0.0,
        };
        // Another client may have loaded one meanwhile.
        self.adapters.load(served, rules)
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
