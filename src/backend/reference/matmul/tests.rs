//! Products of small matrices, computed by hand.

use super::*;
use crate::plan::{Plan, WeightFormat};

fn weight(rows: usize, columns: usize, value: impl Fn(usize, usize) -> f32) -> Weight {
    let mut plan = Plan::default();
    plan.weight("w", rows as u32, columns as u32, WeightFormat::F32);
    let mut weight = Weight::new(plan.weights.remove(0));
    let values = (0..rows * columns).flat_map(|i| value(i / columns, i % columns).to_le_bytes());
    weight
        .insert(0, values.collect::<Vec<u8>>().into())
        .unwrap();
    weight
}

fn product(x: &[f32], weight: &Weight, bias: Option<Vec<f32>>, start: Option<f32>) -> Vec<f32> {
    let rows = x.len() / weight.spec().columns as usize;
    let mut values = vec![start.unwrap_or(f32::NAN); rows * weight.spec().rows as usize];
    let accumulate = start.is_some();
    matmul(
        x,
        weight,
        false,
        Output {
            bias,
            accumulate,
            values: &mut values,
            storage: Storage::F32,
        },
    );
    values
}

#[test]
fn identity_bias_and_accumulation() {
    let identity = weight(9, 9, |row, column| f32::from(row == column));
    let x: Vec<f32> = (0..27).map(|i| i as f32 - 13.5).collect();
    assert_eq!(product(&x, &identity, None, None), x);
    let bias: Vec<f32> = (0..9).map(|i| i as f32).collect();
    let expected: Vec<f32> = x
        .iter()
        .enumerate()
        .map(|(i, x)| x + (i % 9) as f32 + 100.0)
        .collect();
    assert_eq!(product(&x, &identity, Some(bias), Some(100.0)), expected);
}

#[test]
fn products_are_the_naive_sums() {
    let weight = weight(33, 40, |row, column| {
        ((row * 40 + column) as f32 * 0.37).sin()
    });
    let x: Vec<f32> = (0..3 * 40).map(|i| (i as f32 * 0.11).cos()).collect();
    for (i, value) in product(&x, &weight, None, None).iter().enumerate() {
        let (row, column) = (i / 33, i % 33);
        let sum: f64 = (0..40)
            .map(|k| {
                f64::from(x[row * 40 + k]) * f64::from(((column * 40 + k) as f32 * 0.37).sin())
            })
            .sum();
        assert!(
            (f64::from(*value) - sum).abs() < 1e-6,
            "row {row}, column {column}: {value} is not {sum}"
        );
    }
}

/// A row in a batch has the same bits as alone, across many chunks and threads.
#[test]
fn a_batch_is_its_rows() {
    let weight = weight(515, 520, |row, column| {
        ((row * 7 + column * 3) as f32).sin()
    });
    let x: Vec<f32> = (0..17 * 520).map(|i| (i as f32).cos()).collect();
    let together = product(&x, &weight, None, None);
    for rows in [1, 2, 5] {
        let apart: Vec<f32> = x
            .chunks(rows * 520)
            .flat_map(|x| product(x, &weight, None, None))
            .collect();
        assert_eq!(together, apart, "{rows} at a time");
    }
}
