//! LoRA adapters, compared with peft over transformers: each alone, in chunks, and all in one batch with the base.

use super::compared::{compare, largest_difference, numbers};
use super::{
    CHUNK, CPU, Case, Device, KvFormat, REFERENCE, Sizes, Target, WGPU, WHOLE, adapters, cpu, cpus,
    ids, packed, read_json,
};
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{WgpuBackend, WgpuOptions};
use folio::backend::{Backend, Inspect};
use folio::model::Model;
use folio::model::adapters::{Adapter, AdapterLayout, AdapterRoom, SlotContent};
use folio::plan::WeightFormat;
use folio::platform::block_on;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;

/// Bases, and their adapters that can be used.
const BASES: [(&str, &[&str]); 6] = [
    ("llama", &["r8-qv", "r4-all", "r16-rslora"]),
    ("qwen3", &["r8-regex", "patterns", "r16-layer"]),
    ("gemma3", &["r4-all", "r16-rslora"]),
    ("granite", &["r8-attn", "r1-mlp", "patterns"]),
    ("phi3", &["r8-fused", "r4-rest", "r16-all-rslora"]),
    ("qwen3-moe", &["r8-attn"]),
];

fn folder(base: &str) -> PathBuf {
    packed::model("golden-lora").join(base)
}

/// A base with all of its adapters.
struct Base {
    model: Model,
    layout: Arc<AdapterLayout>,
    adapters: Vec<(&'static str, Arc<Adapter>)>,
    golden: Value,
}

impl Base {
    fn open(name: &'static str, adapters: &[&'static str], format: WeightFormat) -> Self {
        let mut model = Model::open(&folder(name).join("base")).expect("the base loads");
        let room = AdapterRoom {
            slots: adapters.len() as u32,
            rank: 16,
            format,
        };
        let layout = Arc::new(model.reserve_adapters(room));
        let adapters = adapters.iter().map(|&adapter| {
            let opened = Adapter::open(&folder(name).join(adapter)).expect("it opens");
            layout.check(&opened).expect("it is of the base");
            (adapter, Arc::new(opened))
        });
        Self {
            model,
            adapters: adapters.collect(),
            layout,
            golden: read_json(&folder(name).join("golden.json")),
        }
    }

    /// The cases of an adapter, or of the base alone.
    fn cases(&self, adapter: &str) -> Vec<Case> {
        let cases = self.golden["adapters"][adapter]["cases"].as_array();
        let case = |case: &Value| Case {
            prompt: ids(&case["prompt"]),
            greedy: ids(&case["greedy"]),
            logits: numbers(&case["logits"]),
        };
        cases.expect("a list of cases").iter().map(case).collect()
    }

    fn content(&self, index: usize) -> SlotContent {
        let content = self
            .layout
            .combine(&[(self.adapters[index].1.clone(), 1.0)]);
        content.expect("its rank fits")
    }
}

fn write<B: Backend + Inspect>(device: &mut Device<'_, B>, content: &SlotContent, slot: u32) {
    let plan = device.plan.clone();
    for (weight, row, rows) in content.rows(&plan, slot) {
        let written = device.backend.write_weight(weight, row, rows);
        written.expect("a slot may be written at any time");
    }
}

