//! [`Folder`]: stored responses as files, so that they outlive the server.
//!
//! A file names the API key that its response belongs to by a digest, because indices change when keys are added. A
//! response whose key is not known any more is left where it is, and nobody sees it.

use super::Stored;
use crate::platform;
use serde_json::Value;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Ending of the files.
const ENDING: &str = "json";
/// What a file has beside the text of its response: the digest of a key.
const ENVELOPE: u64 = 1 << 10;
/// Domain of the digests of keys.
const DIGEST: &str = "folio: the API key of a stored response";

/// A folder of stored responses.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Digests of the API keys; without keys, of the empty one.
    clients: Vec<String>,
}

/// A response that was read from a folder.
pub(super) struct Found {
    pub(super) client: u32,
    pub(super) id: String,
    pub(super) stored: Stored,
}

impl Folder {
    pub(super) fn new(path: &Path, api_keys: &[String]) -> Self {
        let digest = |key: &str| blake3::Hash::from(digest(key)).to_hex().to_string();
        let clients = if api_keys.is_empty() {
            vec![digest("")]
        } else {
            api_keys.iter().map(|key| digest(key)).collect()
        };
        Self {
            path: path.to_owned(),
            clients,
        }
    }

    fn file(&self, id: &str) -> PathBuf {
        self.path.join(id).with_extension(ENDING)
    }

    /// Everything that belongs to a known key, oldest first. Files that are not responses are left out, and logged.
    pub(super) fn read(&self, bytes_max: usize) -> Vec<Found> {
        let entries = fs::read_dir(&self.path)
            .into_iter()
            .flatten()
            .filter_map(Result::ok);
        let mut files: Vec<(SystemTime, PathBuf)> = entries
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|ending| ending == ENDING))
            .filter_map(|path| Some((fs::symlink_metadata(&path).ok()?.modified().ok()?, path)))
            .collect();
        files.sort();
        files
            .iter()
            .filter_map(|(_, path)| self.read_one(path, bytes_max))
            .collect()
    }

    fn read_one(&self, path: &Path, bytes_max: usize) -> Option<Found> {
        let lost = |why: &dyn std::fmt::Display| tracing::warn!(file = %path.display(), %why, "no stored response");
        let most = (bytes_max as u64).saturating_add(ENVELOPE);
        let bytes = platform::read_own_file(path, most)
            .map_err(|error| lost(&error))
            .ok()?;
        let value: Value = serde_json::from_slice(&bytes)
            .map_err(|error| lost(&error))
            .ok()?;
        let client = self
            .clients
            .iter()
            .position(|client| value["client"] == client.as_str())?;
        let Some(stored) = Stored::from_value(value) else {
            lost(&"`input` is missing");
            return None;
        };
        let id = path.file_stem()?.to_str()?.to_owned();
        Some(Found {
            client: client as u32,
            id,
            stored,
        })
    }

    /// Writes a response, the text of an object, which appears at once and whole.
    pub(super) fn write(&self, client: u32, id: &str, text: &str) {
        let Some(client) = self.clients.get(client as usize) else {
            return;
        };
        let head = format!("{{\"client\":{},", Value::from(client.as_str()));
        let parts = [
            head.as_bytes(),
            text.strip_prefix('{').unwrap_or(text).as_bytes(),
        ];
        if let Err(error) = platform::write_own_file(&self.file(id), &parts) {
            tracing::warn!(%error, folder = %self.path.display(), "a response could not be stored in its folder");
        }
    }

    pub(super) fn remove(&self, id: &str) {
        match fs::remove_file(self.file(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, folder = %self.path.display(), "a stored response could not be removed");
            }
            _ => {}
        }
    }
}

fn digest(key: &str) -> [u8; 32] {
    blake3::derive_key(DIGEST, key.as_bytes())
}
