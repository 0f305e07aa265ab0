//! How often a thing is tried again, and how long it waits before.

use folio::platform;
use std::time::Duration;

/// Failures in a row that are borne.
const TRIES_MAX: u32 = 5;
/// The second wait; each further one is twice as long. The first try again waits for nothing: most often a kept
/// connection had merely grown old.
const PAUSE: Duration = Duration::from_millis(250);
/// Nobody is kept waiting longer than this for one answer.
const WAIT_SECONDS_MAX: u64 = 60;
/// Failures in all, whatever was won between them.
const FAILURES_MAX: u32 = 50;

/// What is left of it.
#[derive(Debug, Default)]
pub(super) struct Patience {
    in_a_row: u32,
    in_all: u32,
}

impl Patience {
    /// After a failure: waits as long as it should (`asked`: in seconds, as the other side wants it), then true; or
    /// false, if it is enough.
    pub(super) fn wait(&mut self, asked: Option<u64>) -> bool {
        self.next(asked).map(platform::pause).is_some()
    }

    /// Something was won since the last failure.
    pub(super) fn renew(&mut self) {
        self.in_a_row = 0;
    }

    fn next(&mut self, asked: Option<u64>) -> Option<Duration> {
        self.in_a_row += 1;
        self.in_all += 1;
        if self.in_a_row > TRIES_MAX || self.in_all > FAILURES_MAX || asked > Some(WAIT_SECONDS_MAX) {
            return None;
        }
        let own = if self.in_a_row == 1 { Duration::ZERO } else { PAUSE * (1 << (self.in_a_row - 2)) };
        Some(asked.map_or(own, Duration::from_secs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_and_end() {
        let mut patience = Patience::default();
        let waits: Vec<u64> = std::iter::from_fn(|| patience.next(None)).map(|wait| wait.as_millis() as u64).collect();
        assert_eq!(waits, [0, 250, 500, 1000, 2000]);
        let mut patience = Patience::default();
        assert_eq!(patience.next(Some(7)), Some(Duration::from_secs(7)), "the other side knows better");
        assert_eq!(patience.next(Some(61)), None, "but not without bounds");
        let mut patience = Patience::default();
        let renewed = std::iter::from_fn(|| {
            patience.renew();
            patience.next(None)
        });
        assert_eq!(renewed.count(), FAILURES_MAX as usize, "a byte between failures does not make it endless");
    }
}
