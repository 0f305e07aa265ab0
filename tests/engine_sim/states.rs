//! Models that keep a state per sequence: the fake device folds every row into the state in its slot, so a wrong slot
//! or a stale state is a wrong token.

use crate::beams::searching;
use crate::faults::{faulty, request, scripted};
use crate::speculation::speculate;
use crate::world::{BLOCK_BYTES, Case, End, Random, case, check, expected, run};
use crate::{SEEDS_EACH, failing_while_shared, for_seeds, pass, variable};
use folio::engine::handle::Stats;
use folio::engine::request::Request;

const SEEDS: u64 = 1_000;

/// The case for a model that keeps states, with few slots beside those of running sequences.
pub(crate) fn with_states(random: &mut Random, mut case: Case) -> Case {
    case.shape.keeps_states = true;
    case.draft = None;
    case.config.state_snapshots = Some(random.below(9));
    if case.config.deterministic {
        // Rows that verify drafts round differently.
        case.config.speculation = None;
    }
    case
}

/// The case of a seed, for a model that keeps states: with choices, drafts and searches, and often in a small pool.
fn stateful(seed: u64) -> Case {
    let mut random = Random(!seed);
    if seed % 3 == 2 {
        return with_states(&mut random, searching(seed));
    }
    let mut case = case(seed);
    if seed % 3 == 1 {
        // What is predicted depends on the states.
        case.shape.keeps_states = true;
        speculate(&mut random, &mut case);
    }
    case.config.max_num_seqs = random.within(2, 5);
    case.config.max_num_batched_tokens = case.config.max_num_seqs + 4 + random.below(24);
    let blocks = u64::from(case.shape.model_len.div_ceil(4) + 2 + random.below(8));
    case.config.kv_cache_bytes = Some(blocks * BLOCK_BYTES * case.shape.windows.len() as u64);
    case.arrivals
        .iter_mut()
        .for_each(|arrival| arrival.turn /= 2);
    with_states(&mut random, case)
}

/// The case of a seed on a device that fails an early batch, while the steps in flight share what they compute.
fn failing_while_snapshots_are_shared(seed: u64) -> Case {
    let mut random = Random(!seed);
    let mut case = with_states(&mut random, failing_while_shared(seed));
    case.config.state_snapshots = Some(12);
    case
}

#[derive(Default)]
struct Totals {
    preemptions: u64,
    hits: u64,
    accepted: u64,
    rejected: u64,
}

impl Totals {
    fn add(&mut self, stats: &Stats) {
        self.preemptions += stats.preemptions;
        self.hits += stats.prefix_hits;
        self.accepted += stats.accepted_tokens();
        self.rejected += stats.draft_tokens - stats.accepted_tokens();
    }
}

#[test]
fn every_seed_gives_the_oracles_tokens() {
    let mut totals = Totals::default();
    let work = |seed, sum: &mut Totals| sum.add(&pass(seed, &stateful(seed)).stats);
    let join = |sum: Totals| {
        totals.preemptions += sum.preemptions;
        totals.hits += sum.hits;
        totals.accepted += sum.accepted;
        totals.rejected += sum.rejected;
    };
    for_seeds(SEEDS, work, join);
    let Totals {
        preemptions,
        hits,
        accepted,
        rejected,
    } = totals;
    println!(
        "{SEEDS} seeds: {preemptions} preemptions, {hits} cached, {accepted} accepted, {rejected} rejected"
    );
    assert!(preemptions > SEEDS / 4, "pools run out of blocks");
    assert!(hits > SEEDS, "prompts find snapshots");
    assert!(
        accepted > SEEDS / 2 && rejected > SEEDS / 2,
        "drafts are accepted and rejected"
    );
}

#[test]
fn states_start_again_on_faulty_devices() {
    for_seeds(
        SEEDS,
        |seed, ()| drop(pass(seed, &faulty(seed, stateful(seed)))),
        |()| (),
    );
}

#[test]
fn one_seed_with_states() {
    let seed = variable("FOLIO_SIM_SEED").unwrap_or(0);
    pass(seed, &stateful(seed));
}

#[test]
fn who_goes_on_from_an_unwritten_state_starts_over() {
    let work = |seed, (): &mut ()| drop(pass(seed, &failing_while_snapshots_are_shared(seed)));
    for_seeds(SEEDS_EACH, work, |()| ());
}

/// Requests one after the other, and how many of their prompts' tokens were cached.
fn cached(snapshots: u32, requests: Vec<Request>) -> Vec<u32> {
    let arrivals = requests
        .into_iter()
        .zip(0..)
        .map(|(request, index)| (30 * index, request))
        .collect();
    let mut case = scripted("", arrivals);
    case.shape.keeps_states = true;
    case.config.state_snapshots = Some(snapshots);
    let outcome = run(&case);
    check(&case, &outcome);
    let cached = |end: &End| {
        if let End::Finished(_, usage) = end {
            usage.cached.all
        } else {
            panic!("{end:?}")
        }
    };
    outcome
        .seen
        .iter()
        .map(|choices| cached(&choices[0].end))
        .collect()
}

/// Blocks have 4 tokens.
#[test]
fn snapshots_are_where_prompts_end_and_differ_and_where_answers_end() {
    let with = |prompt: Vec<u32>| Request {
        prompt: prompt.into(),
        ..request(0, 1, 3)
    };
    let prompt: Vec<u32> = (10..28).collect();
    let one = || with(prompt.clone());
    assert_eq!(
        cached(8, vec![one(), one()]),
        [0, 16],
        "the prompt's last whole block"
    );
    assert_eq!(cached(0, vec![one(), one()]), [0, 0], "without snapshots");
    let differs = |last: u32| with([&prompt[..10], &[last; 8]].concat());
    let found = cached(8, vec![one(), differs(90), differs(91), one()]);
    assert_eq!(
        found,
        [0, 0, 8, 16],
        "the first that differs computes the state there, and the next one finds it"
    );
    let mut case = scripted("", vec![(0, request(10, 18, 16))]);
    case.shape.keeps_states = true;
    let mut answered = expected(&case, &case.arrivals[0].request, 0).tokens;
    answered.splice(0..0, prompt.clone());
    let turn = |length: usize| with([&answered[..length], &[99; 3]].concat());
    let talk = vec![case.arrivals[0].request.clone(), turn(33), turn(33)];
    assert_eq!(
        cached(8, talk.clone()),
        [0, 32, 32],
        "the last whole block of an answer"
    );
    assert_eq!(
        cached(1, talk),
        [0, 16, 32],
        "of an answer only while there is room"
    );
}

#[test]
fn a_snapshot_costs_a_step() {
    let steps = |keeps_states: bool| {
        let mut case = scripted("", vec![(0, request(10, 18, 5))]);
        case.shape.keeps_states = keeps_states;
        let outcome = run(&case);
        check(&case, &outcome);
        outcome.stats.steps
    };
    assert_eq!(
        steps(true),
        steps(false) + 1,
        "the prompt's rest has a step of its own"
    );
}
