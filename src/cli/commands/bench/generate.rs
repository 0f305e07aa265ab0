//! Scenarios `decode` and `prefill`: sequences of equal length through the whole engine, timed as a client would time
//! them.

use super::report::{Bound, Report, Row, percentile};
use super::{Scenario, Subject};
use crate::cli::session::Session;
use crate::cli::terminal::output::note;
use anyhow::{Context as _, Result, bail, ensure};
use folio::config::Config;
use folio::engine::handle::EventReceiver;
use folio::engine::request::{DrawParams, Event, Request, SamplingParams};
use folio::model::spec::LayerKind;
use folio::plan::{KvFormat, Storage};
use folio::platform::{self, Instant};
use futures_util::{StreamExt as _, future};
use serde_json::json;
use std::cell::RefCell;

/// Default number of prompt tokens.
const CONTEXT: u32 = 512;
/// Bytes that a device may keep in its caches from one step to the next.
const CACHED_BYTES_MAX: f64 = 128e6;
/// Number of runs of `prefill`; the best one is reported.
const PREFILL_RUNS: usize = 3;

/// Arrival times of one sequence's tokens, in seconds after the requests were sent.
pub(super) struct Arrivals {
    pub(super) tokens: Vec<f64>,
}

impl Arrivals {
    pub(super) fn first(&self) -> f64 {
        self.tokens.first().copied().unwrap_or(f64::INFINITY)
    }

    pub(super) fn last(&self) -> f64 {
        self.tokens.last().copied().unwrap_or(0.0)
    }

    /// Milliseconds between consecutive tokens.
    pub(super) fn gaps_ms(&self) -> impl Iterator<Item = f64> + '_ {
        self.tokens.windows(2).map(|pair| 1e3 * (pair[1] - pair[0]))
    }
}

/// Waits for the end of a sequence and records when its tokens arrive.
pub(super) async fn watch(
    mut events: EventReceiver,
    start: Instant,
    mut each: impl FnMut(),
) -> Result<Arrivals> {
    let mut tokens = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            Event::Prompt(_) => {}
            Event::Token(_) => {
                tokens.push(start.elapsed().as_secs_f64());
                each();
            }
            Event::Finished { .. } => return Ok(Arrivals { tokens }),
            Event::Failed(fault) => return Err(fault.into()),
        }
    }
    bail!("the engine ended in the middle of a sequence")
}

/// Pseudo-random numbers, the same for the same seed (SplitMix64).
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    pub(super) fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ (word >> 31)) % u64::from(limit)) as u32
    }

    pub(super) fn token_ids(&mut self, count: u32, vocab: u32) -> Vec<u32> {
        (0..count).map(|_| self.below(vocab)).collect()
    }
}

/// A request that ends only by length.
pub(super) fn request(prompt: Vec<u32>, max_tokens: u32, draw: DrawParams) -> Request {
    let params = SamplingParams {
        draw,
        ignore_eos: true,
        max_tokens: Some(max_tokens),
        ..Default::default()
    };
    Request {
        prompt: prompt.into(),
        params,
        ..Request::default()
    }
}

/// How tokens are drawn: greedily, and as many models recommend it in their generation_config.json.
fn draws(greedy_only: bool) -> Vec<(&'static str, DrawParams)> {
    let recommended = DrawParams {
        temperature: 0.6,
        top_k: 20,
        top_p: 0.95,
        ..DrawParams::default()
    };
    let mut draws = vec![("decode", DrawParams::greedy())];
    if !greedy_only {
        draws.push(("decode, sampled", recommended));
    }
    draws
}

/// What a round of equal sequences took.
struct Round {
    arrivals: Vec<Arrivals>,
    /// Kernels of a step, if the device counts them: the median over the steps, which are nearly all decoding.
    step_dispatches: Option<f64>,
}

