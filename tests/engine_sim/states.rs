//! Models that keep a state per sequence: the fake device folds every row into the state in its slot, so a wrong slot
//! or a stale state is a wrong token.

use crate::faults::faulty;
use crate::world::{BLOCK_BYTES, Case, Random, case};
use crate::{SEEDS_PER_FAULT, attempt, for_seeds, pass};
use folio::config::Speculation;
use folio::engine::faults::InjectedFault;
use folio::engine::handle::Stats;

const SEEDS: u64 = 1_000;

/// The case of a seed, for a model that keeps states. Its pool is small, and requests have one choice each.
pub(crate) fn stateful(seed: u64) -> Case {
    let mut random = Random(!seed);
    let mut case = case(seed);
    case.shape.keeps_states = true;
    case.draft = None;
    case.config.speculation = Some(Speculation::SINGLE_SEQUENCE);
    case.config.max_num_seqs = random.within(2, 5);
    case.config.max_num_batched_tokens = case.config.max_num_seqs + 4 + random.below(24);
    let blocks = u64::from(case.shape.model_len.div_ceil(4) + 2 + random.below(4));
    case.config.kv_cache_bytes = Some(blocks * BLOCK_BYTES * case.shape.windows.len() as u64);
    for arrival in &mut case.arrivals {
        arrival.turn /= 2;
        arrival.request.params.n = 1;
        arrival.aborts.truncate(1);
    }
    case
}

#[test]
fn every_seed_gives_the_oracles_tokens() {
    let mut totals = Stats::default();
    let work = |seed, sum: &mut Stats| {
        let stats = pass(seed, &stateful(seed)).stats;
        sum.preemptions += stats.preemptions;
        sum.generation_tokens += stats.generation_tokens;
        assert_eq!((stats.prefix_hits, stats.draft_tokens), (0, 0), "seed {seed}: neither is possible with a state");
    };
    let mut join = |sum: Stats| {
        totals.preemptions += sum.preemptions;
        totals.generation_tokens += sum.generation_tokens;
    };
    for_seeds(SEEDS, work, &mut join);
    println!("{SEEDS} seeds: {} preemptions, {} tokens", totals.preemptions, totals.generation_tokens);
    assert!(totals.preemptions > SEEDS / 4, "pools run out of blocks");
}

#[test]
fn states_start_again_on_faulty_devices() {
    for_seeds(SEEDS, |seed, ()| drop(pass(seed, &faulty(seed, stateful(seed)))), |()| ());
}

#[test]
fn every_planted_bug_is_found() {
    for fault in [InjectedFault::StateSlotShared, InjectedFault::StateKeptInPreemption] {
        let with_fault = |seed| {
            let mut case = stateful(seed);
            case.faults.fault = Some(fault);
            case
        };
        let found = (0..SEEDS_PER_FAULT).find_map(|seed| Some((seed, attempt(&with_fault(seed), true).err()?)));
        let (seed, error) = found.unwrap_or_else(|| panic!("{fault:?} is not found in {SEEDS_PER_FAULT} seeds"));
        pass(seed, &stateful(seed));
        println!("{fault:?}: seed {seed}: {}", error.lines().next().unwrap_or_default());
    }
}
