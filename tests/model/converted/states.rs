//! Models with layers that keep a state, as GGUF files: keys, names and changes to weights of llama.cpp's converters.
//!
//! How they change weights:
//! - `A_log` becomes −exp(A_log); taps lose their middle dimension; `A_log` and `D` of Mamba 2 are columns, and its
//!   norm has a row for each group.
//! - Qwen's norms, but not those of states: plus one.
//! - Qwen 3.5: value heads lie in tiles, the first of every key head, then the second of every key head, and so on.
//! - Qwen3-Next: q, k, v and z of each key head are separated; b and a are not.
//! - Granite 4: rows of q and k are interleaved, as in Granite.
//! - Falcon-H1: all multipliers are part of the weights.

use super::super::builder::{Builder, Item};
use super::{Checkpoint, Values};
use serde_json::Value;

/// How the tensors of an architecture are called in a file, without what is before and behind.
const NAMES: [(&str, &str); 55] = [
    ("operator_norm", "attn_norm"),
    ("norm", "attn_norm"),
    ("self_attn.out_proj", "attn_output"),
    ("self_attn.q_layernorm", "attn_q_norm"),
    ("self_attn.k_layernorm", "attn_k_norm"),
    ("conv.in_proj", "shortconv.in_proj"),
    ("conv.conv", "shortconv.conv"),
    ("conv.out_proj", "shortconv.out_proj"),
    ("feed_forward.w1", "ffn_gate"),
    ("feed_forward.w3", "ffn_up"),
    ("feed_forward.w2", "ffn_down"),
    ("feed_forward.gate", "ffn_gate_inp"),
    ("feed_forward.experts.w1", "ffn_gate_exps"),
    ("feed_forward.experts.w3", "ffn_up_exps"),
    ("feed_forward.experts.w2", "ffn_down_exps"),
    ("feed_forward.gate_proj", "ffn_gate"),
    ("feed_forward.up_proj", "ffn_up"),
    ("feed_forward.down_proj", "ffn_down"),
    ("linear_attn.in_proj_qkv", "attn_qkv"),
    ("linear_attn.in_proj_z", "attn_gate"),
    ("linear_attn.in_proj_b", "ssm_beta"),
    ("linear_attn.in_proj_a", "ssm_alpha"),
    ("linear_attn.in_proj_ba", "ssm_ba"),
    ("linear_attn.conv1d", "ssm_conv1d"),
    ("linear_attn.norm", "ssm_norm"),
    ("linear_attn.out_proj", "ssm_out"),
    ("mamba.in_proj", "ssm_in"),
    ("mamba.conv1d", "ssm_conv1d"),
    ("mamba.norm", "ssm_norm"),
    ("mamba.out_proj", "ssm_out"),
    ("mixer.q_proj", "attn_q"),
    ("mixer.k_proj", "attn_k"),
    ("mixer.v_proj", "attn_v"),
    ("mixer.o_proj", "attn_output"),
    ("mixer.in_proj", "ssm_in"),
    ("mixer.conv1d", "ssm_conv1d"),
    ("mixer.norm", "ssm_norm"),
    ("mixer.out_proj", "ssm_out"),
    ("mixer.up_proj", "ffn_up"),
    ("mixer.down_proj", "ffn_down"),
    ("mixer.gate", "ffn_gate_inp"),
    ("mixer.experts.up_proj", "ffn_up_exps"),
    ("mixer.experts.down_proj", "ffn_down_exps"),
    ("mixer.fc1_latent_proj", "ffn_latent_down"),
    ("mixer.fc2_latent_proj", "ffn_latent_up"),
    ("mixer.shared_experts.up_proj", "ffn_up_shexp"),
    ("mixer.shared_experts.down_proj", "ffn_down_shexp"),
    ("shared_mlp.gate_proj", "ffn_gate"),
    ("shared_mlp.up_proj", "ffn_up"),
    ("shared_mlp.output_linear", "ffn_down"),
    ("block_sparse_moe.router.layer", "ffn_gate_inp"),
    ("block_sparse_moe.gate_proj", "ffn_gate_exps"),
    ("block_sparse_moe.up_proj", "ffn_up_exps"),
    ("block_sparse_moe.output_linear", "ffn_down_exps"),
    ("ffn_norm", "ffn_norm"),
];

