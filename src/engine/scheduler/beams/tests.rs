//! What groups of beams keep, need and reserve, and what folding leaves of them.

use super::*;
use crate::engine::batch::Batch;
use crate::engine::memory::BlockHash;
use crate::engine::request::{Request, SamplingParams};
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::tests::scheduler;
use crate::plan::inputs::{Results, Sampled};
use std::sync::Arc;

/// Queues a search to a prompt of six tokens; blocks have four.
fn search(scheduler: &mut Scheduler, width: u32, answer: u32) -> (GroupId, SequenceId) {
    let beams = Some(BeamParams {
        width,
        length_penalty: 1.0,
        early_stopping: false,
    });
    let params = SamplingParams {
        max_tokens: Some(answer),
        beams,
        ..SamplingParams::default()
    };
    let request = Request {
        prompt: (0..6).collect(),
        params,
        ..Request::default()
    };
    scheduler.add(Arc::new(request), &[StreamId(0)], 0, false);
    let id = scheduler.queues.by_stream[&StreamId(0)];
    (
        scheduler.queues.sequences[id].group().expect("it searches"),
        id,
    )
}

/// Every beam finds the same continuations.
fn commit(scheduler: &mut Scheduler, batch: &Batch) {
    let top: Vec<_> = (20..30)
        .zip(1_u8..)
        .map(|(token_id, place)| (token_id, -f32::from(place)))
        .collect();
    let sampled = vec![
        Sampled {
            token_id: 20,
            top,
            ..Sampled::default()
        };
        batch.draws.len()
    ];
    drop(scheduler.commit(
        batch,
        Results {
            sampled,
            ..Results::default()
        },
    ));
    scheduler.check();
}

/// A search of three beams that have one token each.
fn three(blocks: u32, window: Option<u32>, answer: u32) -> (Scheduler, GroupId, Vec<SequenceId>) {
    let mut scheduler = scheduler(window, blocks, true);
    let (group, _) = search(&mut scheduler, 3, answer);
    let batch = scheduler.schedule(64).expect("it waits");
    commit(&mut scheduler, &batch);
    let members = scheduler.beams.groups[&group].members.clone();
    assert_eq!(members.len(), 3);
    (scheduler, group, members)
}

#[test]
fn seats_are_kept_for_the_beams_that_a_running_group_may_get() {
    let mut scheduler = scheduler(None, 40, true);
    let (_, id) = search(&mut scheduler, 3, 9);
    assert_eq!(
        (
            scheduler.beams.seats_kept(&scheduler.queues),
            scheduler.beams.seats_needed(&scheduler.queues, id)
        ),
        (0, 3),
        "it waits"
    );
    let batch = scheduler.schedule(64).expect("it waits");
    assert_eq!(
        (
            scheduler.beams.seats_kept(&scheduler.queues),
            scheduler.running_len()
        ),
        (2, 1)
    );
    assert!(scheduler.has_seat(), "of four, one is left");
    commit(&mut scheduler, &batch);
    assert_eq!(
        (
            scheduler.beams.seats_kept(&scheduler.queues),
            scheduler.running_len()
        ),
        (0, 3)
    );
    assert_eq!(
        scheduler.counts().generation_tokens,
        1,
        "one beam has drawn"
    );
}

#[test]
fn a_folded_group_is_as_long_as_its_longest_beam_and_needs_blocks_for_all() {
    let (mut scheduler, group, members) = three(90, None, 9);
    assert_eq!(
        scheduler
            .beams
            .blocks_of_others(&scheduler.queues, members[0], 9),
        [2 * (3 - 1)],
        "of three, one is shared"
    );
    scheduler.queues.sequences[members[0]].holding.hashes =
        vec![BlockHash::root(&[3; 32], None, None, None); 2];
    scheduler.beams.preempt(&mut scheduler.queues, group);
    assert_eq!((scheduler.waiting_len(), scheduler.running_len()), (1, 0));
    let first = members[0];
    assert_eq!(
        scheduler.queues.sequences[first].tokens,
        (0..6).collect::<Vec<_>>(),
        "what all have in common"
    );
    assert_eq!(
        scheduler.queues.sequences[first].holding.hashes.len(),
        1,
        "a whole block of it"
    );
    assert_eq!(
        (
            scheduler.beams.tokens_unfolded(&scheduler.queues, first),
            scheduler.queues.folded_len()
        ),
        (7, 2)
    );
    assert_eq!(
        scheduler
            .beams
            .blocks_of_others(&scheduler.queues, first, 9),
        [2 * (3 - 1)]
    );
    assert_eq!(
        scheduler
            .beams
            .blocks_of_others(&scheduler.queues, first, 197),
        [90],
        "never more than there are"
    );
    let (mut scheduler, group, members) = three(90, Some(4), 9);
    scheduler.beams.preempt(&mut scheduler.queues, group);
    assert_eq!(
        scheduler
            .beams
            .blocks_of_others(&scheduler.queues, members[0], 197),
        [2 * (1 + 16 + 2)],
        "a window, a chunk and both ends"
    );
}

