//! Latent attention (MLA).

use super::buffers::{Buffers, LatentBuffers};
use super::recorder::Recorder;
use crate::model::layer_weight::LayerWeight;
use crate::model::spec::LayerSpec;
use crate::plan::{
    AttendPaged, BufferId, MatMul, MatMulExperts, NormOptions, RmsNorm, RopeStoreLatent, Step,
};

/// Epsilon of the norms of latents; configs do not have it.
const EPSILON: f32 = 1e-6;

impl Recorder<'_> {
    /// Records latent attention with absorbed projections: `x += output(values(attend(rope([keys(q), q]))))`. Keys and
    /// values of a head are products of the latent with its projections, K l and V l. Instead of them, q is multiplied
    /// by Kᵀ, and the weighted sum of latents by V: each head's scores and sums are over the same latent.
    pub(super) fn latent_attention(
        &mut self,
        steps: &mut Vec<Step>,
        buffers: &Buffers,
        (index, layer): (usize, &LayerSpec),
        x: BufferId,
    ) {
        let (own, query_heads) = (
            buffers.latent.expect("the model has latents"),
            self.spec.query_heads,
        );
        let kv_layer = self.kv_layer(layer);
        let columns = self.spec.query_columns(layer);
        let (q, attended) = (buffers.q[&columns], buffers.attended[&columns]);

        self.latent_query(steps, own, index, x);
        self.product(steps, index, LayerWeight::Latent, x, own.latent);
        self.heads_product(
            steps,
            index,
            LayerWeight::LatentKeys,
            own.query,
            own.absorbed,
        );
        steps.push(Step::RopeStoreLatent(RopeStoreLatent {
            query: own.query,
            absorbed: own.absorbed,
            latent: own.latent,
            layer: kv_layer,
            query_heads,
            norm: self.layer_weight(index, LayerWeight::LatentNorm),
            epsilon: EPSILON,
            rope: self.ropes[layer.rope.expect("latents have a rotated part")],
            query_growth: self.spec.attention.query_growth,
            q,
        }));
        let scale = self.spec.attention.scale;
        let (softcap, alibi, sinks) = (None, None, None);
        let out = attended;
        steps.push(Step::AttendPaged(AttendPaged {
            q,
            layer: kv_layer,
            query_heads,
            scale,
            softcap,
            alibi,
            sinks,
            out,
        }));
        self.heads_product(
            steps,
            index,
            LayerWeight::LatentValues,
            attended,
            own.values,
        );
        let weight = self.layer_weight(index, LayerWeight::Output);
        self.leave(steps, buffers, index, own.values, (weight, None));
    }

    /// Records q, which may be a product with a latent of its own.
    fn latent_query(
        &mut self,
        steps: &mut Vec<Step>,
        own: LatentBuffers,
        index: usize,
        x: BufferId,
    ) {
        let Some([latent, normed]) = own.query_latent else {
            return self.product(steps, index, LayerWeight::Query, x, own.query);
        };
        self.product(steps, index, LayerWeight::QueryLatent, x, latent);
        steps.push(Step::RmsNorm(RmsNorm {
            x: latent,
            delta: None,
            weight: self.layer_weight(index, LayerWeight::QueryLatentNorm),
            epsilon: EPSILON,
            one_plus: false,
            accumulate: false,
            options: NormOptions::default(),
            out: normed,
        }));
        self.product(steps, index, LayerWeight::QueryUp, normed, own.query);
    }

    fn product(
        &mut self,
        steps: &mut Vec<Step>,
        layer: usize,
        weight: LayerWeight,
        x: BufferId,
        out: BufferId,
    ) {
        let weight = self.layer_weight(layer, weight);
        steps.push(Step::MatMul(MatMul {
            x,
            weight,
            bias: None,
            accumulate: false,
            out,
        }));
    }

    /// Records the product of each head with its own matrix.
    fn heads_product(
        &mut self,
        steps: &mut Vec<Step>,
        layer: usize,
        weight: LayerWeight,
        x: BufferId,
        out: BufferId,
    ) {
        let (weight, bias) = (self.layer_weight(layer, weight), None);
        steps.push(Step::MatMulExperts(MatMulExperts {
            x,
            routes: None,
            weight,
            bias,
            accumulate: false,
            out,
        }));
    }
}
