//! Where snapshots are taken, and what a sequence gives up for a slot.

use super::*;
use crate::engine::faults::InjectedFaults;
use crate::engine::panic_message;
use crate::engine::request::{BeamParams, Pooling, Request, SamplingParams};
use crate::engine::scheduler::tests::scheduler;
use crate::engine::scheduler::{Limits, TierLimits};
use crate::engine::sequence::StreamId;
use crate::engine::tiers::host::Fill;
use crate::engine::tiers::{DiskUse, Restore};
use crate::plan::inputs::{Results, Sampled};
use std::sync::Arc;

/// With its type, which comparisons do not infer.
const EMPTY: [u32; 0] = [];

/// A scheduler with blocks of 4 tokens and 4 slots beside those of running sequences.
fn stateful(change: impl FnOnce(&mut Limits)) -> Scheduler {
    let mut limits = Limits {
        state_slots: 8,
        max_model_len: 4000,
        ..scheduler(None, 2000, true).limits
    };
    change(&mut limits);
    Scheduler::new(limits, InjectedFaults::default())
}

/// Queues a request with a prompt of so many equal tokens.
fn ask(scheduler: &mut Scheduler, prompt: usize, pooling: Option<Pooling>) -> SequenceId {
    let stream = StreamId(scheduler.arrivals);
    let request = Request {
        prompt: vec![1; prompt].into(),
        pooling,
        ..Request::default()
    };
    scheduler.add(Arc::new(request), &[stream], 0, false);
    scheduler.by_stream[&stream]
}

/// Where snapshots of a prompt are wanted once so many of its tokens are computed.
fn places(scheduler: &mut Scheduler, prompt: usize, computed: u32) -> Vec<u32> {
    let id = ask(scheduler, prompt, None);
    scheduler.sequences[id].computed = computed;
    let places = scheduler.snapshot_places(&scheduler.sequences[id]);
    let next = places.iter().filter(|&&place| place > computed).min();
    let ahead = next.map_or(u32::MAX, |next| next - computed);
    assert_eq!(
        scheduler.tokens_to_snapshot(&scheduler.sequences[id]),
        ahead,
        "chunks end at snapshots"
    );
    places
}

#[test]
fn snapshots_of_a_prompt_are_at_every_quarter_or_32_blocks_and_at_its_last_whole_block() {
    let scheduler = &mut stateful(|_| ());
    assert_eq!(
        places(scheduler, 4, 0),
        EMPTY,
        "the last token is always computed"
    );
    assert_eq!(places(scheduler, 5, 0), [4]);
    assert_eq!(places(scheduler, 128, 0), [124]);
    assert_eq!(places(scheduler, 190, 0), [128], "32 blocks");
    assert_eq!(places(scheduler, 190, 128), [128, 188]);
    // A quarter of 1000 tokens, in whole blocks, is 252.
    let long = [0, 251, 252, 300, 900, 996].map(|computed| places(scheduler, 1000, computed));
    let expected: [&[u32]; 6] = [
        &[252],
        &[252],
        &[252, 504],
        &[252, 504],
        &[756, 996],
        &[756, 996],
    ];
    assert_eq!(long, expected);
    let id = ask(scheduler, 190, None);
    scheduler.sequences[id].states.branch = 40;
    assert_eq!(
        scheduler.snapshot_places(&scheduler.sequences[id]),
        [128, 40],
        "where it differs from others"
    );
    let id = ask(scheduler, 190, Some(Pooling::Mean));
    assert_eq!(
        scheduler.snapshot_places(&scheduler.sequences[id]),
        EMPTY,
        "nobody goes on from an embedding"
    );
}

#[test]
fn snapshots_with_fixed_chunks_are_at_the_ends_of_chunks() {
    let scheduler = &mut stateful(|limits| limits.deterministic = true);
    assert_eq!(scheduler.sharing_unit(), 16);
    assert_eq!(places(scheduler, 16, 0), EMPTY);
    assert_eq!(places(scheduler, 17, 0), [16]);
    assert_eq!(places(scheduler, 1000, 0), [256]);
    assert_eq!(places(scheduler, 1000, 800), [768, 992]);
}

