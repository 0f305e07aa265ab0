//! What the engine does when its device fails, its thread panics, its queue is full, or it is asked to stop.

use crate::world::{Arrival, Case, End, Random, Role, Shape, case, check, expected, run};
use crate::{for_seeds, pass};
use folio::backend::fake::{FakeBackend, Script};
use folio::config::Config;
use folio::engine::handle::{EngineHandle, EventReceiver, Status, channel};
use folio::engine::request::{
    BeamParams, Event, FinishReason, Request, RequestError, SamplingParams, SubmitError,
};
use folio::engine::{Engine, EngineEnd, Progress, StartError, spawn};
use folio::platform::block_on;
use std::thread::JoinHandle;

const SHAPE_LEN: u32 = 64;

fn shape() -> Shape {
    Shape {
        windows: vec![None],
        vocab: 500,
        eos_token_ids: Vec::new(),
        model_len: SHAPE_LEN,
        keeps_states: false,
        adapter_slots: 0,
        predicts: false,
        role: Role::default(),
    }
}

fn config() -> Config {
    Config {
        max_num_seqs: 4,
        max_num_batched_tokens: 32,
        block_size: 16,
        seed: Some(1),
        ..Config::default()
    }
}

pub(crate) fn request(first: u32, prompt_len: u32, max_tokens: u32) -> Request {
    let params = SamplingParams {
        max_tokens: Some(max_tokens),
        seed: Some(3),
        ..SamplingParams::default()
    };
    Request {
        prompt: (first..first + prompt_len).collect(),
        params,
        ..Request::default()
    }
}

/// A scripted case with requests and their arrival turns. No receiver is dropped.
pub(crate) fn scripted(script: &str, arrivals: Vec<(u32, Request)>) -> Case {
    let arrival = |(turn, request): (u32, Request)| {
        let aborts = vec![None; request.params.n as usize];
        Arrival {
            turn,
            request,
            aborts,
        }
    };
    Case {
        shape: shape(),
        config: Config {
            block_size: 4,
            ..config()
        },
        script: script.parse().expect("a script of this test"),
        draft: None,
        reads_images: false,
        host_rows_every: 0,
        arrivals: arrivals.into_iter().map(arrival).collect(),
    }
}

fn serve(script: &str) -> (EngineHandle, JoinHandle<Result<(), EngineEnd>>) {
    let (handle, inbox) = channel(config().queue_requests_max);
    let script: Script = script.parse().expect("a script of this test");
    let (ready, wait) = std::sync::mpsc::channel();
    let open = move || {
        ready.send(()).expect("the test waits");
        Ok(FakeBackend::new(script))
    };
    let thread = spawn(open, shape(), config(), inbox, |_| {});
    wait.recv().expect("the engine's thread opens its device");
    while handle.status() == Status::Loading {
        std::thread::yield_now();
    }
    (handle, thread)
}

fn last_event(mut receiver: EventReceiver) -> Option<Event> {
    use futures_util::StreamExt;
    let mut last = None;
    while let Some(event) = block_on(receiver.next()) {
        last = Some(event);
    }
    last
}

#[test]
fn a_refused_batch_ends_its_own_requests_only() {
    for script in ["invalid@4", "failed@4"] {
        let case = scripted(
            script,
            vec![
                (0, request(10, 9, 12)),
                (12, request(10, 9, 12)),
                (12, request(40, 3, 5)),
            ],
        );
        let outcome = run(&case);
        check(&case, &outcome);
        assert_eq!(
            outcome.seen[0][0].end,
            End::Failed(RequestError::Internal),
            "{script}: it was in the failed batch"
        );
        for seen in &outcome.seen[1..] {
            assert!(
                matches!(seen[0].end, End::Finished(FinishReason::Length, _)),
                "{script}: it was not in it"
            );
        }
    }
}

