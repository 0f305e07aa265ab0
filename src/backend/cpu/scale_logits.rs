//! Scale and softcap of logits.

use super::loaded::Loaded;
use super::rows::{Function, each_row, update};
use super::simd::Simd;
use super::team::Team;
use crate::plan::ScaleLogits;
use crate::plan::inputs::BatchInputs;

/// Finite logits only: a row that failed stays detectable.
struct Scale {
    scale: f32,
    softcap: Option<f32>,
}

impl Function for Scale {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, logit: S::F, _: S::F, _: S::F) -> S::F {
        let scaled = s.mul(logit, s.splat(self.scale));
        let capped = match self.softcap {
            Some(cap) => s.mul(s.splat(cap), s.tanh(s.div(scaled, s.splat(cap)))),
            None => scaled,
        };
        let magnitude = s.float_from_bits(s.and(s.float_to_bits(logit), s.splat_word(0x7fff_ffff)));
        s.if_less(magnitude, s.splat(f32::INFINITY), capped, logit)
    }
}

/// Runs the step.
pub(super) fn run(step: &ScaleLogits, loaded: &mut Loaded, team: &mut Team, inputs: &BatchInputs) {
    loaded.write(step.logits, inputs, |loaded, logits, storage| {
        // Parts of a row, since there may be fewer rows than threads.
        const PART: usize = 1 << 12;
        let columns = loaded.columns(step.logits);
        let part = if columns.is_multiple_of(PART) {
            PART
        } else {
            columns
        };
        each_row(team, logits, part, |_, logits| {
            update(
                loaded.level,
                logits,
                storage,
                Scale {
                    scale: step.scale,
                    softcap: step.softcap,
                },
            );
        });
    });
}
