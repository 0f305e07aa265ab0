//! The simulator: runs the engine with thousands of seeds against a simple oracle. Bugs that change results fail the
//! oracle; bugs that only cost time miss a floor (`costs`). The patches in `tests/bugs` prove that it notices them.
//!
//! A failing seed prints the command that runs it alone: `FOLIO_SIM_SEED=N cargo test --test engine_sim one_seed`.
//! `FOLIO_SIM_SEEDS` sets how many seeds are tried.

mod adapters;
mod beams;
mod costs;
mod counters;
mod deterministic;
mod disk;
mod faults;
mod images;
mod predictors;
mod round_robin;
mod rules;
mod seeds;
mod speculation;
mod states;
mod tiers;
mod watchdog;
mod watched;
mod world;

use folio::engine::handle::Stats;
use folio::engine::scheduler::Phase;
use folio::plan::Window;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use world::{BLOCK_BYTES, Case, End, Outcome, Random, case, check, run};

/// Enough for a quick check; CI sets `FOLIO_SIM_SEEDS` to 10,000.
const SEEDS_DEFAULT: u64 = 1_000;
/// Seeds of each kind of case beside the general one.
const SEEDS_EACH: u64 = 2_000;

/// Runs `work`. Returns the panic's message if it panics.
fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or(panic.downcast_ref::<&str>().copied())
            .unwrap_or("a panic")
            .to_string()
    })
}

/// Ends the work on all seeds if one of them fails.
struct EndOnPanic<'a>(&'a AtomicU64);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(u64::MAX / 2, Ordering::Relaxed);
        }
    }
}

/// Processes seeds on all cores and combines their results.
fn for_seeds<T: Default + Send>(
    seeds: u64,
    work: impl Fn(u64, &mut T) + Sync,
    mut join: impl FnMut(T),
) {
    let next = AtomicU64::new(0);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        let worker = || {
            let mut sum = T::default();
            let _end = EndOnPanic(&next);
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
            join(
                worker
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            );
        }
    });
}

/// Passes the case of each seed, of which one in ten preempts a sequence, and one in ten finds a prefix.
fn pass_with_preemptions_and_hits(seeds: u64, case: impl Fn(u64) -> Case + Sync) {
    let (mut preemptions, mut hits) = (0, 0);
    let work = |seed, sum: &mut (u64, u64)| {
        let stats = pass(seed, &case(seed)).stats;
        *sum = (sum.0 + stats.preemptions, sum.1 + stats.prefix_hits);
    };
    for_seeds(seeds, work, |sum: (u64, u64)| {
        (preemptions, hits) = (preemptions + sum.0, hits + sum.1);
    });
    assert!(
        preemptions > seeds / 10 && hits > seeds / 10,
        "{preemptions} preemptions, {hits} hits"
    );
}

/// Runs and checks a case.
fn pass(seed: u64, case: &Case) -> Outcome {
    let work = || {
        let outcome = run(case);
        check(case, &outcome);
        outcome
    };
    caught(work).unwrap_or_else(|error| {
        panic!("seed {seed}: {error}\nFOLIO_SIM_SEED={seed} cargo test --test engine_sim one_seed")
    })
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().expect("the variable is a number"))
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
        self.stats.draft_tokens += stats.draft_tokens;
        self.stats.accepted_at[0] += stats.accepted_tokens();
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
    let seeds = variable("FOLIO_SIM_SEEDS").unwrap_or(SEEDS_DEFAULT);
    for_seeds(seeds, work, |sum| totals.add(&sum.stats, &sum.aborted_in));
    println!("{seeds} seeds: {:?} {:?}", totals.stats, totals.aborted_in);
    // The simulation proves nothing unless these situations occur.
    assert!(
        totals.stats.preemptions > seeds / 2,
        "pools run out of blocks"
    );
    assert!(totals.stats.prefix_hits > seeds, "prefixes are shared");
    assert_eq!(totals.aborted_in.len(), 4, "readers leave in every phase");
    let rejected = totals.stats.draft_tokens - totals.stats.accepted_tokens();
    assert!(
        totals.stats.accepted_tokens() > 2 * seeds && rejected > 2 * seeds,
        "drafts are accepted and rejected"
    );
}

#[test]
fn one_seed() {
    let seed = variable("FOLIO_SIM_SEED").unwrap_or(0);
    pass(seed, &case(seed));
}

/// The case of a seed on a device that fails two batches.
fn failing(seed: u64) -> Case {
    let (mut random, mut case) = (Random(!seed), case(seed));
    case.script
        .failed
        .extend([0; 2].map(|_| u64::from(random.within(1, 40))));
    case
}

/// The case of a seed on a device that fails an early batch, while the steps in flight share what they compute: all
/// prompts begin one document, and its window soon passes the blocks that were not filled.
fn failing_while_shared(seed: u64) -> Case {
    let (mut random, mut case) = (Random(!seed), case(seed));
    case.shape.windows = vec![Some(Window::Last(random.within(3, 5)))];
    (
        case.config.prefix_caching,
        case.config.look_ahead,
        case.config.deterministic,
    ) = (true, true, false);
    (case.config.max_num_seqs, case.config.max_num_batched_tokens) = (6, random.within(10, 20));
    case.config.kv_cache_bytes = Some(200 * BLOCK_BYTES);
    case.script.failed.insert(random.within(1, 6).into());
    let document: Vec<_> = (0..case.shape.model_len - 1)
        .map(|_| random.within(8, case.shape.vocab - 1))
        .collect();
    let shortest = random.within(4, 12);
    for arrival in &mut case.arrivals {
        let request = &mut arrival.request;
        request.prompt = document[..random.within(shortest, shortest + 11) as usize].into();
        (
            request.cache_salt,
            request.pooling,
            request.params.prompt_logprobs,
        ) = (None, None, None);
        arrival.turn = 0;
    }
    case
}

