//! Tensor names in each family's checkpoints: one [`TensorNames`] table per naming scheme.

mod encoders;
mod experts;
mod newest;
mod predictors;
mod state;
mod towers;

use super::layer_weight::LayerWeight::{self, *};

pub(super) use encoders::{BERT, GTE, JINA_BERT, JINA_V3, MODERN_BERT, NOMIC_BERT};
pub(super) use experts::{
    AFMOE, ERNIE4_5_MOE, EXAONE_MOE, GRANITE_MOE_SHARED, HUNYUAN_MOE, HY_V3, MINIMAX_M2, MIXTRAL,
    QWEN3_VL_MOE,
};
pub(super) use newest::{LAGUNA, LLAMA4, MISTRAL4, PHI_MOE, STEP3P5};
pub(super) use predictors::PredictorNames;
pub(super) use state::{
    FALCON_H1, GRANITE_HYBRID, LFM2, LFM2_MOE, LFM3, NEMOTRON_H, OLMO_HYBRID, QWEN3_5, QWEN3_5_MOE,
    QWEN3_NEXT,
};

pub(super) use towers::{IDEFICS3_VISION, PIXTRAL};

/// The tensor names of a family. In names of a layer, `{}` is the layer's number.
#[derive(Debug, PartialEq)]
pub(super) struct TensorNames {
    pub(super) embedding: &'static str,
    pub(super) final_norm: &'static str,
    pub(super) final_norm_bias: &'static str,
    /// The table of the layers' own embeddings, their projection and its norm.
    pub(super) layer_embedding: [&'static str; 3],
    pub(super) head: &'static str,
    pub(super) head_bias: &'static str,
    /// Of encoders: the norm of embedded rows, its bias, and the tables of positions and of token types.
    pub(super) embedding_norm: [&'static str; 2],
    pub(super) positions: &'static str,
    pub(super) texts: &'static str,
    /// Of towers, whose embedding is the product with patches: its bias, the product of merged rows, and the two
    /// products of the MLP that follows it.
    pub(super) patch_bias: &'static str,
    pub(super) merge: &'static str,
    pub(super) projector: [&'static str; 2],
    pub(super) layer: &'static [&'static [LayerNames]],
    /// Of layers that predict further tokens, in every way that is known; the first that a checkpoint has counts.
    pub(super) predictors: &'static [PredictorNames],
}

/// Tensors whose rows are stacked to form the plan's weight `layers.N.<weight>`. Names with `{e}` stand for one tensor
/// per expert, repeated for each expert in turn. A table may have several for a weight: the first that a checkpoint has
/// counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LayerNames {
    pub(super) weight: LayerWeight,
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
    /// Up, then gate.
    UpFirst,
    /// `[rows, channels, height, width]`: a row has the numbers of a patch, then zeros up to a multiple of 8 columns.
    Patches,
    /// The product with so many rows that are merged: `[rows, channels · merged]`, where each channel has its elements
    /// of all merged rows side by side. The weight has one row after the other.
    Merged(u32),
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

const fn names(weight: LayerWeight, tensors: &'static [&'static str]) -> LayerNames {
    LayerNames {
        weight,
        tensors,
        order: Order::Rows,
    }
}

const fn stacked(
    weight: LayerWeight,
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
        Qkv,
        &[
            "model.layers.{}.self_attn.q_proj.weight",
            "model.layers.{}.self_attn.k_proj.weight",
            "model.layers.{}.self_attn.v_proj.weight",
        ],
    ),
    names(
        QkvBias,
        &[
            "model.layers.{}.self_attn.q_proj.bias",
            "model.layers.{}.self_attn.k_proj.bias",
            "model.layers.{}.self_attn.v_proj.bias",
        ],
    ),
    names(QNorm, &["model.layers.{}.self_attn.q_norm.weight"]),
    names(KNorm, &["model.layers.{}.self_attn.k_norm.weight"]),
    names(Output, &["model.layers.{}.self_attn.o_proj.weight"]),
    names(OutputBias, &["model.layers.{}.self_attn.o_proj.bias"]),
];