/// Sends `batch` equal-length prompts at once and waits for all of them.
fn round(
    session: &Session,
    numbers: &mut Numbers,
    batch: u32,
    context: u32,
    new_tokens: u32,
    draw: DrawParams,
) -> Result<Round> {
    let vocab = session.info()?.vocab;
    let step_dispatches = RefCell::new(Vec::new());
    let start = Instant::now();
    let sent: Result<Vec<_>> = (0..batch)
        .map(|_| {
            let request = request(numbers.token_ids(context, vocab), new_tokens, draw);
            let mut receivers = session.handle.submit(request)?;
            Ok(watch(receivers.remove(0), start, || {
                step_dispatches
                    .borrow_mut()
                    .push(session.handle.stats().step_dispatches as f64);
            }))
        })
        .collect();
    let arrivals = platform::block_on(future::try_join_all(sent?))?;
    let step_dispatches =
        percentile(&mut step_dispatches.into_inner(), 0.5).filter(|count| *count > 0.0);
    Ok(Round {
        arrivals,
        step_dispatches,
    })
}

/// A session with room for `batch` sequences of `tokens` tokens. It has no prefix cache, so that every prompt is
/// computed.
pub(super) fn open(
    subject: &Subject<'_>,
    config: &Config,
    batch: u32,
    tokens: u32,
) -> Result<Session> {
    let config = Config {
        max_num_seqs: config.max_num_seqs.max(batch),
        max_num_batched_tokens: config.max_num_batched_tokens.max(batch + config.block_size),
        max_model_len: Some(config.max_model_len.unwrap_or(tokens).max(tokens)),
        prefix_caching: false,
        ..config.clone()
    };
    let session = subject.session(config)?;
    let room = session.info()?.max_model_len;
    ensure!(
        room >= tokens,
        "{tokens} tokens do not fit the context of {room}: lower --context or --new-tokens"
    );
    Ok(session)
}

pub(super) fn context(subject: &Subject<'_>, new_tokens: u32) -> Result<u32> {
    let room = subject.spec.positions_max.checked_sub(new_tokens + 1);
    let room = room.context("--new-tokens leaves no room for a prompt")?;
    Ok(subject.args.context.unwrap_or_else(|| CONTEXT.min(room)))
}

/// The engine of `decode` and `prefill`: one for both, so that a model is loaded once.
pub(super) struct Generation<'a> {
    subject: &'a Subject<'a>,
    config: &'a Config,
    session: Option<Session>,
    numbers: Numbers,
}

impl<'a> Generation<'a> {
    pub(super) fn new(subject: &'a Subject<'a>, config: &'a Config) -> Self {
        Self {
            subject,
            config,
            session: None,
            numbers: Numbers(config.seed.unwrap_or(0)),
        }
    }

    /// Ends the engine, if there is one.
    pub(super) fn close(&mut self) -> Result<()> {
        self.session.take().map_or(Ok(()), Session::close)
    }

    fn new_tokens(&self) -> u32 {
        self.subject.args.new_tokens.max(2)
    }

    /// Lengths of the prompts of `prefill`.
    fn prompt_lens(&self) -> Result<Vec<u32>> {
        match &self.subject.args.prompt_lens[..] {
            [] => Ok(vec![context(self.subject, 1)?]),
            given => Ok(given.to_vec()),
        }
    }

    /// Tokens of the longest sequence that will be measured.
    fn longest(&self) -> Result<u32> {
        let mut longest = 0;
        if self.subject.has(Scenario::Decode) {
            longest = context(self.subject, self.new_tokens())? + self.new_tokens();
        }
        if self.subject.has(Scenario::Prefill) {
            let prompts = self.prompt_lens()?;
            longest = longest.max(prompts.into_iter().max().unwrap_or(0) + 2);
        }
        Ok(longest)
    }

    /// The engine, warmed up when it is new.
    fn session(&mut self, report: &mut Report) -> Result<&Session> {
        if self.session.is_none() {
            let largest = self.subject.batches().into_iter().max().unwrap_or(1);
            let session = open(self.subject, self.config, largest, self.longest()?)?;
            report.set("kernels", json!(session.info()?.tier));
            let start = Instant::now();
            loop {
                round(&session, &mut self.numbers, 1, 8, 4, DrawParams::greedy())?;
                if start.elapsed().as_secs_f64() >= self.subject.args.warm_up {
                    break;
                }
            }
            self.session = Some(session);
        }
        self.session.as_ref().context("the engine was just started")
    }

