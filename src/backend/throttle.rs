//! Throttle: limits how long a single submission occupies a GPU, from measured batch times.
//!
//! Watchdogs reset a GPU that is busy for seconds, and a display stutters long before that. The throttle predicts the
//! time of every dispatch from its [`Work`]: batches of a few rows take as long as reading what they read, larger ones
//! as long as their arithmetic. A batch whose predicted time exceeds the cap is cut into several submissions, in order;
//! if its time cannot be predicted yet, every dispatch is a submission. Attention over contexts so long that one layer
//! exceeds the cap is divided among several dispatches. The engine is asked for shorter prompt chunks
//! ([`Throttle::tokens_max`]) if many submissions would delay other sequences.
//!
//! Where a backend can wait, two batches are measured before the first request ([`super::warm_up::calibration`]).
//! Devices without a watchdog or display, such as software adapters, are not throttled.

use crate::plan::work::Work;
use std::time::Duration;

/// How long a device may be occupied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caps {
    /// Maximum predicted time of a submission.
    submission: Duration,
    /// Maximum predicted time of a batch, beyond which the engine is asked for shorter ones: longer batches would delay
    /// other sequences next to a long prompt.
    batch: Duration,
}

/// For a process of its own.
pub(crate) const NATIVE: Caps = Caps {
    submission: Duration::from_millis(100),
    batch: Duration::from_secs(2),
};
/// For a browser's tab, which shares the GPU with the page's drawing.
pub(crate) const TAB: Caps = Caps {
    submission: Duration::from_millis(50),
    batch: Duration::from_millis(200),
};
/// Maximum dispatches of one layer's attention.
const SLICES_MAX: f64 = 64.0;
/// Factor of the estimates after a loss: the lost batch may have been slower than any before.
const LOSS_FACTOR: f64 = 4.0;
/// Minimum tokens of a shortened prompt chunk.
const CHUNK_MIN: f64 = 64.0;
/// Batches of at most this many token rows read every weight once; the time of larger ones grows with the rows.
const FEW_ROWS: u32 = 16;

/// The token rows of a batch, and all of its work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) tokens: u32,
    pub(crate) work: Work,
}

/// Recent speeds of a device.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    /// `None`: the device has no watchdog or display.
    caps: Option<Caps>,
    /// Seconds per byte of batches with few rows; 0 if none was measured.
    few: f64,
    /// Seconds per operation of larger batches; 0 if none was measured.
    many: f64,
    /// Operations per token row of the last larger batch.
    row_operations: f64,
}

impl Throttle {
    /// A throttle for a device whose speed is unknown yet; `None`: without effect.
    pub(crate) fn new(caps: Option<Caps>) -> Self {
        Self {
            caps,
            ..Self::default()
        }
    }

    /// Whether the device has a watchdog or a display.
    pub(crate) fn is_on(&self) -> bool {
        self.caps.is_some()
    }

    /// Maximum predicted seconds of a submission.
    fn cap(&self) -> f64 {
        self.caps
            .map_or(f64::INFINITY, |caps| caps.submission.as_secs_f64())
    }

    /// Predicted seconds of work in a batch of `tokens` rows; infinite if unknown, 0 if the throttle is off.
    fn seconds(&self, tokens: u32, work: Work) -> f64 {
        let (speed, amount) = if tokens <= FEW_ROWS {
            (self.few, work.bytes)
        } else {
            (self.many, work.operations)
        };
        match (self.is_on(), speed > 0.0) {
            (false, _) => 0.0,
            (true, false) => f64::INFINITY,
            (true, true) => speed * amount,
        }
    }

    /// Cuts the dispatches of a batch of `tokens` rows into submissions, each within the cap or a single dispatch.
    pub(crate) fn cut<'a, C>(
        &self,
        dispatches: &'a [C],
        tokens: u32,
        work: impl Fn(&C) -> Work,
    ) -> impl Iterator<Item = &'a [C]> {
        let mut sum = None;
        dispatches.chunk_by(move |before, next| {
            let seconds = self.seconds(tokens, work(next));
            let with_next = sum.unwrap_or_else(|| self.seconds(tokens, work(before))) + seconds;
            let fits = with_next <= self.cap();
            sum = Some(if fits { with_next } else { seconds });
            fits
        })
    }

    /// Number of dispatches for attention of one layer with this work: a power of two, so that programs recorded for it
    /// can be used again while contexts grow.
    pub(crate) fn slices(&self, tokens: u32, attention: Work) -> u32 {
        let seconds = self.seconds(tokens, attention);
        if !seconds.is_finite() {
            return 1;
        }
        ((seconds / self.cap()).clamp(1.0, SLICES_MAX).ceil() as u32).next_power_of_two()
    }

    /// Maximum token rows of a batch whose predicted time is short enough.
    pub(crate) fn tokens_max(&self) -> Option<u32> {
        let row_seconds = self.many * self.row_operations;
        if row_seconds <= 0.0 {
            return None;
        }
        let batch = self.caps?.batch;
        Some((batch.as_secs_f64() / row_seconds).clamp(CHUNK_MIN, f64::from(u32::MAX)) as u32)
    }

    /// Records that the device was lost.
    pub(crate) fn note_loss(&mut self) {
        self.few *= LOSS_FACTOR;
        self.many *= LOSS_FACTOR;
    }

    /// Records the time from submission to result. The moving average soon forgets a batch that waited for others.
    pub(crate) fn note(&mut self, load: Load, elapsed: Duration) {
        let Load { tokens, work } = load;
        let (mean, amount) = match tokens {
            0..=FEW_ROWS => (&mut self.few, work.bytes),
            _ => (&mut self.many, work.operations),
        };
        let speed = elapsed.as_secs_f64() / amount.max(1.0);
        *mean = if *mean == 0.0 {
            speed
        } else {
            0.75 * *mean + 0.25 * speed
        };
        if tokens > FEW_ROWS {
            self.row_operations = work.operations / f64::from(tokens);
        }
    }
}

#[cfg(test)]
mod tests;
