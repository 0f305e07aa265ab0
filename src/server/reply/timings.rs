//! [`Timings`]: how long prompt and answer took, in llama.cpp's form.

use super::generation::{PromptProgress, Times, Totals};
use crate::engine::request::{Cached, DraftReport};
use serde::Serialize;

/// Times and rates. A rate is zero if nothing came in its time.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Timings {
    cache_n: u32,
    prompt_n: u32,
    prompt_ms: f64,
    prompt_per_token_ms: f64,
    prompt_per_second: f64,
    predicted_n: u32,
    predicted_ms: f64,
    predicted_per_token_ms: f64,
    predicted_per_second: f64,
    #[serde(flatten)]
    drafts: Option<Drafts>,
}

/// What became of drafts, if there were any.
#[derive(Clone, Copy, Debug, Serialize)]
struct Drafts {
    draft_n: u32,
    draft_n_accepted: u32,
}

impl From<PromptProgress> for Timings {
    fn from(progress: PromptProgress) -> Self {
        let times = Times {
            prompt: progress.time,
            ..Times::default()
        };
        let cached = Cached {
            all: progress.cache,
            ..Cached::default()
        };
        Totals {
            prompt_tokens: progress.processed,
            cached,
            times,
            ..Totals::default()
        }
        .into()
    }
}

impl From<Totals> for Timings {
    fn from(totals: Totals) -> Self {
        let Times {
            prompt,
            answer,
            later_tokens,
        } = totals.times;
        let prompt_n = totals.prompt_tokens - totals.cached.all;
        let [prompt_ms, predicted_ms] = [prompt, answer].map(|time| time.as_secs_f64() * 1e3);
        let DraftReport {
            drafted, accepted, ..
        } = totals.drafts;
        Self {
            cache_n: totals.cached.all,
            prompt_n,
            prompt_ms,
            prompt_per_token_ms: ratio(prompt_ms, prompt_n.into()),
            prompt_per_second: ratio(1e3 * f64::from(prompt_n), prompt_ms),
            predicted_n: totals.completion_tokens,
            predicted_ms,
            predicted_per_token_ms: ratio(predicted_ms, later_tokens.into()),
            predicted_per_second: ratio(1e3 * f64::from(later_tokens), predicted_ms),
            drafts: (drafted > 0).then_some(Drafts {
                draft_n: drafted,
                draft_n_accepted: accepted,
            }),
        }
    }
}

fn ratio(amount: f64, divisor: f64) -> f64 {
    if divisor > 0.0 { amount / divisor } else { 0.0 }
}

#[cfg(test)]
mod tests;
