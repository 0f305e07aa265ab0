//! Short convolutions as layers of their own.

use super::buffers::Buffers;
use super::recorder::Recorder;
use crate::model::layer_weight::LayerWeight;
use crate::plan::{BufferId, ConvolutionForm, MatMul, ShortConvolution, Step};

impl Recorder<'_> {
    /// Records a short convolution: `x += output(convolve(input(x)))`.
    pub(super) fn convolution(
        &mut self,
        steps: &mut Vec<Step>,
        buffers: &Buffers,
        index: usize,
        x: BufferId,
    ) {
        let spec = self.spec.convolution.expect("the model has convolutions");
        let [gated, convolved] = buffers.convolution.expect("the model has convolutions");
        let layer = self.state_layer((spec.taps - 1) * self.spec.hidden);
        let bias =
            |recorder: &mut Self, weight| spec.bias.then(|| recorder.layer_weight(index, weight));
        let input_bias = bias(self, LayerWeight::ConvolutionInputBias);
        let weight = self.layer_weight(index, LayerWeight::ConvolutionInput);
        steps.push(Step::MatMul(MatMul {
            x,
            weight,
            bias: input_bias,
            accumulate: false,
            out: gated,
        }));
        let own_bias = bias(self, LayerWeight::ConvolutionBias);
        let weight = self.layer_weight(index, LayerWeight::Convolution);
        steps.push(Step::ShortConvolution(ShortConvolution {
            x: gated,
            form: ConvolutionForm::Gated,
            layer,
            taps: spec.taps,
            weight,
            bias: own_bias,
            out: convolved,
        }));
        let output_bias = bias(self, LayerWeight::ConvolutionOutputBias);
        let weight = self.layer_weight(index, LayerWeight::ConvolutionOutput);
        self.leave(steps, buffers, index, convolved, (weight, output_bias));
    }
}
