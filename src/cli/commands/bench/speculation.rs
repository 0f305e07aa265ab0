//! Scenario `speculation`: the same requests without drafts and with them.
//!
//! A sequence gets drafts from its own recorded answer, spoilt at random so that a given share of them is accepted;
//! this measures what verification costs and saves, whatever drafts a text would allow. A draft after a wrong one is
//! never accepted, so more of them are right than accepted ([`right_share`]). Random text has no drafts worth
//! verifying, and must not become slower by looking for them; a full batch is measured with it alone.

use super::Subject;
use super::generate::{Numbers, context, open};
use super::report::{Report, Row, percentile, rounded};
use crate::cli::session::Session;
use crate::cli::terminal::output::note;
use anyhow::{Result, bail, ensure};
use folio::config::{Config, Speculation};
use folio::engine::handle::{EventReceiver, Stats};
use folio::engine::request::{DrawParams, Event, Request, SamplingParams};
use folio::platform::{self, Instant};
use futures_util::{StreamExt as _, future};
use serde_json::{Value, json};
use std::sync::Arc;

/// Sequences of the full batch.
const FULL: u32 = 64;
/// Rounds with and without drafts, in turn.
const ROUNDS: u64 = 5;

/// What one sequence got, and the times in seconds at which the tokens came.
struct Answer {
    ids: Vec<u32>,
    times: Vec<f64>,
}

/// Tokens per second of one round.
struct Speeds {
    without: f64,
    with: f64,
}

/// The same model without drafts and with them, and the lengths of its requests.
struct Rivals {
    without: Session,
    with: Session,
    context: u32,
    new_tokens: u32,
}

/// Requests that are sent at once.
#[derive(Clone, Copy)]
struct Case {
    batch: u32,
    /// The share of a sequence's drafts that is right; `None`: random text.
    right: Option<f64>,
}

pub(super) fn measure(subject: &Subject<'_>, config: &Config, report: &mut Report) -> Result<()> {
    let acceptance = subject.args.acceptance;
    ensure!(
        (0.0..=1.0).contains(&acceptance),
        "--acceptance must be from 0 to 1, not {acceptance}"
    );
    let settings = Speculation {
        disable_by_batch_size: None,
        ..config.speculation.unwrap_or(Speculation::DEFAULT)
    };
    let right = right_share(acceptance, settings.num_speculative_tokens);
    let batches = match &subject.args.batch[..] {
        [] => &[1, FULL],
        given => given,
    };
    let rivals = Rivals::open(subject, config, settings, batches)?;
    let cases = batches.iter().flat_map(|&batch| {
        let spoilt = (batch < FULL).then_some(Some(right));
        let rights = spoilt.into_iter().chain([None]);
        rights.map(move |right| Case { batch, right })
    });
    let rows = cases.map(|case| rivals.compare(case, report));
    let rows = rows.collect::<Result<Vec<_>>>()?;
    report.set("speculation", rows.into());
    rivals.without.close()?;
    rivals.with.close()
}

impl Rivals {
    fn open(
        subject: &Subject<'_>,
        config: &Config,
        settings: Speculation,
        batches: &[u32],
    ) -> Result<Self> {
        let new_tokens = subject.args.new_tokens.max(2);
        let context = context(subject, new_tokens)?;
        let largest = batches.iter().copied().max().unwrap_or(FULL);
        let session = |speculation| {
            let config = Config {
                speculation,
                ..config.clone()
            };
            open(subject, &config, largest, context + new_tokens)
        };
        Ok(Self {
            without: session(None)?,
            with: session(Some(settings))?,
            context,
            new_tokens,
        })
    }

    /// Adds the rows of a case to the report. Returns its numbers.
    fn compare(&self, case: Case, report: &mut Report) -> Result<Value> {
        let batch = case.batch;
        let what = match case.right {
            Some(_) => "own answer, spoilt",
            None => "random text",
        };
        note(format_args!("speculation, batch {batch}, {what} …"));
        let before = self.with.handle.stats();
        let rounds = self.rounds(case)?;
        let share = accepted_share(&before, &self.with.handle.stats());
        // Of pairs, because other load comes and goes.
        let speedup = median(&rounds, |round| round.with / round.without);
        let drafted = format!("{what}: {speedup:.2} ×, {:.0} % accepted", 100.0 * share);
        for (shape, tokens_per_s) in [
            (
                format!("{what}: no drafts"),
                median(&rounds, |round| round.without),
            ),
            (drafted, median(&rounds, |round| round.with)),
        ] {
            report.push(Row {
                scenario: "speculation",
                shape,
                batch,
                context: Some(self.context),
                tokens_per_s: Some(tokens_per_s),
                ..Row::default()
            })?;
        }
        Ok(json!({
            "batch": batch,
            "drafts": what,
            "speedup": rounded(speedup),
            "accepted": rounded(share),
        }))
    }

