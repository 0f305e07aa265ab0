//! Tensor names of families with experts whose layers differ, or whose routers are their own.

use super::experts::EXPERTS_MIXTRAL;
use super::*;

/// Llama 4. Experts are stored by columns; in some quantized checkpoints, each has its own tensors.
pub(in crate::model) const LLAMA4: TensorNames = TensorNames {
    layer: &[NORMS_BEFORE, ATTENTION, FEED_FORWARD_LLAMA4],
    ..HUGGING_FACE
};

const FEED_FORWARD_LLAMA4: &[LayerNames] = &[
    names(
        GateUp,
        &[
            "model.layers.{}.feed_forward.gate_proj.weight",
            "model.layers.{}.feed_forward.up_proj.weight",
        ],
    ),
    names(Down, &["model.layers.{}.feed_forward.down_proj.weight"]),
    names(Router, &["model.layers.{}.feed_forward.router.weight"]),
    stacked(
        ExpertGateUp,
        &["model.layers.{}.feed_forward.experts.gate_up_proj"],
        Order::Transposed,
    ),
    stacked(
        ExpertDown,
        &["model.layers.{}.feed_forward.experts.down_proj"],
        Order::Transposed,
    ),
    names(
        ExpertGateUp,
        &[
            "model.layers.{}.feed_forward.experts.{e}.gate_proj.weight",
            "model.layers.{}.feed_forward.experts.{e}.up_proj.weight",
        ],
    ),
    names(
        ExpertDown,
        &["model.layers.{}.feed_forward.experts.{e}.down_proj.weight"],
    ),
    names(
        SharedGateUp,
        &[
            "model.layers.{}.feed_forward.shared_expert.gate_proj.weight",
            "model.layers.{}.feed_forward.shared_expert.up_proj.weight",
        ],
    ),
    names(
        SharedDown,
        &["model.layers.{}.feed_forward.shared_expert.down_proj.weight"],
    ),
];

/// Attention whose output has gates in `g_proj`.
const ATTENTION_G: &[LayerNames] = &[
    names(
        Qkv,
        &[
            "model.layers.{}.self_attn.q_proj.weight",
            "model.layers.{}.self_attn.k_proj.weight",
            "model.layers.{}.self_attn.v_proj.weight",
            "model.layers.{}.self_attn.g_proj.weight",
        ],
    ),
    ATTENTION[2],
    ATTENTION[3],
    ATTENTION[4],
];

/// The bias of Laguna's router.
const CHOICE_LAGUNA: &[LayerNames] = &[names(
    RouterChoiceBias,
    &["model.layers.{}.mlp.experts.e_score_correction_bias"],
)];

/// Laguna.
pub(in crate::model) const LAGUNA: TensorNames = TensorNames {
    layer: &[
        NORMS_BEFORE,
        ATTENTION_G,
        GATED_MLP,
        ROUTER,
        CHOICE_LAGUNA,
        SHARED_EXPERT,
        MATRICES_APART,
    ],
    ..HUGGING_FACE
};

/// Phi with experts.
pub(in crate::model) const PHI_MOE: TensorNames = TensorNames {
    layer: &[NORMS_BEFORE, NORM_BIASES, ATTENTION, EXPERTS_MIXTRAL],
    ..HUGGING_FACE
};

/// Experts of Step 3, in three stacks.
const EXPERTS_STEP3: &[LayerNames] = &[
    names(Router, &["model.layers.{}.moe.gate.weight"]),
    names(RouterChoiceBias, &["model.layers.{}.moe.router_bias"]),
    stacked(
        ExpertGateUp,
        &[
            "model.layers.{}.moe.gate_proj.weight",
            "model.layers.{}.moe.up_proj.weight",
        ],
        Order::Experts,
    ),
    stacked(
        ExpertDown,
        &["model.layers.{}.moe.down_proj.weight"],
        Order::Experts,
    ),
    names(
        SharedGateUp,
        &[
            "model.layers.{}.share_expert.gate_proj.weight",
            "model.layers.{}.share_expert.up_proj.weight",
        ],
    ),
    names(
        SharedDown,
        &["model.layers.{}.share_expert.down_proj.weight"],
    ),
];

/// Step 3.5, and the text model of Step 3.7.
pub(in crate::model) const STEP3P5: TensorNames = TensorNames {
    layer: &[NORMS_BEFORE, ATTENTION_G, GATED_MLP, EXPERTS_STEP3],
    ..HUGGING_FACE
};

/// Experts of Mistral 4, in two stacks, stored by rows.
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

/// Mistral 4.
pub(in crate::model) const MISTRAL4: TensorNames = TensorNames {
    layer: &[
        NORMS_BEFORE,
        ATTENTION_LATENT,
        GATED_MLP,
        ROUTER,
        SHARED_EXPERTS,
        EXPERTS_STACKED,
        MATRICES_APART,
    ],
    ..HUGGING_FACE
};