#[test]
fn snapshots_need_slots_beside_those_of_running_sequences() {
    assert_eq!(stateful(|_| ()).snapshots_max(), 4);
    for change in [
        |limits: &mut Limits| limits.state_slots = 4,
        |limits: &mut Limits| limits.prefix_caching = false,
    ] {
        let mut scheduler = stateful(change);
        assert_eq!(scheduler.snapshots_max(), 0);
        assert_eq!(places(&mut scheduler, 190, 0), EMPTY);
        let id = ask(&mut scheduler, 190, None);
        scheduler.sequences[id].computed = 188;
        assert!(!scheduler.wants_snapshot(&scheduler.sequences[id]));
    }
}

#[test]
fn a_snapshot_is_taken_after_whole_blocks_and_in_answers_only_while_few_sequences_run() {
    let scheduler = &mut stateful(|limits| limits.state_slots = 10);
    let ids = [(); 4].map(|()| ask(scheduler, 10, None));
    let mut wants = |running: usize, computed: u32| {
        scheduler.running = ids[..running].to_vec();
        scheduler.sequences[ids[0]].computed = computed;
        scheduler.wants_snapshot(&scheduler.sequences[ids[0]])
    };
    assert_eq!(
        [0, 4, 7, 8, 9].map(|computed| wants(1, computed)),
        [false, false, false, true, false],
        "of the prompt"
    );
    assert_eq!(
        [11, 12, 16].map(|computed| wants(3, computed)),
        [false, true, true],
        "of the answer"
    );
    assert_eq!(
        [8, 12, 16].map(|computed| wants(4, computed)),
        [true, false, false],
        "two slots for each"
    );
    let hash = BlockHash::root(&[3; 32], None, None).next(&[3; 32], &[1; 4]);
    scheduler.sequences[ids[0]].hashes = vec![BlockHash::root(&[3; 32], None, None), hash];
    let slot = scheduler.states.allocate().expect("all are free").0;
    scheduler.states.register(slot, hash);
    scheduler.sequences[ids[0]].computed = 8;
    assert!(
        !scheduler.wants_snapshot(&scheduler.sequences[ids[0]]),
        "there is one"
    );
}

#[test]
fn answers_of_a_beam_search_leave_no_snapshots() {
    let after = |beams: Option<BeamParams>| {
        let scheduler = &mut stateful(|_| ());
        let stream = StreamId(scheduler.arrivals);
        let params = SamplingParams {
            beams,
            max_tokens: Some(10),
            ..SamplingParams::default()
        };
        let request = Request {
            prompt: vec![1; 5].into(),
            params,
            ..Request::default()
        };
        scheduler.add(Arc::new(request), &[stream], 0, false);
        while let Some(batch) = scheduler.schedule(64) {
            // A beam goes on with the likeliest tokens, an answer with the one that is drawn.
            let likely = Sampled {
                token_id: 1,
                top: vec![(1, -0.5), (2, -1.5), (3, -2.5), (4, -3.5)],
                ..Sampled::default()
            };
            let sampled = vec![likely; batch.draws.len()];
            drop(scheduler.commit(
                &batch,
                Results {
                    sampled,
                    ..Results::default()
                },
            ));
        }
        let answer = chain(3).pop().expect("the block of tokens 9 to 12");
        scheduler.states.lookup(&answer).is_some()
    };
    assert!(after(None), "the answer repeats the likeliest token");
    let width = |width| BeamParams {
        width,
        length_penalty: 1.0,
        early_stopping: false,
    };
    assert!(
        !after(Some(width(2))),
        "nobody goes on from a beam, most of which are dropped"
    );
}

/// A chain of hashes of blocks of equal tokens.
fn chain(blocks: usize) -> Vec<BlockHash> {
    let next = |hash: &BlockHash| Some(hash.next(&[3; 32], &[1; 4]));
    std::iter::successors(next(&BlockHash::root(&[3; 32], None, None)), next)
        .take(blocks)
        .collect()
}

fn slot(scheduler: &mut Scheduler) -> u32 {
    scheduler.states.allocate().expect("one is free").0
}

#[test]
fn so_many_sequences_can_have_slots_as_are_free() {
    let mut scheduler = stateful(|limits| limits.state_slots = 3);
    slot(&mut scheduler);
    assert_eq!(
        [2, 3].map(|count| scheduler.has_state_slots(count)),
        [true, false]
    );
    assert!(
        stateful(|limits| limits.state_slots = 0).has_state_slots(3),
        "the model keeps no states"
    );
}

