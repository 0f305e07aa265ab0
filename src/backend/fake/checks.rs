//! What the fake device asserts of every batch: a violation is a bug of the engine.

use super::FakeBackend;
use crate::backend::Capacity;
use crate::plan::inputs::{BatchInputs, GroupInputs, NONE};
use std::collections::BTreeSet;

impl FakeBackend {
    /// Asserts that a batch keeps to everything that a device relies on.
    pub(super) fn check(&self, inputs: &BatchInputs) {
        let capacity = self
            .capacity
            .as_ref()
            .expect("a loaded device has a capacity");
        check_counts(inputs, capacity);
        assert_eq!(
            inputs.groups.len(),
            self.pool.len(),
            "every KV group has its arrays"
        );
        check_rows(inputs);
        check_samples(inputs);
        if inputs.carried.is_empty() {
            self.states.check(inputs);
        } else {
            self.predictor.check(inputs);
        }
        for (arrays, pool) in inputs.groups.iter().zip(&self.pool) {
            check_writes(arrays, inputs.token_ids.len(), pool.len());
        }
    }
}

fn check_counts(inputs: &BatchInputs, capacity: &Capacity) {
    let of_groups = |what, count: fn(&GroupInputs) -> usize, max| {
        let most = inputs.groups.iter().map(count).max().unwrap_or(0);
        (what, most, max)
    };
    for (what, count, max) in [
        ("token rows", inputs.token_ids.len(), capacity.tokens_max),
        ("sequences", inputs.sequences.len(), capacity.sequences_max),
        ("sample rows", inputs.samples.len(), capacity.samples_max),
        ("pool rows", inputs.pools.len(), capacity.sequences_max),
        ("history", inputs.history.len(), capacity.history_max),
        ("biases", inputs.bias.len(), capacity.bias_max),
        ("masks", inputs.masks.len(), capacity.mask_words_max),
        of_groups(
            "tables",
            |arrays| arrays.block_tables.len(),
            capacity.table_entries_max,
        ),
        of_groups("copies", |arrays| arrays.copies.len(), capacity.copies_max),
    ] {
        assert!(is_within(count, max), "{what} are within capacity");
    }
}

/// Checks that sequences cover the token rows, and that pool rows name some.
fn check_rows(inputs: &BatchInputs) {
    assert_eq!(
        inputs.positions.len(),
        inputs.token_ids.len(),
        "every token has a position"
    );
    let mut next_row = 0;
    for rows in &inputs.sequences {
        assert_eq!(
            rows.row_start, next_row,
            "sequences cover the rows in order"
        );
        next_row += rows.row_count;
        let last = inputs.positions[next_row as usize - 1];
        assert_eq!(
            rows.context_len,
            last + 1,
            "the context ends with the last row"
        );
    }
    assert!(
        is_within(next_row as usize, inputs.token_ids.len() as u32),
        "sequences cover the rows"
    );
    let mut pools = inputs.pools.iter();
    assert!(
        pools.all(|pool| pool.row_count > 0 && pool.row_start + pool.row_count <= next_row),
        "pool rows name token rows"
    );
}

fn check_samples(inputs: &BatchInputs) {
    assert!(
        inputs.samples.is_sorted_by_key(|sample| sample.logits_row),
        "samples are sorted by logits row"
    );
    let logits_rows = inputs.logits_rows.len() as u32;
    let mut samples = inputs.samples.iter();
    assert!(
        samples.all(|sample| sample.logits_row < logits_rows),
        "samples name logits rows"
    );
    let slots = inputs
        .samples
        .iter()
        .map(|sample| sample.feed_slot)
        .filter(|&slot| slot != NONE);
    let distinct: BTreeSet<_> = slots.clone().collect();
    assert_eq!(
        distinct.len(),
        slots.count(),
        "feed slots of a batch are distinct"
    );
}

fn is_within(length: usize, limit: u32) -> bool {
    length <= limit as usize
}

fn check_writes(arrays: &GroupInputs, rows: usize, slots: usize) {
    assert_eq!(arrays.slot_mapping.len(), rows, "every row has a slot");
    let written: BTreeSet<_> = arrays.slot_mapping.iter().collect();
    assert_eq!(written.len(), rows, "no slot is written twice in a batch");
    assert!(
        written.iter().all(|&&slot| (slot as usize) < slots),
        "slots lie in the pool"
    );
    let sources: BTreeSet<_> = arrays.copies.iter().map(|copy| copy.0).collect();
    let targets: BTreeSet<_> = arrays.copies.iter().map(|copy| copy.1).collect();
    assert_eq!(
        targets.len(),
        arrays.copies.len(),
        "targets of copies are distinct"
    );
    assert!(
        sources.is_disjoint(&targets),
        "no block is both source and target of a copy"
    );
}