#[test]
fn a_single_beam_is_not_folded() {
    let mut scheduler = scheduler(None, 40, true);
    let (group, _) = search(&mut scheduler, 1, 9);
    let batch = scheduler.schedule(64).expect("it waits");
    commit(&mut scheduler, &batch);
    scheduler.beams.preempt(&mut scheduler.queues, group);
    assert_eq!(scheduler.beams.groups[&group].folded, None);
    assert_eq!(
        (scheduler.waiting_len(), scheduler.queues.folded_len()),
        (1, 0)
    );
}

/// Blocks that a beam may still take.
fn to_come(scheduler: &Scheduler, id: SequenceId) -> u32 {
    let sequence = &scheduler.queues.sequences[id];
    let (holding, tokens) = (&sequence.holding, sequence.tokens_limit);
    scheduler.queues.memory.blocks_to_come(holding, 0, tokens)
}

#[test]
fn a_beam_may_still_need_its_further_blocks_and_a_copy_of_the_one_it_shares() {
    let (mut scheduler, _, members) = three(90, None, 9);
    // 15 tokens have four blocks, of which it has two.
    assert_eq!(to_come(&scheduler, members[0]), 2 + 1);
    scheduler.queues.sequences[members[0]].holding.computed = 8;
    assert_eq!(
        to_come(&scheduler, members[0]),
        2,
        "it writes to a new block"
    );
    let (mut scheduler, _, members) = three(90, Some(4), 150);
    assert_eq!(to_come(&scheduler, members[0]), (1 + 16 + 2) - 2);
    scheduler.queues.sequences[members[0]].holding.tables[0].passed = 1;
    assert_eq!(
        to_come(&scheduler, members[0]),
        (1 + 16 + 2) - (2 - 1),
        "the window has passed one"
    );
}

#[test]
fn blocks_are_reserved_for_the_running_beams_of_a_guarded_group() {
    let reserved = |guarded: bool, leaves: bool| {
        let (mut scheduler, group, members) = three(90, None, 9);
        scheduler.queues.sequences[members[0]].holding.is_guarded = guarded;
        if leaves {
            scheduler.queues.leave(members[2], Exit::Preempted);
        }
        let free = scheduler.pool().groups()[0].available();
        scheduler
            .beams
            .reserve_for_beams(&mut scheduler.queues, group);
        scheduler
            .beams
            .reserve_for_beams(&mut scheduler.queues, group);
        let of = members
            .iter()
            .map(|&id| scheduler.queues.sequences[id].holding.tables[0].reserved)
            .collect::<Vec<_>>();
        assert_eq!(
            free - scheduler.pool().groups()[0].available(),
            of.iter().sum::<u32>(),
            "reserved once"
        );
        of
    };
    assert_eq!(reserved(false, false), [0, 0, 0]);
    assert_eq!(reserved(true, false), [3, 3, 3]);
    assert_eq!(reserved(true, true), [3, 3, 0]);
}

#[test]
fn what_is_reserved_for_a_folded_group_is_reserved_once() {
    let (mut scheduler, group, members) = three(90, None, 9);
    scheduler.beams.preempt(&mut scheduler.queues, group);
    let first = members[0];
    members.iter().for_each(|&id| {
        scheduler.queues.sequences[id].preemptions = crate::engine::scheduler::PREEMPTIONS_MAX;
    });
    let batch = scheduler.schedule(64).expect("it waits");
    assert_eq!(
        (batch.rows.len(), scheduler.running_len()),
        (1, 3),
        "its common tokens are computed again"
    );
    let reserved = members
        .iter()
        .map(|&id| scheduler.queues.sequences[id].holding.tables[0].reserved);
    let taken: u32 = reserved.sum();
    let group = &scheduler.pool().groups()[0];
    assert!(scheduler.queues.sequences[first].holding.is_guarded && taken > 0);
    assert_eq!(group.free() - group.available(), taken);
}

