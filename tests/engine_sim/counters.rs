//! What the engine reports about its work: counters, and why a prompt's cached prefix was not longer.

use crate::round_robin::limits;
use crate::world::{Case, End, Seen, case, run};
use crate::{SEEDS_EACH, for_seeds};
use folio::engine::memory::MemoryLimits;
use folio::engine::request::SamplingParams;
use folio::engine::request::{
    Cached, Event, FinishReason, PrefixEnd, PrefixReport, PromptEvent, Request, RequestError,
};
use folio::engine::scheduler::{Limits, Scheduler};
use folio::engine::sequence::StreamId;
use folio::plan::inputs::{Results, Sampled};
use std::sync::Arc;

fn check_counters(seed: u64, case: &Case) {
    let outcome = run(case);
    let (stats, seen) = (outcome.stats, &outcome.seen);
    let count = |wanted: &dyn Fn(&End) -> bool| {
        seen.iter()
            .flatten()
            .filter(|seen| wanted(&seen.end))
            .count() as u64
    };
    let finished = |wanted: FinishReason| {
        count(&|end| matches!(end, End::Finished(reason, _) if *reason == wanted))
    };
    assert_eq!(
        stats.finished_stop,
        finished(FinishReason::Stop),
        "seed {seed}: choices that stopped"
    );
    assert_eq!(
        stats.finished_length,
        finished(FinishReason::Length),
        "seed {seed}: choices cut at their length"
    );
    let failed = count(&|end| matches!(end, End::Failed(_)));
    assert_eq!(
        stats.finished_error, failed,
        "seed {seed}: choices that failed"
    );
    let generated: usize = seen.iter().flatten().map(|seen| seen.tokens.len()).sum();
    assert_eq!(
        stats.generation_tokens, generated as u64,
        "seed {seed}: generated tokens"
    );
    let invalid = count(&|end| *end == End::Failed(RequestError::NumericalError));
    assert!(
        stats.corrupted_requests <= invalid,
        "seed {seed}: at most one for each choice with invalid numbers"
    );
    assert_eq!(
        stats.corrupted_requests > 0,
        invalid > 0,
        "seed {seed}: invalid numbers are counted"
    );
    let prompts: usize = case
        .arrivals
        .iter()
        .map(|arrival| arrival.request.prompt.len())
        .sum();
    assert_eq!(
        stats.prompt_tokens, prompts as u64,
        "seed {seed}: tokens of prompts"
    );
    assert_eq!(
        stats.prefix_queries, prompts as u64,
        "seed {seed}: tokens looked up"
    );
    assert_eq!(
        stats.prefix_ends.iter().sum::<u64>(),
        seen.len() as u64,
        "seed {seed}: each prompt's cached prefix ends somewhere"
    );
    let hits = |choices: &Vec<Seen>| match &choices[0].end {
        End::Finished(_, usage) => u64::from(usage.cached.all),
        _ => 0,
    };
    let hits: u64 = seen.iter().map(hits).sum();
    assert!(
        stats.prefix_hits >= hits && (failed > 0 || stats.prefix_hits == hits),
        "seed {seed}: hits"
    );
}

#[test]
fn counters_agree_with_what_readers_got() {
    let work = |seed, (): &mut ()| {
        let mut case = case(seed);
        case.arrivals
            .iter_mut()
            .for_each(|arrival| arrival.aborts.fill(None));
        check_counters(seed, &case);
    };
    for_seeds(SEEDS_EACH / 4, work, |()| ());
}

/// A scheduler whose requests are served one at a time, each for one token.
struct Served {
    scheduler: Scheduler,
    requests: u64,
}

impl Served {
    fn new(limits: Limits) -> Self {
        Self {
            scheduler: Scheduler::new(limits),
            requests: 0,
        }
    }

    /// Serves a request and returns why its cached prefix was not longer.
    fn ask(&mut self, prompt: &[u32], salt: Option<&str>, client: u32) -> PrefixReport {
        self.serve(prompt, salt, client, true)
            .expect("it was asked for")
    }

