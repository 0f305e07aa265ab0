//! Tests of `engine/memory/rates.rs`.

use super::*;

#[test]
fn the_cheaper_way_is_chosen_once_both_are_measured() {
    let mut rates = Rates::default();
    assert!(rates.favor_moving(1 << 30, 1), "nothing is known");
    rates.note_upload(1_000_000, Duration::from_millis(1));
    assert!(
        rates.favor_moving(1 << 30, 1),
        "the cost of computing is not known"
    );
    rates.note_prefill(100, Duration::from_millis(10));
    assert!(rates.favor_moving(3_000_000, 32), "3 ms against 3.2 ms");
    assert!(!rates.favor_moving(4_000_000, 32), "4 ms against 3.2 ms");
    assert!(rates.favor_reading(1 << 30, 1), "no file was read");
    rates.note_file(1_000_000, Duration::from_millis(2));
    assert!(rates.favor_reading(1_000_000, 32), "3 ms against 3.2 ms");
    assert!(!rates.favor_reading(2_000_000, 32), "6 ms against 3.2 ms");
    (0..50).for_each(|_| rates.note_prefill(100, Duration::from_millis(50)));
    assert!(
        rates.favor_moving(4_000_000, 32),
        "the device has become slower"
    );
}