    pub(super) fn decode(&mut self, report: &mut Report) -> Result<()> {
        self.session(report)?;
        let context = context(self.subject, self.new_tokens())?;
        for batch in self.subject.batches() {
            for (scenario, draw) in draws(self.subject.args.greedy) {
                note(format_args!("{scenario}, batch {batch} …"));
                let row = self.decode_row(scenario, batch, context, draw)?;
                let rate = row.tokens_per_s;
                report.push(row)?;
                if let (1, "decode", Some(rate), Some(bound)) =
                    (batch, scenario, rate, report.matvec_tokens_per_s)
                {
                    report.set(
                        "decode_share_of_matvec",
                        json!(super::report::rounded(rate / bound)),
                    );
                }
            }
        }
        Ok(())
    }

    /// Measures `--rounds` rounds of one batch size.
    fn decode_row(
        &mut self,
        scenario: &'static str,
        batch: u32,
        context: u32,
        draw: DrawParams,
    ) -> Result<Row> {
        let new_tokens = self.new_tokens();
        let session = self.session.as_ref().context("the engine is running")?;
        let (mut rates, mut gaps, mut step_dispatches) = (Vec::new(), Vec::new(), None);
        for _ in 0..self.subject.args.rounds {
            let round = round(session, &mut self.numbers, batch, context, new_tokens, draw)?;
            rates.push(tokens_per_s(&round.arrivals)?);
            gaps.extend(round.arrivals.iter().flat_map(Arrivals::gaps_ms));
            step_dispatches = round.step_dispatches;
        }
        let (tokens_per_s, spread) = median_and_spread(&mut rates);
        let kv_tokens = f64::from(batch) * (f64::from(context) + f64::from(new_tokens) / 2.0);
        let kv_bytes = kv_tokens * kv_bytes_per_token(self.subject, self.config.kv_format);
        let bytes = weight_bytes(self.subject)? + kv_bytes;
        Ok(Row {
            scenario,
            shape: self.subject.name(),
            batch,
            context: Some(context),
            tokens_per_s: Some(tokens_per_s),
            gbps: Some(bytes * tokens_per_s / f64::from(batch) / 1e9),
            // Weights that fit in caches are not read from memory in every step, so no share of the bandwidth is
            // reported.
            bound: (bytes >= CACHED_BYTES_MAX).then_some(Bound::Read),
            dispatches_per_token: step_dispatches.map(|count| count / f64::from(batch)),
            p50_ms: percentile(&mut gaps, 0.5),
            p99_ms: percentile(&mut gaps, 0.99),
            spread,
            ..Row::default()
        })
    }

    pub(super) fn prefill(&mut self, report: &mut Report) -> Result<()> {
        self.session(report)?;
        let one_by_one = !self.subject.args.prompt_lens.is_empty();
        let batches = if one_by_one {
            vec![1]
        } else {
            self.subject.batches()
        };
        for context in self.prompt_lens()? {
            for &batch in &batches {
                note(format_args!("prefill, batch {batch}, {context} tokens …"));
                report.push(self.prefill_row(batch, context)?)?;
            }
        }
        Ok(())
    }

    /// Measures prompts of one length; the best run counts.
    fn prefill_row(&mut self, batch: u32, context: u32) -> Result<Row> {
        let session = self.session.as_ref().context("the engine is running")?;
        let (mut rates, mut firsts) = (Vec::new(), Vec::new());
        for _ in 0..PREFILL_RUNS {
            let arrivals = round(
                session,
                &mut self.numbers,
                batch,
                context,
                1,
                DrawParams::greedy(),
            )?
            .arrivals;
            let seconds = arrivals.iter().map(Arrivals::last).fold(0.0, f64::max);
            rates.push(f64::from(batch * context) / seconds);
            firsts.extend(arrivals.iter().map(|arrivals| 1e3 * arrivals.first()));
        }
        let (_, spread) = median_and_spread(&mut rates);
        let tokens_per_s = rates.into_iter().fold(0.0, f64::max);
        Ok(Row {
            scenario: "prefill",
            shape: self.subject.name(),
            batch,
            context: Some(context),
            tokens_per_s: Some(tokens_per_s),
            gflops: Some(tokens_per_s * 2.0 * layer_elements(self.subject) / 1e9),
            bound: Some(Bound::Arithmetic),
            p50_ms: percentile(&mut firsts, 0.5),
            p99_ms: percentile(&mut firsts, 0.99),
            spread,
            ..Row::default()
        })
    }
}

