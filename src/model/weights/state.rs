//! The parts of weights of recurrent states, and of attention with output gates: how each family stores their rows, and
//! how the plan has them.

use super::part::{Change, Part};
use crate::model::spec::{ModelSpec, OutputGate, StateRule, StateSpec};
use crate::model::tensor_names::{LayerNames, Order};
use std::ops::Range;

/// The parts of `layers.N.state_…`; none if the model has no such weight.
pub(super) fn parts(
    spec: &ModelSpec,
    state: &StateSpec,
    row: &LayerNames,
    layer: usize,
) -> Vec<Part> {
    let [hidden, heads, values, channels] =
        [spec.hidden, state.heads, state.values(), state.channels()].map(u64::from);
    let names: Vec<String> = row
        .tensors
        .iter()
        .map(|name| name.replace("{}", &layer.to_string()))
        .collect();
    let whole = |present: bool, shape: &[u64], change: Change| -> Vec<Part> {
        present
            .then(|| Part {
                change,
                ..Part::new(names[0].clone(), shape)
            })
            .into_iter()
            .collect()
    };
    match row.weight {
        "state_input" => input(state, row.order, &names, Some(hidden), spec.factors.gates),
        "state_input_bias" if !state.bias => Vec::new(),
        "state_input_bias" => input(state, row.order, &names, None, 1.0),
        "state_convolution" => taps(spec, state, &names),
        "state_convolution_bias" => whole(state.convolution_bias, &[channels], Change::None),
        "state_decay" => {
            let change = if state.log_decays {
                Change::NegativeExponential
            } else {
                Change::None
            };
            whole(true, &[heads], change)
        }
        "state_dt_bias" => whole(true, &[heads], Change::None),
        "state_skip" => whole(state.rule == StateRule::Mamba2, &[heads], Change::None),
        "state_norm" => {
            let elements = if state.norm.shared {
                u64::from(state.norm.run)
            } else {
                values
            };
            whole(
                state.norm.present,
                &[elements],
                Change::times(spec.factors.state),
            )
        }
        "state_output" => whole(true, &[hidden, values], Change::None),
        "state_output_bias" => whole(state.bias, &[hidden], Change::None),
        other => unreachable!("the tables of names hold no {other}"),
    }
}

/// The rows `[channels | z | gates]`, or the elements of their bias. `gate_factor` multiplies the gates.
fn input(
    state: &StateSpec,
    order: Order,
    names: &[String],
    hidden: Option<u64>,
    gate_factor: f32,
) -> Vec<Part> {
    let StateSpec {
        key_heads,
        heads,
        key_dim,
        value_dim,
        ..
    } = *state;
    let (keys, values, channels, gates) = (
        state.keys(),
        state.values(),
        state.channels(),
        state.gates(),
    );
    let shape = |rows: u32| {
        [u64::from(rows)]
            .into_iter()
            .chain(hidden)
            .collect::<Vec<u64>>()
    };
    let part = |index: usize, rows: u32, runs: Vec<Range<u32>>| Part {
        runs,
        ..Part::new(names[index].clone(), &shape(rows))
    };
    // For each key head, its own rows from `at` on within the rows of the head.
    let each = heads / key_heads;
    let by_head = |width: u32, at: u32, rows: u32| {
        (0..key_heads)
            .map(move |head| head * width + at..head * width + at + rows)
            .collect::<Vec<_>>()
    };
    let missing = state.mixed() - channels - values - gates;
    let rest = |runs: Vec<Range<u32>>, rows: u32| [runs, padding(rows, missing)].concat();
    let mut parts = match order {
        Order::ZFirst => {
            let all = values + channels + gates;
            let gate_rows = values + channels;
            let padded = padding(gates, missing)
                .into_iter()
                .map(|run| run.start + gate_rows..run.end + gate_rows);
            vec![
                part(0, all, one_range(values..values + channels)),
                part(0, all, one_range(0..values)),
                part(
                    0,
                    all,
                    one_range(gate_rows..all)
                        .into_iter()
                        .chain(padded)
                        .collect(),
                ),
            ]
        }
        Order::Apart => {
            let sizes = [keys, keys, values, values, heads];
            let mut parts: Vec<Part> = (0..)
                .zip(sizes)
                .map(|(index, rows)| part(index, rows, Vec::new()))
                .collect();
            parts.push(part(
                5,
                heads,
                rest(std::iter::once(0..heads).collect(), heads),
            ));
            parts
        }
        Order::KeyHeads | Order::KeyHeadGates => {
            let width = 2 * key_dim + 2 * each * value_dim;
            let all = key_heads * width;
            let (v, z) = (2 * key_dim, 2 * key_dim + each * value_dim);
            let [q, k, v, z] = [
                (0, key_dim),
                (key_dim, key_dim),
                (v, each * value_dim),
                (z, each * value_dim),
            ]
            .map(|(at, rows)| by_head(width, at, rows));
            let gate_runs = [by_head(2 * each, 0, each), by_head(2 * each, each, each)].concat();
            let gates_part = |index| part(index, gates, rest(gate_runs.clone(), gates));
            match order {
                Order::KeyHeads => vec![part(0, all, [q, k, v, z].concat()), gates_part(1)],
                _ => vec![
                    part(0, channels, Vec::new()),
                    part(1, values, Vec::new()),
                    gates_part(2),
                ],
            }
        }
        _ => {
            let sizes = [channels, values, heads];
            let mut parts: Vec<Part> = (0..)
                .zip(sizes)
                .map(|(index, rows)| part(index, rows, Vec::new()))
                .collect();
            parts.push(part(
                3,
                heads,
                rest(std::iter::once(0..heads).collect(), heads),
            ));
            parts
        }
    };
    parts.last_mut().expect("there are gates").change = Change::times(gate_factor);
    parts
}

