//! Speculation: drafts that are often right and sometimes wrong, in every kind of request, change no answer.

use crate::faults::faulty;
use crate::world::{BLOCK_BYTES, Case, End, Random, Shape, case, compare, expected, run};
use crate::{for_seeds, pass};
use folio::backend::fake::Script;
use folio::config::{Speculation, SpeculationMethod};
use folio::engine::request::Request;
use folio::plan::Window;

/// Adds speculation to a case. Most requests predict their answer, with mistakes; the others look their last tokens up.
pub(crate) fn speculate(random: &mut Random, case: &mut Case) {
    let prompt_lookup_max = random.within(1, 3);
    case.config.speculation = Some(Speculation {
        method: SpeculationMethod::Ngram,
        num_speculative_tokens: random.within(1, 6),
        prompt_lookup_min: random.within(1, prompt_lookup_max),
        prompt_lookup_max,
        disable_by_batch_size: None,
    });
    let mistakes = random.within(2, 8);
    for index in 0..case.arrivals.len() {
        if index > 0 && random.once_in(3) {
            follow_up(random, case, index);
        }
        let request = &case.arrivals[index].request;
        if request.pooling.is_none() && request.params.beams.is_none() && !random.once_in(4) {
            let predicted = spoilt(random, case, request, mistakes);
            case.arrivals[index].request.predicted = Some(predicted.into());
        }
    }
    if let Some(settings) = case
        .config
        .speculation
        .as_mut()
        .filter(|_| random.once_in(4))
    {
        settings.disable_by_batch_size = Some(random.within(1, 3));
    }
}

/// Makes drafts come from a draft model, which often guesses right, for half of the requests with a prediction. It has
/// the layers of the model, or a single one, which sees all tokens if a layer of the model does.
fn draft_model(random: &mut Random, case: &mut Case) {
    for arrival in &mut case.arrivals {
        arrival.request.predicted.take_if(|_| random.once_in(2));
    }
    let widest = case
        .shape
        .windows
        .iter()
        .copied()
        .max_by_key(|window| window.map_or(u32::MAX, Window::tokens));
    let windows = if random.once_in(3) {
        widest.into_iter().collect()
    } else {
        case.shape.windows.clone()
    };
    let stray = Some(u64::from(random.within(2, 8)));
    let script = Script {
        seed: random.below(1000).into(),
        stray,
        ..Script::default()
    };
    let shape = Shape {
        windows,
        ..case.shape.clone()
    };
    set_draft_model(case, shape, script);
}

/// Adds a draft model, with as many blocks as before.
fn set_draft_model(case: &mut Case, shape: Shape, script: Script) {
    let blocks = u64::from(case.blocks());
    let layers = (case.shape.windows.len() + shape.windows.len()) as u64;
    case.config.kv_cache_bytes = Some(blocks * layers * BLOCK_BYTES);
    case.draft = Some((shape, script));
    if let Some(settings) = &mut case.config.speculation {
        settings.method = SpeculationMethod::DraftModel;
    }
}

/// The same case without drafts, in a pool of as many blocks.
fn without_drafts(case: &Case) -> Case {
    let mut case = case.clone();
    let blocks = u64::from(case.blocks());
    (case.config.speculation, case.draft) = (None, None);
    case.config.kv_cache_bytes = Some(blocks * case.shape.windows.len() as u64 * BLOCK_BYTES);
    case
}

/// The answer of the first choice, with mistakes, and more than there is of it.
fn spoilt(random: &mut Random, case: &Case, request: &Request, mistakes: u32) -> Vec<u32> {
    let mut predicted = expected(case, request, 0).tokens;
    for id in &mut predicted {
        if random.once_in(mistakes) {
            *id = random.below(case.shape.vocab);
        }
    }
    predicted.extend((0..8).map(|_| random.below(case.shape.vocab)));
    predicted
}

/// Makes a request's prompt begin with what an earlier request was predicted to answer.
fn follow_up(random: &mut Random, case: &mut Case, index: usize) {
    let earlier = &case.arrivals[random.below(index as u32) as usize].request;
    let predicted = earlier.predicted.clone().unwrap_or_default();
    let mut prompt = [&earlier.prompt[..], &predicted].concat();
    prompt.truncate(random.within(1, case.shape.model_len - 1) as usize);
    let salt = earlier.cache_salt.clone();
    let request = &mut case.arrivals[index].request;
    (request.prompt, request.cache_salt) = (prompt.into(), salt);
}

