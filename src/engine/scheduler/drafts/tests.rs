//! How many drafts a row gets, and who waits for a token to verify some.

use super::*;
use crate::engine::batch::Row;
use crate::engine::request::{BeamParams, Constraint, ConstraintState, DraftSkip, Event, Request};
use crate::engine::request::{SamplingParams, SharedConstraint, Unsatisfiable};
use crate::engine::scheduler::tests::{scheduler, step};
use crate::engine::scheduler::{Events, Limits};
use crate::engine::sequence::StreamId;
use crate::plan::inputs::Sampled;
use std::sync::Arc;

/// With its type, which comparisons do not infer.
const EMPTY: [u32; 0] = [];

/// What a request is predicted to answer; the device answers zeros, so the guesses do not get better or worse.
const PREDICTED: [u32; 60] = [7; 60];

/// A scheduler with room for every draft that its settings allow.
fn drafting(num_speculative_tokens: u32, change: impl FnOnce(&mut Limits)) -> Scheduler {
    let speculation = Some(Speculation {
        num_speculative_tokens,
        ..Speculation::DEFAULT
    });
    let mut limits = scheduler(None, 60, false).queues.limits;
    limits.speculation = speculation;
    limits.sequences_max = 40;
    change(&mut limits);
    Scheduler::new(limits)
}

/// Queues a request for an answer of 40 tokens to a prompt of three, with a prediction.
fn ask(
    scheduler: &mut Scheduler,
    stream: u64,
    change: impl FnOnce(&mut SamplingParams),
) -> SequenceId {
    let mut params = SamplingParams {
        max_tokens: Some(40),
        ..SamplingParams::default()
    };
    change(&mut params);
    let predicted = Some(PREDICTED.into());
    let request = Request {
        prompt: [1, 2, 3].into(),
        params,
        predicted,
        ..Request::default()
    };
    scheduler.add(Arc::new(request), &[StreamId(stream)], 0, false);
    scheduler.queues.by_stream[&StreamId(stream)]
}

/// So many sequences that have drawn their first token.
fn answering(scheduler: &mut Scheduler, count: u64) -> Vec<SequenceId> {
    let ids = (0..count)
        .map(|stream| ask(scheduler, stream, |_| ()))
        .collect();
    step(scheduler);
    ids
}

#[test]
fn drafts_leave_a_draw_to_every_sequence_and_half_of_the_tokens_to_prompts() {
    let mut scheduler = drafting(6, |limits| limits.sequences_max = 20);
    answering(&mut scheduler, 2);
    assert_eq!(
        (scheduler.drafts_max(64), scheduler.drafts_max(10)),
        (20 - 2, 10 - 2),
        "only answers run"
    );
    let mut waiting = drafting(6, |limits| {
        (limits.sequences_max, limits.max_num_seqs) = (20, 2);
    });
    answering(&mut waiting, 2);
    ask(&mut waiting, 2, |_| ());
    assert_eq!(
        (waiting.drafts_max(64), waiting.drafts_max(10)),
        (20 - 2, (10 - 2) / 2),
        "a prompt waits"
    );
    ask(&mut scheduler, 2, |_| ());
    let batch = scheduler.schedule(4).expect("all continue");
    assert_eq!((batch.rows.len(), scheduler.waiting_len()), (3, 0));
    assert_eq!(
        (scheduler.drafts_max(64), scheduler.drafts_max(10)),
        (20 - 4, (10 - 3) / 2),
        "a prompt is computed"
    );
    let mut searching = drafting(6, |limits| limits.sequences_max = 20);
    let beams = BeamParams {
        width: 2,
        length_penalty: 1.0,
        early_stopping: false,
    };
    ask(&mut searching, 0, |params| params.beams = Some(beams));
    searching.schedule(64).expect("it waits");
    assert_eq!(
        (searching.drafts_max(64), searching.drafts_max(10)),
        (20 - 4, (10 - 1) / 2),
        "a beam may fork"
    );
}

