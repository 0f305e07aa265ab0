//! Names of the tensors of decoders with layers that keep a state.

use super::{
    ATTENTION, EXPERTS_APART, GATED_MLP, GRANITE_EXPERTS, HUGGING_FACE, LayerNames, NORMS_AFTER,
    NORMS_BEFORE, Order, SHARED_EXPERT, TensorNames, names, predictors, stacked,
};
use crate::model::layer_weight::LayerWeight::*;

/// What LFM2 has besides its MLP: norms, attention or a short convolution.
const MIXERS_LFM2: &[LayerNames] = &[
    names(AttentionNorm, &["model.layers.{}.operator_norm.weight"]),
    names(MlpNorm, &["model.layers.{}.ffn_norm.weight"]),
    ATTENTION[0],
    names(QNorm, &["model.layers.{}.self_attn.q_layernorm.weight"]),
    names(KNorm, &["model.layers.{}.self_attn.k_layernorm.weight"]),
    names(Output, &["model.layers.{}.self_attn.out_proj.weight"]),
    names(ConvolutionInput, &["model.layers.{}.conv.in_proj.weight"]),
    names(ConvolutionInputBias, &["model.layers.{}.conv.in_proj.bias"]),
    names(Convolution, &["model.layers.{}.conv.conv.weight"]),
    names(ConvolutionBias, &["model.layers.{}.conv.conv.bias"]),
    names(ConvolutionOutput, &["model.layers.{}.conv.out_proj.weight"]),
    names(
        ConvolutionOutputBias,
        &["model.layers.{}.conv.out_proj.bias"],
    ),
];

/// [`GATED_MLP`] of LFM2.
const MLP_LFM2: &[LayerNames] = &[
    names(
        GateUp,
        &[
            "model.layers.{}.feed_forward.w1.weight",
            "model.layers.{}.feed_forward.w3.weight",
        ],
    ),
    names(Down, &["model.layers.{}.feed_forward.w2.weight"]),
];

/// LFM2.
pub(in crate::model) const LFM2: TensorNames = TensorNames {
    final_norm: "model.embedding_norm.weight",
    layer: &[MIXERS_LFM2, MLP_LFM2],
    ..HUGGING_FACE
};

/// Experts of LFM2.
const EXPERTS_LFM2: &[LayerNames] = &[
    names(Router, &["model.layers.{}.feed_forward.gate.weight"]),
    names(
        RouterChoiceBias,
        &["model.layers.{}.feed_forward.expert_bias"],
    ),
    names(
        ExpertGateUp,
        &[
            "model.layers.{}.feed_forward.experts.{e}.w1.weight",
            "model.layers.{}.feed_forward.experts.{e}.w3.weight",
        ],
    ),
    names(
        ExpertDown,
        &["model.layers.{}.feed_forward.experts.{e}.w2.weight"],
    ),
];

/// LFM2 with experts.
pub(in crate::model) const LFM2_MOE: TensorNames = TensorNames {
    layer: &[MIXERS_LFM2, MLP_LFM2, EXPERTS_LFM2],
    ..LFM2
};

/// What LFM3 has besides its MLP: norms on both sides, attention with gates or a short convolution.
const MIXERS_LFM3: &[LayerNames] = &[
    MIXERS_LFM2[0],
    names(
        AttentionPostNorm,
        &["model.layers.{}.post_operator_norm.weight"],
    ),
    MIXERS_LFM2[1],
    names(MlpPostNorm, &["model.layers.{}.post_ffn_norm.weight"]),
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
    MIXERS_LFM2[6],
    MIXERS_LFM2[7],
    MIXERS_LFM2[8],
    MIXERS_LFM2[9],
    MIXERS_LFM2[10],
    MIXERS_LFM2[11],
];

/// LFM3.
pub(in crate::model) const LFM3: TensorNames = TensorNames {
    layer: &[MIXERS_LFM3, MLP_LFM2],
    ..LFM2
};

/// [`ATTENTION`] whose q has gates.
const ATTENTION_GATED: &[LayerNames] = &[
    stacked(Qkv, ATTENTION[0].tensors, Order::GatedHeads),
    ATTENTION[2],
    ATTENTION[3],
    ATTENTION[4],
];