#[test]
fn what_shares_unfilled_blocks_starts_over() {
    for_seeds(
        SEEDS_EACH,
        |seed, ()| drop(pass(seed, &failing_while_shared(seed))),
        |()| (),
    );
}

#[test]
fn penalties_do_not_depend_on_look_ahead() {
    let work = |seed, penalized: &mut u64| {
        let mut case = case(seed);
        for arrival in &mut case.arrivals {
            arrival.aborts.fill(None);
            arrival.request.params.draw.presence_penalty = 0.7;
            *penalized += 1;
        }
        let mut with = |look_ahead| {
            case.config.look_ahead = look_ahead;
            tokens(&pass(seed, &case))
        };
        assert_eq!(
            with(true),
            with(false),
            "seed {seed}: tokens with look-ahead on and off"
        );
    };
    let mut penalized = 0;
    for_seeds(500, work, |sum| penalized += sum);
    assert!(penalized > 1000, "penalties are used");
}

/// Tokens and finish reasons, without cache hits, which may depend on other requests.
fn tokens(outcome: &Outcome) -> Vec<Vec<(Vec<u32>, String)>> {
    let end = |end: &End| match end {
        End::Finished(reason, _) => format!("{reason:?}"),
        other => format!("{other:?}"),
    };
    let choice = |seen: &world::Seen| (seen.tokens.clone(), end(&seen.end));
    outcome
        .seen
        .iter()
        .map(|choices| choices.iter().map(choice).collect())
        .collect()
}

#[test]
fn a_thousand_aborts_leave_the_pool_whole_and_the_survivors_alone() {
    let work = |seed, aborted_in: &mut BTreeMap<Phase, u32>| {
        let mut random = Random(seed);
        let mut case = case(1_000_000 + seed);
        case.config.prefix_caching = true;
        let mut quiet = case.clone();
        quiet
            .arrivals
            .iter_mut()
            .for_each(|arrival| arrival.aborts.fill(None));
        for arrival in &mut case.arrivals {
            arrival.request.params.n = arrival.request.params.n.max(1 + random.below(2));
            arrival
                .aborts
                .resize(arrival.request.params.n as usize, None);
            let turn = arrival.turn;
            arrival
                .aborts
                .iter_mut()
                .for_each(|abort| *abort = random.once_in(2).then(|| turn + random.below(30)));
        }
        for (quiet, loud) in quiet.arrivals.iter_mut().zip(&case.arrivals) {
            quiet.request = loud.request.clone();
            quiet.aborts = vec![None; loud.aborts.len()];
        }
        let (loud, quiet) = (pass(seed, &case), tokens(&pass(seed, &quiet)));
        for (loud, quiet) in tokens(&loud).iter().flatten().zip(quiet.iter().flatten()) {
            assert!(
                loud.1 == "Aborted" || loud == quiet,
                "seed {seed}: a survivor's tokens are those of its quiet run"
            );
        }
        for (&phase, count) in &loud.aborted_in {
            *aborted_in.entry(phase).or_default() += count;
        }
    };
    let mut aborted_in = BTreeMap::new();
    let mut join = |sum: BTreeMap<Phase, u32>| {
        sum.into_iter()
            .for_each(|(phase, count)| *aborted_in.entry(phase).or_insert(0) += count);
    };
    for_seeds(400, work, &mut join);
    println!("{aborted_in:?}");
    assert!(
        aborted_in.values().sum::<u32>() > 1000,
        "a thousand readers leave: {aborted_in:?}"
    );
    let phases = [
        Phase::Queued,
        Phase::Prefill,
        Phase::Decode,
        Phase::DecodeInFlight,
    ];
    assert!(
        phases.iter().all(|phase| aborted_in.get(phase) > Some(&20)),
        "in every phase: {aborted_in:?}"
    );
}

/// Seeds of steps with little room, in which tokens that constraints force compete with those of other answers, with
/// drafts, and with prompts.
const TIGHT: [u64; 5] = [6_224, 6_646, 14_339, 17_419, 19_585];

#[test]
fn nobody_who_runs_waits_more_than_two_steps() {
    let first = 1_000;
    let work = |index: u64, runs: &mut u64| {
        let seed = match index.checked_sub(first) {
            Some(tight) => TIGHT[tight as usize],
            None => index,
        };
        let mut case = case(seed);
        case.arrivals
            .iter_mut()
            .for_each(|arrival| arrival.aborts.fill(None));
        let outcome = pass(seed, &case);
        // A preempted sequence is not running, so its gap is longer.
        if outcome.stats.preemptions == 0 {
            // Forced tokens come with the token before them; then each may take a step.
            let forced_max = if case.config.deterministic {
                rules::FORCED_MAX as u32
            } else {
                0
            };
            assert!(
                outcome.gap_max <= 3 + forced_max,
                "seed {seed}: {} steps from token to token",
                outcome.gap_max
            );
            *runs += 1;
        }
    };
    let mut runs = 0;
    for_seeds(first + TIGHT.len() as u64, work, |sum| runs += sum);
    assert!(runs > 300, "most pools have room");
}

#[test]
fn what_a_failed_batch_should_have_filled_is_not_used() {
    for_seeds(
        SEEDS_EACH,
        |seed, ()| drop(pass(seed, &failing(seed))),
        |()| (),
    );
}
