//! Distributes cases over several devices, which are different ways to open one adapter.
//!
//! The full product of cases and devices is large and mostly redundant. A pairwise cover is enough: every case runs on
//! at least one device, and every device runs every value (an option, a format, a size, a batch) of every step. A fault
//! that needs one device and one value, or any combination of values, is still found.

use super::fixture::{Fixture, Run};
use std::collections::BTreeSet;

/// For each case (its step and values): the devices, out of `devices`, that run it.
pub(super) fn pairwise(cases: &[(&str, Vec<String>)], devices: usize) -> Vec<BTreeSet<usize>> {
    assert!(devices > 0, "there is at least one device");
    let mut met: BTreeSet<(usize, &str, &str)> = BTreeSet::new();
    let mut loads = vec![0_usize; devices];
    let mut shares = vec![BTreeSet::new(); cases.len()];
    // Each case goes to the device where it adds the most new values; of equal ones, to that with the fewest cases.
    // Then cases are repeated for values that occur in fewer cases than there are devices.
    for again in [false, true] {
        for ((step, values), share) in cases.iter().zip(&mut shares) {
            let unmet = |device: usize| {
                values
                    .iter()
                    .filter(|value| !met.contains(&(device, *step, *value)))
                    .count()
            };
            let best =
                (0..devices).max_by_key(|device| (unmet(*device), usize::MAX - loads[*device]));
            let best = best.expect("there are devices");
            let chosen: Vec<usize> = if again {
                (0..devices).filter(|device| unmet(*device) > 0).collect()
            } else {
                vec![best]
            };
            for device in chosen {
                loads[device] += usize::from(share.insert(device));
                met.extend(values.iter().map(|value| (device, *step, value.as_str())));
            }
        }
    }
    shares
}

/// The values of a case: the options of its fixture, and sizes by their position in the shape.
pub(super) fn values(fixture: &Fixture, run: &Run) -> Vec<String> {
    let options = fixture
        .option
        .split([',', '·'])
        .map(|option| option.trim().to_owned());
    let sizes = run.shape.split(", ").enumerate().flat_map(|(part, sizes)| {
        sizes
            .split(" × ")
            .enumerate()
            .map(move |(place, size)| format!("{part}.{place}: {size}"))
    });
    options.chain(sizes).collect()
}

#[cfg(test)]
mod tests;
