//! A conversation: its messages and the fields of its requests, which can be kept in files.

use crate::cli::folders;
use anyhow::{Context as _, Result, ensure};
use folio::platform;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// The folder of conversations, in the user's data folder.
const FOLDER: &str = "conversations";
const ENDING: &str = "json";
/// Maximum bytes of a conversation's file.
const BYTES_MAX: u64 = 64 << 20;

/// A conversation. A file of it is its JSON.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Conversation {
    /// As a chat request has them; a system message comes first.
    pub(super) messages: Vec<Value>,
    /// Fields that were set, besides those of the command line.
    #[serde(default)]
    pub(super) fields: Map<String, Value>,
}

impl Conversation {
    pub(super) fn new(system: Option<&str>) -> Self {
        let mut conversation = Self::default();
        conversation.set_system(system);
        conversation
    }

    /// Replaces the system message.
    pub(super) fn set_system(&mut self, text: Option<&str>) {
        self.messages.retain(|message| !is_system(message));
        if let Some(text) = text {
            self.messages
                .insert(0, json!({"role": "system", "content": text}));
        }
    }

    /// Removes all messages except the system's.
    pub(super) fn reset(&mut self) {
        self.messages.retain(is_system);
    }

    /// Writes the conversation to a file that only this user can read, and returns its path.
    pub(super) fn save(&self, name: &str) -> Result<PathBuf> {
        let path = path_of(name)?;
        let json = serde_json::to_vec_pretty(self)?;
        platform::write_own_file(&path, &[&json]).with_context(|| path.display().to_string())?;
        Ok(path)
    }

    /// Reads a conversation.
    pub(super) fn load(name: &str) -> Result<Self> {
        let path = path_of(name)?;
        let at = || path.display().to_string();
        let json = platform::read_file(&path, BYTES_MAX).with_context(at)?;
        serde_json::from_slice(&json).with_context(at)
    }
}

/// A text file as part of a message, as the chat page sends it: fenced by more backticks than it has.
pub(super) fn attached(name: &str, text: &str) -> String {
    let longest = text
        .split(|c| c != '`')
        .map(str::len)
        .max()
        .unwrap_or(0)
        .max(2);
    let fence = "`".repeat(longest + 1);
    format!(
        "File {name}:\n{fence}\n{}\n{fence}\n\n",
        text.strip_suffix('\n').unwrap_or(text)
    )
}

/// Names of the conversations that were saved.
pub(super) fn saved() -> Result<Vec<String>> {
    let mut names: Vec<String> = std::fs::read_dir(folder()?)?
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let is_one = path.extension().is_some_and(|ending| ending == ENDING);
            is_one
                .then(|| {
                    path.file_stem()
                        .map(|stem| stem.to_string_lossy().into_owned())
                })
                .flatten()
        })
        .collect();
    names.sort();
    Ok(names)
}

fn is_system(message: &Value) -> bool {
    message["role"] == "system"
}

fn folder() -> Result<PathBuf> {
    let folder = folders::data()?.join(FOLDER);
    platform::create_own_folder(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

/// A path stays one; another name is that of a file in the folder of conversations.
fn path_of(name: &str) -> Result<PathBuf> {
    let path = Path::new(name);
    if path.extension().is_some_and(|ending| ending == ENDING) {
        return Ok(path.to_owned());
    }
    ensure!(
        !name.starts_with('.')
            && name
                .chars()
                .all(|c: char| c.is_alphanumeric() || "-_. ".contains(c)),
        "`{name}` is not a name of letters, digits, spaces, - and _, and not a path that ends with .{ENDING}"
    );
    Ok(folder()?.join(format!("{name}.{ENDING}")))
}

#[cfg(test)]
mod tests;