#[test]
fn whoever_shares_an_unfilled_block_starts_over() {
    // The second request matches blocks that batch 1 was to fill, while that batch is in flight and about to fail.
    let mut second = request(10, 9, 6);
    second.params.seed = Some(4);
    let case = scripted("failed@1", vec![(0, request(10, 9, 6)), (0, second)]);
    let case = Case {
        config: Config {
            max_num_batched_tokens: 9,
            ..case.config.clone()
        },
        ..case
    };
    let outcome = run(&case);
    assert_eq!(outcome.seen[0][0].end, End::Failed(RequestError::Internal));
    assert_eq!(
        outcome.seen[1][0].tokens,
        expected(&case, &case.arrivals[1].request, 0).tokens
    );
}

#[test]
fn a_lost_device_comes_back_and_streams_go_on() {
    let mut forked = request(60, 7, 9);
    forked.params.n = 3;
    for batch in 1..24 {
        let two = format!("lost@2,lost@{}", batch + 2);
        for script in [
            format!("lost@{batch}"),
            format!("lost-submit@{batch}"),
            format!("hang@{batch}"),
            two,
        ] {
            let arrivals = vec![
                (0, request(10, 30, 10)),
                (3, forked.clone()),
                (30, request(10, 30, 4)),
            ];
            let case = scripted(&script, arrivals);
            let outcome = run(&case);
            check(&case, &outcome);
            assert!(outcome.result.is_ok(), "{script}: the engine continues");
        }
    }
}

#[test]
fn a_loss_in_recovery_or_the_third_in_ten_minutes_ends_the_streams() {
    let lost = "the device was lost: ";
    let hangs = "the device hangs: no answer within ";
    for (script, recoveries, reason) in [
        ("dead@3", 0, lost),
        ("lost@2,lost@4,lost@6", 2, lost),
        ("hang@2,hang@4,hang@6", 2, hangs),
    ] {
        let case = scripted(
            script,
            vec![(0, request(10, 5, 20)), (1, request(30, 5, 20))],
        );
        let outcome = run(&case);
        check(&case, &outcome);
        let Err(EngineEnd::DeviceLost(told)) = &outcome.result else {
            panic!("{script}: the run ends with an error")
        };
        assert!(
            told.starts_with(reason),
            "{script}: a hang and a loss have different messages: {told}"
        );
        assert_eq!(outcome.stats.recoveries, recoveries, "{script}");
        for seen in outcome.seen.iter().flatten() {
            assert_eq!(
                seen.end,
                End::Failed(RequestError::DeviceLost),
                "{script}: every stream gets the error"
            );
        }
    }
}

#[test]
fn invalid_numbers_end_one_request_and_are_not_cached() {
    let prefix: Vec<u32> = (10..26).collect();
    let with = |tail: &[u32]| Request {
        prompt: [&prefix, tail].concat().into(),
        ..request(0, 1, 8)
    };
    let case = scripted(
        "nan=499",
        vec![
            (0, with(&[499])),
            (0, request(100, 11, 8)),
            (9, with(&[30])),
        ],
    );
    let outcome = run(&case);
    check(&case, &outcome);
    assert_eq!(
        outcome.seen[0][0].end,
        End::Failed(RequestError::NumericalError)
    );
    let End::Finished(_, usage) = &outcome.seen[2][0].end else {
        panic!("the other requests finish")
    };
    assert_eq!(
        usage.cached.all, 0,
        "blocks of a broken request are not matched"
    );
    assert_eq!(outcome.stats.corrupted_requests, 1);
}

/// The case on a device that is lost, or fails or refuses batches, twice.
pub(crate) fn faulty(seed: u64, mut case: Case) -> Case {
    let mut random = Random(seed);
    let batches = [(); 2].map(|()| u64::from(random.within(1, 40)));
    match seed % 3 {
        0 => case.script.lost.extend(batches),
        1 => case.script.failed.extend(batches),
        _ => case.script.invalid.extend(batches),
    }
    case
}

#[test]
fn faulty_devices_under_load() {
    let work = |seed, (): &mut ()| drop(pass(seed, &faulty(seed, case(seed))));
    for_seeds(4000, work, |()| ());
}

