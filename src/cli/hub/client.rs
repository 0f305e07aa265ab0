//! Requests to the hub: bounded retries, and errors that say what to do.
//!
//! Redirects are followed here and not by the HTTP library, for two reasons: the token must be sent only to the
//! endpoint, and a file's hash and size come from the hub's own response, before the redirect. (The crate `hf-hub` does
//! not fit: before 1.0 it sends the token to the target of a redirect and verifies no hash; since 1.0 it includes its
//! own storage system.)

use super::name::{is_commit, is_hex, is_hostile};
use super::retry::Retry;
use super::settings::Settings;
use crate::cli::terminal::progress::{Phase, Unit};
use folio::model::repository::is_plain;
use serde::Deserialize;
use std::io::Read as _;
use std::ops::Range;
use std::time::Duration;
use ureq::http::{HeaderMap, Response, Uri};
use ureq::{Agent, Body};

/// Maximum redirects of one request.
const REDIRECTS_MAX: usize = 5;
/// A connection that receives nothing for this long counts as closed.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Timeout for the DNS lookup and for connecting.
const CONNECT_MAX: Duration = Duration::from_secs(15);
/// Maximum bytes of the list of a repository's files.
const LIST_BYTES_MAX: u64 = 64 << 20;
/// Maximum characters of a message from the hub that are shown.
const MESSAGE_CHARS_MAX: usize = 200;

/// A connection to one hub.
pub(super) struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    /// The hub cannot be reached or is overloaded; the cached model may be used instead.
    #[error("{0}")]
    Unreachable(String),
    /// The repository does not exist, or is hidden.
    #[error("{0}")]
    Missing(String),
    /// Any other refusal, or an invalid response.
    #[error("{0}")]
    Refused(String),
}

/// The state of a repository.
#[derive(Debug)]
pub(super) struct Listing {
    /// The commit that the revision currently points to.
    pub(super) commit: String,
    /// Names of its files, only plain ones.
    pub(super) names: Vec<String>,
}

/// Metadata of one file on the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remote {
    /// Path in the repository.
    pub(super) name: String,
    /// SHA-256 of the contents, or git's SHA-1 of the blob, in hex.
    pub(super) hash: String,
    /// Bytes.
    pub(super) size: u64,
}

#[derive(Deserialize)]
struct RevisionJson {
    sha: String,
    #[serde(default)]
    siblings: Vec<SiblingJson>,
}

#[derive(Deserialize)]
struct SiblingJson {
    rfilename: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Get,
    /// A HEAD request. A redirect to another origin is not followed; it is the response.
    Head,
}

impl Client {
    /// A client; it does not connect yet.
    pub(super) fn new(settings: &Settings) -> Self {
        let config = Agent::config_builder()
            .user_agent(concat!("folio/", env!("CARGO_PKG_VERSION")))
            // No compression: the bytes are counted and hashed as sent.
            .accept_encoding("identity")
            .max_redirects(0)
            .http_status_as_error(false)
            .timeout_resolve(Some(CONNECT_MAX))
            .timeout_connect(Some(CONNECT_MAX))
            .timeout_recv_response(Some(SILENCE_MAX))
            .timeout_per_read(Some(SILENCE_MAX))
            .build();
        Self {
            agent: config.into(),
            endpoint: settings.endpoint.clone(),
            token: settings.token.clone(),
        }
    }

    /// Says what is waited for while the hub is asked about a repository.
    pub(super) fn asking(&self, repo: &str) -> Phase {
        Phase::start(
            format!("asking {} about {repo}", self.endpoint),
            Unit::Pieces,
        )
    }

