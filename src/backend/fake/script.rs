//! The script of a fake device: faults to inject and answers to give.
//!
//! It is comma-separated text, for example `lost@3,nan=17`.
//!
//! | Word | Fault |
//! |---|---|
//! | `lost@K` | the device is lost when batch K is read (batches count from 1, across resets) |
//! | `lost-submit@K` | the device is lost when batch K is submitted |
//! | `hang@K` | batch K never completes: its read times out after the pause, as on a lost device |
//! | `dead@K` | as `lost@K`, and the device cannot be reset |
//! | `invalid@K` | batch K is rejected when it is submitted |
//! | `failed@K` | batch K is found to be rejected when it is read |
//! | `panic@K` | a panic when batch K is submitted |
//! | `nan=T` | rows from token id T on have no valid logits |
//! | `oom=N` | a pool of more than N blocks in total does not fit |
//! | `memory=BYTES` | device memory for weights, rows and pool, as on a GPU |
//! | `binding=BYTES` | binding limit: no buffer may be larger |
//! | `gflops=N`, `gbps=N` | the speed of a GPU, on a simulated clock: 10⁹ operations, and 10⁹ bytes, per second |
//! | `watchdog=MS` | a submission that takes longer on that clock loses the device |
//! | `slow@K` | from batch K on, the GPU is 30 times slower, as one that another program uses |
//! | `pause=MS` | every batch takes MS milliseconds |
//! | `loading=MS` | loading a model takes MS milliseconds |
//! | `say=A>B>C` | after the ids A, the device samples the ids B, the second time C, …; ids are separated by dots |
//! | `context=N` | the model takes N positions, as clients with long prompts need (`folio serve`) |
//! | `stray=N` | one of N drawn tokens is another one, as a draft model's or a predictor's |
//! | `dear=N` | moving a block of keys and values takes longer than computing it, in every other N batches |
//! | `rounding=1` | numbers also depend on the chunks that a sequence is computed in, as a real device's rounding |
//! | `seed=S` | seed of the random moments when batches run |

use super::{BackendError, GivenTimes};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// Values of `context`.
const CONTEXTS: RangeInclusive<u32> = 16..=1 << 24;

/// The faults that a fake device injects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// Batches whose read loses the device.
    pub lost: BTreeSet<u64>,
    /// Batches whose submission loses the device.
    pub lost_submit: BTreeSet<u64>,
    /// Batches that never complete.
    pub hang: BTreeSet<u64>,
    /// Batches whose read loses the device permanently.
    pub dead: BTreeSet<u64>,
    /// Batches rejected at submission.
    pub invalid: BTreeSet<u64>,
    /// Batches rejected at the read.
    pub failed: BTreeSet<u64>,
    /// Batches whose submission panics.
    pub panic: BTreeSet<u64>,
    /// Token id that makes the logits of every row that sees it invalid.
    pub nan: Option<u32>,
    /// Maximum number of blocks in the pool.
    pub oom: Option<u32>,
    /// Bytes of device memory, as a GPU reports them; `None`: a software device.
    pub memory: Option<u64>,
    /// Binding limit in bytes, as a GPU reports it; `None`: no limit.
    pub binding: Option<u64>,
    /// Speed of the simulated GPU, in 10⁹ operations per second; `None`: no clock is simulated.
    pub gflops: Option<u64>,
    /// Memory bandwidth of the simulated GPU, in 10⁹ bytes per second.
    pub gbps: Option<u64>,
    /// Maximum time of a submission of the simulated GPU.
    pub watchdog: Option<Duration>,
    /// Batches from which on the simulated GPU is slow.
    pub slow: BTreeSet<u64>,
    /// Scripted answers, if any.
    pub say: Option<Say>,
    /// Number of positions of the model, instead of its own.
    pub context: Option<u32>,
    /// Duration of a batch.
    pub pause: Duration,
    /// Duration of a load.
    pub loading: Duration,
    /// In every other stretch of so many batches, moving a block takes longer than computing it.
    pub dear: Option<u64>,
    /// Whether numbers also depend on the chunks that a sequence is computed in.
    pub rounding: bool,
    /// One of so many drawn tokens is another one.
    pub stray: Option<u64>,
    /// Seed of the random moments when batches run.
    pub seed: u64,
}

