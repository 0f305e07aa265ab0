//! Tests of what the scheduler does with blocks that are reserved, or about to become free. Only what it keeps to
//! itself shows these.

mod files;
mod images;
mod states;

use super::*;
use crate::engine::batch::Row;
use crate::engine::memory::host::Fill;
use crate::engine::memory::{BlockHash, DiskUse, Rates, Save, TierLimits};
use crate::engine::panic_message;
use crate::engine::request::{RequestError, SamplingParams};
use crate::plan::Window;
use crate::plan::inputs::{Results, Sampled};
use std::time::Duration;

/// A pool of one group with blocks of four tokens.
pub(super) fn scheduler(window: Option<u32>, blocks: u32, prefix_caching: bool) -> Scheduler {
    Scheduler::new(limits(window, blocks, prefix_caching))
}

fn limits(window: Option<u32>, blocks: u32, prefix_caching: bool) -> Limits {
    Limits {
        tokens_max: 64,
        max_num_seqs: 4,
        sequences_max: 4,
        adapter_slots: 0,
        image_rows: 0,
        patches_max: 0,
        feed_slots: 8,
        table_entries_max: 400,
        history_max: 16,
        bias_max: 16,
        scores_max: 16,
        max_model_len: 200,
        vocab: 100,
        deterministic: false,
        speculation: None,
        eos_token_ids: Vec::new(),
        memory: MemoryLimits {
            state_slots: 0,
            block_size: 4,
            windows: vec![window.map(Window::Last)],
            blocks: vec![blocks],
            prefix_caching,
            hash_key: [3; 32],
            shared_key: [3; 32],
            tiers: TierLimits::default(),
        },
    }
}

/// Queues a request. With `guarded`, it was preempted so often that all its blocks are reserved.
fn add(
    scheduler: &mut Scheduler,
    stream: u64,
    (prompt, answer): (u32, u32),
    priority: i32,
    guarded: bool,
) -> SequenceId {
    let params = SamplingParams {
        max_tokens: Some(answer),
        ..SamplingParams::default()
    };
    let prompt = (0..prompt).collect();
    let request = Request {
        prompt,
        params,
        priority,
        ..Request::default()
    };
    scheduler.add(Arc::new(request), &[StreamId(stream)], 0, false);
    let id = scheduler.queues.by_stream[&StreamId(stream)];
    scheduler.queues.sequences[id].preemptions = if guarded { PREEMPTIONS_MAX } else { 0 };
    id
}

fn commit(scheduler: &mut Scheduler, batch: &Batch) {
    let sampled = vec![Sampled::default(); batch.draws.len()];
    drop(scheduler.commit(
        batch,
        Results {
            sampled,
            ..Results::default()
        },
    ));
    scheduler.check();
}

pub(super) fn step(scheduler: &mut Scheduler) {
    let batch = scheduler.schedule(64).expect("some sequence can continue");
    commit(scheduler, &batch);
}

/// The hashes of the first blocks of all prompts that [`add`] queues.
fn hashes(blocks: usize) -> Vec<BlockHash> {
    let tokens: Vec<u32> = (0..4 * blocks as u32).collect();
    let next = |hash: &mut BlockHash, tokens: &[u32]| {
        *hash = hash.next(&[3; 32], tokens);
        Some(*hash)
    };
    tokens
        .chunks(4)
        .scan(BlockHash::root(&[3; 32], None, None, None), next)
        .collect()
}

/// Which of these blocks can be found.
fn found(scheduler: &Scheduler, blocks: usize) -> Vec<bool> {
    hashes(blocks)
        .iter()
        .map(|hash| scheduler.pool().groups()[0].lookup(hash).is_some())
        .collect()
}

/// Numbers of blocks that a sequence holds, and that are reserved for it.
fn blocks(scheduler: &Scheduler, id: SequenceId) -> (u32, u32) {
    let table = &scheduler.queues.sequences[id].holding.tables[0];
    (table.held().count() as u32, table.reserved)
}