    /// The commit and the files of a revision.
    pub(super) fn listing(&self, repo: &str, revision: &str) -> Result<Listing, FetchError> {
        let _phase = self.asking(repo);
        let url = format!(
            "{}/api/models/{repo}/revision/{}",
            self.endpoint,
            encoded(revision, "")
        );
        let mut answer = self.ask(
            Method::Get,
            &url,
            None,
            repo,
            &format!("revision {revision}"),
        )?;
        let body = answer
            .body_mut()
            .with_config()
            .limit(LIST_BYTES_MAX)
            .read_to_vec();
        let body = body.map_err(|error| FetchError::Unreachable(format!("{url}: {error}")))?;
        let parsed: RevisionJson = serde_json::from_slice(&body).map_err(|error| {
            FetchError::Refused(format!(
                "{url}: the response is not a list of files ({error}); check HF_ENDPOINT"
            ))
        })?;
        if !is_commit(&parsed.sha) {
            return Err(FetchError::Refused(format!(
                "{url}: invalid commit hash {:?}",
                shortened(&parsed.sha)
            )));
        }
        let names: Vec<String> = parsed
            .siblings
            .into_iter()
            .map(|sibling| sibling.rfilename)
            .collect();
        if let Some(name) = names.iter().find(|name| is_hostile(name)) {
            let name = shortened(name);
            return Err(FetchError::Refused(format!(
                "{repo} lists the file {name:?}, which is outside the repository"
            )));
        }
        Ok(Listing {
            commit: parsed.sha,
            names: names.into_iter().filter(|name| is_plain(name)).collect(),
        })
    }

    /// Hash and size of one file of a commit.
    pub(super) fn remote(
        &self,
        repo: &str,
        commit: &str,
        name: &str,
    ) -> Result<Remote, FetchError> {
        let url = self.file_url(repo, commit, name);
        let answer = self.ask(Method::Head, &url, None, repo, &format!("file {name}"))?;
        let headers = answer.headers();
        let refuse = |message: &str| FetchError::Refused(format!("{repo}: {name}: {message}"));
        if header(headers, "x-repo-commit").is_some_and(|found| found != commit) {
            return Err(refuse("the hub answered with another commit"));
        }
        let tag = header(headers, "x-linked-etag")
            .or_else(|| header(headers, "etag"))
            .unwrap_or_default();
        let hash = tag.trim_start_matches("W/").trim_matches('"').to_owned();
        if !matches!(hash.len(), 40 | 64) || !is_hex(&hash) {
            return Err(refuse("the hub sent no hash"));
        }
        let size = header(headers, "x-linked-size").or_else(|| header(headers, "content-length"));
        let size = size
            .and_then(|size| size.parse().ok())
            .ok_or_else(|| refuse("the hub sent no size"))?;
        Ok(Remote {
            name: name.to_owned(),
            hash,
            size,
        })
    }

    /// Requests a file's bytes from `start` on. The response is 206, or 200 with all bytes, or 416 if there are none
    /// from `start` on.
    pub(super) fn bytes(
        &self,
        repo: &str,
        commit: &str,
        name: &str,
        start: u64,
    ) -> Result<Response<Body>, FetchError> {
        let url = self.file_url(repo, commit, name);
        let range = (start > 0).then(|| format!("bytes={start}-"));
        self.ask(
            Method::Get,
            &url,
            range.as_deref(),
            repo,
            &format!("file {name}"),
        )
    }

    /// Exactly these bytes of a file. They must exist.
    pub(super) fn piece(
        &self,
        repo: &str,
        commit: &str,
        name: &str,
        bytes: Range<u64>,
    ) -> Result<Vec<u8>, FetchError> {
        if bytes.is_empty() {
            return Ok(Vec::new());
        }
        let url = self.file_url(repo, commit, name);
        let range = format!("bytes={}-{}", bytes.start, bytes.end - 1);
        let mut answer = self.ask(
            Method::Get,
            &url,
            Some(&range),
            repo,
            &format!("file {name}"),
        )?;
        let begins = header(answer.headers(), "content-range").unwrap_or_default();
        let is_range =
            answer.status() == 206 && begins.starts_with(&format!("bytes {}-", bytes.start));
        // A hub without range requests sends the file from its beginning.
        if !is_range && (answer.status() != 200 || bytes.start > 0) {
            return Err(FetchError::Refused(format!(
                "{repo}: {name}: the hub does not support range requests"
            )));
        }
        let (length, mut read) = (bytes.end - bytes.start, Vec::new());
        let outcome = answer
            .body_mut()
            .as_reader()
            .take(length)
            .read_to_end(&mut read);
        match outcome {
            Ok(count) if count as u64 == length => Ok(read),
            Ok(count) => Err(FetchError::Unreachable(format!(
                "{name}: connection closed after {count} bytes"
            ))),
            Err(error) => Err(FetchError::Unreachable(format!("{name}: {error}"))),
        }
    }

