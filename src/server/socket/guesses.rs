//! Slows down clients that guess API keys.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// Time that each wrong key of a peer costs, beyond the first few.
const INTERVAL: Duration = Duration::from_millis(500);
/// Wrong keys that a peer may send without delay: a mistyped key should not look like a hanging server.
const BURST: u32 = 5;
/// Longest delay of a response. A peer that is further ahead gets 429 at once.
const DELAY_MAX: Duration = Duration::from_secs(10);
/// Peers to remember; entries that have run out are dropped first.
const PEERS_MAX: usize = 4096;

/// The wrong keys of each peer. Right keys are not counted, so clients that share an address with a guesser (behind a
/// proxy, for example) are never delayed.
///
/// This is the generic cell rate algorithm: one time per peer, at which its wrong keys will have been worked off.
#[derive(Debug, Default)]
pub(super) struct Guesses {
    clear_at: Mutex<HashMap<IpAddr, Instant>>,
}

impl Guesses {
    /// Counts a wrong key. Returns how long to delay its response; `None` if the peer must be refused instead.
    pub(super) fn delay(&self, peer: IpAddr, now: Instant) -> Option<Duration> {
        let mut clear_at = self.clear_at.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if clear_at.len() >= PEERS_MAX {
            clear_at.retain(|_, time| *time > now);
        }
        if clear_at.len() >= PEERS_MAX {
            // So many guessers at once: who is dropped here only loses the memory of its guesses.
            clear_at.clear();
        }
        let time = clear_at.entry(network(peer)).or_insert(now);
        let backlog = time.saturating_duration_since(now);
        let delay = backlog.saturating_sub(INTERVAL * (BURST - 1));
        if delay > DELAY_MAX {
            return None;
        }
        *time = now + backlog + INTERVAL;
        Some(delay)
    }
}

/// One client usually owns a whole /64 of IPv6 addresses.
pub(super) fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_guesses_is_slowed_down_and_others_are_not() {
        let (guesses, start) = (Guesses::default(), Instant::now());
        let [peer, other] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse::<IpAddr>().expect("an address"));
        for _ in 0..BURST {
            assert_eq!(guesses.delay(peer, start), Some(Duration::ZERO));
        }
        assert_eq!(guesses.delay(peer, start), Some(INTERVAL));
        assert_eq!(guesses.delay(peer, start), Some(INTERVAL * 2));
        assert_eq!(guesses.delay(other, start), Some(Duration::ZERO));
        let delays: Vec<_> = (0..1000).map(|_| guesses.delay(peer, start)).collect();
        assert_eq!(delays.iter().flatten().max(), Some(&DELAY_MAX));
        assert_eq!(delays.last(), Some(&None), "refused");
        let later = start + DELAY_MAX + INTERVAL * 2 * BURST;
        assert_eq!(guesses.delay(peer, later), Some(Duration::ZERO), "forgiven");
    }

    #[test]
    fn addresses_of_one_network_are_one_peer() {
        let [a, b, c, v4] = ["2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1", "::ffff:10.0.0.1"]
            .map(|text| text.parse().expect(text));
        assert_eq!(network(a), network(b));
        assert_ne!(network(a), network(c));
        assert_eq!(network(v4), IpAddr::from([10, 0, 0, 1]));
    }

    #[test]
    fn the_number_of_peers_is_bounded() {
        let (guesses, now) = (Guesses::default(), Instant::now());
        for peer in 0..3 * PEERS_MAX as u32 {
            guesses.delay(IpAddr::from(peer.to_be_bytes()), now);
        }
        assert!(guesses.clear_at.lock().expect("no panic").len() <= PEERS_MAX);
    }
}
