//! Layers that predict further tokens: golden logits and rows of drafts on every backend, after a prompt, in chains and
//! after a round of which every draft was refused; and answers with such drafts.
//!
//! `tests/data/golden-mtp.tar.xz` has those of Qwen 3.5 and GLM 4.5. `FOLIO_GOLDEN_MTP` may name a folder with those of
//! more families, in the same form.

use super::builder::Item;
use super::converted::{self, Checkpoint, F16};
use super::speculation::{answers_of, config};
use super::{
    CHUNK, CPU, Case, Device, REFERENCE, Sequence, Sizes, Target, WGPU, WHOLE, adapters, cases_in,
    cpu, cpus, largest_difference, numbers, packed, push_tables, read_json,
};
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{WgpuBackend, WgpuOptions};
use folio::backend::{Backend, Inspect};
use folio::config::{Speculation, SpeculationMethod};
use folio::engine::request::{DrawParams, Request, SamplingParams};
use folio::model::Model;
use folio::plan::inputs::{BatchInputs, GroupInputs, SampleRow, SequenceRows};
use folio::plan::{BufferId, KvFormat, Tail};
use folio::platform::block_on;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The folders of the repository.
const OWN: [&str; 3] = ["qwen3_5", "qwen3_5-copy", "glm4_moe"];
const SPECULATION: Speculation = Speculation {
    method: SpeculationMethod::Mtp,
    num_speculative_tokens: 3,
    ..Speculation::DEFAULT
};
/// Maximum |Δ| of an element of a normed row, in which drafts continue.
const ROWS: f32 = 1e-3;

#[test]
fn the_reference_reproduces_golden_drafts() {
    prove(&REFERENCE, &mut ReferenceBackend::new());
}

#[test]
fn every_instruction_set_reproduces_golden_drafts() {
    cpus().for_each(|mut cpu| prove(&CPU, &mut cpu));
}

#[test]
fn every_adapter_reproduces_golden_drafts() {
    let opened = adapters().into_iter().map(|adapter| {
        let options = WgpuOptions {
            adapter: Some(adapter),
            ..WgpuOptions::default()
        };
        block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens")
    });
    opened.for_each(|mut backend| prove(&WGPU, &mut backend));
}

#[test]
fn drafts_change_no_answer_of_the_reference() {
    prove_answers("reference", ReferenceBackend::new);
}

#[test]
fn drafts_change_no_answer_of_the_cpu() {
    prove_answers("cpu", cpu);
}

/// Answers have the same bits with drafts as without, whether they are often right or never: greedy and drawn, of
/// several choices, with penalties. A head that copies its model is always right.
fn prove_answers<B: Backend>(name: &str, open: impl Fn() -> B) {
    for folder in folders() {
        let drawn = SamplingParams {
            draw: DrawParams {
                temperature: 0.8,
                repetition_penalty: 1.1,
                ..DrawParams::default()
            },
            seed: Some(5),
            n: 3,
            ..greedy()
        };
        let is_copy = folder.ends_with("qwen3_5-copy");
        for (kind, params) in [("greedy", greedy()), ("drawn", drawn)] {
            let place = format!("{} on {name}, {kind}", folder.display());
            let request = |case: Case| Request {
                prompt: case.prompt.into(),
                params: params.clone(),
                ..Request::default()
            };
            let requests: Vec<_> = cases_in(&folder).into_iter().map(request).collect();
            let model = || Model::open(&folder).expect("the golden model loads");
            let (without, _) = answers_of(&open, model(), None, &config(None, false), &requests);
            let (with, stats) = answers_of(
                &open,
                model(),
                None,
                &config(Some(SPECULATION), false),
                &requests,
            );
            let (accepted, drafted) = (stats.accepted_tokens(), stats.draft_tokens);
            println!(
                "{place}: {accepted} of {drafted} drafts accepted in {} steps",
                stats.steps
            );
            assert!(with == without, "{place}: drafts change an answer");
            assert!(drafted > 10, "{place}: {stats:?}");
            if is_copy && kind == "greedy" {
                assert_eq!(accepted, drafted, "{place}: a copy is always right");
            }
        }
    }
}

fn greedy() -> SamplingParams {
    SamplingParams {
        draw: DrawParams::greedy(),
        ignore_eos: true,
        max_tokens: Some(24),
        logprobs: Some(2),
        ..SamplingParams::default()
    }
}

#[cfg(all(feature = "cuda", unix))]
#[test]
fn the_cuda_emulator_reproduces_golden_drafts() {
    if let Some(mut backend) = super::emulator::emulated(folio::plan::Storage::F32, (8, 0)) {
        prove(&super::cuda::CUDA, &mut backend);
    }
}

