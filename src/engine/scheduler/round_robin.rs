//! Fairness between clients: waiting requests of one priority are served round-robin by client, so that no client gains
//! by sending more requests.
//!
//! Every request belongs to a round. A client's next request is in a later round than its last, and never in one before
//! the latest that was admitted. With one client, rounds are the order of arrival. A client that arrives behind another
//! client's long queue waits for one request of it, not for all.

use std::collections::HashMap;

/// The current round of each client.
#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    /// Latest admitted round.
    now: u64,
    /// Round of each client's last request; one entry for each API key.
    last: HashMap<u32, u64>,
}

impl RoundRobin {
    /// The round of a client's next request.
    pub(super) fn next(&mut self, client: u32) -> u64 {
        let after = self.last.get(&client).map_or(0, |last| last + 1);
        let round = after.max(self.now);
        let last = self.last.insert(client, round);
        debug_assert!(
            last.is_none_or(|last| last < round),
            "a client's requests stay in order"
        );
        round
    }

    /// Records that a request of this round was admitted.
    pub(super) fn admitted(&mut self, round: u64) {
        debug_assert!(
            self.last.values().any(|last| round <= *last),
            "an admitted request was given its round"
        );
        self.now = self.now.max(round);
    }
}

#[cfg(test)]
mod tests;
