//! Tensor names in each family's checkpoints: one [`TensorNames`] table per naming scheme.

mod state;

pub(super) use state::{
    FALCON_H1, GRANITE_HYBRID, LFM2, LFM2_MOE, LFM3, NEMOTRON_H, OLMO_HYBRID, QWEN3_5, QWEN3_5_MOE,
    QWEN3_NEXT,
};

/// The tensor names of a family. In names of a layer, `{}` is the layer's number.
#[derive(Debug, PartialEq)]
pub(super) struct TensorNames {
    pub(super) embedding: &'static str,
    pub(super) final_norm: &'static str,
    pub(super) final_norm_bias: &'static str,
    /// The table of the layers' own embeddings, their projection and its norm.
    pub(super) layer_embedding: [&'static str; 3],
    pub(super) head: &'static str,
    pub(super) layer: &'static [&'static [LayerNames]],
}

/// Tensors whose rows are stacked to form the plan's weight `layers.N.<weight>`. Names with `{e}` stand for one tensor
/// per expert, repeated for each expert in turn. A table may have several for a weight: the first that a checkpoint has
/// counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LayerNames {
    pub(super) weight: &'static str,
    pub(super) tensors: &'static [&'static str],
    pub(super) order: Order,
}

/// How the elements of a tensor are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// In the order of the weight's rows.
    Rows,
    /// All experts stacked in one tensor, `[experts, rows, columns]`.
    Experts,
    /// Like `Experts`, with alternating rows of gate and up.
    ExpertsInterleaved,
    /// All experts in one tensor, `[experts, columns, rows]`; a bias is `[experts, rows]`.
    Transposed,
    /// Like `Transposed`, with alternating rows of gate and up.
    TransposedInterleaved,
    /// Of latents, the keys' part of a product for keys and values: `[heads · (keys + values), columns]`, for each head
    /// rows of keys, then of values. The weight has the columns of a head as its rows: `[heads, columns, keys]`.
    HeadKeys,
    /// The values' part of the same tensor: `[heads, values, columns]`.
    HeadValues,
    /// q, k and v; each head of q is followed by as many rows of its output's gate.
    GatedHeads,
    /// The input of a state: z, channels, gates.
    ZFirst,
    /// The input of a state, apart: the channels of q, k and v, then z, then b and a.
    Apart,
    /// The input of a state: for each key head q, k, its v, its z; then for each key head its b and its a.
    KeyHeads,
    /// The input of a state: channels; z; then for each key head its b and its a.
    KeyHeadGates,
}

impl Order {
    /// The stored position of row `row` of the `rows` rows of an expert.
    pub(super) fn stored_row(self, row: usize, rows: usize) -> usize {
        match self {
            Self::ExpertsInterleaved | Self::TransposedInterleaved => {
                row % (rows / 2) * 2 + row / (rows / 2)
            }
            _ => row,
        }
    }
}

const fn names(weight: &'static str, tensors: &'static [&'static str]) -> LayerNames {
    LayerNames {
        weight,
        tensors,
        order: Order::Rows,
    }
}

const fn stacked(
    weight: &'static str,
    tensors: &'static [&'static str],
    order: Order,
) -> LayerNames {
    LayerNames {
        weight,
        tensors,
        order,
    }
}

/// Stacked q, k and v, and the output projection.
const ATTENTION: &[LayerNames] = &[
    names(
        "qkv",
        &[
            "model.layers.{}.self_attn.q_proj.weight",
            "model.layers.{}.self_attn.k_proj.weight",
            "model.layers.{}.self_attn.v_proj.weight",
        ],
    ),
    names(
        "qkv_bias",
        &[
            "model.layers.{}.self_attn.q_proj.bias",
            "model.layers.{}.self_attn.k_proj.bias",
            "model.layers.{}.self_attn.v_proj.bias",
        ],
    ),
    names("q_norm", &["model.layers.{}.self_attn.q_norm.weight"]),
    names("k_norm", &["model.layers.{}.self_attn.k_norm.weight"]),
    names("output", &["model.layers.{}.self_attn.o_proj.weight"]),
    names("output_bias", &["model.layers.{}.self_attn.o_proj.bias"]),
];

/// Stacked gate and up, and down.
const GATED_MLP: &[LayerNames] = &[
    names(
        "gate_up",
        &[
            "model.layers.{}.mlp.gate_proj.weight",
            "model.layers.{}.mlp.up_proj.weight",
        ],
    ),
    names(
        "gate_up_bias",
        &[
            "model.layers.{}.mlp.gate_proj.bias",
            "model.layers.{}.mlp.up_proj.bias",
        ],
    ),
    names("down", &["model.layers.{}.mlp.down_proj.weight"]),
    names("down_bias", &["model.layers.{}.mlp.down_proj.bias"]),
];

