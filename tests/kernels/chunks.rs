//! How a sequence is cut into batches changes no bit of its outputs and of its state, on any device; nor does the slot
//! that a state moves to. Where GPUs compute recurrences in chunks of rows, that holds in deterministic mode only;
//! otherwise it changes rounding.

use folio::backend::cpu::{CpuBackend, CpuOptions};
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{Class, WgpuBackend, WgpuOptions};
use folio::backend::{Capacity, Inspect};
use folio::plan::inputs::{BatchInputs, NONE, SequenceRows, StateRows};
use folio::plan::{
    BufferId, ConvolutionForm, KvFormat, Plan, Rows, ScanRule, ShortConvolution, StateLayer,
    StateScan, Step, Storage, WeightFormat, WeightId,
};
use folio::platform::block_on;
use std::sync::Arc;

const ROWS: u32 = 70;
const TAPS: u32 = 4;
/// Heads, key heads, elements of a key and of a value: no size is a multiple of a tile.
const SIZES: [u32; 4] = [4, 2, 24, 40];

/// A convolution and the recurrence over what it convolves.
fn plan(rule: ScanRule) -> Plan {
    let mut plan = Plan {
        vocab: 8,
        positions_max: 4096,
        ..Plan::default()
    };
    let [heads, key_heads, key_dim, value_dim] = SIZES;
    let channels = 2 * key_heads * key_dim + heads * value_dim;
    let mut weight = |name, columns| plan.weight(name, 1, columns, WeightFormat::F32);
    let [taps, decay, dt_bias] =
        [("taps", TAPS * channels), ("decay", heads), ("bias", heads)].map(|(n, c)| weight(n, c));
    let mut buffer = |name, columns| plan.buffer(name, Rows::Tokens, columns, Storage::F32);
    let mixed = buffer("mixed", channels + rule.gates() * heads);
    let [convolved, out] =
        [("convolved", channels), ("out", heads * value_dim)].map(|(n, c)| buffer(n, c));
    let states = [(TAPS - 1) * channels, heads * key_dim * value_dim];
    plan.state_layers = states.map(|elements| StateLayer { elements }).into();
    plan.body = vec![
        Step::ShortConvolution(ShortConvolution {
            x: mixed,
            form: ConvolutionForm::Silu,
            layer: 0,
            taps: TAPS,
            weight: taps,
            bias: None,
            out: convolved,
        }),
        Step::StateScan(StateScan {
            convolved,
            mixed,
            gates: channels,
            layer: 1,
            heads,
            key_heads,
            tiled: false,
            key_dim,
            value_dim,
            rule,
            decay,
            dt_bias,
            skip: None,
            out,
        }),
    ];
    plan
}

fn capacity(deterministic: bool) -> Capacity {
    Capacity {
        tokens_max: ROWS,
        sequences_max: 2,
        samples_max: 1,
        feed_slots: 1,
        state_slots: 4,
        table_entries_max: 1,
        history_max: 1,
        bias_max: 1,
        mask_words_max: 1,
        copies_max: 1,
        block_size: 16,
        kv_format: KvFormat::F16,
        deterministic,
    }
}

fn noise(count: u32, seed: f32) -> Vec<f32> {
    (0..count)
        .map(|at| (at as f32 * 12.9898 + seed).sin())
        .collect()
}

/// The outputs of a sequence, and its states, if it is cut into `chunks` and moves from slot to slot.
fn run(device: &mut impl Inspect, plan: &Plan, chunks: &[u32], slots: [u32; 2]) -> Vec<f32> {
    let width = plan.buffers[0].columns;
    let rows = noise(ROWS * width, 0.5);
    let (mut outputs, mut start) = (Vec::new(), 0);
    for (index, &count) in chunks.iter().enumerate() {
        let [from, to] = [slots[(index + 1) % 2], slots[index % 2]];
        let inputs = BatchInputs {
            token_ids: vec![0; count as usize],
            positions: (start..start + count).collect(),
            sequences: vec![SequenceRows {
                row_start: 0,
                row_count: count,
                context_len: start + count,
            }],
            states: vec![StateRows {
                from: if start == 0 { NONE } else { from },
                to,
            }],
            ..BatchInputs::default()
        };
        let part = &rows[(start * width) as usize..((start + count) * width) as usize];
        device
            .write_buffer(BufferId(0), part)
            .expect("the rows are written");
        let ticket = device.submit(&inputs).expect("the batch is accepted");
        block_on(device.read(ticket)).expect("it runs");
        outputs.extend(block_on(device.read_buffer(BufferId(2), count)).expect("it is read"));
        start += count;
    }
    assert_eq!(start, ROWS, "all rows ran");
    let last = slots[(chunks.len() - 1) % 2] as usize;
    for (layer, spec) in (0..).zip(&plan.state_layers) {
        let states = block_on(device.read_state(layer)).expect("it is read");
        outputs.extend(&states[last * spec.elements as usize..][..spec.elements as usize]);
    }
    outputs
}

