//! Every golden checkpoint as a GGUF file, written as llama.cpp's `convert_hf_to_gguf.py` writes one, and run against
//! the golden outputs: keys, names and changes to weights follow that program; they are implemented here independently
//! of the reader.
//!
//! How it changes weights, to match what llama.cpp computes:
//! - q and k of Llama, Mistral, SmolLM 3 and Granite, biases too: the halves of a head are interleaved, `(i, i + d/2)`
//!   side by side, for the rotation of adjacent elements. All other families rotate halves and are stored unchanged.
//! - Norms of Gemma 2 and 3 (q's and k's too): plus one.
//! - Experts: stacked, `[expert, row, column]`; those of gpt-oss are first transposed, and gate and up are separated.
//! - `llama3` scaling: no key, but a tensor of divisors.

use super::builder::{Builder, Item, Tensor};
use super::{
    CPU, Case, Device, FAMILIES, REFERENCE, Target, WGPU, WHOLE, compare, cpus, golden, golden_cases,
    largest_difference, read_json, support,
};
use bytes::Bytes;
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{WgpuBackend, WgpuOptions};
use folio::backend::{Backend, Inspect};
use folio::model::{Gguf, Model};
use folio::plan::KvFormat;
use folio::platform::{ModelFile, block_on};
use half::{bf16, f16};
use serde_json::Value;
use std::collections::BTreeMap;

/// Element types of a file.
const F32: u32 = 0;
const F16: u32 = 1;
const MXFP4: u32 = 39;

/// A tensor's rows, outermost dimension first.
type Values = (Vec<usize>, Vec<f32>);

/// A checkpoint to convert.
struct Checkpoint {
    /// `general.architecture`.
    own: &'static str,
    config: Value,
    tensors: BTreeMap<String, Values>,
}

#[test]
fn every_family_is_the_golden_one_in_gguf() {
    prove_converted(&REFERENCE, &mut ReferenceBackend::new(), &[(F32, "F32"), (F16, "F16")]);
    cpus().for_each(|mut cpu| prove_converted(&CPU, &mut cpu, &[(F32, "F32"), (F16, "F16")]));
}

#[test]
fn every_adapter_runs_every_family_in_gguf() {
    for adapter in WgpuBackend::adapters() {
        let options = WgpuOptions { adapter: Some(adapter.index), ..WgpuOptions::default() };
        let mut backend = block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens");
        prove_converted(&WGPU, &mut backend, &[(F16, "F16")]);
    }
}

fn prove_converted<B: Backend + Inspect>(target: &Target, backend: &mut B, kinds: &[(u32, &str)]) {
    for (family, _) in FAMILIES {
        for &(kind, name) in kinds {
            let file = Checkpoint::read(family).convert(kind);
            let model = open(&file);
            let mut device = Device::new(backend, &model, KvFormat::F32);
            let mut worst = 0.0_f32;
            for case in golden_cases(family) {
                let run = device.generate(std::slice::from_ref(&case), WHOLE, false).remove(0);
                let place = format!("{family} in GGUF of {name} on {}, prompt of {}", target.name, case.prompt.len());
                worst = worst.max(compare(&place, &case, &run, target.logits_f32));
            }
            println!("{family} in GGUF of {name} on {}: logits differ by at most {worst:.1e}", target.name);
        }
        support::ran("families", family, "gguf", target.name);
    }
}

