//! Which tensors form each weight of a model.

use super::part::{Change, Part};
use super::sections::{Layer, Sections};
use super::{attention, latent, state};
use crate::model::layer_weight::LayerWeight;
use crate::model::predictor::Predictor;
use crate::model::spec::{ModelSpec, Projector, TowerSpec};
use crate::model::tensor_names::{LayerNames, Order};
use std::collections::BTreeSet;
use std::f32::consts::FRAC_1_SQRT_2;

/// A weight of the plan, and the tensors that form it.
pub(super) struct Required {
    pub(super) name: String,
    pub(super) experts: u32,
    pub(super) parts: Vec<Part>,
}

/// The weights of the plan by name, each with the checkpoint tensors that form it.
pub(super) fn required(spec: &ModelSpec) -> Vec<Required> {
    let mut required = of_model(spec);
    for index in 0..spec.layers.len() {
        let layer = Layer { spec, index };
        let rows = spec.tensors.layer.iter().copied().flatten();
        required.extend(rows.filter_map(|row| of_layer(&layer, row)));
    }
    required
}

/// The weights of a predictor.
pub(super) fn of_predictor(predictor: &Predictor) -> Vec<Required> {
    let mut required: Vec<Required> = predictor
        .outside_layers()
        .iter()
        .map(|(name, tensor, shape)| whole(name, tensor, shape))
        .collect();
    let spec = &predictor.spec;
    for index in predictor.first..spec.layers.len() {
        let layer = Layer { spec, index };
        let rows = spec.tensors.layer.iter().copied().flatten();
        let mut weights: Vec<Required> = rows.filter_map(|row| of_layer(&layer, row)).collect();
        weights
            .iter_mut()
            .flat_map(|weight| &mut weight.parts)
            .for_each(|part| part.tensor = predictor.tensor(&part.tensor));
        required.extend(weights);
    }
    required
}

/// The matrices of layers that adapters may change; of several ways to store one, the first.
pub(super) fn adaptable(spec: &ModelSpec) -> Vec<Required> {
    let mut seen = BTreeSet::new();
    let mut adaptable = Vec::new();
    for index in 0..spec.layers.len() {
        let layer = Layer { spec, index };
        let rows = spec.tensors.layer.iter().copied().flatten();
        let rows = rows.filter(|row| row.weight.is_adaptable());
        let matrices = rows.filter_map(|row| of_layer(&layer, row));
        adaptable.extend(matrices.filter(|matrix| seen.insert(matrix.name.clone())));
    }
    adaptable
}

/// The weights outside layers.
fn of_model(spec: &ModelSpec) -> Vec<Required> {
    if let Some(tower) = &spec.tower {
        return of_tower(spec, tower);
    }
    let names = spec.tensors;
    let [vocab, hidden] = [spec.vocab, spec.hidden].map(u64::from);
    let embedding = if spec.embedding_in_head {
        names.head
    } else {
        names.embedding
    };
    let mut required = vec![whole("embedding", embedding, &[vocab, hidden])];
    if spec.norm.last {
        required.push(whole("final_norm", names.final_norm, &[hidden]));
    }
    required.extend(of_encoder(spec));
    if !spec.tied_embeddings && !spec.is_encoder() {
        required.push(whole("head", names.head, &[vocab, hidden]));
    }
    if spec.head_bias {
        required.push(whole("head_bias", names.head_bias, &[vocab]));
    }
    if spec.norm.bias && spec.norm.last {
        required.push(whole("final_norm_bias", names.final_norm_bias, &[hidden]));
    }
    if let Some(columns) = spec.layer_embedding.map(u64::from) {
        let all = columns * spec.layers.len() as u64;
        let [embedding, projection, norm] = names.layer_embedding;
        let mut norm = whole("layer_projection_norm", norm, &[columns]);
        norm.parts[0].change = Change::Times(FRAC_1_SQRT_2);
        required.extend([
            whole("layer_embedding", embedding, &[vocab, all]),
            whole("layer_projection", projection, &[all, hidden]),
            norm,
        ]);
    }
    required
}

/// The weights of a tower outside layers: what makes rows of patches, and of these rows for the decoder.
fn of_tower(spec: &ModelSpec, tower: &TowerSpec) -> Vec<Required> {
    let names = spec.tensors;
    let [hidden, patch, out] = [spec.hidden, tower.patch, tower.out].map(u64::from);
    let merged = u64::from(tower.merged) * hidden;
    let mut patches = whole("patch", names.embedding, &[hidden, 3, patch, patch]);
    patches.parts[0].order = Order::Patches;
    let mut required = vec![patches, whole("final_norm", names.final_norm, &[hidden])];
    if tower.patch_bias {
        required.push(whole("patch_bias", names.patch_bias, &[hidden]));
    }
    if spec.norm.bias {
        required.push(whole("final_norm_bias", names.final_norm_bias, &[hidden]));
    }
    match tower.projector {
        Projector::Product => required.push(whole("merge", names.merge, &[out, merged])),
        Projector::MergeAndMlp(between) => {
            let between = u64::from(between);
            let mut merge = whole("merge", names.merge, &[hidden, merged]);
            merge.parts[0].order = Order::Merged(tower.merged);
            let [first, second] = names.projector;
            required.extend([
                merge,
                whole("project", first, &[between, hidden]),
                whole("project_out", second, &[out, between]),
            ]);
        }
    }
    required.extend(of_encoder(spec));
    required
}

