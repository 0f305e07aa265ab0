//! Identifies a model by its config, its tensors and samples of its weights, as they were loaded.

use crate::plan::{Plan, WeightId};
use crate::platform::Instant;
use std::time::Duration;

/// Bytes that are sampled at the start and at the end of a chunk of a weight, at most and at least. Chunks are at most
/// 4 MiB or one row. They are hashed as they pass, so their pages are read for the device anyway.
const SAMPLE_BYTES: usize = 512;
const SAMPLE_BYTES_MIN: usize = 32;
/// Bytes that are sampled of all weights, besides the least that each chunk has.
const ALL_BYTES: u64 = 8 << 20;

/// Hashes of samples of weights: taken as the weights pass on their way to the device, so that nothing is read twice.
#[derive(Debug, Default)]
pub(super) struct Samples {
    hashes: Vec<(u32, u32, [u8; 32])>,
    /// Bytes that were hashed.
    bytes: u64,
    took: Duration,
}

impl Samples {
    /// Adds a chunk of a weight of the plan.
    pub(super) fn add(&mut self, plan: &Plan, weight: WeightId, first_row: u32, rows: &[u8]) {
        let start = Instant::now();
        let most = sample_bytes(plan, weight, rows.len());
        let ends = [
            &rows[..rows.len().min(most)],
            &rows[rows.len().saturating_sub(most)..],
        ];
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(rows.len() as u64).to_le_bytes());
        for end in ends {
            hasher.update(end);
            self.bytes += end.len() as u64;
        }
        self.hashes
            .push((weight.0, first_row, *hasher.finalize().as_bytes()));
        self.took += start.elapsed();
    }

    /// The fingerprint of a model with this [`identity`](super::Source::identity) whose weights have been added, and
    /// how long all of it took, which is a part of the start. The order in which the weights came does not matter.
    pub(super) fn fingerprint(
        self,
        identity: impl FnOnce() -> [u8; 32],
        plan: &Plan,
    ) -> ([u8; 32], Duration) {
        let (start, samples) = (Instant::now(), self.took);
        let fingerprint = self.hash(&identity(), plan);
        (fingerprint, samples + start.elapsed())
    }

    fn hash(mut self, identity: &[u8; 32], plan: &Plan) -> [u8; 32] {
        self.hashes.sort_unstable();
        let mut hasher = blake3::Hasher::new_derive_key("folio 2026 fingerprint of a model");
        hasher.update(identity);
        for weight in &plan.weights {
            let format = format!(
                "{:?} {:?} {} {}",
                weight.name, weight.sections, weight.rows, weight.columns
            );
            hasher.update(format.as_bytes());
        }
        for (weight, first_row, hash) in &self.hashes {
            hasher
                .update(&weight.to_le_bytes())
                .update(&first_row.to_le_bytes())
                .update(hash);
        }
        *hasher.finalize().as_bytes()
    }
}

/// Bytes to sample at each end of a chunk: every weight has the same part of [`ALL_BYTES`], and a chunk the part of it
/// that the chunk is of its weight. So it depends neither on the order of chunks nor on other weights' sizes.
fn sample_bytes(plan: &Plan, weight: WeightId, chunk: usize) -> usize {
    let of_weight = ALL_BYTES / 2 / plan.weights.len().max(1) as u64;
    let whole = plan.weight_spec(weight).bytes().max(1);
    let part = u128::from(of_weight) * chunk as u128 / u128::from(whole);
    usize::try_from(part)
        .unwrap_or(SAMPLE_BYTES)
        .clamp(SAMPLE_BYTES_MIN, SAMPLE_BYTES)
}

#[cfg(test)]
mod tests;
