//! Retries with exponential back-off. Their number is bounded, both in a row and in total.

use folio::platform;
use std::time::Duration;

/// Maximum retries in a row.
const TRIES_MAX: u32 = 5;
/// Wait before the second retry; each further wait is twice as long. The first retry is immediate, because usually a
/// kept-alive connection had merely expired.
const PAUSE: Duration = Duration::from_millis(250);
/// The longest `Retry-After` that is honoured.
const WAIT_SECONDS_MAX: u64 = 60;
/// Maximum retries in total, regardless of progress between them.
const FAILURES_MAX: u32 = 50;

/// Counts the failures of one request.
#[derive(Debug, Default)]
pub(super) struct Retry {
    in_a_row: u32,
    in_all: u32,
}

impl Retry {
    /// Called after a failure. Waits and returns true, or returns false if the retries are used up. `asked`: the
    /// seconds of `Retry-After`.
    pub(super) fn wait(&mut self, asked: Option<u64>) -> bool {
        self.next(asked).map(platform::pause).is_some()
    }

    /// Called when there was progress since the last failure.
    pub(super) fn reset(&mut self) {
        self.in_a_row = 0;
    }

    fn next(&mut self, asked: Option<u64>) -> Option<Duration> {
        self.in_a_row += 1;
        self.in_all += 1;
        if self.in_a_row > TRIES_MAX || self.in_all > FAILURES_MAX || asked > Some(WAIT_SECONDS_MAX)
        {
            return None;
        }
        let own = if self.in_a_row == 1 {
            Duration::ZERO
        } else {
            PAUSE * (1 << (self.in_a_row - 2))
        };
        Some(asked.map_or(own, Duration::from_secs))
    }
}

#[cfg(test)]
mod tests;
