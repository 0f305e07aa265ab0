//! [`Compilations`]: places for the grammars that are compiled at once, which clients wait for in turn.

use crate::engine::request::SubmitError;
use crate::server::wire::error::ApiError;
use futures_channel::oneshot;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum grammars that are compiled at once, so that they leave most threads to other work.
const RUNNING_MAX: usize = 16;
/// Maximum of these that are one client's, if there are several.
const RUNNING_OF_CLIENT_MAX: usize = 4;
/// Maximum grammars of one client that wait. Their requests count against the memory of all requests meanwhile.
const WAITING_OF_CLIENT_MAX: usize = 256;

/// The grammars that are being compiled, and those that wait for it. A client that asks for many delays its own.
pub(crate) struct Compilations {
    queue: Arc<Mutex<Queue>>,
}

impl Compilations {
    /// For `clients` clients, each with an API key of its own.
    pub(crate) fn new(clients: usize) -> Self {
        let of_client_max = if clients > 1 {
            RUNNING_OF_CLIENT_MAX
        } else {
            RUNNING_MAX
        };
        Self {
            queue: Arc::new(Mutex::new(Queue {
                of_client_max,
                running: Vec::new(),
                waiting: VecDeque::new(),
            })),
        }
    }

    /// Waits for a place, which is taken for as long as it is kept.
    ///
    /// # Errors
    ///
    /// If too many grammars of this client wait already.
    pub(crate) async fn place(&self, client: u32) -> Result<Place, ApiError> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut queue = lock(&self.queue);
            queue.waiting.retain(|waiter| !waiter.place.is_canceled());
            if queue
                .waiting
                .iter()
                .filter(|waiter| waiter.client == client)
                .count()
                == WAITING_OF_CLIENT_MAX
            {
                let limit = WAITING_OF_CLIENT_MAX as u32;
                return Err(ApiError::refused(&SubmitError::Overloaded { limit }, &[]));
            }
            queue.waiting.push_back(Waiter {
                client,
                place: sender,
            });
        }
        give_places(&self.queue);
        receiver.await.map_err(|_| ApiError::internal())
    }
}

#[derive(Debug)]
struct Queue {
    of_client_max: usize,
    /// The client of each grammar that is being compiled.
    running: Vec<u32>,
    /// In the order in which they came.
    waiting: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    client: u32,
    place: oneshot::Sender<Place>,
}

impl Queue {
    /// Takes out the first waiter that may have a place, and counts it as running.
    fn next(&mut self) -> Option<Waiter> {
        if self.running.len() == RUNNING_MAX {
            return None;
        }
        let waiter = self
            .waiting
            .iter()
            .position(|waiter| self.running_of(waiter.client) < self.of_client_max)
            .and_then(|first| self.waiting.remove(first))?;
        self.running.push(waiter.client);
        Some(waiter)
    }

    fn running_of(&self, client: u32) -> usize {
        self.running
            .iter()
            .filter(|other| **other == client)
            .count()
    }
}

/// A place among the grammars that are compiled at once.
#[derive(Debug)]
pub(crate) struct Place {
    queue: Arc<Mutex<Queue>>,
    client: u32,
}

impl Drop for Place {
    fn drop(&mut self) {
        {
            let mut queue = lock(&self.queue);
            let own = queue
                .running
                .iter()
                .position(|client| *client == self.client);
            queue
                .running
                .swap_remove(own.expect("a place is counted while it is kept"));
        }
        give_places(&self.queue);
    }
}

/// Gives the free places to those that wait for one. The lock is not held while a place is given, because the place of
/// a client that has left is dropped here, which gives it to another.
fn give_places(queue: &Arc<Mutex<Queue>>) {
    loop {
        let Some(waiter) = lock(queue).next() else {
            return;
        };
        drop(waiter.place.send(Place {
            queue: queue.clone(),
            client: waiter.client,
        }));
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
