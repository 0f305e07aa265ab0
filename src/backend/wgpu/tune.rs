//! Autotune: how many workgroups of a product each core should get.
//!
//! The best number depends on how a chip hides the latency of its memory, and no API reports it. So at the first start
//! with a model, decode steps of the model itself are timed with a few candidates, within [`BUDGET`]. The choice is
//! kept in a file beside the pipeline cache: the file's name says adapter and driver, an entry the shapes of the
//! model's products. A file that is damaged or another user's is ignored, like a pipeline cache.
//!
//! Deterministic plans and software adapters use [`WORKGROUPS_PER_CORE`]; so does a device without a folder to keep the
//! choice in.

use super::super::{BackendError, warm_up};
use super::device::{self, Gpu, WORKGROUPS_PER_CORE, WORKGROUPS_PER_CORE_MAX};
use super::{AdapterReport, WgpuBackend, pipeline_cache};
use crate::backend::Backend as _;
use crate::plan::Plan;
use crate::plan::inputs::BatchInputs;
use crate::platform::{self, Instant};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The candidates; the first is preferred.
const CANDIDATES: [u32; 3] = [WORKGROUPS_PER_CORE, 2, WORKGROUPS_PER_CORE_MAX];
/// Maximum time for all measurements of a start.
const BUDGET: Duration = Duration::from_secs(2);
/// Sequences of the decode steps that are timed, and how often each is timed; the best time counts.
const SEQUENCES: [u32; 2] = [1, 8];
const RUNS: usize = 3;
/// Another candidate is chosen only if it takes less than this share of the time: less is noise.
const GAIN: f64 = 0.97;
/// Changes when the kernels change so much that old choices should not be used.
const VERSION: u32 = 1;
/// Maximum models in a file; and its bytes.
const ENTRIES_MAX: usize = 256;
const FILE_BYTES_MAX: u64 = 64 << 10;

/// The choices of one adapter and driver, by [`shapes_of`] a model.
pub type Choices = BTreeMap<String, u32>;

/// The choices kept in `folder` for an adapter; empty if there are none.
pub fn choices(report: &AdapterReport, folder: &Path) -> Choices {
    read(&path(folder, report.api, &report.name, &report.driver))
}

fn path(folder: &Path, api: &str, name: &str, driver: &str) -> PathBuf {
    let name: String =
        format!("{api}-{name}-{driver}").chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    folder.join(format!("{name}.tuning"))
}

fn read(path: &Path) -> Choices {
    let data = pipeline_cache::read_sealed(path, FILE_BYTES_MAX);
    let mut choices: Choices = data.and_then(|data| serde_json::from_slice(&data).ok()).unwrap_or_default();
    choices.retain(|_, workgroups| CANDIDATES.contains(workgroups));
    choices
}

