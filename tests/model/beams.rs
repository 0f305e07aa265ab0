//! Beam search through the whole engine: 216 cases of Hugging Face's transformers (`tests/data/golden/make_beams.py`)
//! on golden models, with f32 keys and values. All cases of a model run at once, so that groups of beams compete for
//! seats and share the prefix cache.

use crate::{adapters, golden, ids, read_json};
use folio::backend::Backend;
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{WgpuBackend, WgpuOptions};
use folio::config::Config;
use folio::engine::Engine;
use folio::engine::handle::{EventReceiver, channel};
use folio::engine::request::{BeamParams, Event, FinishReason, Request, SamplingParams};
use folio::model::Model;
use folio::plan::KvFormat;
use folio::platform::block_on;
use serde_json::Value;

/// Maximum difference of a score.
const TOLERANCE: f64 = 1e-3;

/// An answer with its score, normalized by length.
#[derive(Debug)]
struct Answer {
    tokens: Vec<u32>,
    score: f64,
}

fn config() -> Config {
    Config {
        max_num_seqs: 48,
        max_num_batched_tokens: 256,
        max_model_len: Some(256),
        kv_cache_bytes: Some(16 << 20),
        kv_format: KvFormat::F32,
        queue_requests_max: 256,
        ..Config::default()
    }
}

fn number(value: &Value) -> u32 {
    value
        .as_u64()
        .and_then(|value| u32::try_from(value).ok())
        .expect("a number")
}

fn request(case: &Value) -> Request {
    let width = number(&case["width"]);
    let beams = BeamParams {
        width,
        length_penalty: case["length_penalty"].as_f64().expect("a number") as f32,
        early_stopping: case["early_stopping"] == true,
    };
    let params = SamplingParams {
        n: width,
        max_tokens: Some(number(&case["max_tokens"])),
        // The case's own end token instead of the model's.
        ignore_eos: true,
        stop_token_ids: vec![number(&case["eos"])],
        logprobs: Some(0),
        beams: Some(beams),
        ..SamplingParams::default()
    };
    Request {
        prompt: ids(&case["prompt"]).into(),
        params,
        ..Request::default()
    }
}

/// The answers of all cases of a model.
fn search<B: Backend>(backend: B, model: &str, cases: &[&Value]) -> Vec<Vec<Answer>> {
    let model = Model::open(&golden(model)).expect("the golden model loads");
    let (handle, inbox) = channel(256);
    let engine =
        block_on(Engine::start(backend, model, &config(), inbox, |_| {})).expect("it starts");
    let receivers: Vec<_> = cases
        .iter()
        .map(|case| {
            handle
                .submit(request(case))
                .expect("the case is a valid request")
        })
        .collect();
    handle.drain();
    block_on(engine.run()).expect("the engine answers all");
    let of_case = |(receivers, case): (Vec<EventReceiver>, &&Value)| {
        receivers
            .into_iter()
            .map(|receiver| answer(receiver, case))
            .collect()
    };
    receivers.into_iter().zip(cases).map(of_case).collect()
}

/// What a choice got.
fn answer(mut receiver: EventReceiver, case: &Value) -> Answer {
    let (mut tokens, mut sum, mut end) = (Vec::new(), 0.0, None);
    while let Ok(event) = receiver.try_recv() {
        match event {
            Event::Token(token) => {
                tokens.push(token.id);
                sum += f64::from(token.logprob.expect("it is requested"));
            }
            Event::Finished { reason, usage } => end = Some((reason, usage.completion_tokens)),
            other => panic!("{other:?}"),
        }
    }
    let stops = tokens.last() == Some(&number(&case["eos"]));
    let reason = if stops {
        FinishReason::Stop
    } else {
        FinishReason::Length
    };
    assert_eq!(end, Some((reason, tokens.len() as u32)), "{case}");
    let penalty = case["length_penalty"].as_f64().expect("a number");
    Answer {
        score: sum / (tokens.len() as f64).powf(penalty),
        tokens,
    }
}

/// Compares all cases with the file, ties aside: answers whose scores differ by less than the tolerance may be in
/// another order, and the last ones may be others.
fn prove<B: Backend>(name: &str, open: impl Fn() -> B) {
    let file = read_json(&super::repository("tests/data/golden/beams.json"));
    let cases = file["cases"].as_array().expect("a list");
    assert_eq!(cases.len(), 216);
    let (mut equal, mut total) = (0, 0);
    for model in ["llama", "qwen2", "qwen3-moe"] {
        let cases: Vec<&Value> = cases.iter().filter(|case| case["model"] == model).collect();
        for (case, found) in cases.iter().zip(search(open(), model, &cases)) {
            let list = |name: &str| case[name].as_array().expect("a list").clone();
            let scores: Vec<f64> = list("scores")
                .iter()
                .map(|score| score.as_f64().expect("a number"))
                .collect();
            let sequences: Vec<_> = list("sequences").iter().map(ids).collect();
            let last = scores[scores.len() - 1];
            for (rank, answer) in found.iter().enumerate() {
                let place = format!(
                    "{name}, rank {rank}: {answer:?}, expected {:?}, of {case}",
                    sequences[rank]
                );
                assert!((answer.score - scores[rank]).abs() <= TOLERANCE, "{place}");
                let twin = sequences
                    .iter()
                    .position(|sequence| *sequence == answer.tokens);
                match twin {
                    Some(at) => assert!((answer.score - scores[at]).abs() <= TOLERANCE, "{place}"),
                    None => assert!((answer.score - last).abs() <= TOLERANCE, "{place}"),
                }
                equal += usize::from(twin == Some(rank));
                total += 1;
            }
        }
    }
    println!("{name}: {equal} of {total} answers are equal and at the same place");
    assert!(
        equal * 100 >= total * 95,
        "{name}: only {equal} of {total} answers are at their place"
    );
}

#[test]
fn beams_on_the_reference_are_those_of_transformers() {
    prove("reference", ReferenceBackend::new);
}

#[test]
fn beams_on_the_cpu_are_those_of_transformers() {
    prove("cpu", super::cpu);
}

#[test]
fn beams_on_every_adapter_are_those_of_transformers() {
    for adapter in adapters() {
        let options = WgpuOptions {
            adapter: Some(adapter),
            ..WgpuOptions::default()
        };
        prove("wgpu", || {
            block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens")
        });
    }
}
