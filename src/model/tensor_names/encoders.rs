//! Tensor names of encoders, without the prefix that files saved from a class with a head have.

use super::{HUGGING_FACE, LayerNames, Order, TensorNames, names, stacked};
use crate::model::layer_weight::LayerWeight::*;

/// q, k and v, and the output projection, of BERT.
const ATTENTION: &[LayerNames] = &[
    names(
        Qkv,
        &[
            "encoder.layer.{}.attention.self.query.weight",
            "encoder.layer.{}.attention.self.key.weight",
            "encoder.layer.{}.attention.self.value.weight",
        ],
    ),
    names(
        QkvBias,
        &[
            "encoder.layer.{}.attention.self.query.bias",
            "encoder.layer.{}.attention.self.key.bias",
            "encoder.layer.{}.attention.self.value.bias",
        ],
    ),
    names(Output, &["encoder.layer.{}.attention.output.dense.weight"]),
    names(
        OutputBias,
        &["encoder.layer.{}.attention.output.dense.bias"],
    ),
    names(
        AttentionPostNorm,
        &["encoder.layer.{}.attention.output.LayerNorm.weight"],
    ),
    names(
        AttentionPostNormBias,
        &["encoder.layer.{}.attention.output.LayerNorm.bias"],
    ),
    // Older files.
    names(
        AttentionPostNorm,
        &["encoder.layer.{}.attention.output.LayerNorm.gamma"],
    ),
    names(
        AttentionPostNormBias,
        &["encoder.layer.{}.attention.output.LayerNorm.beta"],
    ),
];

/// The MLP of BERT and the norm after it.
const MLP: &[LayerNames] = &[
    names(GateUp, &["encoder.layer.{}.intermediate.dense.weight"]),
    names(GateUpBias, &["encoder.layer.{}.intermediate.dense.bias"]),
    names(Down, &["encoder.layer.{}.output.dense.weight"]),
    names(DownBias, &["encoder.layer.{}.output.dense.bias"]),
    names(MlpPostNorm, &["encoder.layer.{}.output.LayerNorm.weight"]),
    names(MlpPostNormBias, &["encoder.layer.{}.output.LayerNorm.bias"]),
    names(MlpPostNorm, &["encoder.layer.{}.output.LayerNorm.gamma"]),
    names(MlpPostNormBias, &["encoder.layer.{}.output.LayerNorm.beta"]),
];

/// BERT, and RoBERTa with its relatives.
pub(in crate::model) const BERT: TensorNames = TensorNames {
    embedding: "embeddings.word_embeddings.weight",
    embedding_norm: ["embeddings.LayerNorm.weight", "embeddings.LayerNorm.bias"],
    positions: "embeddings.position_embeddings.weight",
    texts: "embeddings.token_type_embeddings.weight",
    layer: &[ATTENTION, MLP],
    ..HUGGING_FACE
};

/// Jina v2.
pub(in crate::model) const JINA_BERT: TensorNames = TensorNames {
    layer: &[
        ATTENTION,
        &[
            names(GateUp, &["encoder.layer.{}.mlp.gated_layers.weight"]),
            names(Down, &["encoder.layer.{}.mlp.wo.weight"]),
            names(DownBias, &["encoder.layer.{}.mlp.wo.bias"]),
            names(MlpPostNorm, &["encoder.layer.{}.mlp.layernorm.weight"]),
            names(MlpPostNormBias, &["encoder.layer.{}.mlp.layernorm.bias"]),
        ],
    ],
    ..BERT
};

/// GTE v1.5.
pub(in crate::model) const GTE: TensorNames = TensorNames {
    layer: &[&[
        names(Qkv, &["encoder.layer.{}.attention.qkv_proj.weight"]),
        names(QkvBias, &["encoder.layer.{}.attention.qkv_proj.bias"]),
        names(Output, &["encoder.layer.{}.attention.o_proj.weight"]),
        names(OutputBias, &["encoder.layer.{}.attention.o_proj.bias"]),
        names(AttentionPostNorm, &["encoder.layer.{}.attn_ln.weight"]),
        names(AttentionPostNormBias, &["encoder.layer.{}.attn_ln.bias"]),
        stacked(
            GateUp,
            &["encoder.layer.{}.mlp.up_gate_proj.weight"],
            Order::UpFirst,
        ),
        names(Down, &["encoder.layer.{}.mlp.down_proj.weight"]),
        names(DownBias, &["encoder.layer.{}.mlp.down_proj.bias"]),
        names(MlpPostNorm, &["encoder.layer.{}.mlp_ln.weight"]),
        names(MlpPostNormBias, &["encoder.layer.{}.mlp_ln.bias"]),
    ]],
    ..BERT
};

