//! The adapter slot of each token.

use super::loaded::Loaded;
use crate::backend::host::adapter_of_rows;
use crate::plan::RouteAdapters;
use crate::plan::inputs::BatchInputs;

/// Runs the step.
pub(super) fn run(step: &RouteAdapters, loaded: &mut Loaded, inputs: &BatchInputs) {
    loaded.write(step.routes, inputs, |loaded, routes, _| {
        let per_token = loaded.per_token(step.routes);
        let tokens = adapter_of_rows(inputs).zip(routes.chunks_exact_mut(2 * per_token));
        match step.experts {
            None => {
                for (slot, route) in tokens {
                    route.copy_from_slice(&[slot as f32, 1.0]);
                }
            }
            Some((chosen, experts)) => {
                let chosen = loaded.rows(chosen, inputs).chunks_exact(2 * per_token);
                for ((slot, routes), chosen) in tokens.zip(chosen) {
                    routes.copy_from_slice(chosen);
                    for route in routes.chunks_exact_mut(2) {
                        route[0] += (slot * experts) as f32;
                    }
                }
            }
        }
    });
}
