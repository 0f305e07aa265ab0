//! Recurrences of a few rows, computed by hand.

use super::*;
use crate::plan::{BufferId, WeightId};

fn step(rule: ScanRule, [heads, key_heads, key_dim, value_dim]: [u32; 4]) -> StateScan {
    let (buffer, weight) = (BufferId(0), WeightId(0));
    StateScan {
        convolved: buffer,
        mixed: buffer,
        gates: 0,
        layer: 0,
        heads,
        key_heads,
        tiled: false,
        key_dim,
        value_dim,
        rule,
        decay: weight,
        dt_bias: weight,
        skip: None,
        out: buffer,
    }
}

fn run(scan: &Scan<'_>, channels: &[f32], gates: &[f32], states: &mut [f32]) -> Vec<f64> {
    let mut out = vec![f64::NAN; (scan.step.heads * scan.step.value_dim) as usize];
    scan.token(channels, gates, states, |at, value| out[at] = value);
    out
}

fn near(found: f64, expected: f64) {
    assert!(
        (found - expected).abs() < 1e-5,
        "{found}, expected {expected}"
    );
}

/// Two keys, one value: β = ½ · scale, e^g = ½, and unit keys along the axes.
#[test]
fn the_delta_rule_by_hand() {
    let step = step(ScanRule::Delta { beta_scale: 2.0 }, [1, 1, 2, 1]);
    // softplus(0) = ln 2, so that e^g = ½.
    let scan = Scan {
        step: &step,
        decay: &[-1.0],
        bias: &[0.5],
        skip: None,
    };
    let mut state = [6.0, 8.0];
    let out = run(&scan, &[0.0, 5.0, 3.0, 0.0, 10.0], &[0.0, -0.5], &mut state);
    // S = [3, 4]; k = [1, 0] knows 3; δ = 1 · (10 − 3); S = [10, 4]; q = [0, 1] / √2.
    near(out[0], 4.0 / 2f64.sqrt());
    near(f64::from(state[0]), 10.0);
    near(f64::from(state[1]), 4.0);
}

/// Two heads of one group: dt = ln 2 for the first, 0 for the second.
#[test]
fn mamba2_by_hand() {
    let step = step(ScanRule::Mamba2, [2, 1, 2, 1]);
    let scan = Scan {
        step: &step,
        decay: &[-1.0, -3.0],
        bias: &[0.0, -100.0],
        skip: Some(&[0.0, 5.0]),
    };
    let mut state = [4.0, 8.0, 1.0, 2.0];
    // u of both heads, then B, then C.
    let out = run(
        &scan,
        &[10.0, 20.0, 1.0, -1.0, 1.0, 2.0],
        &[0.0, 0.0],
        &mut state,
    );
    let written = 10.0 * 2f64.ln();
    near(out[0], 2.0 + written + 2.0 * (4.0 - written));
    near(out[1], 1.0 + 2.0 * 2.0 + 5.0 * 20.0);
    assert_eq!(state[2..], [1.0, 2.0], "dt = 0 changes nothing");
}

/// Value heads 2g and 2g + 1 use key head g; in tiles, g and g + 2 do.
#[test]
fn heads_share_their_key_heads_in_order() {
    let step = step(ScanRule::Delta { beta_scale: 1.0 }, [4, 2, 1, 1]);
    let scan = Scan {
        step: &step,
        decay: &[0.0; 4],
        bias: &[0.0; 4],
        skip: None,
    };
    let mut state = [0.0; 4];
    let out = run(
        &scan,
        &[1.0, -1.0, 1.0, 1.0, 2.0, 4.0, 6.0, 8.0],
        &[0.0; 8],
        &mut state,
    );
    [1.0, 2.0, -3.0, -4.0]
        .into_iter()
        .zip(out)
        .for_each(|(expected, found)| near(found, expected));
    let scan = Scan {
        step: &StateScan {
            tiled: true,
            ..step
        },
        ..scan
    };
    let out = run(
        &scan,
        &[1.0, -1.0, 1.0, 1.0, 2.0, 4.0, 6.0, 8.0],
        &[0.0; 8],
        &mut [0.0; 4],
    );
    [1.0, -2.0, 3.0, -4.0]
        .into_iter()
        .zip(out)
        .for_each(|(expected, found)| near(found, expected));
}
