//! The threads that compute a step together.
//!
//! [`Team::run`] divides the items of a step among its threads; the caller's own thread is number 0. Each thread has an
//! equal share of them, in which it finds what its core's caches kept from the step before, and takes it in parts. One
//! that is done takes parts of the others' shares. So a slow core (an efficiency core, or one that other programs use)
//! computes less, and one that is not available nothing: the caller waits only for threads that have begun.
//!
//! Between steps the threads spin for a moment, because the next step usually follows within microseconds, and then
//! sleep: an idle team costs nothing.
#![allow(
    unsafe_code,
    reason = "threads borrow the caller's work for the duration of one call"
)]

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use super::memory::SharedSlice;
use super::scratch::ThreadScratch;
use crate::platform::Instant;

/// Spins before a thread that waits offers its core to others.
const SPINS: u32 = 512;
/// Time that a thread waits for the next step before it sleeps: longer than the engine takes between two batches.
const AWAKE: Duration = Duration::from_micros(200);
/// A thread takes the inverse of this of what is left of a share at a time.
const PARTS: usize = 4;

type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// What the threads of a team share.
struct Shared {
    gate: Gate,
    /// The current work, valid while the gate is open or a thread is inside.
    work: AtomicWork,
    panicked: AtomicBool,
}

/// Who may compute: the number of the current work in the upper half, [`OPEN`] and [`ENDS`], and in the lowest bits the
/// number of workers inside.
#[derive(Default)]
struct Gate(AtomicU64);

/// Workers may enter.
const OPEN: u64 = 1 << 31;
/// Workers end.
const ENDS: u64 = 1 << 30;
/// Workers inside.
const INSIDE: u64 = ENDS - 1;

/// A reference to the current work, without its lifetime.
#[derive(Default)]
struct AtomicWork(std::cell::Cell<Option<&'static Work<'static>>>);

// SAFETY: it is written by `Team::run` while the gate is closed and nobody is inside; workers read it only inside. The
// work itself is `Sync`.
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
    /// What is left of each thread's share.
    shares: Vec<Share>,
}

