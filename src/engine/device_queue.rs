//! [`DeviceQueue`]: the engines of several models on one device take turns, step by step.
//!
//! An engine has its turn from the submission of a step to its result. While no other engine wants one, it keeps it and
//! submits steps ahead. When another one does, it submits nothing more and hands over after the steps in flight, which
//! are at most two, and then stands at the end of the line. So the streams of one model wait for at most two steps of
//! each of the others, however long a prompt one of them computes.

use futures_channel::oneshot;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The line of the engines of one device; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct DeviceQueue(Arc<Mutex<Line>>);

#[derive(Debug, Default)]
struct Line {
    is_taken: bool,
    /// Engines that wait, in order; each is sent its turn.
    waiting: VecDeque<oneshot::Sender<DeviceLease>>,
}

/// The device is one engine's; dropping this hands it to the next.
#[derive(Debug)]
pub(super) struct DeviceLease {
    queue: DeviceQueue,
    /// It was handed on already.
    is_over: bool,
}

impl DeviceQueue {
    /// Waits in line for the device.
    pub(super) async fn take(&self) -> DeviceLease {
        loop {
            let receiver = {
                let mut line = self.lock();
                if !line.is_taken {
                    line.is_taken = true;
                    return self.lease();
                }
                let (sender, receiver) = oneshot::channel();
                line.waiting.push_back(sender);
                receiver
            };
            // A sender is used before it is dropped; if it were not, the line is joined again.
            if let Ok(lease) = receiver.await {
                return lease;
            }
        }
    }

    fn lease(&self) -> DeviceLease {
        DeviceLease {
            queue: self.clone(),
            is_over: false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DeviceLease {
    /// Whether another engine waits for its turn.
    pub(super) fn is_wanted(&self) -> bool {
        !self.queue.lock().waiting.is_empty()
    }
}

impl Drop for DeviceLease {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut line = self.queue.lock();
        while let Some(next) = line.waiting.pop_front() {
            match next.send(self.queue.lease()) {
                Ok(()) => return,
                // That engine is gone; its turn must not be handed on a second time.
                Err(mut lease) => lease.is_over = true,
            }
        }
        line.is_taken = false;
    }
}

#[cfg(test)]
mod tests;
