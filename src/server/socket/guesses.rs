//! Slows down clients that guess API keys.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Time that each wrong key of an address costs, beyond the first few.
const INTERVAL: Duration = Duration::from_millis(500);
/// Wrong keys that an address may send without delay: a mistyped key should not look like a hanging server.
const BURST: u32 = 5;
/// Longest wait of a request. An address that is further behind gets 429 at once.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// How long a key that was right from an address is not waited with.
const RIGHT_FOR: Duration = Duration::from_secs(60 * 60);
/// Right keys to remember of an address.
const RIGHT_MAX: usize = 64;
/// Addresses to remember; entries that have run out are dropped first.
const ADDRESSES_MAX: usize = 4096;

/// Digest of the headers that carry a key.
pub(super) type KeyDigest = [u8; 32];

/// The keys that each address sends.
///
/// Once an address has used its allowance, a request waits before its key is looked at, unless that key was right from
/// the address within the last hour. So neither the time nor the order of answers tells whether a key is right, and
/// clients that share an address with a guesser go on with their keys.
///
/// This is the generic cell rate algorithm: one time per address, at which its wrong keys will have been worked off.
#[derive(Debug, Default)]
pub(super) struct Guesses {
    addresses: Mutex<HashMap<IpAddr, Address>>,
}

#[derive(Debug)]
struct Address {
    clear_at: Instant,
    /// Keys that were right, with the last time.
    right: Vec<(KeyDigest, Instant)>,
}

/// When a request's key is looked at.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// At once.
    Now,
    /// After this time. If the key is right then, [`Guesses::right`] gives the turn back.
    After(Duration),
    /// Not at all: the address is this far behind.
    Refused(Duration),
}

impl Address {
    fn new(now: Instant) -> Self {
        Self {
            clear_at: now,
            right: Vec::new(),
        }
    }

    fn is_right(&self, key: &KeyDigest, now: Instant) -> bool {
        self.right
            .iter()
            .any(|(right, last)| right == key && now.saturating_duration_since(*last) < RIGHT_FOR)
    }

    /// How long the next wrong key waits, without the allowance.
    fn wait(&self, now: Instant) -> Duration {
        self.clear_at
            .saturating_duration_since(now)
            .saturating_sub(INTERVAL * (BURST - 1))
    }

    fn count(&mut self, now: Instant) {
        self.clear_at = self.clear_at.max(now) + INTERVAL;
    }

    fn is_forgotten(&self, now: Instant) -> bool {
        self.clear_at <= now
            && self
                .right
                .iter()
                .all(|(_, last)| now.saturating_duration_since(*last) >= RIGHT_FOR)
    }
}

impl Guesses {
    /// When the key of a request from this address is looked at. A request that waits is counted as a wrong key, so
    /// that many at once wait for one another.
    pub(super) fn judge(&self, address: IpAddr, key: &KeyDigest, now: Instant) -> Verdict {
        let mut addresses = self.lock();
        let Some(address) = addresses.get_mut(&network(address)) else {
            return Verdict::Now;
        };
        let wait = address.wait(now);
        if wait.is_zero() || address.is_right(key, now) {
            return Verdict::Now;
        }
        if wait > WAIT_MAX {
            return Verdict::Refused(wait - WAIT_MAX);
        }
        address.count(now);
        Verdict::After(wait)
    }

    /// Counts a wrong key whose turn came at once.
    pub(super) fn wrong(&self, address: IpAddr, now: Instant) {
        Self::of(&mut self.lock(), address, now).count(now);
    }

    /// Remembers a right key. `waited`: its turn came later.
    pub(super) fn right(&self, address: IpAddr, key: &KeyDigest, waited: bool, now: Instant) {
        let mut addresses = self.lock();
        let address = Self::of(&mut addresses, address, now);
        if waited {
            address.clear_at -= INTERVAL;
        }
        match address.right.iter_mut().find(|(right, _)| right == key) {
            Some((_, last)) => *last = now,
            None => {
                if address.right.len() == RIGHT_MAX {
                    let oldest = (0..RIGHT_MAX).min_by_key(|index| address.right[*index].1);
                    oldest.map(|index| address.right.swap_remove(index));
                }
                address.right.push((*key, now));
            }
        }
    }

    fn of(addresses: &mut HashMap<IpAddr, Address>, address: IpAddr, now: Instant) -> &mut Address {
        if addresses.len() >= ADDRESSES_MAX {
            addresses.retain(|_, address| !address.is_forgotten(now));
        }
        if addresses.len() >= ADDRESSES_MAX {
            // So many addresses at once: who is dropped here only loses the memory of its keys.
            addresses.clear();
        }
        addresses
            .entry(network(address))
            .or_insert_with(|| Address::new(now))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Address>> {
        self.addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
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
mod tests;
