//! Tests of what the scheduler does with blocks that are reserved, or about to become free. Only what it keeps to
//! itself shows these.

use super::*;
use crate::engine::block_pool::BlockHash;
use crate::engine::panic_message;
use crate::engine::request::{RequestError, SamplingParams};
use crate::engine::tiers::host::Fill;
use crate::engine::tiers::{DiskUse, Rates, Save};
use crate::plan::inputs::{Results, Sampled};
use std::time::Duration;

/// A pool of one group with blocks of four tokens.
pub(super) fn scheduler(window: Option<u32>, blocks: u32, prefix_caching: bool) -> Scheduler {
    let limits = Limits {
        tokens_max: 64,
        sequences_max: 4,
        draws_max: 4,
        feed_slots: 8,
        state_slots: 0,
        table_entries_max: 400,
        history_max: 16,
        bias_max: 16,
        scores_max: 16,
        block_size: 4,
        model_len_max: 200,
        vocab: 100,
        windows: vec![window],
        blocks: vec![blocks],
        prefix_caching,
        deterministic: false,
        speculation: None,
        eos_token_ids: Vec::new(),
        hash_key: [3; 32],
        shared_key: [3; 32],
        tiers: TierLimits::default(),
    };
    Scheduler::new(limits, InjectedFaults::default())
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
    let id = scheduler.by_stream[&StreamId(stream)];
    scheduler.sequences[id].preemptions = if guarded { PREEMPTIONS_MAX } else { 0 };
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
        .scan(BlockHash::root(&[3; 32], None, None), next)
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
    let table = &scheduler.sequences[id].tables[0];
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
            scheduler.sequences[id].tables[0].passed > 4,
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
    scheduler.sequences[growing].tokens = vec![50, 51, 52];
    step(&mut scheduler);
    let shared = |id| scheduler.sequences[id].tables[0].blocks[1];
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
    let limits = Limits {
        tiers,
        ..scheduler(None, 2, true).limits
    };
    let mut scheduler = Scheduler::new(limits, InjectedFaults::default());
    // Runs a request for one whole block of such tokens. Returns the block, and what was copied before the step.
    let run = |scheduler: &mut Scheduler, stream: u64, token: u32| {
        let id = add(scheduler, stream, (5, 1), 0, false);
        scheduler.sequences[id].tokens = vec![token; 5];
        let batch = scheduler.schedule(64).expect("it is alone");
        let block = scheduler.sequences[id].tables[0].blocks[0];
        commit(scheduler, &batch);
        (block, batch.saves)
    };
    let (first, saves) = run(&mut scheduler, 0, 1);
    assert!(saves.is_empty() && !scheduler.is_disk_busy());
    let (second, saves) = run(&mut scheduler, 1, 2);
    assert!(scheduler.is_disk_busy());
    assert_eq!(
        saves.iter().map(|save| save.block).collect::<Vec<_>>(),
        [first]
    );
    assert!(scheduler.has_finished_blocks(), "the second one waits");
    let mut rates = Rates::default();
    rates.note_upload(1, Duration::from_secs(1));
    rates.note_prefill(1, Duration::from_nanos(1));
    scheduler.set_rates(rates);
    // Its block gets a new owner, and moving what it held is not worthwhile.
    assert_eq!(run(&mut scheduler, 2, 3).0, first);
    scheduler.wrote(saves[0].origin.as_ref().expect("it is written").key, true);
    // The same text gets the same block again, which does not hold it before the step.
    let (again, saves) = run(&mut scheduler, 3, 2);
    assert_eq!((again, saves.len()), (second, 0));
}

#[test]
fn the_longest_sequence_fills_its_last_block_in_every_group() {
    let limits = Limits {
        model_len_max: 197,
        windows: vec![None, Some(8)],
        ..scheduler(None, 1, false).limits
    };
    assert_eq!(limits.blocks_of_longest(), [50, 50]);
}

