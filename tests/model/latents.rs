//! Latent attention (MLA): golden logits and tokens on every backend, files of both kinds, mistakes planted in the
//! reference, and what is kept of a token.

use super::builder::{Builder, Item};
use super::converted::orders::transposed;
use super::converted::{Checkpoint, F32, Values, open, push};
use super::today::{Mistake, prove_list, routers, show};
use super::{
    CPU, Device, LOGITS_F16, REFERENCE, WGPU, WHOLE, adapters, compare, cpus, golden, golden_cases,
    read_json,
};
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{WgpuBackend, WgpuOptions};
use folio::model::{Model, ModelSpec};
use folio::plan::{AttendPaged, KvFormat, Plan, RopeStoreLatent, Step, Storage};
use folio::platform::block_on;
use serde_json::json;

/// Golden folders, and maximum |Δ logit| with f16 keys and values.
pub(super) const LATENTS: [(&str, f32); 3] = [
    ("deepseek_v2", LOGITS_F16),
    ("deepseek_v3", LOGITS_F16),
    ("glm4_moe_lite", LOGITS_F16),
];

#[test]
fn the_reference_reproduces_golden_logits_and_tokens() {
    prove_list(
        &LATENTS,
        &REFERENCE,
        &mut ReferenceBackend::new(),
        &[KvFormat::F32, KvFormat::F16],
    );
}

#[test]
fn every_instruction_set_reproduces_golden_logits_and_tokens() {
    cpus()
        .for_each(|mut cpu| prove_list(&LATENTS, &CPU, &mut cpu, &[KvFormat::F32, KvFormat::F16]));
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
        prove_list(
            &LATENTS,
            &WGPU,
            &mut backend,
            &[KvFormat::F32, KvFormat::F16],
        );
    }
}

/// Files whose product for keys and values is one tensor, as those of older converters, and files where it is two.
#[test]
fn files_of_both_kinds_are_the_golden_model() {
    let mut backend = ReferenceBackend::new();
    for (family, _) in LATENTS {
        let files = [
            Checkpoint::read(family).convert(F32),
            Checkpoint::read(family).convert_older(),
        ];
        for (kind, file) in ["newer", "older"].into_iter().zip(files) {
            let case = golden_cases(family).remove(2);
            let mut device = Device::new(&mut backend, &open(&file), KvFormat::F32);
            let run = device
                .generate(std::slice::from_ref(&case), WHOLE, false)
                .remove(0);
            compare(
                &format!("{family} in a {kind} file"),
                &case,
                &run,
                REFERENCE.logits_f32,
            );
        }
    }
}

/// One latent and what is rotated, once for all heads and without values.
#[test]
fn a_token_takes_one_row_per_layer() {
    let plan = Model::open(&golden("deepseek_v3"))
        .expect("the golden model loads")
        .record(Storage::F32);
    assert_eq!(plan.block_bytes(0, 16, KvFormat::F16), 3 * 16 * 40 * 2);
    let spec = ModelSpec::named("deepseek-v3").expect("a known shape");
    let plan = Model::random(spec, 0).record(Storage::F32);
    for (format, bytes) in [
        (KvFormat::F32, 4 * 576),
        (KvFormat::F16, 2 * 576),
        (KvFormat::Q8, 576 + 4),
        (KvFormat::Fp8, 576 + 4),
    ] {
        assert_eq!(plan.token_kv_bytes(1, format), 61 * bytes, "{format}");
    }
}