    fn file_url(&self, repo: &str, commit: &str, name: &str) -> String {
        format!(
            "{}/{repo}/resolve/{commit}/{}",
            self.endpoint,
            encoded(name, "/")
        )
    }

    /// Sends a request until there is a final response, or the retries are used up.
    fn ask(
        &self,
        method: Method,
        url: &str,
        range: Option<&str>,
        repo: &str,
        subject: &str,
    ) -> Result<Response<Body>, FetchError> {
        let mut retry = Retry::default();
        loop {
            match self.follow(method, url, range) {
                Ok(answer) => {
                    let status = answer.status().as_u16();
                    let redirected = method == Method::Head && (300..400).contains(&status);
                    if answer.status().is_success() || status == 416 || redirected {
                        return Ok(answer);
                    }
                    let wait = header(answer.headers(), "retry-after")
                        .and_then(|text| text.trim().parse().ok());
                    if !matches!(status, 429 | 500 | 502 | 503 | 504) || !retry.wait(wait) {
                        return Err(self.refusal(&answer, repo, subject, wait));
                    }
                }
                Err(AttemptError::Fetch(error)) => return Err(error),
                Err(AttemptError::Transport(error)) => {
                    if is_hopeless(&error) || !retry.wait(None) {
                        let (endpoint, error) = (&self.endpoint, in_words(&error));
                        return Err(FetchError::Unreachable(format!(
                            "cannot reach {endpoint}: {error}"
                        )));
                    }
                }
            }
        }
    }

    fn follow(
        &self,
        method: Method,
        url: &str,
        range: Option<&str>,
    ) -> Result<Response<Body>, AttemptError> {
        let mut url = url.to_owned();
        for _ in 0..=REDIRECTS_MAX {
            let mut request = match method {
                Method::Get => self.agent.get(&url),
                Method::Head => self.agent.head(&url),
            };
            if let (Some(token), true) = (&self.token, same_origin(&url, &self.endpoint)) {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            if let Some(range) = range {
                request = request.header("Range", range);
            }
            let answer = request.call().map_err(AttemptError::Transport)?;
            if !matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(answer);
            }
            let location = header(answer.headers(), "location").unwrap_or_default();
            let next = next_url(&url, location).ok_or_else(|| {
                AttemptError::Fetch(FetchError::Refused(format!(
                    "{url}: invalid redirect to {:?}",
                    shortened(location)
                )))
            })?;
            if method == Method::Head && !same_origin(&next, &self.endpoint) {
                return Ok(answer);
            }
            url = next;
        }
        Err(AttemptError::Fetch(FetchError::Refused(format!(
            "{url}: more than {REDIRECTS_MAX} redirects"
        ))))
    }

