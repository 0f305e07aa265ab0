//! Model names of the form `org/repo[@revision][:QUANT_OR_FILE]`, or short ones such as `qwen3:0.6b`, and the check of
//! file names from a hub.
//!
//! Names become parts of paths and URLs, so a name that could lead outside its folder is refused.

use folio::model::ShortName;
use folio::model::repository::is_plain;
use std::fmt;
use std::str::FromStr;

/// The default branch.
const DEFAULT_REVISION: &str = "main";
/// The hub's limit for the length of the owner's or the repository's name.
const PART_BYTES_MAX: usize = 96;

/// The parsed name of a model on a hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HubName {
    /// `org/repo`.
    pub(super) repo: String,
    /// A branch, a tag or a commit, if one was named.
    revision: Option<String>,
    /// The part after the colon: a quantization, or the name of a GGUF file.
    pub(super) requested: Option<String>,
}

impl HubName {
    /// The branch, tag or commit.
    pub(super) fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(DEFAULT_REVISION)
    }
}

impl FromStr for HubName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = ShortName::find(text).map_or(text, |short| short.repository);
        let (head, requested) = text
            .split_once(':')
            .map_or((text, None), |(head, requested)| (head, Some(requested)));
        let (repo, revision) = head
            .split_once('@')
            .map_or((head, None), |(repo, revision)| (repo, Some(revision)));
        match repo.split('/').collect::<Vec<_>>()[..] {
            [org, name] if is_part(org) && is_part(name) => {}
            _ => {
                return Err(format!(
                    "`{repo}` is not of the form org/repo, nor a short name"
                ));
            }
        }
        if let Some(revision) = revision.filter(|revision| !is_revision(revision)) {
            return Err(format!("`{revision}` is not a valid branch, tag or commit"));
        }
        if let Some(requested) = requested.filter(|requested| !is_plain(requested)) {
            return Err(format!(
                "`{requested}` is not a valid quantization or file name"
            ));
        }
        Ok(Self {
            repo: repo.to_owned(),
            revision: revision.map(str::to_owned),
            requested: requested.map(str::to_owned),
        })
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.repo)?;
        self.revision
            .as_ref()
            .map_or(Ok(()), |revision| write!(out, "@{revision}"))?;
        self.requested
            .as_ref()
            .map_or(Ok(()), |requested| write!(out, ":{requested}"))
    }
}

/// The hub's rule for the names of owners and repositories.
fn is_part(part: &str) -> bool {
    !part.is_empty()
        && part.len() <= PART_BYTES_MAX
        && part
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
        && !part.starts_with(['-', '.'])
        && !part.ends_with(['-', '.'])
        && !part.contains("--")
        && !part.contains("..")
}

fn is_revision(revision: &str) -> bool {
    is_plain(revision)
        && revision.bytes().all(|byte| {
            byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/' | b'+' | b'=')
        })
        && !revision.contains("..")
}

/// Whether a name points outside its folder.
pub(super) fn is_hostile(name: &str) -> bool {
    name.starts_with(['/', '\\'])
        || name.split(['/', '\\']).any(|part| part == "..")
        || name.contains('\0')
}

/// Whether `text` is the full hash of a commit.
pub(super) fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && is_hex(text)
}

/// Whether every character is one of `0-9a-f`.
pub(super) fn is_hex(text: &str) -> bool {
    text.bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests;
