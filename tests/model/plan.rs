//! Plans as data, without a device: golden text, and the checker's errors for broken plans.

use super::families;
use super::longrope::LONGROPE;
use super::states::STATES;
use folio::model::Model;
use folio::plan::check::check;
use folio::plan::{
    AttendPaged, BufferId, Embed, KvGroup, MatMul, Plan, RmsNorm, RopeStoreKv, RopeStoreLatent,
    Rows, Sample, Step, Storage, Tail, WeightId, Window,
};

fn golden(name: &str) -> Model {
    Model::open(&super::golden(name)).expect("the golden model loads")
}

#[test]
fn the_demo_model_is_recorded_as_the_golden_text_says() {
    insta::assert_snapshot!("demo", Model::demo().record(Storage::F32).to_string());
}

#[test]
fn a_sliding_window_is_recorded_as_the_golden_text_says() {
    insta::assert_snapshot!(
        "mistral-window",
        golden("mistral-window").record(Storage::F16).to_string()
    );
}

#[test]
fn every_recorded_plan_passes_the_check() {
    let names = families().chain(STATES).map(|(name, _)| name);
    let models: Vec<Model> = names.chain([LONGROPE]).map(golden).collect();
    for model in models.into_iter().chain([Model::demo()]) {
        for activations in [Storage::F32, Storage::F16, Storage::Bf16] {
            let plan = model.record(activations);
            assert_eq!(
                check(&plan),
                Ok(()),
                "{} with {activations}",
                model.spec().architecture
            );
        }
    }
}

/// The id of the buffer called `name`.
fn buffer(plan: &Plan, name: &str) -> BufferId {
    let index = plan
        .buffers
        .iter()
        .position(|buffer| buffer.name == name)
        .expect("the plan has this buffer");
    BufferId(index as u32)
}

/// Breaks a plan of the golden Llama model and compares the checker's error.
fn refuses(expected: &str, spoil: impl FnOnce(&mut Plan)) {
    let mut plan = golden("llama").record(Storage::F32);
    spoil(&mut plan);
    let found = check(&plan).err().map(|error| error.to_string());
    assert_eq!(found.as_deref(), Some(expected));
}

#[test]
fn reading_before_writing_is_refused() {
    refuses(
        "body step 1 (rms_norm): x is read before it is written",
        |plan| {
            plan.body.remove(1);
        },
    );
    refuses(
        "body step 3 (rope_store_kv): qkv is read before it is written",
        |plan| {
            plan.body.remove(3);
        },
    );
    refuses(
        "body step 4 (attend_paged): KV layer 0 is read before it is written",
        |plan| {
            plan.body.remove(4);
        },
    );
    refuses(
        "tail sample step 0 (rms_norm): sampled is read before it is written",
        |plan| {
            plan.tails[0].1.remove(0);
        },
    );
    // A buffer written by another tail counts as unwritten.
    refuses(
        "tail sample step 0 (sample): logits is read before it is written",
        |plan| {
            plan.tails[0].1 = vec![Step::Sample(Sample {
                logits: buffer(plan, "logits"),
            })];
        },
    );
}

#[test]
fn shapes_that_disagree_are_refused() {
    refuses(
        "body step 1 (embed): rows of embedding is 256, expected 255",
        |plan| plan.vocab = 255,
    );
    refuses(
        "body step 3 (matmul): columns of layers.0.qkv is 64, expected 56",
        |plan| {
            let normed = buffer(plan, "normed");
            plan.buffers[normed.0 as usize].columns = 56;
            let Step::RmsNorm(RmsNorm { weight, .. }) = plan.body[2] else {
                panic!("step 2 is the norm")
            };
            plan.weights[weight.0 as usize].columns = 56;
            let x = buffer(plan, "x");
            plan.buffers[x.0 as usize].columns = 56;
            let Step::Embed(Embed { table, .. }) = plan.body[1] else {
                panic!("step 1 is the embedding")
            };
            plan.weights[table.0 as usize].columns = 56;
        },
    );
    let narrow = "columns of qkv is 192 from 0 on, of 128, expected columns within the row";
    refuses(&format!("body step 4 (rope_store_kv): {narrow}"), |plan| {
        plan.kv_layers[0].heads = 4;
    });
    refuses(
        "body step 8 (matmul): rows of layers.0.gate_up is 200, expected 192",
        |plan| {
            let Step::MatMul(MatMul { weight, .. }) = plan.body[8] else {
                panic!("step 8 is gate and up")
            };
            plan.weights[weight.0 as usize].rows = 200;
        },
    );
    refuses(
        "body step 9 (gated_activation): columns of gate_up is 192, expected 176",
        |plan| {
            let activated = buffer(plan, "activated");
            plan.buffers[activated.0 as usize].columns = 88;
        },
    );
}

