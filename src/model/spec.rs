//! Everything that varies between architectures, as data.
//!
//! The decoder reads a [`ModelSpec`]. `config` reads it from a `config.json` and validates every number once, so that
//! later code can rely on it.

use super::classes::ClassesSpec;
use super::rope::RopeSpec;
use super::tensor_names::TensorNames;
use crate::plan::{Activation, ExpertGroups, QueryGrowth, Window};

mod state;

pub use state::{Factors, GatedNormSpec, StateRule, StateSpec};

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
    /// Query heads of layers that have no other number of their own.
    pub query_heads: u32,
    /// The row of a table that is added to that of a token at position 0; those of further positions follow.
    pub first_position: Option<u32>,
    /// Rows of a table of which the first is added to tokens of the first text of a pair, and the second to those of
    /// the other; 0: there is no table.
    pub texts: u32,
    /// A head for classes over an encoder.
    pub classes: Option<ClassesSpec>,
    /// What makes an encoder the tower of a model that reads images.
    pub tower: Option<TowerSpec>,
    /// Options of all norms.
    pub norm: NormSpec,
    /// Options of the attention scores and their projections.
    pub attention: AttentionSpec,
    /// Attention to a latent (MLA), in every layer; its heads have no keys and values of their own.
    pub latent: Option<LatentSpec>,
    /// Options of the convolutions of layers that have them.
    pub convolution: Option<ConvolutionSpec>,
    /// Options of the recurrent states of layers that have them.
    pub state: Option<StateSpec>,
    /// Factors of parts of a layer.
    pub factors: Factors,
    /// Options of all MLPs.
    pub mlp: MlpSpec,
    /// Experts of layers with [`LayerSpec::experts`].
    pub experts: Option<ExpertsSpec>,
    /// Elements of the embedding that each layer has of its own.
    pub layer_embedding: Option<u32>,
    /// Each layer ends by multiplying the residual stream by a number of its own.
    pub layer_scalar: bool,
    /// Factor of embedded rows.
    pub embedding_scale: f32,
    /// Factor of logits.
    pub logits_scale: f32,
    /// The cap c in `c · tanh(logit / c)`.
    pub logits_softcap: Option<f32>,
    /// The LM head is the embedding table.
    pub tied_embeddings: bool,
    /// The LM head has a bias.
    pub head_bias: bool,
    /// The table that both share has the head's name.
    pub embedding_in_head: bool,
    /// Rotary embeddings, indexed by [`LayerSpec::rope`].
    pub ropes: Vec<RopeSpec>,
    /// One entry per layer, in order.
    pub layers: Vec<LayerSpec>,
    /// End tokens from `config.json`.
    pub eos_token_ids: Vec<u32>,
    pub(super) tensors: &'static TensorNames,
}

/// A tower: its rows are patches of images instead of tokens, and it merges them to rows for the decoder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TowerSpec {
    /// Pixels of a patch's side; three numbers of each pixel.
    pub patch: u32,
    /// The product with patches has a bias.
    pub patch_bias: bool,
    /// Epsilon of the norm after the last layer, which may be a part of the projector.
    pub final_epsilon: f32,
    /// What becomes of merged rows.
    pub projector: Projector,
    /// Consecutive rows that become one.
    pub merged: u32,
    /// Elements of the row that they become: the decoder's hidden size.
    pub out: u32,
}

/// What turns merged rows of a tower into rows for the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projector {
    /// A product.
    Product,
    /// A product that makes a merged row as long as the rows of the tower, then an MLP of two products with GELU
    /// between, whose rows in between have so many elements.
    MergeAndMlp(u32),
}

impl TowerSpec {
    /// Columns of a row of a patch's numbers: zeros follow them, up to a multiple of 8.
    pub fn columns(&self) -> u32 {
        (3 * self.patch * self.patch).next_multiple_of(8)
    }
}

/// Options shared by all norms of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormSpec {
    /// Epsilon, added to the mean of squares.
    pub epsilon: f32,
    /// Epsilon of norms after branches.
    pub epsilon_after: f32,
    /// Multiply by `1 + w` instead of `w`.
    pub one_plus: bool,
    /// The same of the final norm.
    pub final_one_plus: bool,
    /// Norms of the stream are LayerNorms: rows are centered first.
    pub center: bool,
    /// Norms of the stream have biases.
    pub bias: bool,
    /// Embedded rows are normalized.
    pub embedding: bool,
    /// There is a norm after the last layer.
    pub last: bool,
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
    /// `x += attention(n) + mlp(n)` with `n = norm(x)`.
    BeforeBoth,
    /// `x += attention(x)`, then `x += mlp(norm(x))`.
    BeforeMlp,
    /// `x = norm(x + f(x))`.
    AfterSum,
}

