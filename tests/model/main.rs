//! Models, from files to tokens. Files: `loading`, `remote`, `gguf_reader`; plans: `plan`, `fit`. This module and the
//! others compare whole models with independent references: golden logits and tokens of each architecture, the demo
//! model's own golden file, and a batch with its members alone.
//!
//! Backends are called directly, with batches built by hand: no engine, no scheduler. [`prove`] applies to every
//! backend; a new backend needs a new [`Target`] and a new test.

mod beams;
#[path = "../support/gguf_builder.rs"]
mod builder;
mod classes;
mod compared;
mod converted;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(all(feature = "cuda", unix))]
#[path = "../support/cuda.rs"]
mod emulator;
mod encoders;
mod fit;
mod gguf;
mod gguf_reader;
mod gguf_splits;
mod gpus;
mod images;
mod kv_coded;
mod latents;
mod lists;
mod loading;
mod longrope;
mod lora;
#[path = "../support/gguf_models.rs"]
mod models;
mod newer;
#[path = "../support/packed.rs"]
mod packed;
mod plan;
mod planted;
mod predictors;
mod projected;
mod published;
mod quantized;
mod remote;
mod shapes;
mod speculation;
mod states;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/tensors.rs"]
mod tensors;
mod threads;
mod tiers;
mod today;

use bytes::Bytes;
use compared::{compare, compare_top, equal_tokens, largest_difference, numbers, top_logprobs};
use folio::backend::cpu::{CpuBackend, CpuOptions, Level};
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{WgpuBackend, WgpuOptions};
use folio::backend::{Backend, Capacity, Inspect};
use folio::model::{Model, Safetensors};
use folio::plan::check::check;
use folio::plan::inputs::{
    BatchInputs, FEED, GroupInputs, NONE, PoolRow, SampleRow, Sampled, SequenceRows, StateRows,
};
use folio::plan::{BufferId, KvFormat, Plan, Sample, Step, Tail, WeightId, Window};
use folio::platform::{FileAccess, block_on};
use lists::{FAMILIES, LOGITS_F16, families, limited, open_golden, selected};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Accuracy that a backend must reach.
struct Target {
    name: &'static str,
    /// Maximum |Δ logit| with f32 keys and values.
    logits_f32: f32,
    /// Whether a row is independent of the rest of its batch and of how its prompt was split into chunks.
    bit_exact: bool,
}

const REFERENCE: Target = Target {
    name: "reference",
    logits_f32: 2e-3,
    bit_exact: true,
};

const CPU: Target = Target {
    name: "cpu",
    ..REFERENCE
};

const WGPU: Target = Target {
    name: "wgpu",
    logits_f32: 1e-2,
    bit_exact: false,
};

const BLOCK_SIZE: u32 = 16;
/// Tokens per prompt chunk: coprime to block and window sizes.
const CHUNK: u32 = 19;
const SEQUENCES_MAX: u32 = 8;
const TOKENS_MAX: u32 = 1024;
/// Chunk size longer than every prompt, so that a prompt is one chunk.
const WHOLE: u32 = TOKENS_MAX;

#[test]
fn the_reference_reproduces_golden_logits_and_tokens() {
    prove(&REFERENCE, &mut ReferenceBackend::new());
}

#[test]
fn the_reference_reproduces_the_demo_model() {
    prove_demo(&REFERENCE, &mut ReferenceBackend::new());
}

/// As many tests run at once as there are cores, and threads that wait for each other spin. The kernels and [`threads`]
/// are tested with several.
const ONE_THREAD: CpuOptions = CpuOptions {
    level: None,
    threads: Some(1),
};

/// The native CPU device.
fn cpu() -> CpuBackend {
    CpuBackend::new(&ONE_THREAD)
}

/// The native CPU device with each instruction set of this processor.
fn cpus() -> impl Iterator<Item = CpuBackend> {
    Level::available().into_iter().map(|level| {
        CpuBackend::new(&CpuOptions {
            level: Some(level),
            ..ONE_THREAD
        })
    })
}

#[test]
fn every_instruction_set_reproduces_golden_logits_and_tokens() {
    for mut cpu in cpus() {
        prove(&CPU, &mut cpu);
        prove_demo(&CPU, &mut cpu);
    }
}