/// Codes and scales of MXFP4 have their published meaning: experts in MXFP4 give the same results as the same numbers
/// in f32.
#[test]
fn experts_in_mxfp4_are_the_numbers_they_stand_for() {
    let (plain, packed) = mxfp4_experts();
    let mut backend = ReferenceBackend::new();
    let (expected, found) = (logits(&plain, &mut backend), logits(&packed, &mut backend));
    let difference = largest_difference(&expected, &found);
    assert!(difference <= 1e-4, "logits differ by {difference}");
    let golden = &golden_cases("gpt-oss")[2].logits;
    assert!(largest_difference(golden, &found) > 0.1, "the experts are others than the golden ones");
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
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 60) as u8
            });
            // A scale around 2⁻⁵, so that weights have the size of the original ones.
            packed.data.push(122 + (state >> 40) as u8 % 3);
            let scale = 2_f32.powi(i32::from(*packed.data.last().expect("just pushed")) - 127);
            packed.data.extend((0..16).map(|i| codes[i] | codes[i + 16] << 4));
            for (value, code) in block.chunks_exact_mut(4).zip(codes) {
                let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
                let number = if code < 8 { magnitude * scale } else { -magnitude * scale };
                value.copy_from_slice(&number.to_le_bytes());
            }
        }
    }
    packed.pack();
    (plain, packed)
}

/// Logits after one of the golden prompts of gpt-oss.
pub(super) fn logits<B: Backend + Inspect>(file: &Builder, backend: &mut B) -> Vec<f32> {
    let one = Case { greedy: vec![0], ..golden_cases("gpt-oss").remove(2) };
    let mut device = Device::new(backend, &open(file), KvFormat::F32);
    device.generate(&[one], WHOLE, false).remove(0).logits.remove(0)
}

/// Some properties are given only by the architecture's name, not by a key, so a wrong name gives another model.
#[test]
fn what_a_file_says_is_heard() {
    type Change = fn(&mut Builder);
    let table: [(&str, Change); 9] = [
        ("mistral-window", |file| file.set("llama.attention.sliding_window", Item::U32(25))),
        ("mistral-window", |file| file.pairs.retain(|(key, _)| key != "llama.attention.sliding_window")),
        ("llama3-rope", |file| file.tensors.retain(|tensor| tensor.name != "rope_freqs.weight")),
        ("gemma2", |file| file.set("gemma2.attention.sliding_window_pattern", Item::U32(4))),
        ("gemma2", |file| file.set("gemma2.final_logit_softcapping", Item::F32(14.0))),
        ("gemma3", |file| file.set("gemma3.rope.freq_base_swa", Item::F32(11_000.0))),
        ("granite", |file| file.set("granite.residual_scale", Item::F32(0.25))),
        ("smollm3", |file| file.pairs.retain(|(key, _)| key != "smollm3.attention.rope_pattern")),
        ("gpt-oss", |file| file.set("gpt-oss.rope.scaling.factor", Item::F32(16.0))),
    ];
    let mut backend = ReferenceBackend::new();
    for (index, (family, change)) in table.into_iter().enumerate() {
        let mut file = Checkpoint::read(family).convert(F32);
        change(&mut file);
        file.pack();
        let case = golden_cases(family).remove(3);
        let one = Case { greedy: vec![0], ..case };
        let mut device = Device::new(&mut backend, &open(&file), KvFormat::F32);
        let found = device.generate(std::slice::from_ref(&one), WHOLE, false).remove(0).logits.remove(0);
        let difference = largest_difference(&one.logits, &found);
        assert!(difference > 2.0 * REFERENCE.logits_f32, "change {index}, of {family}: only {difference}");
    }
}

fn open(file: &Builder) -> Model {
    let file = ModelFile::in_memory(Bytes::from(file.bytes()));
    let gguf = Gguf::from_files(vec![("converted.gguf".into(), file)]).expect("the file opens");
    Model::from_gguf(gguf).expect("the model loads")
}

impl Checkpoint {
    fn read(family: &str) -> Self {
        let config = read_json(&golden(family).join("config.json"));
        let bytes = std::fs::read(golden(family).join("model.safetensors")).expect("the golden weights");
        let file = safetensors::SafeTensors::deserialize(&bytes).expect("the golden weights");
        let values = |view: &safetensors::tensor::TensorView<'_>| {
            let number = |pair: &[u8]| bf16::from_le_bytes([pair[0], pair[1]]).to_f32();
            (view.shape().to_vec(), view.data().chunks_exact(2).map(number).collect())
        };
        let tensors = file.tensors().iter().map(|(name, view)| (name.clone(), values(view))).collect();
        let own = match config["architectures"][0].as_str().expect("a name") {
            "LlamaForCausalLM" | "MistralForCausalLM" => "llama",
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
        Self { own, config, tensors }
    }

