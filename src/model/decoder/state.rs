//! Recurrent states: gated delta rule and Mamba 2.

use super::buffers::{Buffers, StateBuffers};
use super::recorder::Recorder;
use crate::model::layer_weight::LayerWeight;
use crate::model::spec::{GatedNormSpec, StateRule, StateSpec};
use crate::plan::{
    BufferId, ConvolutionForm, GatedNorm, MatMul, ScanRule, ShortConvolution, StateScan, Step,
};

impl Recorder<'_> {
    /// Records a state: `x += output(gated_norm(scan(convolve(channels), gates), z))` with `[channels | z | gates] =
    /// input(x)`.
    pub(super) fn state(
        &mut self,
        steps: &mut Vec<Step>,
        buffers: &Buffers,
        index: usize,
        x: BufferId,
    ) {
        let spec = self.spec.state.expect("the model has a state");
        let own = buffers.state.expect("the model has a state");
        let bias = spec
            .bias
            .then(|| self.layer_weight(index, LayerWeight::StateInputBias));
        let weight = self.layer_weight(index, LayerWeight::StateInput);
        steps.push(Step::MatMul(MatMul {
            x,
            weight,
            bias,
            accumulate: false,
            out: own.mixed,
        }));
        let bias = spec
            .convolution_bias
            .then(|| self.layer_weight(index, LayerWeight::StateConvolutionBias));
        steps.push(Step::ShortConvolution(ShortConvolution {
            x: own.mixed,
            form: ConvolutionForm::Silu,
            layer: self.state_layer((spec.taps - 1) * spec.channels()),
            taps: spec.taps,
            weight: self.layer_weight(index, LayerWeight::StateConvolution),
            bias,
            out: own.convolved,
        }));
        let scan = self.scan(&spec, own, index);
        steps.push(Step::StateScan(scan));
        let gated = self.gated_norm(&spec, own, index);
        steps.push(gated);
        let bias = spec
            .bias
            .then(|| self.layer_weight(index, LayerWeight::StateOutputBias));
        let weight = self.layer_weight(index, LayerWeight::StateOutput);
        self.leave(steps, buffers, index, own.gated, (weight, bias));
    }

    fn scan(&mut self, spec: &StateSpec, own: StateBuffers, index: usize) -> StateScan {
        let is_mamba = spec.rule == StateRule::Mamba2;
        StateScan {
            convolved: own.convolved,
            mixed: own.mixed,
            gates: spec.channels() + spec.values(),
            layer: self.state_layer(spec.heads * spec.key_dim * spec.value_dim),
            heads: spec.heads,
            key_heads: spec.key_heads,
            tiled: spec.tiled,
            key_dim: spec.key_dim,
            value_dim: spec.value_dim,
            rule: match spec.rule {
                StateRule::Delta { beta_scale } => ScanRule::Delta { beta_scale },
                StateRule::Mamba2 => ScanRule::Mamba2,
            },
            decay: self.layer_weight(index, LayerWeight::StateDecay),
            dt_bias: self.layer_weight(index, LayerWeight::StateDtBias),
            skip: is_mamba.then(|| self.layer_weight(index, LayerWeight::StateSkip)),
            out: own.scanned,
        }
    }

    /// The norm of the result of a scan, with z as its gate.
    fn gated_norm(&mut self, spec: &StateSpec, own: StateBuffers, index: usize) -> Step {
        Step::GatedNorm(GatedNorm {
            x: own.scanned,
            mixed: own.mixed,
            gates: spec.channels(),
            group: spec.norm.run,
            weight: self.layer_weight(index, LayerWeight::StateNorm),
            epsilon: if spec.norm.present {
                spec.norm.epsilon
            } else {
                GatedNormSpec::NONE_EPSILON
            },
            gate_first: spec.norm.gate_first,
            out: own.gated,
        })
    }
}
