//! Beam search in the simulator: a plain oracle over lists of tokens, requests that search among those that sample, and
//! the bugs that only a search can show.

use crate::faults::faulty;
use crate::world::{Case, End, Outcome, Random, Seen, case, check, run, told};
use crate::{for_seeds, pass};
use folio::backend::fake::{self, PlainHistory};
use folio::engine::request::{
    BeamParams, ConstraintState, DrawParams, FinishReason, Request, RequestError, SamplingParams,
    Usage,
};
use folio::plan::Window;

/// A beam, or an answer.
struct Beam {
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    score: f64,
    states: PlainHistory,
    /// `None`: a token of the script made its numbers invalid.
    history: Option<u64>,
    rules: Option<Box<dyn ConstraintState>>,
}

/// The oracle's result: what each choice should get, and every beam that was ever computed, without the prompt.
pub(crate) struct Search {
    pub(crate) seen: Vec<Seen>,
    pub(crate) explored: Vec<Vec<u32>>,
}

impl Beam {
    fn with(&self, case: &Case, token_id: u32, logprob: f32, wants: bool) -> Option<(Self, bool)> {
        let mut rules = self.rules.as_ref().map(|rules| rules.fork());
        let is_complete = rules
            .as_mut()
            .map_or(Ok(false), |rules| rules.accept(token_id))
            .ok()?;
        let mut states = self.states.clone();
        let is_valid = case.stays_valid(self.history.is_some(), states.position(), token_id);
        let history = states.push(token_id);
        let history = is_valid.then_some(history);
        let mut logprobs = self.logprobs.clone();
        logprobs.extend(wants.then_some(logprob));
        let tokens = [&self.tokens[..], &[token_id]].concat();
        Some((
            Self {
                tokens,
                logprobs,
                score: self.score + f64::from(logprob),
                states,
                history,
                rules,
            },
            is_complete,
        ))
    }

    /// The tokens that may follow, with their logprobs, best first.
    fn candidates(
        &mut self,
        case: &Case,
        params: &SamplingParams,
        count: u32,
    ) -> Option<Vec<(u32, f32)>> {
        let mut mask = vec![0; case.shape.vocab.div_ceil(32) as usize];
        let is_masked = self
            .rules
            .as_mut()
            .is_some_and(|rules| rules.fill_mask(&mut mask).expect("masks are cheap"));
        if !is_masked {
            (0..case.shape.vocab).for_each(|id| mask[id as usize / 32] |= 1 << (id % 32));
        }
        let open = mask.clone();
        if (self.tokens.len() as u32) < params.min_tokens {
            ends(case, params).for_each(|id| mask[id as usize / 32] &= !(1 << (id % 32)));
        }
        let mask = if mask.iter().all(|&word| word == 0) {
            open
        } else {
            mask
        };
        if mask.iter().all(|&word| word == 0) {
            return Some(Vec::new());
        }
        Some(fake::continuations(
            self.history?,
            count,
            Some(&mask),
            case.shape.vocab,
        ))
    }
}

fn ends<'a>(case: &'a Case, params: &'a SamplingParams) -> impl Iterator<Item = u32> + 'a {
    case.shape
        .eos_token_ids
        .iter()
        .filter(|_| !params.ignore_eos)
        .chain(&params.stop_token_ids)
        .copied()
}

/// A number of tokens that each beam of a search certainly may have, even if beams share only the prompt.
fn room(case: &Case, request: &Request, width: u32) -> u32 {
    let (size, config) = (case.config.block_size, &case.config);
    let shared = request.prompt.len() as u32 / size;
    let held = case.shape.windows.iter().map(|window| {
        let windows = |window: Window| config.max_num_seqs * (window.tokens().div_ceil(size) + 4);
        let blocks = window.map_or(u32::MAX, windows).min(case.blocks());
        (shared + blocks.saturating_sub(shared) / width) * size
    });
    held.min().expect("a model has a group")
}

