//! phi3 with longrope: rotary frequencies have one of two lists of divisors, by the longest context. For each list,
//! golden logits and tokens from a checkpoint and from a GGUF file, with every format of keys and values, and what
//! quantizing changes.

use super::converted::{self, Checkpoint};
use super::states::{request, tokens};
use super::{
    CPU, Case, Device, LOGITS_F16, REFERENCE, Target, WGPU, WHOLE, compare, cpus, golden,
    golden_cases, kv_coded, largest_difference, quantized, read_json, support,
};
use folio::backend::reference::ReferenceBackend;
use folio::backend::{Backend, Inspect};
use folio::config::Config;
use folio::engine::{Engine, handle};
use folio::model::Model;
use folio::plan::KvFormat;
use folio::platform::block_on;
use serde_json::json;

/// The golden folder.
pub(super) const LONGROPE: &str = "phi3-longrope";

/// The lists, each with the longest context that selects it: 64 tokens are the original one.
const LISTS: [(&str, u32); 2] = [("short", 64), ("long", 1024)];

/// Formats of keys and values that are as exact as the golden outputs.
const BOTH: [KvFormat; 2] = [KvFormat::F32, KvFormat::F16];

/// The golden cases with a list, the shortest first.
fn cases(list: &str) -> Vec<Case> {
    let json = read_json(&golden(LONGROPE).join("golden.json"));
    let all = golden_cases(LONGROPE).into_iter().enumerate();
    let mut cases: Vec<Case> = all
        .filter(|(index, _)| json["cases"][index]["factors"] == list)
        .map(|(_, case)| case)
        .collect();
    cases.sort_by_key(|case| case.prompt.len());
    assert_eq!(cases.len(), 3, "{list}");
    cases
}

/// The model for contexts of at most so many tokens.
fn limited(mut model: Model, tokens: u32) -> Model {
    model.limit_context(tokens);
    model
}

fn open(tokens: u32) -> Model {
    limited(quantized::open(LONGROPE, None), tokens)
}

#[test]
fn both_lists_are_right_on_every_device() {
    prove(&REFERENCE, &mut ReferenceBackend::new(), &BOTH, usize::MAX);
    cpus().for_each(|mut cpu| prove(&CPU, &mut cpu, &BOTH, usize::MAX));
    quantized::opened_adapters()
        .iter_mut()
        .for_each(|device| prove(&WGPU, device, &BOTH, usize::MAX));
}

/// Checks both lists, with so many generated tokens at most.
pub(super) fn prove<B: Backend + Inspect>(
    target: &Target,
    backend: &mut B,
    formats: &[KvFormat],
    tokens_max: usize,
) {
    for (list, tokens) in LISTS {
        let mut cases = cases(list);
        cases
            .iter_mut()
            .for_each(|case| case.greedy.truncate(tokens_max));
        prove_list(target, backend, list, &open(tokens), formats, &cases);
    }
    support::ran("families", LONGROPE, "safetensors", target.name);
}

fn prove_list<B: Backend + Inspect>(
    target: &Target,
    backend: &mut B,
    list: &str,
    model: &Model,
    formats: &[KvFormat],
    cases: &[Case],
) {
    for &format in formats {
        let tolerance = if format == KvFormat::F32 {
            target.logits_f32
        } else {
            LOGITS_F16
        };
        let mut device = Device::new(backend, model, format);
        for case in cases {
            let run = device
                .generate(std::slice::from_ref(case), WHOLE, false)
                .remove(0);
            let place = format!(
                "longrope on {}, {list}, {format:?}, prompt of {}",
                target.name,
                case.prompt.len()
            );
            let difference = compare(&place, case, &run, tolerance);
            println!("{place}: logits differ by {difference:.1e}");
        }
    }
}

#[test]
fn both_lists_are_right_in_gguf_on_every_device() {
    let kinds = [converted::F32, converted::F16];
    prove_files(&REFERENCE, &mut ReferenceBackend::new(), &kinds);
    cpus().for_each(|mut cpu| prove_files(&CPU, &mut cpu, &kinds));
    quantized::opened_adapters()
        .iter_mut()
        .for_each(|device| prove_files(&WGPU, device, &kinds));
}

