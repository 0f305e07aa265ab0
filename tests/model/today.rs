//! Families that share the kernels of those in `main`, with options of their own: golden logits and tokens on every
//! backend, and mistakes that a decoder of these families could make, planted in the reference.

use super::{
    CHUNK, CPU, Device, LOGITS_F16, REFERENCE, Target, WGPU, WHOLE, adapters, compare, cpus,
    golden, golden_cases, largest_difference, open_golden, support,
};
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{WgpuBackend, WgpuOptions};
use folio::backend::{Backend, Inspect};
use folio::config::Config;
use folio::engine::{Engine, Progress, handle};
use folio::model::Model;
use folio::plan::{
    Activation, Embed, KvFormat, Plan, RmsNorm, Rope, RopeStoreKv, Routing, Step, Storage, WeightId,
};
use folio::platform::block_on;

/// Golden folders, and maximum |Δ logit| with f16 keys and values.
pub(super) const TODAY: [(&str, f32); 24] = [
    ("olmo3", LOGITS_F16),
    ("exaone4", LOGITS_F16),
    ("exaone4-full", LOGITS_F16),
    ("seed_oss", LOGITS_F16),
    ("ernie4_5", LOGITS_F16),
    ("glm4", LOGITS_F16),
    ("gemma", LOGITS_F16),
    ("granitemoe", LOGITS_F16),
    ("granite4-dense", LOGITS_F16),
    ("ministral3", LOGITS_F16),
    ("mistral3-wrapped", LOGITS_F16),
    ("hunyuan_v1_dense", LOGITS_F16),
    ("glm4_moe", LOGITS_F16),
    ("qwen2_moe", LOGITS_F16),
    ("cohere2", LOGITS_F16),
    ("arcee", LOGITS_F16),
    ("apertus", LOGITS_F16),
    ("starcoder2", LOGITS_F16),
    ("gemma4-e", LOGITS_F16),
    ("gemma4-dense", LOGITS_F16),
    ("gemma4-moe", LOGITS_F16),
    ("gemma4-unified", LOGITS_F16),
    ("gemma4-wrapped", LOGITS_F16),
    ("gemma4-wide", LOGITS_F16),
];

#[test]
fn the_reference_reproduces_golden_logits_and_tokens() {
    prove(
        &REFERENCE,
        &mut ReferenceBackend::new(),
        &[KvFormat::F32, KvFormat::F16],
    );
}

#[test]
fn every_instruction_set_reproduces_golden_logits_and_tokens() {
    cpus().for_each(|mut cpu| prove(&CPU, &mut cpu, &[KvFormat::F32, KvFormat::F16]));
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
        prove(&WGPU, &mut backend, &[KvFormat::F32, KvFormat::F16]);
    }
}

/// All cases as one batch in chunks, whose tokens are fed on the device; on a device that promises the same bits, also
/// each case alone.
pub(super) fn prove<B: Backend + Inspect>(target: &Target, backend: &mut B, formats: &[KvFormat]) {
    prove_list(&TODAY, target, backend, formats);
}

