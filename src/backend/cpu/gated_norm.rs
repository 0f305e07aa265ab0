//! A norm and a gate from other columns.

use super::gated_activation::Activate;
use super::loaded::Loaded;
use super::rows::{Rescale, each_row, inverse_deviation, map};
use super::team::Team;
use crate::plan::inputs::BatchInputs;
use crate::plan::{Activation, GatedNorm, Storage};

/// Runs the step.
pub(super) fn run(step: &GatedNorm, loaded: &mut Loaded, team: &mut Team, inputs: &BatchInputs) {
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let (x, weight, level) = (
            loaded.rows(step.x, inputs),
            loaded.vector(step.weight),
            loaded.level,
        );
        let (mixed, width) = (loaded.rows(step.mixed, inputs), loaded.columns(step.mixed));
        let (group, columns) = (step.group as usize, loaded.columns(step.x));
        each_row(team, out, group, |index, out| {
            let (row, first) = (index * group / columns, index * group % columns);
            let x = &x[index * group..][..group];
            let gates = &mixed[row * width + step.gates as usize + first..][..group];
            map(
                level,
                gates,
                x,
                out,
                Storage::F32,
                Activate::new(Activation::Silu, None),
            );
            // A gate after the norm is a factor all the same.
            let scale = inverse_deviation(
                level,
                if step.gate_first { out } else { x },
                0.0,
                step.epsilon,
            );
            let weight = &weight[first % weight.len()..][..group];
            map(
                level,
                weight,
                weight,
                out,
                storage,
                Rescale {
                    scale,
                    one_plus: false,
                },
            );
        });
    });
}
