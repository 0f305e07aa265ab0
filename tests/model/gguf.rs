//! Compares GGUF files with an exact reference: every tensor dequantized as published for its format, run in f32.
//! `FOLIO_GGUF_DATA` names a folder with more files beside a `reference.json`.

use super::{
    CPU, Case, Device, REFERENCE, Target, WGPU, WHOLE, cpus, ids, largest_difference, numbers,
    packed, read_json,
};
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{WgpuBackend, WgpuOptions};
use folio::backend::{Backend, Inspect};
use folio::model::{Gguf, Model, Requantization};
use folio::plan::KvFormat;
use folio::platform::block_on;
use serde_json::Value;
use std::path::PathBuf;

/// If the logits of the reference's two most likely tokens differ by less than this, either may follow.
const MARGIN: f64 = 0.02;

#[test]
fn the_cpu_reproduces_gguf_files() {
    prove_gguf(&REFERENCE, &mut ReferenceBackend::new());
    cpus().for_each(|mut cpu| prove_gguf(&CPU, &mut cpu));
}

#[test]
fn every_adapter_reproduces_gguf_files() {
    for adapter in WgpuBackend::adapters() {
        let options = WgpuOptions {
            adapter: Some(adapter.index),
            ..WgpuOptions::default()
        };
        let mut backend =
            block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens");
        prove_gguf(&WGPU, &mut backend);
    }
}

/// What `folio quantize` writes gives nearly the logits of what it reads.
#[test]
fn quantized_files_answer_nearly_as_before() {
    let stored = packed::model("gguf/tiny-qwen3-F16.gguf");
    let cases: Vec<Case> = files()
        .into_iter()
        .filter(|file| file.path == stored)
        .flat_map(|file| file.cases)
        .map(|(case, _)| case)
        .collect();
    let folder = tempfile::tempdir().expect("a folder");
    let mut cpu = super::cpu();
    let mut last = 0.0;
    for (name, allowed) in [("q8_0", 0.2), ("q5_k_m", 1.0), ("q4_k_m", 4.0)] {
        let mixture = name.parse().expect("a mixture");
        let work = Requantization::open(&stored, mixture, false).expect("it can be quantized");
        let mut written = work.header().to_vec();
        for (tensor, (start, pieces)) in work.tensors().enumerate() {
            written.resize(start as usize, 0);
            let read = |piece| work.piece(tensor, piece).expect("it is read");
            written.extend((0..pieces).flat_map(read));
        }
        assert_eq!(written.len() as u64, work.file_bytes());
        let path = folder.path().join(name);
        std::fs::write(&path, written).expect("it is written");
        let model = Gguf::open(&path).and_then(Model::from_gguf);
        let mut device = Device::new(&mut cpu, &model.expect("it loads"), KvFormat::F32);
        let runs = device.generate(&cases, WHOLE, false);
        let pairs = cases.iter().zip(&runs);
        let moved = pairs.map(|(case, run)| largest_difference(&case.logits, &run.logits[0]));
        let moved = moved.fold(0.0, f32::max);
        assert!(
            moved > last && moved <= allowed,
            "{name}: {moved} after {last}"
        );
        last = moved;
    }
}

/// A file with the results of the reference.
pub(super) struct File {
    pub(super) name: String,
    path: PathBuf,
    /// Cases, each with the number of tokens before the first near tie.
    cases: Vec<(Case, usize)>,
}

/// The files of the reference that exist here.
pub(super) fn files() -> Vec<File> {
    let folder =
        std::env::var_os("FOLIO_GGUF_DATA").map_or_else(|| packed::model("gguf"), PathBuf::from);
    let reference = read_json(&folder.join("reference.json"));
    let named = reference["cases"]
        .as_object()
        .expect("an object by file")
        .iter();
    let files = named.map(|(name, expected)| {
        let cases = expected["cases"]
            .as_array()
            .expect("a list of cases")
            .iter()
            .map(case)
            .collect();
        File {
            name: name.clone(),
            path: folder.join(name),
            cases,
        }
    });
    let files: Vec<_> = files.filter(|file| file.path.exists()).collect();
    assert!(files.len() >= 5, "only {} files", files.len());
    files
}

fn case(json: &Value) -> (Case, usize) {
    let margins = json["margins"]
        .as_array()
        .expect("a list of margins")
        .iter();
    let sure = margins
        .take_while(|margin| margin.as_f64().expect("a number") > MARGIN)
        .count();
    (
        Case {
            prompt: ids(&json["prompt"]),
            greedy: ids(&json["greedy"]),
            logits: numbers(&json["logits"]),
        },
        sure,
    )
}

impl File {
    pub(super) fn open(&self) -> Model {
        Model::from_gguf(Gguf::open(&self.path).expect("the file opens")).expect("the model loads")
    }

    /// Runs every case alone. Returns the largest difference of logits, and the number of tokens compared.
    pub(super) fn compare<B: Backend + Inspect>(
        &self,
        place: &str,
        device: &mut Device<'_, B>,
        chunk: u32,
        tolerance: f32,
    ) -> (f32, usize) {
        let (mut worst, mut tokens) = (0.0_f32, 0);
        for (case, sure) in &self.cases {
            let run = device
                .generate(std::slice::from_ref(case), chunk, false)
                .remove(0);
            let difference = largest_difference(&case.logits, &run.logits[0]);
            let place = format!("{} {place}, prompt of {}", self.name, case.prompt.len());
            assert!(
                difference <= tolerance,
                "{place}: logits differ by {difference}"
            );
            worst = worst.max(difference);
            assert_eq!(
                run.tokens[..*sure],
                case.greedy[..*sure],
                "{place}: greedy tokens"
            );
            tokens += sure;
        }
        assert!(tokens > 0, "{}: a token is compared", self.name);
        (worst, tokens)
    }
}

fn prove_gguf<B: Backend + Inspect>(target: &Target, backend: &mut B) {
    for file in files() {
        let model = file.open();
        let mut device = Device::new(backend, &model, KvFormat::F32);
        let place = format!("on {}", target.name);
        let (worst, tokens) = file.compare(&place, &mut device, WHOLE, target.logits_f32);
        println!(
            "{} {place}: logits differ by at most {worst:.1e}, {tokens} tokens compared",
            file.name
        );
    }
}
