//! Buffers of a thread, which are kept from step to step.

use super::simd::{LANES, Lanes};
use bumpalo::Bump;

/// Score of a hidden key.
pub(super) const HIDDEN: f32 = -3e38;

/// Results of one part, or of several that were merged, for all queries of an item.
#[derive(Default)]
pub(super) struct Partial {
    /// Largest score of each query; [`HIDDEN`] if it sees no key.
    pub(super) largest: Vec<f32>,
    /// Sum of exponentials of each query.
    pub(super) sums: Vec<f32>,
    /// `[query][element]`, in whole vectors.
    pub(super) outputs: Vec<Lanes>,
}

/// Buffers of a product.
#[derive(Default)]
pub(super) struct ProductScratch {
    /// Panels of a block, decoded.
    pub(super) decoded: Vec<Lanes>,
    /// Sums of the current block, `[row][panel]`.
    pub(super) sums: Vec<Lanes>,
    /// Sums of all earlier blocks.
    pub(super) totals: Vec<Lanes>,
    /// A few rows, `[column][row]`.
    pub(super) interleaved: Vec<f32>,
}

impl ProductScratch {
    /// Allocates the buffers for this many decoded vectors, and sums.
    pub(super) fn allocate(&mut self, decoded: usize, sums: usize) {
        let zeros = |count| vec![[0.0; LANES]; count];
        (self.decoded, self.sums, self.totals) = (zeros(decoded), zeros(sums), zeros(sums));
    }
}

/// What the tokens of a block of a scan do to one head.
#[derive(Default)]
pub(super) struct ScanScratch {
    /// `[tokens × key_dim]`.
    pub(super) queries: Vec<f32>,
    /// `[tokens × key_dim]`.
    pub(super) keys: Vec<f32>,
    /// Factors of the state and of what is written.
    pub(super) factors: Vec<[f32; 2]>,
    /// Sixteen columns of the values, then of the outputs, of each token.
    pub(super) values: Vec<Lanes>,
    /// Sixteen columns of the state, `[key_dim]`.
    pub(super) tile: Vec<Lanes>,
}

/// Buffers of a thread.
pub(super) struct ThreadScratch {
    pub(super) product: ProductScratch,
    /// Queries, scaled.
    pub(super) queries: Vec<f32>,
    /// Scores, then their exponentials, `[query][position]`.
    pub(super) scores: Vec<f32>,
    pub(super) part: Partial,
    pub(super) total: Partial,
    pub(super) block: ScanScratch,
    /// A packed row of a weight.
    pub(super) bytes: Vec<u8>,
    /// A packed row of keys or values.
    pub(super) words: Vec<u32>,
    /// For whatever lives no longer than the thread's share of a step. Its memory is reused.
    pub(super) arena: Bump,
}

impl ThreadScratch {
    /// Allocates the buffers; they grow with the first batches.
    pub(super) fn new() -> Self {
        Self {
            product: ProductScratch::default(),
            queries: Vec::new(),
            scores: Vec::new(),
            part: Partial::default(),
            total: Partial::default(),
            block: ScanScratch::default(),
            bytes: Vec::new(),
            words: Vec::new(),
            arena: Bump::new(),
        }
    }
}

impl Partial {
    /// Becomes the result of no keys.
    pub(super) fn clear(&mut self, queries: usize, vectors: usize) {
        self.largest.clear();
        self.largest.resize(queries, HIDDEN);
        self.sums.clear();
        self.sums.resize(queries, 0.0);
        self.outputs.clear();
        self.outputs.resize(queries * vectors, [0.0; LANES]);
    }
}
