//! Tests of `engine/scheduler/side_arrays.rs`.

use super::*;
use crate::engine::memory::Holding;
use crate::engine::request::{Request, SamplingParams};
use crate::engine::sequence::{Choice, Order, StreamId};
use std::sync::Arc;

/// Entries of a draw with so many drafts, after three tokens of which two are equal.
fn entries(presence_penalty: f32, min_tokens: u32, ends: usize, drafts: u32) -> (u32, u32) {
    let logit_bias = [(8, 1.0), (9, 1.0)].into();
    let mut params = SamplingParams {
        min_tokens,
        logit_bias,
        stop_token_ids: vec![7],
        ..SamplingParams::default()
    };
    params.draw.presence_penalty = presence_penalty;
    let request = Request {
        prompt: [1].into(),
        params,
        ..Request::default()
    };
    let choice = Choice {
        index: 0,
        stream: StreamId(0),
    };
    let order = Order {
        priority: 0,
        round: 0,
        arrival: 0,
        choice: 0,
    };
    let mut sequence = Sequence::new(Arc::new(request), &[choice], 0, order, Holding::default());
    [5, 6, 5]
        .into_iter()
        .for_each(|token_id| sequence.push(token_id));
    side_entries(&sequence, ends, drafts)
}

#[test]
fn every_draw_of_a_row_has_its_own_entries() {
    assert_eq!(entries(0.0, 0, 3, 0), (0, 2));
    assert_eq!(entries(0.5, 0, 3, 0), (2, 2));
    assert_eq!(
        entries(0.5, 0, 3, 3),
        (2 + 3 + 4 + 5, 4 * 2),
        "each draw sees one more draft"
    );
    assert_eq!(
        entries(0.0, 1, 3, 3),
        (0, 4 * (2 + 1 + 3)),
        "end tokens are held back too"
    );
    assert_eq!(entries(0.0, 1, 100, 0), (0, 2 + 1 + 64));
}
