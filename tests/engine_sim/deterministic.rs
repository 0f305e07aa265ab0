//! `deterministic`: what else runs changes neither the chunks of a sequence nor any bit of a result, even if the
//! sequence shares a prefix, is preempted, or computed again after a failure.

use crate::for_seeds;
use crate::states::with_states;
use crate::world::{BLOCK_BYTES, Case, Outcome, Random, case, compare, run};
use folio::backend::Backend;
use folio::backend::cpu::CpuBackend;
use folio::backend::reference::ReferenceBackend;
use folio::config::Config;
use folio::engine::handle::{EventReceiver, channel};
use folio::engine::request::{Event, PromptEvent, Request, SamplingParams, Token};
use folio::engine::{Engine, handle::EngineHandle};
use folio::model::Model;
use folio::plan::Storage;
use folio::platform::block_on;

const SEEDS: u64 = 200;

/// A case with deterministic results, on a device whose numbers depend on chunks, as rounding does.
fn rounded(seed: u64) -> Case {
    let (mut random, mut case) = (Random(!seed), case(seed));
    case.config.deterministic = true;
    case.config.max_num_batched_tokens += random.below(50);
    case.script.rounding = true;
    match seed % 4 {
        0 => drop(case.script.lost.insert(random.within(1, 40).into())),
        1 => drop(case.script.failed.insert(random.within(1, 40).into())),
        _ => {}
    }
    if random.once_in(3) {
        with_states(&mut random, case)
    } else {
        case
    }
}

/// The outcome of one request of a case on a sound device with room for it.
fn alone(case: &Case, index: usize) -> Outcome {
    let mut case = case.clone();
    case.config.kv_cache_bytes = Some(1000 * BLOCK_BYTES);
    (case.script.lost, case.script.failed) = Default::default();
    let mut arrival = case.arrivals.swap_remove(index);
    arrival.turn = 0;
    arrival.aborts.fill(None);
    case.arrivals = vec![arrival];
    let outcome = run(&case);
    assert_eq!(
        outcome.stats.preemptions, 0,
        "there is room for the request"
    );
    outcome
}

/// The outcome of a case, checked against those of its requests alone.
fn check_against_alone(case: &Case) -> Outcome {
    let outcome = run(case);
    let alone: Vec<_> = (0..case.arrivals.len())
        .map(|index| alone(case, index))
        .collect();
    compare(case, &outcome, |index, choice| {
        alone[index].seen[0][choice].clone()
    });
    outcome
}

#[test]
fn bits_do_not_depend_on_what_else_runs() {
    let mut totals = (0, 0);
    let work = |seed, sum: &mut (u64, u64)| {
        let stats = check_against_alone(&rounded(seed)).stats;
        *sum = (sum.0 + stats.preemptions, sum.1 + stats.prefix_hits);
    };
    for_seeds(2 * SEEDS, work, |sum| {
        totals = (totals.0 + sum.0, totals.1 + sum.1);
    });
    println!("preemptions, prefix hits: {totals:?}");
    assert!(
        totals.0 > SEEDS / 2 && totals.1 > SEEDS,
        "(preemptions, prefix hits): {totals:?}"
    );
}

/// Logprobs of a prompt and its answer, bit by bit.
fn bits(mut receiver: EventReceiver) -> Option<Vec<u32>> {
    let mut bits = Vec::new();
    let mut put = |token: &Token| {
        let top = token
            .top_logprobs
            .iter()
            .flat_map(|top| [top.token_id, top.logprob.to_bits()]);
        bits.extend(
            token
                .logprob
                .into_iter()
                .map(f32::to_bits)
                .chain(top)
                .chain([token.id]),
        );
    };
    loop {
        match receiver.try_recv().ok()? {
            Event::Prompt(PromptEvent::Logprobs(tokens)) => tokens.iter().for_each(&mut put),
            Event::Token(token) => put(&token),
            Event::Finished { .. } => return Some(bits),
            other => panic!("unexpected: {other:?}"),
        }
    }
}

fn prompt(first: u32, length: u32) -> Request {
    let params = SamplingParams {
        max_tokens: Some(30),
        ignore_eos: true,
        seed: Some(3),
        logprobs: Some(2),
        ..SamplingParams::default()
    };
    Request {
        prompt: (first..first + length).collect(),
        params,
        ..Request::default()
    }
}

/// The bits of a request on a device with a pool of so many blocks, if that is not the default, and with these requests
/// before and after it; and the number of preemptions.
fn bits_on(
    device: impl Backend,
    request: &Request,
    blocks: Option<u64>,
    before: &[Request],
    after: &[Request],
) -> (Vec<u32>, u64) {
    let mut config = Config {
        max_num_seqs: 4,
        max_num_batched_tokens: 64,
        block_size: 16,
        max_model_len: Some(128),
        deterministic: true,
        ..Config::default()
    };
    let model = Model::demo();
    let block_bytes =
        model
            .record(Storage::F32)
            .block_bytes(0, config.block_size, config.kv_format);
    config.kv_cache_bytes = blocks.map(|blocks| blocks * block_bytes);
    let (handle, inbox) = channel(16);
    let mut engine =
        block_on(Engine::start(device, model, &config, inbox, |_| {})).expect("starts");
    let submit = |handle: &EngineHandle, request: &Request| {
        handle.submit(request.clone()).expect("valid").remove(0)
    };
    let mut others: Vec<_> = before
        .iter()
        .map(|request| submit(&handle, request))
        .collect();
    block_on(engine.step()).expect("a step");
    let receiver = submit(&handle, request);
    others.extend(after.iter().map(|request| submit(&handle, request)));
    handle.drain();
    block_on(engine.run()).expect("a drained engine ends well");
    (
        bits(receiver).expect("it finishes"),
        handle.stats().preemptions,
    )
}

#[test]
fn the_reference_gives_the_same_bits_alone_in_company_and_preempted() {
    gives_the_same_bits(ReferenceBackend::new);
}

#[test]
fn the_cpu_gives_the_same_bits_alone_in_company_and_preempted() {
    gives_the_same_bits(CpuBackend::default);
}

fn gives_the_same_bits<B: Backend>(open: impl Fn() -> B) {
    let company = [
        prompt(40, 50),
        prompt(900, 7),
        prompt(200, 33),
        prompt(1, 60),
        prompt(77, 3),
    ];
    let mut long = prompt(40, 58);
    long.params.max_tokens = Some(70);
    let mut scored = prompt(500, 41);
    scored.params.prompt_logprobs = Some(1);
    for request in [prompt(500, 41), scored] {
        let (alone, _) = bits_on(open(), &request, None, &[], &[]);
        assert!(alone.len() > 100);
        assert_eq!(
            bits_on(open(), &request, None, &company[..2], &company[2..]).0,
            alone
        );
        assert_eq!(
            bits_on(open(), &request, None, &company[2..3], &company[3..]).0,
            alone
        );
        assert_eq!(
            bits_on(open(), &request, None, &[prompt(500, 57)], &[]).0,
            alone,
            "with a cached prefix"
        );
        // With ten blocks, the older request needs those of the younger one before that has finished.
        let (preempted, preemptions) =
            bits_on(open(), &request, Some(10), std::slice::from_ref(&long), &[]);
        assert_eq!(preempted, alone);
        assert!(preemptions > 0, "it was preempted");
    }
}