#[test]
fn rows_of_the_wrong_kind_are_refused() {
    refuses(
        "tail sample step 1 (rms_norm): sampled_normed has rows tokens, expected samples",
        |plan| {
            let normed = buffer(plan, "sampled_normed");
            plan.buffers[normed.0 as usize].rows = Rows::Tokens;
        },
    );
    refuses(
        "tail sample step 3 (sample): logits is f16, expected f32",
        |plan| {
            let logits = buffer(plan, "logits");
            plan.buffers[logits.0 as usize].storage = Storage::F16;
        },
    );
}

#[test]
fn ids_names_and_numbers_are_checked() {
    refuses("body step 2 (rms_norm): there is no weight 999", |plan| {
        let Step::RmsNorm(RmsNorm { weight, .. }) = &mut plan.body[2] else {
            panic!("step 2 is the norm")
        };
        *weight = WeightId(999);
    });
    refuses("body step 2 (rms_norm): there is no buffer 77", |plan| {
        let Step::RmsNorm(RmsNorm { out, .. }) = &mut plan.body[2] else {
            panic!("step 2 is the norm")
        };
        *out = BufferId(77);
    });
    refuses(
        "body step 2 (rms_norm): x is both input and output",
        |plan| {
            let Step::RmsNorm(RmsNorm { x, out, .. }) = &mut plan.body[2] else {
                panic!("step 2 is the norm")
            };
            *out = *x;
        },
    );
    refuses("names: duplicate weight final_norm", |plan| {
        plan.weights[0].name = "final_norm".into();
    });
    refuses("names: duplicate tail sample", |plan| {
        plan.tails.push((Tail::Sample, Vec::new()));
    });
    refuses("kv: there is no KV group 3", |plan| {
        plan.kv_layers[1].group = 3;
    });
    refuses(
        "kv: window of KV group 0 is 0, expected at least 1: a query sees its own key",
        |plan| {
            plan.kv_groups[0] = KvGroup {
                window: Some(Window::Last(0)),
            };
        },
    );
    refuses(
        "kv: KV layer 0 is 2 heads of 12, expected heads of a multiple of 8 elements, up to 512, or one latent of \
         up to 576",
        |plan| {
            plan.kv_layers[0].head_dim = 12;
        },
    );
    refuses(
        "body step 4 (rope_store_kv): rotary_dim is 18 in heads of 16, expected an even number, at most the head size",
        |plan| {
            let Step::RopeStoreKv(RopeStoreKv {
                rope: Some(rope), ..
            }) = &mut plan.body[4]
            else {
                panic!("step 4 rotates")
            };
            rope.rotary_dim = 18;
        },
    );
    refuses(
        "body step 5 (attend_paged): query_heads is 3 over 2 KV heads, expected 1 to 16 query heads for each KV head, \
         or up to 128 for a latent",
        |plan| {
            let Step::AttendPaged(AttendPaged { query_heads, .. }) = &mut plan.body[5] else {
                panic!("step 5 attends")
            };
            *query_heads = 3;
        },
    );
    refuses(
        "body step 13 (rope_store_kv): duplicate store to KV layer 0",
        |plan| {
            let Step::RopeStoreKv(RopeStoreKv { layer, .. }) = &mut plan.body[13] else {
                panic!("step 13 stores layer 1")
            };
            *layer = 0;
        },
    );
}

/// As [`refuses`], for a golden model with latents.
fn refuses_latents(expected: &str, spoil: impl FnOnce(&mut Plan)) {
    let mut plan = golden("deepseek_v3").record(Storage::F32);
    spoil(&mut plan);
    let found = check(&plan).err().map(|error| error.to_string());
    assert_eq!(found.as_deref(), Some(expected));
}