/// [`prove`] for these folders.
pub(super) fn prove_list<B: Backend + Inspect>(
    families: &[(&'static str, f32)],
    target: &Target,
    backend: &mut B,
    formats: &[KvFormat],
) {
    for (family, logits_f16) in super::selected(families.iter().copied()) {
        let cases = golden_cases(family);
        let model = open_golden(family);
        for &format in formats {
            let tolerance = if format == KvFormat::F32 {
                target.logits_f32
            } else {
                logits_f16
            };
            let mut device = Device::new(backend, &model, format);
            let mut worst = 0.0_f32;
            for (case, run) in cases.iter().zip(device.generate(&cases, CHUNK, true)) {
                let place = format!(
                    "{family} on {}, {format:?}, prompt of {}",
                    target.name,
                    case.prompt.len()
                );
                worst = worst.max(compare(&place, case, &run, tolerance));
                if target.bit_exact {
                    let alone = device
                        .generate(std::slice::from_ref(case), WHOLE, false)
                        .remove(0);
                    assert!(alone == run, "{place}: a batch is its members, bit for bit");
                }
            }
            println!(
                "{family} on {}, {format:?}: logits differ by at most {worst:.1e}",
                target.name
            );
        }
        support::ran("families", family, "safetensors", target.name);
    }
}

/// Changes the stores of a plan, by the number of the layer.
fn stores(plan: &mut Plan, mut change: impl FnMut(usize, &mut RopeStoreKv)) {
    let stores = plan.body.iter_mut().filter_map(|step| match step {
        Step::RopeStoreKv(step) => Some(step),
        _ => None,
    });
    stores
        .enumerate()
        .for_each(|(layer, step)| change(layer, step));
}

/// Changes the norms of rows.
fn norms(plan: &mut Plan, mut change: impl FnMut(&mut RmsNorm)) {
    plan.body.iter_mut().for_each(|step| {
        if let Step::RmsNorm(norm) = step {
            change(norm);
        }
    });
}

/// Changes the look-ups of embeddings.
fn embeds(plan: &mut Plan, mut change: impl FnMut(&mut Embed)) {
    plan.body.iter_mut().for_each(|step| {
        if let Step::Embed(step) = step {
            change(step);
        }
    });
}

/// Changes the routers.
pub(super) fn routers(plan: &mut Plan, mut change: impl FnMut(&mut Routing)) {
    plan.body.iter_mut().for_each(|step| {
        if let Step::RouteExperts(step) = step {
            change(&mut step.routing);
        }
    });
}

/// Changes the rotations of a plan.
fn ropes(plan: &mut Plan, mut change: impl FnMut(usize, &mut Option<Rope>)) {
    stores(plan, |layer, step| change(layer, &mut step.rope));
}

fn rotates_halves(plan: &mut Plan) {
    ropes(plan, |_, rope| {
        rope.iter_mut().for_each(|rope| rope.interleaved = false);
    });
}

/// Towers for images and sound, and layers that predict further tokens, are not loaded; the user is told so in a line.
#[test]
fn what_is_left_out_is_told() {
    let open = |family| Model::open(&golden(family)).expect("the golden model loads");
    let predicting = super::changed("glm4_moe", &serde_json::json!({"num_hidden_layers": 2}));
    let table = [
        (open("gemma4-wrapped"), Some("vision (16 tensors)")),
        (open("mistral3-wrapped"), Some("vision (15 tensors)")),
        (
            predicting,
            Some("layers that predict further tokens (38 tensors)"),
        ),
        (open("gemma4-e"), None),
        (open("glm4_moe"), None),
    ];
    for (model, expected) in table {
        let expected =
            expected.map(|parts| format!("not loaded, because only text is supported: {parts}"));
        assert_eq!(model.left_out(), expected);
        let mut notices = Vec::new();
        let (_handle, inbox) = handle::channel(4);
        let config = Config {
            kv_cache_bytes: Some(1 << 20),
            max_model_len: Some(64),
            ..Config::default()
        };
        let progress = |progress| {
            if let Progress::Notice(text) = progress {
                notices.push(text);
            }
        };
        block_on(Engine::start(
            ReferenceBackend::new(),
            model,
            &config,
            inbox,
            progress,
        ))
        .expect("it starts");
        notices.retain(|notice| notice.starts_with("not loaded"));
        assert_eq!(notices, Vec::from_iter(expected));
    }
}

/// A change of a plan.
pub(super) type Mistake = fn(&mut Plan);

/// Families, what is wrong with their plans, and the change that makes it so.
const MISTAKES: &[(&str, &str, Mistake)] = &[
    ("ernie4_5", "halves rotate instead of pairs", rotates_halves),
    ("glm4", "halves rotate instead of pairs", rotates_halves),
    ("exaone4", "the layer without a window rotates", |plan| {
        let mut first = None;
        ropes(plan, |_, rope| {
            first = first.or(*rope);
            *rope = first;
        });
    }),
    ("olmo3", "YaRN in layers with a window", |plan| {
        let mut scaled = None;
        ropes(plan, |layer, rope| {
            scaled = if layer == 3 { *rope } else { scaled }
        });
        ropes(plan, |_, rope| *rope = scaled);
    }),
    ("hunyuan_v1_dense", "norms before the rotation", |plan| {
        stores(plan, |_, step| {
            for norm in [&mut step.q_norm, &mut step.k_norm].into_iter().flatten() {
                norm.after_rotation = false;
            }
        });
    }),
    ("ministral3", "queries do not grow", |plan| {
        stores(plan, |_, step| step.options.query_growth = None);
    }),
    ("glm4_moe", "experts are chosen without the bias", |plan| {
        routers(plan, |routing| routing.bias = None);
    }),
    ("glm4_moe", "weights are not normalized", |plan| {
        routers(plan, |routing| routing.renormalize = false);
    }),
    ("qwen2_moe", "the shared expert has no gate", |plan| {
        routers(plan, |routing| {
            if routing.sigmoid {
                *routing = Routing::softmax(false);
            }
        });
    }),
    ("cohere2", "rows are not centered", |plan| {
        norms(plan, |norm| norm.options.center = false);
    }),
    ("cohere2", "a layer without a window rotates", |plan| {
        let mut first = None;
        ropes(plan, |_, rope| {
            first = first.or(*rope);
            *rope = first;
        });
    }),
    ("gemma", "embeddings are not scaled", |plan| {
        embeds(plan, |step| step.scale = 1.0);
    }),
    ("granitemoe", "weights are not normalized", |plan| {
        routers(plan, |routing| routing.renormalize = false);
    }),
    ("mistral3-wrapped", "queries do not grow", |plan| {
        stores(plan, |_, step| step.options.query_growth = None);
    }),
    ("gemma4-unified", "values are not normalized", |plan| {
        stores(plan, |_, step| step.options.v_epsilon = None);
    }),
    ("arcee", "SiLU instead of relu²", |plan| {
        plan.body.iter_mut().for_each(|step| {
            if let Step::GatedActivation(step) = step {
                step.activation = Activation::Silu;
            }
        });
    }),
    ("starcoder2", "norms have no bias", |plan| {
        norms(plan, |norm| norm.options.bias = None);
    }),
    ("apertus", "relu² instead of xIELU", |plan| {
        plan.body.iter_mut().for_each(|step| {
            if let Step::GatedActivation(step) = step {
                (step.activation, step.numbers) = (Activation::Relu2, None);
            }
        });
    }),
    (
        "gemma4-e",
        "keys and values of the first layer of a kind",
        |plan| {
            stores(plan, |layer, step| {
                step.layer = if layer > 2 && step.layer == 1 {
                    0
                } else {
                    step.layer
                }
            });
            let mut attention = 0;
            plan.body.iter_mut().for_each(|step| {
                if let Step::AttendPaged(step) = step {
                    step.layer = if attention > 2 && step.layer == 1 {
                        0
                    } else {
                        step.layer
                    };
                    attention += 1;
                }
            });
        },
    ),
    ("gemma4-e", "layers' embeddings are not scaled", |plan| {
        let mut first = true;
        embeds(plan, |step| {
            step.scale /= if std::mem::take(&mut first) { 1.0 } else { 4.0 }
        });
    }),
    ("gemma4-e", "layers do not scale the stream", |plan| {
        norms(plan, |norm| norm.options.scale = None);
    }),
    ("gemma4-dense", "values are not normalized", |plan| {
        stores(plan, |_, step| step.options.v_epsilon = None);
    }),
    ("gemma4-moe", "experts have no scales", |plan| {
        routers(plan, |routing| routing.expert_scale = None);
    }),
    (
        "gemma4-moe",
        "the router has the row of its experts",
        |plan| {
            let weights = plan.weights.clone();
            let names = |id: WeightId| weights[id.0 as usize].name.clone();
            let named = |name: &str| {
                weights
                    .iter()
                    .position(|weight| weight.name == name)
                    .expect("it has the weight")
            };
            norms(plan, |norm| {
                if let Some(layer) = names(norm.weight).strip_suffix("router_norm") {
                    norm.weight = WeightId(named(&format!("{layer}expert_norm")) as u32);
                }
            });
        },
    ),
];

#[test]
fn planted_mistakes_show_in_the_logits() {
    show(MISTAKES);
}

/// Plants mistakes in the reference, one after the other, and requires that the golden logits notice each.
pub(super) fn show(mistakes: &[(&str, &str, Mistake)]) {
    for (family, what, mistake) in mistakes {
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
        let difference = largest_difference(&case.logits, &run.logits[0]);
        println!("{family}, {what}: logits differ by {difference:.2}");
        assert!(
            difference > 20.0 * REFERENCE.logits_f32,
            "{family}, {what}: only {difference}"
        );
    }
}