/// A process must not end while one of its threads uses a driver.
impl Drop for Generation<'_> {
    fn drop(&mut self) {
        // The error that ended the measurement is the one to report.
        _ = self.close();
    }
}

/// Tokens per second in the time in which all sequences generate: from the latest first token to the earliest last one.
fn tokens_per_s(arrivals: &[Arrivals]) -> Result<f64> {
    let from = arrivals.iter().map(Arrivals::first).fold(0.0, f64::max);
    let to = arrivals
        .iter()
        .map(Arrivals::last)
        .fold(f64::INFINITY, f64::min);
    let tokens: usize = arrivals
        .iter()
        .map(|arrivals| {
            arrivals
                .tokens
                .iter()
                .filter(|at| **at > from && **at <= to)
                .count()
        })
        .sum();
    let count = arrivals.len();
    ensure!(
        tokens > 0,
        "the {count} sequences never all generated at the same time: raise --new-tokens"
    );
    Ok(tokens as f64 / (to - from))
}

/// The median of rates, and with several of them the highest less the lowest, as a share of it.
fn median_and_spread(rates: &mut [f64]) -> (f64, Option<f64>) {
    let median = percentile(rates, 0.5).unwrap_or(0.0);
    let spread = match rates {
        [lowest, .., highest] => Some((*highest - *lowest) / median),
        _ => None,
    };
    (median, spread)
}

/// Bytes of weights that one decode step reads. For a mixture of experts, the experts of one sequence count.
fn weight_bytes(subject: &Subject<'_>) -> Result<f64> {
    Ok(subject.model()?.record(Storage::F32).token_weight_bytes() as f64)
}

fn kv_bytes_per_token(subject: &Subject<'_>, format: KvFormat) -> f64 {
    let stored = subject
        .spec
        .layers
        .iter()
        .filter(|layer| layer.kind.attends());
    let stored = stored.filter(|layer| layer.kv_from.is_none());
    let halves = if subject.spec.latent.is_some() {
        1.0
    } else {
        2.0
    };
    let rows: u64 = stored
        .map(|layer| format.row_bytes(layer.head_dim) * u64::from(layer.kv_heads))
        .sum();
    halves * rows as f64
}

/// Elements of the matrices that every prompt token is multiplied with. The LM head is excluded: it applies only to the
/// last token.
fn layer_elements(subject: &Subject<'_>) -> f64 {
    let spec = &subject.spec;
    u64::from(spec.hidden) as f64
        * spec
            .layers
            .iter()
            .map(|layer| {
                let kv = if layer.kv_from.is_some() {
                    0
                } else {
                    2 * layer.kv_columns()
                };
                let gates = if spec.mlp.gated { 2 } else { 1 };
                let attention = 2 * spec.query_columns(layer) + spec.gate_columns(layer) + kv;
                let state = spec.state.map_or(0, |state| state.mixed() + state.values());
                let mixed = match layer.kind {
                    LayerKind::Attention => attention,
                    // The gated input of a convolution, and its output.
                    LayerKind::Convolution => 4 * spec.hidden,
                    LayerKind::State => state,
                    LayerKind::AttentionAndState => attention + state,
                    LayerKind::FeedForward => 0,
                };
                let experts = if layer.experts { spec.experts } else { None };
                let chosen = experts.map_or(0, |experts| {
                    let shared = experts.shared.map_or(0, |shared| u64::from(shared.mlp));
                    u64::from(experts.per_token) * u64::from(experts.mlp) + shared
                });
                u64::from(mixed) + (gates + 1) * (u64::from(layer.mlp) + chosen)
            })
            .sum::<u64>() as f64
}