#[test]
fn a_row_gets_as_many_drafts_as_step_pool_and_length_allow() {
    let fitting = |blocks: u32, change: &dyn Fn(&mut Sequence, &mut BatchBuilder)| {
        let mut scheduler = drafting(6, |limits| limits.memory.blocks = vec![blocks]);
        let ids = answering(&mut scheduler, 1);
        let mut builder = scheduler.builder(64);
        change(&mut scheduler.queues.sequences[ids[0]], &mut builder);
        scheduler.drafts_that_fit(ids[0], 1, &builder)
    };
    assert_eq!(fitting(60, &|_, _| ()), 6, "the setting");
    assert_eq!(fitting(60, &|_, builder| builder.tokens_left = 4), 3);
    assert_eq!(fitting(60, &|_, builder| builder.drafts_left = 2), 2);
    assert_eq!(
        fitting(2, &|_, _| ()),
        4,
        "eight tokens have blocks, of which four are known"
    );
    assert_eq!(
        fitting(60, &|sequence, _| sequence.tokens_limit = 8),
        3,
        "the last token is drawn"
    );
    assert_eq!(fitting(60, &|sequence, _| sequence.tokens_limit = 4), 0);
    // A row with d drafts has d + 1 block tables, of which the last has 4 + d tokens.
    for (entries, drafts) in [(42, 6), (41, 5), (36, 5), (35, 4), (20, 4), (19, 3), (7, 0)] {
        assert_eq!(
            fitting(60, &|_, builder| builder.table_entries_left = entries),
            drafts,
            "half of {entries} entries"
        );
    }
}

#[test]
fn drafts_leave_half_of_the_penalty_and_bias_entries_to_others() {
    let mut scheduler = drafting(6, |_| ());
    let id = ask(&mut scheduler, 0, |params| {
        params.draw.presence_penalty = 0.5;
        params.logit_bias = [(8, 1.0), (9, 1.0)].into();
    });
    step(&mut scheduler);
    let fitting = |history, bias| {
        let builder = BatchBuilder {
            history_left: history,
            bias_left: bias,
            ..scheduler.builder(64)
        };
        scheduler.drafts_that_fit(id, 1, &builder)
    };
    assert_eq!(fitting(200, 200), 6);
    // One token was drawn so far, and each draw sees one draft more.
    assert_eq!(
        [30, 29, 20, 19].map(|history| fitting(history, 200)),
        [4, 3, 3, 2]
    );
    assert_eq!([16, 15, 8, 7].map(|bias| fitting(200, bias)), [3, 2, 1, 0]);
}

#[test]
fn only_answers_whose_tokens_are_all_known_get_drafts() {
    let drafts = |count: u32, change: &dyn Fn(&mut Sequence)| {
        let mut scheduler = drafting(3, |_| ());
        let ids = answering(&mut scheduler, 1);
        change(&mut scheduler.queues.sequences[ids[0]]);
        let mut builder = scheduler.builder(64);
        builder.drawn = Yield::plain(1);
        let drafts = scheduler.drafts(ids[0], count, &mut builder);
        assert_eq!(
            builder.drawn.drafts as usize,
            drafts.len(),
            "the step expects what it verifies"
        );
        drafts
    };
    assert_eq!(drafts(1, &|_| ()), [7; 3]);
    assert_eq!(
        drafts(1, &|sequence| sequence.tokens.push(9)),
        EMPTY,
        "a forced token stays uncomputed"
    );
    assert_eq!(drafts(2, &|sequence| sequence.tokens.push(9)).len(), 3);
    assert_eq!(
        drafts(2, &|sequence| sequence.pending = 1),
        EMPTY,
        "the token before them is unknown"
    );
    assert_eq!(
        drafts(3, &|sequence| sequence.holding.computed = 1),
        EMPTY,
        "the prompt is computed again"
    );
    assert_eq!(drafts(1, &|sequence| sequence.drafter = None), EMPTY);
}

#[test]
fn what_is_computed_again_after_rejected_drafts_is_no_longer_than_drafts_are() {
    let mut scheduler = drafting(2, |limits| limits.memory.state_slots = 8);
    let ids = answering(&mut scheduler, 1);
    let mut drafted = |forced: usize| {
        scheduler.queues.sequences[ids[0]].tokens.truncate(4);
        scheduler.queues.sequences[ids[0]]
            .tokens
            .extend(vec![9; forced]);
        let mut builder = scheduler.builder(64);
        builder.drawn = Yield::plain(1);
        scheduler
            .drafts(ids[0], 1 + forced as u32, &mut builder)
            .len()
    };
    assert_eq!([0, 1, 2, 3].map(&mut drafted), [2, 2, 0, 0]);
}