/// The folders of the repository, and those of `FOLIO_GOLDEN_MTP` that have a predictor.
pub(super) fn folders() -> Vec<PathBuf> {
    let own = OWN.iter().map(|name| golden(name));
    let more = std::env::var_os("FOLIO_GOLDEN_MTP").map(PathBuf::from);
    let more = more.iter().flat_map(|folder| {
        let entries = std::fs::read_dir(folder).expect("FOLIO_GOLDEN_MTP is a folder");
        entries.map(|entry| entry.expect("the folder lists").path())
    });
    let is_of_predictor = |folder: &PathBuf| {
        folder.join("golden.json").exists()
            && !folder.join("draft").exists()
            && !folder.join("assistant").exists()
    };
    own.chain(more.filter(is_of_predictor)).collect()
}

pub(super) fn golden(name: &str) -> PathBuf {
    packed::model(&format!("golden-mtp/{name}"))
}

/// A model with its predictor.
fn open(folder: &Path) -> Model {
    let mut model = Model::open(folder).expect("the golden model loads");
    let has_predictor = model.add_predictor().expect("its predictor is known");
    assert!(has_predictor, "{}: it is found", folder.display());
    model
}

fn prove<B: Backend + Inspect>(target: &Target, backend: &mut B) {
    for folder in folders() {
        prove_model(target, backend, &folder, &open(&folder));
    }
}

/// Checks the golden drafts of a folder.
fn prove_model<B: Backend + Inspect>(
    target: &Target,
    backend: &mut B,
    folder: &Path,
    model: &Model,
) {
    let json = read_json(&folder.join("golden.json"));
    let cases = json["cases"].as_array().expect("a list of cases");
    for (index, case) in cases.iter().enumerate() {
        for chunk in [WHOLE, CHUNK] {
            let place = format!(
                "{} on {}, case {index} in chunks of {chunk}",
                folder.display(),
                target.name
            );
            let device = Device::with(backend, model, KvFormat::F32, Sizes::default());
            let mut drafting = Drafting::new(device, folder, index);
            drafting.read_prompt(chunk);
            if index == 0 && chunk == WHOLE && json["rows"].is_object() {
                drafting.check_rows(&place, "fed", &json["rows"]["fed"], target);
            }
            for round in case["rounds"].as_array().into_iter().flatten() {
                drafting.check_round(&place, round, target);
            }
        }
    }
}

/// In a GGUF file, the layer is a block after the last, under names of its own.
#[test]
fn a_gguf_file_drafts_like_its_checkpoint() {
    for name in ["qwen3_5", "glm4_moe"] {
        let mut checkpoint = Checkpoint::read_folder(&golden(name));
        let last = checkpoint.whole("num_hidden_layers").expect("a count");
        let tensors = std::mem::take(&mut checkpoint.tensors);
        let renamed = |(name, values)| (in_last_layer(name, last), values);
        checkpoint.tensors = tensors.into_iter().map(renamed).collect();
        checkpoint.config["num_hidden_layers"] = (last + 1).into();
        let own = checkpoint.own;
        let mut file = checkpoint.convert(F16);
        file.set(&format!("{own}.nextn_predict_layers"), Item::U32(1));
        file.pack();
        let mut model = converted::open(&file);
        let has_predictor = model.add_predictor().expect("its predictor is known");
        assert!(has_predictor, "{name}: it is found");
        prove_model(
            &REFERENCE,
            &mut ReferenceBackend::new(),
            &golden(name),
            &model,
        );
    }
}

/// The name of a tensor of Qwen's predictor as if it were one of a layer after the last, as of other families.
fn in_last_layer(name: String, last: u32) -> String {
    let own = match name.strip_prefix("mtp.") {
        Some("fc.weight") => "eh_proj.weight",
        Some("pre_fc_norm_embedding.weight") => "enorm.weight",
        Some("pre_fc_norm_hidden.weight") => "hnorm.weight",
        Some("norm.weight") => "shared_head.norm.weight",
        Some(of_layer) => of_layer.trim_start_matches("layers.0."),
        None => return name,
    };
    format!("model.layers.{last}.{own}")
}

/// A sequence whose next tokens are drafted.
struct Drafting<'a, B> {
    device: Device<'a, B>,
    sequence: Sequence,
    /// Rows of the model's last batch: their tokens wait for the one after the last.
    followed: BatchInputs,
}

impl<'a, B: Backend + Inspect> Drafting<'a, B> {
    fn new(device: Device<'a, B>, folder: &Path, index: usize) -> Self {
        let mut case = cases_in(folder).remove(index);
        // Room for a token drawn in each of two rounds, and for drafts.
        case.greedy = vec![0; 8];
        let sequence = device.sequences(&[case]).remove(0);
        Self {
            device,
            sequence,
            followed: BatchInputs::default(),
        }
    }

