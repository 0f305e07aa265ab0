//! Throttle: limits how long a single submission occupies a GPU, from measured batch times.
//!
//! Watchdogs reset a GPU that is busy for seconds, and a display stutters long before that. A batch whose predicted
//! time exceeds the cap is split into several submissions, in order. Software adapters have no watchdog or display, so
//! their batches are not split.

use super::device::{Class, Profile};
use std::time::Duration;

#[cfg(not(target_arch = "wasm32"))]
pub(crate) use std::time::Instant;
#[cfg(target_arch = "wasm32")]
pub(crate) use web_time::Instant;

/// Maximum predicted time of a submission.
const CAP: Duration = Duration::from_millis(if cfg!(target_arch = "wasm32") { 50 } else { 100 });
/// Maximum submissions of one batch.
const PARTS_MAX: f64 = 64.0;
/// Submissions that a batch may take before the engine is asked for shorter batches: longer ones would delay other
/// sequences next to a long prompt. `None` (natively): batches are only split, not shortened.
const STEP_PARTS: Option<u32> = if cfg!(target_arch = "wasm32") { Some(4) } else { None };
/// Minimum tokens of a shortened prompt chunk.
const CHUNK_MIN: f64 = 64.0;
/// Batches of at most this many token rows read every weight once; the time of larger ones grows with the rows.
const FEW_ROWS: u32 = 16;

/// Recent seconds per small batch, and per token row of large batches.
#[derive(Default)]
pub(crate) struct Throttle {
    few: f64,
    many: f64,
}

impl Throttle {
    /// Number of submissions for a batch of `tokens` rows.
    pub(crate) fn parts(&self, profile: &Profile, tokens: u32) -> usize {
        if profile.class == Class::Software {
            return 1;
        }
        let seconds = if tokens <= FEW_ROWS { self.few } else { self.many * f64::from(tokens) };
        (seconds / CAP.as_secs_f64()).ceil().clamp(1.0, PARTS_MAX) as usize
    }

    /// Maximum token rows of a batch whose predicted time is short enough.
    pub(crate) fn tokens_max(&self, profile: &Profile) -> Option<u32> {
        self.rows_within(profile, CAP * STEP_PARTS?)
    }

    fn rows_within(&self, profile: &Profile, time: Duration) -> Option<u32> {
        if profile.class == Class::Software || self.many == 0.0 {
            return None;
        }
        Some((time.as_secs_f64() / self.many).clamp(CHUNK_MIN, f64::from(u32::MAX)) as u32)
    }

    /// Records the time from submission to result. The moving average soon forgets a batch that waited for others.
    pub(crate) fn note(&mut self, tokens: u32, elapsed: Duration) {
        let seconds = elapsed.as_secs_f64();
        let (mean, seconds) = match tokens {
            0..=FEW_ROWS => (&mut self.few, seconds),
            _ => (&mut self.many, seconds / f64::from(tokens)),
        };
        *mean = if *mean == 0.0 { seconds } else { 0.75 * *mean + 0.25 * seconds };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::wgpu::device::Tier;
    use crate::backend::wgpu::encode::test_profile;

    #[test]
    fn a_batch_is_cut_by_its_predicted_time() {
        let gpu = test_profile(Class::Discrete, Tier::T0, true);
        let mut throttle = Throttle::default();
        assert_eq!(throttle.parts(&gpu, 512), 1, "nothing is known yet");
        throttle.note(512, Duration::from_millis(512));
        assert_eq!(throttle.parts(&gpu, 512), 6, "512 ms in submissions of at most 100 ms");
        assert_eq!(throttle.parts(&gpu, 50), 1, "fewer rows take less");
        assert_eq!(throttle.parts(&gpu, 8), 1, "small batches are timed apart");
        assert_eq!(throttle.rows_within(&gpu, Duration::from_millis(200)), Some(200), "a millisecond a row");
        assert_eq!(throttle.rows_within(&gpu, Duration::from_millis(20)), Some(64), "a chunk stays worth its while");
        assert_eq!(Throttle::default().rows_within(&gpu, CAP), None, "nothing is known yet");
        let software = test_profile(Class::Software, Tier::T0, true);
        assert_eq!(throttle.parts(&software, 512), 1, "a CPU has no watchdog");
        assert_eq!(throttle.rows_within(&software, CAP), None, "and no cap");
    }
}
