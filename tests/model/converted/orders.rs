//! Orders of rows and columns, and numbers, that files have otherwise than checkpoints.

use super::Values;
use serde_json::Value;

/// `[experts, columns, rows]` as `[experts, rows, columns]`.
pub(crate) fn transposed(shape: &[usize], values: &[f32]) -> Values {
    let (columns, rows) = (shape[1], shape[2]);
    let expert = |expert: &[f32]| -> Vec<f32> {
        (0..rows)
            .flat_map(|row| (0..columns).map(move |column| (column, row)))
            .map(|(c, r)| expert[c * rows + r])
            .collect()
    };
    let values = values
        .chunks_exact(columns * rows)
        .flat_map(expert)
        .collect();
    (vec![shape[0], rows, columns], values)
}

/// Separates gate (the even rows of each expert) and up (the odd rows).
pub(super) fn untangled(name: &str, (shape, values): Values) -> Vec<(String, Values)> {
    if !name.contains("gate_up_proj") {
        return vec![(name.into(), (shape, values))];
    }
    let columns = shape.get(2).copied().unwrap_or(1);
    let each = |odd: usize, part: &str| {
        let rows = values
            .chunks_exact(columns)
            .skip(odd)
            .step_by(2)
            .flatten()
            .copied()
            .collect();
        let mut shape = shape.clone();
        shape[1] /= 2;
        (name.replace("gate_up_proj", part), (shape, rows))
    };
    vec![each(0, "gate_proj"), each(1, "up_proj")]
}

/// The divisors that `llama3` scaling applies to the frequencies, in f32 as in the converter.
pub(super) fn llama3_divisors(rope: &Value, base: f32, head_dim: u32) -> Values {
    let number = |field: &str| rope[field].as_f64().expect("a number");
    let (factor, low, high) = (
        number("factor"),
        number("low_freq_factor"),
        number("high_freq_factor"),
    );
    let positions = number("original_max_position_embeddings");
    let divisor = |pair: u32| {
        let frequency = f64::from(base).powf(-2.0 * f64::from(pair) / f64::from(head_dim));
        let wave = std::f64::consts::TAU / frequency;
        if wave < positions / high {
            1.0
        } else if wave > positions / low {
            factor as f32
        } else {
            let smooth = (positions / wave - low) / (high - low);
            (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
        }
    };
    let divisors: Vec<f32> = (0..head_dim / 2).map(divisor).collect();
    (vec![divisors.len()], divisors)
}
