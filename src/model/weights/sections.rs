//! Which tensors form each weight of a model, and their shapes.

use super::part::{Change, Part};
use super::{latent, state};
use crate::model::spec::{ExpertsSpec, HeadNorms, LayerKind, ModelSpec, NormPlace, OutputGate};
use crate::model::tensor_names::{LayerNames, Order};

/// A weight of the plan, and the tensors that form it.
pub(super) struct Required {
    pub(super) name: String,
    pub(super) experts: u32,
    pub(super) parts: Vec<Part>,
}

/// Shapes of the parts stacked to form a weight, repeated for each expert.
struct Sections {
    experts: u32,
    shapes: Vec<Vec<u64>>,
    /// Factor of the elements; only of vectors.
    factor: f32,
}

/// The weights of the plan by name, each with the checkpoint tensors that form it.
pub(super) fn required(spec: &ModelSpec) -> Vec<Required> {
    let names = spec.tensors;
    let table = [u64::from(spec.vocab), u64::from(spec.hidden)];
    let embedding = if spec.embedding_in_head {
        names.head
    } else {
        names.embedding
    };
    let mut required = vec![
        whole("embedding", embedding, &table),
        whole("final_norm", names.final_norm, &table[1..]),
    ];
    if !spec.tied_embeddings {
        required.push(whole("head", names.head, &table));
    }
    if spec.norm.bias {
        required.push(whole("final_norm_bias", names.final_norm_bias, &table[1..]));
    }
    if let Some(columns) = spec.layer_embedding {
        let all = u64::from(columns) * spec.layers.len() as u64;
        let [embedding, projection, norm] = names.layer_embedding;
        required.push(whole("layer_embedding", embedding, &[table[0], all]));
        required.push(whole("layer_projection", projection, &[all, table[1]]));
        required.push(whole("layer_projection_norm", norm, &[u64::from(columns)]));
        required
            .iter_mut()
            .rev()
            .take(1)
            .for_each(|norm| norm.parts[0].change = Change::Times(std::f32::consts::FRAC_1_SQRT_2));
    }
    for layer in 0..spec.layers.len() {
        for row in names.layer.iter().copied().flatten() {
            let name = format!("layers.{layer}.{}", row.weight);
            if row.weight.starts_with("state_") {
                let state = if spec.layers[layer].kind.has_state() {
                    spec.state
                } else {
                    None
                };
                let parts = state
                    .map(|state| state::parts(spec, &state, row, layer))
                    .unwrap_or_default();
                required.extend((!parts.is_empty()).then_some(Required {
                    name,
                    experts: 1,
                    parts,
                }));
            } else if let Some(sections) = sections(spec, layer, row.weight) {
                let experts = sections.experts;
                let mut parts = match spec.latent {
                    Some(latent) if matches!(row.order, Order::HeadKeys | Order::HeadValues) => {
                        latent::parts(&latent, spec.query_heads, row, layer)
                    }
                    _ => layer_parts(row, layer, sections),
                };
                if row.weight == "qkv" {
                    state::gate_and_scale(spec, layer, row.order, &mut parts);
                }
                if row.weight == "qkv" && spec.layers[layer].value_is_key {
                    parts[2].tensor = parts[1].tensor.clone();
                }
                required.push(Required {
                    name,
                    experts,
                    parts,
                });
            }
        }
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

/// Pairs a row's tensors with the sections of its weight; a single tensor holds all sections.
fn layer_parts(
    row: &LayerNames,
    layer: usize,
    Sections {
        experts,
        mut shapes,
        factor,
    }: Sections,
) -> Vec<Part> {
    // A layer that computes q only has no tensors for k and v, and one without output gates none for them.
    let names = if row.tensors.len() > shapes.len() {
        &row.tensors[..shapes.len()]
    } else {
        row.tensors
    };
    if names.len() == 1 {
        let rows = shapes.iter().map(|shape| shape[0]).sum();
        shapes.truncate(1);
        shapes[0][0] = rows;
    }
    assert_eq!(
        names.len(),
        shapes.len(),
        "a table names one tensor, or one for each section"
    );
    let order = if row.order == Order::GatedHeads {
        Order::Rows
    } else {
        row.order
    };
    let tensors = names
        .iter()
        .map(|name| name.replace("{}", &layer.to_string()));
    if order != Order::Rows {
        let is_transposed = matches!(order, Order::Transposed | Order::TransposedInterleaved);
        let parts = tensors.zip(shapes.into_iter().map(|mut shape| {
            if is_transposed {
                shape.reverse();
            }
            shape.insert(0, u64::from(experts));
            shape
        }));
        return parts
            .map(|(tensor, shape)| Part {
                order,
                ..Part::new(tensor, &shape)
            })
            .collect();
    }
    let all: Vec<(String, Vec<u64>)> = tensors.zip(shapes).collect();
    (0..experts)
        .flat_map(|expert| {
            let parts = all
                .iter()
                .map(move |(name, shape)| (name.replace("{e}", &expert.to_string()), shape));
            parts.map(|(tensor, shape)| Part {
                change: Change::times(factor),
                ..Part::new(tensor, shape)
            })
        })
        .collect()
}

/// The sections of `layers.N.<weight>`; `None` if this layer has no such weight.
fn sections(spec: &ModelSpec, layer: usize, weight: &str) -> Option<Sections> {
    let layer = &spec.layers[layer];
    if ["expert_", "router", "shared_", "dense_"]
        .iter()
        .any(|prefix| weight.starts_with(prefix))
    {
        let experts = if layer.experts {
            spec.experts?
        } else {
            return None;
        };
        return expert_sections(spec, &experts, weight);
    }
    if ["latent", "query"]
        .iter()
        .any(|prefix| weight.starts_with(prefix))
    {
        return latent_sections(spec, weight);
    }
    if weight.starts_with("convolution") {
        return convolution_sections(spec, layer.kind, weight);
    }
    let of_attention = ["qkv", "q_norm", "k_norm", "sinks", "output"]
        .iter()
        .any(|name| weight.starts_with(name));
    let of_mixer = of_attention || weight.starts_with("attention_");
    let is_there = if of_attention {
        layer.kind.attends()
    } else {
        layer.kind != LayerKind::FeedForward
    };
    if of_mixer && !is_there || weight.starts_with("mlp_") && !layer.has_feed_forward() {
        return None;
    }
    let [hidden, mlp, head_dim] = [spec.hidden, layer.mlp, layer.head_dim].map(u64::from);
    let [query, kv] = [spec.query_columns(layer), layer.kv_columns()].map(u64::from);
    let (attention, place) = (&spec.attention, layer.norms);
    let is_dense = spec.is_dense(layer);
    let stored = layer.kv_from.is_none();
    let embedded = spec.layer_embedding;
    let mut qkv = if stored {
        vec![query, kv, kv]
    } else {
        vec![query]
    };
    if attention.gate == OutputGate::EachHead {
        qkv.push(u64::from(spec.query_heads));
    }
    let gates = if spec.mlp.gated {
        vec![mlp, mlp]
    } else {
        vec![mlp]
    };
    let matrices = |rows: &[u64]| {
        rows.iter()
            .map(|&rows| vec![rows, hidden])
            .collect::<Vec<_>>()
    };
    let (present, shapes): (bool, Vec<Vec<u64>>) = match weight {
        "attention_norm" => (place.before(), vec![vec![hidden]]),
        "mlp_norm" => (
            place.before() && place != NormPlace::BeforeBoth,
            vec![vec![hidden]],
        ),
        "attention_norm_bias" | "mlp_norm_bias" => (spec.norm.bias, vec![vec![hidden]]),
        "attention_post_norm" | "mlp_post_norm" => (place.after(), vec![vec![hidden]]),
        "qkv" => (true, matrices(&qkv)),
        "qkv_bias" => (attention.qkv_bias, vectors(&qkv)),
        "k_norm" if !stored => (false, Vec::new()),
        "q_norm" | "k_norm" => match attention.head_norms {
            HeadNorms::None => (false, Vec::new()),
            HeadNorms::EachHead | HeadNorms::EachHeadRotated => (true, vec![vec![head_dim]]),
            HeadNorms::WholeRow => (
                true,
                vec![vec![if weight == "q_norm" { query } else { kv }]],
            ),
        },
        "sinks" => (attention.sinks, vec![vec![u64::from(spec.query_heads)]]),
        "output" => (true, vec![vec![hidden, spec.output_columns(layer).into()]]),
        "output_bias" => (attention.output_bias, vec![vec![hidden]]),
        "gate_up" => (is_dense, matrices(&gates)),
        "gate_up_bias" => (is_dense && spec.mlp.bias, vectors(&gates)),
        "down" => (is_dense, vec![vec![hidden, mlp]]),
        "down_bias" => (is_dense && spec.mlp.bias, vec![vec![hidden]]),
        "xielu" => (true, vec![vec![1], vec![1], vec![], vec![]]),
        "scalar" => (spec.layer_scalar, vec![vec![1]]),
        "layer_gate" => (
            embedded.is_some(),
            vec![vec![u64::from(embedded.unwrap_or(0)), hidden]],
        ),
        "layer_output" => (
            embedded.is_some(),
            vec![vec![hidden, u64::from(embedded.unwrap_or(0))]],
        ),
        "layer_output_norm" => (embedded.is_some(), vec![vec![hidden]]),
        other => unreachable!("the tables of names hold no {other}"),
    };
    let factor = match weight {
        "attention_norm" => spec.factors.mixer_norm,
        "mlp_norm" => spec.factors.mlp_norm,
        _ => 1.0,
    };
    present.then_some(Sections {
        experts: 1,
        shapes,
        factor,
    })
}

fn vectors(rows: &[u64]) -> Vec<Vec<u64>> {
    rows.iter().map(|&rows| vec![rows]).collect::<Vec<_>>()
}

/// [`sections`] for weights that only latent attention has.
fn latent_sections(spec: &ModelSpec, weight: &str) -> Option<Sections> {
    let latent = spec.latent?;
    let [hidden, heads, rank, plain] =
        [spec.hidden, spec.query_heads, latent.rank, latent.plain].map(u64::from);
    let [rotated, value] = [latent.rotated, latent.value].map(u64::from);
    let (up, query) = (latent.query_rank.map(u64::from), heads * (plain + rotated));
    let (present, copies, shape) = match weight {
        "query" => (up.is_none(), 1, vec![query, hidden]),
        "query_latent" => (up.is_some(), 1, vec![up.unwrap_or(0), hidden]),
        "query_latent_norm" => (up.is_some(), 1, vec![up.unwrap_or(0)]),
        "query_up" => (up.is_some(), 1, vec![query, up.unwrap_or(0)]),
        "latent" => (true, 1, vec![rank + rotated, hidden]),
        "latent_norm" => (true, 1, vec![rank]),
        "latent_keys" => (true, spec.query_heads, vec![rank, plain]),
        "latent_values" => (true, spec.query_heads, vec![value, rank]),
        other => unreachable!("the tables of names hold no {other}"),
    };
    present.then_some(Sections {
        experts: copies,
        shapes: vec![shape],
        factor: 1.0,
    })
}

/// [`sections`] for weights that only layers with a short convolution have.
fn convolution_sections(spec: &ModelSpec, kind: LayerKind, weight: &str) -> Option<Sections> {
    if kind != LayerKind::Convolution {
        return None;
    }
    let convolution = spec.convolution?;
    let [hidden, taps] = [spec.hidden, convolution.taps].map(u64::from);
    let (present, shape) = match weight {
        "convolution_input" => (true, vec![3 * hidden, hidden]),
        "convolution_input_bias" => (convolution.bias, vec![3 * hidden]),
        "convolution" => (true, vec![hidden, 1, taps]),
        "convolution_bias" | "convolution_output_bias" => (convolution.bias, vec![hidden]),
        "convolution_output" => (true, vec![hidden, hidden]),
        other => unreachable!("the tables of names hold no {other}"),
    };
    present.then_some(Sections {
        experts: 1,
        shapes: vec![shape],
        factor: 1.0,
    })
}

/// [`sections`] for weights that only layers with experts have.
fn expert_sections(spec: &ModelSpec, experts: &ExpertsSpec, weight: &str) -> Option<Sections> {
    let [hidden, count, mlp] = [spec.hidden, experts.count, experts.mlp].map(u64::from);
    let shared = experts.shared.map_or(0, |shared| u64::from(shared.mlp));
    let latent = experts.latent.map_or(hidden, u64::from);
    let gates =
        |rows: u64, columns: u64| vec![vec![rows, columns]; if spec.mlp.gated { 2 } else { 1 }];
    let (present, copies, shapes) = match weight {
        "router" => (true, 1, vec![vec![count, hidden]]),
        "router_bias" => (experts.bias, 1, vec![vec![count]]),
        "router_choice_bias" => (experts.router.choice_bias, 1, vec![vec![count]]),
        "router_scales" => (experts.beside, 1, vec![vec![count]]),
        "router_norm" | "dense_post_norm" | "expert_norm" | "expert_post_norm" => {
            (experts.beside, 1, vec![vec![hidden]])
        }
        "shared_gate" => (
            experts.shared.is_some_and(|shared| shared.gated),
            1,
            vec![vec![1, hidden]],
        ),
        "shared_gate_up" => (experts.shared.is_some(), 1, gates(shared, hidden)),
        "shared_down" => (experts.shared.is_some(), 1, vec![vec![hidden, shared]]),
        "expert_input" => (experts.latent.is_some(), 1, vec![vec![latent, hidden]]),
        "expert_output" => (experts.latent.is_some(), 1, vec![vec![hidden, latent]]),
        "expert_gate_up" => (true, experts.count, gates(mlp, latent)),
        "expert_gate_up_bias" => (experts.bias, experts.count, vec![vec![mlp], vec![mlp]]),
        "expert_down" => (true, experts.count, vec![vec![latent, mlp]]),
        "expert_down_bias" => (experts.bias, experts.count, vec![vec![hidden]]),
        other => unreachable!("the tables of names hold no {other}"),
    };
    // The logits of a router with a norm of its own are divided by √hidden.
    let factor = if weight == "router_norm" {
        (hidden as f64).sqrt().recip() as f32
    } else {
        1.0
    };
    present.then_some(Sections {
        experts: copies,
        shapes,
        factor,
    })
}
