//! Identifies a model by its config, its tensors and samples of its weights, as they were loaded.

use crate::plan::{Plan, WeightId};

/// Bytes that are sampled at the start and at the end of a chunk of a weight. Chunks are at most 4 MiB or one row, so a
/// model with 16 GB of weights has 4 MB of samples.
const SAMPLE_BYTES: usize = 512;

/// Hashes of samples of weights: taken as the weights pass on their way to the device, so that nothing is read twice.
#[derive(Debug, Default)]
pub(super) struct Samples {
    hashes: Vec<(u32, u32, [u8; 32])>,
}

impl Samples {
    /// Adds a chunk of a weight.
    pub(super) fn add(&mut self, weight: WeightId, first_row: u32, rows: &[u8]) {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(rows.len() as u64).to_le_bytes());
        hasher.update(&rows[..rows.len().min(SAMPLE_BYTES)]);
        hasher.update(&rows[rows.len().saturating_sub(SAMPLE_BYTES)..]);
        self.hashes.push((weight.0, first_row, *hasher.finalize().as_bytes()));
    }

    /// The fingerprint of a model with this [`identity`](super::Source::identity) whose weights have been added. The
    /// order in which they came does not matter.
    pub(super) fn fingerprint(mut self, identity: &[u8; 32], plan: &Plan) -> [u8; 32] {
        self.hashes.sort_unstable();
        let mut hasher = blake3::Hasher::new_derive_key("folio 2026 fingerprint of a model");
        hasher.update(identity);
        for weight in &plan.weights {
            let format = format!("{:?} {:?} {} {}", weight.name, weight.sections, weight.rows, weight.columns);
            hasher.update(format.as_bytes());
        }
        for (weight, first_row, hash) in &self.hashes {
            hasher.update(&weight.to_le_bytes()).update(&first_row.to_le_bytes()).update(hash);
        }
        *hasher.finalize().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(identity: u8, chunks: &[(u32, u32, &[u8])]) -> [u8; 32] {
        let mut samples = Samples::default();
        chunks.iter().for_each(|&(weight, row, bytes)| samples.add(WeightId(weight), row, bytes));
        samples.fingerprint(&[identity; 32], &Plan::default())
    }

    #[test]
    fn other_weights_have_another_fingerprint() {
        let (long, mut changed) = (vec![1; 4096], vec![1; 4096]);
        changed[4095] = 2;
        let own = fingerprint(1, &[(0, 0, &long), (1, 0, &[1, 2])]);
        assert_eq!(own, fingerprint(1, &[(1, 0, &[1, 2]), (0, 0, &long)]), "in another order");
        for other in [
            fingerprint(2, &[(0, 0, &long), (1, 0, &[1, 2])]),
            fingerprint(1, &[(0, 0, &changed), (1, 0, &[1, 2])]),
            fingerprint(1, &[(0, 0, &long), (1, 0, &[1, 3])]),
            fingerprint(1, &[(0, 0, &long), (1, 1, &[1, 2])]),
        ] {
            assert_ne!(other, own);
        }
    }
}
