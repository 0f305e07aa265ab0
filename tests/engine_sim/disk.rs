//! The disk tier: files that later requests and later engines find, on a disk that is slow, full, shared with others
//! and partly wrong.

use crate::faults::faulty;
use crate::tiers::{dear, returning, returning_with_states};
use crate::world::{Case, Outcome, Random, check, compare, expected, run_with};
use crate::{caught, for_seeds};
use bytes::Bytes;
use folio::engine::disk::file::{block_of, file_name};
use folio::engine::disk::{Disk, DiskEvent, Form, Record, block_in, record_of};
use folio::engine::memory::BlockHash;
use folio::engine::memory::{HostSlot, Origin};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::ready;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Seeds of each scenario, which runs twice. Every planted bug below is found in the first few.
const SEEDS: u64 = 250;

/// The case of a seed.
type Cases = fn(u64) -> Case;
/// Files by name, which outlive an engine.
type Files = Rc<RefCell<BTreeMap<String, Bytes>>>;

/// A disk in memory. It answers some turns later; files vanish, cannot be written, or hold something else than they
/// should.
struct SlowDisk {
    files: Files,
    form: Form,
    random: Random,
    /// What has become of things, and in how many turns the engine is told.
    pending: VecDeque<(u32, DiskEvent)>,
}

impl SlowDisk {
    fn new(files: &Files, form: &Form, seed: u64) -> Self {
        let found = files
            .borrow()
            .keys()
            .filter_map(|name| block_of(name))
            .collect();
        let pending = [(0, DiskEvent::Found(found))].into();
        Self {
            files: files.clone(),
            form: form.clone(),
            random: Random(seed),
            pending,
        }
    }

    fn later(&mut self, event: DiskEvent) {
        let turns = self.random.below(6);
        self.pending.push_back((turns, event));
    }

    /// What becomes of a file: whole, or with the rest of its data lost, or one of another model or of another text.
    fn outcome(&mut self, origin: &Origin, data: &[u8]) -> Bytes {
        let record = record_of(&self.form, origin, data);
        let changed: Vec<u8> = data.iter().map(|byte| byte ^ 1).collect();
        match self.random.below(8) {
            0 => {
                let kept = record.len() - data.len() + data.len() / 16;
                [&record[..kept], &vec![0; record.len() - kept][..]]
                    .concat()
                    .into()
            }
            1 => {
                let form = Form {
                    fingerprint: [1; 32],
                    ..self.form.clone()
                };
                record_of(&form, &other_text(&form, origin, 0), &changed)
            }
            2 => record_of(&self.form, &other_text(&self.form, origin, 1), &changed),
            _ => record,
        }
    }
}

/// A block with other tokens, or of another model.
fn other_text(form: &Form, origin: &Origin, more: u32) -> Origin {
    let token_ids: Box<[u32]> = origin.token_ids.iter().map(|id| id + more).collect();
    let parent = BlockHash::root(&form.key(), None, None, None);
    Origin {
        key: (origin.key.0, parent.next(&form.key(), &token_ids)),
        parent,
        token_ids,
    }
}

impl Disk for SlowDisk {
    fn read(&mut self, slot: HostSlot, origin: Arc<Origin>) {
        let name = file_name(origin.key);
        if self.random.once_in(8) {
            // Another process has removed it since it was found.
            self.files.borrow_mut().remove(&name);
        }
        let file = self.files.borrow().get(&name).cloned();
        let sound = file.map(|file| block_in(&file, &self.form, &origin, None));
        if sound.as_ref().is_some_and(Result::is_err) {
            self.files.borrow_mut().remove(&name);
        }
        let data = sound.and_then(Result::ok);
        self.later(DiskEvent::Read {
            slot,
            data,
            took: Duration::ZERO,
        });
    }

    fn write(&mut self, origin: Arc<Origin>, data: Bytes) {
        let done = !self.random.once_in(10);
        if done {
            let whole = record_of(&self.form, &origin, &data);
            let (record, _) = Record::read(&whole, None).expect("what is written can be read");
            assert_eq!(
                self.form.check(&record),
                Ok(()),
                "its hash has the key of blocks without a salt"
            );
            let file = self.outcome(&origin, &data);
            self.files.borrow_mut().insert(file_name(origin.key), file);
        }
        self.later(DiskEvent::Written {
            key: origin.key,
            done,
        });
    }

    fn remove(&mut self, key: (usize, BlockHash)) {
        self.files.borrow_mut().remove(&file_name(key));
    }

    /// The end of a turn is when there is nothing more to take.
    fn take(&mut self) -> Option<DiskEvent> {
        let due = self.pending.iter().position(|(turns, _)| *turns == 0);
        if due.is_none() {
            self.pending.iter_mut().for_each(|(turns, _)| *turns -= 1);
        }
        self.pending.remove(due?).map(|(_, event)| event)
    }