/// A state with the gated delta rule.
const DELTA: &[LayerNames] = &[
    names(
        StateInput,
        &[
            "model.layers.{}.linear_attn.in_proj_qkv.weight",
            "model.layers.{}.linear_attn.in_proj_z.weight",
            "model.layers.{}.linear_attn.in_proj_b.weight",
            "model.layers.{}.linear_attn.in_proj_a.weight",
        ],
    ),
    names(
        StateConvolution,
        &["model.layers.{}.linear_attn.conv1d.weight"],
    ),
    names(StateDecay, &["model.layers.{}.linear_attn.A_log"]),
    names(StateDtBias, &["model.layers.{}.linear_attn.dt_bias"]),
    names(StateNorm, &["model.layers.{}.linear_attn.norm.weight"]),
    names(
        StateOutput,
        &["model.layers.{}.linear_attn.out_proj.weight"],
    ),
];

/// [`DELTA`] with the input by key heads; in GGUF, only its gates are.
const DELTA_BY_HEADS: &[LayerNames] = &[
    stacked(
        StateInput,
        &[
            "model.layers.{}.linear_attn.in_proj_qkvz.weight",
            "model.layers.{}.linear_attn.in_proj_ba.weight",
        ],
        Order::KeyHeads,
    ),
    stacked(
        StateInput,
        &[
            "model.layers.{}.linear_attn.in_proj_qkv.weight",
            "model.layers.{}.linear_attn.in_proj_z.weight",
            "model.layers.{}.linear_attn.in_proj_ba.weight",
        ],
        Order::KeyHeadGates,
    ),
    DELTA[1],
    DELTA[2],
    DELTA[3],
    DELTA[4],
    DELTA[5],
];

/// Experts of Qwen, all in one tensor.
const EXPERTS_STACKED: &[LayerNames] = &[
    stacked(
        ExpertGateUp,
        &["model.layers.{}.mlp.experts.gate_up_proj"],
        Order::Experts,
    ),
    stacked(
        ExpertDown,
        &["model.layers.{}.mlp.experts.down_proj"],
        Order::Experts,
    ),
];

/// Qwen 3.5.
pub(in crate::model) const QWEN3_5: TensorNames = TensorNames {
    layer: &[NORMS_BEFORE, ATTENTION_GATED, DELTA, GATED_MLP],
    predictors: &[predictors::QWEN, predictors::AFTER_LAST],
    ..HUGGING_FACE
};

/// Qwen 3.5 with experts.
pub(in crate::model) const QWEN3_5_MOE: TensorNames = TensorNames {
    layer: &[
        NORMS_BEFORE,
        ATTENTION_GATED,
        DELTA,
        EXPERTS_APART,
        EXPERTS_STACKED,
        SHARED_EXPERT,
    ],
    predictors: &[predictors::QWEN, predictors::AFTER_LAST],
    ..HUGGING_FACE
};

/// Qwen3-Next; some layers may have an MLP instead of experts.
pub(in crate::model) const QWEN3_NEXT: TensorNames = TensorNames {
    layer: &[
        NORMS_BEFORE,
        ATTENTION_GATED,
        DELTA_BY_HEADS,
        GATED_MLP,
        EXPERTS_APART,
        EXPERTS_STACKED,
        SHARED_EXPERT,
    ],
    predictors: &[predictors::QWEN, predictors::AFTER_LAST],
    ..HUGGING_FACE
};

/// Norms before, of layers with a state in OLMo hybrid.
const NORMS_BEFORE_OLMO: &[LayerNames] = &[
    names(
        AttentionNorm,
        &["model.layers.{}.attention_layer_norm.weight"],
    ),
    names(MlpNorm, &["model.layers.{}.feedforward_layer_norm.weight"]),
];

