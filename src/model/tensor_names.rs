//! Tensor names in each family's checkpoints: one [`TensorNames`] table per naming scheme.

/// The tensor names of a family. In names of a layer, `{}` is the layer's number.
#[derive(Debug, PartialEq)]
pub(super) struct TensorNames {
    pub(super) embedding: &'static str,
    pub(super) final_norm: &'static str,
    pub(super) head: &'static str,
    pub(super) layer: &'static [&'static [LayerNames]],
}

/// Tensors whose rows are stacked to form the plan's weight `layers.N.<weight>`. Names with `{e}` stand for one tensor
/// per expert, repeated for each expert in turn.
#[derive(Debug, PartialEq)]
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
}

impl Order {
    /// The stored position of row `row` of the `rows` rows of an expert.
    pub(super) fn stored_row(self, row: usize, rows: usize) -> usize {
        match self {
            Self::Rows | Self::Experts | Self::Transposed => row,
            Self::ExpertsInterleaved | Self::TransposedInterleaved => row % (rows / 2) * 2 + row / (rows / 2),
        }
    }
}

const fn names(weight: &'static str, tensors: &'static [&'static str]) -> LayerNames {
    LayerNames { weight, tensors, order: Order::Rows }
}

const fn stacked(weight: &'static str, tensors: &'static [&'static str], order: Order) -> LayerNames {
    LayerNames { weight, tensors, order }
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
    names("gate_up", &["model.layers.{}.mlp.gate_proj.weight", "model.layers.{}.mlp.up_proj.weight"]),
    names("gate_up_bias", &["model.layers.{}.mlp.gate_proj.bias", "model.layers.{}.mlp.up_proj.bias"]),
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
    names("attention_norm", &["model.layers.{}.input_layernorm.weight"]),
    names("mlp_norm", &["model.layers.{}.post_attention_layernorm.weight"]),
];

/// Norms on both sides of attention and of the MLP.
const NORMS_AROUND: &[LayerNames] = &[
    names("attention_norm", &["model.layers.{}.input_layernorm.weight"]),
    names("attention_post_norm", &["model.layers.{}.post_attention_layernorm.weight"]),
    names("mlp_norm", &["model.layers.{}.pre_feedforward_layernorm.weight"]),
    names("mlp_post_norm", &["model.layers.{}.post_feedforward_layernorm.weight"]),
];

/// A norm after attention and one after the MLP.
const NORMS_AFTER: &[LayerNames] = &[
    names("attention_post_norm", &["model.layers.{}.post_attention_layernorm.weight"]),
    names("mlp_post_norm", &["model.layers.{}.post_feedforward_layernorm.weight"]),
];

/// Experts with separate tensors: three matrices each, and possibly biases in GGUF.
const EXPERTS_APART: &[LayerNames] = &[
    names("router", &["model.layers.{}.mlp.gate.weight"]),
    names("router_bias", &["model.layers.{}.mlp.gate.bias"]),
    names(
        "expert_gate_up_bias",
        &["model.layers.{}.mlp.experts.{e}.gate_proj.bias", "model.layers.{}.mlp.experts.{e}.up_proj.bias"],
    ),
    names("expert_down_bias", &["model.layers.{}.mlp.experts.{e}.down_proj.bias"]),
    names(
        "expert_gate_up",
        &["model.layers.{}.mlp.experts.{e}.gate_proj.weight", "model.layers.{}.mlp.experts.{e}.up_proj.weight"],
    ),
    names("expert_down", &["model.layers.{}.mlp.experts.{e}.down_proj.weight"]),
];

/// Norms around, with the names of GLM 4.
const NORMS_AROUND_GLM: &[LayerNames] = &[
    names("attention_norm", &["model.layers.{}.input_layernorm.weight"]),
    names("attention_post_norm", &["model.layers.{}.post_self_attn_layernorm.weight"]),
    names("mlp_norm", &["model.layers.{}.post_attention_layernorm.weight"]),
    names("mlp_post_norm", &["model.layers.{}.post_mlp_layernorm.weight"]),
];

/// [`GATED_MLP`] of Granite 4, which is called shared even if there are no experts.
const SHARED_MLP: &[LayerNames] = &[
    names("gate_up", &["model.layers.{}.shared_mlp.input_linear.weight"]),
    names("down", &["model.layers.{}.shared_mlp.output_linear.weight"]),
];

/// Experts of Granite: all in one tensor.
const GRANITE_EXPERTS: &[LayerNames] = &[
    names("router", &["model.layers.{}.block_sparse_moe.router.layer.weight"]),
    stacked("expert_gate_up", &["model.layers.{}.block_sparse_moe.input_linear.weight"], Order::Experts),
    stacked("expert_down", &["model.layers.{}.block_sparse_moe.output_linear.weight"], Order::Experts),
];

/// Experts of gpt-oss: all in one tensor.
const GPT_OSS_EXPERTS: &[LayerNames] = &[
    names("router", &["model.layers.{}.mlp.router.weight"]),
    names("router_bias", &["model.layers.{}.mlp.router.bias"]),
    stacked("expert_gate_up", &["model.layers.{}.mlp.experts.gate_up_proj"], Order::TransposedInterleaved),
    stacked("expert_gate_up_bias", &["model.layers.{}.mlp.experts.gate_up_proj_bias"], Order::TransposedInterleaved),
    stacked("expert_down", &["model.layers.{}.mlp.experts.down_proj"], Order::Transposed),
    stacked("expert_down_bias", &["model.layers.{}.mlp.experts.down_proj_bias"], Order::Transposed),
];

const SINKS: &[LayerNames] = &[names("sinks", &["model.layers.{}.self_attn.sinks"])];

const SINKS_APART: &[LayerNames] = &[names("sinks", &["model.layers.{}.self_attn.sinks.weight"])];

/// The naming scheme of Llama and most others.
pub(super) const HUGGING_FACE: TensorNames = TensorNames {
    embedding: "model.embed_tokens.weight",
    final_norm: "model.norm.weight",
    head: "lm_head.weight",
    layer: &[NORMS_BEFORE, ATTENTION, GATED_MLP],
};

/// Gemma 2 and 3.
pub(super) const GEMMA: TensorNames = TensorNames { layer: &[NORMS_AROUND, ATTENTION, GATED_MLP], ..HUGGING_FACE };

/// Phi 3: one tensor for q, k and v, one for gate and up.
pub(super) const PHI3: TensorNames = TensorNames { layer: &[NORMS_BEFORE, FUSED_ATTENTION, FUSED_MLP], ..HUGGING_FACE };

/// OLMo 2.
pub(super) const OLMO2: TensorNames = TensorNames { layer: &[NORMS_AFTER, ATTENTION, GATED_MLP], ..HUGGING_FACE };

/// GLM 4: one tensor for gate and up.
pub(super) const GLM4: TensorNames = TensorNames { layer: &[NORMS_AROUND_GLM, ATTENTION, FUSED_MLP], ..HUGGING_FACE };

/// Granite with experts.
pub(super) const GRANITE_MOE: TensorNames =
    TensorNames { layer: &[NORMS_BEFORE, ATTENTION, GRANITE_EXPERTS], ..HUGGING_FACE };

/// Granite 4.
pub(super) const GRANITE_HYBRID: TensorNames =
    TensorNames { layer: &[NORMS_BEFORE, ATTENTION, SHARED_MLP], ..HUGGING_FACE };

/// Qwen 3 with experts; some layers may have an MLP instead.
pub(super) const QWEN3_MOE: TensorNames =
    TensorNames { layer: &[NORMS_BEFORE, ATTENTION, GATED_MLP, EXPERTS_APART], ..HUGGING_FACE };

/// gpt-oss, in 16 bits or MXFP4.
pub(super) const GPT_OSS: TensorNames =
    TensorNames { layer: &[NORMS_BEFORE, ATTENTION, SINKS, GPT_OSS_EXPERTS], ..HUGGING_FACE };

/// gpt-oss in GGUF.
const GPT_OSS_APART: TensorNames =
    TensorNames { layer: &[NORMS_BEFORE, ATTENTION, SINKS_APART, EXPERTS_APART], ..HUGGING_FACE };

/// How the tensors of a checkpoint's text model are nested among those of other parts, such as vision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nesting {
    /// Not at all.
    Plain,
    /// `model.…` is called `model.language_model.…`.
    Inner,
    /// Everything has the prefix `language_model.`.
    Outer,
}

impl Nesting {
    /// The nesting with which `exists` knows `name`.
    pub(super) fn find(name: &str, exists: impl Fn(&str) -> bool) -> Self {
        let nestings = [Self::Plain, Self::Inner, Self::Outer];
        nestings.into_iter().find(|nesting| exists(&nesting.of(name))).unwrap_or(Self::Plain)
    }

    /// The nested name of a tensor.
    pub(super) fn of(self, name: &str) -> String {
        match (self, name.strip_prefix("model.")) {
            (Self::Inner, Some(rest)) => format!("model.language_model.{rest}"),
            (Self::Outer, _) => format!("language_model.{name}"),
            _ => name.into(),
        }
    }
}

impl TensorNames {
    /// The names of the same weights if each expert has its own tensors, as in GGUF.
    pub(super) fn with_experts_apart(&'static self) -> &'static Self {
        if *self == GPT_OSS { &GPT_OSS_APART } else { self }
    }
}