#[test]
fn with_more_sequences_than_its_settings_allow_none_gets_drafts() {
    for (count, some) in [(1, true), (2, true), (3, false)] {
        let mut scheduler = drafting(6, |limits| {
            limits.speculation = limits.speculation.map(|set| Speculation {
                disable_by_batch_size: Some(2),
                ..set
            });
        });
        let ids = answering(&mut scheduler, count);
        assert_eq!(
            scheduler.drafts_that_fit(ids[0], 1, &scheduler.builder(64)) > 0,
            some,
            "{count} sequences"
        );
        assert_eq!(
            ids.iter()
                .all(|&id| scheduler.queues.sequences[id].drafter.is_some()),
            some,
            "{count} sequences"
        );
        scheduler.queues.sequences[ids[0]].draft_skip = some.then_some(DraftSkip::NotWorthwhile);
        scheduler.plan_to_draft(ids[0]);
        assert_eq!(
            scheduler.queues.sequences[ids[0]].draft_skip.is_none(),
            some,
            "{count} sequences"
        );
    }
}

#[test]
fn one_of_many_sequences_waits_only_for_as_many_tokens_as_it_loses() {
    // New guesses are held to be right in 6 of 10 cases: one draft yields 1.6 tokens, six yield 2.4.
    let waits = |count: u64, drafts: u32, change: &dyn Fn(&mut Scheduler, SequenceId)| {
        let mut scheduler = drafting(drafts, |_| ());
        let id = answering(&mut scheduler, count)[0];
        let request = scheduler.queues.sequences[id].request.clone();
        let settings = scheduler.queues.limits.speculation.expect("drafts are on");
        scheduler.queues.sequences[id].drafter =
            Some(Box::new(Drafter::new(settings, &request, Vec::new())));
        change(&mut scheduler, id);
        scheduler.plan_to_draft(id);
        scheduler.queues.sequences[id].draft_skip.is_none()
    };
    assert_eq!(
        [1, 3, 4].map(|count| waits(count, 1, &|_, _| ())),
        [true, true, false]
    );
    assert_eq!(
        [1, 3, 4].map(|count| waits(count, 6, &|_, _| ())),
        [true; 3]
    );
    let draws = |most: u32| {
        move |scheduler: &mut Scheduler, _: SequenceId| scheduler.queues.limits.sequences_max = most
    };
    assert_eq!(
        [3, 4].map(|most| waits(3, 1, &draws(most))),
        [false, true],
        "every sequence needs a draw"
    );
    let ends = |left: u32| {
        move |scheduler: &mut Scheduler, id: SequenceId| {
            let sequence = &mut scheduler.queues.sequences[id];
            sequence.tokens_limit = sequence.tokens_known() + left;
        }
    };
    assert_eq!(
        [0, 1].map(|left| waits(1, 6, &ends(left))),
        [false, true],
        "nothing follows the last token"
    );
    let without =
        |scheduler: &mut Scheduler, id: SequenceId| scheduler.queues.sequences[id].drafter = None;
    assert!(!waits(1, 6, &without));
}

#[test]
fn no_draft_is_verified_that_ends_an_answer_or_follows_such_a_one() {
    let mut scheduler = drafting(6, |limits| limits.eos_token_ids = vec![50]);
    let id = ask(&mut scheduler, 0, |params| params.stop_token_ids = vec![60]);
    let kept =
        |drafts: &[u32]| scheduler.without_ends(&scheduler.queues.sequences[id], drafts.to_vec());
    assert_eq!(kept(&[7, 8, 50, 9]), [7, 8], "an end token of the model");
    assert_eq!(kept(&[60, 8]), EMPTY, "a stop token of the request");
    assert_eq!(
        kept(&[7, UNKNOWN, UNKNOWN]),
        [7, UNKNOWN, UNKNOWN],
        "what the draft model has yet to guess"
    );
}

