//! Tests of `server/wire/memory.rs`.

use super::*;

#[test]
fn what_is_charged_is_given_back_also_by_those_who_are_refused() {
    let memory = RequestMemory::new(100);
    let (first, second) = (memory.request(), memory.request());
    assert!(first.add(60).is_ok() && second.add(60).is_err());
    drop(second);
    assert!(memory.request().add(40).is_ok());
    drop(first);
    assert!(memory.request().add(100).is_ok());
    assert_eq!(memory.charged.load(Ordering::Acquire), 0);
}