/// Indices of all adapters. Software adapters count. Without any, the test is skipped, or fails under
/// `FOLIO_REQUIRE_GPU=1`.
fn adapters() -> Vec<usize> {
    let adapters = WgpuBackend::adapters();
    if adapters.is_empty() {
        let required = std::env::var("FOLIO_REQUIRE_GPU").is_ok_and(|value| value == "1");
        assert!(!required, "FOLIO_REQUIRE_GPU=1, but wgpu finds no adapter");
        println!("SKIPPED: wgpu finds no adapter. Install a Vulkan driver, such as Mesa's.");
    }
    adapters.into_iter().map(|adapter| adapter.index).collect()
}

#[test]
fn every_adapter_reproduces_golden_logits_and_tokens() {
    for adapter in adapters() {
        let options = WgpuOptions {
            adapter: Some(adapter),
            ..WgpuOptions::default()
        };
        // One device for all families, so that its kernels are compiled only once.
        let mut backend =
            block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens");
        prove(&WGPU, &mut backend);
        prove_demo(&WGPU, &mut backend);
    }
}

/// The tolerance is small enough to detect a slightly wrong constant.
#[test]
fn a_wrong_number_in_the_config_shows_in_the_logits() {
    let table = [
        (
            "llama",
            json!({"rope_parameters": {"rope_theta": 10_100.0}}),
        ),
        ("llama", json!({"rms_norm_eps": 1e-2})),
        (
            "llama3-rope",
            json!({"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}}),
        ),
        ("mistral-window", json!({"sliding_window": 25})),
        ("mistral-window", json!({"sliding_window": null})),
        (
            "qwen3",
            json!({"rope_parameters": {"rope_theta": 10_000.0}}),
        ),
        ("gemma2", json!({"attn_logit_softcapping": 50.0})),
        ("gemma2", json!({"final_logit_softcapping": null})),
        ("gemma2", json!({"query_pre_attn_scalar": 17})),
        (
            "gemma2",
            json!({"layer_types": null, "sliding_window_pattern": 4}),
        ),
        (
            "gemma3",
            json!({"rope_parameters": null, "rope_local_base_freq": 1e6}),
        ),
        (
            "gemma3",
            json!({"rope_parameters": null, "rope_theta": 1e4}),
        ),
        (
            "phi3",
            json!({"partial_rotary_factor": 0.5, "rope_parameters": null}),
        ),
        ("smollm3", json!({"no_rope_layers": [1, 1]})),
        ("granite", json!({"embedding_multiplier": 11.0})),
        ("granite", json!({"attention_multiplier": 0.25})),
        ("granite", json!({"residual_multiplier": 0.25})),
        ("granite", json!({"logits_scaling": 4.0})),
        ("granite", json!({"rms_norm_eps": 0.1})),
        ("qwen3-moe", json!({"norm_topk_prob": false})),
        ("qwen3-moe", json!({"num_experts_per_tok": 3})),
        ("gpt-oss", json!({"swiglu_limit": 1.0})),
        ("gpt-oss", json!({"swiglu_alpha": 1.0})),
        ("olmo3", json!({"sliding_window": 25})),
        ("seed_oss", json!({"rope_theta": 1e6})),
        ("granite4-dense", json!({"position_embedding_type": "nope"})),
        (
            "hunyuan_v1_dense",
            json!({"rope_scaling": {"type": "dynamic", "alpha": 900.0}}),
        ),
        ("glm4_moe", json!({"routed_scaling_factor": 1.5})),
        ("glm4_moe", json!({"partial_rotary_factor": 1.0})),
        ("glm4_moe", json!({"num_experts_per_tok": 3})),
        ("qwen2_moe", json!({"norm_topk_prob": true})),
        ("cohere2", json!({"logit_scale": 0.3})),
        ("cohere2", json!({"sliding_window_pattern": 2})),
        (
            "phi3-longrope",
            json!({"partial_rotary_factor": 0.75, "original_max_position_embeddings": 32}),
        ),
        ("gemma4-dense", json!({"final_logit_softcapping": null})),
        // A partial rotation instead of a proportional one, and the reverse.
        (
            "gemma4-dense",
            json!({"rope_parameters": {
                "full_attention": {"rope_type": "default", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}),
        ),
        (
            "glm4_moe",
            json!({"rope_scaling": {"rope_type": "proportional"}}),
        ),
        (
            "gpt-oss",
            json!({"rope_parameters": {"rope_type": "yarn", "rope_theta": 150_000.0, "factor": 32.0,
            "original_max_position_embeddings": 4096, "attention_factor": 1.0}}),
        ),
    ];
    table
        .iter()
        .for_each(|(family, changes)| changes_show(family, changes));
}

/// Changes of a golden config that show in its logits.
fn changes_show(family: &str, changes: &Value) {
    let model = changed(family, changes);
    let case = Case {
        greedy: vec![0],
        ..golden_cases(family).remove(3)
    };
    let mut backend = ReferenceBackend::new();
    let mut device = Device::new(&mut backend, &model, KvFormat::F32);
    let run = device
        .generate(std::slice::from_ref(&case), WHOLE, false)
        .remove(0);
    let difference = largest_difference(&case.logits, &run.logits[0]);
    assert!(
        difference > 2.0 * REFERENCE.logits_f32,
        "{family} with {changes}: only {difference}"
    );
}

/// Layers with and without a window have separate block ids. As long as the window hides nothing, the results equal the
/// golden ones; beyond that, a batch still equals its members alone.
#[test]
fn two_kv_groups_run_side_by_side() {
    let kinds = json!(["sliding_attention", "full_attention"]);
    let model = changed(
        "qwen3",
        &json!({"use_sliding_window": true, "sliding_window": 24, "layer_types": kinds}),
    );
    let mut backend = ReferenceBackend::new();
    let mut device = Device::new(&mut backend, &model, KvFormat::F32);
    assert_eq!(device.plan.kv_groups.len(), 2);
    let cases = golden_cases("qwen3");
    let alone: Vec<Run> = cases
        .iter()
        .map(|case| {
            device
                .generate(std::slice::from_ref(case), WHOLE, false)
                .remove(0)
        })
        .collect();
    assert!(
        device.generate(&cases, CHUNK, true) == alone,
        "a batch equals its members, bit for bit"
    );
    for (case, run) in cases.iter().zip(&alone) {
        let difference = largest_difference(&case.logits, &run.logits[0]);
        let hides = case.prompt.len() > 24;
        assert_eq!(
            difference > REFERENCE.logits_f32,
            hides,
            "prompt of {}: {difference}",
            case.prompt.len()
        );
        let unhidden = 24_usize.saturating_sub(case.prompt.len()).min(24);
        assert_eq!(
            run.tokens[..unhidden],
            case.greedy[..unhidden],
            "prompt of {}",
            case.prompt.len()
        );
    }
}

/// A golden model with changed fields in its config.
fn changed(family: &str, changes: &Value) -> Model {
    let mut config = read_json(&golden(family).join("config.json"));
    for (name, value) in changes.as_object().expect("an object") {
        config[name] = value.clone();
    }
    let source =
        Safetensors::open(&golden(family), FileAccess::Read).expect("the golden weights load");
    Model::from_parts(config.to_string().as_bytes(), None, Box::new(source)).expect("it loads")
}

/// Checks the golden logits and tokens of every family: alone, in chunks, and as one batch.
fn prove<B: Backend + Inspect>(target: &Target, backend: &mut B) {
    for (family, logits_f16) in FAMILIES {
        let cases = golden_cases(family);
        let model = Model::open(&golden(family)).expect("the golden model loads");
        for (kv_format, tolerance) in [
            (KvFormat::F32, target.logits_f32),
            (KvFormat::F16, logits_f16),
        ] {
            let mut device = Device::new(backend, &model, kv_format);
            let mut alone = Vec::new();
            let mut worst = 0.0_f32;
            for case in &cases {
                let run = device
                    .generate(std::slice::from_ref(case), WHOLE, false)
                    .remove(0);
                let place = format!(
                    "{family} on {}, {kv_format:?}, prompt of {}",
                    target.name,
                    case.prompt.len()
                );
                worst = worst.max(compare(&place, case, &run, tolerance));
                let in_chunks = device
                    .generate(std::slice::from_ref(case), CHUNK, false)
                    .remove(0);
                worst = worst.max(compare(
                    &format!("{place} in chunks of {CHUNK}"),
                    case,
                    &in_chunks,
                    tolerance,
                ));
                if target.bit_exact {
                    assert!(in_chunks == run, "{place}: chunks change nothing");
                }
                alone.push(run);
            }
            for (case, (run, alone)) in cases
                .iter()
                .zip(device.generate(&cases, CHUNK, true).iter().zip(&alone))
            {
                let place = format!(
                    "{family} on {}, {kv_format:?}, batched {}",
                    target.name,
                    case.prompt.len()
                );
                worst = worst.max(compare(&place, case, run, tolerance));
                if target.bit_exact {
                    assert!(run == alone, "{place}: a batch is its members, bit for bit");
                }
            }
            prove_prompts(
                &format!("{family} on {}, {kv_format:?}", target.name),
                &mut device,
                &cases,
                &alone,
                tolerance,
            );
            println!(
                "{family} on {}, {kv_format:?}: logits differ by at most {worst:.1e}",
                target.name
            );
        }
        support::ran("families", family, "safetensors", target.name);
    }
}

/// Checks the golden answers as prompts: each of their tokens has the same logprob as when it was generated, and is the
/// most likely one at its position. Sums of hidden states do not depend on how they are split over rows.
fn prove_prompts<B: Backend + Inspect>(
    place: &str,
    device: &mut Device<'_, B>,
    cases: &[Case],
    runs: &[Run],
    tolerance: f32,
) {
    for (case, run) in cases.iter().zip(runs) {
        let prompt = [&case.prompt[..], &case.greedy].concat();
        let first = case.prompt.len() - 1;
        let whole = Case {
            prompt: prompt.clone(),
            greedy: vec![0],
            logits: Vec::new(),
        };
        let mut sequences = device.sequences(&[whole]);
        let (mut inputs, _) = device.batch(&mut sequences, &[0], WHOLE, false);
        inputs.logits_rows = (first as u32..prompt.len() as u32 - 1).collect();
        let row = |(index, token): (u32, &u32)| {
            let row = SampleRow {
                scored_token: *token,
                logprob: true,
                top_logprobs: 3,
                ..SampleRow::greedy(index, 0)
            };
            SampleRow {
                position: index + first as u32 + 1,
                ..row
            }
        };
        inputs.samples = (0..).zip(&case.greedy).map(row).collect();
        inputs.tails.push(Tail::Pool);
        let (rows, half) = (prompt.len() as u32, prompt.len() as u32 / 2);
        let pools = [(0, half), (half, rows - half), (0, rows)];
        inputs.pools = pools
            .map(|(row_start, row_count)| PoolRow {
                row_start,
                row_count,
            })
            .to_vec();
        let ticket = device
            .backend
            .submit(&inputs)
            .expect("the batch is accepted");
        let results = block_on(device.backend.read(ticket)).expect("the batch is read");
        for (step, (found, expected)) in results.sampled.iter().zip(&run.steps).enumerate() {
            let place = format!(
                "{place}, prompt of {}, scored token {step}",
                case.prompt.len()
            );
            assert_eq!(found.token_id, case.greedy[step], "{place}");
            assert_eq!(
                found.top[0].0, found.token_id,
                "{place}: it is the most likely"
            );
            assert!(
                (found.logprob - expected.logprob).abs() <= 2.0 * tolerance,
                "{place}: {found:?}, {expected:?}"
            );
        }
        let [left, right, all] = &results.pooled[..] else {
            panic!("{place}: three sums")
        };
        assert!(
            all.iter().any(|sum| sum.abs() > 1e-3),
            "{place}: states are not all zero"
        );
        for ((left, right), all) in left.iter().zip(right).zip(all) {
            assert!(
                (left + right - all).abs() <= 1e-4 * (1.0 + all.abs()),
                "{place}: {left} + {right} is {all}"
            );
        }
    }
}

/// Checks the demo model's golden file: greedy tokens, and the five most likely tokens at the first eight positions.
fn prove_demo<B: Backend + Inspect>(target: &Target, backend: &mut B) {
    let model = Model::demo();
    let file = repository("assets/demo/recipe/golden.json");
    let prompts = read_json(&file)["prompts"]
        .as_array()
        .expect("a list of prompts")
        .clone();
    let eos = &model.generation().eos_token_ids;
    for (kv_format, tolerance) in [(KvFormat::F32, 1e-3), (KvFormat::F16, LOGITS_F16)] {
        let mut device = Device::new(backend, &model, kv_format);
        let (mut compared, mut total) = (0, 0);
        for prompt in &prompts {
            let greedy = ids(&prompt["greedy_ids"]);
            assert!(
                greedy.len() == 64 || eos.contains(greedy.last().expect("an answer")),
                "it ends with an end token"
            );
            let case = Case {
                prompt: ids(&prompt["prompt_ids"]),
                greedy,
                logits: Vec::new(),
            };
            let run = device
                .generate(std::slice::from_ref(&case), WHOLE, false)
                .remove(0);
            total += case.greedy.len();
            let equal = equal_tokens(&case, &run, tolerance);
            compared += equal;
            for (step, (found, expected)) in run
                .steps
                .iter()
                .zip(top_logprobs(prompt))
                .take(equal)
                .enumerate()
            {
                compare_top(
                    &format!("{kv_format:?}, {:?}, step {step}", prompt["prompt_text"]),
                    found,
                    &expected,
                    tolerance,
                );
            }
        }
        println!(
            "demo model on {}, {kv_format:?}: {compared} of {total} tokens compared",
            target.name
        );
        assert!(
            compared * 100 >= total * 80,
            "only {compared} of {total} tokens could be compared"
        );
        if kv_format == KvFormat::F32 {
            assert_eq!(
                compared, total,
                "with f32 keys and values no step is near a tie"
            );
        }
    }
}

/// A prompt with its expected continuation.
#[derive(Clone)]
struct Case {
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    /// Logits of the prompt's last position; empty if unknown.
    logits: Vec<f32>,
}

/// The continuation that a backend computed.
#[derive(Default, PartialEq)]
struct Run {
    tokens: Vec<u32>,
    steps: Vec<Sampled>,
    /// One row per token.
    logits: Vec<Vec<f32>>,
}

/// Path of a file of the repository, whose folder is set by cargo, or by `.ci/gpu` on another machine.
fn repository(path: &str) -> PathBuf {
    let root =
        std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&root).join(path)
}

fn golden(family: &str) -> PathBuf {
    packed::model(&format!("golden/{family}"))
}

fn read_json(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).expect("the golden file reads"))
        .expect("the golden file is JSON")
}

fn ids(value: &Value) -> Vec<u32> {
    let list = value.as_array().expect("a list of ids");
    list.iter()
        .map(|id| id.as_u64().expect("an id") as u32)
        .collect()
}

fn golden_cases(family: &str) -> Vec<Case> {
    let cases = cases_in(&golden(family));
    let lengths: Vec<usize> = cases.iter().map(|case| case.prompt.len()).collect();
    assert!(
        lengths.starts_with(&[1, 7, 33, 130]),
        "{family}: the cases the tests are made for"
    );
    cases
}

/// The cases of a folder's golden file.
fn cases_in(folder: &Path) -> Vec<Case> {
    let json = read_json(&folder.join("golden.json"));
    let cases = json["cases"]
        .as_array()
        .expect("a list of cases")
        .iter()
        .map(|case| Case {
            prompt: ids(&case["prompt"]),
            greedy: ids(&case["greedy"]),
            logits: numbers(&case["logits"]),
        });
    cases.collect()
}

/// A backend with a loaded model.
struct Device<'a, B> {
    backend: &'a mut B,
    plan: Arc<Plan>,
    logits: BufferId,
    blocks: u32,
    sequences_max: u32,
    /// The adapter slot of each case; empty if none has an adapter.
    adapters: Vec<u32>,
}