/// The same of whole names.
const WHOLE_NAMES: [(&str, &str); 7] = [
    ("A_log", "ssm_a"),
    ("D", "ssm_d"),
    ("dt_bias", "ssm_dt.bias"),
    ("expert_bias", "exp_probs_b.bias"),
    ("e_score_correction_bias", "exp_probs_b.bias"),
    ("gate_up_proj", "ffn_gate_up_exps.weight"),
    ("down_proj", "ffn_down_exps.weight"),
];

impl Checkpoint {
    /// Whether the architecture has layers with a state.
    pub(super) fn keeps_states(&self) -> bool {
        matches!(
            self.own,
            "lfm2"
                | "lfm2moe"
                | "qwen35"
                | "qwen35moe"
                | "qwen3next"
                | "granitehybrid"
                | "nemotron_h"
                | "nemotron_h_moe"
                | "falcon-h1"
        )
    }

    /// The architecture's name, for one of several that share a name in a checkpoint.
    pub(super) fn hybrid_name(
        architecture: &str,
        has: impl Fn(&str) -> bool,
    ) -> Option<&'static str> {
        Some(match architecture {
            "Lfm2ForCausalLM" => "lfm2",
            "Lfm2MoeForCausalLM" => "lfm2moe",
            "Qwen3_5ForCausalLM" | "Qwen3_5ForConditionalGeneration" => "qwen35",
            "Qwen3_5MoeForCausalLM" | "Qwen3_5MoeForConditionalGeneration" => "qwen35moe",
            "Qwen3NextForCausalLM" => "qwen3next",
            "GraniteMoeHybridForCausalLM" if has(".mamba.") => "granitehybrid",
            "NemotronHForCausalLM" if has(".experts.") => "nemotron_h_moe",
            "NemotronHForCausalLM" => "nemotron_h",
            "FalconH1ForCausalLM" => "falcon-h1",
            _ => return None,
        })
    }

    /// The name of a tensor of a layer, if it is one of this module's.
    pub(super) fn state_name(&self, name: &str) -> Option<String> {
        if !self.keeps_states() {
            return None;
        }
        // The converter's table has the whole name of this one.
        if name == "pre_ff_layernorm.weight" {
            return Some("ffn_norm".into());
        }
        let (stem, suffix) = name.rsplit_once('.').expect("a name has parts");
        let is_whole = !matches!(suffix, "weight" | "bias");
        if is_whole {
            let found = WHOLE_NAMES.iter().find(|(theirs, _)| *theirs == suffix);
            return Some(
                found
                    .unwrap_or_else(|| panic!("{name} has no name in GGUF"))
                    .1
                    .into(),
            );
        }
        let own = NAMES.iter().find(|(theirs, _)| *theirs == stem)?.1;
        let is_shared =
            self.own == "granitehybrid" && stem.starts_with("shared_mlp") && self.has_experts();
        Some(format!(
            "{own}{}.{suffix}",
            if is_shared { "_shexp" } else { "" }
        ))
    }

    fn has_experts(&self) -> bool {
        self.tensors
            .keys()
            .any(|name| name.contains("block_sparse_moe"))
    }

    fn size(&self, field: &str) -> usize {
        self.whole(field)
            .unwrap_or_else(|| panic!("{field} is missing")) as usize
    }

    /// For each layer, whether a tensor name begins so.
    fn layers_with(&self, name: &str) -> Vec<bool> {
        let layer = |name: &String| {
            name.split(".layers.")
                .nth(1)?
                .split('.')
                .next()?
                .parse::<usize>()
                .ok()
        };
        let count = self.tensors.keys().filter_map(layer).max().expect("layers") + 1;
        let has = |layer| {
            self.tensors
                .keys()
                .any(|key| key.contains(&format!(".layers.{layer}.{name}")))
        };
        (0..count).map(has).collect()
    }

    /// Writes the keys of states, and lists with zeros for layers without attention or without an MLP.
    pub(super) fn write_states(&self, file: &mut Builder) {
        if !self.keeps_states() {
            return;
        }
        let key = |key: &str| format!("{}.{key}", self.own);
        let attends: Vec<bool> = match self.own {
            "nemotron_h" | "nemotron_h_moe" => self.layers_with("mixer.q_proj"),
            _ => self.layers_with("self_attn.q_proj"),
        };
        file.set(&key("block_count"), Item::U32(attends.len() as u32));
        let heads = self.whole("num_key_value_heads").expect("heads");
        if !matches!(self.own, "qwen35" | "qwen35moe" | "qwen3next" | "falcon-h1") {
            let list = attends
                .iter()
                .map(|attends| if *attends { heads } else { 0 })
                .collect();
            file.set(&key("attention.head_count_kv"), Item::I32s(list));
        }
        let mut set = |own: &str, value: usize| file.set(&key(own), Item::U32(value as u32));
        match self.own {
            "lfm2" | "lfm2moe" => {
                set("shortconv.l_cache", self.size("conv_L_cache"));
                set(
                    "leading_dense_block_count",
                    self.whole("num_dense_layers").unwrap_or(0) as usize,
                );
                if self.own == "lfm2moe" {
                    set("expert_gating_func", 2);
                }
            }
            "qwen35" | "qwen35moe" | "qwen3next" => {
                set("ssm.conv_kernel", self.size("linear_conv_kernel_dim"));
                set("ssm.state_size", self.size("linear_key_head_dim"));
                set("ssm.group_count", self.size("linear_num_key_heads"));
                set("ssm.time_step_rank", self.size("linear_num_value_heads"));
                set(
                    "ssm.inner_size",
                    self.size("linear_num_value_heads") * self.size("linear_value_head_dim"),
                );
                let first = attends
                    .iter()
                    .position(|attends| *attends)
                    .expect("a layer with attention");
                set("full_attention_interval", first + 1);
                set("rope.dimension_count", self.head_dim() as usize / 4);
                if let Some(shared) = self.whole("shared_expert_intermediate_size") {
                    set("expert_shared_feed_forward_length", shared as usize);
                }
                if let Some(sections) = self.config["rope_parameters"]["mrope_section"].as_array() {
                    let section = |section: &Value| section.as_u64().expect("a size") as u32;
                    let sections = sections.iter().map(section).chain([0]).collect();
                    file.set(&key("rope.dimension_sections"), Item::I32s(sections));
                }
            }
            _ => self.write_mamba2(file),
        }
    }

    fn write_mamba2(&self, file: &mut Builder) {
        let key = |key: &str| format!("{}.{key}", self.own);
        let mut set = |own: &str, value: usize| file.set(&key(own), Item::U32(value as u32));
        let either = |names: [&str; 2]| {
            self.size(if self.whole(names[0]).is_some() {
                names[0]
            } else {
                names[1]
            })
        };
        let heads = either(["mamba_num_heads", "mamba_n_heads"]);
        set("ssm.conv_kernel", either(["conv_kernel", "mamba_d_conv"]));
        set(
            "ssm.state_size",
            either(["ssm_state_size", "mamba_d_state"]),
        );
        set("ssm.group_count", either(["n_groups", "mamba_n_groups"]));
        set("ssm.time_step_rank", heads);
        set(
            "ssm.inner_size",
            heads * either(["mamba_head_dim", "mamba_d_head"]),
        );
        match self.own {
            "granitehybrid" => {
                if self.has_experts() {
                    set("feed_forward_length", self.size("intermediate_size"));
                }
                set(
                    "expert_shared_feed_forward_length",
                    self.size("shared_intermediate_size"),
                );
                file.set(&key("rope.scaling.finetuned"), Item::Boolean(false));
            }
            "nemotron_h" | "nemotron_h_moe" => {
                if self.own == "nemotron_h" {
                    // The config has the numbers of experts that no layer has.
                    file.pairs.retain(|(key, _)| !key.contains(".expert_"));
                }
                let epsilon = self.config["layer_norm_epsilon"]
                    .as_f64()
                    .expect("a number");
                file.set(
                    &key("attention.layer_norm_epsilon"),
                    Item::F32(epsilon as f32),
                );
                let mut set =
                    |own: &str, value: usize| file.set(&key(own), Item::U32(value as u32));
                let size = self.size("intermediate_size") as u32;
                // Without heads and without this, llama.cpp takes a layer to have a state.
                let mlps = self
                    .layers_with("mixer.up_proj")
                    .into_iter()
                    .zip(self.layers_with("mixer.experts."));
                let list = mlps
                    .map(|(has, has_experts)| if has || has_experts { size } else { 0 })
                    .collect();
                if self.own == "nemotron_h_moe" {
                    set("expert_gating_func", 2);
                    file.set(
                        &key("expert_weights_norm"),
                        Item::Boolean(self.config["norm_topk_prob"] == true),
                    );
                    let mut set =
                        |own: &str, value: usize| file.set(&key(own), Item::U32(value as u32));
                    set("expert_shared_count", self.size("n_shared_experts"));
                    set(
                        "expert_shared_feed_forward_length",
                        self.size("moe_shared_expert_intermediate_size"),
                    );
                    if let Some(latent) = self.whole("moe_latent_size") {
                        set("moe_latent_size", latent as usize);
                    }
                }
                file.set(&key("feed_forward_length"), Item::I32s(list));
                let factor = self.config["routed_scaling_factor"]
                    .as_f64()
                    .expect("a number");
                file.set(&key("expert_weights_scale"), Item::F32(factor as f32));
            }
            _ => {}
        }
    }

    /// A tensor of a model with states in its stored form; `None`: it is stored as others are.
    pub(super) fn changed_state(
        &self,
        name: &str,
        (shape, values): &Values,
    ) -> Option<Vec<(String, Values)>> {
        if !self.keeps_states() {
            return None;
        }
        let is_qwen = matches!(self.own, "qwen35" | "qwen35moe" | "qwen3next");
        let one =
            |shape: Vec<usize>, values: Vec<f32>| Some(vec![(name.to_owned(), (shape, values))]);
        let scaled = self.multiplied(name, shape, values);
        let tiled = |values: Vec<f32>, first: usize, rows: usize, columns: usize| match self.own {
            "qwen35" | "qwen35moe" => self.tiles(values, first, rows, columns),
            _ => values,
        };
        let (dv, channels) = (
            self.whole("linear_value_head_dim").unwrap_or(0) as usize,
            shape[0],
        );
        let keys = if is_qwen {
            2 * self.size("linear_num_key_heads") * self.size("linear_key_head_dim")
        } else {
            0
        };
        let part = name
            .rsplit_once(".layers.")
            .map_or(name, |(_, rest)| rest.split_once('.').expect("a part").1);
        match part {
            "linear_attn.in_proj_qkvz.weight" => Some(self.unpacked(name, shape[1], values)),
            "linear_attn.in_proj_qkv.weight" => {
                one(shape.clone(), tiled(scaled, keys, dv, shape[1]))
            }
            "linear_attn.conv1d.weight" => {
                one(vec![channels, shape[2]], tiled(scaled, keys, dv, shape[2]))
            }
            "linear_attn.in_proj_z.weight" => one(shape.clone(), tiled(scaled, 0, dv, shape[1])),
            "linear_attn.in_proj_b.weight" | "linear_attn.in_proj_a.weight" => {
                one(shape.clone(), tiled(scaled, 0, 1, shape[1]))
            }
            "linear_attn.dt_bias" => one(shape.clone(), tiled(scaled, 0, 1, 1)),
            "linear_attn.A_log" => one(
                shape.clone(),
                tiled(scaled.iter().map(|value| -value.exp()).collect(), 0, 1, 1),
            ),
            // The heads of a row, for each row.
            "linear_attn.out_proj.weight" => {
                let rows = scaled
                    .chunks_exact(shape[1])
                    .flat_map(|row| tiled(row.to_vec(), 0, dv, 1));
                one(shape.clone(), rows.collect())
            }
            "mamba.A_log" | "mixer.A_log" => one(
                vec![channels, 1],
                scaled.iter().map(|value| -value.exp()).collect(),
            ),
            "mamba.D" | "mixer.D" => one(vec![channels, 1], scaled),
            "mamba.norm.weight" | "mixer.norm.weight" => {
                let groups = self
                    .whole("n_groups")
                    .or(self.whole("mamba_n_groups"))
                    .expect("groups") as usize;
                one(vec![groups, channels / groups], scaled)
            }
            "mamba.conv1d.weight" | "mixer.conv1d.weight" | "conv.conv.weight" => {
                one(vec![channels, shape[2]], scaled)
            }
            _ if is_qwen && name.ends_with("norm.weight") && part != "linear_attn.norm.weight" => {
                one(
                    shape.clone(),
                    scaled.iter().map(|value| value + 1.0).collect(),
                )
            }
            _ if self.own == "falcon-h1" => one(shape.clone(), scaled),
            _ => None,
        }
    }

    /// Moves value heads from the order of their key heads to tiles; a head has so many rows of these columns.
    fn tiles(&self, mut values: Vec<f32>, first: usize, rows: usize, columns: usize) -> Vec<f32> {
        let (keys, heads) = (
            self.size("linear_num_key_heads"),
            self.size("linear_num_value_heads"),
        );
        let (each, run) = (heads / keys, rows * columns);
        let start = first * columns;
        let old = values[start..].to_vec();
        for key in 0..keys {
            for index in 0..each {
                let (from, to) = ((key * each + index) * run, (index * keys + key) * run);
                values[start + to..][..run].copy_from_slice(&old[from..][..run]);
            }
        }
        values
    }

    /// q, k, v and z of all key heads, from those of each.
    fn unpacked(&self, name: &str, columns: usize, values: &[f32]) -> Vec<(String, Values)> {
        let (keys, heads) = (
            self.size("linear_num_key_heads"),
            self.size("linear_num_value_heads"),
        );
        let (dk, dv) = (
            self.size("linear_key_head_dim"),
            self.size("linear_value_head_dim") * heads / keys,
        );
        let bounds = [0, dk, 2 * dk, 2 * dk + dv, 2 * dk + 2 * dv];
        let part = |index: usize| {
            let heads = values.chunks_exact(bounds[4] * columns);
            heads.flat_map(move |head| {
                head[bounds[index] * columns..bounds[index + 1] * columns].to_vec()
            })
        };
        let qkv: Vec<f32> = part(0).chain(part(1)).chain(part(2)).collect();
        let z: Vec<f32> = part(3).collect();
        let named = |end: &str| name.replace("in_proj_qkvz", end);
        let matrix = |values: Vec<f32>| (vec![values.len() / columns, columns], values);
        vec![
            (named("in_proj_qkv"), matrix(qkv)),
            (named("in_proj_z"), matrix(z)),
        ]
    }

    /// The elements times the multipliers of Falcon-H1.
    fn multiplied(&self, name: &str, shape: &[usize], values: &[f32]) -> Vec<f32> {
        if self.own != "falcon-h1" {
            return values.to_vec();
        }
        let number = |field: &str| self.config[field].as_f64().expect("a number");
        let of = |field: &str, index: usize| self.config[field][index].as_f64().expect("a number");
        let factor = match name {
            _ if name.contains("down_proj") => of("mlp_multipliers", 1),
            _ if name.contains("gate_proj") => of("mlp_multipliers", 0),
            _ if name.contains("k_proj") => {
                number("key_multiplier") * number("attention_in_multiplier")
            }
            _ if name.contains("q_proj") || name.contains("v_proj") => {
                number("attention_in_multiplier")
            }
            _ if name.contains("o_proj") => number("attention_out_multiplier"),
            _ if name.contains("out_proj") => number("ssm_out_multiplier"),
            _ if name.contains("in_proj") => number("ssm_in_multiplier"),
            _ if name.contains("lm_head") => number("lm_head_multiplier"),
            _ if name.contains("embed_tokens") => number("embedding_multiplier"),
            _ => 1.0,
        };
        let inner = self.size("mamba_n_heads") * self.size("mamba_d_head");
        let group = self.size("mamba_n_groups") * self.size("mamba_d_state");
        let ends = [
            inner,
            2 * inner,
            2 * inner + group,
            2 * inner + 2 * group,
            usize::MAX,
        ];
        let columns = shape.get(1).copied().unwrap_or(1);
        let value = |(at, value): (usize, &f32)| {
            let part = ends
                .iter()
                .position(|end| at / columns < *end)
                .expect("the last end is beyond all");
            let own = if name.contains("mamba.in_proj") {
                of("ssm_multipliers", part)
            } else {
                1.0
            };
            (f64::from(*value) * factor * own) as f32
        };
        values.iter().enumerate().map(value).collect()
    }
}
