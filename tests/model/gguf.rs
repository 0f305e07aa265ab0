//! GGUF files against the exact reference: every tensor dequantised as its format is published, run in f32.
//! `FOLIO_GGUF_DATA` names a folder with more files beside a `reference.json`.

use super::{CPU, Case, Device, Target, WGPU, WHOLE, ids, largest_difference, numbers, read_json};
use folio::backend::cpu::CpuBackend;
use folio::backend::wgpu::{WgpuBackend, WgpuOptions};
use folio::backend::{Backend, Inspect};
use folio::model::{Gguf, Model};
use folio::plan::KvFormat;
use folio::platform::block_on;
use std::path::{Path, PathBuf};

/// Where the reference's two likeliest tokens are nearer than this, either may follow.
const MARGIN: f64 = 0.02;

#[test]
fn the_cpu_reproduces_gguf_files() {
    prove_gguf(&CPU, &mut CpuBackend::new());
}

#[test]
fn every_adapter_reproduces_gguf_files() {
    for adapter in WgpuBackend::adapters() {
        let options = WgpuOptions { adapter: Some(adapter.index), ..WgpuOptions::default() };
        let mut backend = block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens");
        prove_gguf(&WGPU, &mut backend);
    }
}

fn folder() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/gguf");
    std::env::var_os("FOLIO_GGUF_DATA").map_or(own, PathBuf::from)
}

fn prove_gguf<B: Backend + Inspect>(target: &Target, backend: &mut B) {
    let reference = read_json(&folder().join("reference.json"));
    let mut files = 0;
    for (name, expected) in reference["cases"].as_object().expect("an object by file") {
        let path = folder().join(name);
        if !path.exists() {
            continue;
        }
        files += 1;
        let model = Model::from_gguf(Gguf::open(&path).expect("the file opens")).expect("the model loads");
        let mut device = Device::new(backend, &model, KvFormat::F32);
        let (mut worst, mut tokens) = (0.0_f32, 0);
        for case in expected["cases"].as_array().expect("a list of cases") {
            let margins = case["margins"].as_array().expect("a list of margins").clone();
            let case =
                Case { prompt: ids(&case["prompt"]), greedy: ids(&case["greedy"]), logits: numbers(&case["logits"]) };
            let run = device.generate(std::slice::from_ref(&case), WHOLE, false).remove(0);
            let difference = largest_difference(&case.logits, &run.logits[0]);
            let place = format!("{name} on {}, prompt of {}", target.name, case.prompt.len());
            assert!(difference <= target.logits_f32, "{place}: logits differ by {difference}");
            worst = worst.max(difference);
            for (index, margin) in margins.iter().enumerate() {
                if margin.as_f64().expect("a number") <= MARGIN {
                    break;
                }
                assert_eq!(run.tokens[index], case.greedy[index], "{place}: token {index}");
                tokens += 1;
            }
        }
        println!("{name} on {}: logits differ by at most {worst:.1e}, {tokens} tokens compared", target.name);
        assert!(tokens > 0, "{name}: a token is compared");
    }
    assert!(files >= 5, "only {files} files");
}
