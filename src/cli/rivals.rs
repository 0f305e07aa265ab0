//! Whether an integrated GPU or the processor is faster: measured once for a machine, a driver and a version of folio,
//! and kept in the user's cache folder.
//!
//! Both share one memory, so no table knows the answer. A small model with random weights answers on each of them: one
//! prompt, then some tokens. Each part ends at a deadline, so that both devices together take at most two seconds after
//! their kernels are compiled.

use super::folders;
use anyhow::{Result, bail, ensure};
use folio::backend::{Backend, BackendError};
use folio::config::Config;
use folio::engine::handle::{self, EngineHandle, EventReceiver, Status};
use folio::engine::request::{DrawParams, Event, Request, SamplingParams};
use folio::engine::{self};
use folio::model::{Model, ModelSpec, Quantization};
use folio::platform;
use futures_util::{FutureExt as _, StreamExt as _};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The model: hidden size, layers, heads, KV heads, their elements, MLP size, vocabulary. In 8 bits its weights are
/// more than most caches hold.
const SHAPE: &str = "1024x4x16x8x64x3072x8192";
/// Tokens of the prompt.
const PROMPT: u32 = 256;
/// Most tokens of the answer.
const ANSWER: u32 = 64;
/// Time on each device for the warm-up, for the prompt, and for the answer: six times this is less than two seconds.
const DEADLINE: Duration = Duration::from_millis(300);
const POLL: Duration = Duration::from_micros(200);
/// A typical request, by which the two are compared: tokens of its prompt and of its answer.
const TYPICAL: (f64, f64) = (512.0, 256.0);
/// Requests that may wait: one that was dropped at its deadline leaves the queue a little later.
const QUEUE: u32 = 8;
/// The file of measurements, and its maximum bytes.
const FILE: &str = "measured.json";
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Tokens per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Speed {
    /// Of a prompt.
    pub(crate) prefill: f64,
    /// Of an answer.
    pub(crate) decode: f64,
}

impl Speed {
    /// Seconds of a typical request.
    fn seconds(self) -> f64 {
        TYPICAL.0 / self.prefill + TYPICAL.1 / self.decode
    }
}

impl fmt::Display for Speed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{:.0} tokens/s of a prompt and {:.0} of an answer",
            self.prefill, self.decode
        )
    }
}

/// The speeds of both devices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rivals {
    pub(crate) gpu: Speed,
    pub(crate) cpu: Speed,
}

impl Rivals {
    pub(crate) fn gpu_wins(&self) -> bool {
        self.gpu.seconds() <= self.cpu.seconds()
    }
}

impl fmt::Display for Rivals {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "measured {} on the integrated GPU, {} on the processor",
            self.gpu, self.cpu
        )
    }
}

/// What was measured before; `key` names the machine and the driver.
pub(crate) fn known(key: &str) -> Option<Rivals> {
    all(&path()?).remove(key)
}

/// Keeps a measurement. Failing to write it only means that the next start measures again.
pub(crate) fn keep(key: &str, rivals: Rivals) {
    let Some(path) = path() else { return };
    let mut all = all(&path);
    all.insert(key.to_owned(), rivals);
    if let (Some(folder), Ok(json)) = (path.parent(), serde_json::to_vec_pretty(&all)) {
        let kept = platform::create_own_folder(folder)
            .and_then(|()| platform::write_own_file(&path, &[&json]));
        if let Err(error) = kept {
            tracing::warn!("{}: {error}", path.display());
        }
    }
}

fn path() -> Option<PathBuf> {
    Some(folders::cache("auto")?.join(FILE))
}

/// All measurements; none if the file is missing or of another version.
fn all(path: &std::path::Path) -> BTreeMap<String, Rivals> {
    let json = platform::read_own_file(path, FILE_BYTES_MAX).unwrap_or_default();
    serde_json::from_slice(&json).unwrap_or_default()
}

/// Measures a device, which `open` opens.
pub(crate) fn speed<B, F>(open: F) -> Result<Speed>
where
    B: Backend + 'static,
    F: FnOnce() -> Result<B, BackendError> + Send + 'static,
{
    let model = Model::random(ModelSpec::named(SHAPE)?, 0).quantized(Quantization::Q8)?;
    let config = Config {
        max_model_len: Some(PROMPT + ANSWER),
        max_num_seqs: 1,
        kv_cache_bytes: Some(16 << 20),
        prefix_caching: false,
        // Random weights repeat themselves, which would flatter one device or the other.
        speculation: None,
        ..Config::default()
    };
    let (handle, inbox) = handle::channel(QUEUE);
    let thread = engine::spawn(open, model, config, inbox, |_| {});
    while handle.status() == Status::Loading && !thread.is_finished() {
        std::thread::sleep(POLL);
    }
    let outcome = if handle.status() == Status::Ready {
        measured(&handle)
    } else {
        Err(anyhow::anyhow!("no engine"))
    };
    handle.drain();
    match thread.join() {
        Ok(end) => end?,
        Err(_) => bail!("the engine's thread panicked"),
    }
    outcome
}

fn measured(handle: &EngineHandle) -> Result<Speed> {
    // The first tokens also pay for what is done once.
    run(handle, 8, 2)?;
    let prefill = run(handle, PROMPT, 1)?;
    let decode = run(handle, 1, ANSWER)?;
    // Without a token before the deadline the speed is below what would have taken as long.
    let prefill = f64::from(PROMPT)
        / prefill
            .first()
            .map_or(DEADLINE, |first| *first)
            .as_secs_f64();
    let (first, last) = (
        decode.first().copied().unwrap_or(DEADLINE),
        decode.last().copied().unwrap_or(DEADLINE),
    );
    let steps = decode.len().saturating_sub(1).max(1) as f64;
    Ok(Speed {
        prefill,
        decode: steps
            / (last - first)
                .max(Duration::from_micros(1))
                .as_secs_f64()
                .max(1e-6),
    })
}

/// When the tokens of one request come, until it ends or the deadline.
fn run(handle: &EngineHandle, prompt: u32, answer: u32) -> Result<Vec<Duration>> {
    let params = SamplingParams {
        draw: DrawParams::greedy(),
        ignore_eos: true,
        max_tokens: Some(answer),
        ..SamplingParams::default()
    };
    let prompt: Vec<u32> = (0..prompt).collect();
    let start = Instant::now();
    let mut receivers = handle.submit(Request {
        prompt: prompt.into(),
        params,
        ..Request::default()
    })?;
    ensure!(receivers.len() == 1, "one choice has one receiver");
    Ok(arrivals(&mut receivers[0], start))
}

fn arrivals(events: &mut EventReceiver, start: Instant) -> Vec<Duration> {
    let mut tokens = Vec::new();
    while start.elapsed() < DEADLINE {
        match events.next().now_or_never() {
            None => std::thread::sleep(POLL),
            Some(Some(Event::Token(_))) => tokens.push(start.elapsed()),
            Some(Some(Event::Prompt(_))) => {}
            Some(Some(Event::Finished { .. } | Event::Failed(_)) | None) => break,
        }
    }
    tokens
}

#[cfg(test)]
mod tests;
