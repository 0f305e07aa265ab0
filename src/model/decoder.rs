//! The only forward pass.
//!
//! Records the steps of a decoder for the rows of one batch; [`ModelSpec`] describes the decoder. The residual stream
//! `x` stays f32 and is updated in place: the branches of a layer (attention or what it has instead, and the MLP) add
//! their output to it.

mod attention;
mod buffers;
mod convolution;
mod latent;
mod mlp;
mod predictor;
mod recorder;
mod rows;
mod state;
mod tower;

use super::layer_weight::LayerWeight;
use super::predictor::Predictor;
use super::rope::RopeAxes;
use super::spec::{LayerKind, LayerSpec, ModelSpec};
use super::weights::WeightTable;
use crate::plan::{
    BufferId, CopyBlocks, Embed, GatherRows, MatMul, Plan, Pool, RmsNorm, Rope, RowId, Sample,
    ScaleLogits, Step, Storage, Tail, WeightId,
};
use buffers::{Buffers, HeadBuffers, PredictorBuffers, TowerBuffers};
use recorder::Recorder;
use std::ops::Range;

/// The weight of a decoder whose rows are those of images.
pub(super) const IMAGE_ROWS: &str = "image_rows";

/// Records the plan of a model, and that of its predictor if it has to draft.
pub(super) fn record(
    spec: &ModelSpec,
    predictor: Option<&Predictor>,
    weights: &WeightTable,
    activations: Storage,
) -> Plan {
    let mut plan = Plan {
        vocab: spec.vocab,
        positions_max: spec.positions_max,
        ..Plan::default()
    };
    let all_layers = predictor.map_or(spec, |predictor| &predictor.spec);
    let buffers = Buffers::new(&mut plan, all_layers, activations);
    let mut recorder = Recorder {
        spec,
        weights,
        plan,
        ropes: Vec::new(),
        slopes: None,
        kv_layers: Vec::new(),
    };
    recorder.record_ropes();
    recorder.slopes = spec.attention.alibi.then(|| recorder.weight("slopes"));

    let mut body = Vec::new();
    if !spec.is_encoder() {
        body.push(Step::CopyBlocks(CopyBlocks));
    }
    let table = recorder.embed(&mut body, &buffers);
    let look_ups = body.clone();
    recorder.layer_embeddings(&mut body, &buffers);
    recorder.record_layers(&mut body, &buffers, 0..spec.layers.len());
    recorder.plan.body = body;
    match buffers.tower {
        Some(tower) => recorder.merge(&buffers, tower),
        None => recorder.tails(&buffers, table),
    }
    if let Some(predictor) = predictor {
        let own = PredictorBuffers::new(&mut recorder.plan, spec.hidden, activations);
        recorder.spec = &predictor.spec;
        recorder.predictor(&buffers, own, predictor.first, look_ups);
    }
    recorder.plan
}

