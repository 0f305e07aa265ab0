//! Tests of `text/grammar/watch.rs`.

use super::*;
use llguidance::CancellationHandle;

fn is_cancelled_within(cancel: &CancellationHandle, limit: Duration) -> bool {
    let start = Instant::now();
    while !cancel.is_cancelled() && start.elapsed() < limit {
        std::thread::sleep(Duration::from_millis(1));
    }
    cancel.is_cancelled()
}

#[test]
fn work_is_cancelled_at_its_limit_or_when_nobody_waits() {
    let (late, left, kept, done) = Default::default();
    let handles: [&CancellationHandle; 4] = [&late, &left, &kept, &done];
    let [waits, leaves] = [Waiting::default(), Waiting::default()];
    let watch = |handle: &CancellationHandle, limit, waiting| {
        let handle = handle.clone();
        watch(limit, waiting, move || handle.cancel())
    };
    let long = Duration::from_secs(600);
    let works = [
        watch(handles[0], Duration::from_millis(5), None),
        watch(handles[1], long, Some(leaves.watched())),
        watch(handles[2], long, Some(waits.watched())),
    ];
    drop(watch(handles[3], Duration::from_millis(30), None));
    drop(leaves);
    assert!(is_cancelled_within(handles[0], Duration::from_secs(20)));
    assert!(is_cancelled_within(handles[1], Duration::from_secs(20)));
    assert!(!is_cancelled_within(handles[2], Duration::from_millis(100)));
    assert!(!handles[3].is_cancelled(), "it had ended");
    drop(works);
}