#[test]
fn what_is_not_computed_is_refused() {
    let table = [
        (
            "deepseek_v3",
            "kv_lora_rank",
            json!(640),
            "kv_lora_rank is 640, not an integer in 8..=512",
        ),
        (
            "deepseek_v3",
            "attention_bias",
            json!(true),
            "biases of latent attention are not supported",
        ),
        (
            "deepseek_v3",
            "num_attention_heads",
            json!(256),
            "num_attention_heads is 256, not an integer in 1..=128",
        ),
        (
            "deepseek_v2",
            "topk_method",
            json!("noaux_tc"),
            "is \"noaux_tc\", not \"greedy\" or \"group_limited_greedy\"",
        ),
        (
            "glm4_moe_lite",
            "mlp_layer_types",
            json!(["dense"]),
            "has 1 entries, not num_hidden_layers = 3",
        ),
    ];
    for (family, field, value, expected) in table {
        let mut config = read_json(&golden(family).join("config.json"));
        config[field] = value;
        (config["n_group"], config["topk_group"]) = (json!(4), json!(2));
        let error = ModelSpec::from_json("config.json", config.to_string().as_bytes())
            .expect_err(field)
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
}

fn stores(plan: &mut Plan, change: impl Fn(&mut RopeStoreLatent)) {
    plan.body.iter_mut().for_each(|step| {
        if let Step::RopeStoreLatent(step) = step {
            change(step);
        }
    });
}

fn attends(plan: &mut Plan, change: impl Fn(&mut AttendPaged)) {
    plan.body.iter_mut().for_each(|step| {
        if let Step::AttendPaged(step) = step {
            change(step);
        }
    });
}

/// Families, what is wrong with their plans, and the change that makes it so.
const MISTAKES: &[(&str, &str, Mistake)] = &[
    ("deepseek_v2", "halves rotate instead of pairs", |plan| {
        stores(plan, |step| step.rope.interleaved = false);
    }),
    ("glm4_moe_lite", "halves rotate instead of pairs", |plan| {
        stores(plan, |step| step.rope.interleaved = false);
    }),
    ("deepseek_v2", "scores without YaRN's factor", |plan| {
        attends(plan, |step| step.scale = 24_f32.sqrt().recip());
    }),
    ("deepseek_v3", "scores without YaRN's factor", |plan| {
        attends(plan, |step| step.scale = 24_f32.sqrt().recip());
    }),
    ("glm4_moe_lite", "scores for the size of a latent", |plan| {
        attends(plan, |step| step.scale = 40_f32.sqrt().recip());
    }),
    ("deepseek_v3", "cosines times YaRN's factor", |plan| {
        stores(plan, |step| step.rope.scale = 1.37);
    }),
    ("deepseek_v3", "experts of all groups", |plan| {
        routers(plan, |routing| routing.groups = None);
    }),
    (
        "glm4_moe_lite",
        "experts are chosen without the bias",
        |plan| routers(plan, |routing| routing.bias = None),
    ),
    ("deepseek_v2", "weights are normalized", |plan| {
        routers(plan, |routing| routing.renormalize = true);
    }),
];

#[test]
fn planted_mistakes_show_in_the_logits() {
    show(MISTAKES);
}

/// How llama.cpp's converter writes latents.
impl Checkpoint {
    /// As older files have latents: one product for keys and values, and the lengths of heads under the usual keys.
    pub(super) fn convert_older(self) -> Builder {
        let size = |field: &str| self.whole(field).expect("a size");
        let lengths = [
            size("qk_nope_head_dim") + size("qk_rope_head_dim"),
            size("v_head_dim"),
        ];
        let heads = size("num_attention_heads");
        let products: Vec<_> = self
            .tensors
            .clone()
            .into_iter()
            .filter(|(name, _)| name.contains("kv_b_proj"))
            .collect();
        let products: Vec<_> = products
            .into_iter()
            .map(|(name, values)| (self.own_name(&name), values))
            .collect();
        let mut file = self.convert(F32);
        file.tensors
            .retain(|tensor| !tensor.name.contains("_k_b.") && !tensor.name.contains("_v_b."));
        products
            .into_iter()
            .for_each(|(name, values)| push(&mut file, name, &values, F32));
        file.pairs.retain(|(key, _)| !key.ends_with("_mla"));
        file.set("deepseek2.attention.key_length", Item::U32(lengths[0]));
        file.set("deepseek2.attention.value_length", Item::U32(lengths[1]));
        file.set("deepseek2.attention.head_count_kv", Item::U32(heads));
        file.pack();
        file
    }

    /// Writes the keys of latent attention and of its routers.
    pub(super) fn write_latent(&self, file: &mut Builder) {
        let mut set = |own: &str, value: Option<u32>| {
            if let Some(value) = value {
                file.set(&format!("{}.{own}", self.own), Item::U32(value));
            }
        };
        let size = |field: &str| self.whole(field).expect("a size");
        let (rank, rotated) = (size("kv_lora_rank"), size("qk_rope_head_dim"));
        set("attention.q_lora_rank", self.whole("q_lora_rank"));
        set("attention.kv_lora_rank", Some(rank));
        set("attention.head_count_kv", Some(1));
        set("attention.key_length", Some(rank + rotated));
        set("attention.value_length", Some(rank));
        set(
            "attention.key_length_mla",
            Some(size("qk_nope_head_dim") + rotated),
        );
        set("attention.value_length_mla", self.whole("v_head_dim"));
        set("rope.dimension_count", Some(rotated));
        set("expert_shared_count", self.whole("n_shared_experts"));
        set("expert_group_count", self.whole("n_group"));
        set("expert_group_used_count", self.whole("topk_group"));
        let kinds = self.config["mlp_layer_types"].as_array();
        let dense = kinds.map(|kinds| kinds.iter().filter(|kind| *kind == "dense").count() as u32);
        set(
            "leading_dense_block_count",
            dense.or(self.whole("first_k_dense_replace")),
        );
        let is_softmax = ["deepseek_v2", "mistral4"]
            .iter()
            .any(|kind| self.config["model_type"] == *kind);
        set("expert_gating_func", Some(if is_softmax { 1 } else { 2 }));
        let normalizes = self.config["norm_topk_prob"] == true;
        file.set(
            &format!("{}.expert_weights_norm", self.own),
            Item::Boolean(normalizes),
        );
    }

    /// Keys and values of each head, as two tensors; keys are transposed.
    pub(super) fn cut(&self, name: &str, shape: &[usize], values: &[f32]) -> Vec<(String, Values)> {
        let size = |field: &str| self.whole(field).expect("a size") as usize;
        let (keys, own, columns) = (size("qk_nope_head_dim"), size("v_head_dim"), shape[1]);
        let heads = || values.chunks_exact((keys + own) * columns);
        let of_keys = heads()
            .flat_map(|head| &head[..keys * columns])
            .copied()
            .collect::<Vec<_>>();
        let of_values = heads()
            .flat_map(|head| &head[keys * columns..])
            .copied()
            .collect();
        let count = heads().len();
        vec![
            (
                name.replace("kv_b_proj", "k_b_proj"),
                transposed(&[count, keys, columns], &of_keys),
            ),
            (
                name.replace("kv_b_proj", "v_b_proj"),
                (vec![count, own, columns], of_values),
            ),
        ]
    }
}
