//! The order of requests, and fairness when a step has room for only some of the sequences that could run.

use folio::engine::memory::{MemoryLimits, TierLimits};
use folio::engine::request::{Request, SamplingParams};
use folio::engine::scheduler::{Limits, Phase, Scheduler};
use folio::engine::sequence::StreamId;
use folio::plan::inputs::{DrawParams, Results, SampleRow, Sampled};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const SEQUENCES: u32 = 9;
const HISTORY: u32 = 4;

/// Limits with room for the penalty histories of two sequences per step.
pub(crate) fn limits() -> Limits {
    Limits {
        tokens_max: 64,
        max_num_seqs: SEQUENCES,
        sequences_max: SEQUENCES,
        adapter_slots: 0,
        image_rows: 0,
        patches_max: 0,
        feed_slots: 2 * SEQUENCES,
        table_entries_max: 1 << 10,
        history_max: 2 * HISTORY,
        bias_max: 16,
        scores_max: 4,
        max_model_len: 256,
        vocab: 100,
        deterministic: false,
        speculation: None,
        eos_token_ids: Vec::new(),
        memory: MemoryLimits {
            state_slots: 0,
            block_size: 16,
            windows: vec![None],
            blocks: vec![1000],
            prefix_caching: true,
            hash_key: [3; 32],
            shared_key: [3; 32],
            tiers: TierLimits::default(),
        },
    }
}

#[test]
fn everybody_gets_a_turn_where_a_step_has_room_for_two() {
    let mut scheduler = Scheduler::new(limits());
    let draw = DrawParams {
        presence_penalty: 0.5,
        ..DrawParams::default()
    };
    let params = SamplingParams {
        draw,
        max_tokens: Some(200),
        ..SamplingParams::default()
    };
    for index in 0..SEQUENCES {
        let request = Request {
            prompt: (0..9).collect(),
            params: params.clone(),
            ..Request::default()
        };
        scheduler.add(
            Arc::new(request),
            &[StreamId(index.into())],
            index.into(),
            false,
        );
    }
    // A history starts empty and grows to the number of different tokens drawn.
    let token = |row: &SampleRow| Sampled {
        token_id: row.position % HISTORY,
        ..Sampled::default()
    };
    let mut waited = [0; SEQUENCES as usize];
    let mut longest = 0;
    for _ in 0..200 {
        let batch = scheduler
            .schedule(limits().tokens_max)
            .expect("some sequence can always continue");
        let inputs = scheduler.flatten(&batch);
        assert!(
            inputs.history.len() <= limits().history_max as usize,
            "a step stays within its arrays"
        );
        waited.iter_mut().for_each(|steps| *steps += 1);
        // The seed identifies the sequence of the row.
        inputs
            .samples
            .iter()
            .for_each(|row| waited[row.seed as usize] = 0);
        longest = longest.max(waited.into_iter().max().unwrap_or(0));
        let sampled = inputs.samples.iter().map(token).collect();
        drop(scheduler.commit(
            &batch,
            Results {
                sampled,
                ..Results::default()
            },
        ));
        scheduler.check();
    }
    assert!(
        longest <= SEQUENCES,
        "{SEQUENCES} sequences, two a step, but one waited {longest} steps"
    );
}

/// A client's request: its priority, and after how many served requests it arrives.
struct Visit {
    client: u32,
    priority: i32,
    after: usize,
}

/// The order in which requests are served, one at a time.
fn served(visits: &[Visit]) -> Vec<u64> {
    let mut scheduler = Scheduler::new(Limits {
        max_num_seqs: 1,
        feed_slots: 2,
        ..limits()
    });
    let mut order = Vec::new();
    while order.len() < visits.len() {
        for (index, visit) in visits
            .iter()
            .enumerate()
            .filter(|(_, visit)| visit.after == order.len())
        {
            let params = SamplingParams {
                max_tokens: Some(1),
                ..SamplingParams::default()
            };
            let (client, priority) = (visit.client, visit.priority);
            let request = Request {
                prompt: [1, 2, 3].into(),
                params,
                client,
                priority,
                ..Request::default()
            };
            scheduler.add(
                Arc::new(request),
                &[StreamId(index as u64)],
                index as u64,
                false,
            );
        }
        let batch = scheduler
            .schedule(limits().tokens_max)
            .expect("a request waits");
        // The seed identifies the request.
        order.extend(scheduler.flatten(&batch).samples.iter().map(|row| row.seed));
        drop(scheduler.commit(
            &batch,
            Results {
                sampled: vec![Sampled::default()],
                ..Results::default()
            },
        ));
    }
    order
}