    /// Serves a request, which may ask why its cached prefix was not longer.
    fn serve(
        &mut self,
        prompt: &[u32],
        salt: Option<&str>,
        client: u32,
        explain: bool,
    ) -> Option<PrefixReport> {
        let params = SamplingParams {
            max_tokens: Some(1),
            ..SamplingParams::default()
        };
        let cache_salt = salt.map(Into::into);
        let request = Request {
            prompt: prompt.into(),
            params,
            cache_salt,
            client,
            explain_prefix: explain,
            ..Request::default()
        };
        self.scheduler
            .add(Arc::new(request), &[StreamId(self.requests)], 0, false);
        self.requests += 1;
        let mut events = Vec::new();
        // A snapshot within a prompt ends a step.
        while !events
            .iter()
            .any(|(_, event)| matches!(event, Event::Finished { .. }))
        {
            let batch = self
                .scheduler
                .schedule(64)
                .expect("a request waits or runs");
            let sampled = vec![Sampled::default(); self.scheduler.flatten(&batch).samples.len()];
            events.extend(self.scheduler.commit(
                &batch,
                Results {
                    sampled,
                    ..Results::default()
                },
            ));
        }
        events.into_iter().find_map(|(_, event)| match event {
            Event::Prompt(PromptEvent::Prefix(report)) => Some(report),
            _ => None,
        })
    }

    fn ends(&self) -> PrefixEnds {
        self.scheduler.counts().prefix_ends
    }
}

type PrefixEnds = [u64; PrefixEnd::ALL.len()];

/// Each of these as often as it says, and no other.
fn ends<const N: usize>(counts: [(PrefixEnd, u64); N]) -> PrefixEnds {
    PrefixEnd::ALL.map(|end| {
        counts
            .iter()
            .find(|(counted, _)| *counted == end)
            .map_or(0, |(_, count)| *count)
    })
}

#[test]
fn a_report_says_where_the_cached_prefix_ends_and_why() {
    let report = |all, common_tokens, differing, end| PrefixReport {
        cached: Cached {
            all,
            ..Cached::default()
        },
        common_tokens,
        differing,
        end,
    };
    let document: Vec<u32> = (10..50).collect();
    let other: Vec<u32> = (10..30).chain(70..90).collect();
    let mut served = Served::new(limits());
    assert_eq!(
        served.ask(&document, None, 1),
        report(0, 0, Some(10), PrefixEnd::Difference)
    );
    // What others computed is shared, and not told of beyond that.
    assert_eq!(
        served.ask(&document, None, 2),
        report(32, 32, Some(42), PrefixEnd::EndOfPrompt)
    );
    assert_eq!(
        served.ask(&other, None, 2),
        report(16, 20, Some(70), PrefixEnd::Difference)
    );
    assert_eq!(
        served.ask(&document[..33], None, 2),
        report(32, 33, None, PrefixEnd::EndOfPrompt)
    );
    assert_eq!(
        served.ask(&document[..32], None, 2),
        report(16, 32, None, PrefixEnd::EndOfPrompt)
    );
    // Clients learn of their own other salts only.
    assert_eq!(
        served.ask(&document, Some("a"), 2),
        report(0, 0, Some(10), PrefixEnd::Salt)
    );
    assert_eq!(
        served.ask(&document, Some("b"), 3),
        report(0, 0, Some(10), PrefixEnd::Difference)
    );
    let counted = ends([
        (PrefixEnd::EndOfPrompt, 3),
        (PrefixEnd::Difference, 3),
        (PrefixEnd::Salt, 1),
    ]);
    assert_eq!(served.ends(), counted);
    let mut uncached = Served::new(Limits {
        memory: MemoryLimits {
            prefix_caching: false,
            ..limits().memory
        },
        ..limits()
    });
    let reports = [(); 2].map(|()| uncached.ask(&document, None, 1));
    assert_eq!(
        reports,
        [(); 2].map(|()| report(0, 0, Some(10), PrefixEnd::Disabled))
    );
    assert_eq!(uncached.ends(), ends([(PrefixEnd::Disabled, 2)]));
}