impl NormPlace {
    /// Whether inputs of attention, or what a layer has instead, are normed.
    pub fn before_mixer(self) -> bool {
        self != Self::BeforeMlp && self.before_mlp()
    }

    /// Whether inputs of the MLP are normed.
    pub fn before_mlp(self) -> bool {
        !matches!(self, Self::After | Self::AfterSum)
    }

    /// Whether outputs of attention and MLP are normed.
    pub fn after(self) -> bool {
        matches!(self, Self::After | Self::BeforeAndAfter | Self::AfterSum)
    }
}

/// RMS norms of q and k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadNorms {
    /// None.
    None,
    /// Over each head, one weight for all heads.
    EachHead,
    /// Like `EachHead`, after the rotation.
    EachHeadRotated,
    /// Over all heads of a token.
    WholeRow,
    /// Over each head, without a weight.
    Unweighted,
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
    /// Factor of q's norm, if it has no weight.
    pub query_norm_factor: f32,
    /// RMS norm of v over each head, without a weight.
    pub value_norm: bool,
    /// Factor of q that grows with its position.
    pub query_growth: Option<QueryGrowth>,
    /// A learned logit per query head joins the softmax.
    pub sinks: bool,
    /// What multiplies the attended rows.
    pub gate: OutputGate,
    /// The function of these gates: [`Activation::Sigmoid`] or [`Activation::Softplus`].
    pub gate_activation: Activation,
    /// Rows see all others of their sequence, also those after them: nothing is kept of a sequence after its step.
    pub both_ways: bool,
    /// Scores fall with the distance, by slopes that follow from the number of heads.
    pub alibi: bool,
}

/// What multiplies the rows that attention returns: a function of a product with the layer's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputGate {
    /// Nothing.
    None,
    /// A number per element of a head.
    EachElement,
    /// A number per query head.
    EachHead,
}

/// Latent attention (MLA): the keys and values of all heads are products with one latent of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentSpec {
    /// Elements of the latent of q, which is normalized; `None`: q is a product with the token's row.
    pub query_rank: Option<u32>,
    /// Elements of the latent of keys and values.
    pub rank: u32,
    /// Elements of a head of q and k that are not rotated.
    pub plain: u32,
    /// Rotated elements of a head of q, and of the key that all heads share; they follow the plain ones.
    pub rotated: u32,
    /// Elements of a head of v.
    pub value: u32,
}

/// Options of short convolutions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvolutionSpec {
    /// Tokens that a row sees, itself included.
    pub taps: u32,
    /// The convolution and its projections have biases.
    pub bias: bool,
}

/// What a layer mixes its tokens with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Attention to keys and values.
    Attention,
    /// A gated short convolution, with a state instead of keys and values.
    Convolution,
    /// A recurrent state, [`ModelSpec::state`].
    State,
    /// Attention and a recurrent state side by side, from the same norm.
    AttentionAndState,
    /// Nothing: the layer has an MLP or experts alone.
    FeedForward,
}

impl LayerKind {
    /// Whether such a layer has attention.
    pub fn attends(self) -> bool {
        matches!(self, Self::Attention | Self::AttentionAndState)
    }

    /// Whether such a layer has a recurrent state.
    pub fn has_state(self) -> bool {
        matches!(self, Self::State | Self::AttentionAndState)
    }
}

/// Options of the MLP that all layers share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MlpSpec {
    /// The activation before the last product.
    pub activation: Activation,
    /// `down(act(gate(x)) · up(x))` instead of `down(act(up(x)))`.
    pub gated: bool,
    /// The products before the activation have biases.
    pub bias: bool,
    /// The product after it has one.
    pub down_bias: bool,
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertsSpec {
    /// Experts of a layer.
    pub count: u32,
    /// Experts chosen per token.
    pub per_token: u32,
    /// Elements of a gate or up row of one expert.
    pub mlp: u32,
    /// Columns that experts read and write, between two projections of the row; `None`: they are those of the row.
    pub latent: Option<u32>,
    /// How experts are chosen and weighted.
    pub router: RouterSpec,
    /// Router, gate, up and down have biases.
    pub bias: bool,
    /// The MLP that every token passes besides.
    pub shared: Option<SharedSpec>,
    /// A layer has its MLP, too, and both are normalized before they are added.
    pub beside: bool,
    /// The weight of an expert multiplies its input instead of its output.
    pub weighs_input: bool,
}

