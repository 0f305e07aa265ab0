//! Products of a few rows, against sums in f64.

use super::super::simd::{Level, with_simd};
use super::*;

/// Panels of f32 in memory, `[panel][column]`.
struct Plain(usize, Vec<Lanes>);

impl Source for Plain {
    fn decode<S: Simd>(
        &self,
        _: S,
        panels: Range<usize>,
        columns: Range<usize>,
        out: &mut [Lanes],
    ) {
        for (panel, out) in panels.zip(out.chunks_exact_mut(columns.len())) {
            out.copy_from_slice(&self.1[panel * self.0..][columns.clone()]);
        }
    }
}

fn noise(at: usize) -> f32 {
    (at as f32 * 12.9898).sin()
}

/// Right, and the same bits for each row alone.
#[test]
fn outputs_are_sums_of_products_and_depend_on_their_row_and_panel_alone() {
    for (count, panels, columns) in [
        (1, 11, 300),
        (2, 3, 8),
        (5, 5, 600),
        (13, 2, 64),
        (40, 3, 264),
        (300, 1, 40),
    ] {
        let values: Vec<f32> = (0..count * columns).map(noise).collect();
        let lanes = |at: usize| std::array::from_fn(|lane| noise(at * LANES + lane + 7));
        let plain = Plain(columns, (0..panels * columns).map(lanes).collect());
        for level in Level::available() {
            let run = |values: &[f32], count| {
                let mut found = vec![[f32::NAN; LANES]; count * panels];
                let x = Rows {
                    values,
                    stride: columns,
                    count,
                    list: None,
                };
                let mut scratch = ProductScratch::default();
                let emit =
                    |row: usize, panel: usize, out: &Lanes| found[row * panels + panel] = *out;
                with_simd!(level, s => prepare(s, x, &plain, columns, &mut scratch));
                with_simd!(level, s => product(s, x, &plain, 0..panels, 0..columns, &mut scratch, emit));
                found
            };
            let together = run(&values, count);
            for row in 0..count {
                let x = &values[row * columns..][..columns];
                assert_eq!(
                    run(x, 1),
                    together[row * panels..][..panels],
                    "row {row} of {count}, {level}"
                );
                for (panel, found) in together[row * panels..][..panels].iter().enumerate() {
                    for (lane, found) in found.iter().enumerate() {
                        let weight =
                            |column: usize| f64::from(plain.1[panel * columns + column][lane]);
                        let products = x
                            .iter()
                            .enumerate()
                            .map(|(at, &value)| f64::from(value) * weight(at));
                        let expected: f64 = products.sum();
                        assert!(
                            (f64::from(*found) - expected).abs() < 1e-4,
                            "{row} {panel} {lane} {level}"
                        );
                    }
                }
            }
        }
    }
}
