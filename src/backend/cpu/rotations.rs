//! Cosines and sines of a batch, computed in f64 once per set of frequencies, since all layers use the same few sets.

use crate::plan::inputs::{AXES, BatchInputs};
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
    pub(super) fn prepare(&mut self, rope: &Rope, numbers: &[f32], inputs: &BatchInputs) -> usize {
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
        // Without axes of their own, all frequencies have the first.
        let (frequencies, axes) = numbers.split_at(rope.rotary_dim as usize / 2);
        let axes = axes.iter().map(|axis| *axis as usize);
        let pairs = frequencies.iter().zip(axes.chain(std::iter::repeat(0)));
        for (row, &position) in inputs.positions.iter().enumerate() {
            let place = if rope.by_axis {
                inputs.place(row)
            } else {
                [position; AXES]
            };
            rotations.extend(pairs.clone().map(|(&frequency, axis)| {
                let (sin, cos) = (f64::from(place[axis]) * f64::from(frequency)).sin_cos();
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
