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
mod tests;