/// Sizes that a device is loaded with.
#[derive(Clone, Copy)]
struct Sizes {
    /// Maximum token rows per step.
    tokens_max: u32,
    /// Number of blocks per KV group: a prime.
    blocks: u32,
    /// Sequences at once, each with a state: coprime to 3.
    sequences_max: u32,
    deterministic: bool,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            tokens_max: TOKENS_MAX,
            blocks: 97,
            sequences_max: SEQUENCES_MAX,
            deterministic: true,
        }
    }
}

/// A running sequence.
struct Sequence {
    tokens: Vec<u32>,
    computed: u32,
    /// For each KV group, the block of each `BLOCK_SIZE` positions.
    blocks: Vec<Vec<u32>>,
    generated: u32,
}

impl<'a, B: Backend + Inspect> Device<'a, B> {
    fn new(backend: &'a mut B, model: &Model, kv_format: KvFormat) -> Self {
        Self::with(backend, model, kv_format, Sizes::default())
    }

    fn with(backend: &'a mut B, model: &Model, kv_format: KvFormat, sizes: Sizes) -> Self {
        let plan = model.record(backend.caps().activations);
        Self::of_plan(backend, model, plan, kv_format, sizes)
    }

    /// [`Device::with`], with a plan that may differ from the recorded one.
    fn of_plan(
        backend: &'a mut B,
        model: &Model,
        plan: Plan,
        kv_format: KvFormat,
        sizes: Sizes,
    ) -> Self {
        Self::of_weights(backend, model, plan, kv_format, sizes, |_, rows| rows)
    }