    fn convert(mut self, matrices: u32) -> Builder {
        let mut file = Builder { version: 3, pairs: Vec::new(), tensors: Vec::new() };
        file.set("general.architecture", Item::Text(self.own.into()));
        self.write_sizes(&mut file);
        self.write_rope(&mut file);
        self.write_particulars(&mut file);
        self.stack_experts();
        for (name, values) in self.tensors.clone() {
            for (name, values) in self.changed(&name, values) {
                let name = self.own_name(&name);
                // Vectors and routers are stored in f32.
                let is_exact = values.0.len() == 1 || name.contains("ffn_gate_inp") || name.ends_with(".bias");
                push(&mut file, name, &values, if is_exact { F32 } else { matrices });
            }
        }
        file.pack();
        file
    }

    fn whole(&self, field: &str) -> Option<u32> {
        self.config[field].as_u64().map(|number| number as u32)
    }

    fn write_sizes(&self, file: &mut Builder) {
        let mut set = |key: &str, value: Option<u32>| {
            if let Some(value) = value {
                file.set(&format!("{}.{key}", self.own), Item::U32(value));
            }
        };
        set("block_count", self.whole("num_hidden_layers"));
        set("context_length", self.whole("max_position_embeddings"));
        set("embedding_length", self.whole("hidden_size"));
        set("feed_forward_length", self.whole("intermediate_size"));
        set("attention.head_count", self.whole("num_attention_heads"));
        set("attention.head_count_kv", self.whole("num_key_value_heads"));
        set("attention.key_length", self.whole("head_dim"));
        set("attention.value_length", self.whole("head_dim"));
        set("expert_count", self.whole("num_local_experts"));
        set("expert_used_count", self.whole("num_experts_per_tok"));
        let expert = if self.own == "gpt-oss" { "intermediate_size" } else { "moe_intermediate_size" };
        if self.whole("num_local_experts").is_some() {
            set("expert_feed_forward_length", self.whole(expert));
        }
        let epsilon = self.config["rms_norm_eps"].as_f64().expect("a number") as f32;
        file.set(&format!("{}.attention.layer_norm_rms_epsilon", self.own), Item::F32(epsilon));
    }

    fn head_dim(&self) -> u32 {
        let of_hidden =
            || self.whole("hidden_size").expect("a size") / self.whole("num_attention_heads").expect("heads");
        self.whole("head_dim").unwrap_or_else(of_hidden)
    }