/// [`DELTA`] of OLMo hybrid.
const DELTA_OLMO: &[LayerNames] = &[
    stacked(
        StateInput,
        &[
            "model.layers.{}.linear_attn.q_proj.weight",
            "model.layers.{}.linear_attn.k_proj.weight",
            "model.layers.{}.linear_attn.v_proj.weight",
            "model.layers.{}.linear_attn.g_proj.weight",
            "model.layers.{}.linear_attn.b_proj.weight",
            "model.layers.{}.linear_attn.a_proj.weight",
        ],
        Order::Apart,
    ),
    names(
        StateConvolution,
        &[
            "model.layers.{}.linear_attn.q_conv1d.weight",
            "model.layers.{}.linear_attn.k_conv1d.weight",
            "model.layers.{}.linear_attn.v_conv1d.weight",
        ],
    ),
    DELTA[2],
    DELTA[3],
    names(StateNorm, &["model.layers.{}.linear_attn.o_norm.weight"]),
    names(StateOutput, &["model.layers.{}.linear_attn.o_proj.weight"]),
];

/// OLMo hybrid.
pub(in crate::model) const OLMO_HYBRID: TensorNames = TensorNames {
    layer: &[
        NORMS_BEFORE_OLMO,
        NORMS_AFTER,
        ATTENTION,
        DELTA_OLMO,
        GATED_MLP,
    ],
    ..HUGGING_FACE
};

/// A state of Mamba 2.
const MAMBA2: &[LayerNames] = &[
    stacked(
        StateInput,
        &["model.layers.{}.mamba.in_proj.weight"],
        Order::ZFirst,
    ),
    stacked(
        StateInputBias,
        &["model.layers.{}.mamba.in_proj.bias"],
        Order::ZFirst,
    ),
    names(StateConvolution, &["model.layers.{}.mamba.conv1d.weight"]),
    names(StateConvolutionBias, &["model.layers.{}.mamba.conv1d.bias"]),
    names(StateDecay, &["model.layers.{}.mamba.A_log"]),
    names(StateDtBias, &["model.layers.{}.mamba.dt_bias"]),
    names(StateSkip, &["model.layers.{}.mamba.D"]),
    names(StateNorm, &["model.layers.{}.mamba.norm.weight"]),
    names(StateOutput, &["model.layers.{}.mamba.out_proj.weight"]),
    names(StateOutputBias, &["model.layers.{}.mamba.out_proj.bias"]),
];

/// The MLP of Granite 4, which is called shared even if there are no experts.
pub(super) const SHARED_MLP: &[LayerNames] = &[
    names(GateUp, &["model.layers.{}.shared_mlp.input_linear.weight"]),
    names(Down, &["model.layers.{}.shared_mlp.output_linear.weight"]),
    names(
        SharedGateUp,
        &["model.layers.{}.shared_mlp.input_linear.weight"],
    ),
    names(
        SharedDown,
        &["model.layers.{}.shared_mlp.output_linear.weight"],
    ),
];

/// [`SHARED_MLP`] and experts of Granite 4 in GGUF, where gate and up are separate, and so are experts.
const MLP_GRANITE_APART: &[LayerNames] = &[
    names(
        GateUp,
        &[
            "model.layers.{}.shared_mlp.gate_proj.weight",
            "model.layers.{}.shared_mlp.up_proj.weight",
        ],
    ),
    names(
        SharedGateUp,
        &[
            "model.layers.{}.shared_mlp.gate_proj.weight",
            "model.layers.{}.shared_mlp.up_proj.weight",
        ],
    ),
    names(
        ExpertGateUp,
        &[
            "model.layers.{}.block_sparse_moe.experts.{e}.gate_proj.weight",
            "model.layers.{}.block_sparse_moe.experts.{e}.up_proj.weight",
        ],
    ),
    names(
        ExpertDown,
        &["model.layers.{}.block_sparse_moe.experts.{e}.down_proj.weight"],
    ),
];

/// Granite 4.
pub(in crate::model) const GRANITE_HYBRID: TensorNames = TensorNames {
    layer: &[
        NORMS_BEFORE,
        ATTENTION,
        MAMBA2,
        SHARED_MLP,
        GRANITE_EXPERTS,
        MLP_GRANITE_APART,
    ],
    ..HUGGING_FACE
};