#[test]
fn a_state_is_overwritten_only_if_nobody_else_needs_it() {
    let scheduler = &mut stateful(|_| ());
    let id = ask(scheduler, 10, None);
    let mut draft = scheduler.draft(64);
    assert!(!scheduler.is_own_state(id, &draft), "it has none");
    let live = slot(scheduler);
    scheduler.sequences[id].states.live = live;
    assert!(scheduler.is_own_state(id, &draft));
    scheduler.states.share(live);
    assert!(
        !scheduler.is_own_state(id, &draft),
        "a fork goes on from it"
    );
    scheduler.states.release(live);
    scheduler.states.register(live, chain(1)[0]);
    assert!(!scheduler.is_own_state(id, &draft), "it is a snapshot");
    scheduler.states.withdraw(live);
    let states = Some(StateRows {
        from: live,
        to: live + 1,
    });
    draft.batch.rows.push(Row {
        sequence: id,
        start: 0,
        count: 1,
        drafts: Vec::new(),
        states,
    });
    assert!(
        !scheduler.is_own_state(id, &draft),
        "a row of the step reads it"
    );
}

#[test]
fn without_a_free_slot_a_sequence_gives_up_its_snapshots() {
    let has = |change: &dyn Fn(&mut Scheduler, SequenceId)| {
        let mut scheduler = stateful(|limits| limits.state_slots = 2);
        let id = ask(&mut scheduler, 10, None);
        change(&mut scheduler, id);
        assert_eq!(scheduler.states.free(), 0);
        let draft = scheduler.draft(64);
        scheduler.has_state_for(id, &draft)
    };
    let hold = |scheduler: &mut Scheduler, id: SequenceId, holders: u32| {
        let [live, other] = [(); 2].map(|()| slot(scheduler));
        (1..holders).for_each(|_| scheduler.states.share(live));
        scheduler.sequences[id].states.live = live;
        (live, other)
    };
    let none = |scheduler: &mut Scheduler, _: SequenceId| {
        [(); 2].iter().for_each(|()| _ = slot(scheduler));
    };
    assert!(!has(&none), "it has none to give up");
    assert!(
        has(&|scheduler, id| _ = hold(scheduler, id, 1)),
        "it overwrites its own state"
    );
    assert!(
        !has(&|scheduler, id| _ = hold(scheduler, id, 2)),
        "another sequence holds it too"
    );
    let cached = |scheduler: &mut Scheduler, id: SequenceId| {
        let (live, _) = hold(scheduler, id, 1);
        scheduler.states.register(live, chain(1)[0]);
    };
    assert!(has(&cached), "its state is a snapshot no more");
    let kept = |scheduler: &mut Scheduler, id: SequenceId| {
        let (_, other) = hold(scheduler, id, 2);
        scheduler.sequences[id].states.kept = Some((4, other));
    };
    assert!(has(&kept), "what it keeps becomes no snapshot");
}

#[test]
fn a_slot_is_written_until_the_step_has_run() {
    let scheduler = &mut stateful(|_| ());
    let id = ask(scheduler, 10, None);
    let batch = scheduler.schedule(64).expect("it waits");
    let live = scheduler.sequences[id].states.live;
    assert!(scheduler.is_written(live));
    assert!(!scheduler.is_written(live + 1));
    scheduler.land_states(&batch);
    assert!(!scheduler.is_written(live));
}

/// Runs a request until it has so many tokens. Returns which of its blocks have a snapshot after them. With `is_used`,
/// another sequence goes on from the first one of the answer.
fn snapshots_after(prompt: usize, tokens: u32, is_used: bool) -> Vec<bool> {
    let scheduler = &mut stateful(|_| ());
    let id = ask(scheduler, prompt, None);
    let mut used = None;
    while scheduler.sequences[id].tokens_known() < tokens {
        let batch = scheduler.schedule(64).expect("it continues");
        let sampled = vec![
            Sampled {
                token_id: 1,
                ..Sampled::default()
            };
            batch.draws.len()
        ];
        drop(scheduler.commit(
            &batch,
            Results {
                sampled,
                ..Results::default()
            },
        ));
        if let Some((slot, _)) = scheduler.sequences[id].states.last
            && is_used
            && used.is_none()
        {
            scheduler.states.share(slot);
            used = Some(slot);
        }
    }
    chain(3)
        .iter()
        .map(|hash| scheduler.states.lookup(hash).is_some())
        .collect()
}

