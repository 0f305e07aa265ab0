//! Blocks of GGUF's formats, as llama.cpp reads them.

use super::*;
use crate::plan::format::decode_e4m3;
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
        BlockType::Nvfp4 => {
            let (sub, within) = (index / 16, index % 16);
            let byte = block[4 + 8 * sub + within % 8];
            let code = if within < 8 { byte & 15 } else { byte >> 4 };
            let value = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code % 8)];
            let sign = if code < 8 { 1.0 } else { -1.0 };
            let scale = match block[sub] & 0x7f {
                0x7f => 0.0,
                scale => decode_e4m3(scale),
            };
            sign * value * scale * FACTOR
        }
        BlockType::Q1_0 => {
            let bit = block[2 + index / 8] >> (index % 8) & 1;
            if bit == 1 { half(0) } else { -half(0) }
        }
        BlockType::Q2_0 => {
            half(0) * (f32::from(block[2 + index / 4] >> (2 * (index % 4)) & 3) - 1.0)
        }
        BlockType::Tq2_0 => {
            let code = block[32 * (index / 128) + index % 32] >> (2 * (index % 128 / 32)) & 3;
            half(64) * (f32::from(code) - 1.0)
        }
        BlockType::Tq1_0 => {
            let (byte, digit) = match index {
                0..160 => (block[index % 32], index / 32),
                160..240 => (block[32 + index % 16], (index - 160) / 16),
                _ => (block[48 + index % 4], (index - 240) / 4),
            };
            let fraction = u32::from(byte) * 3u32.pow(digit as u32) % 256;
            half(52) * ((fraction * 3 / 256) as f32 - 1.0)
        }
        BlockType::Iq1S
        | BlockType::Iq1M
        | BlockType::Iq2Xxs
        | BlockType::Iq2Xs
        | BlockType::Iq2S
        | BlockType::Iq3Xxs
        | BlockType::Iq3S => of_grid(kind, block, index),
        BlockType::F32 | BlockType::F16 | BlockType::Bf16 => unreachable!("not in blocks"),
    }
}

/// What the tests multiply NVFP4 by.
const FACTOR: f32 = 1.5;

