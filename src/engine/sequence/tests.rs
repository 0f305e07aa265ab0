//! Drafts, forced tokens and the history of a sequence.

use super::*;
use crate::engine::request::{Constraint, ConstraintState, SharedConstraint};

/// Allows the tokens from 0 to 4 in order, and nothing after them.
#[derive(Debug)]
struct Counting;

#[derive(Clone, Debug)]
struct Next(u32);

impl Constraint for Counting {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(Next(0))
    }
}

impl ConstraintState for Next {
    fn fork(&self) -> Box<dyn ConstraintState> {
        Box::new(self.clone())
    }

    fn fill_mask(&mut self, mask: &mut [u32]) -> Result<bool, Unsatisfiable> {
        mask[0] = 1 << self.0;
        Ok(true)
    }

    fn accept(&mut self, token_id: u32) -> Result<bool, Unsatisfiable> {
        if token_id != self.0 {
            return Err(Unsatisfiable);
        }
        self.0 += 1;
        Ok(self.0 == 5)
    }

    fn forced(&mut self) -> Vec<u32> {
        (self.0..5).collect()
    }
}

fn counting(logprobs: Option<u32>) -> Sequence {
    let constraint = Some(SharedConstraint(Arc::new(Counting)));
    let params = SamplingParams {
        constraint,
        logprobs,
        ..SamplingParams::default()
    };
    let request = Request {
        prompt: [9].into(),
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
    Sequence::new(Arc::new(request), &[choice], 0, order, Holding::default())
}

#[test]
fn drafts_are_allowed_up_to_the_first_that_a_constraint_forbids_or_that_ends_it() {
    let sequence = counting(None);
    assert_eq!(sequence.allowed(vec![0, 1, 2]), [0, 1, 2]);
    assert_eq!(sequence.allowed(vec![0, 2, 3]), [0]);
    assert_eq!(sequence.allowed(vec![0, 1, 2, 3, 4]), [0, 1, 2, 3]);
    assert!(sequence.allowed(Vec::new()).is_empty());
    assert_eq!(
        [0, 1].map(|id| sequence.would_end_with(id)),
        [Ok(false), Err(Unsatisfiable)]
    );
}

#[test]
fn forced_tokens_are_drawn_as_drafts_if_their_logprobs_are_wanted() {
    let [mut plain, mut with_logprobs] = [counting(None), counting(Some(0))];
    [&mut plain, &mut with_logprobs]
        .into_iter()
        .for_each(|sequence| assert_eq!(sequence.guide(0), Ok(false)));
    let (none, rest) = (Vec::<u32>::new(), vec![1_u32, 2, 3, 4]);
    assert_eq!(
        (plain.forced_drafts(), plain.forced()),
        (none.clone(), rest.clone())
    );
    assert_eq!(
        (with_logprobs.forced_drafts(), with_logprobs.forced()),
        (rest, none)
    );
}

#[test]
fn drafts_are_added_to_the_history_of_tokens() {
    let mut sequence = counting(None);
    let request = Arc::make_mut(&mut sequence.request);
    request.params.draw.presence_penalty = 0.5;
    sequence.start_history();
    [3, 4, 3]
        .into_iter()
        .for_each(|token_id| sequence.push(token_id));
    let counts = |drafts: &[u32]| {
        let entries = sequence.history_with(drafts, false);
        entries
            .iter()
            .map(|entry| (entry.token_id, entry.generated))
            .collect::<Vec<_>>()
    };
    assert_eq!(counts(&[]), [(3, 2), (4, 1)]);
    assert_eq!(counts(&[5, 3, 6, 6]), [(3, 3), (4, 1), (5, 1), (6, 2)]);
}

#[test]
fn penalties_count_the_last_tokens_of_prompt_and_answer() {
    let mut sequence = counting(None);
    let request = Arc::make_mut(&mut sequence.request);
    request.prompt = [9, 8, 9].into();
    request.params.penalty_window = Some(4);
    request.params.draw.repetition_penalty = 1.5;
    sequence.tokens = request.prompt.to_vec();
    sequence.start_history();
    let sorted = |entries: &[HistoryEntry]| {
        let mut counts: Vec<_> = entries
            .iter()
            .map(|entry| (entry.token_id, entry.generated))
            .collect();
        counts.sort_unstable();
        counts
    };
    assert_eq!(sorted(sequence.history()), [(8, 1), (9, 2)]);
    sequence.push(7);
    assert_eq!(sorted(sequence.history()), [(7, 1), (8, 1), (9, 2)]);
    assert_eq!(
        sorted(&sequence.history_with(&[], true)),
        [(7, 1), (8, 1), (9, 1)]
    );
    assert_eq!(
        sorted(&sequence.history_with(&[5, 7], false)),
        [(5, 1), (7, 2), (9, 1)]
    );
    assert_eq!(
        sorted(&sequence.history_with(&[5, 5, 5, 5], true)),
        [(5, 3)]
    );
    [7, 8]
        .into_iter()
        .for_each(|token_id| sequence.push(token_id));
    assert_eq!(sorted(sequence.history()), [(7, 2), (8, 1), (9, 1)]);
    [1, 2, 3, 4, 1]
        .into_iter()
        .for_each(|token_id| sequence.push(token_id));
    assert_eq!(sorted(sequence.history()), [(1, 1), (2, 1), (3, 1), (4, 1)]);
}
