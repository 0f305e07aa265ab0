//! Tests of `cli/commands/bench/report.rs`.

use super::*;
use std::cell::Cell;

#[test]
fn percentiles_and_digits() {
    assert_eq!(percentile(&mut [], 0.5), None);
    assert_eq!(percentile(&mut [3.0, 1.0, 2.0], 0.5), Some(2.0));
    assert_eq!(percentile(&mut [3.0, 1.0, 2.0], 0.99), Some(3.0));
    assert_eq!(
        (rounded(1234.56), rounded(0.012_345_6), rounded(0.0)),
        (1235.0, 0.012_35, 0.0)
    );
}

#[test]
fn a_share_beyond_the_peak_is_told() {
    let times = Cell::new(0);
    let peaks = move || {
        times.set(times.get() + 1);
        // The machine is idle from the third measurement on.
        let read_gbps = if times.get() < 3 { 10.0 } else { 11.0 };
        Ok(Measured {
            peaks: Peaks {
                copy_gbps: 1.0,
                read_gbps,
                fma_gflops: 1.0,
            },
            ..Measured::default()
        })
    };
    let mut report = Report::new("toy".to_owned(), Box::new(peaks)).expect("peaks are measured");
    let mut push = |row| report.push(row).expect("peaks are measured");
    let row = |gbps| Row {
        scenario: "steps",
        gbps: Some(gbps),
        bound: Some(Bound::Read),
        ..Row::default()
    };
    push(row(10.4));
    push(Row {
        shape: "b".to_owned(),
        ..row(10.6)
    });
    push(Row {
        bound: None,
        ..row(99.0)
    });
    assert_eq!(report.as_json()["peaks"]["read_gbps"], 11.0);
    assert_eq!(report.impossible(), None);
    report
        .push(Row {
            shape: "c".to_owned(),
            ..row(11.66)
        })
        .expect("peaks are measured");
    assert_eq!(
        report.impossible(),
        Some("steps c reaches 1.06 of the peak".to_owned())
    );
    assert_eq!(report.as_json()["rows"][3]["share_of_peak"], 1.06);
}
