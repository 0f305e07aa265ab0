//! The senders of all live choices. Each gets its terminal event, however the engine ends.

use super::handle::{Dropped, EventSender};
use super::request::{Event, RequestError};
use super::sequence::StreamId;
use std::collections::BTreeMap;

/// Senders by stream. An entry lasts until the terminal event is sent or the receiver is dropped.
#[derive(Debug)]
pub(super) struct Streams {
    live: BTreeMap<StreamId, EventSender>,
    next: u64,
    /// Error for the choices that are still live when the engine is dropped.
    last_words: RequestError,
}

impl Streams {
    pub(super) fn new() -> Self {
        Self {
            live: BTreeMap::new(),
            next: 0,
            last_words: RequestError::Internal,
        }
    }

    /// Adds the senders of one request and returns their streams.
    pub(super) fn open(&mut self, senders: Vec<EventSender>) -> Vec<StreamId> {
        let first = self.next;
        self.next += senders.len() as u64;
        let ids: Vec<_> = (first..self.next).map(StreamId).collect();
        self.live.extend(ids.iter().copied().zip(senders));
        ids
    }

    /// Sends events to their receivers. A channel has room for everything its choice can produce, so a failed send
    /// means that the receiver was dropped; [`Streams::take_closed`] reports it.
    pub(super) fn send(&mut self, events: Vec<(StreamId, Event)>) {
        for (stream, event) in events {
            let is_terminal = matches!(event, Event::Finished { .. } | Event::Failed(_));
            if let Some(sender) = self.live.get_mut(&stream) {
                sender.send(event);
            }
            if is_terminal {
                self.live.remove(&stream);
            }
        }
    }

    /// Removes the choices whose receivers were dropped, and returns them.
    pub(super) fn take_closed(&mut self) -> Vec<(StreamId, Dropped)> {
        let closed: Vec<_> = self
            .live
            .iter()
            .filter_map(|(&id, sender)| Some((id, sender.dropped()?)))
            .collect();
        closed.iter().for_each(|(id, _)| drop(self.live.remove(id)));
        closed
    }

    /// Sets the error that live streams get when the engine is dropped.
    pub(super) fn set_last_words(&mut self, error: RequestError) {
        self.last_words = error;
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        for sender in self.live.values_mut() {
            sender.send(Event::Failed(self.last_words));
        }
    }
}