/// What a search should give, by the rules of Hugging Face's transformers, over plain lists.
pub(crate) fn search(case: &Case, request: &Request) -> Search {
    let params = &request.params;
    let mut states = case.shape.plain_history(request);
    let mut is_valid = true;
    let seen = crate::images::seen_by_device(request).into_iter();
    let histories = seen.map(|id| {
        is_valid = case.stays_valid(is_valid, states.position(), id);
        let state = states.push(id);
        is_valid.then_some(state)
    });
    let histories: Vec<_> = histories.collect();
    let (told, sound) = told(case, request, &histories);
    let rules = params
        .constraint
        .as_ref()
        .map(|constraint| constraint.0.start());
    let history = *histories.last().expect("a prompt has a token");
    let first = Beam {
        tokens: Vec::new(),
        logprobs: Vec::new(),
        score: 0.0,
        states,
        history,
        rules,
    };
    let (mut beams, mut explored, mut finished) = (vec![first], Vec::new(), Vec::new());
    let mut is_sound = sound;
    let mut length = 0;
    while is_sound && !beams.is_empty() {
        length += 1;
        let next = step(case, request, &mut beams, &mut finished, length);
        is_sound = next.is_some();
        beams = next.unwrap_or_default();
        explored.extend(beams.iter().map(|beam| beam.tokens.clone()));
    }
    let choice = |index: u32| {
        let failed = |error| (Vec::new(), Vec::new(), End::Failed(error));
        let (tokens, logprobs, end) = match finished.get(index as usize) {
            _ if !is_sound => failed(RequestError::NumericalError),
            Some(Finished { beam, reason, .. }) => {
                let (prompt_tokens, completion_tokens) =
                    (request.prompt.len() as u32, beam.tokens.len() as u32);
                let end = End::Finished(
                    *reason,
                    Usage {
                        prompt_tokens,
                        completion_tokens,
                        ..Usage::default()
                    },
                );
                (beam.tokens.clone(), beam.logprobs.clone(), end)
            }
            None => failed(RequestError::TooFewAnswers),
        };
        Seen {
            told: told.clone(),
            tokens,
            logprobs,
            end,
        }
    };
    Search {
        seen: (0..params.n).map(choice).collect(),
        explored,
    }
}

/// An answer.
struct Finished {
    score: f64,
    beam: Beam,
    reason: FinishReason,
}

/// One step of a search: the next beams, none if it is over; `None` if a beam's numbers are invalid.
fn step(
    case: &Case,
    request: &Request,
    beams: &mut [Beam],
    finished: &mut Vec<Finished>,
    length: u32,
) -> Option<Vec<Beam>> {
    let params = &request.params;
    let BeamParams {
        width,
        length_penalty,
        early_stopping,
    } = params.beams.expect("a search");
    let (width, prompt_len) = (width as usize, request.prompt.len() as u32);
    let limit = prompt_len
        .saturating_add(params.max_tokens.unwrap_or(u32::MAX))
        .min(case.shape.model_len);
    let ends: Vec<u32> = ends(case, params).collect();
    let count = (width * (1 + ends.len()).max(2)).max(params.logprobs.unwrap_or(0) as usize) as u32;
    let mut pool = Vec::new();
    for (index, beam) in beams.iter_mut().enumerate() {
        let candidates = beam.candidates(case, params, count)?;
        pool.extend(
            candidates
                .into_iter()
                .map(|(id, logprob)| (beam.score + f64::from(logprob), index, id, logprob)),
        );
    }
    pool.sort_by(|one, other| other.0.total_cmp(&one.0));
    let was_full = finished.len() == width;
    let norm = f64::from(length).powf(f64::from(length_penalty));
    let mut next = Vec::new();
    for (rank, (_, index, id, logprob)) in pool.into_iter().enumerate() {
        let grown = beams[index].with(case, id, logprob, params.logprobs.is_some());
        let (beam, is_complete) = grown.expect("the mask allows it");
        let is_stop = is_complete || ends.contains(&id);
        if !is_stop && prompt_len + length != limit {
            next.push(beam);
        } else if rank < width && !(was_full && early_stopping) {
            let reason = if is_stop {
                FinishReason::Stop
            } else {
                FinishReason::Length
            };
            finished.push(Finished {
                score: beam.score / norm,
                beam,
                reason,
            });
        }
    }
    finished.sort_by(|one, other| other.score.total_cmp(&one.score));
    finished.truncate(width);
    next.truncate(width);
    let is_full = finished.len() == width;
    let improves =
        |best: &Beam| !is_full || !early_stopping && best.score / norm > finished[width - 1].score;
    Some(if next.first().is_some_and(improves) {
        next
    } else {
        Vec::new()
    })
}

