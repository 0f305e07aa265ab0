//! Sums and their order.

use super::*;

struct Decode<'a>(WeightFormat, &'a [u8], &'a mut [f64]);

impl Kernel for Decode<'_> {
    #[inline(always)]
    fn run<S: PartialSums>(self) {
        decode_wide::<S>(self.0, self.1, self.2);
    }
}

/// Every half and bfloat16 bit pattern widens to the value that the format's definition gives.
#[test]
fn decoding_is_the_format_definition() {
    let row: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for format in [WeightFormat::F16, WeightFormat::Bf16] {
        let (mut wide, mut portable) = (vec![0.0; 1 << 16], vec![0.0; 1 << 16]);
        dispatch(Decode(format, &row, &mut wide));
        Decode(format, &row, &mut portable).run::<Portable>();
        for index in 0..1 << 16 {
            let expected = f64::from(format.decode(&row, 1 << 16, index));
            for value in [wide[index], portable[index]] {
                let same =
                    value.to_bits() == expected.to_bits() || value.is_nan() && expected.is_nan();
                assert!(same, "{format:?} {index:#06x}: {value} is not {expected}");
            }
        }
    }
}

struct Dots<'a> {
    weights: &'a [u8],
    x: &'a [f32],
    out: &'a mut Vec<u64>,
}

impl Kernel for Dots<'_> {
    #[inline(always)]
    fn run<S: PartialSums>(self) {
        let wide: Vec<f64> = self.x.iter().map(|x| f64::from(*x)).collect();
        for format in WeightFormat::ALL {
            let weights = &self.weights[..format.row_bytes(self.x.len() as u32) as usize];
            let mut decoded = vec![0.0; self.x.len()];
            decode_row(format, weights, &mut decoded);
            let mut decoded_wide = vec![0.0; self.x.len()];
            decode_wide::<S>(format, weights, &mut decoded_wide);
            let sums = (0..LANES).map(|lane| {
                let lane = (lane..self.x.len()).step_by(LANES);
                lane.fold(0.0, |sum, i| {
                    sum + f64::from(format.decode(weights, wide.len(), i)) * wide[i]
                })
            });
            let forms = [
                sums.fold(0.0, |total, sum| total + sum),
                dot::<S>(&decoded, self.x),
                dot_wide::<S>(&decoded_wide, &wide),
                dot_wide_two::<S>(&decoded_wide, &wide, &wide)[0],
                dot_wide_two::<S>(&wide, &decoded_wide, &wide)[1],
                dot_encoded::<S>(format, weights, &wide),
            ];
            self.out.extend(forms.map(f64::to_bits));
        }
    }
}

/// Naive, plain, widened, two at a time, encoded, AVX2 or portable: the same bits, at any alignment.
#[test]
fn every_form_gives_the_same_bits() {
    for columns in [1, 8, 15, 16, 17, 32, 40, 56, 64, 1000] {
        let bytes: Vec<u8> = (0..columns * 4 + 129)
            .map(|i| (i * 37 % 251) as u8 & 0x3f)
            .collect();
        let x: Vec<f32> = (0..columns).map(|i| (i as f32 * 0.37).sin()).collect();
        for weights in [&bytes[..bytes.len() - 1], &bytes[1..]] {
            let (mut wide, mut portable) = (Vec::new(), Vec::new());
            dispatch(Dots {
                weights,
                x: &x,
                out: &mut wide,
            });
            Dots {
                weights,
                x: &x,
                out: &mut portable,
            }
            .run::<Portable>();
            assert_eq!(wide, portable, "{columns} columns");
            assert!(
                portable
                    .chunks(6)
                    .all(|forms| forms.iter().all(|form| *form == forms[0])),
                "{columns} columns"
            );
        }
    }
}
