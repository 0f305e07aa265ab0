//! Throttle: limits how long a single submission occupies a GPU, from measured batch times.
//!
//! Watchdogs reset a GPU that is busy for seconds, and a display stutters long before that. A batch whose predicted
//! time exceeds the cap is split into several submissions, in order; one whose time cannot be predicted yet, into as
//! many as possible. Natively a small and a larger batch are measured before the first request. Software adapters have
//! no watchdog or display, so their batches are not split.

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
/// sequences next to a long prompt.
const STEP_PARTS: u32 = if cfg!(target_arch = "wasm32") { 4 } else { 20 };
/// Factor of the estimates after a loss: the lost batch may have been slower than any before.
const LOSS_FACTOR: f64 = 4.0;
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
        if seconds == 0.0 {
            return PARTS_MAX as usize;
        }
        (seconds / CAP.as_secs_f64()).ceil().clamp(1.0, PARTS_MAX) as usize
    }

    /// Maximum token rows of a batch whose predicted time is short enough.
    pub(crate) fn tokens_max(&self, profile: &Profile) -> Option<u32> {
        self.rows_within(profile, CAP * STEP_PARTS)
    }

    fn rows_within(&self, profile: &Profile, time: Duration) -> Option<u32> {
        if profile.class == Class::Software || self.many == 0.0 {
            return None;
        }
        Some((time.as_secs_f64() / self.many).clamp(CHUNK_MIN, f64::from(u32::MAX)) as u32)
    }

    /// Records that the device was lost.
    pub(crate) fn note_loss(&mut self) {
        self.few *= LOSS_FACTOR;
        self.many *= LOSS_FACTOR;
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
        assert_eq!(throttle.parts(&gpu, 512), 64, "nothing is known yet");
        assert_eq!(throttle.parts(&gpu, 1), 64, "not even for small batches");
        throttle.note(1, Duration::from_millis(8));
        throttle.note(512, Duration::from_millis(512));
        assert_eq!(throttle.parts(&gpu, 512), 6, "512 ms in submissions of at most 100 ms");
        assert_eq!(throttle.parts(&gpu, 50), 1, "fewer rows take less");
        assert_eq!(throttle.parts(&gpu, 8), 1, "small batches are timed apart");
        assert_eq!(throttle.rows_within(&gpu, Duration::from_millis(200)), Some(200), "a millisecond a row");
        assert_eq!(throttle.rows_within(&gpu, Duration::from_millis(20)), Some(64), "a chunk stays worth its while");
        assert_eq!(Throttle::default().rows_within(&gpu, CAP), None, "nothing is known yet");
        throttle.note_loss();
        assert_eq!(throttle.parts(&gpu, 512), 21, "a loss raises the estimate");
        let software = test_profile(Class::Software, Tier::T0, true);
        assert_eq!(throttle.parts(&software, 512), 1, "a CPU has no watchdog");
        assert_eq!(throttle.rows_within(&software, CAP), None, "and no cap");
    }

    /// A GPU with a watchdog, as a clock: it computes at `flops` and reads weights at a fitting speed.
    struct Gpu {
        flops: f64,
        longest: f64,
        busy: f64,
        useful: f64,
    }

    impl Gpu {
        /// Operations per token of a model of 8 billion weights.
        const WORK: f64 = 16e9;
        /// Time that a submission costs besides its work.
        const SUBMISSION: f64 = 50e-6;

        fn run(&mut self, throttle: &mut Throttle, profile: &Profile, tokens: u32) {
            let reading = Self::WORK / (self.flops / 20.0);
            let seconds = (f64::from(tokens) * Self::WORK / self.flops).max(reading);
            let parts = throttle.parts(profile, tokens) as f64;
            // Parts have about the same length.
            self.longest = self.longest.max(1.5 * seconds / parts);
            self.busy += seconds + parts * Self::SUBMISSION;
            self.useful += seconds;
            throttle.note(tokens, Duration::from_secs_f64(seconds + parts * Self::SUBMISSION));
        }
    }

    /// At every speed, no submission comes near the two seconds of a watchdog, and little time is lost to splitting.
    #[test]
    fn no_speed_trips_a_watchdog() {
        let profile = test_profile(Class::Discrete, Tier::T0, true);
        for flops in [0.05e12, 0.2e12, 1e12, 5e12, 30e12, 100e12, 500e12] {
            let mut gpu = Gpu { flops, longest: 0.0, busy: 0.0, useful: 0.0 };
            let mut throttle = Throttle::default();
            gpu.run(&mut throttle, &profile, 1);
            gpu.run(&mut throttle, &profile, 64);
            for prompt in [2048, 500, 8000] {
                let mut left = prompt;
                while left > 0 {
                    let chunk = left.min(2048).min(throttle.tokens_max(&profile).unwrap_or(2048));
                    gpu.run(&mut throttle, &profile, chunk);
                    left -= chunk;
                }
                (0..200).for_each(|_| gpu.run(&mut throttle, &profile, 1));
            }
            assert!(gpu.longest < 1.5, "{flops:e}: a submission of {:.2} s", gpu.longest);
            assert!(gpu.useful > 0.85 * gpu.busy, "{flops:e}: {:.0} % of the time", 100.0 * gpu.useful / gpu.busy);
        }
    }
}
