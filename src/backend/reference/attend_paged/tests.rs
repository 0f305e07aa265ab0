//! Attention of a few rows, computed by hand.

use super::*;
use crate::plan::format::KvTile;
use crate::plan::inputs::SequenceRows;
use crate::plan::{BufferId, KvFormat};

const DIM: usize = 8;
const BLOCK: usize = 4;

fn plain() -> Attention {
    Attention {
        step: AttendPaged {
            q: BufferId(0),
            layer: 0,
            query_heads: 4,
            scale: 0.35,
            softcap: None,
            alibi: None,
            sinks: None,
            out: BufferId(1),
        },
        layer: KvLayer {
            group: 0,
            heads: 2,
            head_dim: DIM as u32,
            latent: false,
        },
        block_size: BLOCK,
        alibi: None,
        sinks: None,
        window: None,
    }
}

fn noise(index: usize) -> f32 {
    (index as f32 * 12.9898).sin() * 2.0
}

/// A pool of 6 blocks with noise in it, and one sequence of `context` tokens through a shuffled table.
struct Fixture {
    keys: KvStore,
    values: KvStore,
    table: Vec<u32>,
}

impl Fixture {
    fn new() -> Self {
        Self::with(KvFormat::F32)
    }

    fn with(format: KvFormat) -> Self {
        let elements = 6 * 2 * BLOCK * DIM;
        let tile = KvTile {
            format,
            slots: BLOCK,
            head_dim: DIM,
        };
        let mut keys = KvStore::new(tile, 6 * 2).unwrap();
        let mut values = KvStore::new(tile, 6 * 2).unwrap();
        keys.write(0, &(0..elements).map(noise).collect::<Vec<_>>());
        values.write(
            0,
            &(0..elements).map(|i| noise(i + 5000)).collect::<Vec<_>>(),
        );
        Self {
            keys,
            values,
            table: vec![3, 0, 5, 1],
        }
    }

    fn q(rows: usize) -> Vec<f32> {
        (0..rows * 4 * DIM).map(|i| noise(i + 900)).collect()
    }

    fn run(&self, attention: &Attention, positions: &[u32]) -> Vec<f32> {
        let rows = positions.len() as u32;
        let context_len = positions[positions.len() - 1] + 1;
        let group = GroupInputs {
            block_tables: self.table.clone(),
            table_starts: vec![0],
            slot_mapping: vec![NONE; positions.len()],
            copies: vec![],
        };
        let inputs = BatchInputs {
            positions: positions.to_vec(),
            sequences: vec![SequenceRows {
                row_start: 0,
                row_count: rows,
                context_len,
            }],
            ..BatchInputs::default()
        };
        let q = Self::q(positions.len());
        let mut out = vec![f32::NAN; q.len()];
        let pool = Pool {
            keys: &self.keys,
            values: &self.values,
        };
        attend_paged(
            attention,
            &q,
            pool,
            &inputs,
            &group,
            (&mut out, Storage::F32),
        );
        out
    }

    fn element(&self, store: &KvStore, kv_head: usize, position: usize, element: usize) -> f64 {
        let block = self.table[position / BLOCK] as usize;
        let mut row = [0.0; DIM];
        store.read((block * 2 + kv_head) * BLOCK + position % BLOCK, &mut row);
        f64::from(row[element])
    }

    /// The formula in naive loops, over the keys that `sees` selects.
    fn naive(
        &self,
        attention: &Attention,
        position: usize,
        sees: impl Fn(usize) -> bool,
    ) -> Vec<f64> {
        let q = Self::q(1);
        let mut out = Vec::new();
        for head in 0..4 {
            let mut numerator = [0.0; DIM];
            let mut total = attention
                .sinks
                .as_ref()
                .map_or(0.0, |sinks| f64::from(sinks[head]).exp());
            for j in (0..=position).filter(|j| sees(*j)) {
                let product: f64 = (0..DIM)
                    .map(|i| {
                        f64::from(q[head * DIM + i]) * self.element(&self.keys, head / 2, j, i)
                    })
                    .sum();
                let mut score = product * f64::from(attention.step.scale);
                if let Some(cap) = attention.step.softcap {
                    score = f64::from(cap) * (score / f64::from(cap)).tanh();
                }
                if let Some(slopes) = &attention.alibi {
                    score -= f64::from(slopes[head]) * (position - j) as f64;
                }
                total += score.exp();
                for (i, sum) in numerator.iter_mut().enumerate() {
                    *sum += score.exp() * self.element(&self.values, head / 2, j, i);
                }
            }
            out.extend(numerator.map(|sum| sum / total));
        }
        out
    }
}

