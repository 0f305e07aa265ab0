//! Tests of `backend/reference/int8.rs`.

use super::*;

#[test]
fn every_element_is_within_half_a_step() {
    let row: Vec<f32> = (0..70)
        .map(|i| (i as f32 * 0.7).sin() * 10f32.powi(i / 32))
        .collect();
    for (group, found) in row
        .chunks(GROUP)
        .zip(rounded(&row).collect::<Vec<_>>().chunks(GROUP))
    {
        let half = 0.50001 * f64::from(step(group));
        assert!(
            group
                .iter()
                .zip(found)
                .all(|(value, found)| (f64::from(*value) - found).abs() <= half),
            "{group:?}"
        );
        assert!(
            found
                .iter()
                .any(|value| value.abs() > 126.9 * f64::from(step(group))),
            "all codes are used"
        );
    }
    assert_eq!(
        rounded(&[0.0, -1e-38, 1e-35]).collect::<Vec<_>>(),
        [0.0; 3],
        "too small to scale"
    );
}
