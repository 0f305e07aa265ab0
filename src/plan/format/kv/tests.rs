//! Formats of keys and values: codes, scales and sizes.

use super::*;

/// The row read back, its codes, and its scale.
fn stored(row: [f32; 8]) -> ([f32; 8], [i8; 8], f32) {
    stored_as(KvFormat::Q8, row)
}

fn stored_as(format: KvFormat, row: [f32; 8]) -> ([f32; 8], [i8; 8], f32) {
    let whole = KvTile {
        format,
        slots: 16,
        head_dim: 8,
    };
    let mut tile = vec![0x5555_5555; whole.words()];
    whole.encode(&mut tile, 3, &row);
    let mut read = [f32::NAN; 8];
    whole.decode(&tile, 3, &mut read);
    let codes: &[i8] = bytemuck::cast_slice(&tile[6..8]);
    let untouched = tile.iter().filter(|word| **word == 0x5555_5555).count();
    assert_eq!(
        untouched,
        tile.len() - 3,
        "a row writes its codes and its scale"
    );
    (
        read,
        codes.try_into().unwrap(),
        f32::from_bits(tile[16 * 2 + 3]),
    )
}

#[test]
fn a_constant_row_is_its_largest_code() {
    let (read, codes, scale) = stored([-2.54; 8]);
    assert_eq!((codes, scale), ([-127; 8], 2.54 * (1.0 / 127.0)));
    assert!(
        read.iter().all(|value| (value + 2.54).abs() < 1e-6),
        "{read:?}"
    );
}

#[test]
fn an_outlier_takes_the_resolution_and_ties_go_to_even() {
    // A scale of exactly 1, so that codes are the values.
    let (read, codes, scale) = stored([127.0, 0.5, 1.5, -2.5, 0.49, -126.51, 3.0, -0.0]);
    assert_eq!(codes, [127, 0, 2, -2, 0, -127, 3, 0]);
    assert!((scale - 1.0).abs() < 1e-7);
    assert!((read[5] + 127.0).abs() < 1e-4);
}

#[test]
fn a_row_of_zeros_has_no_scale() {
    for row in [[0.0; 8], [-0.0; 8], [1e-40; 8], [-9.9e-31; 8]] {
        assert_eq!(stored(row), ([0.0; 8], [0; 8], 0.0), "{row:?}");
        let (read, _, scale) = stored_as(KvFormat::Fp8, row);
        assert_eq!((read, scale), ([0.0; 8], 0.0), "{row:?}");
    }
    for format in KvFormat::CODED {
        assert!(stored_as(format, [1.1e-30; 8]).2 > 0.0);
    }
}

#[test]
fn codes_of_fp8_are_those_of_e4m3() {
    let value = |code: u8| e4m3_half(code).to_f32();
    for code in (0..=0xff).filter(|code| code & 0x7f != 0x7f) {
        assert_eq!(value(code), crate::plan::format::decode_e4m3(code) / 256.0);
        assert_eq!(e4m3_code(value(code)), code);
    }
    for code in 0..0x7e {
        let (low, high) = (value(code), value(code + 1));
        let middle = low.midpoint(high);
        assert_eq!(
            e4m3_code(middle),
            if code % 2 == 0 { code } else { code + 1 },
            "a tie after {code}"
        );
        assert_eq!(e4m3_code(middle.next_down()), code);
        assert_eq!(e4m3_code(-middle.next_up()), 0x80 | (code + 1));
        let step = KvFormat::Fp8.code_step(high, 1.75);
        assert!(
            high - low <= step,
            "{low} and {high} are at most {step} apart"
        );
    }
    let (_, codes, scale) = stored_as(
        KvFormat::Fp8,
        [448.0, -1.0, 0.5, 17.0, 19.0, -0.001, 0.0, 240.0],
    );
    assert_eq!(scale, 256.0);
    assert_eq!(
        codes.map(i8::cast_unsigned),
        [0x7e, 0xb8, 0x30, 0x58, 0x5a, 0x81, 0, 0x77]
    );
}

#[test]
fn what_is_not_finite_stays_so() {
    for format in KvFormat::CODED {
        let (read, ..) = stored_as(format, [1.0, f32::NAN, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert!(
            read.iter().all(|value| value.is_nan()),
            "{format}: {read:?}"
        );
        let (read, ..) = stored_as(format, [f32::NEG_INFINITY; 8]);
        assert!(
            read.iter().all(|value| !value.is_finite()),
            "{format}: {read:?}"
        );
    }
}

#[test]
fn every_row_keeps_to_its_words() {
    for format in KvFormat::ALL {
        for (slots, head_dim) in [(16, 8), (32, 40), (64, 256)] {
            let tile = KvTile {
                format,
                slots,
                head_dim,
            };
            assert_eq!(tile.words() % 4, 0, "a tile is whole vectors of 16 bytes");
            let row = |slot: usize| {
                (0..head_dim)
                    .map(|at| (slot * 31 + at % 100) as f32)
                    .collect::<Vec<_>>()
            };
            let mut words = vec![0; tile.words()];
            (0..slots).for_each(|slot| tile.encode(&mut words, slot, &row(slot)));
            for slot in 0..slots {
                let (mut read, expected) = (vec![0.0; head_dim], row(slot));
                tile.decode(&words, slot, &mut read);
                let largest = largest_magnitude(&expected);
                let near = |(a, b): (&f32, &f32)| {
                    let allowed = match format {
                        KvFormat::F32 => 0.0,
                        KvFormat::F16 => largest / 2048.0,
                        KvFormat::Q8 | KvFormat::Fp8 => 0.5001 * format.code_step(*b, largest),
                    };
                    (a - b).abs() <= allowed
                };
                assert!(
                    read.iter().zip(&expected).all(near),
                    "{format:?}, slot {slot} of {slots}×{head_dim}"
                );
            }
        }
    }
}