#[test]
fn latents_are_checked() {
    let store = |plan: &mut Plan, change: fn(&mut RopeStoreLatent)| {
        let mut steps = plan.body.iter_mut();
        let store = steps.find_map(|step| {
            if let Step::RopeStoreLatent(step) = step {
                Some(step)
            } else {
                None
            }
        });
        change(store.expect("a latent is stored"));
    };
    refuses_latents(
        "kv: KV layer 0 is 2 heads of 40, expected heads of a multiple of 8 elements, up to 512, or one latent of \
         up to 576",
        |plan| plan.kv_layers[0].heads = 2,
    );
    refuses_latents(
        "kv: KV layer 0 is 1 heads of 584, expected heads of a multiple of 8 elements, up to 512, or one latent of \
         up to 576",
        |plan| plan.kv_layers[0].head_dim = 584,
    );
    refuses_latents(
        "body step 8 (rope_store_latent): KV layer is 8 rotated elements of 40, expected a latent, and a multiple of 8 \
         rotated elements",
        |plan| plan.kv_layers[0].latent = false,
    );
    refuses_latents(
        "body step 8 (rope_store_latent): query_heads is 160 over 1 KV heads, expected 1 to 16 query heads for each KV \
         head, or up to 128 for a latent",
        |plan| store(plan, |step| step.query_heads = 160),
    );
    let expected = "body step 7 (matmul_experts): columns of query is 96 for 5 heads, \
                    expected a whole row of the weight for each";
    refuses_latents(expected, |plan| {
        let keys = plan
            .weights
            .iter()
            .position(|weight| weight.name == "layers.0.latent_keys")
            .expect("it is there");
        plan.weights[keys].experts = 5;
    });
}

/// As [`refuses`], for the golden model with experts.
fn refuses_experts(expected: &str, spoil: impl FnOnce(&mut Plan)) {
    let mut plan = golden("qwen3-moe").record(Storage::F32);
    spoil(&mut plan);
    let found = check(&plan).err().map(|error| error.to_string());
    assert_eq!(found.as_deref(), Some(expected));
}

#[test]
fn nothing_is_empty() {
    refuses(
        "sizes: buffer gate_up is empty, expected at least one element",
        |plan| {
            let gate_up = buffer(plan, "gate_up");
            plan.buffers[gate_up.0 as usize].columns = 0;
        },
    );
    refuses(
        "sizes: weight layers.1.down is empty, expected at least one element",
        |plan| {
            let down = plan
                .weights
                .iter()
                .position(|weight| weight.name == "layers.1.down")
                .expect("it is there");
            plan.weights[down].columns = 0;
        },
    );
    refuses_experts(
        "sizes: buffer routes is empty, expected at least one element",
        |plan| {
            let routes = buffer(plan, "routes");
            plan.buffers[routes.0 as usize].rows = Rows::Routes(0);
        },
    );
}

#[test]
fn experts_are_checked() {
    let weight = |plan: &Plan, name: &str| {
        plan.weights
            .iter()
            .position(|weight| weight.name == name)
            .expect("it is there")
    };
    refuses_experts(
        "body step 8 (route_experts): router is read before it is written",
        |plan| {
            plan.body.remove(8);
        },
    );
    refuses_experts(
        "body step 9 (matmul_experts): routes is read before it is written",
        |plan| {
            plan.body.remove(9);
        },
    );
    refuses_experts(
        "body step 9 (route_experts): routes is bf16, expected f32",
        |plan| {
            let routes = buffer(plan, "routes");
            plan.buffers[routes.0 as usize].storage = Storage::Bf16;
        },
    );
    let expected = "body step 9 (route_experts): rows of routes is routes (9 a token) to 8 experts, \
                    expected 1 to 32 routes a token, each to another expert";
    refuses_experts(expected, |plan| {
        let routes = buffer(plan, "routes");
        plan.buffers[routes.0 as usize].rows = Rows::Routes(9);
    });
    refuses_experts(
        "body step 10 (matmul_experts): rows of layers.0.expert_gate_up is 512, expected 448",
        |plan| {
            let index = weight(plan, "layers.0.expert_gate_up");
            plan.weights[index].experts = 7;
        },
    );
    refuses_experts(
        "body step 10 (matmul_experts): expert_gate_up has rows samples, expected routes (2 a token)",
        |plan| {
            let out = buffer(plan, "expert_gate_up");
            plan.buffers[out.0 as usize].rows = Rows::Samples;
        },
    );
}

#[test]
fn experts_are_recorded_as_the_golden_text_says() {
    insta::assert_snapshot!(
        "gpt-oss",
        golden("gpt-oss").record(Storage::F16).to_string()
    );
}

#[test]
fn norms_and_logits_are_recorded_as_the_golden_text_says() {
    insta::assert_snapshot!("gemma2", golden("gemma2").record(Storage::Bf16).to_string());
}
