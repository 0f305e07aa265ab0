//! The supported architectures, one row of data each: names and options of their files.

mod experts;
mod newest;
mod state;

use super::metadata::Metadata;
use crate::model::config;
use crate::model::error::LoadError;
use crate::model::stored::Stored;
use crate::model::tensor_names;
use experts::{
    AFMOE, ERNIE4_5_MOE, EXAONE_MOE, GRANITE_MOE_SHARED, HUNYUAN_MOE, HY_V3, MELLUM, MINIMAX_M2,
    MIXTRAL, OLMOE, QWEN3_VL_MOE,
};
use newest::{LAGUNA, LLAMA4, MISTRAL4};
use state::{
    FALCON_H1, GRANITE_HYBRID, LFM2, LFM2_MOE, NEMOTRON_H, NEMOTRON_H_MOE, QWEN3_NEXT, QWEN35,
    QWEN35_MOE,
};

/// How one architecture's GGUF files differ from the checkpoints they were converted from.
#[derive(Debug)]
pub(super) struct Family {
    /// `general.architecture`.
    pub(super) name: &'static str,
    /// The key (after the architecture's prefix) of an integer above zero that files of this row have; of rows with the
    /// same name, the first whose key a file has counts.
    pub(super) needed: Option<&'static str>,
    /// Name of the architecture in `config.json`.
    pub(super) architecture: &'static str,
    /// Whether rows of q and k are stored in the order of interleaved rotation.
    pub(super) interleaved: bool,
    /// Tensor names within a layer whose meaning differs from [`LAYER_NAMES`]. A name with its suffix stands for a
    /// whole name.
    pub(super) layer_names: &'static [(&'static str, &'static str)],
    /// What names of layers begin with in a checkpoint.
    pub(super) layers: &'static str,
    /// Tensor names outside layers that differ from [`WHOLE_NAMES`].
    pub(super) whole_names: &'static [(&'static str, &'static str)],
    /// Metadata keys of numbers (after the architecture's prefix) and their fields in `config.json`; zero counts as
    /// absent.
    pub(super) numbers: &'static [(&'static str, &'static str)],
    /// Fields of `config.json` that are true of every file.
    pub(super) set: &'static [&'static str],
    /// Fields of `config.json` that have this number in every file.
    pub(super) constants: &'static [(&'static str, f64)],
    /// The field of `config.json` for the size of MLPs.
    pub(super) mlp_field: &'static str,
    /// `norm_topk_prob` of files without `expert_weights_norm`.
    pub(super) normalizes: bool,
    pub(super) windows: Windows,
    /// Heads and MLPs differ by layer, as in Gemma 4.
    pub(super) sizes_by_layer: bool,
    /// The number of query heads differs by layer, and the rotation by whether a layer has a window, as in Laguna.
    pub(super) query_heads_by_layer: bool,
    /// The field of `config.json` that says what each layer is, which the tensors of a file say; `None`: all have
    /// attention.
    pub(super) kinds: Option<&'static str>,
    /// What tensors hold otherwise than those of a checkpoint.
    pub(super) stored: Stored<'static>,
    /// Models with this many layers divide q · k by √(hidden / heads) instead of √head_dim; no metadata key says so.
    pub(super) wide_layers: Option<u32>,
    /// Models with this many experts have no norms of q and k; no metadata key says so.
    pub(super) unnormed_experts: Option<u32>,
    /// Attention to a latent (MLA). Scores that are no softmax make the architecture DeepSeek V3.
    pub(super) latent: bool,
    /// The YaRN ramp may end at a fractional pair index; no metadata key says so.
    pub(super) fractional_ramp: bool,
}

/// The meaning of `attention.sliding_window`; zero counts as absent.
#[derive(Debug)]
pub(super) enum Windows {
    /// None: files may have the key, but no layer has a window.
    Ignored,
    /// If set, the architecture is this one.
    Architecture(&'static str),
    /// The same as in the config; the number is the default.
    Config(Option<u32>),
}

/// The weights of norms include the 1, and decays are no logarithms, whatever the checkpoint had. Gemma 4 is stored as
/// it is.
const STORED: Stored<'static> = Stored {
    norms_less_one: false,
    log_decays: false,
    ..Stored::CHECKPOINT
};

