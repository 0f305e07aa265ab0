//! Speculation through the whole engine on every backend: the golden tokens with drafts that are often wrong, and
//! answers that are drawn to the last bit of their logprobs where a row does not depend on its batch.

#[cfg(all(feature = "cuda", unix))]
use super::emulator::emulated;
use super::fit::Witness;
use super::{Case, adapters, cpu, golden, golden_cases};
use folio::backend::Backend;
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{WgpuBackend, WgpuOptions};
use folio::config::{Config, Speculation, SpeculationMethod};
use folio::engine::handle::{EventReceiver, Stats, channel};
use folio::engine::request::{DrawParams, Event, Request, SamplingParams};
use folio::engine::{Engine, Others};
use folio::model::{Model, ModelSpec};
use folio::plan::Storage;
use folio::platform::block_on;

/// Models with a recurrent state.
const STATES: [&str; 2] = ["lfm2", "lfm2_moe"];
/// Models with one KV group, with a window, with experts, and with sinks.
const MODELS: [&str; 4] = ["llama", "gemma3", "qwen3-moe", "gpt-oss"];
const SPECULATION: Speculation = Speculation {
    disable_by_batch_size: None,
    ..Speculation::DEFAULT
};
/// Every so many drafts are wrong.
const MISTAKES: usize = 4;

/// A token with the bits of the logprobs that are reported with it.
pub(super) type Drawn = (u32, Vec<u32>);

pub(super) fn config(speculation: Option<Speculation>, deterministic: bool) -> Config {
    Config {
        max_num_seqs: 8,
        max_num_batched_tokens: 256,
        max_model_len: Some(336),
        block_size: 16,
        kv_cache_bytes: Some(8 << 20),
        deterministic,
        speculation,
        ..Config::default()
    }
}

/// The answers of all choices, computed at once, with drafts from a draft model if there is one.
pub(super) fn answers<B: Backend>(
    open: &impl Fn() -> B,
    family: &str,
    draft: Option<Model>,
    config: &Config,
    requests: &[Request],
) -> (Vec<Vec<Drawn>>, Stats) {
    let model = Model::open(&golden(family)).expect("the golden model loads");
    answers_of(open, model, draft, config, requests)
}

/// The answers of a model to all choices, computed at once.
pub(super) fn answers_of<B: Backend>(
    open: &impl Fn() -> B,
    model: Model,
    draft: Option<Model>,
    config: &Config,
    requests: &[Request],
) -> (Vec<Vec<Drawn>>, Stats) {
    let (handle, inbox) = channel(config.queue_requests_max);
    // Devices without real times: drafts are verified however long it takes.
    let others = Others {
        draft: draft.map(|draft| (Witness::new(open()), draft)),
        tower: None,
    };
    let started = Engine::start_beside(Witness::new(open()), model, others, config, inbox, |_| {});
    let engine = block_on(started).expect("it starts");
    let submit = |request: &Request| {
        handle
            .submit(request.clone())
            .expect("the request is valid")
    };
    let receivers: Vec<EventReceiver> = requests.iter().flat_map(submit).collect();
    handle.drain();
    block_on(engine.run()).expect("the engine answers all");
    (receivers.into_iter().map(drawn).collect(), handle.stats())
}

fn drawn(mut receiver: EventReceiver) -> Vec<Drawn> {
    let mut answer = Vec::new();
    while let Ok(event) = receiver.try_recv() {
        match event {
            Event::Token(token) => {
                let top = token
                    .top_logprobs
                    .iter()
                    .flat_map(|top| [top.token_id, top.logprob.to_bits()]);
                answer.push((
                    token.id,
                    token
                        .logprob
                        .map(f32::to_bits)
                        .into_iter()
                        .chain(top)
                        .collect(),
                ));
            }
            Event::Finished { .. } => return answer,
            other => panic!("{other:?}"),
        }
    }
    panic!("an answer ends")
}

/// Drafts of which some are wrong, at other places for each request.
fn spoilt(tokens: impl Iterator<Item = u32>, first: usize) -> Option<std::sync::Arc<[u32]>> {
    let wrong = |(place, id): (usize, u32)| {
        if (place + first).is_multiple_of(MISTAKES) {
            id ^ 1
        } else {
            id
        }
    };
    Some(tokens.enumerate().map(wrong).collect())
}

/// Checks that drafts were accepted and rejected.
fn check_drafts(place: &str, stats: &Stats) {
    let (accepted, drafted) = (stats.accepted_tokens(), stats.draft_tokens);
    println!(
        "{place}: {accepted} of {drafted} drafts accepted in {} steps",
        stats.steps
    );
    assert!(accepted > 20 && drafted > accepted, "{place}: {stats:?}");
}

/// Golden requests, without drafts of their own.
fn golden_requests(family: &str) -> Vec<(Request, Vec<u32>)> {
    let params = |tokens: usize| SamplingParams {
        draw: DrawParams::greedy(),
        ignore_eos: true,
        max_tokens: Some(u32::try_from(tokens).expect("answers are short")),
        ..SamplingParams::default()
    };
    let request = |case: Case| {
        let params = params(case.greedy.len());
        (
            Request {
                prompt: case.prompt.into(),
                params,
                ..Request::default()
            },
            case.greedy,
        )
    };
    golden_cases(family).into_iter().map(request).collect()
}

