//! The rows of towers, which read the patches of images.

use super::attention::{LLAMA, UNBIASED, UNBIASED_MLP};
use super::{
    ActivationField, AttentionRow, Family, Flag, MlpRow, NormsRow, Positions, RopeRow, Ropes,
    TablesRow,
};
use crate::model::rope::{RopeAxes, RopeOptions};
use crate::model::tensor_names;
use crate::plan::Activation;

/// SigLIP, as Idefics 3 and SmolVLM have it.
pub(in crate::model) const IDEFICS3_VISION: Family = Family {
    architecture: "Idefics3VisionTransformer",
    model_type: "idefics3_vision",
    tables: TablesRow {
        positions: Positions::FromZero,
        texts: false,
    },
    norms: NormsRow {
        center: true,
        bias: true,
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
        activation: ActivationField::HiddenAct(Activation::GeluTanh),
        gated: false,
        bias: Flag::Always,
        ..LLAMA.mlp
    },
    tensors: &tensor_names::IDEFICS3_VISION,
    ..LLAMA
};

/// Pixtral, as Mistral 3 has it. Its epsilon is fixed: the table of defaults has it.
pub(in crate::model) const PIXTRAL: Family = Family {
    architecture: "PixtralVisionModel",
    model_type: "pixtral",
    norms: NormsRow {
        embedding: true,
        ..LLAMA.norms
    },
    attention: AttentionRow {
        both_ways: Flag::Always,
        ..UNBIASED
    },
    rope: RopeRow {
        options: RopeOptions {
            axes: RopeAxes::Alternating,
            ..LLAMA.rope.options
        },
        ..LLAMA.rope
    },
    mlp: MlpRow {
        activation: ActivationField::HiddenAct(Activation::Gelu),
        ..UNBIASED_MLP
    },
    tensors: &tensor_names::PIXTRAL,
    ..LLAMA
};