fn one_range(range: Range<u32>) -> Vec<Range<u32>> {
    std::iter::once(range).collect::<Vec<_>>()
}

/// The taps of the convolution. Its channels may have tensors of their own, or factors.
fn taps(spec: &ModelSpec, state: &StateSpec, names: &[String]) -> Vec<Part> {
    let (keys, values, channels) = (state.keys(), state.values(), state.channels());
    let shape = |channels: u32| [u64::from(channels), 1, u64::from(state.taps)];
    if names.len() > 1 {
        let sizes = names.iter().zip([keys, keys, values]);
        return sizes
            .map(|(name, channels)| Part::new(name.clone(), &shape(channels)))
            .collect();
    }
    if spec.factors.channels == [1.0; 3] {
        return vec![Part::new(names[0].clone(), &shape(channels))];
    }
    let bounds = [0, values, values + keys, channels].map(|channel| channel * state.taps);
    bounds
        .windows(2)
        .zip(spec.factors.channels)
        .map(|(bounds, factor)| Part {
            runs: std::iter::once(bounds[0]..bounds[1]).collect(),
            change: Change::times(factor),
            ..Part::new(names[0].clone(), &shape(channels))
        })
        .collect()
}

/// Repeats the first rows, of `rows` that there are, until there are as many as are missing. Nothing reads them.
fn padding(rows: u32, mut missing: u32) -> Vec<Range<u32>> {
    let mut runs = Vec::new();
    while missing > 0 {
        runs.push(0..missing.min(rows));
        missing -= missing.min(rows);
    }
    runs
}

/// Adds to the parts of q, k and v the gates of the output, and the factor of v.
pub(super) fn gate_and_scale(spec: &ModelSpec, layer: usize, order: Order, parts: &mut Vec<Part>) {
    let layer = &spec.layers[layer];
    if let Some(values) = parts.get_mut(2) {
        values.change = Change::times(spec.factors.values);
    }
    match spec.attention.gate {
        OutputGate::None => {}
        OutputGate::EachElement => {
            assert_eq!(order, Order::GatedHeads, "q has the gates");
            let dim = layer.head_dim;
            let runs = |at: u32| {
                (0..spec.query_heads)
                    .map(move |head| (2 * head + at) * dim..(2 * head + at + 1) * dim)
            };
            parts[0].shape[0] *= 2;
            let gates = Part {
                runs: runs(1).collect(),
                ..parts[0].clone()
            };
            parts[0].runs = runs(0).collect();
            parts.push(gates);
        }
        OutputGate::EachHead => {
            let missing = spec.gate_columns(layer) - spec.query_heads;
            let gates = parts.last_mut().expect("there are gates");
            gates.runs = std::iter::once(0..spec.query_heads)
                .chain(padding(spec.query_heads, missing))
                .collect();
        }
    }
}
