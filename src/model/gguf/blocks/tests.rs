//! Blocks of GGUF's formats, as llama.cpp reads them.

use super::*;
use half::f16;

/// Weight `index` of a block, computed as ggml's own decoder does: the definition of the published format.
fn published(kind: BlockType, block: &[u8], index: usize) -> f32 {
    let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
    let (i, group) = (index % 32, index / 32);
    let nibble = |at: usize| {
        f32::from(if i < 16 {
            block[at + i] & 15
        } else {
            block[at + i - 16] >> 4
        })
    };
    let fifth = |at: usize| f32::from((block[at + i / 8] >> (i % 8) & 1) * 16);
    match kind {
        BlockType::Q4_0 => half(0) * (nibble(2) - 8.0),
        BlockType::Q4_1 => half(0) * nibble(4) + half(2),
        BlockType::Q5_0 => half(0) * (nibble(6) + fifth(2) - 16.0),
        BlockType::Q5_1 => half(0) * (nibble(8) + fifth(4)) + half(2),
        BlockType::Q8_0 => half(0) * f32::from(block[2 + i].cast_signed()),
        BlockType::Q2K => {
            let scale = block[index / 16];
            let code = block[16 + 32 * (index / 128) + index % 32] >> (2 * (index / 32 % 4)) & 3;
            half(80) * f32::from(scale & 15) * f32::from(code) - half(82) * f32::from(scale >> 4)
        }
        BlockType::Q3K => {
            let at = index / 16;
            let low = if at < 8 {
                block[96 + at] & 15
            } else {
                block[96 + at - 8] >> 4
            };
            let scale = i32::from(low | (block[104 + at % 4] >> (2 * (at / 4)) & 3) << 4) - 32;
            let code = i32::from(block[32 + 32 * (index / 128) + i] >> (2 * (index / 32 % 4)) & 3);
            let code = code - if block[i] >> group & 1 == 1 { 0 } else { 4 };
            half(108) * scale as f32 * code as f32
        }
        BlockType::Q4K | BlockType::Q5K => {
            let packed = &block[4..16];
            let (scale, min) = match group {
                0..4 => (packed[group] & 63, packed[group + 4] & 63),
                _ => (
                    (packed[group + 4] & 15) | ((packed[group - 4] >> 6) << 4),
                    (packed[group + 4] >> 4) | ((packed[group] >> 6) << 4),
                ),
            };
            let (low, high) = if kind == BlockType::Q4K {
                (16, 0)
            } else {
                (48, block[16 + i] >> group & 1)
            };
            let code = block[low + 32 * (group / 2) + i] >> (4 * (group % 2)) & 15 | high << 4;
            half(0) * f32::from(scale) * f32::from(code) - half(2) * f32::from(min)
        }
        BlockType::Q6K => {
            let (part, quarter) = (index / 128, index / 32 % 4);
            let low = block[64 * part + 32 * (quarter % 2) + i] >> (4 * (quarter / 2)) & 15;
            let code = low | (block[128 + 32 * part + i] >> (2 * quarter) & 3) << 4;
            half(208) * f32::from(block[192 + index / 16].cast_signed()) * (f32::from(code) - 32.0)
        }
        BlockType::Iq4Nl => half(0) * LEVELS[nibble(2) as usize],
        BlockType::Iq4Xs => {
            let low = i32::from(block[4 + group / 2] >> (4 * (group % 2)) & 15);
            let high = i32::from(u16::from_le_bytes([block[2], block[3]]) >> (2 * group) & 3);
            half(0) * ((low | high << 4) - 32) as f32 * LEVELS[nibble(8 + 16 * group) as usize]
        }
        BlockType::Mxfp4 => {
            let value = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][nibble(1) as usize % 8];
            let sign = if nibble(1) < 8.0 { 1.0 } else { -1.0 };
            (2f64.powi(i32::from(block[0]) - 127) * value * sign) as f32
        }
        BlockType::F32 | BlockType::F16 | BlockType::Bf16 => unreachable!("not in blocks"),
    }
}

const LEVELS: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
    89.0, 113.0,
];

/// Repacking is lossless: the device format decodes to exactly the numbers of the published format.
#[test]
fn repacking_loses_nothing() {
    let mut state = 7u64;
    let mut random = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    for &(_, kind, name, weights, bytes, format) in TABLE.iter().filter(|row| row.5.is_quantised())
    {
        for blocks in [1, 2, 5, 9] {
            let columns = blocks * weights;
            let mut source: Vec<u8> = (0..blocks * bytes).map(|_| random()).collect();
            for block in source.chunks_exact_mut(bytes) {
                // Keep every f16 and every exponent in an ordinary range.
                let halves: &[usize] = match kind {
                    BlockType::Q2K => &[80, 82],
                    BlockType::Q3K => &[108],
                    BlockType::Q6K => &[208],
                    BlockType::Q4_1 | BlockType::Q5_1 | BlockType::Q4K | BlockType::Q5K => &[0, 2],
                    BlockType::Mxfp4 => &[],
                    _ => &[0],
                };
                halves
                    .iter()
                    .for_each(|at| block[at + 1] = block[at + 1] & 0x83 | 0x24);
            }
            let mut row = vec![0xa5; format.row_bytes(columns as u32) as usize];
            kind.repack(&source, columns, &mut row);
            for index in 0..columns {
                let expected = published(
                    kind,
                    &source[index / weights * bytes..][..bytes],
                    index % weights,
                );
                let found = format.decode(&row, columns, index);
                assert_eq!(
                    found, expected,
                    "{name} as {format}, weight {index} of {columns}"
                );
            }
        }
    }
}
