//! [`Timings`]: how long prompt and answer took, in llama.cpp's form.

use super::generation::{Times, Totals};
use crate::engine::request::DraftReport;
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
mod tests {
    use super::*;
    use crate::engine::request::Cached;
    use serde_json::json;
    use std::time::Duration;

    fn totals(completion_tokens: u32, later_tokens: u32, answer: Duration) -> Totals {
        let cached = Cached {
            all: 6,
            ..Cached::default()
        };
        let times = Times {
            prompt: Duration::from_millis(8),
            answer,
            later_tokens,
        };
        Totals {
            prompt_tokens: 10,
            cached,
            completion_tokens,
            times,
            ..Totals::default()
        }
    }

    #[test]
    fn the_first_tokens_of_an_answer_come_with_its_prompt() {
        let timings =
            |totals: Totals| serde_json::to_value(Timings::from(totals)).expect("it has a form");
        assert_eq!(
            timings(totals(5, 4, Duration::from_millis(16))),
            json!({"cache_n": 6, "prompt_n": 4, "prompt_ms": 8.0, "prompt_per_token_ms": 2.0,
                "prompt_per_second": 500.0, "predicted_n": 5, "predicted_ms": 16.0, "predicted_per_token_ms": 4.0,
                "predicted_per_second": 250.0})
        );
        let one = timings(totals(1, 0, Duration::ZERO));
        assert_eq!(
            [&one["predicted_per_token_ms"], &one["predicted_per_second"]],
            [0.0, 0.0]
        );
    }

    #[test]
    fn drafts_are_told_if_there_were_any() {
        let drafts = DraftReport {
            drafted: 9,
            accepted: 7,
            ..DraftReport::default()
        };
        let with_drafts = Totals {
            drafts,
            ..totals(5, 4, Duration::from_millis(16))
        };
        let timings = serde_json::to_value(Timings::from(with_drafts)).expect("it has a form");
        assert_eq!(
            (&timings["draft_n"], &timings["draft_n_accepted"]),
            (&json!(9), &json!(7))
        );
    }
}
