//! Which kernels of a graph begin while the one before them still runs.
//!
//! From compute capability 9.0 on, such a kernel ("programmatic dependent launch") is set up, prefetches its first
//! weights, and waits until the one before has ended: `KERNEL` of `cuda/common/prelude.cuh`. Without this, every kernel
//! of a step begins on an idle device, which costs as much as a small product.

use super::driver::Command;

/// Set to 0, every kernel begins after the one before it has ended, to compare.
pub(super) const VARIABLE: &str = "FOLIO_CUDA_OVERLAP";
/// Minimum compute capability, of the device and of the code compiled for it.
const COMPUTE_MIN: (u32, u32) = (9, 0);
/// The driver's CUDA version that introduced such launches in captured graphs.
const DRIVER_MIN: (u32, u32) = (12, 3);

/// Whether kernels may overlap: on a device of this compute capability, with code for this architecture, a driver for
/// this version of CUDA, and this value of [`VARIABLE`].
pub(super) fn is_possible(
    compute: (u32, u32),
    architecture: &str,
    driver: (u32, u32),
    variable: Option<&str>,
) -> bool {
    let digits = architecture.trim_matches(|c: char| !c.is_ascii_digit());
    // Code for an older architecture, which the driver compiles for the device, does not wait.
    let waits = digits
        .parse()
        .is_ok_and(|number: u32| (number / 10, number % 10) >= COMPUTE_MIN);
    compute >= COMPUTE_MIN && waits && driver >= DRIVER_MIN && variable != Some("0")
}

/// Whether the command `at` may begin early: it and the command before it are kernels of folio. A product of cuBLASLt
/// does not wait, and the first kernel comes after an upload.
pub(super) fn begins_early(commands: &[Command], at: usize) -> bool {
    let is_kernel = |at: usize| matches!(commands.get(at), Some(Command::Kernel(_)));
    is_kernel(at) && at.checked_sub(1).is_some_and(is_kernel)
}

#[cfg(test)]
mod tests {
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
}