#[test]
fn what_a_window_has_passed_stays_with_a_sequence_whose_blocks_are_reserved() {
    for guarded in [false, true] {
        let mut scheduler = scheduler(Some(8), 40, false);
        let id = add(&mut scheduler, 0, (4, 40), 0, guarded);
        step(&mut scheduler);
        let (held, reserved) = blocks(&scheduler, id);
        assert_eq!((held, reserved > 0), (1, guarded));
        for _ in 0..30 {
            step(&mut scheduler);
            let (now_held, now_reserved) = blocks(&scheduler, id);
            let expected = if guarded {
                held + reserved - now_held
            } else {
                0
            };
            assert_eq!(
                now_reserved, expected,
                "guarded: {guarded}, held: {now_held}"
            );
        }
        assert!(
            scheduler.queues.sequences[id].holding.tables[0].passed > 4,
            "the window has moved on"
        );
    }
}

#[test]
fn a_block_that_a_window_has_passed_is_not_reserved_while_another_sequence_holds_it() {
    let mut scheduler = scheduler(Some(4), 7, true);
    let growing = add(&mut scheduler, 0, (3, 9), -2, false);
    let guarded = add(&mut scheduler, 1, (9, 7), -1, true);
    let sharing = add(&mut scheduler, 2, (9, 7), 0, false);
    // Other tokens, so that it shares nothing.
    scheduler.queues.sequences[growing].tokens = vec![50, 51, 52];
    step(&mut scheduler);
    let shared = |id| scheduler.queues.sequences[id].holding.tables[0].blocks[1];
    assert_eq!(shared(guarded), shared(sharing));
    assert_eq!(
        (
            blocks(&scheduler, guarded),
            scheduler.pool().groups()[0].available()
        ),
        ((2, 2), 1)
    );
    step(&mut scheduler);
    // The growing sequence takes the last block; both others leave the one that they share, first the guarded one.
    step(&mut scheduler);
    assert_eq!(
        (blocks(&scheduler, guarded), blocks(&scheduler, sharing)),
        ((1, 2), (1, 0))
    );
    assert_eq!(
        scheduler.pool().groups()[0].available(),
        1,
        "it is free for all"
    );
}

#[test]
fn a_sequence_lacks_no_block_that_is_reserved_for_it() {
    let mut scheduler = scheduler(None, 4, false);
    let id = add(&mut scheduler, 0, (9, 7), 0, true);
    let batch = scheduler.schedule(4).expect("it waits");
    commit(&mut scheduler, &batch);
    assert_eq!(
        (
            blocks(&scheduler, id),
            scheduler.pool().groups()[0].available()
        ),
        ((1, 3), 0)
    );
    assert_eq!(scheduler.blocks_short(id, 0, 5), 0);
}

#[test]
fn nobody_is_preempted_for_a_block_that_a_step_in_flight_frees() {
    let mut scheduler = scheduler(None, 4, false);
    let ids = [0, 1, 2].map(|stream| add(&mut scheduler, stream, (3, 9), 0, false));
    let rows = |batch: &Batch| {
        batch
            .rows
            .iter()
            .map(|row| row.sequence)
            .collect::<Vec<_>>()
    };
    step(&mut scheduler);
    let first = scheduler.schedule(64).expect("all continue");
    assert_eq!(rows(&first), ids);
    scheduler.abort(StreamId(0));
    // One block is free, two sequences need one, and one more comes back with the step in flight.
    let second = scheduler.schedule(64).expect("one continues");
    assert_eq!(
        (rows(&second), scheduler.counts().preemptions),
        (vec![ids[1]], 0)
    );
    commit(&mut scheduler, &first);
    let third = scheduler.schedule(64).expect("the other continues");
    assert!(
        rows(&third).contains(&ids[2]),
        "it has the block of the sequence that has left"
    );
    assert_eq!(scheduler.counts().preemptions, 0);
}

