//! Cosines and sines of a batch, computed in f64 once per set of frequencies, since all layers use the same few sets.

use crate::plan::{Rope, WeightId};

/// Frequencies, and the bits of the scale.
type Key = (WeightId, u32);

/// Rotations of the rows of a batch.
#[derive(Default)]
pub(super) struct Rotations {
    /// Cosines and sines, `[row][pair]`.
    sets: Vec<(Key, Vec<[f32; 2]>)>,
    /// Sets that were computed for the current batch; the others' memory is reused.
    used: usize,
}

impl Rotations {
    /// Forgets the rotations of the last batch.
    pub(super) fn clear(&mut self) {
        self.used = 0;
    }

    /// Computes a set unless it is there; returns its place.
    pub(super) fn prepare(&mut self, rope: &Rope, frequencies: &[f32], positions: &[u32]) -> usize {
        let key = (rope.frequencies, rope.scale.to_bits());
        if let Some(at) = self.sets[..self.used]
            .iter()
            .position(|(known, _)| *known == key)
        {
            return at;
        }
        if self.used == self.sets.len() {
            self.sets.push((key, Vec::new()));
        }
        let (known, rotations) = &mut self.sets[self.used];
        *known = key;
        rotations.clear();
        for &position in positions {
            rotations.extend(frequencies.iter().map(|&frequency| {
                let (sin, cos) = (f64::from(position) * f64::from(frequency)).sin_cos();
                [cos, sin].map(|value| (value * f64::from(rope.scale)) as f32)
            }));
        }
        self.used += 1;
        self.used - 1
    }

    /// The rotations of a set, `[row][pair]` of cosine and sine.
    pub(super) fn rows(&self, set: usize) -> &[[f32; 2]] {
        &self.sets[set].1
    }
}
