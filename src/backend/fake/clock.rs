//! A GPU of a given speed, on a simulated clock: how long the fake device's batches would take there, and a watchdog
//! that loses the device if a single submission takes longer than its limit.
//!
//! Submissions are cut by the same [`Throttle`] as those of the wgpu backend, whose batches are measured before the
//! first request in the same way. A dispatch takes as long as its arithmetic or its memory traffic, whichever is
//! longer; both are those of the plan's steps.

use super::Script;
use crate::backend::throttle::{self, Load, Throttle};
use crate::backend::{Capacity, warm_up};
use crate::plan::inputs::BatchInputs;
use crate::plan::work::{Reach, StepWork, Work};
use crate::plan::{Plan, Step, Tail};
use std::time::Duration;

/// Seconds that a dispatch, and a submission, take besides their work.
const DISPATCH_SECONDS: f64 = 2e-6;
const SUBMISSION_SECONDS: f64 = 50e-6;
/// Times that a batch is measured before the first request.
const CALIBRATION_RUNS: u32 = 2;
/// How much slower a GPU is that another program uses.
const SLOWDOWN: f64 = 30.0;

/// When a batch was submitted, and when its results are there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed {
    load: Load,
    submitted: f64,
    done: f64,
    is_killed: bool,
}

/// A GPU with its clock.
pub(super) struct Clock {
    /// Operations, and bytes, per second.
    flops: f64,
    bandwidth: f64,
    watchdog: Option<Duration>,
    throttle: Throttle,
    /// Seconds since the device was opened, on the host.
    pub(super) now: f64,
    /// When the GPU will have run everything that was submitted.
    idle_from: f64,
    /// Seconds of the longest submission so far.
    pub(super) longest: f64,
}

impl Clock {
    /// The clock that the script asks for, if any.
    pub(super) fn new(script: &Script) -> Option<Self> {
        let throttle = Throttle::new(script.watchdog.map(|_| throttle::NATIVE));
        let (flops, bandwidth) = (
            script.gflops? as f64 * 1e9,
            script.gbps.unwrap_or(u64::MAX) as f64 * 1e9,
        );
        Some(Self {
            flops,
            bandwidth,
            watchdog: script.watchdog,
            throttle,
            now: 0.0,
            idle_from: 0.0,
            longest: 0.0,
        })
    }

    /// The GPU is used by another program from now on.
    pub(super) fn slow_down(&mut self) {
        self.flops /= SLOWDOWN;
        self.bandwidth /= SLOWDOWN;
    }

    pub(super) fn tokens_max(&self) -> Option<u32> {
        self.throttle.tokens_max()
    }

    pub(super) fn note_loss(&mut self) {
        self.throttle.note_loss();
        self.idle_from = self.now;
    }

    /// Measures the batches that the wgpu backend measures before the first request. Returns whether the GPU survived.
    pub(super) fn calibrate(&mut self, plan: &Plan, capacity: &Capacity) -> bool {
        let batches = warm_up::calibration(plan, capacity);
        batches.iter().all(|inputs| {
            (0..CALIBRATION_RUNS).all(|_| {
                let timed = self.submit(plan, capacity, inputs);
                self.read(&timed)
            })
        })
    }

    /// Runs a batch on the clock.
    pub(super) fn submit(
        &mut self,
        plan: &Plan,
        capacity: &Capacity,
        inputs: &BatchInputs,
    ) -> Timed {
        let tokens = u32::try_from(inputs.token_ids.len()).expect("within the capacity");
        let dispatches = self.dispatches(plan, capacity, inputs, tokens);
        let load = Load {
            tokens,
            work: dispatches.iter().copied().sum(),
        };
        let begin = self.now.max(self.idle_from);
        let (mut done, mut is_killed) = (begin, false);
        let submissions = self.throttle.cut(&dispatches, tokens, |work| *work);
        let submissions =
            submissions.map(|dispatches| dispatches.iter().map(|work| self.seconds(*work)).sum());
        for seconds in submissions.collect::<Vec<f64>>() {
            self.longest = self.longest.max(seconds);
            is_killed |= self
                .watchdog
                .is_some_and(|limit| seconds > limit.as_secs_f64());
            done += seconds + SUBMISSION_SECONDS;
        }
        self.idle_from = done;
        Timed {
            load,
            submitted: self.now,
            done,
            is_killed,
        }
    }

    /// Waits for a batch. Returns whether the watchdog left it alone.
    pub(super) fn read(&mut self, timed: &Timed) -> bool {
        self.now = self.now.max(timed.done);
        if !timed.is_killed {
            self.throttle.note(
                timed.load,
                Duration::from_secs_f64(self.now - timed.submitted),
            );
        }
        !timed.is_killed
    }

    fn seconds(&self, work: Work) -> f64 {
        DISPATCH_SECONDS + (work.operations / self.flops).max(work.bytes / self.bandwidth)
    }

    /// A dispatch per step, except for long attention.
    fn dispatches(
        &self,
        plan: &Plan,
        capacity: &Capacity,
        inputs: &BatchInputs,
        tokens: u32,
    ) -> Vec<Work> {
        let plan = plan.for_batch(inputs);
        let reach = Reach::of(plan, inputs);
        let samples = u32::try_from(inputs.logits_rows.len()).expect("within the capacity");
        let tails = [
            (Tail::Sample, samples > 0),
            (Tail::Pool, !inputs.pools.is_empty()),
        ];
        let tails = tails
            .into_iter()
            .filter(|(_, runs)| *runs)
            .flat_map(|(tail, _)| plan.tail(tail));
        let mut dispatches = Vec::new();
        for step in plan.body.iter().chain(tails) {
            let work = StepWork::of(plan, step, tokens, samples, capacity.kv_format).at(&reach);
            let slices = if matches!(step, Step::AttendPaged(_)) {
                self.throttle.slices(tokens, work)
            } else {
                1
            };
            dispatches.extend((0..slices).map(|_| work * (1.0 / f64::from(slices))));
        }
        dispatches
    }
}