    /// [`Device::of_plan`], with weights that may differ from the model's.
    fn of_weights(
        backend: &'a mut B,
        model: &Model,
        plan: Plan,
        kv_format: KvFormat,
        sizes: Sizes,
        change: impl Fn(WeightId, Bytes) -> Bytes,
    ) -> Self {
        let Sizes {
            tokens_max,
            blocks,
            sequences_max,
            deterministic,
        } = sizes;
        check(&plan).expect("the recorded plan is right");
        let plan = Arc::new(plan);
        let capacity = Capacity {
            tokens_max,
            sequences_max,
            samples_max: tokens_max,
            feed_slots: sequences_max,
            state_slots: sequences_max,
            table_entries_max: 1024,
            history_max: 1024,
            bias_max: 1,
            mask_words_max: plan.vocab.div_ceil(32),
            copies_max: 1,
            block_size: BLOCK_SIZE,
            kv_format,
            deterministic,
        };
        backend
            .load(plan.clone(), &capacity)
            .expect("the plan loads");
        let write = |id, row, bytes| backend.write_weight(id, row, change(id, bytes));
        block_on(model.upload(&plan, write)).expect("weights upload");
        backend
            .allocate_pool(&vec![blocks; plan.kv_groups.len()])
            .expect("a small pool fits");
        let Some(Step::Sample(Sample { logits })) = plan.tail(Tail::Sample).last() else {
            panic!("the tail ends by sampling")
        };
        Self {
            logits: *logits,
            backend,
            plan,
            blocks,
            sequences_max,
            adapters: Vec::new(),
        }
    }