#[test]
fn a_panic_in_the_engine_ends_all_streams() {
    let (handle, thread) = serve("pause=50,panic@3");
    let receivers: Vec<_> = (0..3)
        .flat_map(|i| handle.submit(request(10 * i, 5, 40)).expect("ready"))
        .collect();
    for receiver in receivers {
        assert_eq!(
            last_event(receiver),
            Some(Event::Failed(RequestError::Internal))
        );
    }
    let end = thread.join().expect("the panic is caught");
    assert!(matches!(end, Err(EngineEnd::Panicked(text)) if text.contains("batch 3")));
    assert_eq!(handle.status(), Status::Failed);
    assert_eq!(
        handle.submit(request(1, 1, 1)).err(),
        Some(SubmitError::DeviceLost)
    );
}

#[test]
fn draining_finishes_what_was_taken() {
    let (handle, thread) = serve("pause=1");
    let receivers = handle.submit(request(10, 5, 30)).expect("ready");
    handle.drain();
    assert_eq!(
        handle.submit(request(1, 1, 1)).err(),
        Some(SubmitError::ShuttingDown)
    );
    for receiver in receivers {
        assert!(matches!(
            last_event(receiver),
            Some(Event::Finished {
                reason: FinishReason::Length,
                ..
            })
        ));
    }
    thread
        .join()
        .expect("no panic")
        .expect("a drained engine ends well");
    assert_eq!(handle.status(), Status::Draining);
}

#[test]
fn a_full_queue_refuses_and_a_dead_engine_answers() {
    let (handle, inbox) = channel(2);
    assert_eq!(
        handle.submit(request(1, 1, 1)).err(),
        Some(SubmitError::Loading)
    );
    let device = FakeBackend::new(Script::default());
    let mut engine =
        block_on(Engine::start(device, shape(), &config(), inbox, |_| {})).expect("it starts");
    let first = handle.submit(request(1, 1, 2)).expect("room");
    let second = handle.submit(request(2, 1, 40)).expect("room");
    assert_eq!(
        handle.submit(request(3, 1, 1)).err(),
        Some(SubmitError::Overloaded { limit: 2 })
    );
    assert_eq!(handle.stats().requests_waiting, 2);
    block_on(engine.step()).expect("a step");
    assert_eq!(
        (
            handle.stats().requests_waiting,
            handle.stats().requests_running
        ),
        (0, 2),
        "both are admitted"
    );
    let late = handle.submit(request(3, 1, 1)).expect("room again");
    drop(engine);
    for receiver in [first, second, late].into_iter().flatten() {
        assert_eq!(
            last_event(receiver),
            Some(Event::Failed(RequestError::Internal)),
            "no receiver waits forever"
        );
    }
}

#[test]
fn a_pool_that_does_not_fit_is_shrunk_and_the_context_with_it() {
    let start = |script: &str| {
        let (handle, inbox) = channel(1);
        let mut notices = Vec::new();
        let progress = |progress| {
            if let Progress::Notice(text) = progress {
                notices.push(text);
            }
        };
        let device = FakeBackend::new(script.parse().expect("a script of this test"));
        let config = Config {
            kv_cache_bytes: Some(40 * 1024),
            kv_format: folio::plan::KvFormat::F32,
            ..config()
        };
        let result = block_on(Engine::start(device, shape(), &config, inbox, progress)).map(|_| ());
        (
            handle.info().map(|info| (info.blocks, info.max_model_len)),
            notices,
            result,
        )
    };
    let (info, notices, _) = start("");
    assert_eq!(
        (info, notices.len()),
        (Some((40, SHAPE_LEN)), 0),
        "all fits"
    );
    let (info, notices, _) = start("oom=5");
    assert_eq!(info, Some((4, 32)), "two blocks are spare");
    assert!(
        notices.iter().any(|text| text.contains("KV pool")),
        "{notices:?}"
    );
    assert!(
        notices
            .last()
            .is_some_and(|text| text.contains("limited to 32 tokens instead of 64")),
        "{notices:?}"
    );
    let (_, _, result) = start("oom=2");
    assert!(
        matches!(result, Err(StartError::Backend(_))),
        "no pool, no engine"
    );
}