#[test]
fn a_search_ends_when_the_last_of_its_receivers_has_left() {
    let mut scheduler = scheduler(None, 40, true);
    let beams = Some(BeamParams {
        width: 3,
        length_penalty: 1.0,
        early_stopping: false,
    });
    let params = SamplingParams {
        max_tokens: Some(9),
        beams,
        ..SamplingParams::default()
    };
    let request = Request {
        prompt: (0..6).collect(),
        params,
        ..Request::default()
    };
    scheduler.add(Arc::new(request), &[StreamId(0), StreamId(1)], 0, false);
    let batch = scheduler.schedule(64).expect("it waits");
    commit(&mut scheduler, &batch);
    scheduler.abort(StreamId(0));
    assert_eq!(
        (scheduler.beams.groups.len(), scheduler.running_len()),
        (1, 3),
        "somebody still listens"
    );
    scheduler.abort(StreamId(1));
    assert_eq!(
        (scheduler.beams.groups.len(), scheduler.running_len()),
        (0, 0)
    );
    assert!(scheduler.is_idle());
}

#[test]
fn the_first_choice_is_told_where_the_cached_prefix_ends() {
    for (leaves, told) in [(1, Some(StreamId(0))), (0, None)] {
        let mut scheduler = scheduler(None, 40, true);
        let beams = Some(BeamParams {
            width: 2,
            length_penalty: 1.0,
            early_stopping: false,
        });
        let params = SamplingParams {
            max_tokens: Some(9),
            beams,
            ..SamplingParams::default()
        };
        let request = Request {
            prompt: (0..6).collect(),
            params,
            explain_prefix: true,
            ..Request::default()
        };
        scheduler.add(Arc::new(request), &[0, 1].map(StreamId), 0, false);
        let batch = scheduler.schedule(64).expect("it waits");
        scheduler.abort(StreamId(leaves));
        let sampled = vec![Sampled {
            token_id: 20,
            top: vec![(20, -1.0), (21, -2.0)],
            ..Sampled::default()
        }];
        let events = scheduler.commit(
            &batch,
            Results {
                sampled,
                ..Results::default()
            },
        );
        let is_report = |event: &Event| matches!(event, Event::Prompt(PromptEvent::Prefix(_)));
        let streams: Vec<_> = events
            .iter()
            .filter(|(_, event)| is_report(event))
            .map(|(stream, _)| *stream)
            .collect();
        assert_eq!(
            streams,
            told.into_iter().collect::<Vec<_>>(),
            "choice {leaves} has left"
        );
    }
}

#[test]
fn a_group_that_starts_over_or_loses_its_device_waits_with_the_tokens_that_were_read() {
    let (mut scheduler, group, members) = three(90, None, 9);
    let batch = scheduler.schedule(64).expect("all continue");
    scheduler.beams.roll_back(&mut scheduler.queues, group);
    commit(&mut scheduler, &batch);
    assert_eq!(
        (
            scheduler.waiting_len(),
            scheduler.running_len(),
            scheduler.queues.folded_len()
        ),
        (1, 0, 2)
    );
    assert_eq!(
        scheduler
            .beams
            .tokens_unfolded(&scheduler.queues, members[0]),
        7,
        "nothing was read of the step in flight"
    );
    let (mut scheduler, _, members) = three(90, None, 9);
    scheduler.restart();
    assert_eq!(
        (
            scheduler.waiting_len(),
            scheduler.running_len(),
            scheduler.queues.folded_len()
        ),
        (1, 0, 2)
    );
    assert_eq!(
        scheduler
            .beams
            .tokens_unfolded(&scheduler.queues, members[0]),
        7
    );
}

#[test]
fn the_oldest_group_is_not_preempted_for_one_of_its_beams() {
    let (mut scheduler, group, _) = three(20, None, 9);
    let request = Request {
        prompt: [50, 51, 52].into(),
        ..Request::default()
    };
    scheduler.add(Arc::new(request), &[StreamId(1)], 0, false);
    let other = scheduler.queues.by_stream[&StreamId(1)];
    let batch = scheduler.schedule(64).expect("all continue");
    commit(&mut scheduler, &batch);
    let first = scheduler.beams.groups[&group].members[0];
    // More than what is free and what the other sequence frees.
    let tokens = 4 * (scheduler.pool().groups()[0].available() + 3);
    scheduler.queues.sequences[first]
        .tokens
        .extend(vec![7; tokens as usize]);
    let mut builder = scheduler.builder(64);
    scheduler.make_room(first, tokens, &mut builder);
    assert_eq!(
        (
            scheduler.queues.sequences[other].preemptions,
            scheduler.counts().preemptions
        ),
        (1, 1)
    );
    assert_eq!(scheduler.running_len(), 3);
}
