//! Names of the tensors of decoders with layers that keep a state.

use super::{
    ATTENTION, EXPERTS_APART, GATED_MLP, GRANITE_EXPERTS, HUGGING_FACE, LayerNames, NORMS_AFTER,
    NORMS_BEFORE, Order, SHARED_EXPERT, TensorNames, names, stacked,
};

/// What LFM2 has besides its MLP: norms, attention or a short convolution.
const MIXERS_LFM2: &[LayerNames] = &[
    names("attention_norm", &["model.layers.{}.operator_norm.weight"]),
    names("mlp_norm", &["model.layers.{}.ffn_norm.weight"]),
    ATTENTION[0],
    names("q_norm", &["model.layers.{}.self_attn.q_layernorm.weight"]),
    names("k_norm", &["model.layers.{}.self_attn.k_layernorm.weight"]),
    names("output", &["model.layers.{}.self_attn.out_proj.weight"]),
    names(
        "convolution_input",
        &["model.layers.{}.conv.in_proj.weight"],
    ),
    names(
        "convolution_input_bias",
        &["model.layers.{}.conv.in_proj.bias"],
    ),
    names("convolution", &["model.layers.{}.conv.conv.weight"]),
    names("convolution_bias", &["model.layers.{}.conv.conv.bias"]),
    names(
        "convolution_output",
        &["model.layers.{}.conv.out_proj.weight"],
    ),
    names(
        "convolution_output_bias",
        &["model.layers.{}.conv.out_proj.bias"],
    ),
];

/// [`GATED_MLP`] of LFM2.
const MLP_LFM2: &[LayerNames] = &[
    names(
        "gate_up",
        &[
            "model.layers.{}.feed_forward.w1.weight",
            "model.layers.{}.feed_forward.w3.weight",
        ],
    ),
    names("down", &["model.layers.{}.feed_forward.w2.weight"]),
];

/// LFM2.
pub(in crate::model) const LFM2: TensorNames = TensorNames {
    final_norm: "model.embedding_norm.weight",
    layer: &[MIXERS_LFM2, MLP_LFM2],
    ..HUGGING_FACE
};

