//! Tests of `model/random.rs`.

use super::*;

#[test]
fn any_range_is_a_slice_of_the_whole() {
    let spec = ModelSpec::named("64x1x1x1x8x8x4096").expect("a shape");
    let source = RandomTensors::new(&spec, 5);
    for (tensor, length) in [
        ("model.embed_tokens.weight", 64 * 4096 * 2),
        ("model.norm.weight", 128),
    ] {
        let whole = source.make(tensor, 0..length);
        for (start, end) in [(0, 2), (6, 20), (3, 11), (1, length), (length - 5, length)] {
            assert_eq!(
                source.make(tensor, start..end),
                whole[start as usize..end as usize],
                "{start}..{end}"
            );
        }
    }
}

/// The experts of gpt-oss: rows of 1,440 bytes of codes and 90 scales, which differ, and whose numbers have the
/// size that those in bf16 have.
#[test]
fn experts_are_random_in_mxfp4() {
    let source = RandomTensors::new(&ModelSpec::named("gpt-oss-20b").expect("a shape"), 5);
    let tensor = "model.layers.3.mlp.experts.down_proj";
    assert_eq!(source.tensors[tensor].shape, [32, 2880, 2880]);
    assert_eq!(
        source.tensors[tensor].element,
        Element::Float(WeightFormat::Mxfp4)
    );
    let row_bytes = WeightFormat::Mxfp4.row_bytes(2880);
    assert_eq!(row_bytes, 1440 + 96);
    let rows = source.make(tensor, 0..20 * row_bytes);
    let numbers: Vec<f32> = rows
        .chunks_exact(row_bytes as usize)
        .flat_map(|row| (0..2880).map(|column| WeightFormat::Mxfp4.decode(row, 2880, column)))
        .collect();
    let mean_square =
        |of: &[f32]| of.iter().map(|n| f64::from(*n).powi(2)).sum::<f64>() / of.len() as f64;
    let size = mean_square(&numbers).sqrt() * 2880_f64.sqrt();
    assert!(
        (0.5..2.0).contains(&size),
        "elements are about 1 / sqrt(columns), not {size}"
    );
    assert!(numbers[..2880] != numbers[2880..5760], "rows differ");
    for (start, end) in [(0, 7), (1434, 1543), (row_bytes - 3, 3 * row_bytes + 5)] {
        assert_eq!(
            source.make(tensor, start..end),
            rows[start as usize..end as usize],
            "{start}..{end}"
        );
    }
}
