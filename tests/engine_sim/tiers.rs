//! The host tier: small pools whose blocks, and snapshots of states, leave and come back, and the bugs that this
//! invites.

use crate::faults::faulty;
use crate::states::with_states;
use crate::world::{BLOCK_BYTES, Case, Outcome, Random, case};
use crate::{SEEDS_EACH, for_seeds, pass};

/// A case whose requests return to a few documents, under several salts, on a pool that holds few of them, with host
/// memory for about as many.
pub(crate) fn returning(seed: u64) -> Case {
    let (mut random, mut case) = (Random(!seed), case(seed));
    let groups = case.shape.windows.len() as u64;
    (case.config.prefix_caching, case.config.deterministic) = (true, false);
    case.config.max_num_seqs = random.within(1, 4);
    case.config.max_num_batched_tokens = case.config.max_num_seqs + 4 + random.below(24);
    let longest = u64::from(case.shape.model_len.div_ceil(4));
    case.config.kv_cache_bytes =
        Some((longest + 2 + u64::from(random.below(4))) * BLOCK_BYTES * groups);
    case.config.kv_host_bytes = u64::from(random.within(4, 40)) * BLOCK_BYTES;
    let documents: Vec<Vec<u32>> = (0..3)
        .map(|_| {
            (0..case.shape.model_len)
                .map(|_| random.within(8, case.shape.vocab - 1))
                .collect()
        })
        .collect();
    let pattern = case.arrivals.clone();
    let (mut turn, count) = (0, random.within(8, 18));
    case.arrivals = (0..count as usize)
        .map(|index| {
            let mut arrival = pattern[index % pattern.len()].clone();
            let (document, length) = (
                random.below(3) as usize,
                random.within(9, case.shape.model_len - 4),
            );
            arrival.request.prompt = documents[document][..length as usize].into();
            arrival.request.cache_salt =
                [None, None, None, Some("a".to_owned())][random.below(4) as usize].clone();
            turn += random.below(6);
            (arrival.turn, arrival.request.params.max_tokens) = (turn, Some(random.within(1, 6)));
            arrival.request.params.min_tokens = 0;
            arrival
                .aborts
                .iter_mut()
                .flatten()
                .for_each(|abort| *abort = turn + random.below(25));
            arrival
        })
        .collect();
    case
}

/// The case on a device on which moving a block is dearer than computing it in every other stretch of some batches.
pub(crate) fn dear(seed: u64, mut case: Case) -> Case {
    case.script.dear = Some(u64::from(Random(seed).within(1, 12)));
    case
}

/// [`returning`] for a model that keeps states, with slots for few snapshots.
pub(crate) fn returning_with_states(seed: u64) -> Case {
    let mut case = with_states(&mut Random(seed ^ 0x57a7e), returning(seed));
    case.config.state_snapshots = case.config.state_snapshots.map(|count| count.clamp(1, 4));
    case
}

#[derive(Default)]
struct Sum {
    saved: u64,
    restored: u64,
    hits: u64,
}

impl Sum {
    fn add(&mut self, outcome: &Outcome) {
        self.saved += outcome.stats.blocks_saved;
        self.restored += outcome.stats.blocks_restored;
        self.hits += outcome.stats.prefix_hits_host;
    }
}

#[test]
fn blocks_leave_and_return_and_every_token_is_right() {
    let mut total = Sum::default();
    let join = |sum: Sum| {
        total.saved += sum.saved;
        total.restored += sum.restored;
        total.hits += sum.hits;
    };
    for_seeds(
        SEEDS_EACH,
        |seed, sum: &mut Sum| sum.add(&pass_returning(seed)),
        join,
    );
    println!(
        "{} blocks saved, {} restored, {} tokens found",
        total.saved, total.restored, total.hits
    );
    assert!(
        total.saved > 10 * SEEDS_EACH && total.restored > 5 * SEEDS_EACH,
        "blocks move"
    );
    assert!(total.hits > 16 * SEEDS_EACH, "host memory saves computing");
}

fn pass_returning(seed: u64) -> Outcome {
    pass(seed, &returning(seed))
}

/// What blocks with states move in all, on devices that `spoil` makes of sound ones.
fn sums_with_states(spoil: impl Fn(u64, Case) -> Case + Sync) -> Sum {
    let mut total = Sum::default();
    let join = |sum: Sum| {
        total.restored += sum.restored;
        total.hits += sum.hits;
    };
    let work =
        |seed, sum: &mut Sum| sum.add(&pass(seed, &spoil(seed, returning_with_states(seed))));
    for_seeds(SEEDS_EACH, work, join);
    println!(
        "{} blocks and states restored, {} tokens found",
        total.restored, total.hits
    );
    total
}

#[test]
fn states_leave_and_return_with_their_blocks() {
    let total = sums_with_states(|_, case| case);
    assert!(total.restored > 5 * SEEDS_EACH, "blocks and states move");
    assert!(total.hits > 16 * SEEDS_EACH, "host memory saves computing");
}

#[test]
fn states_return_on_faulty_devices() {
    assert!(
        sums_with_states(faulty).restored > SEEDS_EACH,
        "states return on faulty devices too"
    );
    assert!(sums_with_states(failing_and_refusing).restored > SEEDS_EACH);
}

/// The case on a device that refuses a batch while the one before it is in flight, and then fails that one.
fn failing_and_refusing(seed: u64, mut case: Case) -> Case {
    for first in [1, 12].map(|first| u64::from(Random(seed).within(first, first + 10))) {
        case.script.failed.insert(first);
        case.script.invalid.insert(first + 1);
    }
    case
}

#[test]
fn blocks_that_are_computed_while_moving_is_dear_are_right() {
    let work = |seed, sum: &mut Sum| {
        let cases = [
            dear(seed, returning(seed)),
            faulty(seed, dear(seed, returning(seed))),
        ];
        cases.iter().for_each(|case| sum.add(&pass(seed, case)));
    };
    let mut restored = 0;
    for_seeds(SEEDS_EACH, work, |sum| restored += sum.restored);
    assert!(restored > SEEDS_EACH, "blocks return while moving is cheap");
    assert!(
        sums_with_states(dear).restored > SEEDS_EACH,
        "and so do states"
    );
}

#[test]
fn faulty_devices_lose_nothing_that_host_memory_holds() {
    let work = |seed, sum: &mut Sum| sum.add(&pass(seed, &faulty(seed, returning(seed))));
    let mut restored = 0;
    for_seeds(SEEDS_EACH, work, |sum| restored += sum.restored);
    assert!(restored > SEEDS_EACH, "blocks return on faulty devices too");
}