/// Checks every adapter of every base alone and in chunks, then all in one batch.
fn prove<B: Backend + Inspect>(target: &Target, backend: &mut B, deterministic: bool) {
    for (name, names) in BASES {
        let base = Base::open(name, names, WeightFormat::F32);
        let sizes = Sizes {
            deterministic,
            ..Sizes::default()
        };
        let mut device = Device::with(backend, &base.model, KvFormat::F32, sizes);
        for index in 0..base.adapters.len() {
            write(&mut device, &base.content(index), index as u32 + 1);
        }
        let mut batch = base.cases("").split_off(1);
        device.adapters = vec![0; batch.len()];
        let slots: Vec<(u32, &str)> = (1..).zip(names.iter().copied()).collect();
        for (slot, adapter) in [(0, "")].into_iter().chain(slots) {
            let cases = base.cases(adapter);
            for case in &cases {
                let place = format!(
                    "{name}/{adapter} on {}, prompt of {}",
                    target.name,
                    case.prompt.len()
                );
                let mixed = std::mem::replace(&mut device.adapters, vec![slot]);
                let run = device.generate(std::slice::from_ref(case), WHOLE, false);
                compare(&place, case, &run[0], target.logits_f32);
                let chunks = device.generate(std::slice::from_ref(case), CHUNK, true);
                compare(&place, case, &chunks[0], target.logits_f32);
                device.adapters = mixed;
            }
            if slot > 0 {
                batch.insert(1, cases[2].clone());
                device.adapters.insert(1, slot);
            }
        }
        for (case, run) in batch.iter().zip(device.generate(&batch, CHUNK, true)) {
            let place = format!(
                "{name} on {}, in one batch, prompt of {}",
                target.name,
                case.prompt.len()
            );
            compare(&place, case, &run, target.logits_f32);
        }
    }
}

#[test]
fn the_reference_reproduces_adapters() {
    prove(&REFERENCE, &mut ReferenceBackend::new(), true);
}

#[test]
fn every_instruction_set_reproduces_adapters() {
    for mut cpu in cpus() {
        prove(&CPU, &mut cpu, true);
    }
}

#[test]
fn every_adapter_of_wgpu_reproduces_adapters() {
    for adapter in adapters() {
        for deterministic in [true, false] {
            let options = WgpuOptions {
                adapter: Some(adapter),
                ..WgpuOptions::default()
            };
            let mut backend =
                block_on(WgpuBackend::open(&options)).expect("a listed adapter opens");
            prove(&WGPU, &mut backend, deterministic);
        }
    }
}

/// The logits after a prompt with the adapter in slot 1.
fn logits<B: Backend + Inspect>(device: &mut Device<'_, B>, prompt: &Value) -> Vec<f32> {
    device.adapters = vec![1];
    let case = Case {
        prompt: ids(prompt),
        greedy: vec![0],
        logits: Vec::new(),
    };
    device
        .generate(&[case], WHOLE, false)
        .remove(0)
        .logits
        .remove(0)
}

#[test]
fn two_adapters_with_factors_are_their_sum() {
    for (name, names) in BASES.into_iter().filter(|(_, names)| names.len() > 1) {
        let base = Base::open(name, names, WeightFormat::F32);
        let scales = base.golden["mixed"]["scales"]
            .as_object()
            .expect("an object");
        let find = |name: &str| base.adapters.iter().find(|(own, _)| *own == name);
        let mixed: Option<Vec<(Arc<Adapter>, f32)>> = scales
            .iter()
            .map(|(name, scale)| Some((find(name)?.1.clone(), scale.as_f64()? as f32)))
            .collect();
        let Some(content) = mixed.and_then(|mixed| base.layout.combine(&mixed)) else {
            continue;
        };
        let mut backend = cpu();
        let mut device = Device::new(&mut backend, &base.model, KvFormat::F32);
        write(&mut device, &content, 1);
        let found = logits(&mut device, &base.golden["prefix"]["prompt"]);
        let expected = numbers(&base.golden["mixed"]["logits"]);
        let difference = largest_difference(&expected, &found);
        assert!(difference < CPU.logits_f32, "{name}: {difference}");
    }
}

#[test]
fn a_slot_forgets_the_adapter_before() {
    let (name, names) = BASES[0];
    let base = Base::open(name, names, WeightFormat::F32);
    let mut backend = cpu();
    let mut device = Device::new(&mut backend, &base.model, KvFormat::F32);
    for index in [1, 0] {
        write(&mut device, &base.content(index), 1);
        let prefix = &base.golden["prefix"];
        let found = logits(&mut device, &prefix["prompt"]);
        let expected = numbers(&prefix["logits"][base.adapters[index].0]);
        let difference = largest_difference(&expected, &found);
        assert!(difference < CPU.logits_f32, "{difference}");
    }
}