/// Experts of LFM2.
const EXPERTS_LFM2: &[LayerNames] = &[
    names("router", &["model.layers.{}.feed_forward.gate.weight"]),
    names(
        "router_choice_bias",
        &["model.layers.{}.feed_forward.expert_bias"],
    ),
    names(
        "expert_gate_up",
        &[
            "model.layers.{}.feed_forward.experts.{e}.w1.weight",
            "model.layers.{}.feed_forward.experts.{e}.w3.weight",
        ],
    ),
    names(
        "expert_down",
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
        "attention_post_norm",
        &["model.layers.{}.post_operator_norm.weight"],
    ),
    MIXERS_LFM2[1],
    names("mlp_post_norm", &["model.layers.{}.post_ffn_norm.weight"]),
    names(
        "qkv",
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
    stacked("qkv", ATTENTION[0].tensors, Order::GatedHeads),
    ATTENTION[2],
    ATTENTION[3],
    ATTENTION[4],
];

/// A state with the gated delta rule.
const DELTA: &[LayerNames] = &[
    names(
        "state_input",
        &[
            "model.layers.{}.linear_attn.in_proj_qkv.weight",
            "model.layers.{}.linear_attn.in_proj_z.weight",
            "model.layers.{}.linear_attn.in_proj_b.weight",
            "model.layers.{}.linear_attn.in_proj_a.weight",
        ],
    ),
    names(
        "state_convolution",
        &["model.layers.{}.linear_attn.conv1d.weight"],
    ),
    names("state_decay", &["model.layers.{}.linear_attn.A_log"]),
    names("state_dt_bias", &["model.layers.{}.linear_attn.dt_bias"]),
    names("state_norm", &["model.layers.{}.linear_attn.norm.weight"]),
    names(
        "state_output",
        &["model.layers.{}.linear_attn.out_proj.weight"],
    ),
];

/// [`DELTA`] with the input by key heads; in GGUF, only its gates are.
const DELTA_BY_HEADS: &[LayerNames] = &[
    stacked(
        "state_input",
        &[
            "model.layers.{}.linear_attn.in_proj_qkvz.weight",
            "model.layers.{}.linear_attn.in_proj_ba.weight",
        ],
        Order::KeyHeads,
    ),
    stacked(
        "state_input",
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
        "expert_gate_up",
        &["model.layers.{}.mlp.experts.gate_up_proj"],
        Order::Experts,
    ),
    stacked(
        "expert_down",
        &["model.layers.{}.mlp.experts.down_proj"],
        Order::Experts,
    ),
];

/// Qwen 3.5.
pub(in crate::model) const QWEN3_5: TensorNames = TensorNames {
    layer: &[NORMS_BEFORE, ATTENTION_GATED, DELTA, GATED_MLP],
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
    ..HUGGING_FACE
};

/// Norms before, of layers with a state in OLMo hybrid.
const NORMS_BEFORE_OLMO: &[LayerNames] = &[
    names(
        "attention_norm",
        &["model.layers.{}.attention_layer_norm.weight"],
    ),
    names(
        "mlp_norm",
        &["model.layers.{}.feedforward_layer_norm.weight"],
    ),
];

/// [`DELTA`] of OLMo hybrid.
const DELTA_OLMO: &[LayerNames] = &[
    stacked(
        "state_input",
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
    stacked(
        "state_convolution",
        &[
            "model.layers.{}.linear_attn.q_conv1d.weight",
            "model.layers.{}.linear_attn.k_conv1d.weight",
            "model.layers.{}.linear_attn.v_conv1d.weight",
        ],
        Order::Apart,
    ),
    DELTA[2],
    DELTA[3],
    names("state_norm", &["model.layers.{}.linear_attn.o_norm.weight"]),
    names(
        "state_output",
        &["model.layers.{}.linear_attn.o_proj.weight"],
    ),
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
        "state_input",
        &["model.layers.{}.mamba.in_proj.weight"],
        Order::ZFirst,
    ),
    stacked(
        "state_input_bias",
        &["model.layers.{}.mamba.in_proj.bias"],
        Order::ZFirst,
    ),
    names(
        "state_convolution",
        &["model.layers.{}.mamba.conv1d.weight"],
    ),
    names(
        "state_convolution_bias",
        &["model.layers.{}.mamba.conv1d.bias"],
    ),
    names("state_decay", &["model.layers.{}.mamba.A_log"]),
    names("state_dt_bias", &["model.layers.{}.mamba.dt_bias"]),
    names("state_skip", &["model.layers.{}.mamba.D"]),
    names("state_norm", &["model.layers.{}.mamba.norm.weight"]),
    names("state_output", &["model.layers.{}.mamba.out_proj.weight"]),
    names(
        "state_output_bias",
        &["model.layers.{}.mamba.out_proj.bias"],
    ),
];

/// The MLP of Granite 4, which is called shared even if there are no experts.
const SHARED_MLP: &[LayerNames] = &[
    names(
        "gate_up",
        &["model.layers.{}.shared_mlp.input_linear.weight"],
    ),
    names("down", &["model.layers.{}.shared_mlp.output_linear.weight"]),
    names(
        "shared_gate_up",
        &["model.layers.{}.shared_mlp.input_linear.weight"],
    ),
    names(
        "shared_down",
        &["model.layers.{}.shared_mlp.output_linear.weight"],
    ),
];

/// [`SHARED_MLP`] and experts of Granite 4 in GGUF, where gate and up are separate, and so are experts.
const MLP_GRANITE_APART: &[LayerNames] = &[
    names(
        "gate_up",
        &[
            "model.layers.{}.shared_mlp.gate_proj.weight",
            "model.layers.{}.shared_mlp.up_proj.weight",
        ],
    ),
    names(
        "shared_gate_up",
        &[
            "model.layers.{}.shared_mlp.gate_proj.weight",
            "model.layers.{}.shared_mlp.up_proj.weight",
        ],
    ),
    names(
        "expert_gate_up",
        &[
            "model.layers.{}.block_sparse_moe.experts.{e}.gate_proj.weight",
            "model.layers.{}.block_sparse_moe.experts.{e}.up_proj.weight",
        ],
    ),
    names(
        "expert_down",
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
    names("attention_norm", &["backbone.layers.{}.norm.weight"]),
    names("mlp_norm", &["backbone.layers.{}.norm.weight"]),
    names(
        "qkv",
        &[
            "backbone.layers.{}.mixer.q_proj.weight",
            "backbone.layers.{}.mixer.k_proj.weight",
            "backbone.layers.{}.mixer.v_proj.weight",
        ],
    ),
    names(
        "qkv_bias",
        &[
            "backbone.layers.{}.mixer.q_proj.bias",
            "backbone.layers.{}.mixer.k_proj.bias",
            "backbone.layers.{}.mixer.v_proj.bias",
        ],
    ),
    names("output", &["backbone.layers.{}.mixer.o_proj.weight"]),
    names("output_bias", &["backbone.layers.{}.mixer.o_proj.bias"]),
    stacked(
        "state_input",
        &["backbone.layers.{}.mixer.in_proj.weight"],
        Order::ZFirst,
    ),
    stacked(
        "state_input_bias",
        &["backbone.layers.{}.mixer.in_proj.bias"],
        Order::ZFirst,
    ),
    names(
        "state_convolution",
        &["backbone.layers.{}.mixer.conv1d.weight"],
    ),
    names(
        "state_convolution_bias",
        &["backbone.layers.{}.mixer.conv1d.bias"],
    ),
    names("state_decay", &["backbone.layers.{}.mixer.A_log"]),
    names("state_dt_bias", &["backbone.layers.{}.mixer.dt_bias"]),
    names("state_skip", &["backbone.layers.{}.mixer.D"]),
    names("state_norm", &["backbone.layers.{}.mixer.norm.weight"]),
    names(
        "state_output",
        &["backbone.layers.{}.mixer.out_proj.weight"],
    ),
    names(
        "state_output_bias",
        &["backbone.layers.{}.mixer.out_proj.bias"],
    ),
    names("gate_up", &["backbone.layers.{}.mixer.up_proj.weight"]),
    names("gate_up_bias", &["backbone.layers.{}.mixer.up_proj.bias"]),
    names("down", &["backbone.layers.{}.mixer.down_proj.weight"]),
    names("down_bias", &["backbone.layers.{}.mixer.down_proj.bias"]),
    names("router", &["backbone.layers.{}.mixer.gate.weight"]),
    names(
        "router_choice_bias",
        &["backbone.layers.{}.mixer.gate.e_score_correction_bias"],
    ),
    names(
        "expert_gate_up",
        &["backbone.layers.{}.mixer.experts.{e}.up_proj.weight"],
    ),
    names(
        "expert_down",
        &["backbone.layers.{}.mixer.experts.{e}.down_proj.weight"],
    ),
    names(
        "expert_input",
        &["backbone.layers.{}.mixer.fc1_latent_proj.weight"],
    ),
    names(
        "expert_output",
        &["backbone.layers.{}.mixer.fc2_latent_proj.weight"],
    ),
    names(
        "shared_gate_up",
        &["backbone.layers.{}.mixer.shared_experts.up_proj.weight"],
    ),
    names(
        "shared_down",
        &["backbone.layers.{}.mixer.shared_experts.down_proj.weight"],
    ),
];

/// Nemotron-H.
pub(in crate::model) const NEMOTRON_H: TensorNames = TensorNames {
    embedding: "backbone.embeddings.weight",
    final_norm: "backbone.norm_f.weight",
    layer: &[BLOCKS_NEMOTRON],
    ..HUGGING_FACE
};

/// Norms and MLP of Falcon-H1.
const LAYERS_FALCON: &[LayerNames] = &[
    NORMS_BEFORE[0],
    names("mlp_norm", &["model.layers.{}.pre_ff_layernorm.weight"]),
    names(
        "gate_up",
        &[
            "model.layers.{}.feed_forward.gate_proj.weight",
            "model.layers.{}.feed_forward.up_proj.weight",
        ],
    ),
    names("down", &["model.layers.{}.feed_forward.down_proj.weight"]),
];

/// Falcon-H1.
pub(in crate::model) const FALCON_H1: TensorNames = TensorNames {
    final_norm: "model.final_layernorm.weight",
    layer: &[LAYERS_FALCON, ATTENTION, MAMBA2],
    ..HUGGING_FACE
};