/// [`ATTENTION`], already stacked in the checkpoint.
const FUSED_ATTENTION: &[LayerNames] = &[
    names("qkv", &["model.layers.{}.self_attn.qkv_proj.weight"]),
    names("output", &["model.layers.{}.self_attn.o_proj.weight"]),
];

/// [`GATED_MLP`], already stacked in the checkpoint.
const FUSED_MLP: &[LayerNames] = &[
    names("gate_up", &["model.layers.{}.mlp.gate_up_proj.weight"]),
    names("down", &["model.layers.{}.mlp.down_proj.weight"]),
];

/// A norm before attention and one before the MLP.
const NORMS_BEFORE: &[LayerNames] = &[
    names(
        "attention_norm",
        &["model.layers.{}.input_layernorm.weight"],
    ),
    names(
        "mlp_norm",
        &["model.layers.{}.post_attention_layernorm.weight"],
    ),
];

/// Norms on both sides of attention and of the MLP.
const NORMS_AROUND: &[LayerNames] = &[
    names(
        "attention_norm",
        &["model.layers.{}.input_layernorm.weight"],
    ),
    names(
        "attention_post_norm",
        &["model.layers.{}.post_attention_layernorm.weight"],
    ),
    names(
        "mlp_norm",
        &["model.layers.{}.pre_feedforward_layernorm.weight"],
    ),
    names(
        "mlp_post_norm",
        &["model.layers.{}.post_feedforward_layernorm.weight"],
    ),
];

/// A norm after attention and one after the MLP.
const NORMS_AFTER: &[LayerNames] = &[
    names(
        "attention_post_norm",
        &["model.layers.{}.post_attention_layernorm.weight"],
    ),
    names(
        "mlp_post_norm",
        &["model.layers.{}.post_feedforward_layernorm.weight"],
    ),
];

/// Experts with separate tensors: three matrices each, and possibly biases in GGUF.
const EXPERTS_APART: &[LayerNames] = &[
    names("router", &["model.layers.{}.mlp.gate.weight"]),
    names("router_bias", &["model.layers.{}.mlp.gate.bias"]),
    names(
        "expert_gate_up_bias",
        &[
            "model.layers.{}.mlp.experts.{e}.gate_proj.bias",
            "model.layers.{}.mlp.experts.{e}.up_proj.bias",
        ],
    ),
    names(
        "expert_down_bias",
        &["model.layers.{}.mlp.experts.{e}.down_proj.bias"],
    ),
    names(
        "expert_gate_up",
        &[
            "model.layers.{}.mlp.experts.{e}.gate_proj.weight",
            "model.layers.{}.mlp.experts.{e}.up_proj.weight",
        ],
    ),
    names(
        "expert_down",
        &["model.layers.{}.mlp.experts.{e}.down_proj.weight"],
    ),
];

/// Norms around, with the names of GLM 4.
const NORMS_AROUND_GLM: &[LayerNames] = &[
    names(
        "attention_norm",
        &["model.layers.{}.input_layernorm.weight"],
    ),
    names(
        "attention_post_norm",
        &["model.layers.{}.post_self_attn_layernorm.weight"],
    ),
    names(
        "mlp_norm",
        &["model.layers.{}.post_attention_layernorm.weight"],
    ),
    names(
        "mlp_post_norm",
        &["model.layers.{}.post_mlp_layernorm.weight"],
    ),
];

/// Experts of Granite: all in one tensor.
const GRANITE_EXPERTS: &[LayerNames] = &[
    names(
        "router",
        &["model.layers.{}.block_sparse_moe.router.layer.weight"],
    ),
    stacked(
        "expert_gate_up",
        &["model.layers.{}.block_sparse_moe.input_linear.weight"],
        Order::Experts,
    ),
    stacked(
        "expert_down",
        &["model.layers.{}.block_sparse_moe.output_linear.weight"],
        Order::Experts,
    ),
];

/// Experts of gpt-oss: all in one tensor.
const GPT_OSS_EXPERTS: &[LayerNames] = &[
    names("router", &["model.layers.{}.mlp.router.weight"]),
    names("router_bias", &["model.layers.{}.mlp.router.bias"]),
    stacked(
        "expert_gate_up",
        &["model.layers.{}.mlp.experts.gate_up_proj"],
        Order::TransposedInterleaved,
    ),
    stacked(
        "expert_gate_up_bias",
        &["model.layers.{}.mlp.experts.gate_up_proj_bias"],
        Order::TransposedInterleaved,
    ),
    stacked(
        "expert_down",
        &["model.layers.{}.mlp.experts.down_proj"],
        Order::Transposed,
    ),
    stacked(
        "expert_down_bias",
        &["model.layers.{}.mlp.experts.down_proj_bias"],
        Order::Transposed,
    ),
];