/// The case of a seed in which about half of the requests search.
pub(crate) fn searching(seed: u64) -> Case {
    let mut case = case(seed);
    let mut random = Random(seed ^ 0xbea5);
    case.config.max_num_seqs = case.config.max_num_seqs.max(2 + random.below(5));
    case.config.max_num_batched_tokens = case.config.max_num_seqs + 4 + random.below(24);
    let (seats, aborts) = (case.config.max_num_seqs, random.once_in(2));
    for index in 0..case.arrivals.len() {
        if random.once_in(2) {
            continue;
        }
        let width = random.within(1, seats.min(5));
        let arrival = &mut case.arrivals[index];
        let params = &mut arrival.request.params;
        params.beams = Some(BeamParams {
            width,
            length_penalty: random.below(3) as f32,
            early_stopping: random.once_in(2),
        });
        params.n = random.within(1, width);
        params.draw = DrawParams::greedy();
        (params.seed, params.logprobs) = (None, params.logprobs.map(|_| 0));
        params.logit_bias.clear();
        arrival.request.pooling = None;
        let turn = arrival.turn;
        let abort =
            |random: &mut Random| (aborts && random.once_in(3)).then(|| turn + random.below(25));
        arrival.aborts = (0..params.n).map(|_| abort(&mut random)).collect();
        let request = arrival.request.clone();
        let most = room(&case, &request, width).saturating_sub(request.prompt.len() as u32);
        let params = &mut case.arrivals[index].request.params;
        params.max_tokens = Some(params.max_tokens.unwrap_or(u32::MAX).min(most));
        params.min_tokens = params.min_tokens.min(most);
        if most == 0 {
            (params.max_tokens, params.beams, params.seed) = (None, None, Some(1));
        }
    }
    case
}

#[test]
fn searches_give_the_oracles_answers_under_pressure() {
    #[derive(Default)]
    struct Sum {
        preemptions: u64,
        searches: u64,
        found: u64,
        missing: u64,
    }
    let work = |seed, sum: &mut Sum| {
        let case = searching(seed);
        let outcome = pass(seed, &case);
        sum.preemptions += outcome.stats.preemptions;
        for (arrival, seen) in case.arrivals.iter().zip(&outcome.seen) {
            if arrival.request.params.beams.is_some() {
                sum.searches += 1;
                sum.found += seen
                    .iter()
                    .filter(|seen| matches!(seen.end, End::Finished(..)))
                    .count() as u64;
                let few = End::Failed(RequestError::TooFewAnswers);
                sum.missing += seen.iter().filter(|seen| seen.end == few).count() as u64;
            }
        }
    };
    let mut total = Sum::default();
    for_seeds(
        crate::variable("FOLIO_SIM_SEEDS").unwrap_or(1000),
        work,
        |sum: Sum| {
            total.preemptions += sum.preemptions;
            total.searches += sum.searches;
            total.found += sum.found;
            total.missing += sum.missing;
        },
    );
    let Sum {
        preemptions,
        searches,
        found,
        missing,
    } = total;
    println!("{searches} searches, {found} answers, {missing} missing, {preemptions} preemptions");
    assert!(found > searches, "most searches give several answers");
    assert!(
        missing > 0 && preemptions > searches / 10,
        "some rules allow few answers; pools run out of blocks"
    );
}

#[test]
fn one_search() {
    let seed = crate::variable("FOLIO_SIM_SEED").unwrap_or(0);
    pass(seed, &searching(seed));
}

#[test]
fn answers_do_not_depend_on_company_or_memory() {
    let answers = |case: &Case| -> Vec<Vec<Seen>> {
        let outcome: Outcome = run(case);
        check(case, &outcome);
        let ends = outcome.seen.iter().flatten().map(|seen| &seen.end);
        let finished = |wanted: FinishReason| {
            ends.clone()
                .filter(|end| matches!(end, End::Finished(reason, _) if *reason == wanted))
                .count() as u64
        };
        assert_eq!(
            outcome.stats.finished_stop,
            finished(FinishReason::Stop),
            "choices that stopped are counted"
        );
        assert_eq!(
            outcome.stats.finished_length,
            finished(FinishReason::Length),
            "and those cut at their length"
        );
        let failed = ends
            .clone()
            .filter(|end| matches!(end, End::Failed(_)))
            .count() as u64;
        assert_eq!(
            outcome.stats.finished_error, failed,
            "and those that failed"
        );
        outcome.seen
    };
    let work = |seed, searches: &mut u64| {
        let mut crowded = searching(seed);
        crowded
            .arrivals
            .iter_mut()
            .for_each(|arrival| arrival.aborts.fill(None));
        let together = answers(&crowded);
        for (index, arrival) in crowded.arrivals.iter().enumerate() {
            if arrival.request.params.beams.is_none() {
                continue;
            }
            let mut alone = crowded.clone();
            alone.arrivals = vec![arrival.clone()];
            let alone = answers(&alone);
            let plain = |seen: &[Seen]| {
                seen.iter()
                    .map(|seen| seen.tokens.clone())
                    .collect::<Vec<_>>()
            };
            assert_eq!(
                plain(&together[index]),
                plain(&alone[0]),
                "seed {seed}, request {index}"
            );
            *searches += 1;
        }
    };
    let mut searches = 0;
    for_seeds(200, work, |sum: u64| searches += sum);
    assert!(searches > 200);
}

#[test]
fn searches_on_faulty_devices() {
    let work = |seed, (): &mut ()| drop(pass(seed, &faulty(seed, searching(seed))));
    for_seeds(1500, work, |()| ());
}
