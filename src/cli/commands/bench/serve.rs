//! Scenario `serve`: many requests of mixed lengths at once, as on a loaded server.

use super::Subject;
use super::generate::{Arrivals, Numbers, request, watch};
use super::report::{Report, Row, percentile, rounded};
use crate::cli::session::Session;
use crate::cli::terminal::output::note;
use anyhow::{Result, ensure};
use clap::Args;
use folio::config::Config;
use folio::engine::request::DrawParams;
use folio::platform::{self, Instant};
use futures_util::future;
use serde_json::json;
use std::cell::Cell;

/// Options of the load.
#[derive(Args, Clone, Debug)]
pub(super) struct LoadArgs {
    /// Requests of the serve scenario, all sent at once
    #[arg(long, value_name = "N", default_value_t = 256)]
    requests: u32,
    /// Shortest prompt of the serve scenario
    #[arg(long, value_name = "TOKENS", default_value_t = 100)]
    input_len_min: u32,
    /// Longest prompt of the serve scenario
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    input_len_max: u32,
    /// Shortest answer of the serve scenario
    #[arg(long, value_name = "TOKENS", default_value_t = 100)]
    output_len_min: u32,
    /// Longest answer of the serve scenario
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    output_len_max: u32,
    /// Leading tokens that all prompts of the serve scenario share
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    shared_prefix_len: u32,
}

impl LoadArgs {
    fn check(&self) -> Result<()> {
        ensure!(self.requests > 0, "--requests must be at least 1");
        ensure!(
            (1..=self.input_len_max).contains(&self.input_len_min),
            "--input-len-min must be from 1 to --input-len-max"
        );
        ensure!(
            (1..=self.output_len_max).contains(&self.output_len_min),
            "--output-len-min must be from 1 to --output-len-max"
        );
        Ok(())
    }

    /// Tokens of the longest sequence.
    fn longest(&self) -> u32 {
        self.shared_prefix_len + self.input_len_max + self.output_len_max
    }
}

/// Tokens stored and slots allocated in the KV pool, summed over samples.
#[derive(Default)]
struct Utilisation {
    tokens: Cell<u64>,
    slots: Cell<u64>,
    tokens_full: Cell<u64>,
    slots_full: Cell<u64>,
}

impl Utilisation {
    /// Adds a sample. Samples with a full pool are also counted separately: only then do unused slots cost anything.
    fn look(&self, session: &Session, block_size: u32) {
        let stats = session.handle.stats();
        let slots = stats.blocks_used * u64::from(block_size);
        add(&self.tokens, stats.tokens_stored);
        add(&self.slots, slots);
        if stats.requests_waiting > 0 {
            add(&self.tokens_full, stats.tokens_stored);
            add(&self.slots_full, slots);
        }
    }

    /// The share of slots that hold a token.
    fn share(&self) -> Option<f64> {
        ratio(&self.tokens, &self.slots)
    }

    /// The same while the pool was full.
    fn share_under_pressure(&self) -> Option<f64> {
        ratio(&self.tokens_full, &self.slots_full)
    }
}

fn ratio(tokens: &Cell<u64>, slots: &Cell<u64>) -> Option<f64> {
    (slots.get() > 0).then(|| rounded(tokens.get() as f64 / slots.get() as f64))
}

fn add(cell: &Cell<u64>, amount: u64) {
    cell.set(cell.get() + amount);
}