/// What the choice depends on besides adapter and driver: the shapes and formats of the products, in short.
fn shapes_of(plan: &Plan, gpu: &Gpu) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(format!("{VERSION} {:?} {:?} {}", gpu.profile.tier, gpu.profile.class, gpu.profile.cores).as_bytes());
    for spec in plan.weights.iter().filter(|spec| spec.rows > 1) {
        hasher.update(format!("{} {} {:?};", spec.columns, spec.experts, spec.sections).as_bytes());
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

impl WgpuBackend {
    /// Where the choice for the loaded plan is kept, and under which name; `None` if nothing is tuned.
    fn place(&self) -> Option<(PathBuf, String)> {
        let loaded = self.loaded.as_ref().filter(|loaded| !loaded.capacity.deterministic && self.throttle.is_on())?;
        let info = &self.gpu.info;
        let (api, driver) = (device::api_name(info.backend), device::driver_name(info));
        Some((path(self.options.cache_dir.as_ref()?, api, &info.name, &driver), shapes_of(&loaded.plan, &self.gpu)))
    }

    /// Takes the choice of an earlier start. Returns whether there is nothing to measure.
    pub(super) fn recall_tuning(&mut self) -> bool {
        self.set_workgroups(WORKGROUPS_PER_CORE);
        let Some((path, shapes)) = self.place() else { return true };
        let kept = read(&path).get(&shapes).copied();
        kept.into_iter().for_each(|workgroups| self.set_workgroups(workgroups));
        kept.is_some()
    }

    /// Times the candidates and keeps the best. Returns whether it is another one than before.
    pub(super) fn tune(&mut self) -> Result<bool, BackendError> {
        let Some((path, shapes)) = self.place() else { return Ok(false) };
        let loaded = self.loaded()?;
        let step = |sequences| warm_up::decoding(&loaded.plan, &loaded.capacity, sequences);
        let steps: Vec<_> = SEQUENCES.into_iter().filter_map(step).collect();
        let (begin, mut best) = (Instant::now(), (WORKGROUPS_PER_CORE, f64::INFINITY));
        for candidate in CANDIDATES {
            self.set_workgroups(candidate);
            let Some(seconds) = self.time(&steps, begin)? else { break };
            if seconds < GAIN * best.1 {
                best = (candidate, seconds);
            }
        }
        self.set_workgroups(best.0);
        // Without a whole measurement, the next start tries again.
        if best.1.is_finite() {
            keep(&path, shapes, best.0);
        }
        Ok(best.0 != WORKGROUPS_PER_CORE)
    }

    /// Geometric mean of the steps' best times, in seconds; `None` if the budget is spent.
    fn time(&mut self, steps: &[BatchInputs], begin: Instant) -> Result<Option<f64>, BackendError> {
        let mut product = 1.0_f64;
        for inputs in steps {
            let mut shortest = f64::INFINITY;
            for run in 0..=RUNS {
                if begin.elapsed() > BUDGET {
                    return Ok(None);
                }
                let start = Instant::now();
                let ticket = self.submit(inputs)?;
                platform::block_on(self.read(ticket))?;
                // The first run compiles.
                if run > 0 {
                    shortest = shortest.min(start.elapsed().as_secs_f64());
                }
            }
            product *= shortest;
        }
        Ok(Some(product.powf(1.0 / steps.len().max(1) as f64)))
    }

    fn set_workgroups(&mut self, per_core: u32) {
        if self.gpu.profile.workgroups_per_core != per_core {
            self.gpu.profile.workgroups_per_core = per_core;
            self.caps = super::caps(&self.gpu);
            self.recordings.clear();
        }
    }
}

/// Adds a choice to a file. A full file starts anew.
fn keep(path: &Path, shapes: String, workgroups: u32) {
    let mut choices = read(path);
    if choices.len() >= ENTRIES_MAX {
        choices.clear();
    }
    choices.insert(shapes, workgroups);
    let data = serde_json::to_vec(&choices).expect("strings and numbers are JSON");
    pipeline_cache::write_sealed(path, &data);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_kept_and_what_is_not_ours_is_ignored() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = path(folder.path(), "vulkan", "A GPU (rev. 2)", "driver/../1.0");
        assert_eq!(path.parent(), Some(folder.path()), "a driver's name does not lead elsewhere");
        assert_eq!(read(&path), Choices::new());
        keep(&path, "one".into(), 8);
        keep(&path, "two".into(), 2);
        let kept = Choices::from([("one".to_owned(), 8), ("two".to_owned(), 2)]);
        assert_eq!(read(&path), kept);
        keep(&path, "odd".into(), 1000);
        assert_eq!(read(&path), kept, "only candidates are taken");
        let mut bytes = std::fs::read(&path).expect("the file was written");
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        std::fs::write(&path, &bytes).expect("the file can be written");
        assert_eq!(read(&path), Choices::new(), "a damaged file");
        std::fs::write(&path, br#"{"one": 8}"#).expect("the file can be written");
        assert_eq!(read(&path), Choices::new(), "a file that another program wrote");
    }
}
