//! Progress of work that takes long, on stderr: a line that moves in a terminal, else a line now and then.

use super::output::{bar_style, note};
use indicatif::{BinaryBytes, HumanDuration, ProgressBar, ProgressDrawTarget};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval at which a terminal's line moves.
const TICK: Duration = Duration::from_millis(100);
/// Without a terminal: how long work takes before its first line, and between two lines.
const FIRST_LINE: Duration = Duration::from_millis(300);
const LINES: Duration = Duration::from_secs(5);

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Bytes,
    Pieces,
}

impl Unit {
    fn in_words(self, done: u64, total: u64) -> String {
        match self {
            Self::Bytes => format!("{} of {}", BinaryBytes(done), BinaryBytes(total)),
            Self::Pieces => format!("{done} of {total}"),
        }
    }
}

/// Work under way. Its line disappears when this is dropped.
pub(crate) struct Phase {
    bar: ProgressBar,
    unit: Unit,
    _lines: Option<Lines>,
}

impl Phase {
    /// Begins a phase, of which no amount is known yet.
    pub(crate) fn start(name: impl Into<String>, unit: Unit) -> Self {
        let name = name.into();
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_style(bar_style("{spinner} {msg} {elapsed}"));
        bar.set_message(name.clone());
        let lines = bar.is_hidden().then(|| {
            let bar = bar.clone();
            Lines::start(name, unit, move || Some((bar.position(), bar.length()?)))
        });
        if lines.is_none() {
            bar.enable_steady_tick(TICK);
        }
        Self {
            bar,
            unit,
            _lines: lines,
        }
    }

    /// So much is done.
    pub(crate) fn update(&self, done: u64, total: u64) {
        if self.bar.length().is_none() {
            let amount = match self.unit {
                Unit::Bytes => "{bytes}/{total_bytes} {binary_bytes_per_sec}",
                Unit::Pieces => "{pos}/{len}",
            };
            self.bar.set_style(bar_style(&format!(
                "{{msg}} {{bar:20}} {amount}, {{eta}} left"
            )));
        }
        self.bar.set_length(total);
        self.bar.set_position(done);
    }

    /// Writes a note above the line.
    pub(crate) fn note(&self, text: impl std::fmt::Display) {
        self.bar.suspend(|| note(text));
    }
}

impl Drop for Phase {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Lines about work under way, until this is dropped.
pub(crate) struct Lines {
    ended: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Lines {
    /// `amount` tells what is done, and of how much, if that is known.
    pub(crate) fn start(
        name: String,
        unit: Unit,
        amount: impl Fn() -> Option<(u64, u64)> + Send + 'static,
    ) -> Self {
        Self::said(name, unit, amount, (FIRST_LINE, LINES), note)
    }

    /// [`Self::start`] with the times before the first line and between two, and who says them.
    fn said(
        name: String,
        unit: Unit,
        amount: impl Fn() -> Option<(u64, u64)> + Send + 'static,
        (first, between): (Duration, Duration),
        say: impl Fn(String) + Send + 'static,
    ) -> Self {
        let ended = Arc::new((Mutex::new(false), Condvar::new()));
        let shared = ended.clone();
        // Without a thread there are no lines.
        let thread = std::thread::Builder::new()
            .name("progress".into())
            .spawn(move || {
                let (started, mut pause, mut has_said) = (Instant::now(), first, false);
                let (ended, wake) = &*shared;
                let mut guard = ended.lock().unwrap_or_else(PoisonError::into_inner);
                loop {
                    let waited = wake.wait_timeout_while(guard, pause, |ended| !*ended);
                    guard = waited.unwrap_or_else(PoisonError::into_inner).0;
                    if *guard {
                        break;
                    }
                    say(line(&name, unit, amount(), started.elapsed()));
                    (pause, has_said) = (between, true);
                }
                if has_said {
                    say(format!("{name}: {:.1} s", started.elapsed().as_secs_f64()));
                }
            })
            .ok();
        Self { ended, thread }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        *self.ended.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ended.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // It has nothing to return.
            let _ = thread.join();
        }
    }
}

fn line(name: &str, unit: Unit, amount: Option<(u64, u64)>, elapsed: Duration) -> String {
    let Some((done, total)) = amount else {
        return format!("{name} …");
    };
    let left = elapsed.mul_f64(total.saturating_sub(done) as f64 / done.max(1) as f64);
    let left = if done > 0 {
        format!(", {} left", HumanDuration(left))
    } else {
        String::new()
    };
    format!("{name}: {}{left}", unit.in_words(done, total))
}

#[cfg(test)]
mod tests;