const SINKS: &[LayerNames] = &[names("sinks", &["model.layers.{}.self_attn.sinks"])];

/// The naming scheme of Llama and most others.
pub(super) const HUGGING_FACE: TensorNames = TensorNames {
    embedding: "model.embed_tokens.weight",
    final_norm: "model.norm.weight",
    final_norm_bias: "model.norm.bias",
    layer_embedding: [
        "model.embed_tokens_per_layer.weight",
        "model.per_layer_model_projection.weight",
        "model.per_layer_projection_norm.weight",
    ],
    head: "lm_head.weight",
    layer: &[NORMS_BEFORE, ATTENTION, GATED_MLP],
};

/// Gemma 2 and 3.
pub(super) const GEMMA: TensorNames = TensorNames {
    layer: &[NORMS_AROUND, ATTENTION, GATED_MLP],
    ..HUGGING_FACE
};

/// Phi 3: one tensor for q, k and v, one for gate and up.
pub(super) const PHI3: TensorNames = TensorNames {
    layer: &[NORMS_BEFORE, FUSED_ATTENTION, FUSED_MLP],
    ..HUGGING_FACE
};

/// OLMo 2.
pub(super) const OLMO2: TensorNames = TensorNames {
    layer: &[NORMS_AFTER, ATTENTION, GATED_MLP],
    ..HUGGING_FACE
};

/// GLM 4: one tensor for gate and up.
pub(super) const GLM4: TensorNames = TensorNames {
    layer: &[NORMS_AROUND_GLM, ATTENTION, FUSED_MLP],
    ..HUGGING_FACE
};

/// Granite with experts.
pub(super) const GRANITE_MOE: TensorNames = TensorNames {
    layer: &[NORMS_BEFORE, ATTENTION, GRANITE_EXPERTS],
    ..HUGGING_FACE
};

/// Qwen 3 with experts; some layers may have an MLP instead.
pub(super) const QWEN3_MOE: TensorNames = TensorNames {
    layer: &[NORMS_BEFORE, ATTENTION, GATED_MLP, EXPERTS_APART],
    ..HUGGING_FACE
};

/// gpt-oss, in 16 bits or MXFP4.
pub(super) const GPT_OSS: TensorNames = TensorNames {
    layer: &[NORMS_BEFORE, ATTENTION, SINKS, GPT_OSS_EXPERTS],
    ..HUGGING_FACE
};

/// gpt-oss in GGUF.
const GPT_OSS_APART: TensorNames = TensorNames {
    layer: &[NORMS_BEFORE, ATTENTION, SINKS, EXPERTS_APART],
    ..HUGGING_FACE
};

/// [`ATTENTION`] of Hunyuan.
const ATTENTION_HUNYUAN: &[LayerNames] = &[
    names(
        "q_norm",
        &["model.layers.{}.self_attn.query_layernorm.weight"],
    ),
    names(
        "k_norm",
        &["model.layers.{}.self_attn.key_layernorm.weight"],
    ),
    ATTENTION[0],
    ATTENTION[1],
    ATTENTION[4],
    ATTENTION[5],
];

/// An MLP without gate.
const UNGATED_MLP: &[LayerNames] = &[
    names("gate_up", &["model.layers.{}.mlp.up_proj.weight"]),
    names("gate_up_bias", &["model.layers.{}.mlp.up_proj.bias"]),
    GATED_MLP[2],
    GATED_MLP[3],
];

/// The numbers of xIELU.
const XIELU: &[LayerNames] = &[names(
    "xielu",
    &[
        "model.layers.{}.mlp.act_fn.alpha_p",
        "model.layers.{}.mlp.act_fn.alpha_n",
        "model.layers.{}.mlp.act_fn.beta",
        "model.layers.{}.mlp.act_fn.eps",
    ],
)];

/// [`NORMS_BEFORE`] of Apertus.
const NORMS_BEFORE_APERTUS: &[LayerNames] = &[
    names(
        "attention_norm",
        &["model.layers.{}.attention_layernorm.weight"],
    ),
    names(
        "mlp_norm",
        &["model.layers.{}.feedforward_layernorm.weight"],
    ),
];

