//! Snapshots of what sequences leave, as the scheduler asks for them.

use super::*;
use crate::engine::panic_message;
use crate::engine::request::BeamParams;

/// A scheduler with 4 state slots beside those of running sequences.
fn stateful(tiers: TierLimits) -> Scheduler {
    let mut limits = scheduler(None, 2000, true).queues.limits;
    limits.memory.state_slots = 8;
    limits.memory.tiers = tiers;
    limits.max_model_len = 4000;
    Scheduler::new(limits)
}

/// Queues a request with a prompt of so many equal tokens.
fn ask(scheduler: &mut Scheduler, prompt: usize) -> SequenceId {
    let stream = StreamId(scheduler.arrivals);
    let request = Request {
        prompt: vec![1; prompt].into(),
        ..Request::default()
    };
    scheduler.add(Arc::new(request), &[stream], 0, false);
    scheduler.queues.by_stream[&stream]
}

#[test]
fn answers_of_a_beam_search_leave_no_snapshots() {
    let after = |beams: Option<BeamParams>| {
        let scheduler = &mut stateful(TierLimits::default());
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
        scheduler.states().lookup(&answer).is_some()
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
    std::iter::successors(next(&BlockHash::root(&[3; 32], None, None, None)), next)
        .take(blocks)
        .collect()
}

/// Runs a request until it has so many tokens. Returns which of its blocks have a snapshot after them. With `is_used`,
/// another sequence goes on from the first one of the answer.
fn snapshots_after(prompt: usize, tokens: u32, is_used: bool) -> Vec<bool> {
    let scheduler = &mut stateful(TierLimits::default());
    let id = ask(scheduler, prompt);
    let mut used = None;
    while scheduler.queues.sequences[id].tokens_known() < tokens {
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
        if let Some((slot, _)) = scheduler.queues.sequences[id].holding.states.last
            && is_used
            && used.is_none()
        {
            scheduler.queues.memory.states_mut().share(slot);
            used = Some(slot);
        }
    }
    chain(3)
        .iter()
        .map(|hash| scheduler.states().lookup(hash).is_some())
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
fn a_snapshot_of_a_prompt_is_written_once_the_step_that_computes_it_has_completed() {
    let tiers = TierLimits {
        host_bytes: 1 << 20,
        block_bytes: vec![1 << 10; 2],
        disk: DiskUse::ReadAndWrite,
    };
    let scheduler = &mut stateful(tiers);
    let id = ask(scheduler, 9);
    let batch = scheduler.schedule(64).expect("it waits");
    assert_eq!(batch.rows[0].count, 8);
    drop(scheduler.commit(&batch, Results::default()));
    let hash = scheduler.queues.sequences[id].holding.hashes[1];
    let saves = scheduler.queues.memory.save_finished(9);
    let keys: Vec<_> = saves
        .iter()
        .filter_map(|save| save.origin.as_ref())
        .map(|origin| origin.key)
        .collect();
    assert_eq!(keys, [(1, hash)], "the blocks follow when it ends");
}

#[test]
fn a_running_sequence_without_the_state_after_its_tokens_is_noticed() {
    let scheduler = &mut stateful(TierLimits::default());
    let id = ask(scheduler, 9);
    let batch = scheduler.schedule(64).expect("it waits");
    drop(scheduler.commit(&batch, Results::default()));
    scheduler.check();
    scheduler.queues.sequences[id].holding.states.live = NONE;
    let message = panic_message(|| scheduler.check());
    assert!(
        message.contains("computed tokens have a state"),
        "{message}"
    );
}