#[test]
fn a_draft_model_is_asked_no_more_after_a_guess_that_is_invalid_or_ends_the_answer() {
    let mut scheduler = drafting(6, |limits| limits.eos_token_ids = vec![50]);
    let id = ask(&mut scheduler, 0, |_| ());
    let taken = |guess: u32| {
        let row = |drafts: Vec<u32>| Row {
            sequence: id,
            start: 3,
            count: 1,
            drafts,
            states: None,
        };
        let mut batch = scheduler.builder(64).batch;
        batch.rows = vec![row(vec![4, 5]), row(vec![6, UNKNOWN, UNKNOWN])];
        scheduler.take_guesses(&mut batch, &[guess]);
        assert_eq!(batch.rows[0].drafts, [4, 5], "its drafts are known");
        batch.rows.remove(1).drafts
    };
    assert_eq!(taken(99), [6, 99, UNKNOWN]);
    assert_eq!(taken(100), [6], "the vocabulary has 100 tokens");
    assert_eq!(taken(50), [6]);
    let mut batch = scheduler.builder(64).batch;
    batch.rows = vec![Row {
        sequence: id,
        start: 3,
        count: 1,
        drafts: vec![6, UNKNOWN],
        states: None,
    }];
    scheduler.drop_unguessed(&mut batch);
    assert_eq!(
        batch.rows[0].drafts,
        [6],
        "without the draft model, the step goes on with what is known"
    );
}

/// Allows nothing but sevens, or else anything and then four sevens.
#[derive(Clone, Debug)]
struct Sevens {
    only: bool,
}

impl Constraint for Sevens {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(self.clone())
    }
}

impl ConstraintState for Sevens {
    fn fork(&self) -> Box<dyn ConstraintState> {
        Box::new(self.clone())
    }

    fn fill_mask(&mut self, mask: &mut [u32]) -> Result<bool, Unsatisfiable> {
        mask[0] = 1 << 7;
        Ok(self.only)
    }

    fn accept(&mut self, token_id: u32) -> Result<bool, Unsatisfiable> {
        if self.only && token_id != 7 {
            Err(Unsatisfiable)
        } else {
            Ok(false)
        }
    }

    fn forced(&mut self) -> Vec<u32> {
        vec![7; if self.only { 0 } else { 4 }]
    }
}

fn sevens(only: bool) -> Option<SharedConstraint> {
    Some(SharedConstraint(Arc::new(Sevens { only })))
}

#[test]
fn a_draft_model_guesses_only_after_what_a_constraint_allows() {
    let mut scheduler = drafting(6, |_| ());
    let id = ask(&mut scheduler, 0, |params| params.constraint = sevens(true));
    let kept =
        |drafts: &[u32]| scheduler.without_ends(&scheduler.queues.sequences[id], drafts.to_vec());
    assert_eq!(kept(&[7, 7, UNKNOWN]), [7, 7, UNKNOWN]);
    assert_eq!(kept(&[7, 8, UNKNOWN]), [7], "eight is forbidden");
    assert_eq!(kept(&[8, UNKNOWN]), EMPTY);
}

/// Verifies drafts after an answer's first token. Returns what follows it, the number of these that are computed, and
/// their logprobs.
fn verified(
    scheduler: &mut Scheduler,
    drafts: &[u32],
    drawn: &[u32],
) -> (Vec<u32>, u32, Vec<Option<f32>>) {
    let id = ask(scheduler, 0, |params| params.logprobs = Some(0));
    step(scheduler);
    verify(scheduler, id, drafts, drawn)
}

fn verify(
    scheduler: &mut Scheduler,
    id: SequenceId,
    drafts: &[u32],
    drawn: &[u32],
) -> (Vec<u32>, u32, Vec<Option<f32>>) {
    let before = scheduler.queues.sequences[id].tokens_known();
    scheduler.queues.sequences[id].holding.computed = before;
    let sampled = |(&token_id, place): (&u32, i16)| Sampled {
        token_id,
        logprob: -f32::from(place),
        ..Sampled::default()
    };
    let mut events = Events::new();
    scheduler.verify(
        id,
        drafts,
        drawn.iter().zip(1..).map(sampled).collect(),
        &mut events,
    );
    let logprobs = events.into_iter().filter_map(|(_, event)| match event {
        Event::Token(token) => Some(token.logprob),
        _ => None,
    });
    let sequence = &scheduler.queues.sequences[id];
    (
        sequence.tokens[before as usize..].to_vec(),
        sequence.holding.computed - before,
        logprobs.collect(),
    )
}