/// Biases of [`NORMS_BEFORE`].
const NORM_BIASES: &[LayerNames] = &[
    names(
        "attention_norm_bias",
        &["model.layers.{}.input_layernorm.bias"],
    ),
    names(
        "mlp_norm_bias",
        &["model.layers.{}.post_attention_layernorm.bias"],
    ),
];

/// [`UNGATED_MLP`] of StarCoder 2.
const MLP_STARCODER2: &[LayerNames] = &[
    names("gate_up", &["model.layers.{}.mlp.c_fc.weight"]),
    names("gate_up_bias", &["model.layers.{}.mlp.c_fc.bias"]),
    names("down", &["model.layers.{}.mlp.c_proj.weight"]),
    names("down_bias", &["model.layers.{}.mlp.c_proj.bias"]),
];

/// Experts that every token passes, as one MLP, and the bias for the choice of the others.
const SHARED_EXPERTS: &[LayerNames] = &[
    names(
        "router_choice_bias",
        &["model.layers.{}.mlp.gate.e_score_correction_bias"],
    ),
    names(
        "shared_gate_up",
        &[
            "model.layers.{}.mlp.shared_experts.gate_proj.weight",
            "model.layers.{}.mlp.shared_experts.up_proj.weight",
        ],
    ),
    names(
        "shared_down",
        &["model.layers.{}.mlp.shared_experts.down_proj.weight"],
    ),
];

/// The MLP of Qwen that every token passes, behind a gate.
const SHARED_EXPERT: &[LayerNames] = &[
    names(
        "shared_gate",
        &["model.layers.{}.mlp.shared_expert_gate.weight"],
    ),
    names(
        "shared_gate_up",
        &[
            "model.layers.{}.mlp.shared_expert.gate_proj.weight",
            "model.layers.{}.mlp.shared_expert.up_proj.weight",
        ],
    ),
    names(
        "shared_down",
        &["model.layers.{}.mlp.shared_expert.down_proj.weight"],
    ),
];

/// What Gemma 4 has besides: experts beside the MLP, embeddings of the layers, and a number that ends each layer.
const EXTRAS_GEMMA4: &[LayerNames] = &[
    names("scalar", &["model.layers.{}.layer_scalar"]),
    names(
        "layer_gate",
        &["model.layers.{}.per_layer_input_gate.weight"],
    ),
    names(
        "layer_output",
        &["model.layers.{}.per_layer_projection.weight"],
    ),
    names(
        "layer_output_norm",
        &["model.layers.{}.post_per_layer_input_norm.weight"],
    ),
    names(
        "dense_post_norm",
        &["model.layers.{}.post_feedforward_layernorm_1.weight"],
    ),
    names(
        "expert_norm",
        &["model.layers.{}.pre_feedforward_layernorm_2.weight"],
    ),
    names(
        "expert_post_norm",
        &["model.layers.{}.post_feedforward_layernorm_2.weight"],
    ),
    names("router_norm", &["model.layers.{}.router.scale"]),
    names("router", &["model.layers.{}.router.proj.weight"]),
    names(
        "router_scales",
        &["model.layers.{}.router.per_expert_scale"],
    ),
    stacked(
        "expert_gate_up",
        &["model.layers.{}.experts.gate_up_proj"],
        Order::Experts,
    ),
    stacked(
        "expert_down",
        &["model.layers.{}.experts.down_proj"],
        Order::Experts,
    ),
];

/// Hunyuan.
pub(super) const HUNYUAN_DENSE: TensorNames = TensorNames {
    layer: &[NORMS_BEFORE, ATTENTION_HUNYUAN, GATED_MLP],
    ..HUGGING_FACE
};

/// GLM 4.5 and 4.6.
pub(super) const GLM4_MOE: TensorNames = TensorNames {
    layer: &[
        NORMS_BEFORE,
        ATTENTION,
        GATED_MLP,
        EXPERTS_APART,
        SHARED_EXPERTS,
    ],
    ..HUGGING_FACE
};

/// Qwen 2 with experts.
pub(super) const QWEN2_MOE: TensorNames = TensorNames {
    layer: &[
        NORMS_BEFORE,
        ATTENTION,
        GATED_MLP,
        EXPERTS_APART,
        SHARED_EXPERT,
    ],
    ..HUGGING_FACE
};

/// Llama's scheme with an MLP without gate.
pub(super) const UNGATED: TensorNames = TensorNames {
    layer: &[NORMS_BEFORE, ATTENTION, UNGATED_MLP],
    ..HUGGING_FACE
};

/// Apertus.
pub(super) const APERTUS: TensorNames = TensorNames {
    layer: &[NORMS_BEFORE_APERTUS, ATTENTION, UNGATED_MLP, XIELU],
    ..HUGGING_FACE
};

