//! Drafts from layers of the model that predict further tokens: they change no answer, whatever becomes of blocks, and
//! are right wherever the rows that they need are there.

use crate::faults::faulty;
use crate::speculation::speculate;
use crate::states::with_states;
use crate::tiers::returning;
use crate::world::{Case, Random, case};
use crate::{for_seeds, pass};
use folio::config::SpeculationMethod;
use folio::engine::handle::Stats;

/// The same case with drafts from the model's own layers, but for some requests that are predicted.
fn by_layers(seed: u64, mut case: Case) -> Case {
    let mut random = Random(!seed);
    case.draft = None;
    if case.config.speculation.is_none() {
        speculate(&mut random, &mut case);
    }
    if let Some(settings) = &mut case.config.speculation {
        settings.method = SpeculationMethod::Mtp;
        settings.num_speculative_tokens = random.within(1, 4);
    }
    for arrival in &mut case.arrivals {
        arrival.request.predicted.take_if(|_| random.once_in(2));
    }
    case
}

/// The case of a seed: with states, on small pools beside host memory, or neither.
fn predicting(seed: u64) -> Case {
    match seed % 3 {
        0 => by_layers(seed, case(seed)),
        1 => by_layers(seed, returning(seed)),
        _ => {
            let mut case = case(seed);
            case.config.deterministic = false;
            case.shape.keeps_states = true;
            let case = by_layers(seed, case);
            with_states(&mut Random(seed), case)
        }
    }
}

#[derive(Default)]
struct Drafts {
    accepted: u64,
    drafted: u64,
}

impl Drafts {
    fn add(&mut self, stats: &Stats) {
        self.accepted += stats.accepted_tokens();
        self.drafted += stats.draft_tokens;
    }

    fn join(&mut self, other: &Self) {
        self.accepted += other.accepted;
        self.drafted += other.drafted;
    }
}

#[test]
fn drafts_of_layers_change_no_answer() {
    let work = |seed, sum: &mut Drafts| sum.add(&pass(seed, &predicting(seed)).stats);
    let mut all = Drafts::default();
    for_seeds(450, work, |sum| all.join(&sum));
    let Drafts { accepted, drafted } = all;
    assert!(
        accepted > 500 && accepted < drafted,
        "{accepted} of {drafted} drafts are accepted"
    );
}

#[test]
fn drafts_of_layers_survive_devices_that_fail() {
    let work = |seed, (): &mut ()| drop(pass(seed, &faulty(seed, predicting(seed))));
    for_seeds(300, work, |()| ());
}

/// Where no block is shared by sequences that go on differently, and nothing but the tokens decides what is drawn.
fn undisturbed(seed: u64) -> Case {
    let mut case = predicting(3 * seed + 2 * (seed % 2));
    (case.config.prefix_caching, case.script.nan) = (false, None);
    for arrival in &mut case.arrivals {
        let request = &mut arrival.request;
        (request.predicted, request.params.constraint) = (None, None);
        request.params.n = 1;
        arrival.aborts.truncate(1);
    }
    case
}

#[test]
fn layers_guess_every_token_that_follows_from_their_rows() {
    let work = |seed, sum: &mut Drafts| {
        let stats = pass(seed, &undisturbed(seed)).stats;
        sum.add(&stats);
        assert_eq!(
            stats.accepted_tokens(),
            stats.draft_tokens,
            "seed {seed}: a guess is wrong"
        );
    };
    let mut all = Drafts::default();
    for_seeds(400, work, |sum| all.join(&sum));
    assert!(all.drafted > 3_000, "{} drafts", all.drafted);
}

/// One of four guesses is wrong and is refused, with those after it in the same step. Others are as right as before.
#[test]
fn layers_guess_as_well_after_refused_drafts() {
    let work = |seed, sum: &mut Drafts| {
        let mut case = undisturbed(seed);
        case.script.stray = Some(4);
        sum.add(&pass(seed, &case).stats);
    };
    let mut all = Drafts::default();
    for_seeds(400, work, |sum| all.join(&sum));
    let Drafts { accepted, drafted } = all;
    assert!(
        drafted > 1_000 && 2 * accepted > drafted && accepted < drafted,
        "{accepted} of {drafted} drafts are accepted"
    );
}