#[test]
fn drafts_are_accepted_up_to_the_first_that_differs_from_the_draw_at_its_place() {
    let verified = |drafts: &[u32], drawn: &[u32]| {
        let mut scheduler = drafting(6, |_| ());
        let (answer, computed, logprobs) = verified(&mut scheduler, drafts, drawn);
        let expected: Vec<_> = (1_i16..)
            .take(answer.len())
            .map(|place| Some(-f32::from(place)))
            .collect();
        assert_eq!(
            logprobs, expected,
            "each token has the logprob of its own draw"
        );
        let counts = scheduler.counts();
        let accepted: u64 = counts.accepted_at.iter().sum();
        assert_eq!(counts.draft_tokens, drafts.len() as u64);
        (answer, computed, accepted)
    };
    assert_eq!(verified(&[5, 6], &[5, 6, 9]), (vec![5, 6, 9], 2, 2));
    assert_eq!(verified(&[5, 6], &[5, 7, 9]), (vec![5, 7], 1, 1));
    assert_eq!(verified(&[5, 6], &[4, 6, 9]), (vec![4], 0, 0));
    assert_eq!(verified(&[], &[5]), (vec![5], 0, 0));
    // The vocabulary has 100 tokens: after the first draft, nothing could be drawn, so it is computed again.
    assert_eq!(verified(&[5, 6], &[5, 100, 9]), (vec![5], 0, 1));
}

#[test]
fn the_times_of_steps_decide_whether_drafts_pay() {
    let mut scheduler = drafting(5, |_| ());
    let id = answering(&mut scheduler, 1)[0];
    let mut batch = scheduler.builder(64).batch;
    let row = Row {
        sequence: id,
        start: 3,
        count: 1,
        drafts: vec![7; 5],
        states: None,
    };
    batch.rows.push(row);
    let best = |scheduler: &Scheduler| scheduler.pace.best(Yield::plain(1), 5, 0.9);
    assert_eq!(best(&scheduler), 5);
    scheduler.note_step(&batch, Duration::from_secs(1));
    assert_eq!(
        best(&scheduler),
        0,
        "there is a time with drafts, and none without to compare it with"
    );
}

#[test]
fn answers_are_kept_for_drafts_of_similar_requests() {
    let mut scheduler = drafting(6, |_| ());
    let params = SamplingParams {
        max_tokens: Some(2),
        ..SamplingParams::default()
    };
    let request = Request {
        prompt: [1, 2, 3].into(),
        params,
        ..Request::default()
    };
    scheduler.add(Arc::new(request.clone()), &[StreamId(0)], 0, false);
    while !scheduler.is_idle() {
        assert!(scheduler.queues.answers.similar(&request).is_empty());
        step(&mut scheduler);
    }
    assert_eq!(scheduler.queues.answers.similar(&request).len(), 1);
}

#[test]
fn a_draft_model_has_nothing_to_guess_where_no_row_waits_for_it() {
    let mut scheduler = drafting(6, |_| ());
    answering(&mut scheduler, 1);
    let batch = scheduler.schedule(64).expect("it continues");
    assert!(scheduler.flatten_guesses(&batch).is_none());
}

#[test]
fn forced_tokens_are_still_to_be_computed() {
    let mut scheduler = drafting(6, |_| ());
    let id = ask(&mut scheduler, 0, |params| {
        params.constraint = sevens(false);
    });
    step(&mut scheduler);
    let sequence = &scheduler.queues.sequences[id];
    assert_eq!(
        (sequence.tokens.len(), sequence.holding.computed),
        (3 + 1 + 4, 3)
    );
}

/// Allows any tokens, but only so many.
#[derive(Clone, Debug)]
struct Short {
    left: u32,
}

impl Constraint for Short {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(self.clone())
    }
}

impl ConstraintState for Short {
    fn fork(&self) -> Box<dyn ConstraintState> {
        Box::new(self.clone())
    }

    fn fill_mask(&mut self, _mask: &mut [u32]) -> Result<bool, Unsatisfiable> {
        Ok(false)
    }

    fn accept(&mut self, _token_id: u32) -> Result<bool, Unsatisfiable> {
        self.left -= 1;
        Ok(self.left == 0)
    }

    fn forced(&mut self) -> Vec<u32> {
        Vec::new()
    }
}

#[test]
fn a_draft_that_completes_an_answer_is_its_last_token() {
    let mut scheduler = drafting(6, |_| ());
    let short = SharedConstraint(Arc::new(Short { left: 3 }));
    let id = ask(&mut scheduler, 0, |params| params.constraint = Some(short));
    step(&mut scheduler);
    // Its row is in the step whose draws come.
    scheduler.queues.sequences[id].in_flight = 1;
    let (answer, ..) = verify(&mut scheduler, id, &[5, 6, 7], &[5, 6, 7, 9]);
    assert_eq!(answer, [5, 6]);
}