#[test]
fn clients_take_turns_in_order_of_arrival() {
    let visit = |client| Visit {
        client,
        priority: 0,
        after: 0,
    };
    assert_eq!(
        served(&[1, 1, 1, 2, 2, 3].map(visit)),
        [0, 3, 5, 1, 4, 2],
        "one of each client, first come, first served"
    );
    let urgent = [
        visit(1),
        Visit {
            priority: -1,
            ..visit(1)
        },
        visit(2),
    ];
    assert_eq!(
        served(&urgent),
        [1, 0, 2],
        "a lower priority value goes before any turn"
    );
    let late = [visit(1), visit(1), visit(1), visit(1)]
        .into_iter()
        .chain([(); 3].map(|()| Visit {
            after: 2,
            ..visit(2)
        }));
    let late: Vec<_> = late.collect();
    assert_eq!(
        served(&late),
        [0, 1, 4, 2, 5, 3, 6],
        "a newcomer joins the turn that is being served"
    );
}

#[test]
fn who_was_preempted_is_not_the_next_victim() {
    // A short request, and three that grow until the pool is too small for them.
    let limits = Limits {
        memory: MemoryLimits {
            block_size: 4,
            blocks: vec![10],
            prefix_caching: false,
            ..limits().memory
        },
        ..limits()
    };
    let mut scheduler = Scheduler::new(limits);
    for (stream, max_tokens) in [(0, 9), (1, 30), (2, 30), (3, 30)] {
        let params = SamplingParams {
            max_tokens: Some(max_tokens),
            ..SamplingParams::default()
        };
        let request = Request {
            prompt: [1, 2, 3].into(),
            params,
            ..Request::default()
        };
        scheduler.add(Arc::new(request), &[StreamId(stream)], stream, false);
    }
    let mut preempted = Vec::new();
    let mut running = BTreeSet::new();
    while preempted.len() < 2 {
        let batch = scheduler
            .schedule(64)
            .expect("some sequence can always continue");
        let inputs = scheduler.flatten(&batch);
        let sampled = vec![Sampled::default(); inputs.samples.len()];
        drop(scheduler.commit(
            &batch,
            Results {
                sampled,
                ..Results::default()
            },
        ));
        let phases = (0..4).map(|stream| (stream, scheduler.phase(StreamId(stream))));
        let (queued, now): (BTreeMap<_, _>, BTreeMap<_, _>) = phases
            .filter_map(|(stream, phase)| Some((stream, phase?)))
            .partition(|(_, phase)| *phase == Phase::Queued);
        preempted.extend(queued.into_keys().filter(|stream| running.contains(stream)));
        running = now.into_keys().collect();
    }
    assert_eq!(
        preempted,
        [3, 2],
        "first the youngest, then the youngest of those who were not preempted before"
    );
}

#[test]
fn as_many_rows_run_as_their_biases_fit() {
    let mut scheduler = Scheduler::new(Limits {
        bias_max: 16,
        ..limits()
    });
    for index in 0..3 {
        let params = SamplingParams {
            max_tokens: Some(9),
            min_tokens: 5,
            logit_bias: [(1, 1.0), (2, 1.0)].into(),
            stop_token_ids: (10..15).collect(),
            ..SamplingParams::default()
        };
        let request = Request {
            prompt: [1, 2, 3].into(),
            params,
            ..Request::default()
        };
        scheduler.add(Arc::new(request), &[StreamId(index)], index, false);
    }
    for _ in 0..3 {
        let batch = scheduler
            .schedule(64)
            .expect("some sequence can always continue");
        let inputs = scheduler.flatten(&batch);
        assert_eq!(
            (inputs.samples.len(), inputs.bias.len()),
            (2, 14),
            "two rows of seven biases fit sixteen"
        );
        drop(scheduler.commit(
            &batch,
            Results {
                sampled: vec![Sampled::default(); 2],
                ..Results::default()
            },
        ));
    }
}