#[test]
fn adapters_that_cannot_be_right_are_refused_by_file_and_name() {
    let base = Base::open("llama", &["r8-qv"], WeightFormat::F16);
    let bad = folder("bad");
    let expected = read_json(&bad.join("expected.json"));
    for (name, _) in expected["refused"].as_object().expect("an object") {
        let opened = Adapter::open(&bad.join(name));
        let refused = opened.and_then(|adapter| base.layout.check(&adapter));
        let message = refused.expect_err(name).to_string();
        assert!(
            message.contains(name.as_str()),
            "the file is named: {message}"
        );
    }
    for (base, adapter, word) in [
        ("llama", "dora", "DoRA"),
        ("llama", "r1-head", "lm_head"),
        ("qwen3", "embed", "embed_tokens"),
        ("qwen3-moe", "parameters", "experts"),
    ] {
        let message = Adapter::open(&folder(base).join(adapter)).expect_err(adapter);
        assert!(message.to_string().contains(word), "{message}");
    }
}

#[test]
fn adapters_in_gguf_are_those_of_peft() {
    for (name, adapter) in [
        ("llama", "r8-qv"),
        ("qwen3", "r16-layer"),
        ("gemma3", "r4-all"),
        ("granite", "r8-attn"),
        ("phi3", "r8-fused"),
    ] {
        let base = Base::open(name, &[adapter], WeightFormat::F32);
        let file = folder(name).join(adapter).join("adapter.gguf");
        let opened = Arc::new(Adapter::open(&file).expect("it opens"));
        base.layout.check(&opened).expect("it is of the base");
        let content = base.layout.combine(&[(opened, 1.0)]);
        let mut backend = cpu();
        let mut device = Device::new(&mut backend, &base.model, KvFormat::F32);
        write(&mut device, &content.expect("its rank fits"), 1);
        device.adapters = vec![1];
        for case in base.cases(adapter) {
            let place = format!("{name}/{adapter}, prompt of {}", case.prompt.len());
            let run = device.generate(std::slice::from_ref(&case), WHOLE, false);
            compare(&place, &case, &run[0], CPU.logits_f32);
        }
    }
}

#[test]
fn gguf_files_that_are_no_such_adapter_are_refused_by_key_and_tensor() {
    let message =
        |path: &std::path::Path| Adapter::open(path).expect_err("it is refused").to_string();
    let experts = message(&folder("qwen3-moe").join("experts/adapter.gguf"));
    assert!(
        experts.contains("blk.0.ffn_down_exps.weight.lora_a") && experts.contains("single experts"),
        "{experts}"
    );
    let bytes = std::fs::read(folder("llama").join("r8-qv/adapter.gguf")).expect("it reads");
    let other = tempfile::tempdir().expect("a folder");
    let changed = |from: &[u8], to: &[u8]| {
        assert_eq!(from.len(), to.len());
        let at = bytes.windows(from.len()).position(|window| window == from);
        let mut bytes = bytes.clone();
        bytes[at.expect("it is there")..][..to.len()].copy_from_slice(to);
        let path = other.path().join("changed.gguf");
        std::fs::write(&path, bytes).expect("a file");
        message(&path)
    };
    for (from, to, words) in [
        (&b"adapter.type"[..], &b"adapter.kind"[..], "adapter.type"),
        (
            b"adapter.lora.alpha",
            b"adapter.lora.omega",
            "adapter.lora.alpha",
        ),
        (
            b"attn_q.weight.lora_a",
            b"attn_q.weight.lora_c",
            "attn_q.weight.lora_c",
        ),
    ] {
        let message = changed(from, to);
        assert!(
            message.contains(words) && message.contains("changed.gguf"),
            "{message}"
        );
    }
    let cut = other.path().join("cut.gguf");
    std::fs::write(&cut, &bytes[..bytes.len() - 1000]).expect("a file");
    let message = message(&cut);
    assert!(message.contains("cut.gguf"), "{message}");
}