#[test]
fn bad_requests_are_refused_at_the_door() {
    let (handle, inbox) = channel(8);
    let device = FakeBackend::new(Script::default());
    let _engine =
        block_on(Engine::start(device, shape(), &config(), inbox, |_| {})).expect("it starts");
    let field = |change: &dyn Fn(&mut Request)| {
        let mut request = request(1, 4, 4);
        change(&mut request);
        match handle.submit(request) {
            Err(SubmitError::Invalid { field, .. }) => field,
            Err(SubmitError::PromptTooLong { .. }) => "too long",
            other => panic!("accepted: {other:?}"),
        }
    };
    assert_eq!(field(&|r| r.prompt = [].into()), "prompt");
    assert_eq!(field(&|r| r.prompt = [500].into()), "prompt");
    assert_eq!(field(&|r| r.prompt = vec![1; 64].into()), "too long");
    assert_eq!(
        field(&|r| (r.prompt, r.prompt_only) = (vec![1; 65].into(), true)),
        "too long"
    );
    assert_eq!(field(&|r| r.params.n = 0), "n");
    assert_eq!(field(&|r| r.params.n = 129), "n");
    assert_eq!(field(&|r| r.params.max_tokens = Some(0)), "max_tokens");
    assert_eq!(
        field(&|r| r.params.draw.temperature = f32::NAN),
        "temperature"
    );
    assert_eq!(field(&|r| r.params.draw.temperature = 100.5), "temperature");
    assert_eq!(field(&|r| r.params.draw.top_p = 0.0), "top_p");
    assert_eq!(field(&|r| r.params.draw.min_p = 1.5), "min_p");
    assert_eq!(
        field(&|r| r.params.draw.repetition_penalty = 0.0),
        "repetition_penalty"
    );
    assert_eq!(
        field(&|r| r.params.draw.presence_penalty = -2.1),
        "presence_penalty"
    );
    assert_eq!(
        field(&|r| r.params.draw.frequency_penalty = 1e38),
        "frequency_penalty"
    );
    assert_eq!(field(&|r| r.params.logprobs = Some(21)), "logprobs");
    assert_eq!(
        field(&|r| r.params.logit_bias = [(500, 1.0)].into()),
        "logit_bias"
    );
    assert_eq!(
        field(&|r| r.params.logit_bias = [(5, 101.0)].into()),
        "logit_bias"
    );
    assert_eq!(
        field(&|r| r.params.stop_token_ids = vec![1 << 31]),
        "stop_token_ids"
    );
    assert_eq!(field(&|r| r.cache_salt = Some(String::new())), "cache_salt");
    let long = "a".repeat(1025);
    assert_eq!(field(&|r| r.cache_salt = Some(long.clone())), "cache_salt");
    let beams = |width| {
        Some(BeamParams {
            width,
            length_penalty: 1.0,
            early_stopping: false,
        })
    };
    let searching = |change: &dyn Fn(&mut Request)| {
        field(&|r| {
            (r.params.seed, r.params.beams) = (None, beams(4));
            change(r);
        })
    };
    for width in [0, 17, 5] {
        assert_eq!(
            searching(&|r| r.params.beams = beams(width)),
            "best_of",
            "four sequences run at once"
        );
    }
    assert_eq!(searching(&|r| r.params.n = 5), "n");
    assert_eq!(searching(&|r| r.params.seed = Some(1)), "seed");
    assert_eq!(
        searching(&|r| r.params.logit_bias = [(5, 1.0)].into()),
        "logit_bias"
    );
    assert_eq!(
        searching(&|r| r.params.draw.repetition_penalty = 1.1),
        "repetition_penalty"
    );
    assert_eq!(
        searching(&|r| r.params.draw.presence_penalty = 1.0),
        "presence_penalty"
    );
    assert_eq!(
        searching(&|r| r.params.draw.frequency_penalty = 1.0),
        "frequency_penalty"
    );
    let with = |length_penalty| {
        Some(BeamParams {
            width: 2,
            length_penalty,
            early_stopping: false,
        })
    };
    assert_eq!(
        searching(&|r| r.params.beams = with(f32::NAN)),
        "length_penalty"
    );
    assert_eq!(
        searching(&|r| r.params.beams = with(10.5)),
        "length_penalty"
    );
    let mut denormal = request(1, 4, 4);
    denormal.params.draw.temperature = 1e-40;
    handle
        .submit(denormal)
        .expect("a denormal temperature is greedy");
}
