//! Fairness when a step has room for only some of the sequences that could run.

use folio::engine::faults::InjectedFaults;
use folio::engine::request::{Request, SamplingParams};
use folio::engine::scheduler::{Limits, Scheduler};
use folio::engine::sequence::StreamId;
use folio::plan::inputs::{DrawParams, Results, SampleRow, Sampled};
use std::sync::Arc;

const SEQUENCES: u32 = 9;
const HISTORY: u32 = 4;

/// Limits with room for the penalty histories of two sequences per step.
fn limits() -> Limits {
    Limits {
        tokens_max: 64,
        sequences_max: SEQUENCES,
        feed_slots: 2 * SEQUENCES,
        table_entries_max: 1 << 10,
        history_max: 2 * HISTORY,
        bias_max: 16,
        scores_max: 4,
        block_size: 16,
        model_len_max: 256,
        vocab: 100,
        windows: vec![None],
        blocks: vec![1000],
        prefix_caching: true,
        deterministic: false,
        eos_token_ids: Vec::new(),
        hash_key: [3; 32],
    }
}

#[test]
fn everybody_gets_a_turn_where_a_step_has_room_for_two() {
    let mut scheduler = Scheduler::new(limits(), InjectedFaults::default());
    let draw = DrawParams { presence_penalty: 0.5, ..DrawParams::default() };
    let params = SamplingParams { draw, max_tokens: Some(200), ..SamplingParams::default() };
    for index in 0..SEQUENCES {
        let request = Request { prompt: (0..9).collect(), params: params.clone(), ..Request::default() };
        scheduler.add(Arc::new(request), &[StreamId(index.into())], index.into(), false);
    }
    // A history starts empty and grows to the number of different tokens drawn.
    let token = |row: &SampleRow| Sampled { token_id: row.position % HISTORY, ..Sampled::default() };
    let mut waited = [0; SEQUENCES as usize];
    let mut longest = 0;
    for _ in 0..200 {
        let batch = scheduler.schedule(limits().tokens_max).expect("some sequence can always continue");
        let inputs = scheduler.flatten(&batch);
        assert!(inputs.history.len() <= limits().history_max as usize, "a step stays within its arrays");
        waited.iter_mut().for_each(|steps| *steps += 1);
        // The seed identifies the sequence of the row.
        inputs.samples.iter().for_each(|row| waited[row.seed as usize] = 0);
        longest = longest.max(waited.into_iter().max().unwrap_or(0));
        let sampled = inputs.samples.iter().map(token).collect();
        drop(scheduler.commit(&batch, Results { sampled, ..Results::default() }));
        scheduler.check();
    }
    assert!(longest <= SEQUENCES, "{SEQUENCES} sequences, two a step, but one waited {longest} steps");
}