/// Stacked gate and up, and down.
const GATED_MLP: &[LayerNames] = &[
    names(
        GateUp,
        &[
            "model.layers.{}.mlp.gate_proj.weight",
            "model.layers.{}.mlp.up_proj.weight",
        ],
    ),
    names(
        GateUpBias,
        &[
            "model.layers.{}.mlp.gate_proj.bias",
            "model.layers.{}.mlp.up_proj.bias",
        ],
    ),
    names(Down, &["model.layers.{}.mlp.down_proj.weight"]),
    names(DownBias, &["model.layers.{}.mlp.down_proj.bias"]),
];

/// [`ATTENTION`], already stacked in the checkpoint.
const FUSED_ATTENTION: &[LayerNames] = &[
    names(Qkv, &["model.layers.{}.self_attn.qkv_proj.weight"]),
    names(Output, &["model.layers.{}.self_attn.o_proj.weight"]),
];

/// Biases of [`FUSED_ATTENTION`].
const FUSED_BIAS: &[LayerNames] = &[names(QkvBias, &["model.layers.{}.self_attn.qkv_proj.bias"])];

/// [`GATED_MLP`], already stacked in the checkpoint.
const FUSED_MLP: &[LayerNames] = &[
    names(GateUp, &["model.layers.{}.mlp.gate_up_proj.weight"]),
    names(Down, &["model.layers.{}.mlp.down_proj.weight"]),
];

/// A norm before attention and one before the MLP.
const NORMS_BEFORE: &[LayerNames] = &[
    names(AttentionNorm, &["model.layers.{}.input_layernorm.weight"]),
    names(
        MlpNorm,
        &["model.layers.{}.post_attention_layernorm.weight"],
    ),
];

/// Norms on both sides of attention and of the MLP.
const NORMS_AROUND: &[LayerNames] = &[
    names(AttentionNorm, &["model.layers.{}.input_layernorm.weight"]),
    names(
        AttentionPostNorm,
        &["model.layers.{}.post_attention_layernorm.weight"],
    ),
    names(
        MlpNorm,
        &["model.layers.{}.pre_feedforward_layernorm.weight"],
    ),
    names(
        MlpPostNorm,
        &["model.layers.{}.post_feedforward_layernorm.weight"],
    ),
];

/// A norm after attention and one after the MLP.
const NORMS_AFTER: &[LayerNames] = &[
    names(
        AttentionPostNorm,
        &["model.layers.{}.post_attention_layernorm.weight"],
    ),
    names(
        MlpPostNorm,
        &["model.layers.{}.post_feedforward_layernorm.weight"],
    ),
];

/// A router.
const ROUTER: &[LayerNames] = &[names(Router, &["model.layers.{}.mlp.gate.weight"])];

/// Experts with separate tensors: three matrices each.
const MATRICES_APART: &[LayerNames] = &[
    names(
        ExpertGateUp,
        &[
            "model.layers.{}.mlp.experts.{e}.gate_proj.weight",
            "model.layers.{}.mlp.experts.{e}.up_proj.weight",
        ],
    ),
    names(
        ExpertDown,
        &["model.layers.{}.mlp.experts.{e}.down_proj.weight"],
    ),
];

/// A router and experts with separate tensors, which may have biases in GGUF.
const EXPERTS_APART: &[LayerNames] = &[
    ROUTER[0],
    MATRICES_APART[0],
    MATRICES_APART[1],
    names(RouterBias, &["model.layers.{}.mlp.gate.bias"]),
    names(
        ExpertGateUpBias,
        &[
            "model.layers.{}.mlp.experts.{e}.gate_proj.bias",
            "model.layers.{}.mlp.experts.{e}.up_proj.bias",
        ],
    ),
    names(
        ExpertDownBias,
        &["model.layers.{}.mlp.experts.{e}.down_proj.bias"],
    ),
];

/// Norms around, with the names of GLM 4.
const NORMS_AROUND_GLM: &[LayerNames] = &[
    names(AttentionNorm, &["model.layers.{}.input_layernorm.weight"]),
    names(
        AttentionPostNorm,
        &["model.layers.{}.post_self_attn_layernorm.weight"],
    ),
    names(
        MlpNorm,
        &["model.layers.{}.post_attention_layernorm.weight"],
    ),
    names(MlpPostNorm, &["model.layers.{}.post_mlp_layernorm.weight"]),
];

