//! The projection of q, k and v: its output gates, and what layers share.

use super::part::{Change, Part};
use super::sections::Layer;
use crate::model::spec::OutputGate;
use crate::model::tensor_names::{LayerNames, Order};

/// Completes the parts of q, k and v: the factor of v, gates of the output, and v where it is k.
pub(super) fn gate_and_scale(
    layer: &Layer<'_>,
    row: &LayerNames,
    mut parts: Vec<Part>,
) -> Vec<Part> {
    let (spec, own) = (layer.spec, layer.own());
    if let Some(values) = parts.get_mut(2) {
        values.change = Change::times(spec.factors.values);
    }
    match spec.attention.gate {
        OutputGate::None => {}
        OutputGate::EachElement if row.order != Order::GatedHeads => {
            let shape = [spec.query_columns(own), spec.hidden].map(u64::from);
            let gates = row.tensors.last().expect("a table names the gates");
            parts.push(Part::new(layer.tensor(gates), &shape));
        }
        OutputGate::EachElement => {
            let (query, gates) = split_gated_heads(&parts[0], own.query_heads, own.head_dim);
            parts[0] = query;
            parts.push(gates);
        }
        OutputGate::EachHead => {
            let missing = spec.gate_columns(own) - own.query_heads;
            parts.last_mut().expect("there are gates").pad(missing);
        }
    }
    if own.value_is_key {
        parts[2].tensor = parts[1].tensor.clone();
    }
    parts
}

/// q and its gates, of a tensor in which each head of q is followed by the head's gates.
fn split_gated_heads(query: &Part, heads: u32, head_dim: u32) -> (Part, Part) {
    let mut both = query.clone();
    both.shape[0] *= 2;
    let [query, gates] = [0, 1].map(|at| {
        let first = (0..heads).map(|head| (2 * head + at) * head_dim);
        Part {
            runs: first.map(|first| first..first + head_dim).collect(),
            ..both.clone()
        }
    });
    (query, gates)
}
