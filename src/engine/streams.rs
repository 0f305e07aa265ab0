//! The senders of all live choices. However the engine ends, each of them gets its terminal event.

use super::request::{Event, RequestError};
use super::sequence::StreamId;
use futures_channel::mpsc;
use std::collections::BTreeMap;

/// Senders by stream; a choice is here until its terminal event is sent or its reader has gone.
#[derive(Debug)]
pub(super) struct Streams {
    live: BTreeMap<StreamId, mpsc::Sender<Event>>,
    next: u64,
    /// What is sent to those that are still live when the engine goes.
    last_words: RequestError,
}

impl Streams {
    pub(super) fn new() -> Self {
        Self { live: BTreeMap::new(), next: 0, last_words: RequestError::Internal }
    }

    /// Takes the senders of one request.
    pub(super) fn open(&mut self, senders: Vec<mpsc::Sender<Event>>) -> Vec<StreamId> {
        let first = self.next;
        self.next += senders.len() as u64;
        let ids: Vec<_> = (first..self.next).map(StreamId).collect();
        self.live.extend(ids.iter().copied().zip(senders));
        ids
    }

    /// Sends events on. A sender has room for all its choice can produce, so a failed send means that the reader has
    /// gone, which [`Streams::take_closed`] will tell.
    pub(super) fn send(&mut self, events: Vec<(StreamId, Event)>) {
        for (stream, event) in events {
            let is_terminal = matches!(event, Event::Finished { .. } | Event::Failed(_));
            if let Some(sender) = self.live.get_mut(&stream) {
                drop(sender.try_send(event));
            }
            if is_terminal {
                self.live.remove(&stream);
            }
        }
    }

    /// Forgets the choices whose readers have gone and names them.
    pub(super) fn take_closed(&mut self) -> Vec<StreamId> {
        let closed: Vec<_> = self.live.iter().filter(|(_, sender)| sender.is_closed()).map(|(&id, _)| id).collect();
        closed.iter().for_each(|id| drop(self.live.remove(id)));
        closed
    }

    /// Decides what the streams are told when the engine goes.
    pub(super) fn set_last_words(&mut self, error: RequestError) {
        self.last_words = error;
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        for sender in self.live.values_mut() {
            drop(sender.try_send(Event::Failed(self.last_words)));
        }
    }
}
