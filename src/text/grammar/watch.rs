//! [`Watch`]: ends work on grammars that takes too long, or that nobody waits for any more.
//!
//! llguidance counts most of its work, but not all: the text that a lexeme forces, for example. It looks at a
//! [`CancellationHandle`](llguidance::CancellationHandle) everywhere but where it builds a parser: such work goes on,
//! and only who waits for it can be told.

use crate::platform::Instant;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// How often running work is looked at. Work that is over before costs a few hundred nanoseconds.
const PERIOD: Duration = Duration::from_millis(20);
/// The thread sleeps until new work comes if there was none for this number of periods.
const IDLE_PERIODS: u32 = 50;

static WATCH: LazyLock<Watch> = LazyLock::new(Watch::default);

/// Whoever waits for the work; it is cancelled when the last clone is dropped.
#[derive(Clone, Debug, Default)]
pub struct Waiting(Arc<()>);

impl Waiting {
    /// What the work keeps of it.
    pub fn watched(&self) -> Watched {
        Watched(Arc::downgrade(&self.0))
    }
}

/// Knows whether somebody waits.
#[derive(Clone, Debug)]
pub struct Watched(Weak<()>);

#[derive(Default)]
struct Watch {
    works: Mutex<Works>,
    begun: Condvar,
}

#[derive(Default)]
struct Works {
    next: u64,
    running: BTreeMap<u64, Work>,
    /// The thread waits until work begins.
    sleeps: bool,
    has_thread: bool,
}

struct Work {
    deadline: Instant,
    /// `None`: somebody always waits.
    waiting: Option<Watched>,
    /// Ends it; is called until the work is not watched any more.
    end: Box<dyn FnMut() + Send>,
}

/// Work that is watched until this is dropped.
#[derive(Debug)]
pub struct Running(u64);

/// Watches work that may take this long, and calls `end`, once or more, when it is over or nobody waits any more.
/// Without threads, nothing is watched.
pub fn watch(
    limit: Duration,
    waiting: Option<Watched>,
    end: impl FnMut() + Send + 'static,
) -> Running {
    let mut works = WATCH.lock();
    let id = works.next;
    works.next += 1;
    works.running.insert(
        id,
        Work {
            deadline: Instant::now() + limit,
            waiting,
            end: Box::new(end),
        },
    );
    if !works.has_thread {
        let thread = std::thread::Builder::new().name("folio-grammars".into());
        works.has_thread = thread.spawn(|| WATCH.run()).is_ok();
    } else if works.sleeps {
        works.sleeps = false;
        WATCH.begun.notify_one();
    }
    Running(id)
}

impl Drop for Running {
    fn drop(&mut self) {
        WATCH.lock().running.remove(&self.0);
    }
}

impl Watch {
    fn lock(&self) -> MutexGuard<'_, Works> {
        self.works.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut works = self.lock();
        let mut idle_periods = 0;
        loop {
            idle_periods = if works.running.is_empty() {
                idle_periods + 1
            } else {
                0
            };
            let now = Instant::now();
            works
                .running
                .values_mut()
                .filter(|work| work.is_over(now))
                .for_each(|work| (work.end)());
            works = if idle_periods > IDLE_PERIODS {
                idle_periods = 0;
                works.sleeps = true;
                self.begun
                    .wait_while(works, |works| works.sleeps)
                    .unwrap_or_else(PoisonError::into_inner)
            } else {
                self.begun
                    .wait_timeout(works, PERIOD)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            };
        }
    }
}

impl Work {
    fn is_over(&self, now: Instant) -> bool {
        now >= self.deadline
            || self
                .waiting
                .as_ref()
                .is_some_and(|waiting| waiting.0.strong_count() == 0)
    }
}

#[cfg(test)]
mod tests;