    fn wait(&mut self) -> Pin<Box<dyn Future<Output = DiskEvent> + '_>> {
        let (_, event) = self
            .pending
            .pop_front()
            .expect("an engine that waits has asked for something");
        Box::pin(ready(event))
    }
}

/// Runs a case twice with the same files, as a process and its successor, and checks both. An own prompt of the first
/// run is no stranger in the second, so there only tokens are compared.
fn run_twice(case: &Case, seed: u64) -> [Outcome; 2] {
    let files = Files::default();
    let disk = |seed| {
        let files = &files;
        move |form: &Form| Some(Box::new(SlowDisk::new(files, form, seed)) as Box<dyn Disk>)
    };
    let first = run_with(case, disk(seed));
    check(case, &first);
    let second = run_with(case, disk(!seed));
    compare(case, &second, |index, choice| {
        expected(case, &case.arrivals[index].request, choice as u32)
    });
    [first, second]
}

/// The case on a device that fails some batches.
fn failing(seed: u64, mut case: Case) -> Case {
    let mut random = Random(seed);
    case.script
        .failed
        .extend([0; 4].map(|_| u64::from(random.within(1, 40))));
    case
}

#[derive(Default)]
struct Sum {
    written: u64,
    read: u64,
    hits: u64,
    hits_of_successor: u64,
}

fn pass(seed: u64, case: &Case, sum: &mut Sum) {
    let [first, second] =
        caught(|| run_twice(case, seed)).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    sum.written += first.stats.files_written + second.stats.files_written;
    sum.read += first.stats.files_read + second.stats.files_read;
    sum.hits += first.stats.prefix_hits_disk;
    sum.hits_of_successor += second.stats.prefix_hits_disk;
}

fn sums(cases: impl Fn(u64) -> Case + Sync) -> Sum {
    let mut total = Sum::default();
    let join = |sum: Sum| {
        total.written += sum.written;
        total.read += sum.read;
        total.hits += sum.hits;
        total.hits_of_successor += sum.hits_of_successor;
    };
    for_seeds(SEEDS, |seed, sum| pass(seed, &cases(seed), sum), join);
    let Sum {
        written,
        read,
        hits,
        hits_of_successor,
    } = total;
    println!(
        "{written} files written, {read} read, {hits} tokens found, {hits_of_successor} after a restart"
    );
    total
}

#[test]
fn files_are_written_and_read_and_every_token_is_right() {
    let total = sums(returning);
    assert!(
        total.written > 5 * SEEDS && total.read > 2 * SEEDS,
        "blocks are written and read"
    );
    assert!(total.hits > SEEDS / 2, "files save computing");
    assert!(
        total.hits < 2 * SEEDS,
        "what host memory holds does not count"
    );
    assert!(
        total.hits_of_successor > 12 * SEEDS,
        "they outlive the engine, also for those that wait in a queue"
    );
    assert!(
        total.read * 10 < 108 * SEEDS,
        "blocks that no window reaches are not read"
    );
}

#[test]
fn states_are_written_and_read_with_their_blocks() {
    let total = sums(returning_with_states);
    assert!(total.hits > SEEDS / 2, "files save computing");
    assert!(
        total.hits_of_successor > 14 * SEEDS,
        "blocks are read with the states after them"
    );
    let total = sums(|seed| faulty(seed, returning_with_states(seed)));
    assert!(
        total.hits_of_successor > 13 * SEEDS,
        "files are found after faults too"
    );
}

#[test]
fn states_of_batches_that_fail_are_not_written() {
    let total = sums(|seed| failing(seed, returning_with_states(seed)));
    assert!(
        total.hits_of_successor > SEEDS,
        "files are found after failures too"
    );
}

#[test]
fn faulty_devices_write_no_wrong_files() {
    let total = sums(|seed| faulty(seed, returning(seed)));
    assert!(
        total.hits_of_successor > SEEDS,
        "files are found after faults too"
    );
}

#[test]
fn files_are_right_where_moving_becomes_dear() {
    for (case, written_max) in [
        (returning as Cases, 29 * SEEDS),
        (returning_with_states, 39 * SEEDS),
    ] {
        let total = sums(|seed| dear(seed, case(seed)));
        assert!(
            total.hits_of_successor > 2 * SEEDS,
            "files are found while moving is cheap"
        );
        assert!(
            total.written < written_max,
            "few are written while it is dear"
        );
    }
}

#[test]
fn chunks_of_deterministic_engines_are_read_whole() {
    let strict = |seed| {
        let mut case = returning(seed);
        case.config.deterministic = true;
        case.config.max_num_batched_tokens = case.config.max_num_batched_tokens.max(8);
        case
    };
    assert!(sums(strict).hits_of_successor > SEEDS, "files are found");
}
