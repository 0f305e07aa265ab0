//! Turns of clients: among waiting requests of one priority, nobody gets ahead by asking more often.
//!
//! Every request has a turn. A client's next request has a later one than its last, and none is earlier than the latest
//! that was admitted; so with one client turns are the order of arrival, and a client that comes to a long queue of
//! another is served after one request of it, not after all.

use std::collections::HashMap;

/// Who has which turn.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// The latest turn that was admitted.
    now: u64,
    /// Per client, the turn of its last request; one entry for each API key.
    last: HashMap<u32, u64>,
}

impl Turns {
    /// The turn of a client's next request.
    pub(super) fn next(&mut self, client: u32) -> u64 {
        let after = self.last.get(&client).map_or(0, |last| last + 1);
        let turn = after.max(self.now);
        self.last.insert(client, turn);
        turn
    }

    /// A request of this turn was admitted.
    pub(super) fn admitted(&mut self, turn: u64) {
        self.now = self.now.max(turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_is_served_as_it_comes_and_a_second_one_in_between() {
        let mut turns = Turns::default();
        let many: Vec<_> = (0..10).map(|_| turns.next(7)).collect();
        assert!(many.is_sorted_by(|a, b| a < b), "{many:?}");
        many[..4].iter().for_each(|&turn| turns.admitted(turn));
        let late: Vec<_> = (0..3).map(|_| turns.next(8)).collect();
        assert_eq!(late, [many[3], many[4], many[5]], "one of each in turn, from now on");
        assert!(turns.next(7) > many[9], "its own requests stay in order");
    }
}
