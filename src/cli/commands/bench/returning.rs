//! Scenario `returning`: conversations that come back after others have taken their KV blocks, one at a time: without
//! colder tiers, from host memory, and from disk after a restart.
//!
//! The first round is traffic that shares nothing, so it also shows what keeping blocks costs.

use super::Subject;
use super::generate::{Numbers, request, watch};
use super::report::{Report, Row, percentile, rounded};
use crate::cli::session::Session;
use crate::cli::terminal::output::note;
use anyhow::{Result, ensure};
use folio::config::{Config, DiskConfig};
use folio::engine::request::DrawParams;
use folio::platform::{self, Instant};
use serde_json::json;
use std::fs;
use std::path::Path;

/// Conversations unless `--batch` is given.
const CONVERSATIONS: u32 = 40;
/// Tokens of a conversation unless `--context` is given.
const TOKENS: u32 = 1500;
/// Of the conversations, how many the pool holds: a quarter.
const POOL_SHARE: u32 = 4;
/// Host and disk hold all conversations.
const TIER_BYTES: u64 = 1 << 40;

pub(super) fn measure(subject: &Subject<'_>, config: &Config, report: &mut Report) -> Result<()> {
    let count = subject.args.batch.first().copied().unwrap_or(CONVERSATIONS);
    let tokens = subject.args.context.unwrap_or(TOKENS);
    ensure!(
        count >= POOL_SHARE,
        "--batch: at least {POOL_SHARE} conversations are needed"
    );
    let folder = std::env::temp_dir().join(format!("folio-bench-{:016x}", platform::random_u64()));
    let outcome = compare(subject, config, (count, tokens), &folder, report);
    // There may be none.
    drop(fs::remove_dir_all(folder));
    outcome
}

fn compare(
    subject: &Subject<'_>,
    config: &Config,
    (count, tokens): (u32, u32),
    folder: &Path,
    report: &mut Report,
) -> Result<()> {
    let blocks =
        u64::from((tokens + 1).div_ceil(config.block_size) * count.div_ceil(POOL_SHARE) + 2);
    let plan = subject
        .model()?
        .record(subject.args.engine.device()?.caps()?.activations);
    let pool = (0..plan.kv_groups.len())
        .map(|group| plan.block_bytes(group, config.block_size, config.kv_format))
        .sum::<u64>()
        * blocks;
    let base = Config {
        kv_cache_bytes: Some(pool),
        max_model_len: Some(tokens + 2),
        max_num_seqs: config.max_num_seqs.min(4),
        kv_host_bytes: 0,
        kv_disk: None,
        ..config.clone()
    };
    let host = Config {
        kv_host_bytes: TIER_BYTES,
        ..base.clone()
    };
    let disk = Config {
        kv_disk: Some(DiskConfig {
            folder: folder.to_owned(),
            bytes: TIER_BYTES,
        }),
        ..base.clone()
    };
    let prompts = |vocab| {
        let mut numbers = Numbers(config.seed.unwrap_or(0));
        (0..count)
            .map(|_| numbers.token_ids(tokens, vocab))
            .collect::<Vec<_>>()
    };
    let round = |what: &str, session: &Session| {
        note(format_args!(
            "returning, {what}: {count} conversations of {tokens} tokens …"
        ));
        let prompts = prompts(session.info()?.vocab);
        prompts
            .into_iter()
            .map(|prompt| first_token(session, prompt))
            .collect::<Result<Vec<f64>>>()
    };
    let mut times: Vec<(&str, Vec<f64>)> = Vec::new();
    let mut fills = Vec::new();
    for (what, config) in [("no tiers", &base), ("host tier", &host)] {
        let session = subject.session(config.clone())?;
        fills.push(round("first time", &session)?.iter().sum::<f64>());
        times.push((what, round(what, &session)?));
        session.close()?;
    }
    let session = subject.session(disk.clone())?;
    fills.push(round("first time", &session)?.iter().sum::<f64>());
    session.close()?;
    let session = subject.session(disk)?;
    times.push((
        "disk tier, restarted",
        round("disk tier, restarted", &session)?,
    ));
    let hits = session.handle.stats().prefix_hits_disk;
    session.close()?;
    let medians: Vec<f64> = times
        .iter_mut()
        .map(|(_, times)| percentile(times, 0.5).unwrap_or(f64::NAN))
        .collect();
    for ((what, times), &median) in times.iter_mut().zip(&medians) {
        let shape = format!(
            "{}, {what}: {:.2} × to the first token",
            subject.name(),
            median / medians[0]
        );
        let (p50_ms, p99_ms) = (
            Some(1e3 * median),
            percentile(times, 0.99).map(|time| 1e3 * time),
        );
        let context = Some(tokens);
        report.push(Row {
            scenario: "returning",
            shape,
            batch: count,
            context,
            p50_ms,
            p99_ms,
            ..Row::default()
        })?;
    }
    let traffic = |fill: usize| rounded(fills[0] / fills[fill]);
    report.set(
        "returning",
        json!({
            "conversations": count,
            "tokens": tokens,
            "first_token_ratio_host": rounded(medians[1] / medians[0]),
            "first_token_ratio_disk_restarted": rounded(medians[2] / medians[0]),
            "unrelated_traffic_ratio_host": traffic(1),
            "unrelated_traffic_ratio_disk": traffic(2),
            "disk_hit_tokens": hits,
        }),
    );
    Ok(())
}

/// Seconds to the first token of a prompt.
fn first_token(session: &Session, prompt: Vec<u32>) -> Result<f64> {
    let receiver = session
        .handle
        .submit(request(prompt, 1, DrawParams::greedy()))?
        .remove(0);
    Ok(platform::block_on(watch(receiver, Instant::now(), || ()))?.first())
}
