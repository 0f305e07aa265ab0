//! Tests of `text/python/time.rs`.

use super::*;

/// Dates come from requests, such as `keep_alive`.
#[test]
fn a_date_of_any_time_is_computed_at_once() {
    let start = std::time::Instant::now();
    let (mut days, mut last) = (0, (1969, 12, 31));
    while days < 400_000 {
        let date = civil(days);
        let follows = date.0 == last.0
            && (date.1 == last.1 && date.2 == last.2 + 1 || date.1 == last.1 + 1 && date.2 == 1);
        assert!(follows || date == (last.0 + 1, 1, 1), "{last:?} {date:?}");
        (days, last) = (days + 1, date);
    }
    assert!(
        strftime("%F", u64::MAX).ends_with("-09"),
        "of a year beyond all calendars"
    );
    assert!(start.elapsed().as_secs() < 5);
}
