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
mod tests;