/// Scripted answers, which replace the hash after a given prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Say {
    /// The ids that trigger an answer.
    pub after: Vec<u32>,
    /// The first answer, the second, and so on.
    pub answers: Vec<Vec<u32>>,
}

impl Say {
    /// Parses `1.2>3.4.5>6`: after the ids 1, 2 come 3, 4, 5, and the second time 6.
    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split('>').map(|part| {
            part.split('.')
                .map(|id| id.parse().ok())
                .collect::<Option<Vec<u32>>>()
        });
        Some(Self {
            after: parts.next()??,
            answers: parts.collect::<Option<_>>()?,
        })
    }

    /// The id that follows `tokens`, if an answer has started: its next id.
    pub(super) fn next(&self, tokens: &[u32]) -> Option<u32> {
        let begins: Vec<_> = tokens
            .windows(self.after.len())
            .enumerate()
            .filter(|(_, ids)| *ids == self.after)
            .collect();
        let (last, _) = begins.last()?;
        self.answers
            .get(begins.len() - 1)?
            .get(tokens.len() - last - self.after.len())
            .copied()
    }
}

impl FromStr for Script {
    type Err = BackendError;

    fn from_str(text: &str) -> Result<Self, BackendError> {
        let mut script = Self::default();
        for word in text.split(',').filter(|word| !word.is_empty()) {
            script.read_word(word).ok_or_else(|| {
                let words = "lost@K, lost-submit@K, hang@K, dead@K, invalid@K, failed@K, panic@K, nan=T, oom=N, \
                             slow@K, memory=BYTES, binding=BYTES, gflops=N, gbps=N, watchdog=MS, \
                             say=A>B>C, context=N, pause=MS, loading=MS, stray=N, rounding=1, seed=S";
                BackendError::Unavailable(format!("fake device: unknown word {word:?}; expected {words}"))
            })?;
        }
        Ok(script)
    }
}

impl Script {
    /// What moving blocks and computing them takes after so many batches.
    pub(super) fn times(&self, batches: u64) -> GivenTimes {
        let is_dear = self.dear.is_some_and(|stretch| batches / stretch % 2 == 1);
        GivenTimes {
            byte: Duration::from_secs(u64::from(is_dear)),
            token: Duration::ZERO,
        }
    }

    fn read_word(&mut self, word: &str) -> Option<()> {
        if let Some((name, batch)) = word.split_once('@') {
            let batch = batch.parse().ok()?;
            self.batches(name)?.insert(batch);
            return Some(());
        }
        let (name, value) = word.split_once('=')?;
        if name == "say" {
            self.say = Some(Say::read(value)?);
            return Some(());
        }
        self.set(name, value.parse().ok()?)
    }

    /// The batches of a fault.
    fn batches(&mut self, name: &str) -> Option<&mut BTreeSet<u64>> {
        Some(match name {
            "lost" => &mut self.lost,
            "lost-submit" => &mut self.lost_submit,
            "hang" => &mut self.hang,
            "dead" => &mut self.dead,
            "invalid" => &mut self.invalid,
            "failed" => &mut self.failed,
            "panic" => &mut self.panic,
            "slow" => &mut self.slow,
            _ => return None,
        })
    }

    /// Sets a number; `None` if it is unknown, or out of range.
    fn set(&mut self, name: &str, number: u64) -> Option<()> {
        let milliseconds = Duration::from_millis(number);
        match name {
            "nan" => self.nan = Some(u32::try_from(number).ok()?),
            "context" => {
                let count = u32::try_from(number).ok()?;
                self.context = Some(CONTEXTS.contains(&count).then_some(count)?);
            }
            "oom" => self.oom = Some(u32::try_from(number).ok()?),
            "memory" => self.memory = Some(number),
            "binding" => self.binding = Some(number),
            "gflops" => self.gflops = Some(number),
            "gbps" => self.gbps = Some(number),
            "watchdog" => self.watchdog = Some(milliseconds),
            "pause" => self.pause = milliseconds,
            "loading" => self.loading = milliseconds,
            "stray" => self.stray = (number > 0).then_some(number),
            "dear" => self.dear = (number > 0).then_some(number),
            "rounding" => self.rounding = number != 0,
            "seed" => self.seed = number,
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests;