#[test]
fn a_block_that_waits_to_be_written_is_forgotten_when_it_gets_a_new_owner() {
    // The disk is busy with one block.
    let bytes = 64 << 20;
    let tiers = TierLimits {
        host_bytes: bytes,
        block_bytes: vec![bytes],
        disk: DiskUse::ReadAndWrite,
    };
    let mut limits = scheduler(None, 2, true).queues.limits;
    limits.memory.tiers = tiers;
    let mut scheduler = Scheduler::new(limits);
    // Runs a request for one whole block of such tokens. Returns the block, and what was copied before the step.
    let run = |scheduler: &mut Scheduler, stream: u64, token: u32| {
        let id = add(scheduler, stream, (5, 1), 0, false);
        scheduler.queues.sequences[id].tokens = vec![token; 5];
        let batch = scheduler.schedule(64).expect("it is alone");
        let block = scheduler.queues.sequences[id].holding.tables[0].blocks[0];
        commit(scheduler, &batch);
        (block, batch.moves.saves)
    };
    let (first, saves) = run(&mut scheduler, 0, 1);
    assert!(saves.is_empty() && !scheduler.queues.memory.files().is_busy());
    let (second, saves) = run(&mut scheduler, 1, 2);
    assert!(scheduler.queues.memory.files().is_busy());
    assert_eq!(
        saves.iter().map(|save| save.block).collect::<Vec<_>>(),
        [first]
    );
    assert!(
        scheduler.queues.memory.files().has_finished(),
        "the second one waits"
    );
    let mut rates = Rates::default();
    rates.note_upload(1, Duration::from_secs(1));
    rates.note_prefill(1, Duration::from_nanos(1));
    scheduler.queues.memory.set_rates(rates);
    // Its block gets a new owner, and moving what it held is not worthwhile.
    assert_eq!(run(&mut scheduler, 2, 3).0, first);
    scheduler.wrote_file(saves[0].origin.as_ref().expect("it is written").key, true);
    // The same text gets the same block again, which does not hold it before the step.
    let (again, saves) = run(&mut scheduler, 3, 2);
    assert_eq!((again, saves.len()), (second, 0));
}

#[test]
fn the_longest_sequence_fills_its_last_block_in_every_group() {
    let mut limits = scheduler(None, 1, false).queues.limits;
    limits.max_model_len = 197;
    limits.memory.windows = vec![None, Some(Window::Last(8))];
    assert_eq!(limits.blocks_of_longest(), [50, 50]);
}

#[test]
fn a_sequence_with_more_computed_tokens_than_it_has_is_noticed() {
    let mut scheduler = scheduler(None, 4, false);
    let id = add(&mut scheduler, 0, (3, 9), 0, false);
    scheduler.check();
    scheduler.queues.sequences[id].holding.computed = 4;
    let message = panic_message(|| scheduler.check());
    assert!(
        message.contains("only existing tokens are computed"),
        "{message}"
    );
}

#[test]
fn a_step_has_no_more_table_entries_than_its_limit() {
    let mut limits = scheduler(None, 40, false).queues.limits;
    limits.table_entries_max = 10;
    let mut scheduler = Scheduler::new(limits);
    (0..4).for_each(|stream| _ = add(&mut scheduler, stream, (12, 40), 0, false));
    let batch = scheduler.schedule(64).expect("requests wait");
    assert_eq!(batch.rows.len(), 3, "each needs three entries");
}

#[test]
fn every_draft_of_a_row_has_table_entries_of_its_own() {
    let mut scheduler = scheduler(None, 40, false);
    let id = add(&mut scheduler, 0, (3, 40), 0, false);
    step(&mut scheduler);
    let mut builder = scheduler.builder(64);
    builder.drafts_left = 3;
    let before = builder.table_entries_left;
    let row = Row {
        sequence: id,
        start: 3,
        count: 1,
        drafts: vec![5; 3],
        states: None,
    };
    scheduler.push_row(row, &mut builder);
    assert_eq!(
        before - builder.table_entries_left,
        4 * 2,
        "four rows of seven tokens"
    );
}

#[test]
fn forced_tokens_leave_half_of_a_step_to_prompts() {
    let mut scheduler = scheduler(None, 40, false);
    let answers = [0, 1].map(|stream| add(&mut scheduler, stream, (3, 40), 0, false));
    step(&mut scheduler);
    let prompt = add(&mut scheduler, 2, (30, 9), 0, false);
    let batch = scheduler.schedule(10).expect("all continue");
    commit(&mut scheduler, &batch);
    answers
        .iter()
        .for_each(|&id| scheduler.queues.sequences[id].tokens.extend([7; 4]));
    let batch = scheduler.schedule(8).expect("all continue");
    let rows: Vec<_> = batch
        .rows
        .iter()
        .map(|row| (row.sequence, row.count))
        .collect();
    assert_eq!(
        rows,
        [(answers[0], 5), (prompt, 3)],
        "the second answer waits for the next step"
    );
}

