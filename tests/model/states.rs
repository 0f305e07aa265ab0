//! Models that keep a state per sequence: golden logits and tokens on every backend, however a sequence is cut into
//! batches, and through the whole engine with preemptions, snapshots, choices and beams.

use super::speculation::{Drawn, answers};
use super::today::{Mistake, prove_list};
use super::{
    CPU, Case, Device, LOGITS_F16, REFERENCE, Run, SEQUENCES_MAX, Target, WGPU, WHOLE, adapters,
    compare, cpus, golden, golden_cases, read_json,
};
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{WgpuBackend, WgpuOptions};
use folio::backend::{Backend, Inspect};
use folio::config::Config;
use folio::engine::fit::{Beside, Fit};
use folio::engine::handle::{EventReceiver, channel};
use folio::engine::request::{BeamParams, DrawParams, Event, PromptEvent, Request, SamplingParams};
use folio::engine::{Engine, Progress};
use folio::model::spec::{LayerKind, LayerSpec};
use folio::model::{LoadError, Model, ModelSpec};
use folio::plan::check::check;
use folio::plan::inputs::BatchInputs;
use folio::plan::{
    Activation, GatedActivation, GatedNorm, KvFormat, Plan, ScanRule, StateScan, Step, Storage, Up,
    Window,
};
use folio::platform::block_on;
use serde_json::{Value, json};

/// Golden folders, and maximum |Δ logit| with f16 keys and values.
pub(super) const STATES: [(&str, f32); 16] = [
    ("lfm2", LOGITS_F16),
    ("lfm2_moe", LOGITS_F16),
    ("lfm3", LOGITS_F16),
    ("qwen3_5", LOGITS_F16),
    ("qwen3_5-wide", LOGITS_F16),
    ("qwen3_5-wrapped", LOGITS_F16),
    ("qwen3_5_moe", LOGITS_F16),
    ("qwen3_5_moe-wrapped", LOGITS_F16),
    ("qwen3_next", LOGITS_F16),
    ("granite4-h-dense", LOGITS_F16),
    ("granite4-h-moe", LOGITS_F16),
    ("granite4-h-wide", LOGITS_F16),
    ("nemotron_h", LOGITS_F16),
    ("nemotron_h-moe", LOGITS_F16),
    ("falcon_h1", LOGITS_F16),
    ("olmo_hybrid", LOGITS_F16),
];

#[test]
fn the_reference_reproduces_golden_logits_and_tokens() {
    let mut backend = ReferenceBackend::new();
    prove_list(
        &STATES,
        &REFERENCE,
        &mut backend,
        &[KvFormat::F32, KvFormat::F16],
    );
    prove_chunks(&REFERENCE, &mut backend);
}

#[test]
fn every_instruction_set_reproduces_golden_logits_and_tokens() {
    cpus().for_each(|mut cpu| {
        prove_list(&STATES, &CPU, &mut cpu, &[KvFormat::F32]);
        prove_chunks(&CPU, &mut cpu);
    });
}

#[test]
fn every_adapter_reproduces_golden_logits_and_tokens() {
    for adapter in adapters() {
        let options = WgpuOptions {
            adapter: Some(adapter),
            ..WgpuOptions::default()
        };
        let mut backend =
            block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens");
        prove_list(&STATES, &WGPU, &mut backend, &[KvFormat::F32]);
        prove_chunks(&WGPU, &mut backend);
    }
}

/// Token by token, in chunks shorter and longer than a state, and whole: the same answer.
fn prove_chunks<B: Backend + Inspect>(target: &Target, backend: &mut B) {
    for (family, _) in STATES {
        let model = Model::open(&golden(family)).expect("the golden model loads");
        let case = golden_cases(family).remove(2);
        let mut device = Device::new(backend, &model, KvFormat::F32);
        let mut run = |chunk| {
            device
                .generate(std::slice::from_ref(&case), chunk, false)
                .remove(0)
        };
        let whole: Run = run(WHOLE);
        for chunk in [1, 2, 3, 5, 16] {
            let run = run(chunk);
            compare(
                &format!("{family} on {} in chunks of {chunk}", target.name),
                &case,
                &run,
                target.logits_f32,
            );
            assert!(
                !target.bit_exact || run == whole,
                "{family} on {}: chunks of {chunk}",
                target.name
            );
        }
    }
}

