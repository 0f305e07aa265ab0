//! Attention over keys and values of a pool, and what all forms of attention begin and end with.

use super::buffers::Buffers;
use super::recorder::Recorder;
use crate::model::layer_weight::LayerWeight;
use crate::model::spec::{LayerSpec, OutputGate};
use crate::plan::{
    AttendPaged, BufferId, GatedActivation, Gates, MatMul, RopeStoreKv, Step, StoreOptions, Up,
};

impl Recorder<'_> {
    /// Records attention: `x += output(gate(x) · attend(rope(qkv(x))))`.
    pub(super) fn attention(
        &mut self,
        steps: &mut Vec<Step>,
        buffers: &Buffers,
        (index, layer): (usize, &LayerSpec),
        x: BufferId,
    ) {
        let (attention, query_heads) = (self.spec.attention, layer.query_heads);
        let kv_layer = self.kv_layer(layer);
        let q_only = layer.kv_from.is_some();
        let query = self.spec.query_columns(layer);
        let (q, attended) = (buffers.q[&query], buffers.attended[&query]);
        let qkv = self.project(steps, buffers, (index, layer), x);
        let q_norm = self.head_norm(index, LayerWeight::QNorm);
        let k_norm = if q_only {
            None
        } else {
            self.head_norm(index, LayerWeight::KNorm)
        };
        let rope = layer.rope.map(|rope| self.ropes[rope]);
        let v_epsilon = (attention.value_norm && !q_only).then_some(self.spec.norm.epsilon);
        let options = StoreOptions {
            v_epsilon,
            query_growth: match layer.query_growth {
                true => attention.query_growth,
                false => None,
            },
            q_only,
        };
        steps.push(Step::RopeStoreKv(RopeStoreKv {
            qkv,
            layer: kv_layer,
            query_heads,
            q_norm,
            k_norm,
            rope,
            options,
            q,
        }));
        let sinks = attention
            .sinks
            .then(|| self.layer_weight(index, LayerWeight::Sinks));
        steps.push(Step::AttendPaged(AttendPaged {
            q,
            layer: kv_layer,
            query_heads,
            scale: attention.scale,
            softcap: attention.softcap,
            alibi: None,
            sinks,
            out: attended,
        }));
        let attended = self.gate_output(steps, layer, (qkv, attended, q));
        self.leave_attention(steps, buffers, index, attended);
    }

    /// Records the product of `x` that gives q, k and v; returns their buffer.
    pub(super) fn project(
        &mut self,
        steps: &mut Vec<Step>,
        buffers: &Buffers,
        (index, layer): (usize, &LayerSpec),
        x: BufferId,
    ) -> BufferId {
        let out = buffers.qkv[&self.spec.qkv_columns(layer)];
        let weight = self.layer_weight(index, LayerWeight::Qkv);
        let has_bias = self.spec.attention.qkv_bias;
        let bias = has_bias.then(|| self.layer_weight(index, LayerWeight::QkvBias));
        steps.push(Step::MatMul(MatMul {
            x,
            weight,
            bias,
            accumulate: false,
            out,
        }));
        out
    }

    /// Ends attention with the product of what it returns.
    pub(super) fn leave_attention(
        &mut self,
        steps: &mut Vec<Step>,
        buffers: &Buffers,
        index: usize,
        attended: BufferId,
    ) {
        let weight = self.layer_weight(index, LayerWeight::Output);
        let has_bias = self.spec.attention.output_bias;
        let bias = has_bias.then(|| self.layer_weight(index, LayerWeight::OutputBias));
        self.leave(steps, buffers, index, attended, (weight, bias));
    }

    /// Multiplies what attention returns by a function of its gates, which follow q, k and v. The result is in `free`.
    fn gate_output(
        &self,
        steps: &mut Vec<Step>,
        layer: &LayerSpec,
        (qkv, attended, free): (BufferId, BufferId, BufferId),
    ) -> BufferId {
        let shared_by = match self.spec.attention.gate {
            OutputGate::None => return attended,
            OutputGate::EachElement => 1,
            OutputGate::EachHead => layer.head_dim,
        };
        let first = self.spec.qkv_columns(layer) - self.spec.gate_columns(layer);
        steps.push(Step::GatedActivation(GatedActivation {
            gate_up: qkv,
            gates: Gates { first, shared_by },
            up: Up::Of(attended, 0),
            activation: self.spec.attention.gate_activation,
            numbers: None,
            routes: None,
            out: free,
        }));
        free
    }
}