#[test]
fn of_an_answer_the_last_snapshot_is_kept_and_those_that_are_used() {
    assert_eq!(
        snapshots_after(5, 14, false),
        [true, false, true],
        "the first is of the prompt"
    );
    assert_eq!(snapshots_after(3, 14, false), [false, false, true]);
    assert_eq!(
        snapshots_after(3, 14, true),
        [true, false, true],
        "of the first block, and of the last"
    );
}

#[test]
fn a_snapshot_far_away_is_worth_what_it_spares_beyond_the_nearest() {
    let scheduler = &mut stateful(|_| ());
    let chain = chain(7);
    let near = slot(scheduler);
    scheduler.states.register(near, chain[1]);
    let asked = std::cell::RefCell::new(Vec::new());
    let longest = |found: usize| {
        let elsewhere = |group: usize, hash: &BlockHash, spared: u32| {
            assert_eq!(group, 1, "states follow the only KV group");
            asked
                .borrow_mut()
                .push((chain.iter().position(|other| other == hash), spared));
            *hash == chain[found]
        };
        (
            scheduler.blocks_to_snapshot(&chain, 2, elsewhere),
            asked.take(),
        )
    };
    // Units are two blocks of four tokens; the chain has three, and a snapshot after the first.
    assert_eq!(longest(5), (6, vec![(Some(5), 16)]));
    assert_eq!(longest(3), (4, vec![(Some(5), 16), (Some(3), 8)]));
    assert_eq!(
        longest(0),
        (2, vec![(Some(5), 16), (Some(3), 8)]),
        "the one on the device"
    );
    let stateless = stateful(|limits| limits.state_slots = 0);
    assert_eq!(stateless.blocks_to_snapshot(&chain, 2, |_, _, _| false), 6);
}

/// Up to where the blocks of a prompt are cached, if its first blocks are.
fn branch(scheduler: &mut Scheduler, prompt: usize, hashed: usize, cached: usize) -> u32 {
    let id = ask(scheduler, prompt, None);
    for &hash in &chain(cached) {
        let (block, _) = scheduler.pool.group_mut(0).allocate().expect("one is free");
        scheduler.pool.group_mut(0).register(block, hash);
    }
    scheduler.sequences[id].hashes = chain(hashed);
    let mut draft = scheduler.draft(64);
    scheduler.take_snapshot(id, 0, None, &mut draft);
    scheduler.sequences[id].states.branch
}

#[test]
fn a_prompt_that_differs_from_what_is_cached_gets_a_snapshot_there() {
    assert_eq!(branch(&mut stateful(|_| ()), 33, 8, 5), 20);
    assert_eq!(branch(&mut stateful(|_| ()), 33, 8, 0), 0);
    assert_eq!(
        branch(&mut stateful(|_| ()), 8, 2, 2),
        4,
        "the last token is computed in any case"
    );
    assert_eq!(branch(&mut stateful(|_| ()), 9, 2, 2), 8);
    assert_eq!(
        branch(
            &mut stateful(|limits| limits.deterministic = true),
            49,
            12,
            7
        ),
        16,
        "a whole fixed chunk"
    );
}

#[test]
fn the_state_after_drafts_is_kept_if_all_are_accepted() {
    for (computed, all) in [(11, true), (10, false), (9, false)] {
        let scheduler = &mut stateful(|_| ());
        let id = ask(scheduler, 12, None);
        let [before, live] = [(); 2].map(|()| slot(scheduler));
        let sequence = &mut scheduler.sequences[id];
        sequence.states = HeldStates {
            live,
            before,
            ..HeldStates::default()
        };
        sequence.computed = computed;
        scheduler.settle_drafts(&Row {
            sequence: id,
            start: 8,
            count: 1,
            drafts: vec![1; 2],
            states: None,
        });
        let sequence = &scheduler.sequences[id];
        assert_eq!(
            (sequence.states.live, sequence.computed),
            if all { (live, computed) } else { (before, 8) }
        );
        assert_eq!(scheduler.states.free(), 7, "the other one is free");
    }
}

