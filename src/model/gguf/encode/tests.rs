//! Quantized rows decode to nearly what they were, in the bits that their type has.

use super::*;

/// Values as weights have them: a sum of uniform numbers, with a few outliers.
fn weights(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..count)
        .map(|at| {
            let value = (0..6).map(|_| uniform()).sum::<f32>() * 0.03;
            if at % 97 == 0 { 4.0 * value } else { value }
        })
        .collect()
}

fn decoded(kind: BlockType, blocks: &[u8], columns: usize) -> Vec<f32> {
    let format = kind.format();
    let mut row = vec![0; format.row_bytes(columns as u32) as usize];
    kind.repack(blocks, columns, 1.0, &mut row);
    (0..columns)
        .map(|index| format.decode(&row, columns, index))
        .collect()
}

/// The root of the squared error of each type, relative to the values, is what its bits allow.
#[test]
fn errors_are_those_of_the_bits() {
    let values = weights(4096, 3);
    let norm = values.iter().map(|value| value * value).sum::<f32>();
    for (kind, allowed) in [
        (BlockType::Q8_0, 0.008),
        (BlockType::Q6K, 0.022),
        (BlockType::Q5K, 0.05),
        (BlockType::Q5_1, 0.05),
        (BlockType::Q5_0, 0.06),
        (BlockType::Q4K, 0.1),
        (BlockType::Q4_1, 0.1),
        (BlockType::Q4_0, 0.11),
        (BlockType::Q3K, 0.2),
        (BlockType::Q2K, 0.36),
    ] {
        assert!(is_target(kind));
        let mut blocks = vec![0xa5; kind.row_bytes(values.len())];
        encode(kind, &values, &mut blocks);
        let found = decoded(kind, &blocks, values.len());
        let error = values.iter().zip(found).map(|(a, b)| (a - b) * (a - b));
        let error = (error.sum::<f32>() / norm).sqrt();
        assert!(error <= allowed, "{kind}: {error}");
        assert!(
            error >= allowed / 2.5,
            "{kind}: {error} is better than its bits"
        );
    }
}

#[test]
fn zeros_and_equal_values_stay_what_they_are() {
    for kind in [
        BlockType::Q8_0,
        BlockType::Q4_0,
        BlockType::Q4_1,
        BlockType::Q5_0,
        BlockType::Q5_1,
        BlockType::Q2K,
        BlockType::Q3K,
        BlockType::Q4K,
        BlockType::Q5K,
        BlockType::Q6K,
    ] {
        for value in [0.0, 0.5, -0.5] {
            let values = vec![value; 512];
            let mut blocks = vec![0xa5; kind.row_bytes(512)];
            encode(kind, &values, &mut blocks);
            for found in decoded(kind, &blocks, 512) {
                assert!((found - value).abs() <= 0.02, "{kind}: {found} for {value}");
            }
        }
    }
}