#[test]
fn a_sequence_with_more_computed_tokens_than_it_has_is_noticed() {
    let mut scheduler = scheduler(None, 4, false);
    let id = add(&mut scheduler, 0, (3, 9), 0, false);
    scheduler.check();
    scheduler.sequences[id].computed = 4;
    let message = panic_message(|| scheduler.check());
    assert!(
        message.contains("only existing tokens are computed"),
        "{message}"
    );
}

#[test]
fn a_step_has_no_more_table_entries_than_its_limit() {
    let limits = Limits {
        table_entries_max: 10,
        ..scheduler(None, 40, false).limits
    };
    let mut scheduler = Scheduler::new(limits, InjectedFaults::default());
    (0..4).for_each(|stream| _ = add(&mut scheduler, stream, (12, 40), 0, false));
    let batch = scheduler.schedule(64).expect("requests wait");
    assert_eq!(batch.rows.len(), 3, "each needs three entries");
}

#[test]
fn every_draft_of_a_row_has_table_entries_of_its_own() {
    let mut scheduler = scheduler(None, 40, false);
    let id = add(&mut scheduler, 0, (3, 40), 0, false);
    step(&mut scheduler);
    let mut draft = scheduler.draft(64);
    draft.drafts_left = 3;
    let before = draft.table_entries_left;
    let row = Row {
        sequence: id,
        start: 3,
        count: 1,
        drafts: vec![5; 3],
        states: None,
    };
    scheduler.push_row(row, &mut draft);
    assert_eq!(
        before - draft.table_entries_left,
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
        .for_each(|&id| scheduler.sequences[id].tokens.extend([7; 4]));
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
    assert_eq!(scheduler.take_admitted(), [StreamId(0)]);
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
    let id = scheduler.by_stream[&StreamId(1)];
    let _ = scheduler.schedule(64).expect("both continue");
    let report = scheduler.sequences[id]
        .prefix_report
        .expect("it was asked for");
    assert_eq!(
        (report.cached_tokens, report.common_tokens, report.differing),
        (8, 10, Some(50))
    );
}

#[test]
fn a_feed_slot_without_an_owner_is_noticed() {
    let mut scheduler = scheduler(None, 4, false);
    scheduler.feed_slots.pop();
    let message = panic_message(|| scheduler.check());
    assert!(
        message.contains("every feed slot is free or has one owner"),
        "{message}"
    );
}

#[test]
fn a_window_holds_its_blocks_a_chunk_and_a_part_of_a_block_at_both_ends() {
    assert_eq!(
        scheduler(Some(8), 40, false).limits.blocks_live_max(2),
        2 + 16 + 2
    );
}

#[test]
fn who_was_never_preempted_has_not_resumed_and_is_the_next_victim() {
    let mut scheduler = scheduler(None, 6, false);
    let [_, fresh, resumed] =
        [0, 1, 2].map(|stream| add(&mut scheduler, stream, (4, 40), stream as i32, false));
    scheduler.sequences[resumed].preemptions = 1;
    (0..6).for_each(|_| step(&mut scheduler));
    assert_eq!(
        (scheduler.running_len(), scheduler.counts().preemptions),
        (2, 1)
    );
    assert_eq!(
        [fresh, resumed].map(|id| scheduler.sequences[id].preemptions),
        [1, 1]
    );
}

/// A scheduler with room in host memory for what it reads from files.
fn with_files() -> Scheduler {
    let tiers = TierLimits {
        host_bytes: 1 << 20,
        block_bytes: vec![1 << 10],
        disk: DiskUse::Read,
    };
    let limits = Limits {
        sequences_max: 1,
        tiers,
        ..scheduler(None, 40, true).limits
    };
    Scheduler::new(limits, InjectedFaults::default())
}

#[test]
fn files_are_known_from_when_they_are_found_until_they_are_lost() {
    let mut scheduler = with_files();
    let key = |group| (group, BlockHash::root(&[3; 32], None, None));
    scheduler.found_on_disk([key(0), key(1)]);
    assert_eq!(scheduler.disk().len(), 1, "the model has one group");
    scheduler.lost_on_disk([key(0)]);
    assert_eq!(scheduler.disk().len(), 0);
}

#[test]
fn files_of_those_who_wait_for_a_seat_are_read_ahead() {
    let mut scheduler = with_files();
    let running = add(&mut scheduler, 0, (5, 40), 0, false);
    scheduler.sequences[running].tokens = vec![50; 5];
    add(&mut scheduler, 1, (5, 40), 0, false);
    let hash = BlockHash::root(&[3; 32], None, None).next(&[3; 32], &[0, 1, 2, 3]);
    scheduler.found_on_disk([(0, hash)]);
    step(&mut scheduler);
    assert_eq!((scheduler.running_len(), scheduler.waiting_len()), (1, 1));
    assert_eq!(scheduler.take_disk_jobs().len(), 1);
}

#[test]
fn a_block_can_be_found_once_its_last_token_is_read() {
    let mut scheduler = scheduler(None, 40, true);
    let id = add(&mut scheduler, 0, (3, 9), 0, false);
    let first = scheduler.schedule(64).expect("it waits");
    let second = scheduler
        .schedule(64)
        .expect("it goes on with a token that is not read yet");
    assert!(scheduler.sequences[id].hashes.is_empty());
    commit(&mut scheduler, &first);
    let hash = BlockHash::root(&[3; 32], None, None).next(&[3; 32], &[0, 1, 2, 0]);
    assert!(scheduler.pool().groups()[0].lookup(&hash).is_some());
    commit(&mut scheduler, &second);
}

#[test]
fn after_a_failed_batch_only_what_it_should_have_filled_is_forgotten() {
    let mut scheduler = scheduler(None, 40, true);
    add(&mut scheduler, 0, (20, 9), 0, false);
    let batch = scheduler.schedule(8).expect("it waits");
    commit(&mut scheduler, &batch);
    let batch = scheduler.schedule(6).expect("it continues");
    drop(scheduler.fail(&batch, RequestError::Internal));
    assert!(!scheduler.by_stream.contains_key(&StreamId(0)));
    assert_eq!(found(&scheduler, 3), [true, true, false]);
}

#[test]
fn what_later_steps_fill_after_a_failed_batch_is_kept_only_by_an_injected_bug() {
    for (fault, kept) in [(None, false), (Some(InjectedFault::LaterBlocksKept), true)] {
        let mut scheduler = scheduler(None, 40, true);
        scheduler.faults.fault = fault;
        add(&mut scheduler, 0, (20, 9), 0, false);
        let failing = scheduler.schedule(8).expect("it waits");
        let _later = scheduler.schedule(6).expect("it continues");
        assert_eq!(found(&scheduler, 3), [true; 3]);
        drop(scheduler.fail(&failing, RequestError::Internal));
        assert_eq!(found(&scheduler, 3), [false, false, kept], "with {fault:?}");
    }
}

#[test]
fn after_a_failed_batch_those_start_over_who_hold_what_was_computed_from_it() {
    // Within the window, the last one holds a block of the second, and none of the first.
    let mut scheduler = scheduler(Some(4), 40, true);
    add(&mut scheduler, 0, (8, 9), 0, false);
    let failing = scheduler.schedule(64).expect("it waits");
    let [direct, indirect] = [(1, 13), (2, 14)]
        .map(|(stream, prompt)| add(&mut scheduler, stream, (prompt, 9), 0, false));
    let _later = scheduler.schedule(64).expect("they wait");
    let table = |id: SequenceId| &scheduler.sequences[id].tables[0];
    assert_eq!((table(direct).passed, table(indirect).passed), (1, 2));
    assert_eq!(table(direct).blocks[2], table(indirect).blocks[2]);
    drop(scheduler.fail(&failing, RequestError::Internal));
    assert_eq!(
        [direct, indirect].map(|id| scheduler.sequences[id].exit),
        [Some(Exit::Preempted); 2]
    );
}

#[test]
fn after_a_failed_batch_those_go_on_who_share_only_what_was_computed_before() {
    let mut scheduler = scheduler(None, 40, true);
    add(&mut scheduler, 0, (12, 9), 0, false);
    let batch = scheduler.schedule(4).expect("it waits");
    commit(&mut scheduler, &batch);
    let failing = scheduler.schedule(64).expect("it continues");
    let [sharer, other] =
        [(1, 9), (2, 6)].map(|(stream, prompt)| add(&mut scheduler, stream, (prompt, 9), 0, false));
    scheduler.sequences[other].tokens = vec![0, 1, 2, 3, 50, 51];
    let _later = scheduler.schedule(64).expect("they wait");
    assert_eq!(
        [sharer, other].map(|id| scheduler.sequences[id].cached_tokens),
        [Some(8), Some(4)]
    );
    drop(scheduler.fail(&failing, RequestError::Internal));
    assert_eq!(
        [sharer, other].map(|id| scheduler.sequences[id].exit),
        [Some(Exit::Preempted), None]
    );
}

#[test]
fn what_is_withdrawn_from_a_sequence_is_not_found_any_more() {
    let mut scheduler = scheduler(None, 40, true);
    let id = add(&mut scheduler, 0, (9, 9), 0, false);
    step(&mut scheduler);
    assert_eq!(found(&scheduler, 2), [true; 2]);
    scheduler.withdraw_all(id);
    assert_eq!(found(&scheduler, 2), [false; 2]);
}

#[test]
fn answers_are_counted_by_how_they_end() {
    let mut scheduler = scheduler(None, 40, false);
    for (stream, stop_token_ids) in [(0, vec![0]), (1, vec![0]), (2, Vec::new()), (3, Vec::new())] {
        let params = SamplingParams {
            max_tokens: Some(1),
            stop_token_ids,
            ..SamplingParams::default()
        };
        let request = Request {
            prompt: [1, 2, 3].into(),
            params,
            ..Request::default()
        };
        scheduler.add(Arc::new(request), &[StreamId(stream)], 0, false);
    }
    step(&mut scheduler);
    let counts = scheduler.counts();
    assert_eq!(
        (
            counts.generation_tokens,
            counts.finished_stop,
            counts.finished_length
        ),
        (4, 2, 2)
    );
    assert_eq!(counts.finished_error, 0);
    add(&mut scheduler, 4, (3, 9), 0, false);
    let batch = scheduler.schedule(64).expect("it waits");
    drop(scheduler.fail(&batch, RequestError::Internal));
    assert_eq!(scheduler.counts().finished_error, 1);
}

#[test]
fn injected_bugs_of_tokens_do_what_they_say() {
    let lost = Some(InjectedFault::PendingTokenLost);
    for (fault, preempted, tokens) in [
        (None, false, 4),
        (None, true, 4),
        (lost, false, 4),
        (lost, true, 3),
    ] {
        let mut scheduler = scheduler(None, 40, false);
        scheduler.faults.fault = fault;
        let id = add(&mut scheduler, 0, (3, 9), 0, false);
        let batch = scheduler.schedule(64).expect("it waits");
        if preempted {
            scheduler.leave(id, Exit::Preempted);
        }
        commit(&mut scheduler, &batch);
        assert_eq!(
            scheduler.sequences[id].tokens.len(),
            tokens,
            "{fault:?}, preempted: {preempted}"
        );
    }
    let past_end = Some(InjectedFault::DraftAcceptedPastEnd);
    for (fault, is_draft, ends) in [
        (None, true, true),
        (past_end, false, true),
        (past_end, true, false),
    ] {
        let mut scheduler = scheduler(None, 40, false);
        scheduler.limits.eos_token_ids = vec![5];
        let id = add(&mut scheduler, 0, (3, 9), 0, false);
        step(&mut scheduler);
        scheduler.faults.fault = fault;
        let sampled = Sampled {
            token_id: 5,
            ..Sampled::default()
        };
        assert_eq!(
            scheduler.append_drawn(id, sampled, is_draft, &mut Vec::new()),
            ends,
            "{fault:?}"
        );
    }
}

#[test]
fn as_many_are_preempted_as_a_row_needs_blocks() {
    let mut scheduler = scheduler(None, 4, false);
    let ids = [0, 1, 2].map(|stream| add(&mut scheduler, stream, (3, 40), 0, false));
    step(&mut scheduler);
    // With its second token on, it needs three blocks more; one is free.
    scheduler.sequences[ids[0]].tokens.extend([7; 9]);
    let mut draft = scheduler.draft(64);
    scheduler.make_room(ids[0], 10, &mut draft);
    assert_eq!(ids.map(|id| scheduler.sequences[id].preemptions), [0, 1, 1]);
}

#[test]
fn who_gives_way_awaits_no_blocks() {
    let mut scheduler = scheduler(None, 4, false);
    let ids = [0, 1, 2].map(|stream| add(&mut scheduler, stream, (3, 40), 0, false));
    step(&mut scheduler);
    let _in_flight = scheduler.schedule(64).expect("all continue");
    scheduler.sequences[ids[2]].tokens.extend([7; 5]);
    let mut draft = scheduler.draft(64);
    scheduler.make_room(ids[2], 5, &mut draft);
    assert_eq!(ids.map(|id| scheduler.sequences[id].preemptions), [0, 0, 1]);
    assert_eq!(
        draft.blocks_awaited,
        [0],
        "its own block becomes free with the step in flight"
    );
}

#[test]
fn forks_that_free_no_block_are_not_preempted_before_others() {
    let mut scheduler = scheduler(None, 5, false);
    let [oldest, other] = [0, 1].map(|stream| add(&mut scheduler, stream, (4, 40), 0, false));
    let request = Request {
        prompt: [1, 2, 3, 4].into(),
        ..Request::default()
    };
    scheduler.add(Arc::new(request), &[2, 3].map(StreamId), 0, false);
    step(&mut scheduler);
    assert_eq!(
        (
            scheduler.running_len(),
            scheduler.pool().groups()[0].available()
        ),
        (4, 2)
    );
    scheduler.sequences[oldest].tokens.extend([7; 11]);
    let mut draft = scheduler.draft(64);
    scheduler.make_room(oldest, 12, &mut draft);
    assert_eq!(
        (
            scheduler.sequences[other].preemptions,
            scheduler.counts().preemptions
        ),
        (1, 1)
    );
}

#[test]
fn what_a_step_in_flight_uses_is_released_early_only_by_injected_bugs_and_at_ends() {
    for (fault, exit, freed) in [
        (None, Exit::Ended, (false, false)),
        (
            Some(InjectedFault::EarlyRelease),
            Exit::Ended,
            (true, false),
        ),
        (
            Some(InjectedFault::EarlyRelease),
            Exit::Preempted,
            (false, false),
        ),
        (
            Some(InjectedFault::FeedSlotReusedEarly),
            Exit::Ended,
            (false, true),
        ),
        (
            Some(InjectedFault::FeedSlotReusedEarly),
            Exit::Preempted,
            (false, false),
        ),
    ] {
        let mut scheduler = scheduler(None, 40, false);
        scheduler.faults.fault = fault;
        let id = add(&mut scheduler, 0, (3, 9), 0, false);
        let _ = scheduler.schedule(64).expect("it waits");
        assert_eq!(
            (
                scheduler.pool().groups()[0].free(),
                scheduler.feed_slots_free().len()
            ),
            (39, 7)
        );
        scheduler.leave(id, exit);
        let now = (
            scheduler.pool().groups()[0].free() == 40,
            scheduler.feed_slots_free().len() == 8,
        );
        assert_eq!(now, freed, "{fault:?}, {exit:?}");
    }
}

#[test]
fn tokens_from_host_memory_and_from_files_are_counted_apart() {
    // The injected bug is one of states only.
    for fault in [None, Some(InjectedFault::StateNotRestored)] {
        let mut scheduler = with_files();
        scheduler.faults.fault = fault;
        add(&mut scheduler, 0, (9, 1), 0, false);
        let hashes = hashes(2);
        let slot = scheduler
            .host
            .reserve(0, hashes[1], Fill::Leaving)
            .expect("there is room");
        scheduler.host.complete(slot);
        scheduler.found_on_disk([(0, hashes[0])]);
        assert!(scheduler.schedule(64).is_none(), "it waits for the file");
        let slot = *scheduler
            .disk
            .reading
            .keys()
            .next()
            .expect("a file is read");
        assert!(scheduler.read_file(slot, true));
        step(&mut scheduler);
        let counts = scheduler.counts();
        assert_eq!(
            (
                counts.prefix_hits,
                counts.prefix_hits_host,
                counts.prefix_hits_disk
            ),
            (8, 4, 4)
        );
        assert_eq!((counts.files_read, counts.blocks_restored), (1, 2));
    }
}

#[test]
fn a_state_from_host_memory_stands_for_all_tokens_before_it() {
    let tiers = TierLimits {
        host_bytes: 1 << 20,
        block_bytes: vec![1 << 10; 2],
        ..TierLimits::default()
    };
    let limits = Limits {
        state_slots: 8,
        tiers,
        ..scheduler(None, 40, true).limits
    };
    let mut scheduler = Scheduler::new(limits, InjectedFaults::default());
    for hash in hashes(2) {
        let pool = scheduler.pool.group_mut(0);
        let (block, _) = pool.allocate().expect("one is free");
        pool.register(block, hash);
        pool.release(block);
    }
    let slot = scheduler
        .host
        .reserve(1, hashes(2)[1], Fill::Leaving)
        .expect("there is room");
    scheduler.host.complete(slot);
    add(&mut scheduler, 0, (9, 1), 0, false);
    step(&mut scheduler);
    let counts = scheduler.counts();
    assert_eq!(
        (
            counts.prefix_hits,
            counts.prefix_hits_host,
            counts.prefix_hits_disk
        ),
        (8, 8, 0)
    );
}

#[test]
fn evicted_blocks_move_to_host_memory() {
    let tiers = TierLimits {
        host_bytes: 1 << 20,
        block_bytes: vec![1 << 10],
        ..TierLimits::default()
    };
    let limits = Limits {
        tiers,
        ..scheduler(None, 2, true).limits
    };
    let mut scheduler = Scheduler::new(limits, InjectedFaults::default());
    // Each takes both blocks, of which the one before has left one in the cache.
    for (stream, token) in [(0, 1), (1, 2), (2, 3)] {
        let id = add(&mut scheduler, stream, (5, 1), 0, false);
        scheduler.sequences[id].tokens = vec![token; 5];
        step(&mut scheduler);
    }
    assert_eq!(scheduler.counts().blocks_saved, 2);
    assert_eq!(
        (
            scheduler.spared_max(0),
            scheduler.spared_max(scheduler.state_group())
        ),
        (4, 200)
    );
}

#[test]
fn files_are_not_read_where_computing_takes_less_time() {
    let mut scheduler = with_files();
    scheduler.set_rates(Rates::given(
        Duration::from_secs(1),
        Duration::from_nanos(1),
    ));
    add(&mut scheduler, 0, (9, 1), 0, false);
    scheduler.found_on_disk([(0, hashes(1)[0])]);
    step(&mut scheduler);
    assert!(scheduler.take_disk_jobs().is_empty());
}

#[test]
fn a_sequence_that_leaves_does_not_wait_for_files_any_more() {
    let mut scheduler = with_files();
    let ids = [0, 1].map(|stream| add(&mut scheduler, stream, (9, 1), 0, false));
    scheduler.found_on_disk([(0, hashes(1)[0])]);
    assert!(
        scheduler.schedule(64).is_none(),
        "both wait for the same file"
    );
    let waiters = |scheduler: &Scheduler| {
        scheduler
            .disk
            .reading
            .values()
            .map(|reading| reading.waiters.clone())
            .next()
    };
    assert_eq!(waiters(&scheduler), Some(ids.to_vec()));
    scheduler.abort(StreamId(0));
    assert_eq!(waiters(&scheduler), Some(vec![ids[1]]));
    scheduler.abort(StreamId(1));
    assert_eq!(waiters(&scheduler), Some(Vec::new()));
}

#[test]
fn finished_blocks_are_copied_while_they_are_cached_and_wanted() {
    let tiers = TierLimits {
        host_bytes: 1 << 20,
        block_bytes: vec![1 << 10],
        disk: DiskUse::ReadAndWrite,
    };
    let limits = Limits {
        tiers,
        ..scheduler(None, 40, true).limits
    };
    let mut scheduler = Scheduler::new(limits, InjectedFaults::default());
    let hashes = hashes(4);
    add(&mut scheduler, 0, (17, 1), 0, false);
    step(&mut scheduler);
    let keys = |saves: &[Save]| {
        saves
            .iter()
            .filter_map(|save| save.origin.as_ref())
            .map(|o| o.key.1)
            .collect::<Vec<_>>()
    };
    let saves = scheduler.save_finished(1);
    assert_eq!(keys(&saves), hashes[..1]);
    let withdrawn = scheduler.pool().groups()[0]
        .lookup(&hashes[1])
        .expect("it is cached");
    scheduler.pool.group_mut(0).withdraw(withdrawn);
    scheduler.found_on_disk([(0, hashes[2])]);
    assert_eq!(keys(&scheduler.save_finished(9)), hashes[3..]);
    let origin = saves[0].origin.as_ref().expect("it is written");
    assert!(scheduler.hand_over(origin));
    scheduler.wrote(origin.key, true);
    assert!(!scheduler.hand_over(origin), "it is written already");
    assert_eq!(
        (scheduler.counts().files_written, scheduler.disk().len()),
        (1, 2)
    );
}

#[test]
fn only_files_of_blocks_within_the_window_are_read() {
    let limits = Limits {
        windows: vec![Some(4)],
        ..with_files().limits
    };
    let mut scheduler = Scheduler::new(limits, InjectedFaults::default());
    add(&mut scheduler, 0, (9, 1), 0, false);
    scheduler.found_on_disk([(0, hashes(2)[1])]);
    assert!(scheduler.schedule(64).is_none(), "it waits for the file");
    assert_eq!(scheduler.take_disk_jobs().len(), 1);
}

#[test]
fn who_waits_reads_files_of_blocks_that_were_evicted_meanwhile() {
    let mut scheduler = with_files();
    add(&mut scheduler, 0, (9, 1), 0, false);
    step(&mut scheduler);
    let running = add(&mut scheduler, 1, (5, 40), 0, false);
    scheduler.sequences[running].tokens = vec![50; 5];
    add(&mut scheduler, 2, (9, 1), 0, false);
    step(&mut scheduler);
    assert_eq!(
        (found(&scheduler, 2), scheduler.waiting_len()),
        (vec![true; 2], 1),
        "it needs no file"
    );
    for hash in hashes(2) {
        let block = scheduler.pool().groups()[0]
            .lookup(&hash)
            .expect("it is cached");
        scheduler.pool.group_mut(0).withdraw(block);
        scheduler.found_on_disk([(0, hash)]);
    }
    scheduler.abort(StreamId(1));
    assert!(scheduler.schedule(64).is_none(), "now it waits for them");
    assert_eq!(scheduler.take_disk_jobs().len(), 2);
}
