//! Answers of whole models on a device, compared with the reference's: prompts shorter than a block, longer than one,
//! and in several chunks, at once, greedily. The engine is part of what is compared: batches, chunks, fed tokens.
//!
//! Tokens must be the same until the first near-tie, and so must the logprobs of the likeliest tokens within
//! [`LOGPROB`], since activations of 32 bits are used.

use crate::cli::device::{Device, Dtype};
use crate::cli::options::TextFiles;
use crate::cli::session::{Opened, Tells};
use crate::cli::terminal::output;
use anyhow::{Context as _, Result, bail, ensure};
use folio::config::Config;
use folio::engine::handle::EventReceiver;
use folio::engine::request::{DrawParams, Event, Request, SamplingParams, Token};
use folio::model::Model;
use folio::platform;
use futures_util::{StreamExt as _, future};
use std::path::{Path, PathBuf};

/// Tokens of the prompts, if the model's context has room for them.
const PROMPTS: [u32; 4] = [1, 13, 40, 150];
/// Tokens of each answer.
const TOKENS: u32 = 24;
/// Tokens of a step: a long prompt takes several.
const CHUNK: u32 = 64;
/// Most likely tokens that are compared.
const TOP: u32 = 5;
/// Largest deviation of a logprob, absolute and relative. It is far above that of sums in another order.
const LOGPROB: f32 = 5e-3;

/// Compares each model, and says which differ.
pub(super) fn check(device: &Device, folders: &[PathBuf]) -> Result<()> {
    let mut differing = 0;
    for folder in folders {
        let name = folder.display();
        match compare(device, folder).with_context(|| format!("{name}")) {
            Ok(worst) => output::result(format_args!(
                "{name}: equal; logprobs differ by at most {worst:.1e}"
            ))?,
            Err(fault) => {
                output::result(format_args!("{name}: DIFFERS: {fault:#}"))?;
                differing += 1;
            }
        }
    }
    ensure!(
        differing == 0,
        "{differing} of {} models differ from the CPU reference",
        folders.len()
    );
    Ok(())
}

/// The largest deviation of a logprob.
fn compare(device: &Device, folder: &Path) -> Result<f32> {
    let expected = answers(Device::Reference, folder)?;
    let found = answers(device.clone().with_dtype(Dtype::Float32)?, folder)?;
    let mut worst = 0.0;
    for (answer, (expected, found)) in expected.iter().zip(&found).enumerate() {
        ensure!(
            expected.len() == found.len(),
            "answer {answer} has {} tokens, not {}",
            found.len(),
            expected.len()
        );
        for (at, (expected, found)) in expected.iter().zip(found).enumerate() {
            let deviation = compare_tokens(expected, found)
                .with_context(|| format!("answer {answer}, token {at}"))?;
            worst = f32::max(worst, deviation);
            if expected.id != found.id {
                break;
            }
        }
    }
    Ok(worst)
}

/// The largest deviation of a logprob; an error if the tokens differ by more than rounding.
fn compare_tokens(expected: &Token, found: &Token) -> Result<f32> {
    let mut worst = 0.0;
    for (expected, found) in expected.top_logprobs.iter().zip(&found.top_logprobs) {
        let deviation = (expected.logprob - found.logprob).abs();
        let allowed = LOGPROB * expected.logprob.abs().max(1.0);
        // Written so that NaN fails.
        let within = deviation <= allowed;
        ensure!(
            within,
            "token {} has logprob {}, expected {} of {}",
            found.token_id,
            found.logprob,
            expected.logprob,
            expected.token_id
        );
        worst = f32::max(worst, deviation);
    }
    let [first, second, ..] = &expected.top_logprobs[..] else {
        bail!("no logprobs")
    };
    let is_near_tie = first.logprob - second.logprob <= 2.0 * LOGPROB;
    ensure!(
        expected.id == found.id || is_near_tie,
        "token {}, expected {}",
        found.id,
        expected.id
    );
    Ok(worst)
}

fn answers(device: Device, folder: &Path) -> Result<Vec<Vec<Token>>> {
    let model = Model::open(folder)?;
    let room = model.spec().positions_max.saturating_sub(TOKENS);
    let lengths = PROMPTS.map(|length| length.min(room)).to_vec();
    let longest = lengths.iter().max().copied().unwrap_or(0);
    let config = Config {
        max_model_len: Some(longest + TOKENS),
        max_num_seqs: PROMPTS.len() as u32,
        max_num_batched_tokens: CHUNK,
        kv_cache_bytes: Some(32 << 20),
        speculation: None,
        ..Config::default()
    };
    let session = Opened::new(model, TextFiles::none())
        .start(device, config, Tells::Nothing)?
        .wait_ready()?;
    let vocab = session.info()?.vocab;
    let receivers = lengths
        .iter()
        .map(|length| Ok(session.handle.submit(request(*length, vocab))?.remove(0)));
    let receivers = receivers.collect::<Result<Vec<_>>>()?;
    let answers = platform::block_on(future::try_join_all(receivers.into_iter().map(collect)))?;
    session.close()?;
    Ok(answers)
}

/// A prompt of `length` tokens, and no two lengths have the same beginning.
fn request(length: u32, vocab: u32) -> Request {
    let prompt: Vec<u32> = (0..length)
        .map(|at| (7 * length + 31 * at + 3) % vocab)
        .collect();
    let params = SamplingParams {
        max_tokens: Some(TOKENS),
        draw: DrawParams::greedy(),
        ignore_eos: true,
        logprobs: Some(TOP),
        ..SamplingParams::default()
    };
    Request {
        prompt: prompt.into(),
        params,
        ..Request::default()
    }
}

async fn collect(mut events: EventReceiver) -> Result<Vec<Token>> {
    let mut tokens = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            Event::Prompt(_) => {}
            Event::Token(token) => tokens.push(token),
            Event::Finished { .. } => return Ok(tokens),
            Event::Failed(fault) => return Err(fault.into()),
        }
    }
    bail!("the engine ended in the middle of an answer")
}
