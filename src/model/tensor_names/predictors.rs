//! Names of the layers that predict further tokens (MTP), where they differ from those of a model's layers.

/// The tensors of a predictor besides those of its layers; `{}` stands for the number of its first layer, which follows
/// those of the model.
#[derive(Debug, PartialEq)]
pub(in crate::model) struct PredictorNames {
    /// The norm of a token's embedding.
    pub(in crate::model) token_norm: &'static str,
    /// The norm of the row before it.
    pub(in crate::model) row_norm: &'static str,
    /// The matrix `[hidden, 2 · hidden]` that joins both: the embedding first.
    pub(in crate::model) join: &'static str,
    /// The last norm.
    pub(in crate::model) norm: &'static str,
    /// What the names of a model's layers begin with, before their number, and what those of a predictor's layers begin
    /// with, which are numbered from 0; `None`: layers are named, and numbered, like those of the model.
    pub(in crate::model) layers: Option<[&'static str; 2]>,
}

/// Qwen 3.5 and Qwen3-Next.
pub(super) const QWEN: PredictorNames = PredictorNames {
    token_norm: "mtp.pre_fc_norm_embedding.weight",
    row_norm: "mtp.pre_fc_norm_hidden.weight",
    join: "mtp.fc.weight",
    norm: "mtp.norm.weight",
    layers: Some(["model.layers.", "mtp.layers."]),
};

/// DeepSeek V3, GLM 4.5 and GGUF files: the layer after the model's last.
pub(super) const AFTER_LAST: PredictorNames = PredictorNames {
    token_norm: "model.layers.{}.enorm.weight",
    row_norm: "model.layers.{}.hnorm.weight",
    join: "model.layers.{}.eh_proj.weight",
    norm: "model.layers.{}.shared_head.norm.weight",
    layers: None,
};

/// Nemotron-H: a layer with attention and one with experts.
pub(super) const NEMOTRON: PredictorNames = PredictorNames {
    token_norm: "mtp.layers.0.enorm.weight",
    row_norm: "mtp.layers.0.hnorm.weight",
    join: "mtp.layers.0.eh_proj.weight",
    norm: "mtp.layers.1.final_layernorm.weight",
    layers: Some(["backbone.layers.", "mtp.layers."]),
};
