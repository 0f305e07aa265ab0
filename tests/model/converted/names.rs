//! Names of tensors in a checkpoint and in a file.

use super::Checkpoint;

/// Names of tensors outside layers, in a checkpoint and in a file.
const WHOLE_NAMES: [(&str, &str); 12] = [
    ("transformer.wte", "token_embd"),
    ("transformer.ln_f", "output_norm"),
    ("model.embed_tokens_per_layer", "per_layer_token_embd"),
    ("model.per_layer_model_projection", "per_layer_model_proj"),
    ("model.per_layer_projection_norm", "per_layer_proj_norm"),
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("backbone.embeddings", "token_embd"),
    ("backbone.norm_f", "output_norm"),
    ("model.final_layernorm", "output_norm"),
    ("model.embedding_norm", "token_embd_norm"),
    ("lm_head", "output"),
];

/// Names within a layer that have no suffix in a checkpoint.
const SUFFIXLESS_NAMES: [(&str, &str); 6] = [
    ("layer_scalar", "layer_output_scale.weight"),
    ("router.scale", "ffn_gate_inp.scale"),
    ("router.per_expert_scale", "ffn_down_exps.scale"),
    ("experts.gate_up_proj", "ffn_gate_up_exps.weight"),
    ("experts.down_proj", "ffn_down_exps.weight"),
    ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
];

impl Checkpoint {
    pub(in super::super) fn own_name(&self, name: &str) -> String {
        let rest = name
            .strip_prefix("model.layers.")
            .or(name.strip_prefix("backbone.layers."))
            .or(name.strip_prefix("transformer.h."));
        let Some((layer, name)) = rest.and_then(|rest| rest.split_once('.')) else {
            return WHOLE_NAMES
                .into_iter()
                .fold(name.to_owned(), |name, (theirs, own)| {
                    name.replace(theirs, own)
                });
        };
        if let Some(own) = self.state_name(name).or_else(|| self.experts_name(name)) {
            return format!("blk.{layer}.{own}");
        }
        let whole = SUFFIXLESS_NAMES
            .iter()
            .find(|(theirs, _)| *theirs == name)
            .map(|(_, own)| *own);
        if let Some(whole) = whole {
            return format!("blk.{layer}.{whole}");
        }
        let (stem, suffix) = name.rsplit_once('.').expect("a name has parts");
        let own = match stem {
            "input_layernorm" | "attention_layernorm" => "attn_norm",
            "self_attn.q_proj" => "attn_q",
            "self_attn.k_proj" => "attn_k",
            "self_attn.v_proj" => "attn_v",
            "self_attn.qkv_proj" => "attn_qkv",
            "self_attn.q_a_proj" => "attn_q_a",
            "self_attn.q_a_layernorm" => "attn_q_a_norm",
            "self_attn.q_b_proj" => "attn_q_b",
            "self_attn.kv_a_proj_with_mqa" => "attn_kv_a_mqa",
            "self_attn.kv_a_layernorm" => "attn_kv_a_norm",
            "self_attn.kv_b_proj" => "attn_kv_b",
            "self_attn.k_b_proj" => "attn_k_b",
            "self_attn.v_b_proj" => "attn_v_b",
            "self_attn.o_proj" => "attn_output",
            "self_attn.q_norm" | "self_attn.query_layernorm" => "attn_q_norm",
            "self_attn.k_norm" | "self_attn.key_layernorm" => "attn_k_norm",
            "self_attn" if suffix == "sinks" => return format!("blk.{layer}.attn_sinks.weight"),
            "post_attention_layernorm" => match self.own {
                "afmoe" => "post_attention_norm",
                "gemma2" | "gemma3" | "gemma4" | "olmo2" | "exaone4" | "gpt-oss" | "seed_oss"
                | "glm4moe" | "qwen35" | "qwen35moe" | "qwen3next" => "post_attention_norm",
                _ => "ffn_norm",
            },
            "pre_feedforward_layernorm" | "feedforward_layernorm" => "ffn_norm",
            "post_self_attn_layernorm" => "post_attention_norm",
            "post_feedforward_layernorm" | "post_mlp_layernorm" => "post_ffw_norm",
            "post_feedforward_layernorm_1" => "post_ffw_norm_1",
            "post_feedforward_layernorm_2" => "post_ffw_norm_2",
            "pre_feedforward_layernorm_2" => "pre_ffw_norm_2",
            "per_layer_input_gate" => "inp_gate",
            "per_layer_projection" => "proj",
            "post_per_layer_input_norm" => "post_norm",
            "mlp.gate_proj" | "shared_mlp.gate_proj" => "ffn_gate",
            "mlp.up_proj" | "mlp.gate_up_proj" | "mlp.c_fc" | "shared_mlp.up_proj" => "ffn_up",
            "mlp.down_proj" | "mlp.c_proj" | "shared_mlp.output_linear" => "ffn_down",
            "mlp.gate" | "mlp.router" | "router.proj" | "block_sparse_moe.router.layer" => {
                "ffn_gate_inp"
            }
            "mlp.shared_expert_gate" => "ffn_gate_inp_shexp",
            "mlp.shared_expert.gate_proj" | "mlp.shared_experts.gate_proj" => "ffn_gate_shexp",
            "mlp.shared_expert.up_proj" | "mlp.shared_experts.up_proj" => "ffn_up_shexp",
            "mlp.shared_expert.down_proj" | "mlp.shared_experts.down_proj" => "ffn_down_shexp",
            "block_sparse_moe.gate_proj" => "ffn_gate_exps",
            "block_sparse_moe.up_proj" => "ffn_up_exps",
            "block_sparse_moe.output_linear" => "ffn_down_exps",
            "mlp.experts.gate_proj" => "ffn_gate_exps",
            "mlp.experts.up_proj" => "ffn_up_exps",
            "mlp.experts.down_proj" => "ffn_down_exps",
            "eh_proj" => "nextn.eh_proj",
            "enorm" => "nextn.enorm",
            "hnorm" => "nextn.hnorm",
            "shared_head.norm" => "nextn.shared_head_norm",
            "shared_head.head" => "nextn.shared_head_head",
            "embed_tokens" => "nextn.embed_tokens",
            other => panic!("{other} has no name in GGUF"),
        };
        format!("blk.{layer}.{own}.{suffix}")
    }
}