    /// Generates greedily for all cases at once, until each has as many tokens as its golden answer. With `feed`,
    /// decode rows read their token from where the sampler left it on the device.
    fn generate(&mut self, cases: &[Case], chunk: u32, feed: bool) -> Vec<Run> {
        let mut sequences = self.sequences(cases);
        let mut runs: Vec<Run> = cases.iter().map(|_| Run::default()).collect();
        loop {
            let live: Vec<usize> = (0..cases.len())
                .filter(|&i| runs[i].tokens.len() < cases[i].greedy.len())
                .collect();
            if live.is_empty() {
                return runs;
            }
            let (inputs, sampled) = self.batch(&mut sequences, &live, chunk, feed);
            let ticket = self.backend.submit(&inputs).expect("the batch is accepted");
            let results = block_on(self.backend.read(ticket))
                .expect("the batch is read")
                .sampled;
            assert_eq!(results.len(), sampled.len(), "one result a sample row");
            let rows = sampled.len() as u32;
            let logits =
                block_on(self.backend.read_buffer(self.logits, rows)).expect("logits are read");
            let rows = logits.chunks(self.plan.vocab as usize);
            for ((index, result), row) in sampled.into_iter().zip(results).zip(rows) {
                sequences[index].tokens.push(result.token_id);
                sequences[index].generated += 1;
                runs[index].tokens.push(result.token_id);
                runs[index].steps.push(result);
                runs[index].logits.push(row.to_vec());
            }
        }
    }

