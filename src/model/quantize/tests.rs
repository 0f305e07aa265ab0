//! Weights that are quantized on load.

use super::*;
use half::bf16;

fn noise(count: usize) -> Vec<f32> {
    (0..count)
        .map(|i| {
            ((i as f32 * 12.9898).sin() * 43758.547).fract() * if i % 37 == 0 { 4.0 } else { 0.5 }
        })
        .collect()
}

fn rows(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| bf16::from_f32(*value).to_le_bytes())
        .collect()
}

/// A weight changes by at most half a step of its group, plus the rounding of its scale.
#[test]
fn weights_move_by_half_a_step_at_most() {
    for columns in [8, 40, 64, 1000] {
        let source = rows(&noise(5 * columns));
        for (format, steps) in [(WeightFormat::Q8, 127.0), (WeightFormat::Q4, 15.0)] {
            let out = quantize_rows(WeightFormat::Bf16, format, columns, &source).expect("finite");
            let row_bytes = format.row_bytes(columns as u32) as usize;
            for (row, out) in source
                .chunks_exact(2 * columns)
                .zip(out.chunks_exact(row_bytes))
            {
                let value = |index| WeightFormat::Bf16.decode(row, columns, index);
                for group in (0..columns).step_by(GROUP) {
                    let of_group = group..columns.min(group + GROUP);
                    let largest = of_group
                        .clone()
                        .map(|index| value(index).abs())
                        .fold(0.0, f32::max);
                    let (low, high) = of_group
                        .clone()
                        .map(value)
                        .fold((0.0f32, 0.0f32), |(l, h), v| (l.min(v), h.max(v)));
                    let range = if format == WeightFormat::Q8 {
                        largest
                    } else {
                        high - low
                    };
                    for index in of_group {
                        let miss = (format.decode(out, columns, index) - value(index)).abs();
                        // Fitting may increase one weight's error to reduce others.
                        let allowed = if format == WeightFormat::Q8 {
                            0.505
                        } else {
                            1.1
                        } * range
                            / steps;
                        assert!(
                            miss <= allowed + 1e-6,
                            "{format} {index} of {columns}: {miss} of {allowed}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn extremes_stay_finite() {
    for values in [[0.0; 64], [1e-8; 64], [-3e38; 64], [65504.0 * 200.0; 64]] {
        for format in [WeightFormat::Q8, WeightFormat::Q4] {
            let out =
                quantize_rows(WeightFormat::Bf16, format, 64, &rows(&values)).expect("finite");
            assert!(
                (0..64).all(|index| format.decode(&out, 64, index).is_finite()),
                "{format} {}",
                values[0]
            );
        }
    }
    assert!(
        quantize_rows(
            WeightFormat::Bf16,
            WeightFormat::Q8,
            64,
            &rows(&[f32::NAN; 64])
        )
        .is_none()
    );
}
