//! The rows of encoders, whose rows see each other in both directions.

use super::attention::{LLAMA, UNBIASED, UNBIASED_MLP};
use super::{
    ActivationField, AttentionRow, Family, Flag, MlpRow, NormsRow, Positions, RopeRow, Ropes,
    TablesRow, Windows,
};
use crate::model::spec::NormPlace;
use crate::model::tensor_names;
use crate::plan::Activation;

pub(in crate::model) const BERT: Family = Family {
    architecture: "BertModel",
    model_type: "bert",
    fixed: &[
        ("position_embedding_type", "\"absolute\""),
        ("is_decoder", "false"),
        ("add_cross_attention", "false"),
    ],
    tables: TablesRow {
        positions: Positions::FromZero,
        texts: true,
    },
    norms: NormsRow {
        place: NormPlace::AfterSum,
        center: true,
        bias: true,
        embedding: true,
        last: false,
        epsilon: "layer_norm_eps",
        ..LLAMA.norms
    },
    attention: AttentionRow {
        qkv_bias: Flag::Always,
        output_bias: Flag::Always,
        both_ways: Flag::Always,
        ..LLAMA.attention
    },
    rope: RopeRow {
        layers: Ropes::Never,
        ..LLAMA.rope
    },
    mlp: MlpRow {
        activation: ActivationField::HiddenAct(Activation::Gelu),
        gated: false,
        bias: Flag::Always,
        ..LLAMA.mlp
    },
    tensors: &tensor_names::BERT,
    ..LLAMA
};

pub(in crate::model) const ROBERTA: Family = Family {
    architecture: "RobertaModel",
    model_type: "roberta",
    tables: TablesRow {
        positions: Positions::AfterPad,
        ..BERT.tables
    },
    ..BERT
};

pub(in crate::model) const XLM_ROBERTA: Family = Family {
    architecture: "XLMRobertaModel",
    model_type: "xlm-roberta",
    ..ROBERTA
};

pub(in crate::model) const CAMEMBERT: Family = Family {
    architecture: "CamembertModel",
    model_type: "camembert",
    ..ROBERTA
};

pub(in crate::model) const MODERN_BERT: Family = Family {
    architecture: "ModernBertModel",
    model_type: "modernbert",
    fields: &[
        ("sliding_window", "local_attention"),
        ("sliding_window_pattern", "global_attn_every_n_layers"),
        ("rope_theta", "global_rope_theta"),
        ("rope_local_base_freq", "local_rope_theta"),
    ],
    fixed: &[("norm_bias", "false")],
    tables: LLAMA.tables,
    norms: NormsRow {
        place: NormPlace::Before,
        first: Some(NormPlace::BeforeMlp),
        bias: false,
        last: true,
        epsilon: "norm_eps",
        ..BERT.norms
    },
    attention: AttentionRow {
        windows: Windows::AfterFirst(3),
        both_ways: Flag::Always,
        ..LLAMA.attention
    },
    rope: RopeRow {
        layers: Ropes::LocalAndGlobal,
        ..LLAMA.rope
    },
    mlp: MlpRow {
        activation: ActivationField::HiddenActivation,
        ..LLAMA.mlp
    },
    tensors: &tensor_names::MODERN_BERT,
    ..LLAMA
};

/// Nomic v1 and v1.5. Layers with experts (v2) are refused.
pub(in crate::model) const NOMIC_BERT: Family = Family {
    architecture: "NomicBertModel",
    model_type: "nomic_bert",
    fields: &[
        ("hidden_size", "n_embd"),
        ("num_attention_heads", "n_head"),
        ("intermediate_size", "n_inner"),
        ("num_hidden_layers", "n_layer"),
        ("max_position_embeddings", "n_positions"),
        ("rope_theta", "rotary_emb_base"),
    ],
    fixed: &[
        ("causal", "false"),
        ("prenorm", "false"),
        ("parallel_block", "false"),
        ("use_rms_norm", "false"),
        ("rotary_emb_fraction", "1.0"),
        ("rotary_emb_interleaved", "false"),
        ("rotary_emb_scale_base", "null"),
        ("rotary_scaling_factor", "null"),
        ("moe_every_n_layers", "0"),
    ],
    tables: TablesRow {
        positions: Positions::Never,
        ..BERT.tables
    },
    norms: NormsRow {
        epsilon: "layer_norm_epsilon",
        ..BERT.norms
    },
    attention: AttentionRow {
        qkv_bias: Flag::UnlessField("qkv_proj_bias"),
        output_bias: Flag::UnlessField("qkv_proj_bias"),
        ..BERT.attention
    },
    rope: LLAMA.rope,
    mlp: MlpRow {
        activation: ActivationField::Function,
        gated: true,
        bias: Flag::UnlessField("mlp_fc1_bias"),
        down_bias: Some(Flag::UnlessField("mlp_fc2_bias")),
        ..BERT.mlp
    },
    tensors: &tensor_names::NOMIC_BERT,
    ..BERT
};

/// GTE v1.5 and its multilingual version.
pub(in crate::model) const GTE_NEW: Family = Family {
    architecture: "NewModel",
    model_type: "new",
    fixed: &[
        ("position_embedding_type", "\"rope\""),
        ("layer_norm_type", "\"layer_norm\""),
        ("pack_qkv", "true"),
        ("logn_attention_scale", "false"),
        ("logn_attention_clip1", "false"),
    ],
    tables: NOMIC_BERT.tables,
    rope: LLAMA.rope,
    mlp: MlpRow {
        gated: true,
        bias: Flag::Never,
        down_bias: Some(Flag::Always),
        ..BERT.mlp
    },
    tensors: &tensor_names::GTE,
    ..BERT
};

pub(in crate::model) const GTE: Family = Family {
    architecture: "GteModel",
    model_type: "gte",
    ..GTE_NEW
};

/// Jina v2, whose configs have the `model_type` of BERT.
pub(in crate::model) const JINA_BERT: Family = Family {
    architecture: "JinaBertModel",
    model_type: "jina_bert",
    fixed: &[
        ("position_embedding_type", "\"alibi\""),
        ("is_decoder", "false"),
    ],
    tables: NOMIC_BERT.tables,
    attention: AttentionRow {
        alibi: true,
        ..BERT.attention
    },
    mlp: MlpRow {
        activation: ActivationField::FeedForwardType,
        ..GTE_NEW.mlp
    },
    tensors: &tensor_names::JINA_BERT,
    ..BERT
};

/// Jina v3 without its adapters.
pub(in crate::model) const JINA_V3: Family = Family {
    architecture: "JinaEmbeddingsV3Model",
    model_type: "jina_embeddings_v3",
    fixed: &[],
    tables: NOMIC_BERT.tables,
    rope: LLAMA.rope,
    tensors: &tensor_names::JINA_V3,
    ..BERT
};

pub(in crate::model) const EURO_BERT: Family = Family {
    architecture: "EuroBertModel",
    model_type: "eurobert",
    attention: AttentionRow {
        both_ways: Flag::Always,
        ..UNBIASED
    },
    mlp: UNBIASED_MLP,
    ..LLAMA
};
