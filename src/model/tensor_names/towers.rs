//! Tensor names of towers and of what follows them.

use super::{HUGGING_FACE, LayerNames, TensorNames, names};
use crate::model::layer_weight::LayerWeight::*;

/// The layers of SigLIP.
const SIGLIP: &[LayerNames] = &[
    names(
        AttentionNorm,
        &["model.vision_model.encoder.layers.{}.layer_norm1.weight"],
    ),
    names(
        AttentionNormBias,
        &["model.vision_model.encoder.layers.{}.layer_norm1.bias"],
    ),
    names(
        Qkv,
        &[
            "model.vision_model.encoder.layers.{}.self_attn.q_proj.weight",
            "model.vision_model.encoder.layers.{}.self_attn.k_proj.weight",
            "model.vision_model.encoder.layers.{}.self_attn.v_proj.weight",
        ],
    ),
    names(
        QkvBias,
        &[
            "model.vision_model.encoder.layers.{}.self_attn.q_proj.bias",
            "model.vision_model.encoder.layers.{}.self_attn.k_proj.bias",
            "model.vision_model.encoder.layers.{}.self_attn.v_proj.bias",
        ],
    ),
    names(
        Output,
        &["model.vision_model.encoder.layers.{}.self_attn.out_proj.weight"],
    ),
    names(
        OutputBias,
        &["model.vision_model.encoder.layers.{}.self_attn.out_proj.bias"],
    ),
    names(
        MlpNorm,
        &["model.vision_model.encoder.layers.{}.layer_norm2.weight"],
    ),
    names(
        MlpNormBias,
        &["model.vision_model.encoder.layers.{}.layer_norm2.bias"],
    ),
    names(
        GateUp,
        &["model.vision_model.encoder.layers.{}.mlp.fc1.weight"],
    ),
    names(
        GateUpBias,
        &["model.vision_model.encoder.layers.{}.mlp.fc1.bias"],
    ),
    names(
        Down,
        &["model.vision_model.encoder.layers.{}.mlp.fc2.weight"],
    ),
    names(
        DownBias,
        &["model.vision_model.encoder.layers.{}.mlp.fc2.bias"],
    ),
];

/// Idefics 3 and SmolVLM.
pub(in crate::model) const IDEFICS3_VISION: TensorNames = TensorNames {
    embedding: "model.vision_model.embeddings.patch_embedding.weight",
    patch_bias: "model.vision_model.embeddings.patch_embedding.bias",
    positions: "model.vision_model.embeddings.position_embedding.weight",
    final_norm: "model.vision_model.post_layernorm.weight",
    final_norm_bias: "model.vision_model.post_layernorm.bias",
    merge: "model.connector.modality_projection.proj.weight",
    layer: &[SIGLIP],
    ..HUGGING_FACE
};

/// The layers of Pixtral.
const PIXTRAL_LAYERS: &[LayerNames] = &[
    names(
        AttentionNorm,
        &["vision_tower.transformer.layers.{}.attention_norm.weight"],
    ),
    names(
        Qkv,
        &[
            "vision_tower.transformer.layers.{}.attention.q_proj.weight",
            "vision_tower.transformer.layers.{}.attention.k_proj.weight",
            "vision_tower.transformer.layers.{}.attention.v_proj.weight",
        ],
    ),
    names(
        Output,
        &["vision_tower.transformer.layers.{}.attention.o_proj.weight"],
    ),
    names(
        MlpNorm,
        &["vision_tower.transformer.layers.{}.ffn_norm.weight"],
    ),
    names(
        GateUp,
        &[
            "vision_tower.transformer.layers.{}.feed_forward.gate_proj.weight",
            "vision_tower.transformer.layers.{}.feed_forward.up_proj.weight",
        ],
    ),
    names(
        Down,
        &["vision_tower.transformer.layers.{}.feed_forward.down_proj.weight"],
    ),
];

/// Mistral 3.
pub(in crate::model) const PIXTRAL: TensorNames = TensorNames {
    embedding: "vision_tower.patch_conv.weight",
    embedding_norm: ["vision_tower.ln_pre.weight", ""],
    final_norm: "multi_modal_projector.norm.weight",
    merge: "multi_modal_projector.patch_merger.merging_layer.weight",
    projector: [
        "multi_modal_projector.linear_1.weight",
        "multi_modal_projector.linear_2.weight",
    ],
    layer: &[PIXTRAL_LAYERS],
    ..HUGGING_FACE
};