/// The case of a seed, with speculation, and sometimes with a draft model.
fn speculating(seed: u64) -> Case {
    let (mut random, mut case) = (Random(!seed), case(seed));
    if case.config.speculation.is_none() {
        speculate(&mut random, &mut case);
    }
    if random.once_in(3) {
        draft_model(&mut random, &mut case);
    }
    case
}

#[test]
fn drafts_save_steps_and_change_no_answer() {
    let work = |seed, sum: &mut (u64, u64)| {
        let mut case = speculating(seed);
        case.arrivals
            .iter_mut()
            .for_each(|arrival| arrival.aborts.fill(None));
        let with = pass(seed, &case).stats.steps;
        *sum = (
            sum.0 + with,
            sum.1 + pass(seed, &without_drafts(&case)).stats.steps,
        );
    };
    let mut steps = (0, 0);
    for_seeds(600, work, |sum| steps = (steps.0 + sum.0, steps.1 + sum.1));
    println!("steps with drafts and without: {steps:?}");
    assert!(
        steps.0 * 10 < steps.1 * 9,
        "drafts save a tenth of the steps: {steps:?}"
    );
}

#[test]
fn drafts_change_no_bit_of_a_deterministic_answer() {
    let work = |seed, accepted: &mut u64| {
        let (mut random, mut case) = (Random(seed), speculating(seed));
        case.config.deterministic = true;
        case.script.rounding = true;
        case.arrivals
            .iter_mut()
            .for_each(|arrival| arrival.aborts.fill(None));
        let without = run(&without_drafts(&case));
        for (arrival, seen) in case.arrivals.iter_mut().zip(&without.seen) {
            let right = |&id: &u32| {
                if random.once_in(6) {
                    random.below(case.shape.vocab)
                } else {
                    id
                }
            };
            arrival.request.predicted = Some(seen[0].tokens.iter().map(right).collect());
        }
        let with = run(&case);
        *accepted += with.stats.accepted_tokens();
        compare(&case, &with, |index, choice| {
            without.seen[index][choice].clone()
        });
    };
    let mut accepted = 0;
    for_seeds(300, work, |sum| accepted += sum);
    assert!(accepted > 1000, "{accepted} drafts are accepted");
}

#[test]
fn drafts_survive_devices_that_fail() {
    let work = |seed, (): &mut ()| drop(pass(seed, &faulty(seed, speculating(seed))));
    for_seeds(600, work, |()| ());
}

#[test]
fn a_right_prediction_takes_a_step_for_every_five_tokens() {
    let mut case = crate::faults::scripted("", vec![(0, crate::faults::request(10, 5, 13))]);
    case.config.speculation = Some(Speculation {
        num_speculative_tokens: 4,
        prompt_lookup_min: 2,
        ..Speculation::DEFAULT
    });
    let answer = expected(&case, &case.arrivals[0].request, 0).tokens;
    case.arrivals[0].request.predicted = Some(answer.into());
    let outcome = run(&case);
    crate::world::check(&case, &outcome);
    assert!(matches!(outcome.seen[0][0].end, End::Finished(..)));
    let stats = outcome.stats;
    assert_eq!(
        (
            stats.steps,
            stats.drafts,
            stats.draft_tokens,
            stats.accepted_tokens()
        ),
        (4, 3, 9, 9)
    );
}

/// A model is the best draft model for itself: it sees the same tokens through the same blocks, whatever the scheduler
/// does with them, and draws with the same noise.
#[test]
fn a_model_guesses_its_own_tokens() {
    let work = |seed, sum: &mut (u64, u64)| {
        let mut case = speculating(seed);
        case.script.nan = None;
        let shape = case.shape.clone();
        set_draft_model(
            &mut case,
            shape,
            Script {
                seed,
                ..Script::default()
            },
        );
        for arrival in &mut case.arrivals {
            (arrival.request.predicted, arrival.request.params.constraint) = (None, None);
        }
        let stats = pass(seed, &case).stats;
        *sum = (sum.0 + stats.accepted_tokens(), sum.1 + stats.draft_tokens);
    };
    let (mut accepted, mut drafted) = (0, 0);
    for_seeds(300, work, |sum| {
        (accepted, drafted) = (accepted + sum.0, drafted + sum.1);
    });
    assert!(
        drafted > 5_000 && accepted * 100 > drafted * 99,
        "{accepted} of {drafted} drafts are accepted"
    );
}