#[test]
fn states_of_a_failed_batch_are_found_no_more_and_neither_is_what_goes_on_from_them() {
    let scheduler = &mut stateful(|_| ());
    let [id, other] = [(); 2].map(|()| ask(scheduler, 12, None));
    let slots = [(); 5].map(|()| slot(scheduler));
    let [live, kept, written, restored, foreign] = slots;
    for (&slot, hash) in slots.iter().zip(chain(5)) {
        scheduler.states.register(slot, hash);
    }
    scheduler.sequences[id].states = HeldStates {
        live,
        kept: Some((4, kept)),
        ..HeldStates::default()
    };
    let mut batch = scheduler.draft(64).batch;
    let states = Some(StateRows {
        from: foreign,
        to: written,
    });
    batch.rows = vec![
        Row {
            sequence: id,
            start: 4,
            count: 1,
            drafts: Vec::new(),
            states,
        },
        Row {
            sequence: other,
            start: 0,
            count: 1,
            drafts: Vec::new(),
            states: None,
        },
    ];
    let restore = |group, block| Restore {
        sequence: id,
        group,
        block,
        slot: 0,
    };
    batch.restores = vec![restore(1, restored), restore(0, foreign)];
    let spoilt = scheduler.withdraw_states_of(&batch);
    assert_eq!(spoilt, HashSet::from([live, written, restored]));
    let cached = slots.map(|slot| scheduler.states.is_cached(slot));
    assert_eq!(
        cached,
        [false, true, false, false, true],
        "its state, and what the batch wrote and restored"
    );
    assert_eq!(
        scheduler.sequences[id].states.kept, None,
        "what it keeps becomes no snapshot"
    );
    assert!(scheduler.states.is_free(kept));
}

#[test]
fn a_sequence_goes_on_from_the_states_that_it_holds_and_that_its_row_in_flight_reads() {
    let scheduler = &mut stateful(|_| ());
    let id = ask(scheduler, 12, None);
    let mut goes_on = |states: HeldStates, in_flight: u32| {
        let sequence = &mut scheduler.sequences[id];
        (sequence.states, sequence.in_flight) = (states, in_flight);
        scheduler.goes_on_from(&scheduler.sequences[id], &HashSet::from([5]))
    };
    let none = HeldStates::default;
    assert!(!goes_on(none(), 1));
    assert!(goes_on(HeldStates { live: 5, ..none() }, 0));
    assert!(!goes_on(HeldStates { live: 4, ..none() }, 1));
    assert_eq!(
        [0, 1].map(|in_flight| goes_on(HeldStates { read: 5, ..none() }, in_flight)),
        [false, true]
    );
    assert!(!goes_on(HeldStates { read: 4, ..none() }, 1));
}

#[test]
fn the_injected_bug_of_snapshots_names_the_block_before() {
    for (tokens, named) in [(4, 0), (8, 0), (12, 1)] {
        let scheduler = &mut stateful(|_| ());
        scheduler.faults.fault = Some(InjectedFault::SnapshotOfOtherBlock);
        let id = ask(scheduler, 13, None);
        let kept = slot(scheduler);
        scheduler.sequences[id].hashes = chain(3);
        scheduler.sequences[id].states.kept = Some((tokens, kept));
        scheduler.register_snapshot(id);
        assert_eq!(
            scheduler.states.lookup(&chain(3)[named]),
            Some(kept),
            "after {tokens} tokens"
        );
    }
}

