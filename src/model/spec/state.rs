//! Layers with a recurrent state: gated delta rule and Mamba 2.

/// Options of the recurrent state of layers that have one.
///
/// A product gives each token a row `[channels | z | gates]`. A convolution over the last tokens, with SiLU, makes the
/// channels keys, queries and values; the rule updates a matrix per head with them and reads it; a norm and z gate the
/// result, and another product adds it to the stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StateSpec {
    /// How the matrix is updated.
    pub rule: StateRule,
    /// Heads of q and k, or groups of B and C; their number divides the heads.
    pub key_heads: u32,
    /// Heads of v (or u): as many matrices has a state.
    pub heads: u32,
    /// Elements of a head of q and k (or B and C).
    pub key_dim: u32,
    /// Elements of a head of v (or u).
    pub value_dim: u32,
    /// Head h has the keys of key head `h % key_heads` instead of `h / (heads / key_heads)`.
    pub tiled: bool,
    /// Tokens that the convolution sees, the present one included.
    pub taps: u32,
    /// The convolution has a bias.
    pub convolution_bias: bool,
    /// Both products have biases.
    pub bias: bool,
    /// Decays are stored as logarithms of their negatives.
    pub log_decays: bool,
    /// The norm of the result.
    pub norm: GatedNormSpec,
}

/// How a recurrent state is updated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StateRule {
    /// Gated delta rule: `S = e^g S; S += k ⊗ β (v − Sᵀ k)`, with q and k of unit length.
    Delta {
        /// β is the sigmoid of its gate times this: 1, or 2 where the state may have negative eigenvalues.
        beta_scale: f32,
    },
    /// Mamba 2: `S = e^(dt·A) S + dt · u ⊗ B`, read with C.
    Mamba2,
}

/// What is done to the result of a state before its last product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedNormSpec {
    /// Whether the result is normalized; if not, it is only multiplied by `silu(z)`, as by a norm with
    /// [`GatedNormSpec::NONE_EPSILON`].
    pub present: bool,
    /// Elements that are normalized together.
    pub run: u32,
    /// One weight for all runs, instead of one for the row.
    pub shared: bool,
    /// `silu(z)` multiplies the row before the norm instead of after it.
    pub gate_first: bool,
    /// Added to the mean of squares.
    pub epsilon: f32,
}

impl GatedNormSpec {
    /// The epsilon of a norm that is not there: nothing that is added to it changes it, so that the norm divides by its
    /// root, without rounding, and its weights multiply by the root.
    pub const NONE_EPSILON: f32 = Self::NONE_ROOT * Self::NONE_ROOT;
    /// The root of [`Self::NONE_EPSILON`].
    pub const NONE_ROOT: f32 = (1_u64 << 50) as f32;
}

impl StateSpec {
    /// Elements of a row of all values; also of z, and of the result.
    pub fn values(&self) -> u32 {
        self.heads * self.value_dim
    }

    /// Elements of a row of all keys.
    pub fn keys(&self) -> u32 {
        self.key_heads * self.key_dim
    }

    /// Elements of a row that the convolution sees: q, k and v, or u, B and C.
    pub fn channels(&self) -> u32 {
        2 * self.keys() + self.values()
    }

    /// Elements of a row of gates: b and a, or dt.
    pub fn gates(&self) -> u32 {
        match self.rule {
            StateRule::Delta { .. } => 2 * self.heads,
            StateRule::Mamba2 => self.heads,
        }
    }

    /// Elements of a row `[channels | z | gates]`, up to a multiple of 8.
    pub fn mixed(&self) -> u32 {
        (self.channels() + self.values() + self.gates()).next_multiple_of(8)
    }
}

/// Factors of parts of a layer with attention and a state side by side, as far as neither a scale of the plan nor the
/// residual stream can express them; weights are multiplied by them when they are loaded. All are vectors, or few rows
/// that become f32, so that no other weight is rounded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// Of the norm before attention and state.
    pub mixer_norm: f32,
    /// Of the norm before the MLP.
    pub mlp_norm: f32,
    /// Of v's rows.
    pub values: f32,
    /// Of the taps of u, B and C.
    pub channels: [f32; 3],
    /// Of the rows of gates.
    pub gates: f32,
    /// Of the gated result of a state.
    pub state: f32,
}

impl Factors {
    /// Factors that change nothing.
    pub const NONE: Self = Self {
        mixer_norm: 1.0,
        mlp_norm: 1.0,
        values: 1.0,
        channels: [1.0; 3],
        gates: 1.0,
        state: 1.0,
    };
}