fn config(plan: &Plan, blocks: u64) -> Config {
    Config {
        max_num_seqs: 6,
        max_num_batched_tokens: 128,
        max_model_len: Some(336),
        block_size: 16,
        kv_cache_bytes: Some(blocks * plan.block_bytes(0, 16, KvFormat::F32)),
        kv_format: KvFormat::F32,
        state_snapshots: Some(2),
        ..Config::default()
    }
}

/// A request for the golden tokens of a case.
pub(super) fn request(case: &Case) -> Request {
    let params = SamplingParams {
        draw: DrawParams::greedy(),
        ignore_eos: true,
        max_tokens: Some(case.greedy.len() as u32),
        ..SamplingParams::default()
    };
    Request {
        prompt: case.prompt.clone().into(),
        params,
        ..Request::default()
    }
}

/// The tokens of a finished answer.
pub(super) fn tokens(mut receiver: EventReceiver) -> Vec<u32> {
    let mut tokens = Vec::new();
    while let Ok(event) = receiver.try_recv() {
        match event {
            Event::Token(token) => tokens.push(token.id),
            Event::Finished { .. } => return tokens,
            other => panic!("{other:?}"),
        }
    }
    panic!("an answer ends")
}

/// More requests than run at once, in a pool that some of them outgrow.
#[test]
fn an_engine_answers_with_the_golden_tokens_whoever_is_preempted() {
    for family in [
        "lfm2",
        "lfm2_moe",
        "qwen3_5",
        "qwen3_next",
        "granite4-h-dense",
        "nemotron_h",
        "falcon_h1",
    ] {
        let model = Model::open(&golden(family)).expect("the golden model loads");
        let config = config(&model.record(Storage::F32), 38);
        let (handle, inbox) = channel(config.queue_requests_max);
        let mut notices = Vec::new();
        let progress = |progress| {
            if let Progress::Notice(text) = progress {
                notices.push(text);
            }
        };
        let started = Engine::start(ReferenceBackend::new(), model, &config, inbox, progress);
        let engine = block_on(started).expect("it starts");
        assert!(
            notices.iter().any(|text| text.contains("recurrent state")),
            "{notices:?}"
        );
        let cases = golden_cases(family);
        let asked: Vec<&Case> = [3, 3, 3, 3, 0, 4, 2, 1, 3, 2]
            .map(|case| &cases[case])
            .to_vec();
        let receivers: Vec<_> = asked
            .iter()
            .map(|case| {
                handle
                    .submit(request(case))
                    .expect("a valid request")
                    .remove(0)
            })
            .collect();
        handle.drain();
        block_on(engine.run()).expect("the engine answers all");
        for (case, receiver) in asked.into_iter().zip(receivers) {
            assert_eq!(
                tokens(receiver),
                case.greedy,
                "{family}, prompt of {}",
                case.prompt.len()
            );
        }
        assert!(
            handle.stats().preemptions > 0,
            "the pool is too small for all: {:?}",
            handle.stats()
        );
    }
}

/// The config for requests one after the other, or at once, with room for all they leave.
fn roomy(family: &str, max_num_seqs: u32, prefix_caching: bool) -> Config {
    let model = Model::open(&golden(family)).expect("the golden model loads");
    let config = config(&model.record(Storage::F32), 200);
    Config {
        max_num_seqs,
        prefix_caching,
        state_snapshots: Some(60),
        speculation: None,
        ..config
    }
}

