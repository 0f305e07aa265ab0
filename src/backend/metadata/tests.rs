//! Tests of `backend/metadata.rs`.

use super::*;
use std::collections::{BTreeMap, BTreeSet};

/// The words of a record are named `<RECORD>_…`, and `<RECORD>_WORDS` is their number.
#[test]
fn every_record_has_room_for_its_words_and_no_two_share_one() {
    let table: BTreeMap<_, _> = TABLE.iter().copied().collect();
    assert_eq!(table.len(), TABLE.len(), "names are unique");
    let records = table
        .iter()
        .filter_map(|(name, words)| Some((name.strip_suffix("_WORDS")?, *words)));
    let mut named = 0;
    for (record, words) in records {
        let prefix = format!("{record}_");
        let fields = TABLE
            .iter()
            .filter(|(name, _)| name.starts_with(&prefix) && !name.ends_with("_WORDS"));
        let places: Vec<u32> = fields.map(|(_, place)| *place).collect();
        assert!(
            places.iter().all(|place| *place < words),
            "{record}: {places:?} lie within {words} words"
        );
        assert_eq!(
            places.iter().collect::<BTreeSet<_>>().len(),
            places.len(),
            "{record}: {places:?} are distinct"
        );
        named += places.len();
    }
    // Fifteen widths, six values, and the word that a merge item has in place of another.
    assert_eq!(
        named + 15 + 6 + 1,
        TABLE.len(),
        "all others are words of a record"
    );
    const {
        assert!(
            META_STATES < META_GROUPS,
            "the records of groups come last in the header"
        );
    };
}

#[test]
fn floats_and_both_halves_of_a_seed_are_kept() {
    let mut row = SampleRow {
        seed: 3 << 32 | 5,
        scored_token: 7,
        ..SampleRow::greedy(1, 2)
    };
    row.draw.min_p = 0.25;
    let words = sample_record(&row);
    let at = |field: u32| words[field as usize];
    assert_eq!(
        [SAMPLE_LOGITS_ROW, SAMPLE_POSITION, SAMPLE_SCORED_TOKEN].map(at),
        [1, 2, 7]
    );
    assert_eq!(
        [SAMPLE_SEED_LOW, SAMPLE_SEED_HIGH, SAMPLE_PENDING_SLOT].map(at),
        [5, 3, NONE]
    );
    assert_eq!(
        [SAMPLE_MIN_P, SAMPLE_TOP_P].map(|field| f32::from_bits(at(field))),
        [0.25, 1.0]
    );
}