#[test]
fn requests_that_ask_for_it_are_told_of_their_admission_once() {
    let mut scheduler = scheduler(None, 40, false);
    for (stream, report_admission) in [(0, true), (1, false)] {
        let request = Request {
            prompt: [1, 2, 3].into(),
            report_admission,
            ..Request::default()
        };
        scheduler.add(Arc::new(request), &[StreamId(stream)], 0, false);
    }
    assert_eq!(scheduler.take_admitted(), []);
    step(&mut scheduler);
    let admitted = scheduler.take_admitted();
    assert_eq!(admitted.len(), 1);
    assert_eq!(admitted[0].0, StreamId(0));
    assert_eq!(scheduler.take_admitted(), []);
}

#[test]
fn every_choice_whose_receiver_leaves_is_counted() {
    let mut scheduler = scheduler(None, 40, false);
    (0..3).for_each(|stream| _ = add(&mut scheduler, stream, (3, 9), 0, false));
    [0, 2, 2]
        .into_iter()
        .for_each(|stream| scheduler.abort(StreamId(stream)));
    assert_eq!(scheduler.counts().finished_abort, 2);
}

#[test]
fn a_step_scores_no_more_tokens_of_prompts_than_its_limit() {
    let mut scheduler = scheduler(None, 40, false);
    let mut scored = |prompts: &[(u64, usize)], steps: usize| {
        for &(stream, length) in prompts {
            let params = SamplingParams {
                prompt_logprobs: Some(0),
                max_tokens: Some(1),
                ..SamplingParams::default()
            };
            let request = Request {
                prompt: vec![1; length].into(),
                params,
                ..Request::default()
            };
            scheduler.add(Arc::new(request), &[StreamId(stream)], 0, false);
        }
        let mut counts = Vec::new();
        for _ in 0..steps {
            let batch = scheduler.schedule(64).expect("they continue");
            let count: u32 = batch.scores.iter().map(|score| score.count).sum();
            counts.push(
                batch
                    .scores
                    .iter()
                    .map(|score| score.count)
                    .collect::<Vec<_>>(),
            );
            let sampled = vec![Sampled::default(); batch.draws.len() + count as usize];
            drop(scheduler.commit(
                &batch,
                Results {
                    sampled,
                    ..Results::default()
                },
            ));
        }
        counts
    };
    assert_eq!(scored(&[(0, 40)], 3), [[16], [16], [7]]);
    assert_eq!(scored(&[(1, 12), (2, 12)], 2), [vec![11, 5], vec![6]]);
}

#[test]
fn what_a_running_sequence_shares_with_a_prompt_is_reported() {
    let mut scheduler = scheduler(None, 40, true);
    add(&mut scheduler, 0, (12, 40), 0, false);
    step(&mut scheduler);
    let prompt = (0..10).chain([50; 9]).collect();
    let request = Request {
        prompt,
        explain_prefix: true,
        ..Request::default()
    };
    scheduler.add(Arc::new(request), &[StreamId(1)], 0, false);
    let id = scheduler.queues.by_stream[&StreamId(1)];
    let _ = scheduler.schedule(64).expect("both continue");
    let report = scheduler.queues.sequences[id]
        .prefix_report
        .expect("it was asked for");
    assert_eq!(
        (report.cached.all, report.common_tokens, report.differing),
        (8, 10, Some(50))
    );
}

#[test]
fn a_feed_slot_without_an_owner_is_noticed() {
    let mut scheduler = scheduler(None, 4, false);
    scheduler.queues.feed_slots.pop();
    let message = panic_message(|| scheduler.check());
    assert!(
        message.contains("every feed slot is free or has one owner"),
        "{message}"
    );
}

#[test]
fn a_window_holds_its_blocks_a_chunk_and_a_part_of_a_block_at_both_ends() {
    let scheduler = scheduler(Some(8), 40, false);
    assert_eq!(scheduler.queues.memory.blocks_live_max(0), 2 + 16 + 2);
}

#[test]
fn who_was_never_preempted_has_not_resumed_and_is_the_next_victim() {
    let mut scheduler = scheduler(None, 6, false);
    let [_, fresh, resumed] =
        [0, 1, 2].map(|stream| add(&mut scheduler, stream, (4, 40), stream as i32, false));
    scheduler.queues.sequences[resumed].preemptions = 1;
    (0..6).for_each(|_| step(&mut scheduler));
    assert_eq!(
        (scheduler.running_len(), scheduler.counts().preemptions),
        (2, 1)
    );
    assert_eq!(
        [fresh, resumed].map(|id| scheduler.queues.sequences[id].preemptions),
        [1, 1]
    );
}