/// StarCoder 2.
pub(super) const STARCODER2: TensorNames = TensorNames {
    layer: &[NORMS_BEFORE, NORM_BIASES, ATTENTION, MLP_STARCODER2],
    ..HUGGING_FACE
};

/// Gemma 4.
pub(super) const GEMMA4: TensorNames = TensorNames {
    layer: &[NORMS_AROUND, ATTENTION, GATED_MLP, EXTRAS_GEMMA4],
    ..HUGGING_FACE
};

/// Latent attention: q, with a latent of its own or without, and the latent of keys and values. GGUF may have the keys'
/// and the values' part of the last product as tensors of their own.
const ATTENTION_LATENT: &[LayerNames] = &[
    names("query", &["model.layers.{}.self_attn.q_proj.weight"]),
    names(
        "query_latent",
        &["model.layers.{}.self_attn.q_a_proj.weight"],
    ),
    names(
        "query_latent_norm",
        &["model.layers.{}.self_attn.q_a_layernorm.weight"],
    ),
    names("query_up", &["model.layers.{}.self_attn.q_b_proj.weight"]),
    names(
        "latent",
        &["model.layers.{}.self_attn.kv_a_proj_with_mqa.weight"],
    ),
    names(
        "latent_norm",
        &["model.layers.{}.self_attn.kv_a_layernorm.weight"],
    ),
    stacked(
        "latent_keys",
        &["model.layers.{}.self_attn.kv_b_proj.weight"],
        Order::HeadKeys,
    ),
    stacked(
        "latent_values",
        &["model.layers.{}.self_attn.kv_b_proj.weight"],
        Order::HeadValues,
    ),
    stacked(
        "latent_keys",
        &["model.layers.{}.self_attn.k_b_proj.weight"],
        Order::Experts,
    ),
    stacked(
        "latent_values",
        &["model.layers.{}.self_attn.v_b_proj.weight"],
        Order::Experts,
    ),
    ATTENTION[4],
];

/// DeepSeek V2 and V3, and GLM 4.7 Flash.
pub(super) const DEEPSEEK: TensorNames = TensorNames {
    layer: &[
        NORMS_BEFORE,
        ATTENTION_LATENT,
        GATED_MLP,
        EXPERTS_APART,
        SHARED_EXPERTS,
    ],
    ..HUGGING_FACE
};

/// How the tensors of a checkpoint's text model are nested among those of other parts, such as vision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nesting {
    /// Not at all.
    Plain,
    /// `model.…` is called `model.language_model.…`.
    Inner,
    /// Everything has the prefix `language_model.`.
    Outer,
    /// `model.…` lacks this prefix: saved from the class without a head, as embedding models are.
    Bare,
}

impl Nesting {
    /// The nesting with which `exists` knows `name`.
    pub(super) fn find(name: &str, exists: impl Fn(&str) -> bool) -> Self {
        let nestings = [Self::Plain, Self::Inner, Self::Outer, Self::Bare];
        nestings
            .into_iter()
            .find(|nesting| exists(&nesting.of(name)))
            .unwrap_or(Self::Plain)
    }

    /// The nested name of a tensor.
    pub(super) fn of(self, name: &str) -> String {
        match (
            self,
            name.strip_prefix("model.")
                .or(name.strip_prefix("backbone.")),
        ) {
            (Self::Inner, Some(rest)) => format!("model.language_model.{rest}"),
            (Self::Outer, _) => format!("language_model.{name}"),
            (Self::Bare, Some(rest)) => rest.into(),
            _ => name.into(),
        }
    }
}

impl TensorNames {
    /// The embedding's name in a checkpoint with these tensors; `None` if it has none.
    pub(super) fn embedding_in(&self, exists: impl Fn(&str) -> bool) -> Option<String> {
        Self::name_in(self.embedding, exists)
    }

    /// The head's name in a checkpoint with these tensors; `None` if it has none.
    pub(super) fn head_in(&self, exists: impl Fn(&str) -> bool) -> Option<String> {
        Self::name_in(self.head, exists)
    }

    fn name_in(name: &str, exists: impl Fn(&str) -> bool) -> Option<String> {
        let name = Nesting::find(name, &exists).of(name);
        exists(&name).then_some(name)
    }

    /// The names of the same weights if each expert has its own tensors, as in GGUF.
    pub(super) fn with_experts_apart(&'static self) -> &'static Self {
        match self {
            _ if *self == GPT_OSS => &GPT_OSS_APART,
            _ if *self == GRANITE_MOE => &QWEN3_MOE,
            _ => self,
        }
    }
}
