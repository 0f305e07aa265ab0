//! Everything that varies between architectures, as data.
//!
//! The decoder reads a [`ModelSpec`]. `config` reads it from a `config.json` and validates every number once, so that
//! later code can rely on it.

use super::rope::RopeSpec;
use super::tensor_names::TensorNames;
use crate::plan::Activation;

/// Maximum layers of a decoder.
pub const LAYERS_MAX: u32 = 1024;
/// Maximum experts per layer.
pub const EXPERTS_MAX: u32 = 1024;
/// Upper bound (exclusive) of token ids and positions.
pub const IDS_MAX: u32 = 1 << 24;

/// Description of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// The name `config.json` gives, for example `Qwen3ForCausalLM`.
    pub architecture: &'static str,
    /// Vocabulary size: token ids are below this.
    pub vocab: u32,
    /// Context length: positions are below this.
    pub positions_max: u32,
    /// Hidden size: elements of a residual row.
    pub hidden: u32,
    /// MLP size: elements of a gate or up row.
    pub mlp: u32,
    /// Query heads.
    pub query_heads: u32,
    /// Key/value heads; their number divides the query heads.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Options of all RMS norms.
    pub norm: NormSpec,
    /// Options of the attention scores and their projections.
    pub attention: AttentionSpec,
    /// The activation between gate/up and down.
    pub activation: Activation,
    /// Gate, up and down have biases.
    pub mlp_bias: bool,
    /// Experts of layers with [`LayerSpec::experts`], which replace the MLP.
    pub experts: Option<ExpertsSpec>,
    /// Factor of embedded rows.
    pub embedding_scale: f32,
    /// Factor of logits.
    pub logits_scale: f32,
    /// The cap c in `c · tanh(logit / c)`.
    pub logits_softcap: Option<f32>,
    /// The LM head is the embedding table.
    pub tied_embeddings: bool,
    /// Rotary embeddings, indexed by [`LayerSpec::rope`].
    pub ropes: Vec<RopeSpec>,
    /// One entry per layer, in order.
    pub layers: Vec<LayerSpec>,
    /// End tokens from `config.json`.
    pub eos_token_ids: Vec<u32>,
    pub(super) tensors: &'static TensorNames,
}

/// Options shared by all RMS norms of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormSpec {
    /// Where attention and MLP have norms.
    pub place: NormPlace,
    /// Epsilon, added to the mean of squares.
    pub epsilon: f32,
    /// Multiply by `1 + w` instead of `w`.
    pub one_plus: bool,
}

/// Where attention and MLP have norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlace {
    /// `x += f(norm(x))`.
    Before,
    /// `x += norm(f(x))`.
    After,
    /// `x += norm(f(norm(x)))`.
    BeforeAndAfter,
}

impl NormPlace {
    /// Whether inputs of attention and MLP are normed.
    pub fn before(self) -> bool {
        self != Self::After
    }

    /// Whether outputs of attention and MLP are normed.
    pub fn after(self) -> bool {
        self != Self::Before
    }
}

/// RMS norms of q and k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadNorms {
    /// None.
    None,
    /// Over each head, one weight for all heads.
    EachHead,
    /// Over all heads of a token.
    WholeRow,
}

/// Options of attention that all layers share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Factor of q · k.
    pub scale: f32,
    /// The cap c in `c · tanh(score / c)`.
    pub softcap: Option<f32>,
    /// q, k and v have biases.
    pub qkv_bias: bool,
    /// The output projection has a bias.
    pub output_bias: bool,
    /// RMS norms of q and k.
    pub head_norms: HeadNorms,
    /// A learned logit per query head joins the softmax.
    pub sinks: bool,
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertsSpec {
    /// Experts of a layer.
    pub count: u32,
    /// Experts chosen per token.
    pub per_token: u32,
    /// Elements of a gate or up row of one expert.
    pub mlp: u32,
    /// Whether a token's weights are normalized to add up to 1.
    pub renormalize: bool,
    /// Router, gate, up and down have biases.
    pub bias: bool,
}

/// What may differ from layer to layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSpec {
    /// Number of keys that a query sees, including its own; `None`: all.
    pub window: Option<u32>,
    /// Index into [`ModelSpec::ropes`]; `None`: a layer without rotary embeddings.
    pub rope: Option<usize>,
    /// Whether the layer has [`ModelSpec::experts`] instead of one MLP.
    pub experts: bool,
}

impl ModelSpec {
    /// Elements of a row of q.
    pub fn query_columns(&self) -> u32 {
        self.query_heads * self.head_dim
    }

    /// Elements of a row of k, or of v.
    pub fn kv_columns(&self) -> u32 {
        self.kv_heads * self.head_dim
    }
}
