//! Tests of `server/state/compilations.rs`.

use super::*;
use futures_util::FutureExt as _;

#[test]
fn a_client_that_compiles_many_grammars_delays_its_own_only() {
    let compilations = Compilations::new(2);
    let mut asked: Vec<_> = (0..RUNNING_MAX)
        .map(|_| Box::pin(compilations.place(0)))
        .collect();
    let running: Vec<_> = asked
        .iter_mut()
        .filter_map(futures_util::FutureExt::now_or_never)
        .collect();
    assert_eq!(running.len(), RUNNING_OF_CLIENT_MAX);
    let other = compilations
        .place(1)
        .now_or_never()
        .expect("it does not wait")
        .expect("it is not refused");
    drop(running);
    let next = asked
        .iter_mut()
        .skip(RUNNING_OF_CLIENT_MAX)
        .filter_map(futures_util::FutureExt::now_or_never)
        .count();
    assert_eq!(
        next,
        RUNNING_MAX - RUNNING_OF_CLIENT_MAX,
        "each that ends lets another begin"
    );
    drop(other);
    assert!(
        lock(&compilations.queue).running.is_empty(),
        "no place is lost"
    );
}

#[test]
fn a_single_client_has_all_places_and_those_who_left_take_none() {
    let compilations = Compilations::new(1);
    let mut asked: Vec<_> = (0..RUNNING_MAX + 3)
        .map(|_| Box::pin(compilations.place(0)))
        .collect();
    let running: Vec<_> = asked
        .iter_mut()
        .filter_map(futures_util::FutureExt::now_or_never)
        .collect();
    assert_eq!(running.len(), RUNNING_MAX);
    let last = asked.pop().expect("it waits");
    asked.truncate(RUNNING_MAX);
    drop(running);
    assert!(last.now_or_never().is_some_and(|place| place.is_ok()));
    assert!(lock(&compilations.queue).running.is_empty());
}

#[test]
fn a_client_with_too_many_waiting_grammars_is_refused_and_others_are_not() {
    let compilations = Compilations::new(2);
    let mut asked: Vec<_> = (0..RUNNING_OF_CLIENT_MAX + WAITING_OF_CLIENT_MAX)
        .map(|_| Box::pin(compilations.place(0)))
        .collect();
    let running: Vec<_> = asked
        .iter_mut()
        .filter_map(futures_util::FutureExt::now_or_never)
        .collect();
    assert_eq!(running.len(), RUNNING_OF_CLIENT_MAX);
    assert!(
        compilations
            .place(0)
            .now_or_never()
            .is_some_and(|place| place.is_err())
    );
    assert!(
        compilations
            .place(1)
            .now_or_never()
            .is_some_and(|place| place.is_ok())
    );
}
