//! Tests of `platform/mod.rs`.

use super::*;
use std::sync::mpsc::{Sender, channel};
use std::thread::{ThreadId, current};

/// Tells which thread frees it.
struct Told(Sender<ThreadId>);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.send(current().id()).expect("the test waits");
    }
}

#[test]
fn what_is_discarded_is_freed_on_another_thread() {
    let (sender, receiver) = channel();
    discard(Told(sender));
    assert_ne!(receiver.recv().expect("it is freed"), current().id());
}
