//! `folio list`: the models in the cache, their sizes and formats, and what is broken or incomplete.

use crate::cli::hub::cache_index::{self, Entry, Settings};
use crate::cli::terminal::output;
use anyhow::Result;
use clap::Args;
use indicatif::BinaryBytes;
use serde_json::json;

/// Number of digits of a commit hash that are shown.
const COMMIT_DIGITS: usize = 8;

#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &ListArgs) -> Result<()> {
    // Offline: only the cache is read.
    let cache = Settings::from_env(true)?.cache;
    let entries = cache_index::entries(&cache)?;
    if entries.is_empty() && !args.json {
        output::note(format_args!("no models in {}", cache.root().display()));
    }
    let text = if args.json {
        serde_json::to_string_pretty(&json!({"cache": cache.root(), "models": entries}))?
    } else {
        as_text(&entries)
    };
    output::result(text)
}

fn as_text(entries: &[Entry]) -> String {
    let rows: Vec<[String; 4]> = entries.iter().map(columns).collect();
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let (repo, revision, bytes) = (width(0), width(1), width(2));
    rows.iter()
        .map(|row| {
            format!(
                "{:repo$}  {:revision$}  {:>bytes$}  {}\n",
                row[0], row[1], row[2], row[3]
            )
        })
        .collect()
}

fn columns(entry: &Entry) -> [String; 4] {
    let commit = entry
        .commit
        .as_deref()
        .map(|commit| &commit[..COMMIT_DIGITS]);
    let revision = match (entry.revisions.join(", "), commit) {
        (names, Some(commit)) if names.is_empty() => commit.to_owned(),
        (names, Some(commit)) => format!("{names} ({commit})"),
        (_, None) => "-".to_owned(),
    };
    let mut last = entry.formats.join(", ");
    if !entry.problems.is_empty() {
        let gap = if last.is_empty() { "" } else { "  " };
        last += &format!("{gap}problem: {}", entry.problems.join("; "));
    }
    [
        entry.repo.clone(),
        revision,
        BinaryBytes(entry.bytes).to_string(),
        last,
    ]
}
