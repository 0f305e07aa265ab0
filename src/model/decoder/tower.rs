//! The end of a tower: rows of its stream to rows for the decoder.

use super::buffers::{Buffers, TowerBuffers};
use super::recorder::Recorder;
use crate::plan::{GatherRows, MatMul, Pool, RmsNorm, Step, Tail};

impl Recorder<'_> {
    /// Records what follows a tower's last layer: runs of normed rows become one row each.
    pub(super) fn merge(&mut self, buffers: &Buffers, tower: TowerBuffers) {
        let norm = self.norm(buffers.x, "final_norm", false, buffers.normed);
        let weight = self.weight("merge");
        let tail = vec![
            Step::RmsNorm(RmsNorm {
                one_plus: self.spec.norm.final_one_plus,
                ..norm
            }),
            Step::GatherRows(GatherRows {
                x: buffers.normed,
                out: tower.merged,
            }),
            Step::MatMul(MatMul {
                x: tower.merged,
                weight,
                bias: None,
                accumulate: false,
                out: tower.rows,
            }),
            Step::Pool(Pool { x: tower.rows }),
        ];
        self.plan.tails = vec![(Tail::Pool, tail)];
    }
}
