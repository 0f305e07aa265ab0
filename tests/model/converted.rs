//! Every golden checkpoint as a GGUF file, written as llama.cpp's `convert_hf_to_gguf.py` writes one, and run against
//! the golden outputs: keys, names and changes to weights follow that program; they are implemented here independently
//! of the reader.
//!
//! How it changes weights, to match what llama.cpp computes:
//! - q and k of Llama, Mistral, SmolLM 3, Granite and Arcee, biases too: the halves of a head are interleaved,
//!   `(i, i + d/2)` side by side, for the rotation of adjacent elements. All other families are stored unchanged.
//! - Norms of Gemma 1 to 3 (q's and k's too): plus one.
//! - Experts: stacked, `[expert, row, column]`; those of gpt-oss are first transposed, and gate and up are separated,
//!   as in Granite.
//! - `llama3` scaling: no key, but a tensor of divisors; longrope: two tensors; the base of Hunyuan's: included.
//! - xIELU's numbers: metadata.
//! - Latent attention: the product for keys and values is cut in two, and the keys of a head are transposed.

mod experts;
mod names;
pub(super) mod orders;
mod properties;
mod states;

use super::builder::{Builder, Item, Tensor};
use super::longrope::LONGROPE;
use super::models;
use super::states::STATES;
use super::{
    CPU, Case, Device, REFERENCE, Target, WGPU, WHOLE, compare, cpus, families, golden,
    golden_cases, largest_difference, read_json, support,
};
use bytes::Bytes;
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{WgpuBackend, WgpuOptions};
use folio::backend::{Backend, Inspect};
use folio::model::{Gguf, Model};
use folio::plan::KvFormat;
use folio::platform::{ModelFile, block_on};
use half::{bf16, f16};

use orders::{llama3_divisors, transposed, untangled};
use serde_json::Value;
use std::collections::BTreeMap;

/// Element types of a file.
pub(super) const F32: u32 = 0;
pub(super) const F16: u32 = 1;
const MXFP4: u32 = 39;

/// A tensor's rows, outermost dimension first.
pub(super) type Values = (Vec<usize>, Vec<f32>);

/// A checkpoint to convert.
pub(super) struct Checkpoint {
    /// `general.architecture`.
    pub(super) own: &'static str,
    pub(super) config: Value,
    pub(super) tensors: BTreeMap<String, Values>,
}

#[test]
fn every_family_is_the_golden_one_in_gguf() {
    prove_converted(
        &REFERENCE,
        &mut ReferenceBackend::new(),
        &[(F32, "F32"), (F16, "F16")],
    );
    cpus().for_each(|mut cpu| prove_converted(&CPU, &mut cpu, &[(F32, "F32"), (F16, "F16")]));
}

#[test]
fn every_adapter_runs_every_family_in_gguf() {
    for adapter in WgpuBackend::adapters() {
        let options = WgpuOptions {
            adapter: Some(adapter.index),
            ..WgpuOptions::default()
        };
        let mut backend =
            block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens");
        prove_converted(&WGPU, &mut backend, &[(F16, "F16")]);
    }
}

/// Writes every family as a file, and the cases with their golden tokens, into the folder that `FOLIO_CONVERTED` names:
/// `.ci/converted` gives them to llama.cpp.
#[test]
fn files_are_written_for_other_engines() {
    let Some(folder) = std::env::var_os("FOLIO_CONVERTED").map(std::path::PathBuf::from) else {
        return;
    };
    for (family, file) in files() {
        std::fs::write(folder.join(format!("{family}.gguf")), file.bytes())
            .expect("the folder is writable");
        std::fs::copy(
            golden(family).join("golden.json"),
            folder.join(format!("{family}.json")),
        )
        .expect("the folder is writable");
    }
}

/// Every family as a file with a vocabulary.
pub(super) fn files() -> impl Iterator<Item = (&'static str, Builder)> {
    converted()
        .map(|(family, _)| family)
        .chain([LONGROPE])
        .map(|family| {
            let mut file = Checkpoint::read(family).convert(F32);
            models::bytes_vocabulary(&mut file, 256);
            file.pack();
            (family, file)
        })
}