/// Experts of Granite: all in one tensor.
const GRANITE_EXPERTS: &[LayerNames] = &[
    names(
        Router,
        &["model.layers.{}.block_sparse_moe.router.layer.weight"],
    ),
    stacked(
        ExpertGateUp,
        &["model.layers.{}.block_sparse_moe.input_linear.weight"],
        Order::Experts,
    ),
    stacked(
        ExpertDown,
        &["model.layers.{}.block_sparse_moe.output_linear.weight"],
        Order::Experts,
    ),
];

/// Experts of gpt-oss: all in one tensor.
const GPT_OSS_EXPERTS: &[LayerNames] = &[
    names(Router, &["model.layers.{}.mlp.router.weight"]),
    names(RouterBias, &["model.layers.{}.mlp.router.bias"]),
    stacked(
        ExpertGateUp,
        &["model.layers.{}.mlp.experts.gate_up_proj"],
        Order::TransposedInterleaved,
    ),
    stacked(
        ExpertGateUpBias,
        &["model.layers.{}.mlp.experts.gate_up_proj_bias"],
        Order::TransposedInterleaved,
    ),
    stacked(
        ExpertDown,
        &["model.layers.{}.mlp.experts.down_proj"],
        Order::Transposed,
    ),
    stacked(
        ExpertDownBias,
        &["model.layers.{}.mlp.experts.down_proj_bias"],
        Order::Transposed,
    ),
];

const SINKS: &[LayerNames] = &[names(Sinks, &["model.layers.{}.self_attn.sinks"])];

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
    head_bias: "lm_head.bias",
    embedding_norm: ["", ""],
    positions: "",
    texts: "",
    patch_bias: "",
    merge: "",
    projector: ["", ""],
    layer: &[NORMS_BEFORE, ATTENTION, GATED_MLP],
    predictors: &[],
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

/// GLM 4 9B; in GGUF, q, k and v may be one tensor.
pub(super) const GLM: TensorNames = TensorNames {
    layer: &[
        NORMS_BEFORE,
        ATTENTION,
        FUSED_ATTENTION,
        FUSED_BIAS,
        FUSED_MLP,
    ],
    ..HUGGING_FACE
};

/// Attention with output gates in a tensor of their own.
const ATTENTION_GATED: &[LayerNames] = &[
    names(
        Qkv,
        &[
            "model.layers.{}.self_attn.q_proj.weight",
            "model.layers.{}.self_attn.k_proj.weight",
            "model.layers.{}.self_attn.v_proj.weight",
            "model.layers.{}.self_attn.gate_proj.weight",
        ],
    ),
    ATTENTION[2],
    ATTENTION[3],
    ATTENTION[4],
];

/// The text model of Muse Glimmer.
pub(super) const MUSE_GLIMMER: TensorNames = TensorNames {
    layer: &[NORMS_AROUND, ATTENTION_GATED, GATED_MLP],
    ..HUGGING_FACE
};

/// Phi 1, 1.5 and 2.
pub(super) const PHI: TensorNames = TensorNames {
    final_norm: "model.final_layernorm.weight",
    final_norm_bias: "model.final_layernorm.bias",
    layer: &[
        NORMS_BEFORE,
        NORM_BIASES,
        ATTENTION,
        FUSED_ATTENTION,
        FUSED_BIAS,
        REST_PHI,
    ],
    ..HUGGING_FACE
};

/// The output of attention and the MLP of Phi.
const REST_PHI: &[LayerNames] = &[
    names(Output, &["model.layers.{}.self_attn.dense.weight"]),
    names(OutputBias, &["model.layers.{}.self_attn.dense.bias"]),
    names(GateUp, &["model.layers.{}.mlp.fc1.weight"]),
    names(GateUpBias, &["model.layers.{}.mlp.fc1.bias"]),
    names(Down, &["model.layers.{}.mlp.fc2.weight"]),
    names(DownBias, &["model.layers.{}.mlp.fc2.bias"]),
];

