//! `deterministic`: what else runs changes neither the chunks of a prompt nor any bit of a result.

use crate::world::{Arrival, BLOCK_BYTES, Case, Chunk, Random, Shape, check, run};
use folio::backend::cpu::CpuBackend;
use folio::backend::fake::Script;
use folio::config::Config;
use folio::engine::faults::{InjectedFault, InjectedFaults};
use folio::engine::handle::{EventReceiver, channel};
use folio::engine::request::{Event, PromptEvent, Request, SamplingParams, Token};
use folio::engine::{Engine, handle::EngineHandle};
use folio::model::Model;
use folio::plan::KvFormat;
use folio::platform::block_on;

/// So large that a drawn token is none of a prompt's.
const VOCAB: u32 = 1_000_000;
const SEEDS: u64 = 200;

/// Some requests with prompts of their own; the pool has room for all.
fn crowd(seed: u64, fault: Option<InjectedFault>) -> Case {
    let mut random = Random(seed);
    let shape = Shape { windows: vec![None], vocab: VOCAB, eos_token_ids: Vec::new(), model_len: 90 };
    let config = Config {
        max_num_seqs: random.within(2, 6),
        max_num_batched_tokens: random.within(20, 60),
        block_size: 4,
        kv_cache_bytes: Some(400 * BLOCK_BYTES),
        kv_format: KvFormat::F32,
        deterministic: true,
        look_ahead: !random.once_in(4),
        ..Config::default()
    };
    let (mut turn, mut arrivals) = (0, Vec::new());
    for index in 0..random.within(3, 8) {
        turn += random.below(4);
        let prompt: Vec<_> = (0..random.within(1, 70)).map(|position| index * 100 + position).collect();
        let params = SamplingParams {
            max_tokens: Some(random.within(1, 20)),
            seed: Some(seed),
            prompt_logprobs: random.once_in(3).then_some(1),
            ..SamplingParams::default()
        };
        arrivals.push(Arrival {
            turn,
            request: Request { prompt: prompt.into(), params, ..Request::default() },
            aborts: vec![None],
        });
    }
    let faults = InjectedFaults { fault, ..InjectedFaults::default() };
    Case { shape, config, script: Script { seed, ..Script::default() }, faults, arrivals }
}

/// The chunks of one prompt, as positions.
fn chunks_of(prompt: &[u32], chunks: &[Chunk]) -> Vec<(u32, usize)> {
    let own = |chunk: &&Chunk| prompt.get(chunk.start as usize) == Some(&chunk.token_ids[0]);
    chunks.iter().filter(own).map(|chunk| (chunk.start, chunk.token_ids.len())).collect()
}

/// The chunks of the first prompt whose chunks differ in company from those that it has alone, in this order.
fn differing(seed: u64, fault: Option<InjectedFault>) -> Option<[Vec<(u32, usize)>; 2]> {
    let case = crowd(seed, fault);
    let together = run(&case);
    assert_eq!(together.stats.preemptions, 0, "seed {seed}: the pool has room for all");
    check(&case, &together);
    let both = case.arrivals.iter().map(|arrival| {
        let alone = Case { arrivals: vec![Arrival { turn: 0, ..arrival.clone() }], ..case.clone() };
        [&together, &run(&alone)].map(|outcome| chunks_of(&arrival.request.prompt, &outcome.chunks))
    });
    let mut differing = both.filter(|[together, alone]| together != alone);
    differing.next()
}

#[test]
fn chunks_do_not_depend_on_what_else_runs() {
    for seed in 0..SEEDS {
        assert_eq!(differing(seed, None), None, "seed {seed}: chunks of one prompt, in company and alone");
    }
    let found = (0..SEEDS).any(|seed| differing(seed, Some(InjectedFault::GridFollowsCompany)).is_some());
    assert!(found, "a grid that follows the company is noticed");
}

/// Logprobs of a prompt and its answer, bit by bit.
fn bits(mut receiver: EventReceiver) -> Option<Vec<u32>> {
    let mut bits = Vec::new();
    let mut put = |token: &Token| {
        let top = token.top_logprobs.iter().flat_map(|top| [top.token_id, top.logprob.to_bits()]);
        bits.extend(token.logprob.into_iter().map(f32::to_bits).chain(top).chain([token.id]));
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
        max_tokens: Some(8),
        ignore_eos: true,
        seed: Some(3),
        logprobs: Some(2),
        prompt_logprobs: Some(1),
        ..SamplingParams::default()
    };
    Request { prompt: (first..first + length).collect(), params, ..Request::default() }
}

/// The bits of one request on the reference device, with these requests around it.
fn on_cpu(company: &[Request]) -> Vec<u32> {
    let config = Config {
        max_num_seqs: 4,
        max_num_batched_tokens: 64,
        block_size: 16,
        deterministic: true,
        ..Config::default()
    };
    let (handle, inbox) = channel(16);
    let mut engine = block_on(Engine::start(CpuBackend::new(), Model::demo(), &config, inbox, |_| {})).expect("starts");
    let submit = |handle: &EngineHandle, request: &Request| handle.submit(request.clone()).expect("valid").remove(0);
    let (before, after) = company.split_at(company.len() / 2);
    let mut others: Vec<_> = before.iter().map(|request| submit(&handle, request)).collect();
    block_on(engine.step()).expect("a step");
    let receiver = submit(&handle, &prompt(500, 41));
    others.extend(after.iter().map(|request| submit(&handle, request)));
    handle.drain();
    block_on(engine.run()).expect("a drained engine ends well");
    bits(receiver).expect("it finishes")
}

#[test]
fn the_reference_gives_the_same_bits_alone_and_in_company() {
    let alone = on_cpu(&[]);
    assert!(alone.len() > 100);
    let company = [prompt(40, 50), prompt(900, 7), prompt(200, 33), prompt(1, 60), prompt(77, 3)];
    assert_eq!(alone, on_cpu(&company));
    assert_eq!(alone, on_cpu(&company[2..]));
}
