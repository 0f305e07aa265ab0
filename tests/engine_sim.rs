//! The simulator: the engine under thousands of seeds against the plain-list oracle, and proof that it would notice.
//!
//! A failing seed prints the command that runs it alone: `FOLIO_SIM_SEED=N cargo test --test engine_sim one_seed`.

#[path = "engine_sim/world.rs"]
mod world;

use folio::engine::faults::Fault;
use folio::engine::handle::Stats;
use folio::engine::scheduler::Phase;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use world::{Case, Outcome, case, check, run};

const SEEDS: u64 = 10_000;
const SEEDS_PER_FAULT: u64 = 2_000;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs and checks; the panic's message if something is wrong. Expected failures do not print.
fn attempt(case: &Case, quiet: bool) -> Result<Outcome, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                loud(info);
            }
        }));
    });
    QUIET.set(quiet);
    let result = catch_unwind(AssertUnwindSafe(|| {
        let outcome = run(case);
        check(case, &outcome);
        outcome
    }));
    QUIET.set(false);
    result.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_string()
    })
}

/// Works through seeds on all cores, with a sum of what each found.
fn for_seeds<T: Default + Send>(seeds: u64, work: impl Fn(u64, &mut T) + Sync, mut join: impl FnMut(T)) {
    let next = AtomicU64::new(0);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        let worker = || {
            let mut sum = T::default();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= seeds {
                    return sum;
                }
                work(seed, &mut sum);
            }
        };
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(worker)).collect();
        for worker in workers {
            join(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
    });
}

fn pass(seed: u64, case: &Case) -> Outcome {
    attempt(case, false).unwrap_or_else(|error| {
        panic!("seed {seed}: {error}\nFOLIO_SIM_SEED={seed} cargo test --test engine_sim one_seed")
    })
}

#[derive(Default)]
struct Totals {
    stats: Stats,
    aborted_in: BTreeMap<Phase, u32>,
}

impl Totals {
    fn add(&mut self, stats: &Stats, aborted_in: &BTreeMap<Phase, u32>) {
        self.stats.steps += stats.steps;
        self.stats.preemptions += stats.preemptions;
        self.stats.prefix_hits += stats.prefix_hits;
        self.stats.generation_tokens += stats.generation_tokens;
        for (&phase, count) in aborted_in {
            *self.aborted_in.entry(phase).or_default() += count;
        }
    }
}

#[test]
fn every_seed_gives_the_oracles_tokens() {
    let mut totals = Totals::default();
    let work = |seed, sum: &mut Totals| {
        let outcome = pass(seed, &case(seed));
        sum.add(&outcome.stats, &outcome.aborted_in);
    };
    for_seeds(SEEDS, work, |sum| totals.add(&sum.stats, &sum.aborted_in));
    println!("{SEEDS} seeds: {:?} {:?}", totals.stats, totals.aborted_in);
    // A simulation that never gets into trouble proves nothing.
    assert!(totals.stats.preemptions > SEEDS / 2, "pools get tight");
    assert!(totals.stats.prefix_hits > SEEDS, "prefixes are shared");
    assert_eq!(totals.aborted_in.len(), 4, "readers leave in every phase");
}

#[test]
fn one_seed() {
    let seed = std::env::var("FOLIO_SIM_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    pass(seed, &case(seed));
}

#[test]
fn every_planted_bug_is_found() {
    const FAULTS: [Fault; 12] = [
        Fault::MissingCopyOnWrite,
        Fault::EarlyRelease,
        Fault::HashOfPartBlock,
        Fault::SaltIgnored,
        Fault::FullHitKept,
        Fault::QueuedAbortCountLost,
        Fault::StaleHash,
        Fault::SlotOffByOne,
        Fault::PendingTokenLost,
        Fault::PenaltyWithoutPending,
        Fault::FeedSlotReusedEarly,
        Fault::WindowBlockFreedEarly,
    ];
    for fault in FAULTS {
        let with_fault = |seed| {
            let mut case = case(seed);
            case.faults.fault = Some(fault);
            case
        };
        let found = (0..SEEDS_PER_FAULT).find_map(|seed| Some((seed, attempt(&with_fault(seed), true).err()?)));
        let (seed, error) = found.unwrap_or_else(|| panic!("{fault:?} is not found in {SEEDS_PER_FAULT} seeds"));
        pass(seed, &case(seed));
        println!("{fault:?}: seed {seed}: {}", error.lines().next().unwrap_or_default());
    }
}