/// The same prompts twice, then with their answers and more, each after the one before: from a snapshot, every token
/// and every bit of the logprobs is what it is without.
#[test]
fn from_a_snapshot_every_bit_is_the_same() {
    for (family, _) in STATES {
        let with_logprobs = |mut request: Request| {
            request.params.logprobs = Some(4);
            request
        };
        let cases = golden_cases(family);
        let one = |case: &Case| with_logprobs(request(case));
        let follow_up = |case: &Case| {
            let prompt = [&case.prompt[..], &case.greedy, &[5, 6, 7]].concat();
            let mut next = one(case);
            (next.prompt, next.params.max_tokens) = (prompt.into(), Some(8));
            next
        };
        let rounds = cases.iter().chain(&cases).map(one);
        // The longest prompt and its answer fill the context.
        let requests: Vec<_> = rounds.chain(cases[..4].iter().map(follow_up)).collect();
        let run = |prefix_caching| {
            let config = roomy(family, 1, prefix_caching);
            answers(&ReferenceBackend::new, family, None, &config, &requests)
        };
        let ((with, stats), (without, plain)) = (run(true), run(false));
        assert!(with == without, "{family}: a snapshot changes an answer");
        // In blocks of 16: of the prompts of 33, 130 and 300 tokens, then of four prompts with their answers.
        let prompts = 32 + 128 + 288;
        // Of the model with windows, two answers leave a state, but not all blocks of the window before it.
        let found = prompts
            + if family == "lfm3" {
                16 + 48
            } else {
                16 + 16 + 48 + 144
            };
        assert_eq!(
            (stats.prefix_hits, plain.prefix_hits),
            (found, 0),
            "{family}"
        );
    }
}

/// The logprobs that tokens have as a part of a prompt.
fn scored(family: &str, prompt: Vec<u32>, first: usize) -> Vec<u32> {
    let model = Model::open(&golden(family)).expect("the golden model loads");
    let config = roomy(family, 1, false);
    let (handle, inbox) = channel(1);
    let engine = block_on(Engine::start(
        ReferenceBackend::new(),
        model,
        &config,
        inbox,
        |_| {},
    ))
    .expect("it starts");
    let params = SamplingParams {
        prompt_logprobs: Some(0),
        max_tokens: Some(1),
        seed: Some(1),
        ..SamplingParams::default()
    };
    let request = Request {
        prompt: prompt.into(),
        params,
        ..Request::default()
    };
    let mut receiver = handle.submit(request).expect("a valid request").remove(0);
    handle.drain();
    block_on(engine.run()).expect("the engine answers all");
    let mut logprobs = Vec::new();
    while let Ok(event) = receiver.try_recv() {
        if let Event::Prompt(PromptEvent::Logprobs(tokens)) = event {
            logprobs.extend(
                tokens
                    .iter()
                    .filter_map(|token| token.logprob.map(f32::to_bits)),
            );
        }
    }
    // The first token of a prompt has none.
    logprobs.split_off(first - 1)
}

/// Choices are drawn from the state after their prompt, and beams fork states: each of their tokens has the logprob
/// that it has in a prompt, where nothing forks.
#[test]
fn choices_and_beams_go_on_from_one_state() {
    for (family, _) in STATES {
        let case = golden_cases(family).remove(2);
        let mut choices = request(&case);
        (choices.params.n, choices.params.logprobs) = (3, Some(0));
        let mut search = choices.clone();
        search.params.beams = Some(BeamParams {
            width: 3,
            length_penalty: 1.0,
            early_stopping: false,
        });
        let config = roomy(family, 6, true);
        let (found, _) = answers(
            &ReferenceBackend::new,
            family,
            None,
            &config,
            &[choices, search],
        );
        assert_eq!(found.len(), 6);
        let ids = |answer: &[Drawn]| answer.iter().map(|(id, _)| *id).collect::<Vec<_>>();
        found[..3]
            .iter()
            .for_each(|answer| assert_eq!(ids(answer), case.greedy, "{family}: a choice"));
        assert!(ids(&found[3]) != ids(&found[4]), "{family}: beams differ");
        for answer in &found {
            let prompt = [&case.prompt[..], &ids(answer)].concat();
            let logprobs: Vec<_> = answer.iter().map(|(_, bits)| bits[0]).collect();
            assert_eq!(
                logprobs,
                scored(family, prompt, case.prompt.len()),
                "{family}: {:?}",
                ids(answer)
            );
        }
    }
}

