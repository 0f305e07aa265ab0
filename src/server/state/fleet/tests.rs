//! Tests of `server/state/fleet.rs`.

use super::*;
use std::cell::Cell;

#[test]
fn work_goes_on_after_a_panic() {
    let (tries, recoveries) = (Cell::new(0), Cell::new(0));
    let work = || {
        tries.set(tries.get() + 1);
        assert!(tries.get() == 3, "the first two panic");
    };
    survive(work, || recoveries.set(recoveries.get() + 1));
    assert_eq!((tries.get(), recoveries.get()), (3, 2));
}