/// Families whose files are not read, or that no file can describe: those of MiniCPM 3 have no multipliers, and
/// those of Phi with experts no threshold of their router.
const NOT_CONVERTED: [&str; 8] = [
    "lfm3",
    "olmo_hybrid",
    "minicpm3",
    "muse_glimmer",
    "cohere2_moe",
    "phimoe",
    "step3p5",
    "step3p7",
];

/// The golden folders whose architectures GGUF has.
fn converted() -> impl Iterator<Item = (&'static str, f32)> {
    families()
        .chain(super::selected(STATES))
        .filter(|(family, _)| !NOT_CONVERTED.contains(family))
}

/// The golden cases that a file can describe: those of Llama 4 have chunks of 8192 tokens, not 32.
fn described_cases(family: &str) -> Vec<Case> {
    let mut cases = golden_cases(family);
    if family == "llama4" {
        cases.retain(|case| case.prompt.len() + case.greedy.len() <= 32);
        assert_eq!(cases.len(), 2, "the short ones");
    }
    cases
}

fn prove_converted<B: Backend + Inspect>(target: &Target, backend: &mut B, kinds: &[(u32, &str)]) {
    for (family, _) in converted() {
        for &(kind, name) in kinds {
            let file = Checkpoint::read(family).convert(kind);
            let model = open(&file);
            let mut device = Device::new(backend, &model, KvFormat::F32);
            let mut worst = 0.0_f32;
            for case in described_cases(family) {
                let run = device
                    .generate(std::slice::from_ref(&case), WHOLE, false)
                    .remove(0);
                let place = format!(
                    "{family} in GGUF of {name} on {}, prompt of {}",
                    target.name,
                    case.prompt.len()
                );
                worst = worst.max(compare(&place, &case, &run, target.logits_f32));
            }
            println!(
                "{family} in GGUF of {name} on {}: logits differ by at most {worst:.1e}",
                target.name
            );
        }
        support::ran("families", family, "gguf", target.name);
    }
}

/// gpt-oss with random experts: in f32, and the same numbers in MXFP4.
pub(super) fn mxfp4_experts() -> (Builder, Builder) {
    let mut plain = Checkpoint::read("gpt-oss").convert(F32);
    let mut packed = plain.clone();
    let mut state = 5_u64;
    for (plain, packed) in plain.tensors.iter_mut().zip(&mut packed.tensors) {
        if !plain.name.ends_with("_exps.weight") {
            continue;
        }
        packed.kind = MXFP4;
        packed.data.clear();
        for block in plain.data.chunks_exact_mut(32 * 4) {
            let codes: [u8; 32] = std::array::from_fn(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (state >> 60) as u8
            });
            // A scale around 2⁻⁵, so that weights have the size of the original ones.
            packed.data.push(122 + (state >> 40) as u8 % 3);
            let scale = 2_f32.powi(i32::from(*packed.data.last().expect("just pushed")) - 127);
            packed
                .data
                .extend((0..16).map(|i| codes[i] | codes[i + 16] << 4));
            for (value, code) in block.chunks_exact_mut(4).zip(codes) {
                let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
                let number = if code < 8 {
                    magnitude * scale
                } else {
                    -magnitude * scale
                };
                value.copy_from_slice(&number.to_le_bytes());
            }
        }
    }
    packed.pack();
    (plain, packed)
}

/// Logits after one of the golden prompts of gpt-oss.
pub(super) fn logits<B: Backend + Inspect>(file: &Builder, backend: &mut B) -> Vec<f32> {
    let one = Case {
        greedy: vec![0],
        ..golden_cases("gpt-oss").remove(2)
    };
    let mut device = Device::new(backend, &open(file), KvFormat::F32);
    device
        .generate(&[one], WHOLE, false)
        .remove(0)
        .logits
        .remove(0)
}

pub(super) fn open(file: &Builder) -> Model {
    let file = ModelFile::in_memory(Bytes::from(file.bytes()));
    let gguf = Gguf::from_files(vec![("converted.gguf".into(), file)]).expect("the file opens");
    Model::from_gguf(gguf).expect("the model loads")
}

