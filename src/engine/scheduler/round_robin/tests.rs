//! Tests of `engine/scheduler/round_robin.rs`.

use super::*;

#[test]
fn one_client_is_served_as_it_comes_and_a_second_one_in_between() {
    let mut rounds = RoundRobin::default();
    let many: Vec<_> = (0..10).map(|_| rounds.next(7)).collect();
    assert!(many.is_sorted_by(|a, b| a < b), "{many:?}");
    many[..4].iter().for_each(|&round| rounds.admitted(round));
    let late: Vec<_> = (0..3).map(|_| rounds.next(8)).collect();
    assert_eq!(
        late,
        [many[3], many[4], many[5]],
        "from now on, the clients alternate"
    );
    assert!(
        rounds.next(7) > many[9],
        "a client's own requests stay in order"
    );
}