/// The norm of embedded rows, and the tables that are added to those of tokens.
fn of_encoder(spec: &ModelSpec) -> Vec<Required> {
    let (names, hidden) = (spec.tensors, u64::from(spec.hidden));
    let mut required = Vec::new();
    if spec.norm.embedding && names.embedding_norm.iter().any(|name| !name.is_empty()) {
        let [weight, bias] = names.embedding_norm;
        required.push(whole("embedding_norm", weight, &[hidden]));
        // Older files have other names.
        let (gamma, beta) = (
            weight.replace(".weight", ".gamma"),
            bias.replace(".bias", ".beta"),
        );
        required.push(whole("embedding_norm", &gamma, &[hidden]));
        if spec.norm.bias {
            required.push(whole("embedding_norm_bias", bias, &[hidden]));
            required.push(whole("embedding_norm_bias", &beta, &[hidden]));
        }
    }
    if let Some(first) = spec.first_position {
        let rows = u64::from(first + spec.positions_max);
        required.push(whole("positions", names.positions, &[rows, hidden]));
    }
    if spec.texts > 0 {
        let rows = u64::from(spec.texts);
        required.push(whole("texts", names.texts, &[rows, hidden]));
    }
    required
}

fn whole(name: &str, tensor: &str, shape: &[u64]) -> Required {
    Required {
        name: name.into(),
        experts: 1,
        parts: vec![Part::new(tensor, shape)],
    }
}

/// The weight of a row; `None` if the layer does not have it.
fn of_layer(layer: &Layer<'_>, row: &LayerNames) -> Option<Required> {
    let sections = layer.sections(row.weight)?;
    Some(Required {
        name: row.weight.of_layer(layer.index),
        experts: layer.copies(row.weight),
        parts: parts(layer, row, sections),
    })
}

fn parts(layer: &Layer<'_>, row: &LayerNames, sections: Sections) -> Vec<Part> {
    match (row.weight, row.order) {
        (LayerWeight::StateInput | LayerWeight::StateInputBias, _) => {
            state::input(layer, row, &sections[0][1..])
        }
        (LayerWeight::StateConvolution, _) => {
            state::scale_channels(layer.spec, stored(layer, row, sections))
        }
        (LayerWeight::Qkv, _) => {
            attention::gate_and_scale(layer, row, stored(layer, row, sections))
        }
        (_, Order::HeadKeys | Order::HeadValues) => latent::parts(layer, row),
        (_, Order::UpFirst) => up_first(stored(layer, row, sections)),
        _ => stored(layer, row, sections),
    }
}

/// Gate, then up, of a tensor that has them the other way round.
fn up_first(mut parts: Vec<Part>) -> Vec<Part> {
    for part in &mut parts {
        let rows = part.stored_rows();
        part.runs = vec![rows / 2..rows, 0..rows / 2];
    }
    parts
}

/// The tensors of a row as they are stored: one for each section, or a single one that holds them all.
fn stored(layer: &Layer<'_>, row: &LayerNames, mut sections: Sections) -> Vec<Part> {
    // A layer that computes q only has no tensors for k and v, and one without output gates none for them.
    let names = &row.tensors[..row.tensors.len().min(sections.len())];
    if names.len() == 1 {
        let rows = sections.iter().map(|shape| shape[0]).sum();
        sections.truncate(1);
        sections[0][0] = rows;
    }
    assert_eq!(
        names.len(),
        sections.len(),
        "a table names one tensor, or one for each section"
    );
    let copies = layer.copies(row.weight);
    let tensors = names.iter().map(|name| layer.tensor(name)).zip(sections);
    match row.order {
        Order::Rows | Order::GatedHeads | Order::UpFirst => {
            let change = layer.change(row.weight);
            let tensors: Vec<_> = tensors.collect();
            let of_expert = |expert: u32| {
                let expert = expert.to_string();
                let named = tensors
                    .iter()
                    .map(move |(name, shape)| Part::new(name.replace("{e}", &expert), shape));
                named.map(move |part| Part { change, ..part })
            };
            (0..copies).flat_map(of_expert).collect()
        }
        Order::Experts if names.len() > 1 => {
            let tensors: Vec<_> = tensors
                .map(|(name, shape)| of_all_experts(name, shape, row.order, copies))
                .collect();
            expert_by_expert(&tensors, copies)
        }
        order => tensors
            .map(|(name, shape)| of_all_experts(name, shape, order, copies))
            .collect(),
    }
}

/// The rows of each expert in turn, of several tensors that each hold a section of all experts.
fn expert_by_expert(tensors: &[Part], experts: u32) -> Vec<Part> {
    let of_expert = |expert: u32| {
        tensors.iter().map(move |tensor| {
            let each = tensor.stored_rows() / experts;
            let rows = expert * each..(expert + 1) * each;
            Part {
                runs: std::iter::once(rows).collect(),
                ..tensor.clone()
            }
        })
    };
    (0..experts).flat_map(of_expert).collect()
}

/// A tensor that holds a section of all experts.
fn of_all_experts(tensor: String, mut shape: Vec<u64>, order: Order, experts: u32) -> Part {
    if matches!(order, Order::Transposed | Order::TransposedInterleaved) {
        shape.reverse();
    }
    shape.insert(0, experts.into());
    Part {
        order,
        ..Part::new(tensor, &shape)
    }
}
