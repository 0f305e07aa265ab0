//! The end of a tower: rows of its stream to rows for the decoder.

use super::buffers::{Buffers, ProjectedBuffers, TowerBuffers};
use super::recorder::Recorder;
use crate::plan::{
    Activation, BufferId, GatedActivation, Gates, GatherRows, MatMul, Pool, RmsNorm, Step, Tail, Up,
};

impl Recorder<'_> {
    /// Records what follows a tower's last layer: runs of normed rows become one row each.
    pub(super) fn merge(&mut self, buffers: &Buffers, tower: TowerBuffers) {
        let norm = self.norm(buffers.x, "final_norm", false, buffers.normed);
        let spec = self.spec.tower.expect("a tower is recorded");
        let mut tail = vec![
            Step::RmsNorm(RmsNorm {
                one_plus: self.spec.norm.final_one_plus,
                epsilon: spec.final_epsilon,
                ..norm
            }),
            Step::GatherRows(GatherRows {
                x: buffers.normed,
                out: tower.merged,
            }),
        ];
        match tower.projected {
            None => tail.push(self.outer_product(tower.merged, "merge", tower.rows)),
            Some(ProjectedBuffers { merged, mlp }) => tail.extend([
                self.outer_product(tower.merged, "merge", merged),
                self.outer_product(merged, "project", mlp.gate_up),
                Step::GatedActivation(GatedActivation {
                    gate_up: mlp.gate_up,
                    gates: Gates::default(),
                    up: Up::One,
                    activation: Activation::Gelu,
                    numbers: None,
                    routes: None,
                    out: mlp.activated,
                }),
                self.outer_product(mlp.activated, "project_out", tower.rows),
            ]),
        }
        tail.push(Step::Pool(Pool { x: tower.rows }));
        self.plan.tails = vec![(Tail::Pool, tail)];
    }

    /// A product with a weight outside layers.
    fn outer_product(&mut self, x: BufferId, weight: &str, out: BufferId) -> Step {
        Step::MatMul(MatMul {
            x,
            weight: self.weight(weight),
            bias: None,
            accumulate: false,
            out,
        })
    }
}
