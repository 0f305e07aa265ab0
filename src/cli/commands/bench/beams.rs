//! Scenario `beams`: how much KV memory beams save by sharing blocks, as the paper on PagedAttention measures it: the
//! blocks in use, compared with those that the same beams would use if none were shared.

use super::Subject;
use super::generate::{Numbers, context, open};
use super::report::{Report, Row, rounded};
use crate::cli::session::Session;
use crate::cli::terminal::output::note;
use anyhow::{Result, ensure};
use folio::config::Config;
use folio::engine::handle::EventReceiver;
use folio::engine::request::{BeamParams, Event, Request, SamplingParams};
use folio::platform::Instant;
use serde_json::json;
use std::time::Duration;

/// Beams of a search: those of the paper's figure 16.
const WIDTHS: [u32; 3] = [2, 4, 6];
/// Searches that run at once, unless `--batch` says otherwise.
const SEARCHES: u32 = 8;
/// Time between two samples of the pool.
const SAMPLE: Duration = Duration::from_millis(1);

/// Blocks of the pool, summed over samples.
#[derive(Default)]
struct Blocks {
    used: u64,
    held: u64,
}

pub(super) fn measure(subject: &Subject<'_>, config: &Config, report: &mut Report) -> Result<()> {
    let searches = subject.args.batch.first().copied().unwrap_or(SEARCHES);
    ensure!(searches > 0, "--batch must be at least 1");
    let new_tokens = subject.args.new_tokens;
    let context = context(subject, new_tokens)?;
    let session = open(
        subject,
        config,
        searches * WIDTHS[WIDTHS.len() - 1],
        context + new_tokens,
    )?;
    let mut numbers = Numbers(config.seed.unwrap_or(0));
    let mut rows = Vec::new();
    for width in WIDTHS {
        note(format_args!(
            "beams, {searches} searches of width {width} …"
        ));
        let start = Instant::now();
        let blocks = search(
            &session,
            &mut numbers,
            (searches, width),
            (context, new_tokens),
        )?;
        let seconds = start.elapsed().as_secs_f64();
        let saved = 1.0 - blocks.used as f64 / blocks.held.max(1) as f64;
        report.push(Row {
            scenario: "beams",
            shape: format!(
                "width {width}: {:.1} % of the KV memory saved",
                100.0 * saved
            ),
            batch: searches * width,
            context: Some(context),
            tokens_per_s: Some(f64::from(searches * width * new_tokens) / seconds),
            ..Row::default()
        })?;
        rows.push(json!({"width": width, "searches": searches, "memory_saved": rounded(saved)}));
    }
    report.set("beams", rows.into());
    session.close()
}

/// Runs searches at once, over prompts that have nothing in common, and watches the pool.
fn search(
    session: &Session,
    numbers: &mut Numbers,
    (searches, width): (u32, u32),
    (context, new_tokens): (u32, u32),
) -> Result<Blocks> {
    let vocab = session.info()?.vocab;
    let params = SamplingParams {
        n: width,
        max_tokens: Some(new_tokens),
        ignore_eos: true,
        beams: Some(BeamParams {
            width,
            length_penalty: 1.0,
            early_stopping: false,
        }),
        ..SamplingParams::default()
    };
    let mut receivers = Vec::new();
    for _ in 0..searches {
        let prompt = numbers.token_ids(context, vocab).into();
        receivers.extend(session.handle.submit(Request {
            prompt,
            params: params.clone(),
            ..Request::default()
        })?);
    }
    let mut blocks = Blocks::default();
    while !receivers.is_empty() {
        std::thread::sleep(SAMPLE);
        let stats = session.handle.stats();
        blocks.used += stats.blocks_used;
        blocks.held += stats.blocks_held;
        let mut failed = None;
        receivers.retain_mut(|receiver| is_open(receiver, &mut failed));
        ensure!(failed.is_none(), "a search failed: {failed:?}");
    }
    Ok(blocks)
}

/// Reads what has come, and returns whether more will.
fn is_open(receiver: &mut EventReceiver, failed: &mut Option<Event>) -> bool {
    while let Ok(event) = receiver.try_recv() {
        match event {
            Event::Finished { .. } => return false,
            Event::Failed(_) => {
                *failed = Some(event);
                return false;
            }
            _ => {}
        }
    }
    true
}