fn prove_files<B: Backend + Inspect>(target: &Target, backend: &mut B, kinds: &[u32]) {
    for (list, tokens) in LISTS {
        for &kind in kinds {
            let file = Checkpoint::read(LONGROPE).convert(kind);
            let model = limited(converted::open(&file), tokens);
            prove_list(
                target,
                backend,
                &format!("{list} in GGUF"),
                &model,
                &BOTH,
                &cases(list),
            );
        }
    }
    support::ran("families", LONGROPE, "gguf", target.name);
}

#[test]
fn both_lists_run_quantised() {
    let mut adapters = quantized::opened_adapters();
    for (list, tokens) in LISTS {
        let open = |quantization| limited(quantized::open(LONGROPE, quantization), tokens);
        quantized::runs_quantised(
            LONGROPE,
            open,
            &kv_coded::shortened(cases(list)),
            &mut adapters,
        );
    }
}

#[test]
fn both_lists_keep_q8() {
    for (list, tokens) in LISTS {
        let (model, cases) = (open(tokens), kv_coded::shortened(cases(list)));
        kv_coded::moves_by_little(KvFormat::Q8, (LONGROPE, LOGITS_F16), &model, &cases);
        let longrope = (LONGROPE, LOGITS_F16);
        kv_coded::agrees_in(
            &CPU,
            &mut super::cpu(),
            None,
            KvFormat::Q8,
            longrope,
            &model,
            &cases,
        );
        for device in &mut quantized::opened_adapters() {
            kv_coded::agrees_in(
                &WGPU,
                device,
                Some(WGPU.logits_f32),
                KvFormat::Q8,
                longrope,
                &model,
                &cases,
            );
        }
    }
}

/// A context of the engine that the short list is for selects it, and so do no request's own tokens.
#[test]
fn an_engine_has_the_list_of_its_longest_context() {
    let file = Checkpoint::read(LONGROPE).convert(converted::F32);
    for (list, longest) in LISTS {
        for model in [quantized::open(LONGROPE, None), converted::open(&file)] {
            let config = Config {
                max_model_len: Some(longest.min(200)),
                kv_cache_bytes: Some(4 << 20),
                kv_format: KvFormat::F32,
                ..Config::default()
            };
            let (handle, inbox) = handle::channel(4);
            let started = Engine::start(ReferenceBackend::new(), model, &config, inbox, |_| {});
            let engine = block_on(started).expect("it starts");
            let cases = cases(list);
            let submit = |case| {
                handle
                    .submit(request(case))
                    .expect("a valid request")
                    .remove(0)
            };
            let receivers: Vec<_> = cases.iter().map(submit).collect();
            handle.drain();
            block_on(engine.run()).expect("the engine answers all");
            for (case, receiver) in cases.iter().zip(receivers) {
                assert_eq!(
                    tokens(receiver),
                    case.greedy,
                    "{list}, prompt of {}",
                    case.prompt.len()
                );
            }
        }
    }
}

/// The other list, and no list at all, show in the logits of every prompt of several tokens.
#[test]
fn a_wrong_list_shows_in_the_logits() {
    let ones = vec![1.0; 6];
    let factors = json!({"type": "longrope", "short_factor": ones, "long_factor": ones});
    for (list, other) in [("short", 1024), ("long", 64)] {
        let without = || super::changed(LONGROPE, &json!({"rope_scaling": factors}));
        for (what, model) in [("the other list", open(other)), ("no list", without())] {
            for case in cases(list).into_iter().filter(|case| case.prompt.len() > 1) {
                let case = Case {
                    greedy: vec![0],
                    ..case
                };
                let mut backend = ReferenceBackend::new();
                let mut device = Device::new(&mut backend, &model, KvFormat::F32);
                let run = device
                    .generate(std::slice::from_ref(&case), WHOLE, false)
                    .remove(0);
                let difference = largest_difference(&case.logits, &run.logits[0]);
                let place = format!(
                    "{what} instead of the {list} one, prompt of {}",
                    case.prompt.len()
                );
                println!("{place}: logits differ by {difference:.2}");
                assert!(
                    difference > 20.0 * REFERENCE.logits_f32,
                    "{place}: only {difference}"
                );
            }
        }
    }
}