/// EXAONE 3.
pub(super) const EXAONE: TensorNames = TensorNames {
    embedding: "transformer.wte.weight",
    final_norm: "transformer.ln_f.weight",
    layer: &[LAYER_EXAONE],
    ..HUGGING_FACE
};

/// A layer of EXAONE 3.
const LAYER_EXAONE: &[LayerNames] = &[
    names(AttentionNorm, &["transformer.h.{}.ln_1.weight"]),
    names(
        Qkv,
        &[
            "transformer.h.{}.attn.attention.q_proj.weight",
            "transformer.h.{}.attn.attention.k_proj.weight",
            "transformer.h.{}.attn.attention.v_proj.weight",
        ],
    ),
    names(Output, &["transformer.h.{}.attn.attention.out_proj.weight"]),
    names(MlpNorm, &["transformer.h.{}.ln_2.weight"]),
    names(
        GateUp,
        &[
            "transformer.h.{}.mlp.c_fc_0.weight",
            "transformer.h.{}.mlp.c_fc_1.weight",
        ],
    ),
    names(Down, &["transformer.h.{}.mlp.c_proj.weight"]),
];

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

/// gpt-oss in GGUF, where each expert has its own tensors.
pub(super) const GPT_OSS_APART: TensorNames = TensorNames {
    layer: &[NORMS_BEFORE, ATTENTION, SINKS, EXPERTS_APART],
    ..HUGGING_FACE
};

/// [`ATTENTION`] of Hunyuan.
const ATTENTION_HUNYUAN: &[LayerNames] = &[
    names(QNorm, &["model.layers.{}.self_attn.query_layernorm.weight"]),
    names(KNorm, &["model.layers.{}.self_attn.key_layernorm.weight"]),
    ATTENTION[0],
    ATTENTION[1],
    ATTENTION[4],
    ATTENTION[5],
];

/// An MLP without gate.
const UNGATED_MLP: &[LayerNames] = &[
    names(GateUp, &["model.layers.{}.mlp.up_proj.weight"]),
    names(GateUpBias, &["model.layers.{}.mlp.up_proj.bias"]),
    GATED_MLP[2],
    GATED_MLP[3],
];

/// The numbers of xIELU.
const XIELU: &[LayerNames] = &[names(
    Xielu,
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
        AttentionNorm,
        &["model.layers.{}.attention_layernorm.weight"],
    ),
    names(MlpNorm, &["model.layers.{}.feedforward_layernorm.weight"]),
];

/// Biases of [`NORMS_BEFORE`].
const NORM_BIASES: &[LayerNames] = &[
    names(AttentionNormBias, &["model.layers.{}.input_layernorm.bias"]),
    names(
        MlpNormBias,
        &["model.layers.{}.post_attention_layernorm.bias"],
    ),
];

/// [`UNGATED_MLP`] of StarCoder 2.
const MLP_STARCODER2: &[LayerNames] = &[
    names(GateUp, &["model.layers.{}.mlp.c_fc.weight"]),
    names(GateUpBias, &["model.layers.{}.mlp.c_fc.bias"]),
    names(Down, &["model.layers.{}.mlp.c_proj.weight"]),
    names(DownBias, &["model.layers.{}.mlp.c_proj.bias"]),
];

/// Experts that every token passes, as one MLP, and the bias for the choice of the others.
const SHARED_EXPERTS: &[LayerNames] = &[
    names(
        RouterChoiceBias,
        &["model.layers.{}.mlp.gate.e_score_correction_bias"],
    ),
    names(
        SharedGateUp,
        &[
            "model.layers.{}.mlp.shared_experts.gate_proj.weight",
            "model.layers.{}.mlp.shared_experts.up_proj.weight",
        ],
    ),
    names(
        SharedDown,
        &["model.layers.{}.mlp.shared_experts.down_proj.weight"],
    ),
];

/// The MLP of Qwen that every token passes, behind a gate.
const SHARED_EXPERT: &[LayerNames] = &[
    names(
        SharedGate,
        &["model.layers.{}.mlp.shared_expert_gate.weight"],
    ),
    names(
        SharedGateUp,
        &[
            "model.layers.{}.mlp.shared_expert.gate_proj.weight",
            "model.layers.{}.mlp.shared_expert.up_proj.weight",
        ],
    ),
    names(
        SharedDown,
        &["model.layers.{}.mlp.shared_expert.down_proj.weight"],
    ),
];

