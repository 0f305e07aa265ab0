//! Buffers of a thread, which are kept from step to step.

use super::product::Scratch;
use super::simd::{LANES, Lanes};

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

/// Buffers of a thread.
pub(super) struct ThreadScratch {
    pub(super) product: Scratch,
    /// Queries, scaled.
    pub(super) queries: Vec<f32>,
    /// Scores, then their exponentials, `[query][position]`.
    pub(super) scores: Vec<f32>,
    pub(super) part: Partial,
    pub(super) total: Partial,
}

impl ThreadScratch {
    /// Allocates the buffers; they grow with the first batches.
    pub(super) fn new() -> Self {
        let (part, total) = (Partial::default(), Partial::default());
        Self { product: Scratch::new(), queries: Vec::new(), scores: Vec::new(), part, total }
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
