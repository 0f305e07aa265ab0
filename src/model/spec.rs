//! What varies between architectures, as data.
//!
//! [`ModelSpec`] is what the decoder reads. `config` reads it from a `config.json` and checks every number once, so
//! that nothing behind it meets a shape it cannot have.

use super::rope::RopeSpec;
use super::tensor_names::TensorNames;
use crate::plan::Activation;

/// Layers of a decoder, at most.
pub const LAYERS_MAX: u32 = 1024;
/// Experts of a layer, at most.
pub const EXPERTS_MAX: u32 = 1024;
/// Token ids and positions are below this.
pub const IDS_MAX: u32 = 1 << 24;

/// One decoder, described.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// The name `config.json` gives, for example `Qwen3ForCausalLM`.
    pub architecture: &'static str,
    /// Token ids are below this.
    pub vocab: u32,
    /// Positions are below this.
    pub positions_max: u32,
    /// Elements of a residual row.
    pub hidden: u32,
    /// Elements of a gate or up row.
    pub mlp: u32,
    /// Query heads.
    pub query_heads: u32,
    /// Key/value heads; they divide the query heads.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// All RMS norms.
    pub norm: NormSpec,
    /// What surrounds the product of queries and keys.
    pub attention: AttentionSpec,
    /// The activation between gate/up and down.
    pub activation: Activation,
    /// Gate, up and down have biases.
    pub mlp_bias: bool,
    /// What [`LayerSpec::experts`] layers have instead of one MLP.
    pub experts: Option<ExpertsSpec>,
    /// Multiplies embedded rows.
    pub embedding_scale: f32,
    /// Multiplies logits.
    pub logits_scale: f32,
    /// `c · tanh(logit / c)`.
    pub logits_softcap: Option<f32>,
    /// The LM head is the embedding table.
    pub tied_embeddings: bool,
    /// Rotations, named by [`LayerSpec::rope`].
    pub ropes: Vec<RopeSpec>,
    /// One entry a layer, in order.
    pub layers: Vec<LayerSpec>,
    /// End tokens that `config.json` names.
    pub eos_token_ids: Vec<u32>,
    pub(super) tensors: &'static TensorNames,
}

/// Options shared by all RMS norms of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormSpec {
    /// Which ends of attention and MLP have one.
    pub place: NormPlace,
    /// Added to the mean of squares.
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
    /// What enters attention and MLP is normed.
    pub fn before(self) -> bool {
        self != Self::After
    }

    /// What leaves them is normed.
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
    /// Multiplies q · k.
    pub scale: f32,
    /// `c · tanh(score / c)`.
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
    /// Experts that work on a token.
    pub per_token: u32,
    /// Elements of a gate or up row of one expert.
    pub mlp: u32,
    /// Weights of a token add up to 1.
    pub renormalize: bool,
    /// Router, gate, up and down have biases.
    pub bias: bool,
}

/// What may differ from layer to layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSpec {
    /// A query sees this many keys, its own included; `None`: all.
    pub window: Option<u32>,
    /// Index into [`ModelSpec::ropes`]; `None`: a layer without rotation.
    pub rope: Option<usize>,
    /// The MLP is one of [`ModelSpec::experts`].
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