/// Weight `index` of a block whose points lie in a grid.
fn of_grid(kind: BlockType, block: &[u8], index: usize) -> f32 {
    let half = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
    let word = |at: usize| u32::from(half(at)) | u32::from(half(at + 2)) << 16;
    let (group, eight, sixteen) = (index / 32, index / 8, index / 16);
    let seven = |bits: u32| {
        let bits = bits & 127;
        let parity = bits.count_ones() % 2;
        bits | parity << 7
    };
    let (d, point, signs, scale): (f32, usize, u32, u8) = match kind {
        BlockType::Iq1M => {
            let d = (0..4).fold(0, |d, at| d | half(48 + 2 * at) >> 12 << (4 * at));
            let nibble = usize::from(block[32 + eight / 2] >> (4 * (eight % 2)) & 15);
            let scale = half(48 + 2 * (sixteen / 4)) >> (3 * (sixteen % 4)) & 7;
            let delta = if nibble & 8 == 0 { 0 } else { 255 };
            let point = usize::from(block[eight]) | (nibble & 7) << 8;
            (f16::from_bits(d).to_f32(), point, delta, scale as u8)
        }
        _ => {
            let d = f16::from_bits(half(0)).to_f32();
            let (point, signs, scale) = match kind {
                BlockType::Iq1S => {
                    let h = half(34 + 2 * group);
                    let high = usize::from(h >> (3 * (eight % 4)) & 7) << 8;
                    let delta = if h >> 15 == 1 { 255 } else { 0 };
                    (
                        usize::from(block[2 + eight]) | high,
                        delta,
                        (h >> 12 & 7) as u8,
                    )
                }
                BlockType::Iq2Xxs => {
                    let a = word(2 + 8 * group + 4);
                    let point = usize::from(block[2 + 8 * group + eight % 4]);
                    (point, seven(a >> (7 * (eight % 4))), (a >> 28) as u8)
                }
                BlockType::Iq2Xs => {
                    let h = half(2 + 2 * eight);
                    let scale = block[66 + group] >> (4 * (sixteen % 2)) & 15;
                    (usize::from(h & 511), seven(u32::from(h >> 9)), scale)
                }
                BlockType::Iq2S => {
                    let high = usize::from(block[66 + group] >> (2 * (eight % 4)) & 3) << 8;
                    let scale = block[74 + group] >> (4 * (sixteen % 2)) & 15;
                    (
                        usize::from(block[2 + eight]) | high,
                        block[34 + eight].into(),
                        scale,
                    )
                }
                BlockType::Iq3Xxs => {
                    let a = word(66 + 4 * group);
                    (
                        block[2 + index / 4].into(),
                        seven(a >> (7 * (eight % 4))),
                        (a >> 28) as u8,
                    )
                }
                _ => {
                    let high = usize::from(block[66 + group] >> (index / 4 % 8) & 1) << 8;
                    let scale = block[106 + group / 2] >> (4 * (group % 2)) & 15;
                    (
                        usize::from(block[2 + index / 4]) | high,
                        block[74 + eight].into(),
                        scale,
                    )
                }
            };
            (d, point, signs, scale)
        }
    };
    let sign = if signs >> (index % 8) & 1 == 1 {
        -1.0
    } else {
        1.0
    };
    let (grid, values): (&[u16], &[f32]) = match kind {
        BlockType::Iq1S | BlockType::Iq1M => (&grids::IQ1, &[-1.0, 0.0, 1.0]),
        BlockType::Iq2Xxs => (&grids::IQ2_XXS, &[8.0, 25.0, 43.0]),
        BlockType::Iq2Xs => (&grids::IQ2_XS, &[8.0, 25.0, 43.0]),
        BlockType::Iq2S => (&grids::IQ2_S, &[8.0, 25.0, 43.0]),
        BlockType::Iq3Xxs => (
            &grids::IQ3_XXS,
            &[4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0],
        ),
        _ => (&grids::IQ3_S, &[1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0]),
    };
    let is_of_four = values.len() == 8;
    let rank = if is_of_four {
        grid[point] >> (3 * (index % 4)) & 7
    } else {
        grid[point] >> (2 * (index % 8)) & 3
    };
    let (value, scale) = (values[usize::from(rank)], f32::from(scale));
    match kind {
        BlockType::Iq1S | BlockType::Iq1M => d * (2.0 * scale + 1.0) * (value + sign / 8.0),
        BlockType::Iq3Xxs => d * (scale + 0.5) / 2.0 * value * sign,
        BlockType::Iq3S => d * (1.0 + 2.0 * scale) * value * sign,
        _ => d * (scale + 0.5) / 4.0 * value * sign,
    }
}

/// The generated tables are what they were, and points of IQ2 have the property that the search gave them.
#[test]
fn grids_are_the_published_ones() {
    let grids: [&[u16]; 6] = [
        &grids::IQ1,
        &grids::IQ2_XXS,
        &grids::IQ2_XS,
        &grids::IQ2_S,
        &grids::IQ3_XXS,
        &grids::IQ3_S,
    ];
    let mut hasher = blake3::Hasher::new();
    for point in grids.into_iter().flatten() {
        hasher.update(&point.to_le_bytes());
    }
    assert_eq!(hasher.finalize().to_hex()[..16], *"05147ab52ecf1357");
    for point in grids[1..4].iter().copied().flatten() {
        let sum: u16 = (0..8).map(|at| point >> (2 * at) & 3).sum();
        assert!(sum.is_multiple_of(2), "{point:#x}");
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
                    BlockType::Tq1_0 => &[52],
                    BlockType::Tq2_0 => &[64],
                    BlockType::Iq1M | BlockType::Nvfp4 => &[],
                    BlockType::Q4_1 | BlockType::Q5_1 | BlockType::Q4K | BlockType::Q5K => &[0, 2],
                    BlockType::Mxfp4 => &[],
                    _ => &[0],
                };
                halves
                    .iter()
                    .for_each(|at| block[at + 1] = block[at + 1] & 0x83 | 0x24);
                if kind == BlockType::Iq1M {
                    // The highest nibble of the half.
                    block[55] = block[55] & 0x8f | 0x20;
                }
            }
            let mut row = vec![0xa5; format.row_bytes(columns as u32) as usize];
            kind.repack(&source, columns, FACTOR, &mut row);
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