/// Every running sequence has a state, beside the pool, and every snapshot.
#[test]
fn states_are_part_of_what_fits() {
    let model = Model::open(&golden("lfm2")).expect("the golden model loads");
    let backend = ReferenceBackend::new();
    let plan = model.record(Storage::F32);
    let fit = Fit::new(&config(&plan, 60), &plan, Beside::default(), backend.caps());
    assert_eq!(
        plan.state_layers.len(),
        3,
        "three layers with two tokens of 48 columns"
    );
    assert_eq!(
        (plan.state_bytes(), fit.state_bytes),
        (3 * 2 * 48 * 4, 8 * 3 * 2 * 48 * 4)
    );
    assert_eq!(
        fit.total_bytes(),
        fit.weight_bytes + fit.activation_bytes + fit.state_bytes + fit.kv_bytes
    );
    assert!(fit.to_string().contains("states 9.0 KiB, "), "{fit}");
    let text = plan.to_string();
    assert!(text.contains("state layers\n  0: 96 elements\n"), "{text}");
    let line =
        "convolved = short_convolution(gated, state layer 0, 3 taps of layers.0.convolution)";
    assert!(text.contains(line), "{text}");
}

/// Changes the scans of a plan, or its norms with gates.
fn scans(plan: &mut Plan, change: fn(&mut StateScan)) {
    plan.body.iter_mut().for_each(|step| {
        if let Step::StateScan(step) = step {
            change(step);
        }
    });
}

fn gated_norms(plan: &mut Plan, change: fn(&mut GatedNorm)) {
    plan.body.iter_mut().for_each(|step| {
        if let Step::GatedNorm(step) = step {
            change(step);
        }
    });
}

/// Output products read what attention returns, without its gates.
fn without_output_gates(plan: &mut Plan) {
    let gates: Vec<_> = plan
        .body
        .iter()
        .filter_map(|step| match step {
            Step::GatedActivation(GatedActivation {
                activation: Activation::Sigmoid,
                up: Up::Of(attended, _),
                out,
                ..
            }) => Some((*attended, *out)),
            _ => None,
        })
        .collect();
    plan.body.retain(|step| !matches!(step, Step::GatedActivation(step) if step.activation == Activation::Sigmoid));
    for step in &mut plan.body {
        if let Step::MatMul(step) = step
            && let Some((attended, _)) = gates.iter().find(|(_, out)| *out == step.x)
        {
            step.x = *attended;
        }
    }
}

/// Families, what is wrong with their plans, and the change that makes it so: the state of each sequence counts, and so
/// does the order of the taps.
const MISTAKES: &[(&str, &str, Mistake)] = &[
    ("lfm2", "a layer has the taps of another", |plan| {
        let mut weights = plan.body.iter_mut().filter_map(|step| match step {
            Step::ShortConvolution(step) => Some(&mut step.weight),
            _ => None,
        });
        let (first, second) = (
            weights.next().expect("a layer"),
            weights.next().expect("another"),
        );
        std::mem::swap(first, second);
    }),
    (
        "lfm2",
        "a layer has the convolution of the one before",
        |plan| {
            plan.body
                .retain(|step| !matches!(step, Step::ShortConvolution(step) if step.layer == 1));
        },
    ),
    ("qwen3_5", "value heads lie in tiles", |plan| {
        scans(plan, |step| step.tiled = true);
    }),
    ("qwen3_5", "the gate is before the norm", |plan| {
        gated_norms(plan, |step| step.gate_first = true);
    }),
    (
        "qwen3_5",
        "attention has no output gate",
        without_output_gates,
    ),
    ("qwen3_5", "decays and biases are swapped", |plan| {
        scans(plan, |step| {
            std::mem::swap(&mut step.decay, &mut step.dt_bias);
        });
    }),
    ("olmo_hybrid", "β is up to 1", |plan| {
        scans(plan, |step| step.rule = ScanRule::Delta { beta_scale: 1.0 });
    }),
    ("granite4-h-dense", "the norm is before the gate", |plan| {
        gated_norms(plan, |step| step.gate_first = false);
    }),
    ("granite4-h-dense", "values do not skip the state", |plan| {
        scans(plan, |step| step.skip = None);
    }),
    ("nemotron_h", "groups are normalized together", |plan| {
        gated_norms(plan, |step| step.group *= 2);
    }),
    ("nemotron_h", "groups lie in tiles", |plan| {
        scans(plan, |step| step.tiled = true);
    }),
    ("lfm3", "heads have no gates", without_output_gates),
];

