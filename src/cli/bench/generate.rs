//! Scenarios `decode` and `prefill`: sequences of equal length through the whole engine, timed as a client would time
//! them.

use super::Subject;
use super::report::{Bound, Report, Row, percentile};
use crate::cli::output::note;
use crate::cli::session::Session;
use anyhow::{Context as _, Result, bail, ensure};
use folio::config::Config;
use folio::engine::handle::EventReceiver;
use folio::engine::request::{DrawParams, Event, Request, SamplingParams};
use folio::model::spec::{LayerKind, LayerSpec};
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
pub(super) async fn watch(mut events: EventReceiver, start: Instant, mut each: impl FnMut()) -> Result<Arrivals> {
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
    let params = SamplingParams { draw, ignore_eos: true, max_tokens: Some(max_tokens), ..Default::default() };
    Request { prompt: prompt.into(), params, ..Request::default() }
}

/// How tokens are drawn: greedily, and as many models recommend it in their generation_config.json.
fn draws() -> [(&'static str, DrawParams); 2] {
    let recommended = DrawParams { temperature: 0.6, top_k: 20, top_p: 0.95, ..DrawParams::default() };
    [("decode", DrawParams::greedy()), ("decode, sampled", recommended)]
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
            let note = || step_dispatches.borrow_mut().push(session.handle.stats().step_dispatches as f64);
            Ok(watch(receivers.remove(0), start, note))
        })
        .collect();
    let arrivals = platform::block_on(future::try_join_all(sent?))?;
    let step_dispatches = percentile(&mut step_dispatches.into_inner(), 0.5).filter(|count| *count > 0.0);
    Ok(Round { arrivals, step_dispatches })
}

/// A session with room for `batch` sequences of `tokens` tokens. It has no prefix cache, so that every prompt is
/// computed.
pub(super) fn open(subject: &Subject<'_>, config: &Config, batch: u32, tokens: u32) -> Result<Session> {
    let config = Config {
        max_num_seqs: config.max_num_seqs.max(batch),
        max_num_batched_tokens: config.max_num_batched_tokens.max(batch + config.block_size),
        max_model_len: Some(config.max_model_len.unwrap_or(tokens).max(tokens)),
        prefix_caching: false,
        ..config.clone()
    };
    let session = subject.session(config)?;
    let room = session.info()?.max_model_len;
    ensure!(room >= tokens, "{tokens} tokens do not fit the context of {room}: lower --context or --new-tokens");
    Ok(session)
}

pub(super) fn context(subject: &Subject<'_>, new_tokens: u32) -> Result<u32> {
    let room = subject.spec.positions_max.checked_sub(new_tokens + 1);
    let room = room.context("--new-tokens leaves no room for a prompt")?;
    Ok(subject.args.context.unwrap_or_else(|| CONTEXT.min(room)))
}

pub(super) fn decode(subject: &Subject<'_>, config: &Config, report: &mut Report) -> Result<()> {
    let new_tokens = subject.args.new_tokens.max(2);
    let context = context(subject, new_tokens)?;
    let largest = subject.batches().into_iter().max().unwrap_or(1);
    let session = open(subject, config, largest, context + new_tokens)?;
    report.set("kernels", json!(session.info()?.tier));
    let mut numbers = Numbers(config.seed.unwrap_or(0));
    round(&session, &mut numbers, 1, 8, 4, DrawParams::greedy())?;
    let batches = subject.batches().into_iter().flat_map(|batch| draws().map(|draw| (batch, draw)));
    for (batch, (scenario, draw)) in batches {
        note(format_args!("{scenario}, batch {batch} …"));
        let Round { arrivals, step_dispatches } = round(&session, &mut numbers, batch, context, new_tokens, draw)?;
        // The time in which all sequences generate: from the latest first token to the earliest last token.
        let from = arrivals.iter().map(Arrivals::first).fold(0.0, f64::max);
        let to = arrivals.iter().map(Arrivals::last).fold(f64::INFINITY, f64::min);
        let within = |at: &&f64| **at > from && **at <= to;
        let tokens: usize = arrivals.iter().map(|arrivals| arrivals.tokens.iter().filter(within).count()).sum();
        ensure!(tokens > 0, "the {batch} sequences never all generated at the same time: raise --new-tokens");
        let tokens_per_s = tokens as f64 / (to - from);
        let steps_per_s = tokens_per_s / f64::from(batch);
        let kv_tokens = f64::from(batch) * (f64::from(context) + f64::from(new_tokens) / 2.0);
        let bytes = weight_bytes(subject)? + kv_tokens * kv_bytes_per_token(subject, config.kv_format);
        let gbps = bytes * steps_per_s / 1e9;
        let mut gaps: Vec<f64> = arrivals.iter().flat_map(Arrivals::gaps_ms).collect();
        report.push(Row {
            scenario,
            shape: subject.name(),
            batch,
            context: Some(context),
            tokens_per_s: Some(tokens_per_s),
            gbps: Some(gbps),
            // Weights that fit in caches are not read from memory in every step, so no share of the bandwidth is
            // reported.
            bound: (bytes >= CACHED_BYTES_MAX).then_some(Bound::Read),
            dispatches_per_token: step_dispatches.map(|count| count / f64::from(batch)),
            p50_ms: percentile(&mut gaps, 0.5),
            p99_ms: percentile(&mut gaps, 0.99),
            ..Row::default()
        })?;
        if let (1, "decode", Some(bound)) = (batch, scenario, report.matvec_tokens_per_s) {
            report.set("decode_share_of_matvec", json!(super::report::rounded(tokens_per_s / bound)));
        }
    }
    session.close()
}