fn close(values: &[f32], expected: &[f64]) {
    assert_eq!(values.len(), expected.len());
    for (value, expected) in values.iter().zip(expected) {
        assert!(
            (f64::from(*value) - expected).abs() < 1e-5,
            "{value} is not {expected}"
        );
    }
}

#[test]
fn attention_over_one_key_returns_its_value() {
    let fixture = Fixture::new();
    let out = fixture.run(&plain(), &[0]);
    for (index, value) in out.iter().enumerate() {
        let expected = fixture.element(&fixture.values, index / DIM / 2, 0, index % DIM);
        assert_eq!(f64::from(*value), expected, "head {}", index / DIM);
    }
}

#[test]
fn probabilities_sum_to_one() {
    let mut fixture = Fixture::new();
    let elements = fixture.values.elements();
    fixture.values.write(0, &vec![1.0; elements]);
    assert!(
        fixture
            .run(&plain(), &[3, 14])
            .iter()
            .all(|value| (value - 1.0).abs() < 1e-6)
    );
}

#[test]
fn options_are_their_formulas_alone_and_together() {
    for (options, format) in
        (0..16).flat_map(|options| KvFormat::ALL.map(|format| (options, format)))
    {
        let fixture = Fixture::with(format);
        let mut attention = plain();
        attention.step.softcap = (options & 1 != 0).then_some(0.8);
        attention.alibi = (options & 2 != 0).then(|| vec![0.5, 0.25, 0.125, 0.0625]);
        attention.sinks = (options & 4 != 0).then(|| vec![0.3, -1.0, 2.0, 0.0]);
        attention.window = (options & 8 != 0).then_some(Window::Last(5));
        for position in [0, 4, 13] {
            let window = attention.window.map_or(100, Window::tokens) as usize;
            let expected = fixture.naive(&attention, position, |j| j + window > position);
            close(&fixture.run(&attention, &[position as u32]), &expected);
        }
    }
}

#[test]
fn a_chunk_hides_what_is_before_it() {
    let fixture = Fixture::new();
    let attention = Attention {
        window: Some(Window::Chunk(5)),
        ..plain()
    };
    for (position, first) in [(0, 0), (4, 0), (5, 5), (9, 5), (13, 10)] {
        let expected = fixture.naive(&attention, position, |j| j >= first);
        close(&fixture.run(&attention, &[position as u32]), &expected);
    }
}

#[test]
fn a_window_as_long_as_the_context_is_no_window() {
    let fixture = Fixture::new();
    let wide = Attention {
        window: Some(Window::Last(14)),
        ..plain()
    };
    assert_eq!(
        fixture.run(&wide, &[12, 13]),
        fixture.run(&plain(), &[12, 13])
    );
    let narrow = Attention {
        window: Some(Window::Last(13)),
        ..plain()
    };
    assert_ne!(fixture.run(&narrow, &[13]), fixture.run(&plain(), &[13]));
}

#[test]
fn missing_blocks_are_never_visible() {
    let mut fixture = Fixture::new();
    let expected = fixture.naive(&plain(), 13, |j| j >= 8);
    fixture.table[..2].fill(NONE);
    close(&fixture.run(&plain(), &[13]), &expected);
    let sinks = Attention {
        sinks: Some(vec![1.0; 4]),
        ..plain()
    };
    for attention in [plain(), sinks] {
        assert!(
            fixture
                .run(&attention, &[5])
                .iter()
                .all(|value| *value == 0.0),
            "nothing visible gives zeros"
        );
    }
}

#[test]
fn a_prefill_chunk_is_its_rows() {
    let fixture = Fixture::new();
    let together = fixture.run(&plain(), &[6, 7, 8, 9]);
    let alone = fixture.run(&plain(), &[6]);
    assert_eq!(
        together[..4 * DIM],
        alone,
        "the first row does not see the later ones"
    );
}

#[test]
fn softmax_survives_large_scores() {
    let mut scores = [1e4, 1e4 - 1.0, -1e9];
    softmax(&mut scores, Some(-5.0));
    assert!((scores[0] - 1.0 / (1.0 + (-1.0f64).exp())).abs() < 1e-12);
    assert_eq!(scores[2], 0.0);
}