#[test]
fn planted_mistakes_show_in_the_logits() {
    for (family, what, mistake) in MISTAKES {
        let model = Model::open(&golden(family)).expect("the golden model loads");
        let case = golden_cases(family).pop().expect("the longest case");
        let mut plan = model.record(Storage::F32);
        mistake(&mut plan);
        let mut backend = ReferenceBackend::new();
        let mut device = Device::of_plan(
            &mut backend,
            &model,
            plan,
            KvFormat::F32,
            super::Sizes::default(),
        );
        let run = device
            .generate(std::slice::from_ref(&case), WHOLE, false)
            .remove(0);
        let difference = super::largest_difference(&case.logits, &run.logits[0]);
        println!("{family}, {what}: logits differ by {difference:.2}");
        assert!(
            difference > 20.0 * REFERENCE.logits_f32,
            "{family}, {what}: only {difference}"
        );
    }
}

#[test]
fn a_wrong_number_in_the_config_shows_in_the_logits() {
    let table = [
        ("lfm2", json!({"rope_theta": 1e4})),
        ("lfm2", json!({"norm_eps": 1e-2})),
        ("lfm2_moe", json!({"use_expert_bias": false})),
        ("lfm2_moe", json!({"norm_topk_prob": false})),
        ("lfm3", json!({"sliding_window": 25})),
        ("qwen3_5_moe", json!({"num_experts_per_tok": 3})),
        ("qwen3_next", json!({"norm_topk_prob": false})),
        ("qwen3_next", json!({"partial_rotary_factor": 0.5})),
        ("qwen3_next", json!({"rope_theta": 1e4})),
        ("olmo_hybrid", json!({"linear_allow_neg_eigval": false})),
        (
            "granite4-h-dense",
            json!({"position_embedding_type": "rope"}),
        ),
        ("granite4-h-moe", json!({"residual_multiplier": 0.25})),
        ("nemotron_h-moe", json!({"routed_scaling_factor": 1.5})),
        ("falcon_h1", json!({"embedding_multiplier": 4.0})),
        ("falcon_h1", json!({"lm_head_multiplier": 1.0})),
        ("falcon_h1", json!({"key_multiplier": 1.0})),
        ("falcon_h1", json!({"attention_in_multiplier": 1.0})),
        ("falcon_h1", json!({"attention_out_multiplier": 1.0})),
        ("falcon_h1", json!({"ssm_in_multiplier": 1.0})),
        ("falcon_h1", json!({"ssm_out_multiplier": 1.0})),
        ("falcon_h1", json!({"mlp_multipliers": [1.0, 0.6]})),
        ("falcon_h1", json!({"mlp_multipliers": [0.8, 1.0]})),
        (
            "falcon_h1",
            json!({"ssm_multipliers": [1.0, 0.9, 0.5, 0.8, 0.6]}),
        ),
        (
            "falcon_h1",
            json!({"ssm_multipliers": [0.7, 1.1, 0.5, 0.8, 0.6]}),
        ),
        (
            "falcon_h1",
            json!({"ssm_multipliers": [0.7, 0.9, 1.0, 0.8, 0.6]}),
        ),
        (
            "falcon_h1",
            json!({"ssm_multipliers": [0.7, 0.9, 0.5, 1.2, 0.6]}),
        ),
        (
            "falcon_h1",
            json!({"ssm_multipliers": [0.7, 0.9, 0.5, 0.8, 1.0]}),
        ),
    ];
    table
        .iter()
        .for_each(|(family, changes)| super::changes_show(family, changes));
}