impl Recorder<'_> {
    /// Records some of the layers.
    fn record_layers(&mut self, steps: &mut Vec<Step>, buffers: &Buffers, layers: Range<usize>) {
        let spec = self.spec;
        for index in layers {
            let layer = &spec.layers[index];
            self.mix(steps, buffers, index, layer);
            if layer.has_feed_forward() {
                self.feed_forward(steps, buffers, index, layer);
            }
            self.add_layer_embedding(steps, buffers, index);
        }
    }

    /// Records the look-up of tokens, or the product of patches; and the look-up of rows of images, positions and types
    /// in models that have these. Returns the table of tokens or patches.
    fn embed(&mut self, steps: &mut Vec<Step>, buffers: &Buffers) -> WeightId {
        let spec = self.spec;
        let out = match buffers.other {
            Some(other) if spec.norm.embedding => other,
            _ => buffers.x,
        };
        let look_up = |table, id, accumulate| {
            let scale = spec.embedding_scale;
            Step::Embed(Embed {
                table,
                id,
                scale,
                accumulate,
                out,
            })
        };
        let table = match buffers.tower {
            Some(tower) => self.embed_patches(steps, tower, out),
            None => {
                let table = self.weight("embedding");
                steps.push(look_up(table, RowId::Token, false));
                table
            }
        };
        if self.weights.has(IMAGE_ROWS) {
            let table = self.weight(IMAGE_ROWS);
            steps.push(Step::Embed(Embed {
                table,
                id: RowId::Image,
                scale: 1.0,
                accumulate: false,
                out,
            }));
        }
        if let Some(first) = spec.first_position {
            let table = self.weight("positions");
            steps.push(look_up(table, RowId::Position(first), true));
        }
        if spec.texts > 0 {
            let table = self.weight("texts");
            steps.push(look_up(table, RowId::Text, true));
        }
        if spec.norm.embedding {
            steps.push(Step::RmsNorm(RmsNorm {
                one_plus: false,
                ..self.norm(out, "embedding_norm", false, buffers.x)
            }));
        }
        table
    }

    /// Records the product of the batch's patches, which the engine has written to a table.
    fn embed_patches(
        &mut self,
        steps: &mut Vec<Step>,
        buffers: TowerBuffers,
        out: BufferId,
    ) -> WeightId {
        let table = self.weight("patches");
        let weight = self.weight("patch");
        let has_bias = self.weights.has("patch_bias");
        let bias = has_bias.then(|| self.weight("patch_bias"));
        steps.push(Step::Embed(Embed {
            table,
            id: RowId::Token,
            scale: 1.0,
            accumulate: false,
            out: buffers.patches,
        }));
        steps.push(Step::MatMul(MatMul {
            x: buffers.patches,
            weight,
            bias,
            accumulate: false,
            out,
        }));
        table
    }

    /// Records what follows the last layer.
    fn tails(&mut self, buffers: &Buffers, embedding: WeightId) {
        if !self.spec.norm.last {
            let pool = vec![Step::Pool(Pool { x: buffers.x })];
            self.plan.tails = vec![(Tail::Pool, pool)];
            return;
        }
        let final_norm = RmsNorm {
            one_plus: self.spec.norm.final_one_plus,
            ..self.norm(buffers.x, "final_norm", false, buffers.normed)
        };
        if let Some(head) = buffers.head {
            let sample = self.sample(buffers.x, head, embedding, &final_norm);
            self.plan.tails.push((Tail::Sample, sample));
        }
        let pool = vec![
            Step::RmsNorm(final_norm),
            Step::Pool(Pool { x: buffers.normed }),
        ];
        self.plan.tails.push((Tail::Pool, pool));
    }

    fn record_ropes(&mut self) {
        for (index, rope) in self.spec.ropes.iter().enumerate() {
            let frequencies = self.weight(&format!("rope.{index}"));
            let (rotary_dim, interleaved) = (rope.rotary_dim, rope.interleaved);
            self.ropes.push(Rope {
                frequencies,
                rotary_dim,
                interleaved,
                scale: rope.scale(self.spec.positions_max),
                by_axis: rope.axes != RopeAxes::One,
            });
        }
    }

    /// Records what mixes the tokens of a layer, with the layer's norms.
    fn mix(&mut self, steps: &mut Vec<Step>, buffers: &Buffers, index: usize, layer: &LayerSpec) {
        if !layer.kind.attends() {
            self.kv_layers.push(None);
        }
        if layer.kind == LayerKind::FeedForward {
            return;
        }
        let x = self.enter(steps, buffers, index, LayerWeight::AttentionNorm);
        if self.spec.latent.is_some() {
            self.latent_attention(steps, buffers, (index, layer), x);
        } else if self.spec.attention.both_ways {
            self.attention_of_rows(steps, buffers, (index, layer), x);
        } else if layer.kind.attends() {
            self.attention(steps, buffers, (index, layer), x);
        }
        if layer.kind.has_state() {
            self.state(steps, buffers, index, x);
        }
        if layer.kind == LayerKind::Convolution {
            self.convolution(steps, buffers, index, x);
        }
    }

    /// Records final norm and LM head, only for the rows that are sampled.
    fn sample(
        &mut self,
        x: BufferId,
        buffers: HeadBuffers,
        embedding: WeightId,
        final_norm: &RmsNorm,
    ) -> Vec<Step> {
        let HeadBuffers {
            sampled,
            sampled_normed,
            logits,
        } = buffers;
        let head = if self.spec.tied_embeddings {
            embedding
        } else {
            self.weight("head")
        };
        let bias = self.spec.head_bias.then(|| self.weight("head_bias"));
        let mut steps = vec![
            Step::GatherRows(GatherRows { x, out: sampled }),
            Step::RmsNorm(RmsNorm {
                x: sampled,
                out: sampled_normed,
                ..*final_norm
            }),
            Step::MatMul(MatMul {
                x: sampled_normed,
                weight: head,
                bias,
                accumulate: false,
                out: logits,
            }),
        ];
        let (scale, softcap) = (self.spec.logits_scale, self.spec.logits_softcap);
        if scale != 1.0 || softcap.is_some() {
            steps.push(Step::ScaleLogits(ScaleLogits {
                logits,
                scale,
                softcap,
            }));
        }
        steps.push(Step::Sample(Sample { logits }));
        steps
    }
}
