//! The input of recurrent states: how each family stores its rows, and how the plan has them.

use super::part::{Change, Part};
use super::sections::Layer;
use crate::model::layer_weight::LayerWeight;
use crate::model::spec::{ModelSpec, StateSpec};
use crate::model::tensor_names::{LayerNames, Order};
use std::ops::Range;

/// Rows of a stored tensor that the input of a state has, in its order; no runs: all of them.
struct Piece {
    /// Which of the tensors that the row names.
    tensor: usize,
    rows: u32,
    runs: Vec<Range<u32>>,
}

impl Piece {
    fn whole(tensor: usize, rows: u32) -> Self {
        Self {
            tensor,
            rows,
            runs: Vec::new(),
        }
    }
}

/// The rows `[channels | z | gates]`, or the elements of their bias; `columns` are those of a row, or none of a bias.
pub(super) fn input(layer: &Layer<'_>, row: &LayerNames, columns: &[u64]) -> Vec<Part> {
    let state = layer.spec.state.expect("the model has a state");
    let pieces = pieces(&state, row.order).into_iter();
    let parts = pieces.map(|piece| {
        let shape = [&[u64::from(piece.rows)], columns].concat();
        Part {
            runs: piece.runs,
            ..Part::new(layer.tensor(row.tensors[piece.tensor]), &shape)
        }
    });
    let mut parts: Vec<Part> = parts.collect();
    let gates = parts.last_mut().expect("gates are the last piece");
    gates.pad(state.mixed() - state.channels() - state.values() - state.gates());
    if row.weight == LayerWeight::StateInput {
        gates.change = Change::times(layer.spec.factors.gates);
    }
    parts
}

fn pieces(state: &StateSpec, order: Order) -> Vec<Piece> {
    let [keys, values, channels] = [state.keys(), state.values(), state.channels()];
    let heads = state.heads;
    match order {
        Order::ZFirst => z_first(state),
        Order::Apart => whole(&[keys, keys, values, values, heads, heads]),
        Order::KeyHeads => vec![
            channels_and_z_by_key_heads(state, 0),
            gates_by_key_heads(state, 1),
        ],
        Order::KeyHeadGates => {
            let mut pieces = whole(&[channels, values]);
            pieces.push(gates_by_key_heads(state, 2));
            pieces
        }
        _ => whole(&[channels, values, heads, heads]),
    }
}

/// Tensors of so many rows, all of which the input has.
fn whole(rows: &[u32]) -> Vec<Piece> {
    let tensors = rows.iter().enumerate();
    tensors
        .map(|(tensor, &rows)| Piece::whole(tensor, rows))
        .collect()
}

/// One tensor `[z | channels | gates]`.
fn z_first(state: &StateSpec) -> Vec<Piece> {
    let channels = state.values();
    let gates = channels + state.channels();
    let end = gates + state.gates();
    let runs = [channels..gates, 0..channels, gates..end];
    let pieces = runs.into_iter().map(|run| Piece {
        tensor: 0,
        rows: end,
        runs: std::iter::once(run).collect(),
    });
    pieces.collect()
}

/// A tensor with the rows `[q | k | v | z]` of each key head in turn.
fn channels_and_z_by_key_heads(state: &StateSpec, tensor: usize) -> Piece {
    let key = state.key_dim;
    let value = state.heads / state.key_heads * state.value_dim;
    let ends = [0, key, 2 * key, 2 * key + value, 2 * key + 2 * value];
    by_key_heads(state, tensor, &ends)
}

/// A tensor with the rows `[b | a]` of each key head in turn.
fn gates_by_key_heads(state: &StateSpec, tensor: usize) -> Piece {
    let each = state.heads / state.key_heads;
    by_key_heads(state, tensor, &[0, each, 2 * each])
}

/// A tensor with the same fields for each key head in turn, which lie between these bounds; the input has the first
/// field of all heads, then the second.
fn by_key_heads(state: &StateSpec, tensor: usize, bounds: &[u32]) -> Piece {
    let width = bounds[bounds.len() - 1];
    let of_heads = |field: &[u32]| {
        let (start, end) = (field[0], field[1]);
        (0..state.key_heads).map(move |head| head * width + start..head * width + end)
    };
    Piece {
        tensor,
        rows: state.key_heads * width,
        runs: bounds.windows(2).flat_map(of_heads).collect(),
    }
}

/// The taps of the convolution, those of u, B and C with their factors. Channels with factors are in one tensor.
pub(super) fn scale_channels(spec: &ModelSpec, parts: Vec<Part>) -> Vec<Part> {
    let factors = spec.factors.channels;
    if factors == [1.0; 3] {
        return parts;
    }
    let state = spec.state.expect("the model has a state");
    let (keys, values) = (state.keys(), state.values());
    let bounds = [0, values, values + keys, values + 2 * keys].map(|channel| channel * state.taps);
    let runs = bounds.windows(2).zip(factors);
    let scaled = runs.map(|(bounds, factor)| Part {
        runs: std::iter::once(bounds[0]..bounds[1]).collect(),
        change: Change::times(factor),
        ..parts[0].clone()
    });
    scaled.collect()
}