/// Everything in a layer of Nemotron-H: one norm, and one of attention, a state, an MLP and experts.
const BLOCKS_NEMOTRON: &[LayerNames] = &[
    names(AttentionNorm, &["backbone.layers.{}.norm.weight"]),
    names(MlpNorm, &["backbone.layers.{}.norm.weight"]),
    names(
        Qkv,
        &[
            "backbone.layers.{}.mixer.q_proj.weight",
            "backbone.layers.{}.mixer.k_proj.weight",
            "backbone.layers.{}.mixer.v_proj.weight",
        ],
    ),
    names(
        QkvBias,
        &[
            "backbone.layers.{}.mixer.q_proj.bias",
            "backbone.layers.{}.mixer.k_proj.bias",
            "backbone.layers.{}.mixer.v_proj.bias",
        ],
    ),
    names(Output, &["backbone.layers.{}.mixer.o_proj.weight"]),
    names(OutputBias, &["backbone.layers.{}.mixer.o_proj.bias"]),
    stacked(
        StateInput,
        &["backbone.layers.{}.mixer.in_proj.weight"],
        Order::ZFirst,
    ),
    stacked(
        StateInputBias,
        &["backbone.layers.{}.mixer.in_proj.bias"],
        Order::ZFirst,
    ),
    names(
        StateConvolution,
        &["backbone.layers.{}.mixer.conv1d.weight"],
    ),
    names(
        StateConvolutionBias,
        &["backbone.layers.{}.mixer.conv1d.bias"],
    ),
    names(StateDecay, &["backbone.layers.{}.mixer.A_log"]),
    names(StateDtBias, &["backbone.layers.{}.mixer.dt_bias"]),
    names(StateSkip, &["backbone.layers.{}.mixer.D"]),
    names(StateNorm, &["backbone.layers.{}.mixer.norm.weight"]),
    names(StateOutput, &["backbone.layers.{}.mixer.out_proj.weight"]),
    names(StateOutputBias, &["backbone.layers.{}.mixer.out_proj.bias"]),
    names(GateUp, &["backbone.layers.{}.mixer.up_proj.weight"]),
    names(GateUpBias, &["backbone.layers.{}.mixer.up_proj.bias"]),
    names(Down, &["backbone.layers.{}.mixer.down_proj.weight"]),
    names(DownBias, &["backbone.layers.{}.mixer.down_proj.bias"]),
    names(Router, &["backbone.layers.{}.mixer.gate.weight"]),
    names(
        RouterChoiceBias,
        &["backbone.layers.{}.mixer.gate.e_score_correction_bias"],
    ),
    names(
        ExpertGateUp,
        &["backbone.layers.{}.mixer.experts.{e}.up_proj.weight"],
    ),
    names(
        ExpertDown,
        &["backbone.layers.{}.mixer.experts.{e}.down_proj.weight"],
    ),
    names(
        ExpertInput,
        &["backbone.layers.{}.mixer.fc1_latent_proj.weight"],
    ),
    names(
        ExpertOutput,
        &["backbone.layers.{}.mixer.fc2_latent_proj.weight"],
    ),
    names(
        SharedGateUp,
        &["backbone.layers.{}.mixer.shared_experts.up_proj.weight"],
    ),
    names(
        SharedDown,
        &["backbone.layers.{}.mixer.shared_experts.down_proj.weight"],
    ),
];

/// Nemotron-H.
pub(in crate::model) const NEMOTRON_H: TensorNames = TensorNames {
    embedding: "backbone.embeddings.weight",
    final_norm: "backbone.norm_f.weight",
    layer: &[BLOCKS_NEMOTRON],
    predictors: &[predictors::NEMOTRON],
    ..HUGGING_FACE
};

/// Norms and MLP of Falcon-H1.
const LAYERS_FALCON: &[LayerNames] = &[
    NORMS_BEFORE[0],
    names(MlpNorm, &["model.layers.{}.pre_ff_layernorm.weight"]),
    names(
        GateUp,
        &[
            "model.layers.{}.feed_forward.gate_proj.weight",
            "model.layers.{}.feed_forward.up_proj.weight",
        ],
    ),
    names(Down, &["model.layers.{}.feed_forward.down_proj.weight"]),
];

/// Falcon-H1.
pub(in crate::model) const FALCON_H1: TensorNames = TensorNames {
    final_norm: "model.final_layernorm.weight",
    layer: &[LAYERS_FALCON, ATTENTION, MAMBA2],
    ..HUGGING_FACE
};
