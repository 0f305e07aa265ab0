//! Formats of weights: names, parts and sizes.

use super::*;

/// Row bytes with every kind of code and scale; halves and floats have ordinary magnitudes.
fn noise(length: usize, seed: usize) -> Vec<u8> {
    (0..length)
        .map(|at| ((at * 131 + seed * 17 + at / 7 * 29) % 251) as u8 & 0x7b)
        .collect()
}

#[test]
fn a_group_decodes_as_its_weights() {
    for format in WeightFormat::ALL
        .into_iter()
        .filter(|format| format.is_quantised())
    {
        for columns in [8, 32, 40, 256, 264, 1000] {
            let layout = format.layout(columns);
            let mut row = noise(layout.row_bytes, columns);
            if format.parts().2 == Scales::E4m3 {
                row[layout.supers..][..4].copy_from_slice(&1.5f32.to_le_bytes());
            }
            for group in 0..columns.div_ceil(GROUP) {
                let values = format.decode_group(&row, &layout, group);
                for index in GROUP * group..columns.min(GROUP * (group + 1)) {
                    let expected = format.decode(&row, columns, index);
                    assert!(expected.is_finite(), "{format} {index} of {columns}");
                    assert_eq!(
                        values[index % GROUP],
                        expected,
                        "{format} {index} of {columns}"
                    );
                }
            }
        }
    }
}

#[test]
fn sections_are_vectors_and_rows_cost_what_the_table_says() {
    for (format, bits) in [
        (WeightFormat::Q8, 8.5),
        (WeightFormat::Q4, 5.0),
        (WeightFormat::Q4Zero, 5.0),
        (WeightFormat::Q5, 6.0),
        (WeightFormat::Iq4, 4.5),
        (WeightFormat::Mxfp4, 4.25),
        (WeightFormat::E4m3, 8.25),
        (WeightFormat::Q2K, 2.625),
        (WeightFormat::Q3K, 3.625),
        (WeightFormat::Q4K, 4.625),
        (WeightFormat::Q5K, 5.625),
        (WeightFormat::Q6K, 6.625),
        (WeightFormat::Iq4K, 4.375),
        (WeightFormat::Q2, 3.0),
        (WeightFormat::Q3, 4.0),
        (WeightFormat::Q6, 7.0),
        (WeightFormat::Q8Min, 9.0),
        (WeightFormat::Q2Zero, 3.0),
        (WeightFormat::Q3Zero, 4.0),
        (WeightFormat::Q8Zero, 9.0),
        (WeightFormat::Int8, 8.25),
        (WeightFormat::Mxfp8, 8.25),
        (WeightFormat::Nvfp4, 4.53125),
        (WeightFormat::Nf4, 4.5),
        (WeightFormat::Fp4, 4.5),
        (WeightFormat::Iq1, 3.625),
        (WeightFormat::Iq2, 3.625),
        (WeightFormat::Iq3Xxs, 4.375),
        (WeightFormat::Iq3S, 4.375),
        (WeightFormat::Q1, 1.5),
        (WeightFormat::Ternary, 2.5),
    ] {
        assert_eq!(
            format.row_bytes(4096) as f64 * 8.0 / 4096.0,
            bits,
            "{format}"
        );
        for columns in [8, 40, 1000] {
            let Layout {
                plane,
                scales,
                supers,
                row_bytes,
            } = format.layout(columns);
            assert!(
                [plane, scales, supers, row_bytes]
                    .iter()
                    .all(|at| at % 16 == 0),
                "{format} × {columns}"
            );
        }
    }
}

/// The published tables of both float formats.
#[test]
fn small_floats_are_what_their_bits_say() {
    let found = [0x00, 0x01, 0x07, 0x08, 0x38, 0x3c, 0x7e, 0xfe, 0x80].map(decode_e4m3);
    assert_eq!(
        found,
        [
            0.0,
            1.0 / 512.0,
            7.0 / 512.0,
            1.0 / 64.0,
            1.0,
            1.5,
            448.0,
            -448.0,
            0.0
        ]
    );
    assert!(decode_e4m3(0x7f).is_nan());
    let mut row = vec![0; WeightFormat::Mxfp4.layout(32).row_bytes];
    row[..4].copy_from_slice(&[0x10, 0x32, 0x54, 0x76]);
    row[4..8].copy_from_slice(&[0x98, 0xba, 0xdc, 0xfe]);
    row[WeightFormat::Mxfp4.layout(32).scales] = 128;
    let found: Vec<f32> = (0..16)
        .map(|index| WeightFormat::Mxfp4.decode(&row, 32, index))
        .collect();
    let expected = [0.0, 2.0, 4.0, 8.0, 1.0, 3.0, 6.0, 12.0];
    assert_eq!(found[..8], expected);
    assert_eq!(found[8..], expected.map(|value| -value));
    // 255 stands for NaN.
    for biased in 0..255 {
        assert_eq!(
            f64::from(power(biased)),
            2f64.powi(i32::from(biased) - 127),
            "{biased}"
        );
    }
}
