//! Distributes cases over several devices, which are different ways to open one adapter.
//!
//! The full product of cases and devices is large and mostly redundant. A pairwise cover is enough: every case runs on
//! at least one device, and every device runs every value (an option, a component of a weight format, a size, a batch)
//! of every step. A fault that needs one device and one value, or any combination of values, is still found. Most of
//! the time goes into compiling kernels, so cases with the same ones go to the same devices.

use super::fixture::{Fixture, Run};
use crate::plan::WeightFormat;
use std::collections::BTreeSet;

/// What matters of a case for its distribution.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) step: &'static str,
    /// Which kernels it compiles: the name of its fixture.
    pub(super) kernels: String,
    pub(super) values: Vec<String>,
}

impl Case {
    /// A run of a fixture. Its values are the options of the fixture, and sizes by their position in the shape. Kernels
    /// are composed of the components of a packed weight format, so those are its values, not the format.
    pub(super) fn new(fixture: &Fixture, run: &Run) -> Self {
        let options = fixture.option.split([',', '·']);
        let options = options.flat_map(|option| components(option.trim()));
        let sizes = run.shape.split(", ").enumerate().flat_map(|(part, sizes)| {
            sizes
                .split(" × ")
                .enumerate()
                .map(move |(place, size)| format!("{part}.{place}: {size}"))
        });
        Self {
            step: fixture.step,
            kernels: fixture.name(),
            values: options.chain(sizes).collect(),
        }
    }
}

/// An option; one that begins with a packed weight format, by the components of the format.
fn components(option: &str) -> Vec<String> {
    let (first, rest) = option.split_once(' ').unwrap_or((option, ""));
    let mut formats = WeightFormat::ALL.into_iter();
    match formats.find(|format| format.is_quantised() && format.to_string() == first) {
        None => vec![option.to_owned()],
        Some(format) => {
            let (codes, levels, scales) = format.parts();
            let parts = [
                format!("{codes:?} codes"),
                format!("{levels:?}"),
                format!("{scales:?} scales"),
            ];
            parts.map(|part| format!("{part} {rest}")).to_vec()
        }
    }
}

/// For each case: the devices, out of `devices`, that run it.
pub(super) fn pairwise(cases: &[Case], devices: usize) -> Vec<BTreeSet<usize>> {
    assert!(devices > 0, "there is at least one device");
    let mut met: BTreeSet<(usize, &str, &str)> = BTreeSet::new();
    let mut compiled: BTreeSet<(usize, &str)> = BTreeSet::new();
    let mut loads = vec![0_usize; devices];
    let mut shares = vec![BTreeSet::new(); cases.len()];
    // Each case goes to the device where it adds the most new values; of equal ones, to one that has its kernels, and
    // then to that with the fewest cases. Then cases are repeated for values that occur in fewer cases than there are
    // devices.
    for again in [false, true] {
        for (case, share) in cases.iter().zip(&mut shares) {
            let unmet = |device: usize| {
                let values = case.values.iter();
                values
                    .filter(|value| !met.contains(&(device, case.step, *value)))
                    .count()
            };
            let best = (0..devices).max_by_key(|device| {
                let has_kernels = compiled.contains(&(*device, &case.kernels));
                (unmet(*device), has_kernels, usize::MAX - loads[*device])
            });
            let best = best.expect("there are devices");
            let chosen: Vec<usize> = if again {
                (0..devices).filter(|device| unmet(*device) > 0).collect()
            } else {
                vec![best]
            };
            for device in chosen {
                loads[device] += usize::from(share.insert(device));
                compiled.insert((device, &case.kernels));
                let values = case.values.iter();
                met.extend(values.map(|value| (device, case.step, value.as_str())));
            }
        }
    }
    shares
}

#[cfg(test)]
mod tests;