/// What Gemma 4 has besides: experts beside the MLP, embeddings of the layers, and a number that ends each layer.
const EXTRAS_GEMMA4: &[LayerNames] = &[
    names(Scalar, &["model.layers.{}.layer_scalar"]),
    names(LayerGate, &["model.layers.{}.per_layer_input_gate.weight"]),
    names(
        LayerOutput,
        &["model.layers.{}.per_layer_projection.weight"],
    ),
    names(
        LayerOutputNorm,
        &["model.layers.{}.post_per_layer_input_norm.weight"],
    ),
    names(
        DensePostNorm,
        &["model.layers.{}.post_feedforward_layernorm_1.weight"],
    ),
    names(
        ExpertNorm,
        &["model.layers.{}.pre_feedforward_layernorm_2.weight"],
    ),
    names(
        ExpertPostNorm,
        &["model.layers.{}.post_feedforward_layernorm_2.weight"],
    ),
    names(RouterNorm, &["model.layers.{}.router.scale"]),
    names(Router, &["model.layers.{}.router.proj.weight"]),
    names(RouterScales, &["model.layers.{}.router.per_expert_scale"]),
    stacked(
        ExpertGateUp,
        &["model.layers.{}.experts.gate_up_proj"],
        Order::Experts,
    ),
    stacked(
        ExpertDown,
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
    predictors: &[predictors::AFTER_LAST],
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
    names(Query, &["model.layers.{}.self_attn.q_proj.weight"]),
    names(QueryLatent, &["model.layers.{}.self_attn.q_a_proj.weight"]),
    names(
        QueryLatentNorm,
        &["model.layers.{}.self_attn.q_a_layernorm.weight"],
    ),
    names(QueryUp, &["model.layers.{}.self_attn.q_b_proj.weight"]),
    names(
        Latent,
        &["model.layers.{}.self_attn.kv_a_proj_with_mqa.weight"],
    ),
    names(
        LatentNorm,
        &["model.layers.{}.self_attn.kv_a_layernorm.weight"],
    ),
    stacked(
        LatentKeys,
        &["model.layers.{}.self_attn.kv_b_proj.weight"],
        Order::HeadKeys,
    ),
    stacked(
        LatentValues,
        &["model.layers.{}.self_attn.kv_b_proj.weight"],
        Order::HeadValues,
    ),
    stacked(
        LatentKeys,
        &["model.layers.{}.self_attn.k_b_proj.weight"],
        Order::Experts,
    ),
    stacked(
        LatentValues,
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
    predictors: &[predictors::AFTER_LAST],
    ..HUGGING_FACE
};

/// How the tensors of a checkpoint's text model are nested among those of other parts, such as vision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nesting {
    /// Not at all.
    Plain,
    /// `model.…` is called `model.language_model.…`.
    Inner,
    /// `model.…` is called `model.text_model.…`.
    InnerText,
    /// Everything has the prefix `language_model.`.
    Outer,
    /// `model.…` lacks this prefix: saved from the class without a head, as embedding models are.
    Bare,
    /// Everything has this prefix: saved from a class with a head.
    Within(&'static str),
}

impl Nesting {
    /// The nesting with which `exists` knows `name`.
    pub(super) fn find(name: &str, exists: impl Fn(&str) -> bool) -> Self {
        let within = ["bert.", "roberta.", "new.", "model."].map(Self::Within);
        let nestings = [
            Self::Plain,
            Self::Inner,
            Self::InnerText,
            Self::Outer,
            Self::Bare,
        ];
        let mut nestings = nestings.into_iter().chain(within);
        nestings
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
            (Self::InnerText, Some(rest)) => format!("model.text_model.{rest}"),
            (Self::Outer, _) => format!("language_model.{name}"),
            (Self::Bare, Some(rest)) => rest.into(),
            (Self::Within(prefix), _) => format!("{prefix}{name}"),
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
}