/// Slots that do not exist, or not one per sequence, are refused before anything runs.
#[test]
fn wrong_slots_are_refused() {
    fn refuse<B: Backend + Inspect>(name: &str, backend: &mut B) {
        let model = Model::open(&golden("lfm2")).expect("the golden model loads");
        let cases = golden_cases("lfm2");
        let device = Device::new(backend, &model, KvFormat::F32);
        let mut sequences = device.sequences(&cases[..2]);
        let (good, _) = device.batch(&mut sequences, &[0, 1], WHOLE, false);
        let changes: [fn(&mut BatchInputs); 3] = [
            |inputs| inputs.states[1].to = SEQUENCES_MAX,
            |inputs| inputs.states[0].from = SEQUENCES_MAX,
            |inputs| _ = inputs.states.pop(),
        ];
        for change in changes {
            let mut inputs = good.clone();
            change(&mut inputs);
            let error = device
                .backend
                .submit(&inputs)
                .map(|_| ())
                .expect_err("refused")
                .to_string();
            assert!(error.contains("state"), "{name}: {error}");
        }
        let ticket = device.backend.submit(&good).expect("the batch is accepted");
        block_on(device.backend.read(ticket)).expect("the device still works");
    }
    refuse("reference", &mut ReferenceBackend::new());
    cpus().take(1).for_each(|mut cpu| refuse("cpu", &mut cpu));
    for adapter in adapters() {
        let options = WgpuOptions {
            adapter: Some(adapter),
            ..WgpuOptions::default()
        };
        refuse(
            "wgpu",
            &mut block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens"),
        );
    }
}

#[test]
fn a_state_layer_belongs_to_one_step() {
    let refused = |spoil: fn(&mut Plan)| {
        let mut plan = Model::open(&golden("lfm2"))
            .expect("the golden model loads")
            .record(Storage::F32);
        spoil(&mut plan);
        check(&plan).expect_err("refused").to_string()
    };
    let missing = "body step 4 (short_convolution): there is no state layer 0";
    assert_eq!(refused(|plan| plan.state_layers.clear()), missing);
    let larger = "body step 4 (short_convolution): elements of state layer 0 is 97, expected 96";
    assert_eq!(refused(|plan| plan.state_layers[0].elements += 1), larger);
    let empty = "sizes: state layer 2 is empty, expected at least one element";
    assert_eq!(refused(|plan| plan.state_layers[2].elements = 0), empty);
    let twice = refused(|plan| {
        plan.body.iter_mut().for_each(|step| {
            if let Step::ShortConvolution(step) = step {
                step.layer = 0;
            }
        });
    });
    assert_eq!(
        twice,
        "body step 12 (short_convolution): duplicate use of state layer 0"
    );
}

/// A golden config with changed fields.
fn spec(family: &str, changes: &Value) -> Result<ModelSpec, LoadError> {
    let mut config = read_json(&golden(family).join("config.json"));
    let changes = changes.as_object().expect("an object").clone();
    changes
        .into_iter()
        .for_each(|(name, value)| config[name] = value);
    ModelSpec::from_json("config.json", config.to_string().as_bytes())
}

