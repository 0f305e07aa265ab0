//! Tests of `model/rope.rs`.

use super::*;

#[test]
fn llama3_keeps_short_waves_divides_long_ones_and_ramps_between() {
    let scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_positions: 64.0,
    };
    let wave = |positions: f64| TAU / positions;
    assert_eq!(scaling.apply(wave(15.0), 0.0), wave(15.0));
    assert_eq!(scaling.apply(wave(65.0), 0.0), wave(65.0) / 8.0);
    let middle = scaling.apply(wave(64.0 / 2.5), 0.0);
    assert!(
        (middle - wave(64.0 / 2.5) * (0.5 + 0.5 / 8.0)).abs() < 1e-12,
        "half way between both ends: {middle}"
    );
}

#[test]
fn yarn_keeps_the_first_pairs_divides_the_last_and_ramps_between() {
    let scaling = RopeScaling::Yarn {
        factor: 4.0,
        ramp_start: 1.0,
        ramp_end: 3.0,
        attention_factor: 1.1,
    };
    assert_eq!(
        [0.0, 1.0, 2.0, 3.0, 4.0].map(|pair| scaling.apply(8.0, pair)),
        [8.0, 8.0, 5.0, 2.0, 2.0]
    );
    let rope = RopeSpec {
        theta: 10_000.0,
        rotary_dim: 8,
        interleaved: false,
        scaling,
        divisors: Vec::new(),
        long_divisors: Vec::new(),
        axes: RopeAxes::One,
    };
    assert_eq!(rope.scale(1), 1.1);
}

#[test]
fn axes_alternate_and_follow_their_frequencies() {
    let frequencies = vec![4.0, 3.0, 2.0, 1.0];
    assert_eq!(RopeAxes::One.arranged(frequencies.clone()), frequencies);
    let arranged = RopeAxes::Alternating.arranged(frequencies);
    assert_eq!(arranged, [4.0, 2.0, 3.0, 1.0, 1.0, 1.0, 2.0, 2.0]);
}

#[test]
fn plain_frequencies_are_a_geometric_series() {
    let rope = RopeSpec {
        theta: 10_000.0,
        rotary_dim: 8,
        interleaved: false,
        scaling: RopeScaling::None,
        divisors: Vec::new(),
        long_divisors: Vec::new(),
        axes: RopeAxes::One,
    };
    let expected = [1.0, 0.1, 0.01, 0.001];
    for (found, expected) in rope.frequencies(4096).into_iter().zip(expected) {
        assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
    }
}