const LLAMA: Family = Family {
    name: "llama",
    needed: None,
    architecture: "LlamaForCausalLM",
    interleaved: true,
    layer_names: &[],
    layers: "model.layers",
    whole_names: &[],
    numbers: &[],
    set: &[],
    constants: &[],
    mlp_field: "intermediate_size",
    normalizes: true,
    // Mistral's files have the architecture llama, and most do not set the window.
    windows: Windows::Architecture("MistralForCausalLM"),
    sizes_by_layer: false,
    query_heads_by_layer: false,
    kinds: None,
    stored: STORED,
    wide_layers: None,
    unnormed_experts: None,
    latent: false,
    fractional_ramp: false,
};

/// Mistral with YaRN and growing queries; the text models of Mistral 3.
const MISTRAL3: Family = Family {
    name: "mistral3",
    architecture: "Ministral3ForCausalLM",
    windows: Windows::Config(None),
    ..LLAMA
};

const ARCEE: Family = Family {
    name: "arcee",
    architecture: "ArceeForCausalLM",
    windows: Windows::Ignored,
    ..LLAMA
};

const QWEN2: Family = Family {
    name: "qwen2",
    architecture: "Qwen2ForCausalLM",
    interleaved: false,
    windows: Windows::Ignored,
    ..LLAMA
};

const QWEN3: Family = Family {
    name: "qwen3",
    architecture: "Qwen3ForCausalLM",
    ..QWEN2
};