    fn submit(&mut self, inputs: &BatchInputs) -> Vec<u32> {
        let backend = &mut *self.device.backend;
        let ticket = backend.submit(inputs).expect("the batch is accepted");
        let results = block_on(backend.read(ticket)).expect("the batch is read");
        results.sampled.iter().map(|row| row.token_id).collect()
    }

    /// Computes all known tokens, each chunk with the rows of the predictor whose next token is known.
    fn read_prompt(&mut self, chunk: u32) {
        while self.sequence.computed < self.sequence.tokens.len() as u32 {
            let start = self.sequence.computed as usize;
            let sequences = std::slice::from_mut(&mut self.sequence);
            let (inputs, _) = self.device.batch(sequences, &[0], chunk, false);
            self.submit(&inputs);
            let end = self.sequence.computed as usize;
            self.followed = BatchInputs {
                token_ids: self.sequence.tokens[start + 1..]
                    .iter()
                    .copied()
                    .take(end - start)
                    .collect(),
                carried: (0..(end - start) as u32).collect(),
                states: Vec::new(),
                logits_rows: Vec::new(),
                samples: Vec::new(),
                ..inputs
            };
            if end < self.sequence.tokens.len() {
                let followed = std::mem::take(&mut self.followed);
                self.submit(&followed);
            }
        }
    }

    /// Draws `next`, and drafts after it: the rows of the last batch, then a chain.
    fn check_round(&mut self, place: &str, round: &Value, target: &Target) {
        let next = round["next"].as_u64().expect("an id") as u32;
        let drafts = round["drafts"].as_array().expect("a list of drafts");
        let computed = self.sequence.computed;
        let mut inputs = std::mem::take(&mut self.followed);
        inputs.token_ids.push(next);
        let mut row = inputs.token_ids.len() as u32 - 1;
        for (index, draft) in drafts.iter().enumerate() {
            inputs.logits_rows = vec![row];
            inputs.samples = vec![SampleRow::greedy(0, computed + 1 + index as u32)];
            inputs.tails = vec![Tail::Sample];
            let token = self.submit(&inputs)[0];
            let logits = block_on(self.device.backend.read_buffer(self.device.logits, 1));
            let logits = logits.expect("logits are read");
            let difference = largest_difference(&numbers(&draft["logits"]), &logits);
            let allowed = target.logits_f32;
            assert!(
                difference <= allowed,
                "{place}: logits of draft {index} differ by {difference}, at most {allowed} is allowed"
            );
            assert_eq!(u64::from(token), draft["token"], "{place}: draft {index}");
            inputs = self.chained(token, computed + index as u32, row);
            row = 0;
        }
        // The next token is drawn as if all drafts had been refused.
        self.sequence.tokens.push(next);
        self.read_prompt(WHOLE);
    }

    /// A row at `position` that reads a row of the predictor's last batch.
    fn chained(&self, token: u32, position: u32, carried: u32) -> BatchInputs {
        let mut inputs = BatchInputs {
            token_ids: vec![token],
            positions: vec![position],
            sequences: vec![SequenceRows {
                row_start: 0,
                row_count: 1,
                context_len: position + 1,
            }],
            carried: vec![carried],
            groups: vec![GroupInputs::default(); self.device.plan.kv_groups.len()],
            ..BatchInputs::default()
        };
        for (group, arrays) in inputs.groups.iter_mut().enumerate() {
            let window = self.device.plan.kv_groups[group].window;
            let blocks = &self.sequence.blocks[group];
            push_tables(arrays, blocks, position..position + 1, window);
        }
        inputs
    }

    /// Compares the rows that the last batch left for the predictor.
    fn check_rows(&mut self, place: &str, what: &str, expected: &Value, target: &Target) {
        let expected: Vec<f32> = expected
            .as_array()
            .expect("a list of rows")
            .iter()
            .flat_map(numbers)
            .collect();
        let buffers = self.device.plan.buffers.iter();
        let carried = (0..).zip(buffers).find(|(_, spec)| spec.name == "carried");
        let (id, spec) = carried.expect("a plan with a predictor has the buffer");
        let rows = expected.len() as u32 / spec.columns;
        let found = block_on(self.device.backend.read_buffer(BufferId(id), rows));
        let difference = largest_difference(&expected, &found.expect("rows are read"));
        let allowed = ROWS.max(target.logits_f32);
        assert!(
            difference <= allowed,
            "{place}: {what} differ by {difference}, at most {allowed} is allowed"
        );
    }
}
