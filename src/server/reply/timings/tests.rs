//! Tests of `server/reply/timings.rs`.

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
