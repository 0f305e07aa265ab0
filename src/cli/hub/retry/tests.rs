//! Tests of `cli/hub/retry.rs`.

use super::*;

#[test]
fn waits_double_and_end() {
    let mut retry = Retry::default();
    let waits: Vec<u64> = std::iter::from_fn(|| retry.next(None))
        .map(|wait| wait.as_millis() as u64)
        .collect();
    assert_eq!(waits, [0, 250, 500, 1000, 2000]);
    let mut retry = Retry::default();
    assert_eq!(
        retry.next(Some(7)),
        Some(Duration::from_secs(7)),
        "the server's `Retry-After` takes precedence"
    );
    assert_eq!(retry.next(Some(61)), None, "within bounds");
    let mut retry = Retry::default();
    let after_progress = std::iter::from_fn(|| {
        retry.reset();
        retry.next(None)
    });
    assert_eq!(
        after_progress.count(),
        FAILURES_MAX as usize,
        "retries are bounded even with progress between failures"
    );
}
