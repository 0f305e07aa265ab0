//! Options that decide who may use the server: API keys, host names, origins.
//!
//! A security setting fails closed: an empty or malformed value is an error at start, never a setting that is off. A
//! variable that is set but empty (`FOLIO_API_KEY=`) counts as an empty value.

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use std::fs;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(next_help_heading = "Access")]
pub(crate) struct AccessArgs {
    /// API key that requests must send; may be given several times. Other users of this machine can see it in the list
    /// of processes; --api-key-file is safer
    #[arg(
        long,
        env = "FOLIO_API_KEY",
        value_name = "KEY",
        hide_env_values = true
    )]
    api_key: Vec<String>,
    /// File with API keys, one per line; with several keys, waiting requests are served round-robin by key
    #[arg(long, env = "FOLIO_API_KEY_FILE", value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Let clients with different API keys share cached prompts. Then each can find out by its answers' times, and by
    /// cached_tokens, what the others have asked
    #[arg(long, env = "FOLIO_SHARE_PREFIXES")]
    share_prefixes: bool,
    /// Origin of a site whose pages may use this server, such as https://example.org, http://localhost:* or app://; *
    /// stands for any characters; may be given several times
    #[arg(long, env = "FOLIO_ALLOWED_ORIGINS", value_name = "ORIGIN", value_delimiter = ',', value_parser = origin)]
    allowed_origins: Vec<String>,
    /// Host name of this server in requests without an API key, besides localhost, IP addresses and the machine's own
    /// names; * stands for any characters (*.example.org); may be given several times
    #[arg(long, env = "FOLIO_ALLOWED_HOST", value_name = "HOST", value_delimiter = ',', value_parser = host_pattern)]
    allowed_host: Vec<String>,
    /// Let /metrics be read without an API key
    #[arg(long, env = "FOLIO_METRICS_OPEN")]
    metrics_open: bool,
}

/// Checked settings.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) api_keys: Vec<String>,
    pub(crate) allowed_origins: Vec<String>,
    pub(crate) allowed_hosts: Vec<String>,
    pub(crate) metrics_open: bool,
    pub(crate) share_prefixes: bool,
}

impl AccessArgs {
    /// Reads the key file and checks all keys. No message repeats a key.
    pub(crate) fn read(&self) -> Result<Access> {
        let mut api_keys = self.api_key.clone();
        for key in &api_keys {
            check_key(key).context("--api-key (FOLIO_API_KEY)")?;
        }
        if let Some(path) = &self.api_key_file {
            let name = format!("--api-key-file {}", path.display());
            let text = fs::read_to_string(path).with_context(|| name.clone())?;
            api_keys.extend(keys_of(&text).context(name)?);
        }
        let (allowed_origins, allowed_hosts) =
            (self.allowed_origins.clone(), self.allowed_host.clone());
        let Self {
            metrics_open,
            share_prefixes,
            ..
        } = *self;
        Ok(Access {
            api_keys,
            allowed_origins,
            allowed_hosts,
            metrics_open,
            share_prefixes,
        })
    }
}

/// The keys of a file. Blank lines are skipped.
fn keys_of(text: &str) -> Result<Vec<String>> {
    let mut keys = Vec::new();
    for (line, key) in (1..)
        .zip(text.lines().map(str::trim))
        .filter(|(_, key)| !key.is_empty())
    {
        check_key(key).with_context(|| format!("line {line}"))?;
        keys.push(key.to_owned());
    }
    ensure!(!keys.is_empty(), "the file has no key");
    Ok(keys)
}

/// Only keys that a client can send in a header, and that are certainly one key.
fn check_key(key: &str) -> Result<()> {
    ensure!(!key.is_empty(), "the key is empty");
    ensure!(
        !key.contains(','),
        "the key contains a comma: pass --api-key several times, or use --api-key-file"
    );
    ensure!(
        key.bytes().all(|byte| byte.is_ascii_graphic()),
        "a key consists of ASCII characters without spaces"
    );
    Ok(())
}

/// Before the path of a Unix socket.
pub(crate) const UNIX: &str = "unix:";

/// Where to listen: a [`host`], or `unix:PATH`.
pub(crate) fn place(text: &str) -> Result<String> {
    match text.strip_prefix(UNIX) {
        None => host(text),
        Some("") => bail!("expected the path of a socket after unix:"),
        Some(_) if cfg!(not(unix)) => bail!("this system has no Unix sockets here"),
        Some(_) => Ok(text.to_owned()),
    }
}

/// The path under which a proxy offers the server, without a slash at its end.
pub(crate) fn root_path(text: &str) -> Result<String> {
    let path = text.trim_end_matches('/');
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte);
    ensure!(
        path.is_empty() || (path.starts_with('/') && path.bytes().all(is_plain)),
        "expected a path such as /llm"
    );
    Ok(path.to_owned())
}

/// A host name or address as in a `Host` header, without its port, or `*`.
pub(crate) fn host(text: &str) -> Result<String> {
    let is_address = text
        .trim_matches(['[', ']'])
        .parse::<std::net::IpAddr>()
        .is_ok();
    if text == "*"
        || is_address
        || (!text.is_empty()
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)))
    {
        return Ok(text.to_owned());
    }
    bail!("expected a host name without scheme and port, such as gpu.example.org")
}

/// A [`host`] in which `*` stands for any characters.
fn host_pattern(text: &str) -> Result<String> {
    host(&text.replace('*', "x")).map(|_| text.to_owned())
}

/// Names under which other machines of a network find this one, if it has the name `name`. None of the domains can be
/// registered by a stranger.
pub(crate) fn own_names(name: &str) -> Vec<String> {
    let domains = [
        "",
        ".local",
        ".lan",
        ".home",
        ".home.arpa",
        ".internal",
        ".localdomain",
    ];
    domains
        .iter()
        .map(|domain| format!("{name}{domain}"))
        .filter(|name| host(name).is_ok())
        .collect()
}

/// An origin as browsers send it (scheme, host and port, without a trailing slash), in which `*` stands for any
/// characters of host and port. A scheme that belongs to one application may stand alone: `app://`.
fn origin(text: &str) -> Result<String> {
    let text = without_list(text);
    match text.split_once("://") {
        Some((scheme, "")) if is_scheme(scheme) && !["http", "https"].contains(&scheme) => {
            return Ok(format!("{scheme}://*"));
        }
        Some((scheme, host)) if is_scheme(scheme) => {
            let host = host.trim_end_matches('/');
            if !host.is_empty() && is_plain(host) {
                return Ok(format!("{scheme}://{host}"));
            }
        }
        _ if text == "*" => return Ok(text.to_owned()),
        _ => {}
    }
    bail!("expected an origin such as https://example.org, or *")
}

/// An entry of a JSON list, as vLLM takes origins, whose commas have already separated it.
fn without_list(text: &str) -> &str {
    let text = text.trim();
    let text = text.strip_prefix('[').unwrap_or(text).trim();
    let Some(text) = text.strip_prefix('"') else {
        return text;
    };
    let text = text.strip_suffix(']').unwrap_or(text).trim();
    text.strip_suffix('"').unwrap_or(text)
}

fn is_scheme(scheme: &str) -> bool {
    !scheme.is_empty() && is_plain(scheme) && !scheme.contains('*')
}

fn is_plain(part: &str) -> bool {
    part.bytes()
        .all(|b| b.is_ascii_graphic() && !b"/?#@".contains(&b))
}

#[cfg(test)]
mod tests;