pub(super) fn measure(subject: &Subject<'_>, config: &Config, report: &mut Report) -> Result<()> {
    let load = &subject.args.load;
    load.check()?;
    let longest = load.longest();
    let context = longest.min(subject.spec.positions_max);
    let config = Config {
        queue_requests_max: config.queue_requests_max.max(load.requests),
        max_model_len: Some(config.max_model_len.unwrap_or(context)),
        ..config.clone()
    };
    let session = subject.session(config.clone())?;
    let room = session.info()?.max_model_len;
    ensure!(
        room >= longest,
        "a request may need {longest} tokens, but the context is {room}: lower the lengths"
    );
    note(format_args!("serve, {} requests …", load.requests));
    let before = session.handle.stats();
    let utilisation = Utilisation::default();
    let (arrivals, seconds) = run(&session, load, &config, &utilisation)?;
    let after = session.handle.stats();
    let pace = Pace::new(&arrivals, seconds);
    report.push(Row {
        scenario: "serve",
        shape: subject.name(),
        batch: load.requests,
        tokens_per_s: Some(pace.tokens_per_s),
        p50_ms: pace.gap_p50_ms,
        p99_ms: pace.gap_p99_ms,
        ..Row::default()
    })?;
    report.set(
        "serve",
        json!({
            "requests": load.requests,
            "seconds": rounded(seconds),
            "prompt_tokens": after.prompt_tokens - before.prompt_tokens,
            "output_tokens": pace.tokens,
            "output_tokens_per_s": rounded(pace.tokens_per_s),
            "first_token_p50_ms": pace.first_p50_ms.map(rounded),
            "first_token_p99_ms": pace.first_p99_ms.map(rounded),
            "inter_token_p50_ms": pace.gap_p50_ms.map(rounded),
            "inter_token_p99_ms": pace.gap_p99_ms.map(rounded),
            "kv_utilisation": utilisation.share(),
            "kv_utilisation_under_pressure": utilisation.share_under_pressure(),
            "preemptions": after.preemptions - before.preemptions,
            "prefix_hit_tokens": after.prefix_hits - before.prefix_hits,
        }),
    );
    session.close()
}

/// How tokens arrived.
struct Pace {
    tokens: usize,
    tokens_per_s: f64,
    first_p50_ms: Option<f64>,
    first_p99_ms: Option<f64>,
    gap_p50_ms: Option<f64>,
    gap_p99_ms: Option<f64>,
}

impl Pace {
    /// Of answers that took so many seconds together.
    fn new(arrivals: &[Arrivals], seconds: f64) -> Self {
        let tokens: usize = arrivals.iter().map(|arrivals| arrivals.tokens.len()).sum();
        let firsts = arrivals.iter().map(|arrivals| 1e3 * arrivals.first());
        let mut firsts: Vec<f64> = firsts.collect();
        let mut gaps: Vec<f64> = arrivals.iter().flat_map(Arrivals::gaps_ms).collect();
        Self {
            tokens,
            tokens_per_s: tokens as f64 / seconds,
            first_p50_ms: percentile(&mut firsts, 0.5),
            first_p99_ms: percentile(&mut firsts, 0.99),
            gap_p50_ms: percentile(&mut gaps, 0.5),
            gap_p99_ms: percentile(&mut gaps, 0.99),
        }
    }
}

fn run(
    session: &Session,
    load: &LoadArgs,
    config: &Config,
    utilisation: &Utilisation,
) -> Result<(Vec<Arrivals>, f64)> {
    let info = session.info()?;
    let mut numbers = Numbers(config.seed.unwrap_or(0));
    let between =
        |numbers: &mut Numbers, least: u32, most: u32| least + numbers.below(most - least + 1);
    let shared = numbers.token_ids(load.shared_prefix_len, info.vocab);
    let requests: Vec<_> = (0..load.requests)
        .map(|_| {
            let input = between(&mut numbers, load.input_len_min, load.input_len_max);
            let output = between(&mut numbers, load.output_len_min, load.output_len_max);
            let mut prompt = shared.clone();
            prompt.extend(numbers.token_ids(input, info.vocab));
            request(prompt, output, DrawParams::greedy())
        })
        .collect();
    let start = Instant::now();
    let events = Cell::new(0_u64);
    let sent: Result<Vec<_>> = requests
        .into_iter()
        .map(|request| {
            let receiver = session.handle.submit(request)?.remove(0);
            Ok(watch(receiver, start, || {
                // Samples every few tokens: often enough for an average, rarely enough not to affect the result.
                events.set(events.get() + 1);
                if events.get().is_multiple_of(16) {
                    utilisation.look(session, info.block_size);
                }
            }))
        })
        .collect();
    let arrivals = platform::block_on(future::try_join_all(sent?))?;
    Ok((arrivals, start.elapsed().as_secs_f64()))
}