pub(super) fn prefill(subject: &Subject<'_>, config: &Config, report: &mut Report) -> Result<()> {
    let context = context(subject, 1)?;
    let largest = subject.batches().into_iter().max().unwrap_or(1);
    let session = open(subject, config, largest, context + 2)?;
    report.set("kernels", json!(session.info()?.tier));
    let mut numbers = Numbers(config.seed.unwrap_or(0));
    round(&session, &mut numbers, 1, context.min(64), 1, DrawParams::greedy())?;
    for batch in subject.batches() {
        note(format_args!("prefill, batch {batch} …"));
        let mut best = f64::INFINITY;
        let mut firsts = Vec::new();
        for _ in 0..PREFILL_RUNS {
            let arrivals = round(&session, &mut numbers, batch, context, 1, DrawParams::greedy())?.arrivals;
            best = best.min(arrivals.iter().map(Arrivals::last).fold(0.0, f64::max));
            firsts.extend(arrivals.iter().map(|arrivals| 1e3 * arrivals.first()));
        }
        let tokens_per_s = f64::from(batch * context) / best;
        let gflops = tokens_per_s * 2.0 * layer_elements(subject) / 1e9;
        report.push(Row {
            scenario: "prefill",
            shape: subject.name(),
            batch,
            context: Some(context),
            tokens_per_s: Some(tokens_per_s),
            gflops: Some(gflops),
            bound: Some(Bound::Arithmetic),
            p50_ms: percentile(&mut firsts, 0.5),
            p99_ms: percentile(&mut firsts, 0.99),
            ..Row::default()
        })?;
    }
    session.close()
}

/// Bytes of weights that one decode step reads. For a mixture of experts, the experts of one sequence count.
fn weight_bytes(subject: &Subject<'_>) -> Result<f64> {
    Ok(subject.model()?.record(Storage::F32).token_weight_bytes() as f64)
}

fn kv_bytes_per_token(subject: &Subject<'_>, format: KvFormat) -> f64 {
    let stored = subject.spec.layers.iter().filter(|layer| layer.kind.attends());
    let stored = stored.filter(|layer| layer.kv_from.is_none());
    let halves = if subject.spec.latent.is_some() { 1.0 } else { 2.0 };
    let rows: u64 = stored.map(|layer| format.row_bytes(layer.head_dim) * u64::from(layer.kv_heads)).sum();
    halves * rows as f64
}

/// Elements of the matrices that every prompt token is multiplied with. The LM head is excluded: it applies only to the
/// last token.
fn layer_elements(subject: &Subject<'_>) -> f64 {
    let spec = &subject.spec;
    let of_layer = |layer: &LayerSpec| {
        let kv = if layer.kv_from.is_some() { 0 } else { 2 * layer.kv_columns() };
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
        let experts = spec.experts.filter(|_| layer.experts);
        let chosen = experts.map_or(0, |experts| {
            let shared = experts.shared.map_or(0, |shared| u64::from(shared.mlp));
            u64::from(experts.per_token) * u64::from(experts.mlp) + shared
        });
        u64::from(mixed) + (gates + 1) * (u64::from(layer.mlp) + chosen)
    };
    u64::from(spec.hidden) as f64 * spec.layers.iter().map(of_layer).sum::<u64>() as f64
}
