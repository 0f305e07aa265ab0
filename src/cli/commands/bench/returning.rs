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

/// Conversations of equal length.
struct Conversations {
    count: u32,
    tokens: u32,
    /// Of their random tokens.
    seed: u64,
}

/// How conversations went with one kind of tier.
struct Outcome {
    tier: &'static str,
    /// Seconds of the first round, which shares nothing.
    first_round: f64,
    /// Seconds to the first token of each conversation that came back.
    returned: Vec<f64>,
    /// Tokens that came from disk.
    disk_hits: u64,
}

pub(super) fn measure(subject: &Subject<'_>, config: &Config, report: &mut Report) -> Result<()> {
    let conversations = Conversations {
        count: subject.args.batch.first().copied().unwrap_or(CONVERSATIONS),
        tokens: subject.args.context.unwrap_or(TOKENS),
        seed: config.seed.unwrap_or(0),
    };
    ensure!(
        conversations.count >= POOL_SHARE,
        "--batch: at least {POOL_SHARE} conversations are needed"
    );
    let folder = std::env::temp_dir().join(format!("folio-bench-{:016x}", platform::random_u64()));
    let outcomes = outcomes(subject, config, &conversations, &folder);
    // There may be none.
    drop(fs::remove_dir_all(folder));
    report_all(subject, &conversations, outcomes?, report)
}

/// Without tiers, with host memory, and with files in `folder` after a restart.
fn outcomes(
    subject: &Subject<'_>,
    config: &Config,
    conversations: &Conversations,
    folder: &Path,
) -> Result<[Outcome; 3]> {
    let plain = Config {
        kv_cache_bytes: Some(conversations.pool_bytes(subject, config)?),
        max_model_len: Some(conversations.tokens + 2),
        max_num_seqs: config.max_num_seqs.min(4),
        kv_host_bytes: 0,
        kv_disk: None,
        ..config.clone()
    };
    let host = Config {
        kv_host_bytes: TIER_BYTES,
        ..plain.clone()
    };
    let disk = Config {
        kv_disk: Some(DiskConfig {
            folder: folder.to_owned(),
            bytes: TIER_BYTES,
        }),
        ..plain.clone()
    };
    Ok([
        conversations.outcome(subject, "no tiers", plain, false)?,
        conversations.outcome(subject, "host tier", host, false)?,
        conversations.outcome(subject, "disk tier, restarted", disk, true)?,
    ])
}

impl Conversations {
    /// Bytes of a pool that holds one of [`POOL_SHARE`] of them.
    fn pool_bytes(&self, subject: &Subject<'_>, config: &Config) -> Result<u64> {
        let each = (self.tokens + 1).div_ceil(config.block_size);
        let blocks = u64::from(each * self.count.div_ceil(POOL_SHARE) + 2);
        let activations = subject.args.engine.device()?.caps()?.activations;
        let plan = subject.model()?.record(activations);
        let block_bytes: u64 = (0..plan.kv_groups.len())
            .map(|group| plan.block_bytes(group, config.block_size, config.kv_format))
            .sum();
        Ok(block_bytes * blocks)
    }

    /// Lets all of them come, and come back, before which the engine may be started anew.
    fn outcome(
        &self,
        subject: &Subject<'_>,
        tier: &'static str,
        config: Config,
        restarts: bool,
    ) -> Result<Outcome> {
        let mut session = subject.session(config.clone())?;
        let first_round = self.round("first time", &session)?.iter().sum();
        if restarts {
            session.close()?;
            session = subject.session(config)?;
        }
        let returned = self.round(tier, &session)?;
        let disk_hits = session.handle.stats().prefix_hits_disk;
        session.close()?;
        Ok(Outcome {
            tier,
            first_round,
            returned,
            disk_hits,
        })
    }

    /// Seconds to the first token of each.
    fn round(&self, what: &str, session: &Session) -> Result<Vec<f64>> {
        let Self { count, tokens, .. } = *self;
        note(format_args!(
            "returning, {what}: {count} conversations of {tokens} tokens …"
        ));
        let vocab = session.info()?.vocab;
        let mut numbers = Numbers(self.seed);
        // All are drawn before the first is sent.
        let prompts: Vec<_> = (0..count)
            .map(|_| numbers.token_ids(tokens, vocab))
            .collect();
        prompts
            .into_iter()
            .map(|prompt| first_token(session, prompt))
            .collect()
    }
}

/// Adds a row for each kind of tier, and their ratios to none.
fn report_all(
    subject: &Subject<'_>,
    conversations: &Conversations,
    mut outcomes: [Outcome; 3],
    report: &mut Report,
) -> Result<()> {
    let medians = outcomes
        .each_mut()
        .map(|outcome| percentile(&mut outcome.returned, 0.5).unwrap_or(f64::NAN));
    for (outcome, median) in outcomes.iter_mut().zip(medians) {
        let ratio = median / medians[0];
        let (name, tier) = (subject.name(), outcome.tier);
        let p99 = percentile(&mut outcome.returned, 0.99);
        report.push(Row {
            scenario: "returning",
            shape: format!("{name}, {tier}: {ratio:.2} × to the first token"),
            batch: conversations.count,
            context: Some(conversations.tokens),
            p50_ms: Some(1e3 * median),
            p99_ms: p99.map(|seconds| 1e3 * seconds),
            ..Row::default()
        })?;
    }
    let [plain, host, disk] = &outcomes;
    report.set(
        "returning",
        json!({
            "conversations": conversations.count,
            "tokens": conversations.tokens,
            "first_token_ratio_host": rounded(medians[1] / medians[0]),
            "first_token_ratio_disk_restarted": rounded(medians[2] / medians[0]),
            "unrelated_traffic_ratio_host": rounded(plain.first_round / host.first_round),
            "unrelated_traffic_ratio_disk": rounded(plain.first_round / disk.first_round),
            "disk_hit_tokens": disk.disk_hits,
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