/// Norms after attention and MLP, of Nomic and Jina v3.
const NUMBERED_NORMS: &[LayerNames] = &[
    names(AttentionPostNorm, &["encoder.layers.{}.norm1.weight"]),
    names(AttentionPostNormBias, &["encoder.layers.{}.norm1.bias"]),
    names(MlpPostNorm, &["encoder.layers.{}.norm2.weight"]),
    names(MlpPostNormBias, &["encoder.layers.{}.norm2.bias"]),
];

/// The last product of their MLPs.
const SECOND_PRODUCT: &[LayerNames] = &[
    names(Down, &["encoder.layers.{}.mlp.fc2.weight"]),
    names(DownBias, &["encoder.layers.{}.mlp.fc2.bias"]),
];

/// Nomic v1.
pub(in crate::model) const NOMIC_BERT: TensorNames = TensorNames {
    embedding_norm: ["emb_ln.weight", "emb_ln.bias"],
    layer: &[
        NUMBERED_NORMS,
        SECOND_PRODUCT,
        &[
            names(Qkv, &["encoder.layers.{}.attn.Wqkv.weight"]),
            names(QkvBias, &["encoder.layers.{}.attn.Wqkv.bias"]),
            names(Output, &["encoder.layers.{}.attn.out_proj.weight"]),
            names(OutputBias, &["encoder.layers.{}.attn.out_proj.bias"]),
            names(
                GateUp,
                &[
                    "encoder.layers.{}.mlp.fc12.weight",
                    "encoder.layers.{}.mlp.fc11.weight",
                ],
            ),
            names(
                GateUpBias,
                &[
                    "encoder.layers.{}.mlp.fc12.bias",
                    "encoder.layers.{}.mlp.fc11.bias",
                ],
            ),
        ],
    ],
    ..BERT
};

/// Jina v3.
pub(in crate::model) const JINA_V3: TensorNames = TensorNames {
    layer: &[
        NUMBERED_NORMS,
        SECOND_PRODUCT,
        &[
            names(Qkv, &["encoder.layers.{}.mixer.Wqkv.weight"]),
            names(QkvBias, &["encoder.layers.{}.mixer.Wqkv.bias"]),
            names(Output, &["encoder.layers.{}.mixer.out_proj.weight"]),
            names(OutputBias, &["encoder.layers.{}.mixer.out_proj.bias"]),
            names(GateUp, &["encoder.layers.{}.mlp.fc1.weight"]),
            names(GateUpBias, &["encoder.layers.{}.mlp.fc1.bias"]),
        ],
    ],
    ..NOMIC_BERT
};

/// ModernBERT.
pub(in crate::model) const MODERN_BERT: TensorNames = TensorNames {
    embedding: "embeddings.tok_embeddings.weight",
    embedding_norm: ["embeddings.norm.weight", "embeddings.norm.bias"],
    final_norm: "final_norm.weight",
    layer: &[&[
        names(AttentionNorm, &["layers.{}.attn_norm.weight"]),
        names(Qkv, &["layers.{}.attn.Wqkv.weight"]),
        names(QkvBias, &["layers.{}.attn.Wqkv.bias"]),
        names(Output, &["layers.{}.attn.Wo.weight"]),
        names(OutputBias, &["layers.{}.attn.Wo.bias"]),
        names(MlpNorm, &["layers.{}.mlp_norm.weight"]),
        names(GateUp, &["layers.{}.mlp.Wi.weight"]),
        names(GateUpBias, &["layers.{}.mlp.Wi.bias"]),
        names(Down, &["layers.{}.mlp.Wo.weight"]),
        names(DownBias, &["layers.{}.mlp.Wo.bias"]),
    ]],
    ..HUGGING_FACE
};