    fn write_rope(&self, file: &mut Builder) {
        let key = |key: &str| format!("{}.rope.{key}", self.own);
        let all = &self.config["rope_parameters"];
        let rope = all.get("full_attention").unwrap_or(all);
        let number = |field: &str| rope[field].as_f64().map(|number| number as f32);
        // Gemma 2 has no key for its rope base; the architecture implies it.
        if self.own != "gemma2" {
            file.set(&key("freq_base"), Item::F32(number("rope_theta").expect("a base")));
        }
        if let Some(local) = all["sliding_attention"]["rope_theta"].as_f64() {
            file.set(&key("freq_base_swa"), Item::F32(local as f32));
        }
        if self.is_interleaved() || self.own == "phi3" {
            file.set(&key("dimension_count"), Item::U32(self.head_dim()));
        }
        match rope["rope_type"].as_str() {
            Some("yarn") => {
                file.set(&key("scaling.type"), Item::Text("yarn".into()));
                for (own, field) in [
                    ("scaling.factor", "factor"),
                    ("scaling.yarn_attn_factor", "attention_factor"),
                    ("scaling.yarn_beta_fast", "beta_fast"),
                    ("scaling.yarn_beta_slow", "beta_slow"),
                ] {
                    if let Some(number) = number(field) {
                        file.set(&key(own), Item::F32(number));
                    }
                }
                let positions = number("original_max_position_embeddings").expect("a length") as u32;
                file.set(&key("scaling.original_context_length"), Item::U32(positions));
            }
            Some("llama3") => push(file, "rope_freqs.weight".into(), &llama3_divisors(rope, self.head_dim()), F32),
            _ => {}
        }
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
            "granite" => {
                copy("attention.scale", "attention_multiplier");
                copy("embedding_scale", "embedding_multiplier");
                copy("residual_scale", "residual_multiplier");
                copy("logit_scale", "logits_scaling");
            }
            // In the published SmolLM 3, every fourth layer has no rotation, which is also the meaning of a file
            // without this key. The golden model is too small for that and uses Granite's key.
            "smollm3" => {
                let layers = self.config["no_rope_layers"].as_array().expect("a list");
                let rotated = layers.iter().map(|layer| layer == 1).collect();
                file.set(&key("attention.rope_pattern"), Item::Booleans(rotated));
            }
            _ => {}
        }
        // A phi3 file without a window has the value zero. The converter omits Mistral's window, so llama.cpp uses full
        // attention; here it is written under the key of the other families.
        let window = self.whole("sliding_window").or((self.own == "phi3").then_some(0));
        if let Some(window) = window {
            file.set(&key("attention.sliding_window"), Item::U32(window));
        }
    }

    fn is_interleaved(&self) -> bool {
        matches!(self.own, "llama" | "smollm3" | "granite")
    }

    /// Combines the experts' tensors of a matrix into one.
    fn stack_experts(&mut self) {
        let stacked = self.tensors.keys().filter(|name| name.contains(".experts.0.")).cloned();
        for first in stacked.collect::<Vec<_>>() {
            let count = self.whole("num_local_experts").expect("a count");
            let (mut shape, mut all) = (Vec::new(), Vec::new());
            for expert in 0..count {
                let name = first.replace(".experts.0.", &format!(".experts.{expert}."));
                let (each, values) = self.tensors.remove(&name).expect("every expert is there");
                shape = [&[count as usize], &each[..]].concat();
                all.extend(values);
            }
            self.tensors.insert(first.replace(".experts.0.", ".experts."), (shape, all));
        }
    }

    /// A tensor in its stored form: changed, or split in two.
    fn changed(&self, name: &str, (shape, values): Values) -> Vec<(String, Values)> {
        let is_rotated = name.contains(".q_proj.") || name.contains(".k_proj.");
        if self.is_interleaved() && is_rotated {
            let columns = shape.get(1).copied().unwrap_or(1);
            let half = self.head_dim() as usize / 2;
            // Row `2i + j` of a head was row `i + j · d/2`.
            let row = |row: usize| row / (2 * half) * 2 * half + row % (2 * half) / 2 + row % 2 * half;
            let changed = (0..shape[0]).flat_map(|r| &values[row(r) * columns..][..columns]).copied().collect();
            return vec![(name.into(), (shape, changed))];
        }
        if self.own.starts_with("gemma") && name.ends_with("norm.weight") {
            return vec![(name.into(), (shape, values.iter().map(|value| value + 1.0).collect()))];
        }
        if let Some(stem) = name.strip_suffix("_bias").filter(|_| name.contains(".experts.")) {
            return untangled(&format!("{stem}.bias"), (shape, values));
        }
        if name.contains(".experts.") && self.own == "gpt-oss" {
            return untangled(&format!("{name}.weight"), transposed(&shape, &values));
        }
        vec![(name.into(), (shape, values))]
    }

    fn own_name(&self, name: &str) -> String {
        let Some((layer, name)) = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')) else {
            let table = [("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")];
            return table.into_iter().fold(name.to_owned(), |name, (theirs, own)| name.replace(theirs, own));
        };
        let (stem, suffix) = name.rsplit_once('.').expect("a name has parts");
        let own = match stem {
            "input_layernorm" => "attn_norm",
            "self_attn.q_proj" => "attn_q",
            "self_attn.k_proj" => "attn_k",
            "self_attn.v_proj" => "attn_v",
            "self_attn.qkv_proj" => "attn_qkv",
            "self_attn.o_proj" => "attn_output",
            "self_attn.q_norm" => "attn_q_norm",
            "self_attn.k_norm" => "attn_k_norm",
            "self_attn" if suffix == "sinks" => return format!("blk.{layer}.attn_sinks.weight"),
            "post_attention_layernorm" => match self.own {
                "gemma2" | "gemma3" | "olmo2" | "gpt-oss" => "post_attention_norm",
                _ => "ffn_norm",
            },
            "pre_feedforward_layernorm" => "ffn_norm",
            "post_feedforward_layernorm" => "post_ffw_norm",
            "mlp.gate_proj" => "ffn_gate",
            "mlp.up_proj" | "mlp.gate_up_proj" => "ffn_up",
            "mlp.down_proj" => "ffn_down",
            "mlp.gate" | "mlp.router" => "ffn_gate_inp",
            "mlp.experts.gate_proj" => "ffn_gate_exps",
            "mlp.experts.up_proj" => "ffn_up_exps",
            "mlp.experts.down_proj" => "ffn_down_exps",
            other => panic!("{other} has no name in GGUF"),
        };
        format!("blk.{layer}.{own}.{suffix}")
    }
}

