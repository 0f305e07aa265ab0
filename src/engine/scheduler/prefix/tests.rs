//! Tests of `engine/scheduler/prefix.rs`.

use super::*;
use crate::engine::memory::Holding;
use crate::engine::request::Cached;
use crate::engine::request::Request;
use crate::engine::sequence::{Choice, Order, StreamId};
use std::sync::Arc;

/// A sequence that was admitted and has ended after so many tokens.
fn ended(tokens: usize, shareable: u32) -> Sequence {
    let request = Request {
        prompt: [1].into(),
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
    sequence.tokens = vec![1; tokens];
    sequence.holding.cached = Some(Cached::default());
    sequence.holding.shareable = shareable;
    sequence
}

#[test]
fn a_million_tokens_are_remembered() {
    let mut past = Past::default();
    let mut remembered = |tokens: usize, shareable: u32| {
        past.remember(ended(tokens, shareable));
        let lengths: Vec<_> = past
            .sequences
            .iter()
            .map(|past| past.tokens.len())
            .collect();
        assert_eq!(past.tokens, lengths.iter().sum::<usize>());
        lengths
    };
    assert_eq!(
        remembered(PAST_TOKENS_MAX / 2 + 1, u32::MAX),
        [PAST_TOKENS_MAX / 2]
    );
    assert_eq!(
        remembered(PAST_TOKENS_MAX / 2 + 1, u32::MAX),
        [PAST_TOKENS_MAX / 2; 2],
        "just as many as fit"
    );
    assert_eq!(
        remembered(101, 100),
        [PAST_TOKENS_MAX / 2, 100],
        "the oldest is forgotten"
    );
    assert_eq!(
        remembered(101, 60),
        [PAST_TOKENS_MAX / 2, 100, 60],
        "only what can be shared"
    );
    assert_eq!(
        remembered(PAST_TOKENS_MAX + 2, u32::MAX),
        [PAST_TOKENS_MAX / 2, 100, 60],
        "longer than all"
    );
    assert_eq!(remembered(PAST_TOKENS_MAX + 1, u32::MAX), [PAST_TOKENS_MAX]);
    let mut queued = ended(9, u32::MAX);
    queued.holding.cached = None;
    past.remember(queued);
    assert_eq!(
        past.sequences.len(),
        1,
        "nothing was computed for a request that was never admitted"
    );
}
