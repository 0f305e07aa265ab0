//! Joins rows of tokens and rows of the batch before.

use super::loaded::Loaded;
use super::rows::{Normalize, each_row, map};
use super::team::Team;
use crate::plan::JoinRows;
use crate::plan::inputs::BatchInputs;

/// Runs the step.
pub(super) fn run(step: &JoinRows, loaded: &mut Loaded, team: &mut Team, inputs: &BatchInputs) {
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let (x, carried) = (loaded.rows(step.x, inputs), loaded.all_rows(step.carried));
        let (x_norm, carried_norm) = (loaded.vector(step.x_norm), loaded.vector(step.carried_norm));
        let columns = x_norm.len();
        each_row(team, out, 2 * columns, |row, out| {
            let source = inputs.carried[row] as usize;
            let (first, second) = out.split_at_mut(columns);
            let halves = [
                (&x[row * columns..][..columns], x_norm, first),
                (
                    &carried[source * columns..][..columns],
                    carried_norm,
                    second,
                ),
            ];
            for (row, norm, out) in halves {
                let f = Normalize::new(loaded.level, row, step.epsilon, step.one_plus);
                map(loaded.level, row, norm, out, storage, f);
            }
        });
    });
}
