//! Which connections are open, and which one is closed to make room for another.
//!
//! A connection *waits* until a valid request of it is worked on, and again between two requests. Only connections that
//! wait are closed to make room, the one that has waited longest first; a request in progress never is. A request is
//! valid if it passed the guards (host, origin, key), so clients without a key cannot push out those that have one.

use super::guesses::network;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Maximum numbers of connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) total: usize,
    /// Of one peer, before their first valid request.
    pub(super) unproven_per_peer: usize,
}

/// When a connection began to wait, as a logical time.
type Ticket = u64;

/// A connection without a valid request in progress.
#[derive(Debug)]
struct Waiting {
    peer: IpAddr,
    /// It has sent a valid request before.
    proven: bool,
    /// It was asked to make room.
    asked: bool,
    /// Wakes the connection's task when it is asked.
    wake: Arc<Notify>,
}

/// What happens to a new connection.
#[derive(Debug)]
enum Admission {
    Admitted(Ticket),
    /// There is room once the connection with this ticket has closed or sent a valid request.
    After(Ticket),
    /// Every connection has a request in progress.
    Full,
}

/// All open connections, as plain data.
#[derive(Debug, Default)]
struct Places {
    open: usize,
    next: Ticket,
    waiting: BTreeMap<Ticket, Waiting>,
    /// Those of `waiting` that have never sent a valid request.
    unproven: HashMap<IpAddr, BTreeSet<Ticket>>,
}

impl Places {
    fn admit(&mut self, peer: IpAddr, limits: Limits, wake: &Arc<Notify>) -> Admission {
        let same_peer = self
            .unproven
            .get(&peer)
            .filter(|tickets| tickets.len() >= limits.unproven_per_peer);
        if let Some(oldest) = same_peer.and_then(BTreeSet::first) {
            return Admission::After(*oldest);
        }
        if self.open >= limits.total {
            return self
                .waiting
                .keys()
                .next()
                .map_or(Admission::Full, |oldest| Admission::After(*oldest));
        }
        self.open += 1;
        Admission::Admitted(self.wait(peer, false, wake.clone()))
    }

    /// A connection begins to wait.
    fn wait(&mut self, peer: IpAddr, proven: bool, wake: Arc<Notify>) -> Ticket {
        let ticket = self.next;
        self.next += 1;
        if !proven {
            self.unproven.entry(peer).or_default().insert(ticket);
        }
        self.waiting.insert(
            ticket,
            Waiting {
                peer,
                proven,
                asked: false,
                wake,
            },
        );
        ticket
    }

    /// A connection stops waiting.
    fn stop_waiting(&mut self, ticket: Ticket) {
        let Some(Waiting {
            peer,
            proven: false,
            ..
        }) = self.waiting.remove(&ticket)
        else {
            return;
        };
        if let Some(tickets) = self.unproven.get_mut(&peer) {
            tickets.remove(&ticket);
            if tickets.is_empty() {
                self.unproven.remove(&peer);
            }
        }
    }

    fn close(&mut self, ticket: Option<Ticket>) {
        if let Some(ticket) = ticket {
            self.stop_waiting(ticket);
        }
        self.open -= 1;
    }

    fn ask(&mut self, ticket: Ticket) {
        if let Some(waiting) = self.waiting.get_mut(&ticket) {
            waiting.asked = true;
            waiting.wake.notify_one();
        }
    }
}

/// The connections of one server.
#[derive(Debug)]
pub(super) struct Connections {
    limits: Limits,
    places: Mutex<Places>,
    /// A connection closed, or stopped or began to wait.
    changed: Notify,
}