impl Checkpoint {
    pub(super) fn read(family: &str) -> Self {
        let config = read_json(&golden(family).join("config.json"));
        let bytes =
            std::fs::read(golden(family).join("model.safetensors")).expect("the golden weights");
        let file = safetensors::SafeTensors::deserialize(&bytes).expect("the golden weights");
        let values = |view: &safetensors::tensor::TensorView<'_>| {
            let number = |bytes: &[u8]| match *bytes {
                [low, high] => bf16::from_le_bytes([low, high]).to_f32(),
                _ => f32::from_le_bytes(
                    bytes
                        .try_into()
                        .expect("the golden weights are bf16 or f32"),
                ),
            };
            let each = if view.dtype() == safetensors::Dtype::F32 {
                4
            } else {
                2
            };
            (
                view.shape().to_vec(),
                view.data().chunks_exact(each).map(number).collect(),
            )
        };
        // Of a multimodal checkpoint, the text model.
        let text_name = |name: &str| {
            let name = name.strip_prefix("language_model.").unwrap_or(name);
            name.replace("model.language_model.", "model.")
        };
        let is_text = |name: &str| {
            !["vision", "visual", "projector"]
                .iter()
                .any(|part| name.contains(part))
        };
        let named = file.tensors().into_iter().filter(|(name, _)| is_text(name));
        let tensors: BTreeMap<_, _> = named
            .map(|(name, view)| (text_name(&name), values(&view)))
            .collect();
        let text = config
            .get("text_config")
            .cloned()
            .unwrap_or_else(|| config.clone());
        let architecture = config["architectures"][0].as_str().expect("a name");
        let has = |part: &str| tensors.keys().any(|name| name.contains(part));
        if let Some(own) = Self::hybrid_name(architecture, has) {
            return Self {
                own,
                config: text,
                tensors,
            };
        }
        let own = match architecture {
            "LlamaForCausalLM" | "MistralForCausalLM" | "MixtralForCausalLM" => "llama",
            "OlmoeForCausalLM" => "olmoe",
            "Llama4ForCausalLM" => "llama4",
            "LagunaForCausalLM" => "laguna",
            "Mistral4ForCausalLM" => "mistral4",
            "Ernie4_5_MoeForCausalLM" => "ernie4_5-moe",
            "MiniMaxM2ForCausalLM" => "minimax-m2",
            "AfmoeForCausalLM" => "afmoe",
            "PhiForCausalLM" => "phi2",
            "CohereForCausalLM" => "command-r",
            "MellumForCausalLM" => "mellum",
            "GlmForCausalLM" => "chatglm",
            "ExaoneForCausalLM" => "exaone",
            "ExaoneMoeForCausalLM" => "exaone-moe",
            "HYV3ForCausalLM" => "hy_v3",
            "HunYuanMoEV1ForCausalLM" => "hunyuan-moe",
            "Qwen2_5_VLForConditionalGeneration" => "qwen2vl",
            "Qwen3VLForConditionalGeneration" => "qwen3vl",
            "Qwen3VLMoeForConditionalGeneration" => "qwen3vlmoe",
            "Ministral3ForCausalLM" | "Mistral3ForConditionalGeneration" => "mistral3",
            "GemmaForCausalLM" => "gemma",
            "Gemma4ForCausalLM" | "Gemma4UnifiedForCausalLM" | "Gemma4ForConditionalGeneration" => {
                "gemma4"
            }
            "Qwen2MoeForCausalLM" => "qwen2moe",
            "Olmo3ForCausalLM" => "olmo2",
            "Exaone4ForCausalLM" => "exaone4",
            "SeedOssForCausalLM" => "seed_oss",
            "Ernie4_5ForCausalLM" => "ernie4_5",
            "Glm4ForCausalLM" => "glm4",
            "Glm4MoeForCausalLM" | "SolarOpenForCausalLM" => "glm4moe",
            "DeepseekV2ForCausalLM" | "DeepseekV3ForCausalLM" | "Glm4MoeLiteForCausalLM" => {
                "deepseek2"
            }
            "GraniteMoeForCausalLM" | "GraniteMoeSharedForCausalLM" => "granitemoe",
            "GraniteMoeHybridForCausalLM" => "granite",
            "HunYuanDenseV1ForCausalLM" => "hunyuan-dense",
            "Cohere2ForCausalLM" => "cohere2",
            "ArceeForCausalLM" => "arcee",
            "ApertusForCausalLM" => "apertus",
            "Starcoder2ForCausalLM" => "starcoder2",
            "Qwen2ForCausalLM" => "qwen2",
            "Qwen3ForCausalLM" => "qwen3",
            "Qwen3MoeForCausalLM" => "qwen3moe",
            "Gemma2ForCausalLM" => "gemma2",
            "Gemma3ForCausalLM" => "gemma3",
            "Phi3ForCausalLM" => "phi3",
            "SmolLM3ForCausalLM" => "smollm3",
            "Olmo2ForCausalLM" => "olmo2",
            "GraniteForCausalLM" => "granite",
            "GptOssForCausalLM" => "gpt-oss",
            other => panic!("{other} has no name in GGUF"),
        };
        Self {
            own,
            config: text,
            tensors,
        }
    }

    pub(super) fn convert(mut self, matrices: u32) -> Builder {
        let mut file = Builder {
            version: 3,
            pairs: Vec::new(),
            tensors: Vec::new(),
        };
        file.set("general.architecture", Item::Text(self.own.into()));
        self.write_sizes(&mut file);
        self.write_rope(&mut file);
        self.write_particulars(&mut file);
        self.write_states(&mut file);
        self.stack_experts();
        for (name, values) in self.tensors.clone() {
            for (name, values) in self.changed(&name, values) {
                let name = self.own_name(&name);
                // Vectors and routers are stored in f32.
                let is_state = ["ssm_a", "ssm_d", "ssm_norm", "conv"]
                    .iter()
                    .any(|part| name.contains(part));
                let is_state = is_state && !name.contains("_proj") && !name.contains("ssm_alpha");
                let is_exact = values.0.len() == 1
                    || name.contains("ffn_gate_inp")
                    || name.ends_with(".bias")
                    || is_state;
                push(
                    &mut file,
                    name,
                    &values,
                    if is_exact { F32 } else { matrices },
                );
            }
        }
        file.pack();
        file
    }

    pub(super) fn whole(&self, field: &str) -> Option<u32> {
        let value = &self.config[field];
        // Hunyuan has lists by layer.
        let number = value.get(0).unwrap_or(value).as_u64();
        number.map(|number| number as u32)
    }

    fn write_sizes(&self, file: &mut Builder) {
        let mut set = |key: &str, value: Option<u32>| {
            if let Some(value) = value {
                file.set(&format!("{}.{key}", self.own), Item::U32(value));
            }
        };
        set(
            "block_count",
            self.whole("num_hidden_layers").or(self.whole("num_layers")),
        );
        set("context_length", self.whole("max_position_embeddings"));
        set("embedding_length", self.whole("hidden_size"));
        // Granite 4 calls its only MLP shared.
        let mlp = if self.own == "granitemoe" {
            None
        } else {
            self.whole("shared_intermediate_size")
        };
        set(
            "feed_forward_length",
            mlp.or(self.whole("intermediate_size")),
        );
        set("attention.head_count", self.whole("num_attention_heads"));
        set("attention.head_count_kv", self.whole("num_key_value_heads"));
        set("attention.key_length", self.whole("head_dim"));
        set("attention.value_length", self.whole("head_dim"));
        let fields = [
            "num_local_experts",
            "num_experts",
            "n_routed_experts",
            "moe_num_experts",
        ];
        if let Some(count) = fields
            .iter()
            .find_map(|field| self.whole(field))
            .filter(|count| *count > 0)
        {
            set("expert_count", Some(count));
            set(
                "expert_used_count",
                self.whole("num_experts_per_tok")
                    .or(self.whole("top_k_experts"))
                    .or(self.whole("moe_topk"))
                    .or(self.whole("moe_k")),
            );
            let expert = if matches!(self.own, "gpt-oss" | "llama4") {
                "intermediate_size"
            } else {
                "moe_intermediate_size"
            };
            set("expert_feed_forward_length", self.whole(expert));
        }
        let epsilon = |field: &str, key: &str| {
            Some((self.config[field].as_f64()?, format!("{}.{key}", self.own)))
        };
        let (epsilon, key) = epsilon("rms_norm_eps", "attention.layer_norm_rms_epsilon")
            .or_else(|| epsilon("layer_norm_eps", "attention.layer_norm_epsilon"))
            .or_else(|| epsilon("norm_epsilon", "attention.layer_norm_epsilon"))
            .or_else(|| epsilon("norm_eps", "attention.layer_norm_rms_epsilon"))
            .or_else(|| epsilon("layer_norm_epsilon", "attention.layer_norm_rms_epsilon"))
            .expect("an epsilon");
        file.set(&key, Item::F32(epsilon as f32));
    }

    fn head_dim(&self) -> u32 {
        let of_hidden = || {
            self.whole("hidden_size").expect("a size")
                / self.whole("num_attention_heads").expect("heads")
        };
        self.whole("head_dim").unwrap_or_else(of_hidden)
    }

    fn write_rope(&self, file: &mut Builder) {
        let key = |key: &str| format!("{}.rope.{key}", self.own);
        let all = self
            .config
            .get("rope_parameters")
            .unwrap_or(&self.config["rope_scaling"]);
        let rope = all.get("full_attention").unwrap_or(all);
        let number = |field: &str| rope[field].as_f64().map(|number| number as f32);
        let of_config = |field: &str| self.config[field].as_f64().map(|number| number as f32);
        // Nemotron-H has no rotation.
        let Some(base) = number("rope_theta").or(of_config("rope_theta")) else {
            return;
        };
        // The exponent of NTK.
        let dim = f64::from(self.head_dim());
        let ntk = rope["alpha"]
            .as_f64()
            .map_or(1.0, |alpha| alpha.powf(dim / (dim - 2.0)));
        // Gemma 1 and 2 have no key for their rope base; the architecture implies it.
        if !matches!(self.own, "gemma" | "gemma2") {
            file.set(&key("freq_base"), Item::F32((f64::from(base) * ntk) as f32));
        }
        if let Some(local) = all["sliding_attention"]["rope_theta"].as_f64() {
            file.set(&key("freq_base_swa"), Item::F32(local as f32));
        }
        let rotated = of_config("rotary_dim").map(|dim| dim / self.head_dim() as f32);
        let fraction = of_config("partial_rotary_factor")
            .or(rotated)
            .unwrap_or(1.0);
        if self.is_interleaved()
            || matches!(self.own, "phi3" | "cohere2" | "ernie4_5" | "ernie4_5-moe")
            || fraction < 1.0
        {
            file.set(
                &key("dimension_count"),
                Item::U32((self.head_dim() as f32 * fraction) as u32),
            );
        }
        let positions = || number("original_max_position_embeddings").expect("a length") as u32;
        match rope["rope_type"].as_str().or(rope["type"].as_str()) {
            Some("yarn") => {
                file.set(&key("scaling.type"), Item::Text("yarn".into()));
                for (own, field) in [
                    ("scaling.factor", "factor"),
                    ("scaling.yarn_attn_factor", "attention_factor"),
                    ("scaling.yarn_beta_fast", "beta_fast"),
                    ("scaling.yarn_beta_slow", "beta_slow"),
                    ("scaling.yarn_log_multiplier", "mscale_all_dim"),
                ] {
                    if let Some(number) = number(field) {
                        let is_latent = matches!(self.own, "deepseek2" | "mistral4")
                            && field == "mscale_all_dim";
                        file.set(
                            &key(own),
                            Item::F32(if is_latent { 0.1 * number } else { number }),
                        );
                    }
                }
                file.set(
                    &key("scaling.original_context_length"),
                    Item::U32(positions()),
                );
                if let Some(growth) = number("llama_4_scaling_beta") {
                    file.set(
                        &format!("{}.attention.temperature_scale", self.own),
                        Item::F32(growth),
                    );
                }
            }
            Some("llama3") => {
                push(
                    file,
                    "rope_freqs.weight".into(),
                    &llama3_divisors(rope, base, self.head_dim()),
                    F32,
                );
            }
            Some("longrope") => {
                let original = self
                    .whole("original_max_position_embeddings")
                    .expect("a length");
                file.set(&key("scaling.original_context_length"), Item::U32(original));
                let stretch =
                    of_config("max_position_embeddings").expect("a length") / original as f32;
                let factor = (1.0 + stretch.ln() / (original as f32).ln()).sqrt();
                file.set(&key("scaling.attn_factor"), Item::F32(factor));
                for (tensor, field) in [
                    ("rope_factors_long", "long_factor"),
                    ("rope_factors_short", "short_factor"),
                ] {
                    let list = rope[field].as_array().expect("a list");
                    let list: Vec<f32> = list
                        .iter()
                        .map(|factor| factor.as_f64().expect("a number") as f32)
                        .collect();
                    push(
                        file,
                        format!("{tensor}.weight"),
                        &(vec![list.len()], list),
                        F32,
                    );
                }
            }
            // All pairs have frequencies of the whole head, but only the first ones turn.
            Some("proportional") => {
                let pairs = self.whole_head_dim() as usize / 2;
                let turning =
                    (number("partial_rotary_factor").expect("a fraction") * pairs as f32) as usize;
                let divisors = (0..pairs)
                    .map(|pair| if pair < turning { 1.0 } else { 1e30 })
                    .collect();
                push(
                    file,
                    "rope_freqs.weight".into(),
                    &(vec![pairs], divisors),
                    F32,
                );
            }
            _ => {}
        }
    }

    /// Elements of a head of Gemma 4's layers without a window.
    fn whole_head_dim(&self) -> u32 {
        let exceptions = self.config["per_layer_config"].as_object();
        let exception =
            exceptions.and_then(|all| all.values().find_map(|own| own["head_dim"].as_u64()));
        exception
            .map(|dim| dim as u32)
            .or(self.whole("global_head_dim"))
            .expect("a size")
    }

    /// The sizes of Gemma 4's layers.
    fn write_gemma4(&self, file: &mut Builder) {
        let key = |key: &str| format!("gemma4.{key}");
        let kinds = self.config["layer_types"].as_array().expect("a list");
        let local: Vec<bool> = kinds
            .iter()
            .map(|kind| kind == "sliding_attention")
            .collect();
        let (dim, whole) = (self.head_dim(), self.whole_head_dim());
        for (own, size) in [
            ("key_length", whole),
            ("value_length", whole),
            ("key_length_swa", dim),
        ] {
            file.set(&key(&format!("attention.{own}")), Item::U32(size));
        }
        file.set(&key("attention.value_length_swa"), Item::U32(dim));
        file.set(&key("rope.dimension_count"), Item::U32(whole));
        file.set(&key("rope.dimension_count_swa"), Item::U32(dim));
        let usual = self.whole("num_key_value_heads").expect("heads");
        let exceptions = self.config["per_layer_config"].as_object();
        let exception = exceptions.and_then(|all| {
            all.values()
                .find_map(|own| own["num_key_value_heads"].as_u64())
        });
        let global = exception
            .map(|heads| heads as u32)
            .or(self.whole("num_global_key_value_heads"))
            .unwrap_or(usual);
        let heads = local
            .iter()
            .map(|local| if *local { usual } else { global })
            .collect();
        file.set(&key("attention.head_count_kv"), Item::I32s(heads));
        let shared = self.whole("num_kv_shared_layers").unwrap_or(0);
        file.set(&key("attention.shared_kv_layers"), Item::U32(shared));
        let (mlp, first_shared) = (
            self.whole("intermediate_size").expect("a size"),
            local.len() - shared as usize,
        );
        let is_double = self.config["use_double_wide_mlp"] == true;
        let mlps = (0..local.len()).map(|layer| {
            if is_double && layer >= first_shared {
                2 * mlp
            } else {
                mlp
            }
        });
        file.set(&key("feed_forward_length"), Item::I32s(mlps.collect()));
        file.set(
            &key("attention.sliding_window_pattern"),
            Item::Booleans(local),
        );
        let own = self.whole("hidden_size_per_layer_input").unwrap_or(0);
        file.set(&key("embedding_length_per_layer_input"), Item::U32(own));
    }

    /// Writes keys that only one family has.
    fn write_particulars(&self, file: &mut Builder) {
        let key = |key: &str| format!("{}.{key}", self.own);
        let mut copy = |own: &str, field: &str| {
            if let Some(number) = self.config[field].as_f64() {
                file.set(&key(own), Item::F32(number as f32));
            }
        };
        match self.own {
            "gemma2" | "gemma3" => {
                copy("attn_logit_softcapping", "attn_logit_softcapping");
                copy("final_logit_softcapping", "final_logit_softcapping");
            }
            "granite" | "granitemoe" | "granitehybrid" => {
                copy("attention.scale", "attention_multiplier");
                copy("embedding_scale", "embedding_multiplier");
                copy("residual_scale", "residual_multiplier");
                copy("logit_scale", "logits_scaling");
                self.write_experts(file);
            }
            "gemma4" => {
                copy("final_logit_softcapping", "final_logit_softcapping");
                self.write_gemma4(file);
            }
            "cohere2" | "command-r" => copy("logit_scale", "logit_scale"),
            "deepseek2" | "mistral4" => {
                copy("expert_weights_scale", "routed_scaling_factor");
                self.write_latent(file);
            }
            "qwen2moe" => {
                let shared = self
                    .whole("shared_expert_intermediate_size")
                    .expect("a size");
                file.set(&key("expert_shared_feed_forward_length"), Item::U32(shared));
            }
            "glm4moe" => {
                copy("expert_weights_scale", "routed_scaling_factor");
                let mut set = |own: &str, value: u32| file.set(&key(own), Item::U32(value));
                set(
                    "expert_shared_count",
                    self.whole("n_shared_experts").expect("a count"),
                );
                set(
                    "leading_dense_block_count",
                    self.whole("first_k_dense_replace").unwrap_or(0),
                );
                set("expert_gating_func", 2);
                set("nextn_predict_layers", 0);
                file.set(
                    &key("expert_weights_norm"),
                    Item::Boolean(self.config["norm_topk_prob"] == true),
                );
            }
            "apertus" => {
                for name in ["alpha_p", "alpha_n", "beta", "eps"] {
                    let layers = 0..self.whole("num_hidden_layers").expect("a count");
                    let number = |layer| {
                        self.tensors[&format!("model.layers.{layer}.mlp.act_fn.{name}")].1[0]
                    };
                    file.set(
                        &format!("xielu.{name}"),
                        Item::F32s(layers.map(number).collect()),
                    );
                }
            }
            // In the published SmolLM 3, every fourth layer has no rotation, which is also the meaning of a file
            // without this key. The golden model is too small for that and uses Granite's key.
            "smollm3" => {
                let layers = self.config["no_rope_layers"].as_array().expect("a list");
                let rotated = layers.iter().map(|layer| layer == 1).collect();
                file.set(&key("attention.rope_pattern"), Item::Booleans(rotated));
            }
            _ => self.write_experts(file),
        }
        // A phi3 file without a window has the value zero. The converter omits Mistral's window, so llama.cpp uses full
        // attention; here it is written under the key of the other families.
        let window = self
            .whole("sliding_window")
            .or((self.own == "phi3").then_some(0));
        if let Some(window) = window.filter(|_| self.own != "qwen2moe") {
            file.set(&key("attention.sliding_window"), Item::U32(window));
        }
        if let ("olmo2" | "exaone4" | "exaone-moe" | "mellum" | "afmoe", Some(kinds)) =
            (self.own, self.config["layer_types"].as_array())
        {
            let local = kinds
                .iter()
                .map(|kind| kind == "sliding_attention")
                .collect();
            file.set(
                &key("attention.sliding_window_pattern"),
                Item::Booleans(local),
            );
        }
    }

    fn is_interleaved(&self) -> bool {
        matches!(
            self.own,
            "llama" | "mistral3" | "arcee" | "smollm3" | "granite" | "granitemoe" | "granitehybrid"
        )
    }

    /// Combines the experts' tensors of a matrix into one.
    fn stack_experts(&mut self) {
        let stacked = self
            .tensors
            .keys()
            .filter(|name| name.contains(".experts.0."))
            .cloned();
        for first in stacked.collect::<Vec<_>>() {
            let fields = [
                "num_local_experts",
                "num_experts",
                "n_routed_experts",
                "moe_num_experts",
            ];
            let count = fields
                .iter()
                .find_map(|field| self.whole(field))
                .expect("a count");
            let (mut shape, mut all) = (Vec::new(), Vec::new());
            for expert in 0..count {
                let name = first.replace(".experts.0.", &format!(".experts.{expert}."));
                let (each, values) = self.tensors.remove(&name).expect("every expert is there");
                shape = [&[count as usize], &each[..]].concat();
                all.extend(values);
            }
            self.tensors
                .insert(first.replace(".experts.0.", ".experts."), (shape, all));
        }
    }

    /// A tensor in its stored form: changed, or split in two.
    fn changed(&self, name: &str, (shape, values): Values) -> Vec<(String, Values)> {
        let values = (shape, values);
        if let Some(changed) = self.changed_state(name, &values) {
            return changed;
        }
        let (shape, values) = values;
        let is_rotated = name.contains(".q_proj.") || name.contains(".k_proj.");
        if self.is_interleaved() && is_rotated {
            let columns = shape.get(1).copied().unwrap_or(1);
            let half = self.head_dim() as usize / 2;
            // Row `2i + j` of a head was row `i + j · d/2`.
            let row =
                |row: usize| row / (2 * half) * 2 * half + row % (2 * half) / 2 + row % 2 * half;
            let changed = (0..shape[0])
                .flat_map(|r| &values[row(r) * columns..][..columns])
                .copied()
                .collect();
            return vec![(name.into(), (shape, changed))];
        }
        if matches!(self.own, "gemma" | "gemma2" | "gemma3") && name.ends_with("norm.weight") {
            return vec![(
                name.into(),
                (shape, values.iter().map(|value| value + 1.0).collect()),
            )];
        }
        // Granite 4 and Granite with experts: gate and up are one tensor, gate first.
        if name.contains("input_linear") {
            let half = shape.len() - 2;
            let mut each = shape.clone();
            each[half] /= 2;
            let run = each[half..].iter().product::<usize>();
            let part = |odd: usize, part: &str| {
                let values = values
                    .chunks_exact(run)
                    .skip(odd)
                    .step_by(2)
                    .flatten()
                    .copied()
                    .collect();
                (name.replace("input_linear", part), (each.clone(), values))
            };
            return vec![part(0, "gate_proj"), part(1, "up_proj")];
        }
        if let Some(changed) = self.changed_experts(name, &shape, &values) {
            return changed;
        }
        if name.contains(".act_fn.") {
            return Vec::new();
        }
        if name.contains("kv_b_proj") {
            return self.cut(name, &shape, &values);
        }
        if let Some(stem) = name
            .strip_suffix("_bias")
            .filter(|_| name.contains(".experts.") && self.own == "gpt-oss")
        {
            return untangled(&format!("{stem}.bias"), (shape, values));
        }
        if name.contains(".experts.") && self.own == "gpt-oss" {
            return untangled(&format!("{name}.weight"), transposed(&shape, &values));
        }
        vec![(name.into(), (shape, values))]
    }
}

pub(super) fn push(file: &mut Builder, name: String, (shape, values): &Values, kind: u32) {
    let data = match kind {
        F32 => values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect(),
        _ => values
            .iter()
            .flat_map(|value| f16::from_f32(*value).to_le_bytes())
            .collect(),
    };
    let dimensions = shape.iter().rev().map(|size| *size as u64).collect();
    file.tensors.push(Tensor {
        name,
        dimensions,
        kind,
        offset: 0,
        data,
    });
}