#[test]
fn ends_are_counted_whether_or_not_they_are_reported() {
    let document: Vec<u32> = (10..50).collect();
    let other: Vec<u32> = (10..30).chain(70..90).collect();
    let counted = [true, false].map(|explain| {
        let mut served = Served::new(limits());
        for (prompt, salt) in [
            (&document, None),
            (&document, None),
            (&other, None),
            (&document, Some("a")),
        ] {
            assert_eq!(served.serve(prompt, salt, 1, explain).is_some(), explain);
        }
        served.ends()
    });
    assert_eq!(
        counted,
        [ends([
            (PrefixEnd::EndOfPrompt, 1),
            (PrefixEnd::Difference, 2),
            (PrefixEnd::Salt, 1)
        ]); 2]
    );
}

/// Blocks of a model with states can only be used up to a snapshot, which the first prompt that needs it makes.
#[test]
fn blocks_without_a_snapshot_are_no_eviction() {
    let document: Vec<u32> = (10..50).collect();
    let other: Vec<u32> = (10..30).chain(70..90).collect();
    let mut served = Served::new(Limits {
        memory: MemoryLimits {
            state_slots: limits().max_num_seqs + 8,
            ..limits().memory
        },
        ..limits()
    });
    let mut ask = |prompt: &[u32]| {
        let report = served.ask(prompt, None, 1);
        (report.cached.all, report.end)
    };
    assert_eq!(ask(&document), (0, PrefixEnd::Difference));
    assert_eq!(
        ask(&document),
        (32, PrefixEnd::EndOfPrompt),
        "the end of a prompt has a snapshot"
    );
    assert_eq!(
        ask(&other),
        (0, PrefixEnd::NoSnapshot),
        "one block is found"
    );
    let third: Vec<u32> = (10..30).chain(50..70).collect();
    assert_eq!(
        ask(&third),
        (16, PrefixEnd::Difference),
        "the other has made a snapshot"
    );
    assert_eq!(
        served.ends(),
        ends([
            (PrefixEnd::EndOfPrompt, 1),
            (PrefixEnd::Difference, 2),
            (PrefixEnd::NoSnapshot, 1)
        ])
    );
}

#[test]
fn sixty_four_sequences_are_remembered() {
    for (between, end) in [
        (3, PrefixEnd::Eviction),
        (63, PrefixEnd::Eviction),
        (64, PrefixEnd::Difference),
    ] {
        // The pool holds one prompt, so each evicts the one before.
        let mut served = Served::new(Limits {
            memory: MemoryLimits {
                blocks: vec![4],
                ..limits().memory
            },
            ..limits()
        });
        served.ask(&(10..50).collect::<Vec<_>>(), None, 1);
        for index in 0..between {
            served.ask(&[60 + index / 30, 60 + index % 30].repeat(20), None, 1);
        }
        let report = served.ask(&(10..50).collect::<Vec<_>>(), None, 1);
        assert_eq!(
            (report.cached.all, report.end),
            (0, end),
            "after {between} others"
        );
        let evictions = u64::from(end == PrefixEnd::Eviction);
        assert_eq!(
            served.ends()[PrefixEnd::Eviction as usize],
            evictions,
            "after {between} others"
        );
    }
}

fn request(prompt: &[u32], max_tokens: u32) -> Arc<Request> {
    let params = SamplingParams {
        max_tokens: Some(max_tokens),
        ignore_eos: true,
        ..SamplingParams::default()
    };
    Arc::new(Request {
        prompt: prompt.into(),
        params,
        ..Request::default()
    })
}

/// Schedules and completes a step. Returns the number of tokens that it computed for each of its sequences.
fn step(scheduler: &mut Scheduler, tokens_max: u32) -> Vec<u32> {
    let batch = scheduler
        .schedule(tokens_max)
        .expect("some sequence can continue");
    let inputs = scheduler.flatten(&batch);
    let sampled = vec![Sampled::default(); inputs.samples.len()];
    drop(scheduler.commit(
        &batch,
        Results {
            sampled,
            ..Results::default()
        },
    ));
    scheduler.check();
    inputs.sequences.iter().map(|rows| rows.row_count).collect()
}

