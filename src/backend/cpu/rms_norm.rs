//! Norms of rows, after the sum with the residual stream.

use super::loaded::Loaded;
use super::rows::{Add, Normalize, each_row, inverse_deviation, map};
use super::team::Team;
use crate::plan::inputs::BatchInputs;
use crate::plan::{NormOptions, RmsNorm, Storage};

/// Runs the step.
pub(super) fn run(step: &RmsNorm, loaded: &mut Loaded, team: &mut Team, inputs: &BatchInputs) {
    let columns = loaded.columns(step.x);
    if let Some(delta) = step.delta {
        loaded.write(step.x, inputs, |loaded, x, storage| {
            let delta = loaded.rows(delta, inputs);
            each_row(team, x, columns, |row, x| {
                let delta = &delta[row * columns..][..columns];
                map(loaded.level, delta, delta, x, storage, Add);
            });
        });
    }
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let (x, weight, level) = (
            loaded.rows(step.x, inputs),
            loaded.vector(step.weight),
            loaded.level,
        );
        let NormOptions {
            center,
            bias,
            scale,
        } = step.options;
        let [bias, scale] = [bias, scale].map(|option| option.map(|id| loaded.vector(id)));
        let run = weight.len();
        each_row(team, out, run, |row, out| {
            let x = &x[row * run..][..run];
            let mut f = Normalize {
                accumulate: step.accumulate,
                ..Normalize::new(level, x, step.epsilon, step.one_plus)
            };
            if center {
                f.mean = (x.iter().map(|&x| f64::from(x)).sum::<f64>() / run as f64) as f32;
                f.inverse = inverse_deviation(level, x, f.mean, step.epsilon);
            }
            if let Some(bias) = bias {
                if !step.accumulate {
                    out.fill(0.0);
                }
                map(level, bias, bias, out, Storage::F32, Add);
                f.accumulate = true;
            }
            f.scale = scale.map_or(1.0, |scale| scale[0]);
            map(level, x, weight, out, storage, f);
        });
    });
}
