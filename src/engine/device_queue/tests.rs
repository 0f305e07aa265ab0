//! Tests of `engine/device_queue.rs`.

use super::*;
use futures_util::FutureExt as _;
use std::pin::pin;

#[test]
fn turns_go_round_in_order() {
    let queue = DeviceQueue::default();
    let first = queue.take().now_or_never().expect("nobody has it");
    let (mut second, mut third) = (pin!(queue.take()), pin!(queue.take()));
    assert!(second.as_mut().now_or_never().is_none() && third.as_mut().now_or_never().is_none());
    assert!(first.is_wanted());
    drop(first);
    let mut again = pin!(queue.take());
    assert!(again.as_mut().now_or_never().is_none() && third.as_mut().now_or_never().is_none());
    drop(second.now_or_never().expect("it is next"));
    let third = third.now_or_never().expect("it is next");
    drop(third);
    let again = again.now_or_never().expect("it is next");
    assert!(!again.is_wanted());
}

#[test]
fn an_engine_that_goes_is_passed_over() {
    let queue = DeviceQueue::default();
    let first = queue.take().now_or_never().expect("nobody has it");
    let mut gone = Box::pin(queue.take());
    assert!(gone.as_mut().now_or_never().is_none());
    let mut next = pin!(queue.take());
    assert!(next.as_mut().now_or_never().is_none());
    drop(gone);
    drop(first);
    let next = next.now_or_never().expect("it is next");
    drop(next);
    // One that goes after it was sent its turn hands it on.
    let first = queue.take().now_or_never().expect("nobody has it");
    let mut gone = Box::pin(queue.take());
    assert!(gone.as_mut().now_or_never().is_none());
    drop(first);
    drop(gone);
    assert!(queue.take().now_or_never().is_some());
}