#[test]
fn a_shared_block_s_tokens_are_stored_once() {
    let mut scheduler = Scheduler::new(limits());
    scheduler.add(
        request(&(0..20).collect::<Vec<_>>(), 9),
        &[StreamId(0)],
        0,
        false,
    );
    assert_eq!(scheduler.tokens_stored(), 0);
    step(&mut scheduler, 64);
    assert_eq!(scheduler.tokens_stored(), 20);
    scheduler.add(
        request(&(0..18).collect::<Vec<_>>(), 9),
        &[StreamId(1)],
        0,
        false,
    );
    step(&mut scheduler, 64);
    assert_eq!(
        scheduler.tokens_stored(),
        21 + 2,
        "sixteen tokens are shared"
    );
}

#[test]
fn a_block_that_forks_share_is_counted_as_full_as_it_is() {
    let mut scheduler = Scheduler::new(limits());
    scheduler.add(
        request(&(0..20).collect::<Vec<_>>(), 9),
        &[0, 1, 2].map(StreamId),
        0,
        false,
    );
    step(&mut scheduler, 64);
    assert_eq!(
        scheduler.tokens_stored(),
        20,
        "three sequences share all of it"
    );
    step(&mut scheduler, 64);
    assert_eq!(
        scheduler.tokens_stored(),
        16 + 3 * 5,
        "each has its own copy of the second block"
    );
}

#[test]
fn a_quarter_of_a_step_is_kept_for_prompts_that_wait() {
    let mut scheduler = Scheduler::new(limits());
    (0..8).for_each(|index| {
        scheduler.add(request(&[index], 99), &[StreamId(index.into())], 0, false);
    });
    assert_eq!(step(&mut scheduler, 8), [1; 8]);
    assert_eq!(step(&mut scheduler, 8), [1; 8]);
    scheduler.add(request(&[9; 30], 9), &[StreamId(9)], 0, false);
    for _ in 0..15 {
        assert_eq!(
            step(&mut scheduler, 8),
            [1, 1, 1, 1, 1, 1, 2],
            "six tokens of answers and two of the prompt"
        );
    }
    assert_eq!(step(&mut scheduler, 8), [1; 8]);
}

#[test]
fn a_step_is_submitted_early_unless_a_quarter_of_its_rows_wait_for_the_host() {
    let running = |all: u32, waiting: u32| {
        let mut scheduler = Scheduler::new(limits());
        (0..all).for_each(|index| {
            scheduler.add(
                request(&[index], 99),
                &[StreamId(index.into())],
                0,
                index < waiting,
            );
        });
        scheduler
    };
    for (all, waiting, early) in [
        (4, 0, true),
        (4, 1, false),
        (5, 1, true),
        (8, 2, false),
        (9, 2, true),
        (2, 2, false),
    ] {
        let mut scheduler = running(all, waiting);
        scheduler.schedule(64).expect("requests wait");
        assert_eq!(
            scheduler.may_look_ahead(),
            early,
            "{waiting} of {all} rows wait for the host"
        );
    }
    // Those who were skipped once are not skipped again.
    let mut scheduler = running(5, 1);
    let batch = scheduler.schedule(64).expect("requests wait");
    let inputs = scheduler.flatten(&batch);
    let early = scheduler.schedule(64).expect("four rows do not wait");
    assert_eq!(scheduler.flatten(&early).sequences.len(), 4);
    let sampled = vec![Sampled::default(); inputs.samples.len()];
    drop(scheduler.commit(
        &batch,
        Results {
            sampled,
            ..Results::default()
        },
    ));
    assert!(
        scheduler.may_look_ahead(),
        "its token is known, so it has a row in the next step"
    );
    assert_eq!(
        scheduler
            .schedule(64)
            .map(|batch| scheduler.flatten(&batch).sequences.len()),
        Some(5)
    );
}
