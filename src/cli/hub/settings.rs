//! Settings of the hub: its address, the cache's path and the token, from the same variables that Python's
//! `huggingface_hub` reads.

use super::cache::Cache;
use anyhow::{Context as _, Result, ensure};
use std::ffi::OsString;
use std::path::PathBuf;

/// The default hub.
const ENDPOINT: &str = "https://huggingface.co";
/// Maximum bytes of a token file: a token is one short line.
const TOKEN_BYTES_MAX: u64 = 4096;

/// Settings from the environment.
pub(crate) struct Settings {
    /// Address of the hub, without a trailing `/`.
    pub(super) endpoint: String,
    /// Access token; it is sent only to the endpoint.
    pub(super) token: Option<String>,
    /// The cache.
    pub(crate) cache: Cache,
    /// No network access.
    pub(super) offline: bool,
}

impl Settings {
    /// Reads the variables. `offline` is the command line's option.
    pub(crate) fn from_env(offline: bool) -> Result<Self> {
        let home = home()?;
        let cache = variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE"));
        let cache = cache.map_or_else(|| home.join("hub"), expanded);
        let endpoint = match variable("HF_ENDPOINT") {
            Some(endpoint) => endpoint
                .into_string()
                .ok()
                .context("HF_ENDPOINT is not UTF-8")?,
            None => ENDPOINT.to_owned(),
        };
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let has_scheme = endpoint.starts_with("https://") || endpoint.starts_with("http://");
        ensure!(
            has_scheme,
            "HF_ENDPOINT: {endpoint:?} is not a URL (https://…)"
        );
        let offline = offline || variable("HF_HUB_OFFLINE").is_some_and(|value| is_true(&value));
        let token = if offline { None } else { token(&home)? };
        Ok(Self {
            endpoint,
            token,
            cache: Cache::new(cache),
            offline,
        })
    }
}

/// The value of a variable that is set and not empty.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn is_true(value: &OsString) -> bool {
    ["1", "true", "yes", "on"]
        .iter()
        .any(|known| value.eq_ignore_ascii_case(known))
}

/// Replaces a leading `~` by the user's home folder.
fn expanded(path: OsString) -> PathBuf {
    let path = PathBuf::from(path);
    match (path.strip_prefix("~"), std::env::home_dir()) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path,
    }
}

/// The folder with the cache and the token.
fn home() -> Result<PathBuf> {
    if let Some(home) = variable("HF_HOME") {
        return Ok(expanded(home));
    }
    let cache = variable("XDG_CACHE_HOME").map(expanded);
    let cache = cache.or_else(|| {
        Some(
            std::env::home_dir()
                .filter(|home| home.is_absolute())?
                .join(".cache"),
        )
    });
    Ok(cache
        .context("no home directory for the cache: set HF_HOME")?
        .join("huggingface"))
}

/// The token from `HF_TOKEN`, or else from the file that a login wrote.
fn token(home: &std::path::Path) -> Result<Option<String>> {
    let named = variable("HF_TOKEN").or_else(|| variable("HUGGING_FACE_HUB_TOKEN"));
    let (place, token) = match named {
        Some(token) => ("HF_TOKEN".to_owned(), token.to_string_lossy().into_owned()),
        None => {
            let path = variable("HF_TOKEN_PATH").map_or_else(|| home.join("token"), expanded);
            match folio::platform::read_file(&path, TOKEN_BYTES_MAX) {
                Ok(bytes) => (
                    path.display().to_string(),
                    String::from_utf8_lossy(&bytes).into_owned(),
                ),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error).with_context(|| path.display().to_string()),
            }
        }
    };
    let token = token.trim();
    // The value itself is never printed.
    ensure!(
        token.bytes().all(|byte| byte.is_ascii_graphic()),
        "{place} is not a valid token"
    );
    Ok((!token.is_empty()).then(|| token.to_owned()))
}
