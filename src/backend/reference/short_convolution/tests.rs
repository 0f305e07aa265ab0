//! Convolutions of a few rows, computed by hand.

use super::*;

/// Two columns and three taps: the last tap meets the present token.
#[test]
fn it_is_its_formula_by_hand() {
    let weight = [1.0, 10.0, 100.0, -1.0, 0.0, 2.0];
    let filter = Filter {
        form: ConvolutionForm::Gated,
        taps: 3,
        weight: &weight,
        bias: Some(&[0.5, -0.5]),
    };
    let row = |b: [f32; 2], c: [f32; 2], u: [f32; 2]| [b, c, u].concat();
    let gated = [
        row([2.0, 1.0], [1.0, 3.0], [3.0, 4.0]),
        row([1.0, 1.0], [2.0, 1.0], [5.0, 7.0]),
    ]
    .concat();
    let mut state = [7.0, 8.0, 9.0, 11.0];
    let mut out = [0.0; 4];
    short_convolution((&gated, 6), filter, &mut state, &mut out, Storage::F32);
    // s = [7, 9, 6, 5] and [8, 11, 4, 7].
    let expected = [
        7.0 + 90.0 + 600.0 + 0.5,
        3.0 * (-8.0 + 8.0 - 0.5),
        2.0 * 569.5,
        -11.0 + 14.0 - 0.5,
    ];
    assert_eq!(out, expected);
    assert_eq!(
        state,
        [6.0, 4.0, 5.0, 7.0],
        "the products of the last two tokens"
    );
}

/// The columns of wider rows, with an activation.
#[test]
fn plain_columns_are_convolved_and_activated() {
    let filter = Filter {
        form: ConvolutionForm::Silu,
        taps: 2,
        weight: &[1.0, 10.0, -1.0, 2.0],
        bias: None,
    };
    let (mut state, mut out) = ([7.0, 8.0], [0.0; 4]);
    let x = [0.5, 4.0, 99.0, 0.25, -3.0, 99.0];
    short_convolution((&x, 3), filter, &mut state, &mut out, Storage::F32);
    let silu = |x: f64| (x / (1.0 + (-x).exp())) as f32;
    assert_eq!(out, [silu(12.0), silu(0.0), silu(3.0), silu(-10.0)]);
    assert_eq!(
        state,
        [0.25, -3.0],
        "the inputs of the last token, before the convolution"
    );
}

#[test]
fn the_chunks_of_a_sequence_change_nothing() {
    const COLUMNS: usize = 3;
    for taps in [2, 3, 7] {
        let noise =
            |count: usize, seed: f32| (0..count).map(move |at| (at as f32 * 12.9898 + seed).sin());
        let weight: Vec<f32> = noise(COLUMNS * taps, 1.0).collect();
        let filter = Filter {
            form: ConvolutionForm::Gated,
            taps,
            weight: &weight,
            bias: None,
        };
        let gated: Vec<f32> = noise(3 * COLUMNS * 11, 2.0).collect();
        let run = |chunk: usize| {
            let (mut state, mut all) = (vec![0.0; (taps - 1) * COLUMNS], Vec::new());
            for rows in gated.chunks(3 * COLUMNS * chunk) {
                let mut out = vec![f32::NAN; rows.len() / 3];
                short_convolution(
                    (rows, 3 * COLUMNS),
                    filter,
                    &mut state,
                    &mut out,
                    Storage::F32,
                );
                all.extend(out);
            }
            (state, all)
        };
        let whole = run(11);
        for chunk in [1, 2, 5] {
            assert_eq!(run(chunk), whole, "{taps} taps in chunks of {chunk}");
        }
    }
}
