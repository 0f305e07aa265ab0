//! Tests of `backend/cuda/overlap.rs`.

use super::super::blas::{Product, ProductShape};
use super::super::driver::{Function, Launch};
use super::*;

#[test]
fn kernels_overlap_where_device_code_and_driver_know_how() {
    let (hopper, driver) = ((9, 0), (12, 3));
    assert!(is_possible(hopper, "sm_90a", driver, None));
    assert!(is_possible((12, 0), "sm_120", (13, 0), Some("1")));
    assert!(
        is_possible((15, 0), "compute_120", driver, None),
        "the driver compiles code that waits"
    );
    assert!(!is_possible((8, 9), "sm_89", driver, None));
    assert!(
        !is_possible(hopper, "compute_89", driver, None),
        "code that does not wait"
    );
    assert!(!is_possible(hopper, "sm_90a", (12, 2), None));
    assert!(!is_possible(hopper, "sm_90a", driver, Some("0")));
}

#[test]
fn a_kernel_begins_early_only_after_a_kernel() {
    let launch = Launch {
        function: Function(0),
        params: Box::new([]),
        grid: [1; 3],
        threads: 32,
        shared_bytes: 0,
    };
    let shape = ProductShape {
        rows: 1,
        outputs: 8,
        columns: 8,
        stride: 8,
        wide: false,
        accumulate: false,
    };
    let product = Command::Product(Product {
        x: 0,
        weight: 0,
        out: 0,
        shape,
    });
    let kernel = || Command::Kernel(launch.clone());
    let commands = [kernel(), kernel(), product, kernel(), kernel()];
    let early: Vec<bool> = (0..=commands.len())
        .map(|at| begins_early(&commands, at))
        .collect();
    assert_eq!(early, [false, true, false, false, true, false]);
}