#[test]
fn injected_bugs_of_slots_do_what_they_say() {
    let with = |fault| {
        let mut scheduler = stateful(|_| ());
        scheduler.faults.fault = Some(fault);
        let ids = [(); 2].map(|()| ask(&mut scheduler, 12, None));
        (scheduler, ids)
    };
    let stale = |preemptions: u32, computed: u32, is_cached: bool| {
        let (mut scheduler, [id, _]) = with(InjectedFault::StateKeptInPreemption);
        if computed > 0 {
            let live = slot(&mut scheduler);
            scheduler.sequences[id].states.live = live;
            scheduler.states.share(live);
            if is_cached {
                scheduler.states.register(live, chain(1)[0]);
            }
        }
        (
            scheduler.sequences[id].preemptions,
            scheduler.sequences[id].computed,
        ) = (preemptions, computed);
        let mut draft = scheduler.draft(64);
        let rows = scheduler
            .take_state(id, &mut Vec::new(), &mut draft)
            .expect("the model keeps states");
        rows.from == rows.to
    };
    assert_eq!(
        [0, 1, 2].map(|preemptions| stale(preemptions, 0, false)),
        [false, true, true]
    );
    assert_eq!(
        [false, true].map(|is_cached| stale(1, 4, is_cached)),
        [false, true],
        "a prefix hit"
    );
    assert!(!stale(0, 4, true));
    let (mut scheduler, [id, other]) = with(InjectedFault::StateSlotShared);
    let mut draft = scheduler.draft(64);
    scheduler.running = vec![id, other];
    let own = scheduler.fresh_slot(id, &mut draft);
    scheduler.sequences[id].states.live = own;
    assert_ne!(
        scheduler.fresh_slot(id, &mut draft),
        own,
        "the other has none yet"
    );
    assert_eq!(scheduler.fresh_slot(other, &mut draft), own);
    let (mut scheduler, [id, other]) = with(InjectedFault::ForkedStateShared);
    scheduler.running = vec![id, other];
    let own = scheduler.fresh_slot(id, &mut draft);
    scheduler.sequences[id].states.live = own;
    assert_ne!(
        scheduler.fresh_slot(other, &mut draft),
        own,
        "only that bug shares slots"
    );
}

#[test]
fn a_slot_that_a_row_reads_is_kept_until_it_has_run() {
    let freed = |is_read: bool, fault: Option<InjectedFault>| {
        let mut scheduler = stateful(|_| ());
        scheduler.faults.fault = fault;
        let live = slot(&mut scheduler);
        scheduler.leave_state(live, is_read, true);
        scheduler.states.is_free(live)
    };
    assert_eq!(
        [false, true].map(|is_read| freed(is_read, None)),
        [true, false]
    );
    assert!(
        freed(true, Some(InjectedFault::SnapshotEvictedEarly)),
        "the injected bug frees it"
    );
}

#[test]
fn the_injected_bug_of_restored_states_takes_an_earlier_one() {
    for (fault, index) in [
        (None, 2),
        (Some(InjectedFault::StateOfOtherBlockRestored), 1),
    ] {
        let mut scheduler = stateful(|limits| {
            (limits.tiers.host_bytes, limits.tiers.block_bytes) = (1 << 20, vec![1 << 10; 2]);
        });
        scheduler.faults.fault = fault;
        let chain = chain(3);
        let slots = [0, 1, 2].map(|index| {
            let slot = scheduler
                .host
                .reserve(1, chain[index], Fill::Leaving)
                .expect("there is room");
            scheduler.host.complete(slot);
            slot
        });
        let found = scheduler.keep_snapshot(&chain);
        assert!(
            matches!(found, Some(Found::Host(slot)) if slot == slots[index]),
            "with {fault:?}"
        );
    }
}

#[test]
fn a_snapshot_of_a_prompt_is_written_once_the_step_that_computes_it_has_completed() {
    let tiers = TierLimits {
        host_bytes: 1 << 20,
        block_bytes: vec![1 << 10; 2],
        disk: DiskUse::ReadAndWrite,
    };
    let scheduler = &mut stateful(|limits| limits.tiers = tiers);
    let id = ask(scheduler, 9, None);
    let batch = scheduler.schedule(64).expect("it waits");
    let slot = batch.rows[0].states.expect("it has a state").to;
    assert_eq!(
        (batch.rows[0].count, scheduler.is_complete(1, slot)),
        (8, false)
    );
    drop(scheduler.commit(&batch, Results::default()));
    assert!(scheduler.is_complete(1, slot));
    let hash = scheduler.sequences[id].hashes[1];
    let saves = scheduler.save_finished(9);
    let keys: Vec<_> = saves
        .iter()
        .filter_map(|save| save.origin.as_ref())
        .map(|origin| origin.key)
        .collect();
    assert_eq!(keys, [(1, hash)], "the blocks follow when it ends");
}

#[test]
fn a_running_sequence_without_the_state_after_its_tokens_is_noticed() {
    let scheduler = &mut stateful(|_| ());
    let id = ask(scheduler, 9, None);
    let batch = scheduler.schedule(64).expect("it waits");
    drop(scheduler.commit(&batch, Results::default()));
    scheduler.check();
    scheduler.sequences[id].states.live = NONE;
    let message = panic_message(|| scheduler.check());
    assert!(
        message.contains("computed tokens have a state"),
        "{message}"
    );
}