fn push(file: &mut Builder, name: String, (shape, values): &Values, kind: u32) {
    let data = match kind {
        F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        _ => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
    };
    let dimensions = shape.iter().rev().map(|size| *size as u64).collect();
    file.tensors.push(Tensor { name, dimensions, kind, offset: 0, data });
}

/// `[experts, columns, rows]` as `[experts, rows, columns]`.
fn transposed(shape: &[usize], values: &[f32]) -> Values {
    let (columns, rows) = (shape[1], shape[2]);
    let expert = |expert: &[f32]| -> Vec<f32> {
        (0..rows)
            .flat_map(|row| (0..columns).map(move |column| (column, row)))
            .map(|(c, r)| expert[c * rows + r])
            .collect()
    };
    let values = values.chunks_exact(columns * rows).flat_map(expert).collect();
    (vec![shape[0], rows, columns], values)
}

/// Separates gate (the even rows of each expert) and up (the odd rows).
fn untangled(name: &str, (shape, values): Values) -> Vec<(String, Values)> {
    if !name.contains("gate_up_proj") {
        return vec![(name.into(), (shape, values))];
    }
    let columns = shape.get(2).copied().unwrap_or(1);
    let each = |odd: usize, part: &str| {
        let rows = values.chunks_exact(columns).skip(odd).step_by(2).flatten().copied().collect();
        let mut shape = shape.clone();
        shape[1] /= 2;
        (name.replace("gate_up_proj", part), (shape, rows))
    };
    vec![each(0, "gate_proj"), each(1, "up_proj")]
}

/// The divisors that `llama3` scaling applies to the frequencies, in f32 as in the converter.
fn llama3_divisors(rope: &Value, head_dim: u32) -> Values {
    let number = |field: &str| rope[field].as_f64().expect("a number");
    let (factor, low, high) = (number("factor"), number("low_freq_factor"), number("high_freq_factor"));
    let positions = number("original_max_position_embeddings");
    let divisor = |pair: u32| {
        let frequency = number("rope_theta").powf(-2.0 * f64::from(pair) / f64::from(head_dim));
        let wave = std::f64::consts::TAU / frequency;
        if wave < positions / high {
            1.0
        } else if wave > positions / low {
            factor as f32
        } else {
            let smooth = (positions / wave - low) / (high - low);
            (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
        }
    };
    let divisors: Vec<f32> = (0..head_dim / 2).map(divisor).collect();
    (vec![divisors.len()], divisors)
}