impl Connections {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            places: Mutex::default(),
            changed: Notify::new(),
        })
    }

    /// A seat for a new connection; `None` if every connection has a request in progress.
    ///
    /// The connection that makes room is asked, not cut off: its task first reads what has already arrived, and if that
    /// is a valid request, it stays and the next one is asked. So a client that opens many connections at once and
    /// sends its requests right away loses none.
    pub(super) async fn admit(self: &Arc<Self>, peer: IpAddr) -> Option<Seat> {
        let (peer, wake) = (network(peer), Arc::new(Notify::new()));
        loop {
            // Created before the check, so that no change is missed.
            let changed = self.changed.notified();
            let admission = self.lock().admit(peer, self.limits, &wake);
            match admission {
                Admission::Admitted(ticket) => {
                    return Some(Seat {
                        connections: self.clone(),
                        peer,
                        ticket: Mutex::new(Some(ticket)),
                        wake,
                    });
                }
                Admission::After(ticket) => self.lock().ask(ticket),
                Admission::Full => return None,
            }
            changed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One open connection; closed when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    connections: Arc<Connections>,
    peer: IpAddr,
    /// `None` while a valid request is in progress.
    ticket: Mutex<Option<Ticket>>,
    wake: Arc<Notify>,
}

impl Seat {
    /// A valid request begins.
    pub(super) fn begin(&self) {
        if let Some(ticket) = self.ticket().take() {
            self.connections.lock().stop_waiting(ticket);
            self.connections.changed.notify_waiters();
        }
    }

    /// The request has been answered. A connection that still waits, because its request was refused, keeps its ticket.
    pub(super) fn end(&self) {
        let mut ticket = self.ticket();
        if ticket.is_none() {
            *ticket = Some(
                self.connections
                    .lock()
                    .wait(self.peer, true, self.wake.clone()),
            );
            self.connections.changed.notify_waiters();
        }
    }

    /// Completes when this connection must close to make room.
    pub(super) async fn must_close(&self) {
        while !self.is_asked() {
            self.wake.notified().await;
        }
    }

    fn is_asked(&self) -> bool {
        let ticket = *self.ticket();
        ticket.is_some_and(|ticket| {
            self.connections
                .lock()
                .waiting
                .get(&ticket)
                .is_some_and(|waiting| waiting.asked)
        })
    }

    fn ticket(&self) -> MutexGuard<'_, Option<Ticket>> {
        self.ticket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let ticket = self.ticket().take();
        self.connections.lock().close(ticket);
        self.connections.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        total: 1024,
        unproven_per_peer: 64,
    };

    fn peer(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    /// Admits a connection; the tickets of those that had to close for it come first.
    fn admit(places: &mut Places, peer: IpAddr, limits: Limits) -> (Vec<Ticket>, Option<Ticket>) {
        let mut closed = Vec::new();
        loop {
            match places.admit(peer, limits, &Arc::default()) {
                Admission::Admitted(ticket) => return (closed, Some(ticket)),
                Admission::Full => return (closed, None),
                Admission::After(ticket) => {
                    places.ask(ticket);
                    assert!(places.waiting[&ticket].asked);
                    places.close(Some(ticket));
                    closed.push(ticket);
                }
            }
        }
    }

    #[test]
    fn a_peer_replaces_its_own_oldest_connection() {
        let mut places = Places::default();
        let other = admit(&mut places, peer(2), LIMITS)
            .1
            .expect("there is room");
        let mut closed = Vec::new();
        for _ in 0..1400 {
            closed.extend(admit(&mut places, peer(1), LIMITS).0);
        }
        assert_eq!(
            closed,
            (1..=1400 - 64).collect::<Vec<_>>(),
            "the oldest first"
        );
        assert!(
            places.waiting.contains_key(&other),
            "another peer is not affected"
        );
        assert_eq!((places.open, places.unproven[&peer(1)].len()), (65, 64));
    }

    #[test]
    fn requests_in_progress_are_never_closed_and_count_for_no_peer() {
        let (mut places, limits) = (
            Places::default(),
            Limits {
                total: 3,
                unproven_per_peer: 1,
            },
        );
        for _ in 0..2 {
            let ticket = admit(&mut places, peer(1), limits)
                .1
                .expect("there is room");
            places.stop_waiting(ticket);
        }
        let (closed, idle) = admit(&mut places, peer(1), limits);
        assert_eq!((closed.len(), idle.is_some()), (0, true));
        let (closed, next) = admit(&mut places, peer(2), limits);
        assert_eq!(
            closed,
            [idle.expect("it was admitted")],
            "the total counts all"
        );
        places.stop_waiting(next.expect("it was admitted"));
        assert_eq!(
            admit(&mut places, peer(3), limits),
            (Vec::new(), None),
            "all are in progress"
        );
        places.close(None);
        assert!(admit(&mut places, peer(3), limits).1.is_some());
    }

    #[test]
    fn between_requests_the_one_that_waits_longest_makes_room() {
        let (mut places, limits) = (
            Places::default(),
            Limits {
                total: 3,
                unproven_per_peer: 64,
            },
        );
        let tickets: Vec<Ticket> = (0..3)
            .filter_map(|number| admit(&mut places, peer(number), limits).1)
            .collect();
        places.stop_waiting(tickets[0]);
        let again = places.wait(peer(0), true, Arc::default());
        assert_eq!(admit(&mut places, peer(9), limits).0, [tickets[1]]);
        assert_eq!(admit(&mut places, peer(9), limits).0, [tickets[2]]);
        assert_eq!(admit(&mut places, peer(9), limits).0, [again]);
    }

    #[test]
    fn what_has_closed_is_forgotten() {
        let mut places = Places::default();
        for number in 0..100 {
            let ticket = admit(&mut places, peer(number), LIMITS).1;
            places.close(ticket);
        }
        assert!(places.open == 0 && places.waiting.is_empty() && places.unproven.is_empty());
    }

    #[tokio::test]
    async fn a_request_that_has_arrived_keeps_its_connection() {
        let connections = Connections::new(Limits {
            total: 2,
            unproven_per_peer: 2,
        });
        let busy = connections.admit(peer(1)).await.expect("there is room");
        let idle = connections.admit(peer(1)).await.expect("there is room");
        let newcomer = tokio::spawn({
            let connections = connections.clone();
            async move { connections.admit(peer(1)).await.is_some() }
        });
        busy.must_close().await;
        busy.begin();
        idle.must_close().await;
        drop(idle);
        assert!(newcomer.await.expect("no panic"));
        busy.end();
        assert!(busy.ticket().is_some());
    }
}
