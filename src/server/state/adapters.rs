//! Adapters that are served as models of their own.

use super::ModelState;
use crate::engine::request::SlotContent;
use crate::server::wire::error::ApiError;
use std::sync::Arc;

/// A LoRA adapter, and the name that requests call it by.
#[derive(Clone, Debug)]
pub struct ServedAdapter {
    /// The name.
    pub name: String,
    /// Where it was read, for lists.
    pub path: String,
    /// What it changes.
    pub content: Arc<SlotContent>,
}

impl ModelState {
    /// The adapter with this name.
    pub(crate) fn adapter(&self, name: &str) -> Option<&ServedAdapter> {
        let name = name.strip_suffix(":latest").unwrap_or(name);
        let adapters = &self.options.adapters;
        adapters.iter().find(|adapter| adapter.name == name)
    }

    /// Refuses the name of an adapter where only answers have one.
    pub(crate) fn base(&self, asked: Option<String>) -> Result<String, ApiError> {
        let name = self.model(asked)?;
        match self.adapter(&name) {
            Some(_) => Err(ApiError::invalid(
                "model",
                format!("`model`: {name} is an adapter, which changes answers only; use its base"),
            )),
            None => Ok(name),
        }
    }
}