const QWEN3_MOE: Family = Family {
    name: "qwen3moe",
    architecture: "Qwen3MoeForCausalLM",
    numbers: &[
        ("expert_count", "num_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
    ],
    ..QWEN2
};

const QWEN2_MOE: Family = Family {
    name: "qwen2moe",
    architecture: "Qwen2MoeForCausalLM",
    layer_names: &[
        ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
        ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
        ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ],
    numbers: &[
        ("expert_count", "num_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
        (
            "expert_shared_feed_forward_length",
            "shared_expert_intermediate_size",
        ),
    ],
    normalizes: false,
    ..QWEN2
};

/// Norm weights are stored as `1 + w`, as in Gemma 2 and 3.
const GEMMA: Family = Family {
    name: "gemma",
    architecture: "GemmaForCausalLM",
    ..QWEN2
};

const GEMMA2: Family = Family {
    name: "gemma2",
    architecture: "Gemma2ForCausalLM",
    layer_names: &[("ffn_norm", "pre_feedforward_layernorm")],
    numbers: &[
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
    ],
    windows: Windows::Config(Some(4096)),
    wide_layers: Some(46),
    ..QWEN2
};

const GEMMA3: Family = Family {
    name: "gemma3",
    architecture: "Gemma3ForCausalLM",
    numbers: &[
        ("final_logit_softcapping", "final_logit_softcapping"),
        ("rope.freq_base_swa", "rope_local_base_freq"),
    ],
    windows: Windows::Config(None),
    wide_layers: Some(62),
    ..GEMMA2
};

const GEMMA4: Family = Family {
    name: "gemma4",
    architecture: "Gemma4ForCausalLM",
    layer_names: &[
        ("ffn_norm", "pre_feedforward_layernorm"),
        ("inp_gate", "per_layer_input_gate"),
        ("proj", "per_layer_projection"),
        ("post_norm", "post_per_layer_input_norm"),
        ("layer_output_scale.weight", "layer_scalar"),
        ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
        ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
        ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
        ("ffn_gate_inp.scale", "router.scale"),
        ("ffn_gate_inp", "router.proj"),
        ("ffn_gate_up_exps.weight", "experts.gate_up_proj"),
        ("ffn_down_exps.weight", "experts.down_proj"),
        ("ffn_down_exps.scale", "router.per_expert_scale"),
    ],
    numbers: &[
        ("final_logit_softcapping", "final_logit_softcapping"),
        (
            "embedding_length_per_layer_input",
            "hidden_size_per_layer_input",
        ),
        ("expert_count", "num_experts"),
        ("expert_used_count", "top_k_experts"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
    ],
    windows: Windows::Config(None),
    sizes_by_layer: true,
    ..QWEN2
};

const PHI3: Family = Family {
    name: "phi3",
    architecture: "Phi3ForCausalLM",
    layer_names: &[("ffn_up", "mlp.gate_up_proj")],
    windows: Windows::Config(None),
    ..QWEN2
};

const SMOLLM3: Family = Family {
    name: "smollm3",
    architecture: "SmolLM3ForCausalLM",
    windows: Windows::Ignored,
    ..LLAMA
};

/// OLMo 3 files also have the architecture olmo2.
const OLMO2: Family = Family {
    name: "olmo2",
    architecture: "Olmo2ForCausalLM",
    windows: Windows::Architecture("Olmo3ForCausalLM"),
    ..QWEN2
};

const EXAONE4: Family = Family {
    name: "exaone4",
    architecture: "Exaone4ForCausalLM",
    windows: Windows::Config(None),
    ..QWEN2
};

const SEED_OSS: Family = Family {
    name: "seed_oss",
    architecture: "SeedOssForCausalLM",
    ..QWEN2
};

/// Pairs rotate in the checkpoint, too: rows are stored as they are there.
const ERNIE4_5: Family = Family {
    name: "ernie4_5",
    architecture: "Ernie4_5ForCausalLM",
    ..QWEN2
};

/// Rows of q and k as in [`ERNIE4_5`].
const GLM4: Family = Family {
    name: "glm4",
    architecture: "Glm4ForCausalLM",
    layer_names: &[
        ("post_attention_norm", "post_self_attn_layernorm"),
        ("post_ffw_norm", "post_mlp_layernorm"),
        ("ffn_up", "mlp.gate_up_proj"),
    ],
    ..QWEN2
};

const GLM4_MOE: Family = Family {
    name: "glm4moe",
    architecture: "Glm4MoeForCausalLM",
    layer_names: &[
        ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
        ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
        ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ],
    numbers: &[
        ("expert_count", "n_routed_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
        ("expert_shared_count", "n_shared_experts"),
        ("expert_weights_scale", "routed_scaling_factor"),
        ("expert_group_count", "n_group"),
        ("expert_group_used_count", "topk_group"),
    ],
    ..QWEN2
};

/// DeepSeek V2 and V3, and GLM 4.7 Flash.
const DEEPSEEK2: Family = Family {
    name: "deepseek2",
    architecture: "DeepseekV2ForCausalLM",
    layer_names: &[
        ("attn_q_a", "self_attn.q_a_proj"),
        ("attn_q_a_norm", "self_attn.q_a_layernorm"),
        ("attn_q_b", "self_attn.q_b_proj"),
        ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
        ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
        ("attn_kv_b", "self_attn.kv_b_proj"),
        ("attn_k_b", "self_attn.k_b_proj"),
        ("attn_v_b", "self_attn.v_b_proj"),
        ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
        ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
        ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ],
    latent: true,
    ..GLM4_MOE
};

/// Granite, and Granite 4 without Mamba layers.
const GRANITE: Family = Family {
    name: "granite",
    architecture: "GraniteForCausalLM",
    numbers: &[
        ("attention.scale", "attention_multiplier"),
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("logit_scale", "logits_scaling"),
    ],
    windows: Windows::Ignored,
    ..LLAMA
};

const GRANITE_MOE: Family = Family {
    name: "granitemoe",
    architecture: "GraniteMoeForCausalLM",
    numbers: &[
        ("attention.scale", "attention_multiplier"),
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("logit_scale", "logits_scaling"),
        ("expert_count", "num_local_experts"),
        ("expert_used_count", "num_experts_per_tok"),
    ],
    // Each expert has its own tensors.
    stored: Stored {
        tensors: Some(&tensor_names::QWEN3_MOE),
        ..STORED
    },
    ..GRANITE
};

const GPT_OSS: Family = Family {
    name: "gpt-oss",
    architecture: "GptOssForCausalLM",
    layer_names: &[("attn_sinks.weight", "self_attn.sinks")],
    numbers: &[
        ("expert_count", "num_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "intermediate_size"),
    ],
    windows: Windows::Config(None),
    fractional_ramp: true,
    stored: Stored {
        tensors: Some(&tensor_names::GPT_OSS_APART),
        ..STORED
    },
    ..QWEN2
};

/// The base of the rotation includes the factor of NTK.
const HUNYUAN_DENSE: Family = Family {
    name: "hunyuan-dense",
    architecture: "HunYuanDenseV1ForCausalLM",
    layer_names: &[
        ("attn_q_norm", "self_attn.query_layernorm"),
        ("attn_k_norm", "self_attn.key_layernorm"),
    ],
    ..QWEN2
};

/// Rows of q and k as in [`ERNIE4_5`].
const COHERE2: Family = Family {
    name: "cohere2",
    architecture: "Cohere2ForCausalLM",
    numbers: &[("logit_scale", "logit_scale")],
    windows: Windows::Config(Some(4096)),
    ..QWEN2
};

/// The numbers of xIELU are metadata.
const APERTUS: Family = Family {
    name: "apertus",
    architecture: "ApertusForCausalLM",
    layer_names: &[
        ("attn_norm", "attention_layernorm"),
        ("ffn_norm", "feedforward_layernorm"),
    ],
    ..QWEN2
};

const STARCODER2: Family = Family {
    name: "starcoder2",
    architecture: "Starcoder2ForCausalLM",
    layer_names: &[("ffn_up", "mlp.c_fc"), ("ffn_down", "mlp.c_proj")],
    windows: Windows::Config(None),
    ..QWEN2
};

/// To add an architecture, add a row here.
const FAMILIES: [&Family; 56] = [
    &MIXTRAL,
    &LLAMA,
    &QWEN2,
    &QWEN2_MOE,
    &QWEN3,
    &QWEN3_MOE,
    &GEMMA,
    &GEMMA2,
    &GEMMA3,
    &GEMMA4,
    &PHI3,
    &SMOLLM3,
    &OLMO2,
    &EXAONE4,
    &SEED_OSS,
    &ERNIE4_5,
    &GLM4,
    &GLM4_MOE,
    &DEEPSEEK2,
    &GRANITE,
    &GRANITE_MOE_SHARED,
    &GRANITE_MOE,
    &GPT_OSS,
    &MISTRAL3,
    &HUNYUAN_DENSE,
    &COHERE2,
    &ARCEE,
    &APERTUS,
    &STARCODER2,
    &LFM2,
    &LFM2_MOE,
    &QWEN35,
    &QWEN35_MOE,
    &QWEN3_NEXT,
    &GRANITE_HYBRID,
    &NEMOTRON_H,
    &NEMOTRON_H_MOE,
    &FALCON_H1,
    &OLMOE,
    &MELLUM,
    &GLM,
    &HY_V3,
    &EXAONE,
    &EXAONE_MOE,
    &HUNYUAN_MOE,
    &QWEN2_VL,
    &QWEN3_VL,
    &QWEN3_VL_MOE,
    &MINIMAX_M2,
    &ERNIE4_5_MOE,
    &AFMOE,
    &PHI,
    &COHERE,
    &LLAMA4,
    &MISTRAL4,
    &LAGUNA,
];

/// GLM 4 9B. Rows of q and k as in [`ERNIE4_5`]; q, k and v may be one tensor.
const GLM: Family = Family {
    name: "chatglm",
    architecture: "GlmForCausalLM",
    layer_names: &[("ffn_up", "mlp.gate_up_proj")],
    ..QWEN2
};

/// EXAONE 3 and 3.5.
const EXAONE: Family = Family {
    name: "exaone",
    architecture: "ExaoneForCausalLM",
    layers: "transformer.h",
    whole_names: &[
        ("token_embd", "transformer.wte"),
        ("output_norm", "transformer.ln_f"),
    ],
    layer_names: &[
        ("attn_norm", "ln_1"),
        ("ffn_norm", "ln_2"),
        ("attn_q", "attn.attention.q_proj"),
        ("attn_k", "attn.attention.k_proj"),
        ("attn_v", "attn.attention.v_proj"),
        ("attn_output", "attn.attention.out_proj"),
        ("ffn_gate", "mlp.c_fc_0"),
        ("ffn_up", "mlp.c_fc_1"),
        ("ffn_down", "mlp.c_proj"),
    ],
    ..QWEN2
};

/// Phi 1, 1.5 and 2. q, k and v may be one tensor.
const PHI: Family = Family {
    name: "phi2",
    architecture: "PhiForCausalLM",
    whole_names: &[("output_norm", "model.final_layernorm")],
    layer_names: &[
        ("attn_output", "self_attn.dense"),
        ("ffn_up", "mlp.fc1"),
        ("ffn_down", "mlp.fc2"),
    ],
    ..QWEN2
};

/// Command R. Rows of q and k as in [`ERNIE4_5`].
const COHERE: Family = Family {
    name: "command-r",
    architecture: "CohereForCausalLM",
    numbers: &[("logit_scale", "logit_scale")],
    ..QWEN2
};

/// The text model of Qwen 2 and 2.5 VL.
const QWEN2_VL: Family = Family {
    name: "qwen2vl",
    architecture: "Qwen2_5_VLForConditionalGeneration",
    ..QWEN2
};

/// The text model of Qwen 3 VL.
const QWEN3_VL: Family = Family {
    name: "qwen3vl",
    architecture: "Qwen3VLForConditionalGeneration",
    ..QWEN3
};

/// Names of tensors outside layers, in GGUF and in a checkpoint, without `.weight` and `.bias`.
const WHOLE_NAMES: [(&str, &str); 6] = [
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    ("output", "lm_head"),
    ("per_layer_token_embd", "model.embed_tokens_per_layer"),
    ("per_layer_model_proj", "model.per_layer_model_projection"),
    ("per_layer_proj_norm", "model.per_layer_projection_norm"),
];

/// The same within a layer. For names with `{e}`, GGUF has one tensor for all experts and a checkpoint one per expert.
const LAYER_NAMES: [(&str, &str); 18] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.{e}.gate_proj"),
    ("ffn_up_exps", "mlp.experts.{e}.up_proj"),
    ("ffn_down_exps", "mlp.experts.{e}.down_proj"),
];

/// Keys (after the architecture's prefix) that only models with certain layers have, and what these layers compute.
const UNSUPPORTED: [(&str, &str); 1] = [(
    "ssm.state_size",
    "layers with a recurrent state of another form",
)];

/// The row for a file's architecture.
pub(super) fn family(metadata: &Metadata) -> Result<&'static Family, LoadError> {
    let key = "general.architecture";
    let found = metadata.required(key, metadata.text(key)?)?;
    for family in FAMILIES {
        if family.name == found && family.fits(metadata)? {
            return Ok(family);
        }
    }
    let mut names = FAMILIES.map(|family| family.name).to_vec();
    names.dedup();
    let lacking = UNSUPPORTED
        .iter()
        .find(|(key, _)| metadata.get(&format!("{found}.{key}")).is_some());
    Err(LoadError::Architecture {
        file: metadata.file().into(),
        found: found.into(),
        hint: config::hint(found, &names, lacking),
        known: names.join(", "),
    })
}

impl Family {
    /// Whether a file of this architecture is one of this row.
    fn fits(&self, metadata: &Metadata) -> Result<bool, LoadError> {
        let Some(key) = self.needed else {
            return Ok(true);
        };
        let found = metadata.integer(&self.key(key), 0..=1 << 24)?;
        Ok(found.unwrap_or(0) > 0)
    }

    /// Whether layers may keep a state.
    pub(super) fn keeps_states(&self) -> bool {
        self.kinds.is_some() || self.name == FALCON_H1.name
    }

    /// The checkpoint's shape of a tensor, by its name there; the file may have other dimensions of the same elements.
    pub(super) fn tensor_shape(&self, name: &str, stored: &[u64]) -> Vec<u64> {
        let ends = |names: &[&str]| names.iter().any(|end| name.ends_with(end));
        match stored {
            // A matrix of one row may be stored as a vector.
            [columns] if ends(&[".shared_expert_gate.weight"]) => vec![1, *columns],
            [channels, taps] if ends(&[".conv1d.weight", ".conv.conv.weight"]) => {
                vec![*channels, 1, *taps]
            }
            [rows, columns]
                if ends(&[".A_log", ".D", ".mamba.norm.weight", ".mixer.norm.weight"]) =>
            {
                vec![rows * columns]
            }
            _ => stored.to_vec(),
        }
    }

    /// The checkpoint's name of a tensor; with `{e}`, of the tensors it is split into. Unknown names are kept.
    pub(super) fn tensor_name(&self, own: &str) -> String {
        let find = |names: &[(&str, &'static str)], stem: &str| {
            names
                .iter()
                .find(|(name, _)| *name == stem)
                .map(|(_, theirs)| *theirs)
        };
        let Some((stem, suffix)) = own.rsplit_once('.') else {
            return own.into();
        };
        if let Some(theirs) = find(self.whole_names, stem).or_else(|| find(&WHOLE_NAMES, stem)) {
            return format!("{theirs}.{suffix}");
        }
        let Some((layer, name)) = own
            .strip_prefix("blk.")
            .and_then(|rest| rest.split_once('.'))
        else {
            return own.into();
        };
        if let Some(theirs) = find(self.layer_names, name) {
            return format!("{}.{layer}.{theirs}", self.layers);
        }
        let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
        match find(self.layer_names, stem).or_else(|| find(&LAYER_NAMES, stem)) {
            Some(theirs) => format!("{}.{layer}.{theirs}.{suffix}", self.layers),
            None => own.into(),
        }
    }

    /// Rows per head, if the heads of a tensor of `part` are stored interleaved. Of a split model, only the `first`
    /// file says how large a head is.
    pub(super) fn interleaved_head(
        &self,
        own: &str,
        part: &Metadata,
        first: &Metadata,
    ) -> Result<Option<usize>, LoadError> {
        let is_rotated = [
            ".attn_q.weight",
            ".attn_k.weight",
            ".attn_q.bias",
            ".attn_k.bias",
        ];
        let is_rotated = is_rotated.iter().any(|name| own.ends_with(name));
        if !self.interleaved || !is_rotated {
            return Ok(None);
        }
        let head = self.head_dim(first)?;
        let rows = part
            .tensors()
            .find(|(name, _)| *name == own)
            .map_or(0, |(_, entry)| entry.shape[0]);
        if !rows.is_multiple_of(u64::from(head)) || head % 2 != 0 {
            let message = format!("has {rows} rows, not a multiple of the head size {head}");
            return Err(part.invalid(&format!("tensor {own:?}"), message));
        }
        Ok(Some(head as usize))
    }

    /// A key with the architecture's prefix.
    pub(super) fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }

    pub(super) fn integer(&self, metadata: &Metadata, key: &str) -> Result<Option<u32>, LoadError> {
        metadata.integer(&self.key(key), 1..=1 << 24)
    }

    pub(super) fn required(&self, metadata: &Metadata, key: &str) -> Result<u32, LoadError> {
        metadata.required(&self.key(key), self.integer(metadata, key)?)
    }

    /// Elements of a head; of a layer without a window, where that makes a difference.
    pub(super) fn head_dim(&self, metadata: &Metadata) -> Result<u32, LoadError> {
        if let Some(dim) = self.integer(metadata, "attention.key_length")? {
            return Ok(dim);
        }
        let (hidden, heads) = (
            self.required(metadata, "embedding_length")?,
            self.required(metadata, "attention.head_count")?,
        );
        if hidden % heads != 0 {
            let message = format!("is {heads}, which does not divide embedding_length = {hidden}");
            return Err(metadata.invalid(&self.key("attention.head_count"), message));
        }
        Ok(hidden / heads)
    }
}
