//! The threads that compute a step together.
//!
//! [`Team::run`] calls a function once per thread, with buffers that the thread keeps from step to step; the caller's
//! own thread is number 0. Between steps the others spin
//! for a moment, because the next step usually follows within microseconds, and then sleep: an idle team costs nothing.
#![allow(unsafe_code, reason = "threads borrow the caller's work for the duration of one call")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use super::memory::SharedSlice;
use super::scratch::ThreadScratch;
use crate::platform::Instant;

/// Spins before a thread that waits offers its core to others.
const SPINS: u32 = 512;
/// Time that a thread waits for the next step before it sleeps: longer than the engine takes between two batches.
const AWAKE: Duration = Duration::from_micros(200);

type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// What the threads of a team share.
struct Shared {
    /// Number of the current work, which changes when there is new work.
    round: AtomicUsize,
    /// The current work, valid until `busy` is 0.
    work: AtomicWork,
    /// Threads that have not finished the current work.
    busy: AtomicUsize,
    panicked: AtomicBool,
    ends: AtomicBool,
}

/// A reference to the current work, without its lifetime.
#[derive(Default)]
struct AtomicWork(std::cell::Cell<Option<&'static Work<'static>>>);

// SAFETY: it is written by `Team::run`, while no other thread reads it: the others read it only between an increment of
// `round` (after the write) and their decrement of `busy`, for which `run` waits. The work itself is `Sync`.
unsafe impl Sync for AtomicWork {}

/// A worker's thread, and whether it sleeps.
struct Worker {
    thread: Thread,
    sleeps: Arc<AtomicBool>,
    handle: Option<JoinHandle<()>>,
}

/// Threads that compute together; they end with it.
pub(super) struct Team {
    shared: Arc<Shared>,
    workers: Vec<Worker>,
    /// Buffers of each thread.
    scratch: Vec<ThreadScratch>,
}

impl Team {
    /// A team of `threads` threads, including the caller's. It has fewer if the system does not start them.
    pub(super) fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            round: AtomicUsize::new(0),
            work: AtomicWork::default(),
            busy: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            ends: AtomicBool::new(false),
        });
        let worker = |index: usize| {
            let (shared, sleeps) = (Arc::clone(&shared), Arc::new(AtomicBool::new(false)));
            let flag = Arc::clone(&sleeps);
            let thread = thread::Builder::new().name(format!("cpu-{index}"));
            let handle = thread.spawn(move || shared.serve(index, &flag)).ok()?;
            Some(Worker { thread: handle.thread().clone(), sleeps, handle: Some(handle) })
        };
        let workers: Vec<Worker> = (1..threads).map_while(worker).collect();
        let scratch = (0..=workers.len()).map(|_| ThreadScratch::new()).collect();
        Self { shared, workers, scratch }
    }

    /// Number of threads.
    pub(super) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// The buffers of the caller's own thread, for work that is not worth dividing.
    pub(super) fn own(&mut self) -> &mut ThreadScratch {
        self.scratch[0].arena.reset();
        &mut self.scratch[0]
    }

    /// Calls `work(index, buffers)` on every thread, and returns when all calls have. Panics if one of them did.
    pub(super) fn run(&mut self, work: impl Fn(usize, &mut ThreadScratch) + Sync) {
        if self.workers.is_empty() {
            return work(0, self.own());
        }
        let scratch = SharedSlice::new(&mut self.scratch);
        let work: &Work<'_> = &|index: usize| {
            // SAFETY: each thread takes the buffers of its own number.
            let scratch = unsafe { &mut scratch.part(index..index + 1)[0] };
            scratch.arena.reset();
            work(index, scratch);
        };
        // SAFETY: only the lifetime changes. No thread uses the work after its decrement of `busy`, for which this
        // function waits before it returns, also if a call panics.
        let lasting = unsafe { std::mem::transmute::<&Work<'_>, &'static Work<'static>>(work) };
        self.shared.busy.store(self.workers.len(), Ordering::Relaxed);
        self.shared.work.0.set(Some(lasting));
        self.shared.round.fetch_add(1, Ordering::SeqCst);
        for worker in &self.workers {
            if worker.sleeps.load(Ordering::SeqCst) {
                worker.thread.unpark();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(|| work(0)));
        let mut spins = 0;
        while self.shared.busy.load(Ordering::Acquire) > 0 {
            pause(&mut spins);
        }
        if let Err(panic) = own {
            std::panic::resume_unwind(panic);
        }
        assert!(!self.shared.panicked.swap(false, Ordering::Relaxed), "a thread of the CPU device panicked");
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        self.shared.round.fetch_add(1, Ordering::SeqCst);
        for worker in &mut self.workers {
            worker.thread.unpark();
            // A worker catches the panics of its work, so joining cannot fail.
            let _ = worker.handle.take().map(JoinHandle::join);
        }
    }
}

impl Shared {
    /// A worker's loop.
    fn serve(&self, index: usize, sleeps: &AtomicBool) {
        let mut done = 0;
        loop {
            done = self.next_round(done, sleeps);
            if self.ends.load(Ordering::SeqCst) {
                return;
            }
            if let Some(work) = self.work.0.get()
                && catch_unwind(AssertUnwindSafe(|| work(index))).is_err()
            {
                self.panicked.store(true, Ordering::Relaxed);
            }
            self.busy.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for a round other than `done`, awake at first.
    fn next_round(&self, done: usize, sleeps: &AtomicBool) -> usize {
        let (start, mut spins) = (Instant::now(), 0);
        loop {
            let round = self.round.load(Ordering::SeqCst);
            if round != done {
                return round;
            }
            if spins < SPINS || start.elapsed() < AWAKE {
                pause(&mut spins);
                continue;
            }
            sleeps.store(true, Ordering::SeqCst);
            // A round that started before the flag was set is seen here, a later one unparks.
            while self.round.load(Ordering::SeqCst) == done {
                thread::park();
            }
            sleeps.store(false, Ordering::SeqCst);
        }
    }
}

/// Waits for a moment: at first on this core, then by letting other threads run.
fn pause(spins: &mut u32) {
    if *spins < SPINS {
        *spins += 1;
        std::hint::spin_loop();
    } else {
        thread::yield_now();
    }
}

/// The `index`-th of `count` nearly equal, consecutive parts of `items` items.
pub(super) fn share(items: usize, index: usize, count: usize) -> std::ops::Range<usize> {
    items * index / count..items * (index + 1) / count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_is_called_once_per_run_awake_or_asleep() {
        for threads in [1, 2, 5] {
            let mut team = Team::new(threads);
            for round in 1..200 {
                let calls: Vec<_> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
                team.run(|index, _| {
                    calls[index].fetch_add(round, Ordering::Relaxed);
                });
                assert!(calls.iter().all(|calls| calls.load(Ordering::Relaxed) == round));
                if round % 50 == 0 {
                    thread::sleep(2 * AWAKE);
                }
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_still_works() {
        let mut team = Team::new(3);
        for who in 0..3 {
            let failed = catch_unwind(AssertUnwindSafe(|| team.run(|index, _| assert_ne!(index, who))));
            assert!(failed.is_err(), "thread {who}");
        }
        let sum = AtomicUsize::new(0);
        team.run(|index, _| {
            sum.fetch_add(index, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 3);
    }

    #[test]
    fn shares_cover_all_items_once() {
        for (items, count) in [(0, 3), (1, 3), (7, 3), (64, 5)] {
            let shares: Vec<_> = (0..count).flat_map(|index| share(items, index, count)).collect();
            assert_eq!(shares, (0..items).collect::<Vec<_>>());
        }
    }
}
