//! Weights as they are published: tiny checkpoints in 48 formats, each with the logits and tokens of the weights that
//! the format's own library dequantizes.

use super::{
    CHUNK, CPU, Case, Device, REFERENCE, Target, WGPU, WHOLE, adapters, cases_in, compare, cpus,
    packed, support,
};
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{WgpuBackend, WgpuOptions};
use folio::backend::{Backend, Inspect};
use folio::model::{Gguf, Model};
use folio::plan::KvFormat;
use folio::platform::block_on;
use std::path::PathBuf;

#[test]
fn the_reference_reproduces_every_published_format() {
    prove(&REFERENCE, &mut ReferenceBackend::new());
}

#[test]
fn every_instruction_set_reproduces_every_published_format() {
    cpus().for_each(|mut cpu| prove(&CPU, &mut cpu));
}

#[test]
fn every_adapter_reproduces_every_published_format() {
    for adapter in adapters() {
        let options = WgpuOptions {
            adapter: Some(adapter),
            ..WgpuOptions::default()
        };
        let mut backend =
            block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens");
        prove(&WGPU, &mut backend);
    }
}

/// Folders of the archive, in order.
pub(super) fn formats() -> Vec<PathBuf> {
    let root = packed::model("golden-formats");
    let entries = std::fs::read_dir(root).expect("the archive is unpacked");
    let mut folders: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    folders.sort();
    assert_eq!(folders.len(), 48);
    folders
}

/// The model of a folder and its cases.
pub(super) fn open(folder: &std::path::Path) -> (Model, Vec<Case>) {
    let gguf = folder.join("model.gguf");
    let model = if gguf.exists() {
        Gguf::open(&gguf).and_then(Model::from_gguf)
    } else {
        Model::open(folder)
    };
    let model = model.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    (model, cases_in(folder))
}

/// All cases as one batch in chunks, and where bits are promised, the longest alone.
pub(super) fn prove<B: Backend + Inspect>(target: &Target, backend: &mut B) {
    for folder in formats() {
        let name = folder
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .expect("a folder has a name");
        let (model, cases) = open(&folder);
        let mut device = Device::new(backend, &model, KvFormat::F32);
        let mut worst = 0.0_f32;
        for (case, run) in cases.iter().zip(device.generate(&cases, CHUNK, true)) {
            let place = format!("{name} on {}, prompt of {}", target.name, case.prompt.len());
            worst = worst.max(compare(&place, case, &run, target.logits_f32));
            if target.bit_exact && case.prompt.len() > CHUNK as usize {
                let alone = std::slice::from_ref(case);
                let alone = device.generate(alone, WHOLE, false).remove(0);
                assert!(alone == run, "{place}: a batch is its members, bit for bit");
            }
        }
        println!(
            "{name} on {}: logits differ by at most {worst:.1e}",
            target.name
        );
        support::ran("published", &name, "model", target.name);
    }
}