/// How experts are chosen and weighted; [`crate::plan::Routing`] has the equations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterSpec {
    /// Scores are sigmoids instead of a softmax.
    pub sigmoid: bool,
    /// A token's weights are normalized to add up to 1.
    pub renormalize: bool,
    /// Scores have a bias for the choice.
    pub choice_bias: bool,
    /// Experts are chosen from some groups only.
    pub groups: Option<ExpertGroups>,
    /// Factor of all weights.
    pub factor: f32,
    /// Soft cap of logits.
    pub softcap: Option<f32>,
    /// SparseMixer with this threshold.
    pub mixer: Option<f32>,
}

/// The MLP that every token of a layer with experts passes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedSpec {
    /// Elements of a gate or up row.
    pub mlp: u32,
    /// Its output is multiplied by the sigmoid of a product with the token's row.
    pub gated: bool,
    /// Factor of its output.
    pub factor: f32,
}

/// What may differ from layer to layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerSpec {
    /// What mixes the tokens. Windows, rotary embeddings, heads, keys and values are those of attention.
    pub kind: LayerKind,
    /// Where what mixes the tokens and the MLP have norms.
    pub norms: NormPlace,
    /// Which keys a query sees; with [`AttentionSpec::both_ways`], how far it sees in each direction. `None`: all.
    pub window: Option<Window>,
    /// Index into [`ModelSpec::ropes`]; `None`: a layer without rotary embeddings.
    pub rope: Option<usize>,
    /// Whether the layer has [`ModelSpec::experts`].
    pub experts: bool,
    /// MLP size: elements of a gate or up row; zero: the layer has no MLP but that of its experts.
    pub mlp: u32,
    /// Query heads.
    pub query_heads: u32,
    /// Key/value heads; their number divides the query heads.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// The keys and values are those of this earlier layer, and the layer computes q only.
    pub kv_from: Option<usize>,
    /// v is k before its norm and rotation: there is no weight for v.
    pub value_is_key: bool,
    /// Whether q and k have the norms of [`AttentionSpec::head_norms`].
    pub head_norms: bool,
    /// Whether q grows as [`AttentionSpec::query_growth`] says.
    pub query_growth: bool,
    /// Clamps of the activated gate and of up: of experts, and of the other MLPs.
    pub clamps: [Option<f32>; 2],
}

impl ModelSpec {
    /// Whether it gives vectors only: sequences are computed whole, and no token follows from them.
    pub fn is_encoder(&self) -> bool {
        self.attention.both_ways
    }

    /// Elements of a row of q of a layer.
    pub fn query_columns(&self, layer: &LayerSpec) -> u32 {
        layer.query_heads * layer.head_dim
    }

    /// Elements of a row of q, of k and v if the layer computes them, and of output gates.
    pub fn qkv_columns(&self, layer: &LayerSpec) -> u32 {
        let kv = if layer.kv_from.is_some() {
            0
        } else {
            2 * layer.kv_columns()
        };
        self.query_columns(layer) + kv + self.gate_columns(layer)
    }

    /// Elements of a row that the output projection of a layer's attention takes.
    pub fn output_columns(&self, layer: &LayerSpec) -> u32 {
        layer.query_heads * self.latent.map_or(layer.head_dim, |latent| latent.value)
    }

    /// Whether a layer has an MLP that is not its experts'.
    pub fn is_dense(&self, layer: &LayerSpec) -> bool {
        layer.mlp > 0 && (!layer.experts || self.experts.is_some_and(|experts| experts.beside))
    }

    /// Elements of a row of output gates of a layer, up to a multiple of 8; zero if it has none.
    pub fn gate_columns(&self, layer: &LayerSpec) -> u32 {
        match self.attention.gate {
            OutputGate::None => 0,
            OutputGate::EachElement => self.query_columns(layer),
            OutputGate::EachHead => layer.query_heads.next_multiple_of(8),
        }
    }
}

impl LayerSpec {
    /// Whether the layer has an MLP or experts.
    pub fn has_feed_forward(&self) -> bool {
        self.experts || self.mlp > 0
    }

    /// Elements of a row of k, or of v.
    pub fn kv_columns(&self) -> u32 {
        self.kv_heads * self.head_dim
    }
}