    /// The error of a response that is a refusal.
    fn refusal(
        &self,
        answer: &Response<Body>,
        repo: &str,
        subject: &str,
        wait: Option<u64>,
    ) -> FetchError {
        let status = answer.status().as_u16();
        let code = header(answer.headers(), "x-error-code").unwrap_or_default();
        let said = header(answer.headers(), "x-error-message")
            .map(|text| format!(": {}", shortened(text)));
        let (endpoint, said) = (&self.endpoint, said.unwrap_or_default());
        let has_token = self.token.is_some();
        let message = match (status, code) {
            (401 | 403, "GatedRepo") if has_token => {
                format!(
                    "{repo} is gated and HF_TOKEN has no access yet: request it at {endpoint}/{repo}"
                )
            }
            (401 | 403, "GatedRepo") => {
                format!("{repo} is gated: accept its terms at {endpoint}/{repo}, then set HF_TOKEN")
            }
            (401 | 404, "RepoNotFound") | (401, _) if !has_token => {
                let hint = "if it is a private repository, set HF_TOKEN";
                return FetchError::Missing(format!(
                    "{repo} was not found at {endpoint} ({status}): {hint}"
                ));
            }
            (401, _) => format!("{endpoint} rejected HF_TOKEN for {repo} ({status}{said})"),
            (403, _) => format!(
                "{endpoint} denied access to {repo} ({status}{said}): check that HF_TOKEN may read it"
            ),
            (404, "RepoNotFound") => {
                return FetchError::Missing(format!(
                    "{repo} was not found at {endpoint} with this HF_TOKEN (404)"
                ));
            }
            (404, "RevisionNotFound" | "EntryNotFound") => format!("{repo} has no {subject}"),
            (404, _) => {
                return FetchError::Missing(format!("{repo} at {endpoint} has no {subject} (404)"));
            }
            (429, _) => {
                let wait =
                    wait.map_or_else(String::new, |seconds| format!("; retry after {seconds} s"));
                return FetchError::Unreachable(format!(
                    "{endpoint}: too many requests (429{said}{wait})"
                ));
            }
            _ => {
                let message = format!(
                    "{endpoint} answered {status} to a request for {subject} of {repo}{said}"
                );
                return if status >= 500 {
                    FetchError::Unreachable(message)
                } else {
                    FetchError::Refused(message)
                };
            }
        };
        FetchError::Refused(message)
    }
}

/// Why one attempt failed.
enum AttemptError {
    Transport(ureq::Error),
    Fetch(FetchError),
}

/// Whether a retry would fail in the same way.
fn is_hopeless(error: &ureq::Error) -> bool {
    use std::io::ErrorKind::{
        ConnectionAborted, ConnectionReset, Interrupted, TimedOut, UnexpectedEof, WouldBlock,
    };
    match error {
        ureq::Error::Io(error) => {
            let passing = [
                ConnectionAborted,
                ConnectionReset,
                Interrupted,
                TimedOut,
                UnexpectedEof,
                WouldBlock,
            ];
            !passing.contains(&error.kind()) && error.kind() != std::io::ErrorKind::BrokenPipe
        }
        ureq::Error::Timeout(_) => false,
        _ => true,
    }
}

fn in_words(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Io(error) => error.to_string(),
        other => other.to_string(),
    }
}

/// A header that is text.
pub(super) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Text from the hub, escaped and shortened to one line of a terminal.
fn shortened(text: &str) -> String {
    text.chars()
        .filter(|character| !character.is_control())
        .take(MESSAGE_CHARS_MAX)
        .collect()
}

/// Scheme, host and port.
fn origin(url: &str) -> Option<(String, String, u16)> {
    let uri: Uri = url.parse().ok()?;
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let port = uri
        .port_u16()
        .unwrap_or(if scheme == "https" { 443 } else { 80 });
    Some((scheme, uri.host()?.to_ascii_lowercase(), port))
}

fn same_origin(a: &str, b: &str) -> bool {
    origin(a).is_some_and(|found| origin(b) == Some(found))
}

/// The target of a redirect. `None` if it is not a URL, or leads from https to http.
fn next_url(url: &str, location: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let next = if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{}{location}", rest.split('/').next()?)
    } else {
        location.to_owned()
    };
    let (to, ..) = origin(&next)?;
    (to == "https" || to == "http" && scheme == "http").then_some(next)
}

/// Percent-encodes everything except letters, digits, `-._~` and the characters in `kept`.
fn encoded(text: &str, kept: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let character = char::from(byte);
        if byte.is_ascii_alphanumeric() || "-._~".contains(character) || kept.contains(character) {
            out.push(character);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests;