    /// New sequences with blocks scattered over the pool, differently in each KV group.
    fn sequences(&self, cases: &[Case]) -> Vec<Sequence> {
        let mut next = 0;
        let sequence = |case: &Case| {
            let count =
                (case.prompt.len() + case.greedy.len()).div_ceil(BLOCK_SIZE as usize) as u32;
            let taken = next..next + count;
            next += count;
            assert!(next <= self.blocks, "the pool holds all sequences");
            // The strides are coprime to the number of blocks, so each block is used once, in scrambled order.
            let scatter = |group: u32| {
                taken
                    .clone()
                    .map(|i| (i * (29 + group) + 11) % self.blocks)
                    .collect()
            };
            let blocks = (0..self.plan.kv_groups.len() as u32).map(scatter).collect();
            Sequence {
                tokens: case.prompt.clone(),
                computed: 0,
                blocks,
                generated: 0,
            }
        };
        cases.iter().map(sequence).collect()
    }

    /// Builds the batch of the next step for the sequences `live`. Also returns those that get a token from it.
    fn batch(
        &self,
        sequences: &mut [Sequence],
        live: &[usize],
        chunk: u32,
        feed: bool,
    ) -> (BatchInputs, Vec<usize>) {
        let mut inputs = BatchInputs {
            tails: vec![Tail::Sample],
            ..BatchInputs::default()
        };
        inputs.groups = vec![GroupInputs::default(); self.plan.kv_groups.len()];
        let mut sampled = Vec::new();
        let slots = live.iter().filter_map(|&index| self.adapters.get(index));
        inputs.adapters = slots.copied().collect();
        if inputs.adapters.iter().all(|&slot| slot == 0) {
            inputs.adapters.clear();
        }
        for &index in live {
            let sequence = &mut sequences[index];
            let total = sequence.tokens.len() as u32;
            let (start, end) = (sequence.computed, total.min(sequence.computed + chunk));
            let row_start = inputs.token_ids.len() as u32;
            inputs.sequences.push(SequenceRows {
                row_start,
                row_count: end - start,
                context_len: end,
            });
            if !self.plan.state_layers.is_empty() {
                // The stride is coprime to the number of slots.
                let slot = (index as u32 * 3 + 5) % self.sequences_max;
                inputs.states.push(StateRows {
                    from: if start == 0 { NONE } else { slot },
                    to: slot,
                });
            }
            for position in start..end {
                let is_fed = feed && sequence.generated > 0 && position == total - 1;
                inputs.token_ids.push(if is_fed {
                    FEED | index as u32
                } else {
                    sequence.tokens[position as usize]
                });
                inputs.positions.push(position);
            }
            for (group, inputs) in inputs.groups.iter_mut().enumerate() {
                let window = self.plan.kv_groups[group].window;
                push_tables(inputs, &sequence.blocks[group], start..end, window);
            }
            if end == total {
                let logits_row = inputs.logits_rows.len() as u32;
                inputs.logits_rows.push(inputs.token_ids.len() as u32 - 1);
                let greedy = SampleRow::greedy(logits_row, total);
                inputs.samples.push(SampleRow {
                    feed_slot: index as u32,
                    logprob: true,
                    top_logprobs: 5,
                    ..greedy
                });
                sampled.push(index);
            }
            sequence.computed = end;
        }
        (inputs, sampled)
    }
}

/// Adds the block table and slots of one sequence. Blocks before the window of the first row are left out.
fn push_tables(
    inputs: &mut GroupInputs,
    blocks: &[u32],
    rows: std::ops::Range<u32>,
    window: Option<Window>,
) {
    let first_seen = window.map_or(0, |window| window.first_visible(rows.start));
    inputs.table_starts.push(inputs.block_tables.len() as u32);
    for (index, &block) in blocks
        .iter()
        .take(rows.end.div_ceil(BLOCK_SIZE) as usize)
        .enumerate()
    {
        let is_passed = (index as u32 + 1) * BLOCK_SIZE <= first_seen;
        inputs
            .block_tables
            .push(if is_passed { NONE } else { block });
    }
    for position in rows {
        let block = blocks[(position / BLOCK_SIZE) as usize];
        inputs
            .slot_mapping
            .push(block * BLOCK_SIZE + position % BLOCK_SIZE);
    }
}