    /// Rounds of the same requests in both sessions, after one to warm up.
    fn rounds(&self, case: Case) -> Result<Vec<Speeds>> {
        let vocab = self.with.info()?.vocab;
        let mut speeds = Vec::new();
        for number in 0..=ROUNDS {
            let mut numbers = Numbers(number);
            let requests: Vec<_> = (0..case.batch)
                .map(|_| request(&mut numbers, vocab, self.context, self.new_tokens))
                .collect();
            let plain = answer(&self.without, &requests)?;
            let drafted = requests
                .iter()
                .zip(&plain)
                .map(|(request, answer)| Request {
                    predicted: case
                        .right
                        .map(|share| spoilt(&mut numbers, &answer.ids, share, vocab)),
                    ..request.clone()
                });
            let drafted = answer(&self.with, &drafted.collect::<Vec<_>>())?;
            if number > 0 {
                speeds.push(Speeds {
                    without: speed(&plain)?,
                    with: speed(&drafted)?,
                });
            }
        }
        Ok(speeds)
    }
}

fn median(rounds: &[Speeds], of: impl Fn(&Speeds) -> f64) -> f64 {
    let mut numbers: Vec<f64> = rounds.iter().map(of).collect();
    percentile(&mut numbers, 0.5).unwrap_or_default()
}

fn accepted_share(before: &Stats, after: &Stats) -> f64 {
    let drafted = after.draft_tokens - before.draft_tokens;
    (after.accepted_tokens() - before.accepted_tokens()) as f64 / drafted.max(1) as f64
}

/// The share of drafts that has to be right, each independently, so that of `drafts` in a row the share `accepted` is
/// accepted: (p + p² + … + pᵏ) / k of them are, because a draft counts only if those before it are right too. With
/// fewer drafts in a step, more of them are accepted.
fn right_share(accepted: f64, drafts: u32) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..f64::MANTISSA_DIGITS {
        let middle = f64::midpoint(low, high);
        if share_before_a_miss(middle, drafts) < accepted {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// The share of the drafts before the first wrong one, if each is right with this probability.
fn share_before_a_miss(right: f64, drafts: u32) -> f64 {
    (0..drafts).rev().fold(0.0, |sum, _| right * (1.0 + sum)) / f64::from(drafts.max(1))
}

/// A request with a random prompt and a random answer, the same for the same numbers.
fn request(numbers: &mut Numbers, vocab: u32, context: u32, new_tokens: u32) -> Request {
    let params = SamplingParams {
        draw: DrawParams::default(),
        seed: Some(numbers.below(u32::MAX).into()),
        ignore_eos: true,
        max_tokens: Some(new_tokens),
        ..SamplingParams::default()
    };
    Request {
        prompt: numbers.token_ids(context, vocab).into(),
        params,
        ..Request::default()
    }
}

/// An answer of which this share is right.
fn spoilt(numbers: &mut Numbers, ids: &[u32], share: f64, vocab: u32) -> Arc<[u32]> {
    const PARTS: u32 = 1 << 20;
    ids.iter()
        .map(|&id| {
            if f64::from(numbers.below(PARTS)) < share * f64::from(PARTS) {
                id
            } else {
                (id + 1) % vocab
            }
        })
        .collect()
}

/// Sends requests at once and waits for their answers.
fn answer(session: &Session, requests: &[Request]) -> Result<Vec<Answer>> {
    let start = Instant::now();
    let sent: Result<Vec<_>> = requests
        .iter()
        .map(|request| {
            Ok(collect(
                session.handle.submit(request.clone())?.remove(0),
                start,
            ))
        })
        .collect();
    platform::block_on(future::try_join_all(sent?))
}

async fn collect(mut events: EventReceiver, start: Instant) -> Result<Answer> {
    let mut answer = Answer {
        ids: Vec::new(),
        times: Vec::new(),
    };
    while let Some(event) = events.next().await {
        match event {
            Event::Prompt(_) => {}
            Event::Token(token) => {
                answer.ids.push(token.id);
                answer.times.push(start.elapsed().as_secs_f64());
            }
            Event::Finished { .. } => return Ok(answer),
            Event::Failed(fault) => return Err(fault.into()),
        }
    }
    bail!("the engine ended in the middle of a sequence")
}

/// Tokens per second while all sequences generate: from the latest first token to the earliest last token.
fn speed(answers: &[Answer]) -> Result<f64> {
    let times = |pick: fn(&[f64]) -> Option<&f64>| {
        answers
            .iter()
            .filter_map(move |answer| pick(&answer.times).copied())
    };
    let from = times(<[f64]>::first).fold(0.0, f64::max);
    let to = times(<[f64]>::last).fold(f64::INFINITY, f64::min);
    let tokens: usize = answers
        .iter()
        .map(|answer| {
            answer
                .times
                .iter()
                .filter(|at| **at > from && **at <= to)
                .count()
        })
        .sum();
    ensure!(
        tokens > 0,
        "the sequences never all generated at the same time: raise --new-tokens"
    );
    Ok(tokens as f64 / (to - from))
}

#[cfg(test)]
mod tests;