/// Greedy answers are the golden ones.
fn prove_greedy<B: Backend>(name: &str, models: &[&str], open: impl Fn() -> B) {
    for &family in models {
        let (mut requests, golden): (Vec<_>, Vec<_>) = golden_requests(family).into_iter().unzip();
        for (index, (request, tokens)) in requests.iter_mut().zip(&golden).enumerate() {
            request.predicted = spoilt(tokens.iter().copied(), index);
        }
        let (found, stats) = answers(
            &open,
            family,
            None,
            &config(Some(SPECULATION), false),
            &requests,
        );
        check_golden(&format!("{family} on {name}"), &found, &golden);
        check_drafts(&format!("{family} on {name}"), &stats);
    }
}

fn check_golden(place: &str, found: &[Vec<Drawn>], golden: &[Vec<u32>]) {
    for (index, (answer, tokens)) in found.iter().zip(golden).enumerate() {
        let found: Vec<_> = answer.iter().map(|(id, _)| *id).collect();
        assert_eq!(found, *tokens, "{place}, prompt {index}");
    }
}

/// Greedy answers are the golden ones with a draft model, good or bad: the model itself, whose guesses are right, and a
/// random one.
fn prove_draft_model<B: Backend>(name: &str, models: &[&str], open: impl Fn() -> B) {
    let config = config(
        Some(Speculation {
            method: SpeculationMethod::DraftModel,
            ..SPECULATION
        }),
        false,
    );
    for &family in models {
        let (requests, golden_tokens): (Vec<_>, Vec<_>) =
            golden_requests(family).into_iter().unzip();
        let own = Model::open(&golden(family)).expect("the golden model loads");
        let vocab = own.record(Storage::F32).vocab;
        let spec =
            ModelSpec::named(&format!("32x1x2x1x16x64x{vocab}")).expect("the shape is valid");
        for (draft, is_own) in [(own, true), (Model::random(spec, 1), false)] {
            let place = format!("{family} on {name}, its own draft model: {is_own}");
            let (found, stats) = answers(&open, family, Some(draft), &config, &requests);
            check_golden(&place, &found, &golden_tokens);
            let (accepted, drafted) = (stats.accepted_tokens(), stats.draft_tokens);
            println!(
                "{place}: {accepted} of {drafted} drafts accepted in {} steps",
                stats.steps
            );
            assert!(drafted > 20, "{place}: {stats:?}");
            assert_eq!(
                accepted * 100 >= drafted * 95,
                is_own,
                "{place}: {accepted} of {drafted}"
            );
        }
    }
}

/// Drawn answers have the same bits with drafts as without.
fn prove_drawn<B: Backend>(name: &str, models: &[&str], deterministic: bool, open: impl Fn() -> B) {
    for &family in models {
        let cases = golden_cases(family);
        let params = SamplingParams {
            draw: DrawParams {
                temperature: 0.8,
                repetition_penalty: 1.1,
                ..DrawParams::default()
            },
            seed: Some(5),
            ignore_eos: true,
            max_tokens: Some(24),
            logprobs: Some(2),
            ..SamplingParams::default()
        };
        let request = |case: &Case| Request {
            prompt: case.prompt.clone().into(),
            params: params.clone(),
            ..Request::default()
        };
        let mut requests: Vec<_> = cases.iter().map(request).collect();
        let (without, _) = answers(&open, family, None, &config(None, deterministic), &requests);
        for (index, request) in requests.iter_mut().enumerate() {
            request.predicted = spoilt(without[index].iter().map(|(id, _)| *id), index);
        }
        let (with, stats) = answers(
            &open,
            family,
            None,
            &config(Some(SPECULATION), deterministic),
            &requests,
        );
        let place = format!("{family} on {name}, drawn");
        assert!(with == without, "{place}: drafts change an answer");
        check_drafts(&place, &stats);
    }
}

#[test]
fn drafts_change_no_answer_of_the_reference() {
    prove_greedy("reference", &MODELS, ReferenceBackend::new);
    prove_greedy("reference", &STATES, ReferenceBackend::new);
    prove_drawn("reference", &STATES[..1], false, ReferenceBackend::new);
    prove_drawn("reference", &MODELS[..2], false, ReferenceBackend::new);
    prove_drawn("reference", &MODELS[..1], true, ReferenceBackend::new);
    prove_draft_model("reference", &MODELS[..2], ReferenceBackend::new);
}

#[test]
fn drafts_change_no_answer_of_the_cpu() {
    prove_greedy("cpu", &MODELS, cpu);
    prove_greedy("cpu", &STATES[..1], cpu);
    prove_drawn("cpu", &MODELS, true, cpu);
    prove_draft_model("cpu", &MODELS[..1], cpu);
}

#[test]
fn drafts_change_no_answer_of_any_adapter() {
    for adapter in adapters() {
        let options = WgpuOptions {
            adapter: Some(adapter),
            ..WgpuOptions::default()
        };
        let open =
            || block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens");
        prove_greedy("wgpu", &MODELS, open);
        prove_drawn("wgpu", &MODELS[..1], true, open);
        prove_draft_model("wgpu", &MODELS[..1], open);
    }
}

#[cfg(all(feature = "cuda", unix))]
#[test]
fn drafts_change_no_answer_in_the_cuda_emulator() {
    let open = || emulated(Storage::F32, (8, 0));
    if open().is_some() {
        let open = || open().expect("it was just opened");
        prove_greedy("cuda", &MODELS[..2], open);
        prove_drawn("cuda", &MODELS[..1], true, open);
    }
}
