//! Layers that predict further tokens.

use super::buffers::{Buffers, PredictorBuffers};
use super::recorder::Recorder;
use crate::model::predictor::{JOIN, NORM, ROW_NORM, TOKEN_NORM};
use crate::plan::{JoinRows, MatMul, Plan, RmsNorm, Step, Tail};
use std::sync::Arc;

impl Recorder<'_> {
    /// Ends the model's body with the rows that the predictor reads, and records the predictor: `x = join([norm(embed),
    /// norm(row before)])`, its layers, which begin at `first`, and its norm, whose rows its next batch reads. Its
    /// logits are those of the model's head; the copies and look-ups with which it begins are the model's.
    pub(super) fn predictor(
        &mut self,
        buffers: &Buffers,
        own: PredictorBuffers,
        first: usize,
        look_ups: Vec<Step>,
    ) {
        let sample = self.plan.tail(Tail::Sample).to_vec();
        let final_norm = sample.iter().find_map(|step| match step {
            Step::RmsNorm(norm) => Some(*norm),
            _ => None,
        });
        let final_norm = RmsNorm {
            x: buffers.x,
            out: own.carried,
            ..final_norm.expect("logits follow a norm")
        };
        self.plan.body.push(Step::RmsNorm(final_norm));

        let mut body = look_ups;
        body.push(Step::JoinRows(JoinRows {
            x: buffers.x,
            carried: own.carried,
            x_norm: self.weight(TOKEN_NORM),
            carried_norm: self.weight(ROW_NORM),
            epsilon: self.spec.norm.epsilon,
            one_plus: self.spec.norm.one_plus,
            out: own.joined,
        }));
        body.push(Step::MatMul(MatMul {
            x: own.joined,
            weight: self.weight(JOIN),
            bias: None,
            accumulate: false,
            out: buffers.x,
        }));
        let layers = first..self.spec.layers.len();
        self.record_layers(&mut body, buffers, layers);
        let weight = self.weight(NORM);
        body.push(Step::RmsNorm(RmsNorm {
            weight,
            ..final_norm
        }));
        let logits = sample.into_iter().map(|step| match step {
            Step::RmsNorm(norm) => Step::RmsNorm(RmsNorm { weight, ..norm }),
            other => other,
        });
        let predictor = Plan {
            body,
            tails: vec![(Tail::Sample, logits.collect())],
            state_layers: Vec::new(),
            ..self.plan.clone()
        };
        self.plan.predictor = Some(Arc::new(predictor));
    }
}
