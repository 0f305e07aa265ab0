//! [`Answering`]: the events of one choice, which is counted once by why it ended.

use crate::engine::handle::EventReceiver;
use crate::engine::request::{Event, FinishReason};
use crate::server::counters::{End, Metrics};
use futures_util::{Stream, StreamExt as _};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The events of a choice. The engine may be ahead of what its client has read, so it does not know why an answer ended
/// for the client; this does. Dropping it before the last event cancels the choice.
pub(crate) struct Answering {
    /// `None` once the choice was stopped.
    events: Option<EventReceiver>,
    end: End,
    metrics: Arc<Metrics>,
}

impl Answering {
    pub(super) fn new(events: EventReceiver, metrics: Arc<Metrics>) -> Self {
        Self {
            events: Some(events),
            end: End::Abort,
            metrics,
        }
    }

    /// Ends the choice, of which nothing more is wanted for this reason.
    pub(crate) fn finish(mut self, reason: FinishReason) {
        self.end = match reason {
            FinishReason::Stop => End::Stop,
            FinishReason::Length => End::Length,
        };
        if let Some(events) = self.events.take() {
            events.stop();
        }
    }
}

impl Stream for Answering {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let Some(events) = &mut self.events else {
            return Poll::Ready(None);
        };
        let event = events.poll_next_unpin(context);
        match &event {
            Poll::Ready(Some(Event::Finished {
                reason: FinishReason::Length,
                ..
            })) => self.end = End::Length,
            Poll::Ready(Some(Event::Finished { .. })) => self.end = End::Stop,
            Poll::Ready(Some(Event::Failed(_)) | None) => self.end = End::Error,
            _ => {}
        }
        event
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.metrics.ends.count(self.end);
    }
}
