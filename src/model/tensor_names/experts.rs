//! Tensor names of families whose experts have names of their own.

use super::state::SHARED_MLP;
use super::*;

/// Experts of Mixtral, apart.
pub(super) const EXPERTS_MIXTRAL: &[LayerNames] = &[
    names(Router, &["model.layers.{}.block_sparse_moe.gate.weight"]),
    names(
        ExpertGateUp,
        &[
            "model.layers.{}.block_sparse_moe.experts.{e}.w1.weight",
            "model.layers.{}.block_sparse_moe.experts.{e}.w3.weight",
        ],
    ),
    names(
        ExpertDown,
        &["model.layers.{}.block_sparse_moe.experts.{e}.w2.weight"],
    ),
];

/// Mixtral.
pub(in crate::model) const MIXTRAL: TensorNames = TensorNames {
    layer: &[NORMS_BEFORE, ATTENTION, EXPERTS_MIXTRAL],
    ..HUGGING_FACE
};

/// Granite with experts beside an MLP that every token passes.
pub(in crate::model) const GRANITE_MOE_SHARED: TensorNames = TensorNames {
    layer: &[NORMS_BEFORE, ATTENTION, GRANITE_EXPERTS, SHARED_MLP],
    ..HUGGING_FACE
};

/// The MLP of Hunyuan that every token passes.
const SHARED_HUNYUAN: &[LayerNames] = &[
    names(
        SharedGateUp,
        &[
            "model.layers.{}.mlp.shared_mlp.gate_proj.weight",
            "model.layers.{}.mlp.shared_mlp.up_proj.weight",
        ],
    ),
    names(
        SharedDown,
        &["model.layers.{}.mlp.shared_mlp.down_proj.weight"],
    ),
];

/// The router of Hunyuan 3.
const ROUTER_HY_V3: &[LayerNames] = &[
    names(Router, &["model.layers.{}.mlp.router.gate.weight"]),
    names(RouterChoiceBias, &["model.layers.{}.mlp.expert_bias"]),
];

/// Hunyuan 3.
pub(in crate::model) const HY_V3: TensorNames = TensorNames {
    layer: &[
        NORMS_BEFORE,
        ATTENTION,
        GATED_MLP,
        ROUTER_HY_V3,
        SHARED_HUNYUAN,
        MATRICES_APART,
    ],
    ..HUGGING_FACE
};

/// The router of Hunyuan with experts.
const ROUTER_HUNYUAN: &[LayerNames] = &[names(Router, &["model.layers.{}.mlp.gate.wg.weight"])];

/// Hunyuan with experts.
pub(in crate::model) const HUNYUAN_MOE: TensorNames = TensorNames {
    layer: &[
        NORMS_BEFORE,
        ATTENTION_HUNYUAN,
        ROUTER_HUNYUAN,
        SHARED_HUNYUAN,
        MATRICES_APART,
    ],
    ..HUGGING_FACE
};

/// The bias of K-EXAONE's router.
const CHOICE_EXAONE: &[LayerNames] = &[names(
    RouterChoiceBias,
    &["model.layers.{}.mlp.e_score_correction_bias"],
)];

/// K-EXAONE.
pub(in crate::model) const EXAONE_MOE: TensorNames = TensorNames {
    layer: &[
        NORMS_BEFORE,
        ATTENTION,
        GATED_MLP,
        ROUTER,
        CHOICE_EXAONE,
        SHARED_EXPERTS,
        MATRICES_APART,
    ],
    ..HUGGING_FACE
};

/// Experts in two tensors: published by columns, saved again by rows.
const EXPERTS_BY_COLUMNS: &[LayerNames] = &[
    stacked(
        ExpertGateUp,
        &["model.layers.{}.mlp.experts.gate_up_proj"],
        Order::Transposed,
    ),
    stacked(
        ExpertDown,
        &["model.layers.{}.mlp.experts.down_proj"],
        Order::Transposed,
    ),
];

/// Qwen 3 VL with experts.
pub(in crate::model) const QWEN3_VL_MOE: TensorNames = TensorNames {
    layer: &[
        NORMS_BEFORE,
        ATTENTION,
        GATED_MLP,
        ROUTER,
        EXPERTS_BY_COLUMNS,
        MATRICES_APART,
    ],
    ..HUGGING_FACE
};

/// MiniMax M2.
pub(in crate::model) const MINIMAX_M2: TensorNames = TensorNames {
    layer: &[NORMS_BEFORE, ATTENTION, EXPERTS_MIXTRAL, CHOICE_MINIMAX],
    ..HUGGING_FACE
};

/// The bias of MiniMax's router.
const CHOICE_MINIMAX: &[LayerNames] = &[names(
    RouterChoiceBias,
    &["model.layers.{}.block_sparse_moe.e_score_correction_bias"],
)];

/// Norms around, with the names of Trinity.
const NORMS_AROUND_AFMOE: &[LayerNames] = &[
    NORMS_AROUND[0],
    NORMS_AROUND[1],
    names(MlpNorm, &["model.layers.{}.pre_mlp_layernorm.weight"]),
    names(MlpPostNorm, &["model.layers.{}.post_mlp_layernorm.weight"]),
];

/// Trinity.
pub(in crate::model) const AFMOE: TensorNames = TensorNames {
    layer: &[
        NORMS_AROUND_AFMOE,
        ATTENTION_GATED,
        GATED_MLP,
        ROUTER_HY_V3,
        SHARED_EXPERTS,
        MATRICES_APART,
    ],
    ..HUGGING_FACE
};

/// The bias of Ernie's router, a matrix of one row.
const CHOICE_ERNIE: &[LayerNames] = &[names(
    RouterChoiceBias,
    &["model.layers.{}.mlp.moe_statics.e_score_correction_bias"],
)];

/// Ernie 4.5 with experts.
pub(in crate::model) const ERNIE4_5_MOE: TensorNames = TensorNames {
    layer: &[
        NORMS_BEFORE,
        ATTENTION,
        GATED_MLP,
        ROUTER,
        CHOICE_ERNIE,
        SHARED_EXPERTS,
        MATRICES_APART,
    ],
    ..HUGGING_FACE
};
