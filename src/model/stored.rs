//! How files store what a `config.json` describes.

use super::tensor_names::TensorNames;

/// What differs between files of one architecture. A row of GGUF's architectures has its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored<'a> {
    /// Norms that multiply by `1 + w` have the weight w; otherwise they have 1 + w.
    pub(super) norms_less_one: bool,
    /// Decays of recurrent states are logarithms of their negatives.
    pub(super) log_decays: bool,
    /// See [`super::spec::StateSpec::tiled`].
    pub(super) tiled_heads: bool,
    /// Names of the tensors, if not those of the architecture's checkpoints.
    pub(super) tensors: Option<&'static TensorNames>,
    /// Whether the products of attention before and after it have biases; `None`: the config says so.
    pub(super) attention_biases: Option<[bool; 2]>,
    /// Divisors of the rotary frequencies of layers without a window; empty: none.
    pub(super) rope_divisors: &'a [f32],
}

impl Stored<'static> {
    /// As checkpoints of transformers are.
    pub(super) const CHECKPOINT: Self = Self {
        norms_less_one: true,
        log_decays: true,
        tiled_heads: false,
        tensors: None,
        attention_biases: None,
        rope_divisors: &[],
    };
}