/// Kinds of layers have old and new words, letters, and an interval.
#[test]
fn configs_of_hybrids_are_read_in_both_styles() {
    let delta = json!([
        "linear_attention",
        "linear_attention",
        "linear_attention",
        "full_attention"
    ]);
    let blocks = json!(["mamba", "mlp", "mamba", "attention", "mlp", "mamba"]);
    let state = [
        "mamba_num_heads",
        "mamba_head_dim",
        "n_groups",
        "ssm_state_size",
        "conv_kernel",
        "use_conv_bias",
    ];
    let mut older = json!({
        "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_d_conv": 4,
        "mamba_conv_bias": true,
    });
    state
        .into_iter()
        .for_each(|field| older[field] = Value::Null);
    for (family, changes) in [
        (
            "qwen3_next",
            json!({"full_attention_interval": null, "layer_types": delta}),
        ),
        ("qwen3_5", json!({"layer_types": null})),
        (
            "nemotron_h",
            json!({"hybrid_override_pattern": null, "num_hidden_layers": null, "layers_block_type": blocks}),
        ),
        (
            "nemotron_h-moe",
            json!({"layers_block_type": null, "hybrid_override_pattern": "MEM*E"}),
        ),
        ("nemotron_h", older),
        ("granite4-h-dense", json!({"mamba_d_head": "auto"})),
        (
            "granite4-h-moe",
            json!({"layer_types": ["mamba", "mamba", "attention", "mamba"]}),
        ),
        ("falcon_h1", json!({"mamba_d_head": "auto"})),
    ] {
        let usual = spec(family, &json!({})).expect("the golden config");
        assert_eq!(
            spec(family, &changes).expect("the other style"),
            usual,
            "{family} with {changes}"
        );
    }
    let default = spec(
        "lfm3",
        &json!({"layer_types": null, "num_hidden_layers": 9}),
    )
    .expect("a pattern");
    let letter = |layer: &LayerSpec| match (layer.kind, layer.window) {
        (LayerKind::Attention, None) => 'f',
        (LayerKind::Attention, Some(Window::Last(24))) => 's',
        _ => 'c',
    };
    assert_eq!(
        default.layers.iter().map(letter).collect::<String>(),
        "ccfcscfcs"
    );
    for (family, changes, message) in [
        (
            "nemotron_h",
            json!({"hybrid_override_pattern": "M-M*-X"}),
            "hybrid_override_pattern has 'X', not M, *, - or E",
        ),
        (
            "nemotron_h",
            json!({"hybrid_override_pattern": "M"}),
            "hybrid_override_pattern has 1 entries, not num_hidden_layers = 6",
        ),
        (
            "nemotron_h-moe",
            json!({"moe_latent_size": 20}),
            "moe_latent_size is 20, not a multiple of 8",
        ),
        (
            "lfm2_moe",
            json!({"moe_latent_size": 16}),
            "moe_latent_size is set, which is not supported in this architecture",
        ),
        (
            "qwen3_5",
            json!({"linear_num_key_heads": 3}),
            "linear_num_key_heads is 3, which does not divide the 4 heads",
        ),
        (
            "falcon_h1",
            json!({"mlp_bias": true}),
            "mlp_bias is true: biases are not supported in this architecture",
        ),
        (
            "falcon_h1",
            json!({"ssm_multipliers": [1.0]}),
            "ssm_multipliers is not 5 numbers above zero",
        ),
        (
            "granite4-h-dense",
            json!({"layer_types": ["conv", "conv", "conv", "conv"]}),
            "layer_types has \"conv\", an unknown kind of layer",
        ),
    ] {
        assert_eq!(
            spec(family, &changes).expect_err("refused").to_string(),
            format!("config.json: {message}")
        );
    }
}

/// The fields of published configs: kinds by index, and MLPs whose size is adjusted.
#[test]
fn configs_of_lfm2_are_read_in_both_styles() {
    let spec = |changes: Value| spec("lfm2", &changes);
    let usual = spec(json!({})).expect("the golden config");
    assert_eq!(
        spec(json!({"layer_types": null, "full_attn_idxs": [2]})).expect("by index"),
        usual
    );
    let size = |changes| spec(changes).expect("a size").layers[0].mlp;
    assert_eq!(
        size(json!({"block_auto_adjust_ff_dim": null, "intermediate_size": 12_288})),
        8192
    );
    let published = json!({"block_auto_adjust_ff_dim": true, "block_ff_dim": 6656, "block_ffn_dim_multiplier": 1.0});
    assert_eq!(size(published), 4608, "two thirds, up to a multiple of 256");
    assert!(
        !spec(json!({"tie_embedding": false}))
            .expect("untied")
            .tied_embeddings
    );
    for (changes, message) in [
        (
            json!({"layer_types": ["conv"]}),
            "layer_types has 1 entries, not num_hidden_layers = 4",
        ),
        (
            json!({"layer_types": ["conv", "mamba", "conv", "conv"]}),
            "layer_types has \"mamba\", an unknown kind of layer",
        ),
        (
            json!({"layer_types": null, "full_attn_idxs": [4]}),
            "full_attn_idxs has 4, not one of 4 layers",
        ),
        (
            json!({"conv_L_cache": 9}),
            "conv_L_cache is 9, not an integer in 2..=8",
        ),
    ] {
        assert_eq!(
            spec(changes).expect_err("refused").to_string(),
            format!("config.json: {message}")
        );
    }
}
