//! Newer families as GGUF files, most with experts: their keys and names.

use super::orders::transposed;
use super::{Builder, Checkpoint, Item, Values};

/// How tensors are called in a file, where the name in a checkpoint is not one of a kind.
const NAMES: [(&str, &str); 38] = [
    ("self_attn.g_proj", "attn_gate"),
    ("mlp.experts.e_score_correction_bias", "exp_probs_b.bias"),
    ("feed_forward.gate_proj", "ffn_gate"),
    ("feed_forward.up_proj", "ffn_up"),
    ("feed_forward.down_proj", "ffn_down"),
    ("feed_forward.router", "ffn_gate_inp"),
    ("feed_forward.experts.gate_proj", "ffn_gate_exps"),
    ("feed_forward.experts.up_proj", "ffn_up_exps"),
    ("feed_forward.experts.down_proj", "ffn_down_exps"),
    ("feed_forward.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("feed_forward.shared_expert.up_proj", "ffn_up_shexp"),
    ("feed_forward.shared_expert.down_proj", "ffn_down_shexp"),
    (
        "mlp.moe_statics.e_score_correction_bias",
        "exp_probs_b.bias",
    ),
    ("pre_mlp_layernorm", "ffn_norm"),
    ("self_attn.gate_proj", "attn_gate"),
    (
        "block_sparse_moe.e_score_correction_bias",
        "exp_probs_b.bias",
    ),
    ("self_attn.dense", "attn_output"),
    ("mlp.fc1", "ffn_up"),
    ("mlp.fc2", "ffn_down"),
    ("ln_1", "attn_norm"),
    ("ln_2", "ffn_norm"),
    ("attn.attention.q_proj", "attn_q"),
    ("attn.attention.k_proj", "attn_k"),
    ("attn.attention.v_proj", "attn_v"),
    ("attn.attention.out_proj", "attn_output"),
    ("mlp.c_fc_0", "ffn_gate"),
    ("mlp.c_fc_1", "ffn_up"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
    ("block_sparse_moe.experts.w1", "ffn_gate_exps"),
    ("block_sparse_moe.experts.w3", "ffn_up_exps"),
    ("block_sparse_moe.experts.w2", "ffn_down_exps"),
    ("mlp.router.gate", "ffn_gate_inp"),
    ("mlp.gate.wg", "ffn_gate_inp"),
    ("mlp.shared_mlp.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_mlp.up_proj", "ffn_up_shexp"),
    ("mlp.shared_mlp.down_proj", "ffn_down_shexp"),
    ("mlp.expert_bias", "exp_probs_b.bias"),
    ("mlp.e_score_correction_bias", "exp_probs_b.bias"),
];

/// Names of the MLP that every token passes in Granite; Granite 4 without experts has it as its only one.
const SHARED_GRANITE: [(&str, &str); 3] = [
    ("shared_mlp.gate_proj.weight", "ffn_gate_shexp.weight"),
    ("shared_mlp.up_proj.weight", "ffn_up_shexp.weight"),
    ("shared_mlp.output_linear.weight", "ffn_down_shexp.weight"),
];

impl Checkpoint {
    /// Writes keys of experts.
    pub(super) fn write_experts(&self, file: &mut Builder) {
        let key = |key: &str| format!("{}.{key}", self.own);
        let shared = match self.own {
            "granitemoe" => self.whole("shared_intermediate_size"),
            "hunyuan-moe" => self.whole("intermediate_size"),
            _ => None,
        };
        if let Some(shared) = shared {
            file.set(&key("expert_shared_feed_forward_length"), Item::U32(shared));
        }
        let count = self
            .whole("num_shared_experts")
            .or(self.whole("num_shared_expert"))
            .or(self.whole("moe_num_shared_experts"));
        if let Some(count) = count {
            file.set(&key("expert_shared_count"), Item::U32(count));
        }
        for field in [
            "routed_scaling_factor",
            "router_scaling_factor",
            "route_scale",
            "moe_routed_scaling_factor",
        ] {
            if let Some(factor) = self.config[field].as_f64() {
                file.set(&key("expert_weights_scale"), Item::F32(factor as f32));
            }
        }
        let step = self.whole("moe_layer_interval");
        if let Some(step) = step.or(self.whole("interleave_moe_layer_step")) {
            file.set(&key("interleave_moe_layer_step"), Item::U32(step));
        }
        if let Some(dense) = self.whole("intermediate_size_mlp") {
            file.set(&key("feed_forward_length"), Item::U32(dense));
        }
        let dense = self.whole("num_dense_layers");
        if let Some(dense) = dense.or(self.whole("moe_layer_start_index")) {
            file.set(&key("leading_dense_block_count"), Item::U32(dense));
        }
        if self.own == "laguna" {
            self.write_laguna(file);
        }
        if matches!(self.own, "hy_v3" | "exaone-moe" | "laguna") {
            let kinds = self.config["mlp_layer_types"].as_array().expect("a list");
            let dense = kinds.iter().filter(|kind| *kind == "dense").count();
            file.set(&key("leading_dense_block_count"), Item::U32(dense as u32));
            file.set(&key("expert_gating_func"), Item::U32(2));
            file.set(&key("expert_weights_norm"), Item::Boolean(true));
        }
    }

    /// The query heads of each layer, and the rotated elements of each kind of layer.
    fn write_laguna(&self, file: &mut Builder) {
        let key = |key: &str| format!("{}.{key}", self.own);
        let heads = self.config["num_attention_heads_per_layer"].as_array();
        let heads = heads.expect("a list").iter();
        let heads = heads.map(|heads| heads.as_u64().expect("a number") as u32);
        file.set(&key("attention.head_count"), Item::I32s(heads.collect()));
        let shared = self
            .whole("shared_expert_intermediate_size")
            .expect("a size");
        file.set(&key("expert_shared_feed_forward_length"), Item::U32(shared));
        for (kind, own) in [
            ("full_attention", "rope.dimension_count"),
            ("sliding_attention", "rope.dimension_count_swa"),
        ] {
            let fraction = self.config["rope_parameters"][kind]["partial_rotary_factor"].as_f64();
            let rotated = fraction.expect("a fraction") * f64::from(self.head_dim());
            file.set(&key(own), Item::U32(rotated as u32));
        }
    }

    /// The name of a tensor in a file, if it is one of these families' own.
    pub(super) fn experts_name(&self, name: &str) -> Option<String> {
        let find = |names: &[(&str, &str)], name: &str| {
            let found = names.iter().find(|(theirs, _)| *theirs == name);
            found.map(|(_, own)| (*own).to_owned())
        };
        if self.own == "granitemoe"
            && let Some(own) = find(&SHARED_GRANITE, name)
        {
            return Some(own);
        }
        let (stem, suffix) = name.rsplit_once('.').unwrap_or((name, ""));
        find(&NAMES, name).or_else(|| Some(format!("{}.{suffix}", find(&NAMES, stem)?)))
    }

    /// Experts in one tensor, most stored by columns: by rows, with gate and up apart.
    pub(super) fn changed_experts(
        &self,
        name: &str,
        shape: &[usize],
        values: &[f32],
    ) -> Option<Vec<(String, Values)>> {
        let has_stacks = matches!(self.own, "qwen3vlmoe" | "llama4" | "mistral4");
        if !has_stacks || !name.contains(".experts.") {
            return None;
        }
        let by_rows = match self.own {
            "mistral4" => (shape.to_vec(), values.to_vec()),
            _ => transposed(shape, values),
        };
        if name.ends_with("down_proj") {
            return Some(vec![(format!("{name}.weight"), by_rows)]);
        }
        let (mut shape, values) = by_rows;
        shape[1] /= 2;
        let half = |odd: usize, part: &str| {
            let halves = values.chunks_exact(shape[1] * shape[2]);
            let rows = halves.skip(odd).step_by(2).flatten().copied().collect();
            let name = name.replace("gate_up_proj", part);
            (format!("{name}.weight"), (shape.clone(), rows))
        };
        Some(vec![half(0, "gate_proj"), half(1, "up_proj")])
    }
}
