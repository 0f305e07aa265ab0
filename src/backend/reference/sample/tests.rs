//! Tests of sample.

use super::*;
use crate::plan::inputs::{BiasEntry, DrawParams, HistoryEntry};

fn random(position: u32) -> SampleRow {
    let draw = DrawParams::default();
    SampleRow {
        draw,
        seed: 0x1234_5678_9abc_def0,
        ..SampleRow::greedy(0, position)
    }
}

fn random_with(draw: DrawParams) -> SampleRow {
    SampleRow { draw, ..random(0) }
}

fn draw_one(logits: &[f32], row: &SampleRow) -> u32 {
    sample_row(logits, row, &BatchInputs::default(), None).token_id
}

/// The distinct tokens of 2,000 draws.
fn support(logits: &[f32], row: &SampleRow) -> Vec<u32> {
    let mut ids: Vec<_> = (0..2000)
        .map(|position| draw_one(logits, &SampleRow { position, ..*row }))
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// 10⁶ draws over 16 tokens: χ² with 15 degrees of freedom stays below its 99.9 % quantile, 37.7.
#[test]
fn frequencies_follow_the_distribution() {
    let logits: Vec<f32> = (0..16).map(|id| (id as f32 * 1.7).sin() * 1.5).collect();
    let total: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
    let draws = 1_000_000u32;
    let mut counts = [0u32; 16];
    for position in 0..draws {
        counts[draw_one(&logits, &random(position)) as usize] += 1;
    }
    let terms = counts.iter().zip(&logits).map(|(count, logit)| {
        let expected = f64::from(*logit).exp() / total * f64::from(draws);
        (f64::from(*count) - expected).powi(2) / expected
    });
    let chi_squared: f64 = terms.sum();
    assert!(chi_squared < 37.7, "χ² = {chi_squared}");
    assert!(
        chi_squared > 2.0,
        "χ² = {chi_squared}: too good to be random"
    );
}

#[test]
fn temperature_sharpens_and_flattens() {
    let logits = [0.0, 1.0];
    let share = |temperature| {
        let draw = DrawParams {
            temperature,
            ..DrawParams::default()
        };
        let row = |position| SampleRow {
            draw,
            ..random(position)
        };
        (0..20_000)
            .filter(|position| draw_one(&logits, &row(*position)) == 1)
            .count() as f64
            / 20_000.0
    };
    for temperature in [0.25f32, 1.0, 4.0] {
        let expected = 1.0 / (1.0 + (-1.0 / f64::from(temperature)).exp());
        assert!(
            (share(temperature) - expected).abs() < 0.015,
            "temperature {temperature}"
        );
    }
}

#[test]
fn each_part_of_the_key_matters_and_nothing_else() {
    let logits = vec![0.0; 64];
    let tokens = |row: &SampleRow| -> Vec<u32> {
        (0..32)
            .map(|position| draw_one(&logits, &SampleRow { position, ..*row }))
            .collect()
    };
    let row = random(0);
    let base = tokens(&row);
    assert_eq!(
        base,
        tokens(&SampleRow {
            feed_slot: 3,
            logprob: true,
            top_logprobs: 4,
            ..row
        })
    );
    assert_ne!(
        base,
        tokens(&SampleRow {
            seed: row.seed ^ 1,
            ..row
        }),
        "low seed word"
    );
    assert_ne!(
        base,
        tokens(&SampleRow {
            seed: row.seed ^ 1 << 40,
            ..row
        }),
        "high seed word"
    );
    assert_ne!(base, tokens(&SampleRow { choice: 1, ..row }), "choice");
}

#[test]
fn greedy_takes_the_lowest_id_of_a_tie() {
    assert_eq!(draw_one(&[1.0, 3.0, 3.0, 2.0], &SampleRow::greedy(0, 0)), 1);
    assert_eq!(
        draw_one(&[-0.0, 0.0, 1e-42], &SampleRow::greedy(0, 0)),
        0,
        "zeros and subnormals are equal"
    );
    assert_eq!(draw_one(&[-5.0, -4.0], &SampleRow::greedy(0, 0)), 1);
}

#[test]
fn bad_rows_are_errors() {
    let infinity = f32::INFINITY;
    for temperature in [0.0, 1.0] {
        let row = random_with(DrawParams {
            temperature,
            ..DrawParams::default()
        });
        let row = SampleRow {
            logprob: true,
            top_logprobs: 2,
            ..row
        };
        for logits in [
            [1.0, f32::NAN],
            [1.0, -f32::NAN],
            [1.0, infinity],
            [-infinity, -infinity],
        ] {
            let sampled = sample_row(&logits, &row, &BatchInputs::default(), None);
            let expected = Sampled {
                token_id: NUMERICAL_ERROR,
                ..Sampled::default()
            };
            assert_eq!(sampled, expected, "{logits:?}");
        }
        assert_eq!(draw_one(&[-infinity, 1.0], &row), 1, "one −∞ is no error");
    }
}

#[test]
fn an_empty_mask_is_an_error_and_a_mask_is_obeyed() {
    let inputs = BatchInputs {
        masks: vec![0, 0, 0b1010, 1, 0],
        ..BatchInputs::default()
    };
    let logits: Vec<f32> = (0..33).map(|id| id as f32).collect();
    let drawn = |mask_start, temperature| {
        let draw = DrawParams {
            temperature,
            ..DrawParams::default()
        };
        let row = SampleRow {
            mask_start,
            draw,
            ..random(7)
        };
        sample_row(&logits, &row, &inputs, None).token_id
    };
    assert_eq!(drawn(0, 1.0), NUMERICAL_ERROR);
    assert_eq!(
        drawn(1, 1.0),
        NUMERICAL_ERROR,
        "bits past the vocabulary allow nothing"
    );
    assert_eq!(drawn(2, 0.0), 32, "the second word begins with id 32");
    assert_eq!(drawn(3, 1.0), 0);
}

#[test]
fn top_k_keeps_ties() {
    let logits = [1.0, 2.0, 2.0, 0.5, 2.0];
    let kept = |top_k| {
        support(
            &logits,
            &random_with(DrawParams {
                top_k,
                ..DrawParams::default()
            }),
        )
    };
    assert_eq!(kept(1), [1, 2, 4]);
    assert_eq!(kept(3), [1, 2, 4]);
    assert_eq!(kept(4), [0, 1, 2, 4]);
    assert_eq!(kept(0), [0, 1, 2, 3, 4]);
    assert_eq!(kept(50), [0, 1, 2, 3, 4]);
}

#[test]
fn min_p_is_relative_to_the_most_likely() {
    let logits = [0.0, 0.5f32.ln(), 0.2f32.ln(), 0.1f32.ln()];
    let kept = |min_p| {
        support(
            &logits,
            &random_with(DrawParams {
                min_p,
                ..DrawParams::default()
            }),
        )
    };
    assert_eq!(kept(0.51), [0]);
    assert_eq!(kept(0.49), [0, 1]);
    assert_eq!(kept(0.15), [0, 1, 2]);
    assert_eq!(kept(0.0), [0, 1, 2, 3]);
}

#[test]
fn top_p_keeps_the_smallest_set_with_ties() {
    // Shares ½, ⅙, ⅙, ⅙.
    let logits = [0.0, 3.0f32.ln(), 0.0, 0.0];
    let kept = |top_p| {
        support(
            &logits,
            &random_with(DrawParams {
                top_p,
                ..DrawParams::default()
            }),
        )
    };
    assert_eq!(kept(0.0), [1], "the largest value always stays");
    assert_eq!(kept(0.49), [1]);
    assert_eq!(kept(0.51), [0, 1, 2, 3]);
    assert_eq!(kept(1.0), [0, 1, 2, 3]);
}

#[test]
fn top_p_counts_what_top_k_left() {
    // Shares 0.4, 0.3, 0.2, 0.1; of the first two, 0.57 and 0.43.
    let logits = [0.4f32.ln(), 0.3f32.ln(), 0.2f32.ln(), 0.1f32.ln()];
    let kept = |top_k, top_p| {
        support(
            &logits,
            &random_with(DrawParams {
                top_k,
                top_p,
                ..DrawParams::default()
            }),
        )
    };
    assert_eq!(kept(2, 0.55), [0]);
    assert_eq!(kept(0, 0.55), [0, 1]);
    assert_eq!(kept(0, 0.75), [0, 1, 2]);
}

fn penalised(
    logits: &[f32],
    row: SampleRow,
    history: &[(u32, u32)],
    pending: Option<u32>,
) -> Vec<f32> {
    let entry = |&(token_id, generated)| HistoryEntry {
        token_id,
        generated,
    };
    let history: Vec<_> = history.iter().map(entry).collect();
    let row = SampleRow {
        history: Range {
            start: 0,
            len: history.len() as u32,
        },
        ..row
    };
    let inputs = BatchInputs {
        history,
        ..BatchInputs::default()
    };
    let mut values = logits.to_vec();
    adjust(&mut values, &row, &inputs, pending);
    values
}

#[test]
fn repetition_counts_prompt_and_output() {
    let row = random_with(DrawParams {
        repetition_penalty: 2.0,
        ..DrawParams::default()
    });
    let values = penalised(
        &[4.0, -4.0, 4.0, -4.0, 4.0],
        row,
        &[(0, 0), (1, 3), (99, 1)],
        Some(4),
    );
    assert_eq!(values, [2.0, -8.0, 4.0, -4.0, 2.0]);
}

#[test]
fn frequency_and_presence_count_output_alone() {
    let penalties = DrawParams {
        frequency_penalty: 0.5,
        presence_penalty: 0.25,
        ..DrawParams::default()
    };
    let row = random_with(penalties);
    let history = [(0, 0), (1, 3)];
    assert_eq!(
        penalised(&[4.0; 4], row, &history, None),
        [4.0, 2.25, 4.0, 4.0]
    );
    assert_eq!(
        penalised(&[4.0; 4], row, &history, Some(1)),
        [4.0, 1.75, 4.0, 4.0],
        "known and pending"
    );
    assert_eq!(
        penalised(&[4.0; 4], row, &history, Some(3)),
        [4.0, 2.25, 4.0, 3.25],
        "pending alone"
    );
    assert_eq!(
        penalised(&[4.0; 4], row, &history, Some(0)),
        [3.25, 2.25, 4.0, 4.0],
        "prompt and pending"
    );
}

#[test]
fn bias_comes_before_penalties() {
    let bias = vec![
        BiasEntry {
            token_id: 1,
            bias: -6.0,
        },
        BiasEntry {
            token_id: 7,
            bias: 1.0,
        },
    ];
    let history = vec![HistoryEntry {
        token_id: 1,
        generated: 1,
    }];
    let range = |len| Range { start: 0, len };
    let row = random_with(DrawParams {
        repetition_penalty: 2.0,
        ..DrawParams::default()
    });
    let row = SampleRow {
        bias: range(2),
        history: range(1),
        ..row
    };
    let mut values = [4.0, 4.0];
    adjust(
        &mut values,
        &row,
        &BatchInputs {
            bias,
            history,
            ..BatchInputs::default()
        },
        None,
    );
    assert_eq!(values, [4.0, -4.0], "(4 − 6) · 2");
}

#[test]
fn a_given_token_is_not_drawn() {
    let logits = [0.5f32.ln(), 0.25f32.ln(), 0.25f32.ln(), f32::NEG_INFINITY];
    let row = SampleRow {
        scored_token: 2,
        logprob: true,
        top_logprobs: 2,
        ..random(0)
    };
    let inputs = BatchInputs::default();
    let sampled = sample_row(&logits, &row, &inputs, None);
    assert_eq!(
        (sampled.token_id, sampled.top[0].0, sampled.top[1].0),
        (2, 0, 1)
    );
    assert!((sampled.logprob - 0.25f32.ln()).abs() < 1e-6);
    let never = sample_row(
        &logits,
        &SampleRow {
            scored_token: 3,
            ..row
        },
        &inputs,
        None,
    );
    assert_eq!((never.token_id, never.logprob), (3, f32::NEG_INFINITY));
    for bad in [[f32::NAN, 0.0, 0.0, 0.0], [f32::NEG_INFINITY; 4]] {
        assert_eq!(
            sample_row(&bad, &row, &inputs, None).token_id,
            NUMERICAL_ERROR
        );
    }
}

#[test]
fn logprobs_are_those_of_the_raw_logits() {
    let logits = [
        0.1f32.ln(),
        0.5f32.ln(),
        0.2f32.ln(),
        f32::NEG_INFINITY,
        0.2f32.ln(),
    ];
    let inputs = BatchInputs {
        bias: vec![BiasEntry {
            token_id: 0,
            bias: 100.0,
        }],
        ..BatchInputs::default()
    };
    let bias = Range { start: 0, len: 1 };
    let row = SampleRow {
        bias,
        logprob: true,
        top_logprobs: 5,
        ..SampleRow::greedy(0, 0)
    };
    let sampled = sample_row(&logits, &row, &inputs, None);
    assert_eq!(sampled.token_id, 0);
    assert!((sampled.logprob - 0.1f32.ln()).abs() < 1e-6);
    let ids: Vec<u32> = sampled.top.iter().map(|(id, _)| *id).collect();
    assert_eq!(
        ids,
        [1, 2, 4, 0],
        "most likely first, ties by lowest id, −∞ left out"
    );
    assert!(
        sampled
            .top
            .iter()
            .all(|(id, logprob)| (logprob - logits[*id as usize]).abs() < 1e-6)
    );
    let row = SampleRow {
        top_logprobs: 2,
        logprob: false,
        ..row
    };
    let sampled = sample_row(&logits, &row, &inputs, None);
    assert_eq!((sampled.logprob, sampled.top.len()), (0.0, 2));
}

#[test]
fn certainty_knows_near_ties_and_near_thresholds() {
    let certain =
        |logits: &[f32], row| is_certain(logits, &row, &BatchInputs::default(), None, 1e-4);
    let greedy = SampleRow::greedy(0, 0);
    assert!(certain(&[1.0, 1.1], greedy));
    assert!(!certain(&[1.0, 1.000_05], greedy));
    let boundary = random_with(DrawParams {
        top_p: 0.5,
        ..DrawParams::default()
    });
    let by_token = |logits: [f32; 2]| {
        (0..200)
            .filter(|position| {
                !certain(
                    &logits,
                    SampleRow {
                        position: *position,
                        ..boundary
                    },
                )
            })
            .count()
    };
    assert!(
        by_token([0.000_05, 0.0]) > 50,
        "half of the draws need the token at the boundary"
    );
    assert!(
        by_token([1.0, 0.0]) == 0,
        "far from the boundary one token is left"
    );
    let certain_draws = (0..200)
        .filter(|position| certain(&[1.0, 0.0], random(*position)))
        .count();
    assert!(
        certain_draws >= 198,
        "without thresholds only near-ties are uncertain"
    );
}

/// The f32 form that kernels use (see *Accuracy* above) agrees with the definition over the whole range.
#[test]
fn the_kernel_form_of_the_gumbel_variate_is_accurate() {
    let kernel = |bits: u32| {
        let k = bits >> 8;
        let exponential = if k < 1 << 23 {
            -((k as f32 + 0.5) / 16_777_216.0).ln()
        } else {
            let v = (((1 << 24) - 1 - k) as f32 + 0.5) / 16_777_216.0;
            let (s, z) = (v / (2.0 - v), (v / (2.0 - v)) * (v / (2.0 - v)));
            let series = [13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0]
                .iter()
                .fold(0.0, |sum, n| sum * z + 1.0 / n);
            2.0 * s * series
        };
        -exponential.ln()
    };
    let near_ends = (0..4096u32).flat_map(|k| [k << 8, u32::MAX - (k << 8)]);
    for bits in near_ends.chain((0..1 << 16).map(|k| k << 16)) {
        let difference = (f64::from(kernel(bits)) - gumbel(bits)).abs();
        assert!(difference < 5e-6, "bits {bits:#010x}: off by {difference}");
    }
}