/// The largest part of the largest output by which any other may deviate.
const ROUNDING: f32 = 4e-5;

/// `exact`: whether all bits must be the same.
fn check(name: &str, device: &mut impl Inspect, deterministic: bool, exact: bool) {
    for rule in [ScanRule::Delta { beta_scale: 2.0 }, ScanRule::Mamba2] {
        let plan = plan(rule);
        device
            .load(Arc::new(plan.clone()), &capacity(deterministic))
            .expect("the plan is loaded");
        for (id, weight) in (0..).zip(&plan.weights) {
            let values = noise(weight.columns, 3.0)
                .into_iter()
                .map(|value| if id == 1 { -value.abs() } else { value });
            let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
            device
                .write_weight(WeightId(id), 0, bytes.into())
                .expect("the weight is written");
        }
        device.allocate_pool(&[]).expect("there is no pool");
        let whole = run(device, &plan, &[ROWS], [3, 3]);
        assert!(
            whole.iter().all(|value| value.is_finite()),
            "{name}, {rule:?}"
        );
        let largest = whole
            .iter()
            .fold(0.0_f32, |largest, value| largest.max(value.abs()));
        let mut rounded = false;
        for (chunks, slots) in [
            (&[1; ROWS as usize][..], [0, 0]),
            (&[2, 1, 3, 60, 4], [1, 1]),
            (&[5, 64, 1], [2, 0]),
            (&[33, 1, 1, 35], [0, 3]),
        ] {
            let found = run(device, &plan, chunks, slots);
            let is_same = |(found, whole): (&f32, &f32)| {
                rounded |= found.to_bits() != whole.to_bits();
                if exact {
                    found.to_bits() == whole.to_bits()
                } else {
                    (found - whole).abs() <= ROUNDING * largest
                }
            };
            let place = format!("{name}, {rule:?}: chunks of {chunks:?} in slots {slots:?}");
            assert!(found.iter().zip(&whole).all(is_same), "{place}");
        }
        assert!(
            exact || rounded,
            "{name}, {rule:?}: chunks are not chunks of these rows"
        );
    }
}

#[test]
fn the_chunks_of_a_sequence_change_nothing() {
    check("reference", &mut ReferenceBackend::new(), false, true);
    for threads in [1, 3] {
        check(
            "cpu",
            &mut CpuBackend::new(&CpuOptions {
                threads: Some(threads),
                level: None,
            }),
            false,
            true,
        );
    }
    for adapter in WgpuBackend::adapters() {
        for (class, deterministic, exact) in [
            (None, true, true),
            (Some(Class::Software), false, true),
            (Some(Class::Discrete), true, true),
            (Some(Class::Discrete), false, false),
        ] {
            let options = WgpuOptions {
                adapter: Some(adapter.index),
                class,
                ..WgpuOptions::default()
            };
            let mut device =
                block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens");
            check(
                &format!("{} as {class:?}", adapter.name),
                &mut device,
                deterministic,
                exact,
            );
        }
    }
}

#[cfg(all(feature = "cuda", unix))]
#[test]
fn the_chunks_of_a_sequence_change_nothing_in_cuda() {
    for deterministic in [true, false] {
        let Some(mut device) = crate::emulator::emulated(Storage::F32, (8, 0)) else {
            return;
        };
        check("cuda", &mut device, deterministic, deterministic);
    }
}