impl Team {
    /// A team of `threads` threads, including the caller's. It has fewer if the system does not start them.
    pub(super) fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            gate: Gate::default(),
            work: AtomicWork::default(),
            panicked: AtomicBool::new(false),
        });
        let worker = |index: usize| {
            let (shared, sleeps) = (Arc::clone(&shared), Arc::new(AtomicBool::new(false)));
            let flag = Arc::clone(&sleeps);
            let thread = thread::Builder::new().name(format!("cpu-{index}"));
            let handle = thread.spawn(move || shared.serve(index, &flag)).ok()?;
            Some(Worker {
                thread: handle.thread().clone(),
                sleeps,
                handle: Some(handle),
            })
        };
        let workers: Vec<Worker> = (1..threads).map_while(worker).collect();
        let scratch = (0..=workers.len()).map(|_| ThreadScratch::new()).collect();
        let shares = (0..=workers.len()).map(|_| Share::default()).collect();
        Self {
            shared,
            workers,
            scratch,
            shares,
        }
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

    /// Calls `work(parts, buffers)` on threads of the team, and returns when all of `items` items were computed:
    /// each is in one part of one thread. Parts have a multiple of `least` items, except the
    /// last one of a share. Panics if a thread
    /// did.
    pub(super) fn run(
        &mut self,
        items: usize,
        least: usize,
        work: impl Fn(Parts<'_>, &mut ThreadScratch) + Sync,
    ) {
        let threads = self.threads().min(items.div_ceil(least)).max(1);
        assert!(u32::try_from(items).is_ok(), "{items} items are too many");
        for (index, left) in self.shares.iter_mut().enumerate() {
            *left.0.get_mut() = Share::packed(if index < threads {
                share(items, index, threads)
            } else {
                0..0
            });
        }
        let least = if threads == 1 { items.max(1) } else { least };
        let (shares, scratch) = (&self.shares[..], SharedSlice::new(&mut self.scratch));
        let work: &Work<'_> = &|own: usize| {
            // SAFETY: each thread takes the buffers of its own number.
            let scratch = unsafe { &mut scratch.part(own..own + 1)[0] };
            scratch.arena.reset();
            work(Parts { shares, own, least }, scratch);
        };
        if threads == 1 {
            return work(0);
        }
        // SAFETY: only the lifetime changes. Workers use the work only inside the gate, and this function closes it and
        // waits until all have left before it returns, also if a call panics.
        let lasting = unsafe { std::mem::transmute::<&Work<'_>, &'static Work<'static>>(work) };
        self.shared.work.0.set(Some(lasting));
        self.shared.gate.open();
        for worker in &self.workers[..threads - 1] {
            if worker.sleeps.load(Ordering::SeqCst) {
                worker.thread.unpark();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(|| work(0)));
        self.shared.gate.close();
        if let Err(panic) = own {
            std::panic::resume_unwind(panic);
        }
        assert!(
            !self.shared.panicked.swap(false, Ordering::Relaxed),
            "a thread of the CPU device panicked"
        );
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.gate.0.fetch_or(ENDS, Ordering::SeqCst);
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
        while let Some(round) = self.gate.enter(done, sleeps) {
            done = round;
            if let Some(work) = self.work.0.get()
                && catch_unwind(AssertUnwindSafe(|| work(index))).is_err()
            {
                self.panicked.store(true, Ordering::Relaxed);
            }
            self.gate.0.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Gate {
    /// Lets workers in, once each. Nobody is inside but who comes too late for the work before, and leaves at once.
    fn open(&self) {
        self.0.fetch_add(1 << 32 | OPEN, Ordering::SeqCst);
    }

    /// Lets no more workers in, and waits until all have left.
    fn close(&self) {
        let mut left = self.0.fetch_and(!OPEN, Ordering::Acquire) & INSIDE;
        let mut spins = 0;
        while left > 0 {
            pause(&mut spins);
            left = self.0.load(Ordering::Acquire) & INSIDE;
        }
    }

    /// Waits until there is other work than that of round `done`, awake at first, and enters; returns its round. `None`
    /// if the team ends.
    fn enter(&self, done: u64, sleeps: &AtomicBool) -> Option<u64> {
        let (mut known, mut start, mut spins) = (done, Instant::now(), 0);
        loop {
            let gate = self.0.load(Ordering::SeqCst);
            let round = gate >> 32;
            if gate & ENDS != 0 {
                return None;
            }
            if gate & OPEN != 0 && round != done {
                let gate = self.0.fetch_add(1, Ordering::Acquire);
                if gate & OPEN != 0 {
                    return Some(gate >> 32);
                }
                // It closed meanwhile.
                self.0.fetch_sub(1, Ordering::Release);
                continue;
            }
            if round != known {
                (known, start, spins) = (round, Instant::now(), 0);
            }
            if spins < SPINS || start.elapsed() < AWAKE {
                pause(&mut spins);
                continue;
            }
            sleeps.store(true, Ordering::SeqCst);
            // A round that began before the flag was set is seen here, a later one unparks.
            let is_same = || {
                let gate = self.0.load(Ordering::SeqCst);
                gate >> 32 == known && gate & ENDS == 0
            };
            while is_same() {
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

/// What is left of a thread's items: the first one in the upper half, the end in the lower one.
#[derive(Default)]
struct Share(AtomicU64);

impl Share {
    fn packed(items: Range<usize>) -> u64 {
        (items.start as u64) << 32 | items.end as u64
    }

    /// Takes a part: for its owner the first one, for others the last one.
    fn take(&self, is_own: bool, least: usize) -> Option<Range<usize>> {
        // Only the numbers are shared here: what the items read and write is ordered by the gate.
        let mut left = self.0.load(Ordering::Relaxed);
        loop {
            let items = (left >> 32) as usize..(left & u64::from(u32::MAX)) as usize;
            let size = (items.len() / PARTS / least * least)
                .max(least)
                .min(items.len());
            if size == 0 {
                return None;
            }
            let at = if is_own {
                items.start + size
            } else {
                items.end - size
            };
            let [first, last] = [items.start..at, at..items.end];
            let (part, rest) = if is_own { (first, last) } else { (last, first) };
            match self.0.compare_exchange_weak(
                left,
                Self::packed(rest),
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(part),
                Err(other) => left = other,
            }
        }
    }
}

/// What a thread computes: parts of its share, then of others'.
pub(super) struct Parts<'a> {
    shares: &'a [Share],
    own: usize,
    least: usize,
}

impl Iterator for Parts<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let own = self.shares[self.own].take(true, self.least);
        let others = self.shares[self.own + 1..]
            .iter()
            .chain(&self.shares[..self.own]);
        own.or_else(|| {
            others
                .filter_map(|share| share.take(false, self.least))
                .next()
        })
    }
}

/// The `index`-th of `count` nearly equal, consecutive parts of `items` items.
pub(super) fn share(items: usize, index: usize, count: usize) -> Range<usize> {
    items * index / count..items * (index + 1) / count
}

#[cfg(test)]
mod tests;
