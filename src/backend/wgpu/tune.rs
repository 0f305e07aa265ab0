//! Autotune: measures the [`Tuning`] of a device with the shapes of a model.
//!
//! The best numbers depend on how a chip hides the latency of its memory, and no API reports it. So at the first start
//! with a model, batches of the model itself are timed with a few candidates for one parameter after the other, within
//! [`BUDGET`]; a later start goes on where the time was up. The choice is kept in a file beside the pipeline cache: the
//! file's name says adapter and driver, an entry the shapes of the model's products. A file that is damaged or that of
//! another user is ignored, like a pipeline cache.
//!
//! Deterministic plans and software adapters use [`Tuning::USUAL`]; so does a device without a folder for the choice.

use super::super::{BackendError, FEW_ROWS_MAX, warm_up};
use super::device::{self, Gpu, Profile, ROWS_MAX, Tuning};
use super::{AdapterReport, LoadedPlan, WgpuBackend, pipeline_cache};
use crate::backend::Backend as _;
use crate::plan::Plan;
use crate::plan::inputs::BatchInputs;
use crate::platform::{self, Instant};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A number of [`Tuning`], its candidates, and the batches that are timed with them.
struct Parameter {
    of: fn(&mut Tuning) -> &mut u32,
    /// The first is the usual one, and preferred.
    candidates: &'static [u32],
    batches: fn(&LoadedPlan) -> Vec<BatchInputs>,
    /// Whether the device has a choice.
    applies: fn(&Profile) -> bool,
}

/// In the order in which they are measured.
const PARAMETERS: [Parameter; 6] = [
    Parameter {
        of: |tuning| &mut tuning.product_workgroups,
        candidates: &[4, 2, 8],
        batches: decoding,
        applies: always,
    },
    Parameter {
        of: |tuning| &mut tuning.product_outputs,
        candidates: &[4, 2],
        batches: decoding,
        applies: always,
    },
    Parameter {
        of: |tuning| &mut tuning.attention_workgroups,
        candidates: &[4, 2, 8],
        batches: long_context,
        applies: always,
    },
    Parameter {
        of: |tuning| &mut tuning.matrices,
        candidates: &[1, 0],
        batches: prompt,
        applies: |profile| profile.matrices.is_some(),
    },
    Parameter {
        of: |tuning| &mut tuning.few_rows,
        candidates: &[FEW_ROWS_MAX, ROWS_MAX],
        batches: between,
        applies: |profile| profile.matrices().is_some(),
    },
    Parameter {
        of: |tuning| &mut tuning.tile_rows,
        candidates: &[64, 32],
        batches: prompt,
        applies: always,
    },
];
/// Maximum time for all measurements of a start.
const BUDGET: Duration = Duration::from_secs(2);
/// Rows of a prompt of usual length.
const PROMPT_ROWS: u32 = 512;
/// How often each batch is timed; the best time counts.
const RUNS: usize = 3;
/// Another candidate is chosen only if it takes less than this share of the time: less is noise.
const GAIN: f64 = 0.97;
/// Changes when the kernels change so much that old choices should not be used.
const VERSION: u32 = 3;
/// Maximum models in a file; and its bytes.
const ENTRIES_MAX: usize = 256;
const FILE_BYTES_MAX: u64 = 64 << 10;

fn always(_profile: &Profile) -> bool {
    true
}

fn decoding(loaded: &LoadedPlan) -> Vec<BatchInputs> {
    [1, 8]
        .into_iter()
        .filter_map(|sequences| warm_up::decoding(&loaded.plan, &loaded.capacity, sequences))
        .collect()
}

/// As many rows as either kind of kernel may take.
fn between(loaded: &LoadedPlan) -> Vec<BatchInputs> {
    let rows = FEW_ROWS_MAX.midpoint(ROWS_MAX);
    warm_up::decoding(&loaded.plan, &loaded.capacity, rows)
        .into_iter()
        .collect()
}

/// A token with a long context, whose keys are spread over the pool.
fn long_context(loaded: &LoadedPlan) -> Vec<BatchInputs> {
    let (plan, capacity) = (&loaded.plan, &loaded.capacity);
    let plain = warm_up::decoding(plan, capacity, 1);
    let mut long = plain.map(|plain| warm_up::stretched(plan, capacity, &plain));
    let groups = long.iter_mut().flat_map(|long| &mut long.groups);
    for (group, blocks) in groups.zip(&loaded.arena.blocks) {
        (0..)
            .zip(&mut group.block_tables)
            .for_each(|(index, entry)| *entry = index % (*blocks).max(1));
    }
    long.into_iter().collect()
}

fn prompt(loaded: &LoadedPlan) -> Vec<BatchInputs> {
    let (plan, capacity) = (&loaded.plan, &loaded.capacity);
    let rows = PROMPT_ROWS.min(capacity.tokens_max).min(plan.positions_max);
    warm_up::batch(plan, capacity, 1, rows)
        .into_iter()
        .collect()
}

/// What was measured for one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Choice {
    tuning: Tuning,
    /// How many of the [`PARAMETERS`] were measured.
    measured: usize,
}

impl Choice {
    const NONE: Self = Self {
        tuning: Tuning::USUAL,
        measured: 0,
    };

    /// Whether every number is one of its candidates.
    fn is_possible(mut self) -> bool {
        let tuning = &mut self.tuning;
        self.measured <= PARAMETERS.len()
            && PARAMETERS
                .iter()
                .all(|each| each.candidates.contains((each.of)(tuning)))
    }
}

/// The choices of one adapter and driver, by [`shapes_of`] a model.
pub type Choices = BTreeMap<String, Tuning>;

/// The choices kept in `folder` for an adapter; empty if there are none.
pub fn choices(report: &AdapterReport, folder: &Path) -> Choices {
    let kept = read(&path(folder, report.api, &report.name, &report.driver));
    kept.into_iter()
        .map(|(shapes, choice)| (shapes, choice.tuning))
        .collect()
}

fn path(folder: &Path, api: &str, name: &str, driver: &str) -> PathBuf {
    let name: String = format!("{api}-{name}-{driver}")
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect();
    folder.join(format!("{name}.tuning"))
}

fn read(path: &Path) -> BTreeMap<String, Choice> {
    let data = pipeline_cache::read_sealed(path, FILE_BYTES_MAX);
    let mut choices: BTreeMap<String, Choice> = data
        .and_then(|data| serde_json::from_slice(&data).ok())
        .unwrap_or_default();
    choices.retain(|_, choice| choice.is_possible());
    choices
}

/// What the choice depends on besides adapter and driver: the shapes and formats of the products, in short.
fn shapes_of(plan: &Plan, gpu: &Gpu) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(
        format!(
            "{VERSION} {:?} {:?} {}",
            gpu.profile.tier, gpu.profile.class, gpu.profile.cores
        )
        .as_bytes(),
    );
    for spec in plan.weights.iter().filter(|spec| spec.rows > 1) {
        hasher.update(format!("{} {} {:?};", spec.columns, spec.experts, spec.sections).as_bytes());
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

impl WgpuBackend {
    /// Where the choice for the loaded plan is kept, and under which name; `None` if nothing is tuned.
    fn place(&self) -> Option<(PathBuf, String)> {
        let loaded = self
            .loaded
            .as_ref()
            .filter(|loaded| !loaded.capacity.deterministic && self.throttle.is_on())?;
        let info = &self.gpu.info;
        let (api, driver) = (device::api_name(info.backend), device::driver_name(info));
        Some((
            path(self.options.cache_dir.as_ref()?, api, &info.name, &driver),
            shapes_of(&loaded.plan, &self.gpu),
        ))
    }

    /// Takes the choice of an earlier start. Returns whether there is nothing to measure.
    pub(super) fn recall_tuning(&mut self) -> bool {
        self.set_tuning(Tuning::USUAL);
        let Some((path, shapes)) = self.place() else {
            return true;
        };
        let kept = read(&path).get(&shapes).copied().unwrap_or(Choice::NONE);
        self.set_tuning(kept.tuning);
        kept.measured == PARAMETERS.len()
    }

    /// Measures the parameters that no earlier start has measured, and keeps the best. Returns whether anything is
    /// another than before.
    pub(super) fn tune(&mut self) -> Result<bool, BackendError> {
        let Some((path, shapes)) = self.place() else {
            return Ok(false);
        };
        let (begin, before) = (Instant::now(), self.gpu.profile.tuning);
        let first = read(&path).get(&shapes).map_or(0, |choice| choice.measured);
        let mut measured = first;
        for parameter in &PARAMETERS[first..] {
            let is_whole = if (parameter.applies)(&self.gpu.profile) {
                self.tune_one(parameter, begin)?
            } else {
                true
            };
            // One that takes a whole start is not measured again: it would never end.
            measured += usize::from(is_whole || measured == first);
            if !is_whole {
                break;
            }
        }
        keep(
            &path,
            shapes,
            Choice {
                tuning: self.gpu.profile.tuning,
                measured,
            },
        );
        Ok(self.gpu.profile.tuning != before)
    }

    /// Times the candidates of one parameter and sets the best. Returns whether there was time for all.
    fn tune_one(&mut self, parameter: &Parameter, begin: Instant) -> Result<bool, BackendError> {
        let batches = (parameter.batches)(self.loaded()?);
        let set = |backend: &mut Self, candidate| {
            let mut tuning = backend.gpu.profile.tuning;
            *(parameter.of)(&mut tuning) = candidate;
            backend.set_tuning(tuning);
        };
        let (mut best, mut is_whole) = ((parameter.candidates[0], f64::INFINITY), true);
        for candidate in parameter.candidates {
            set(self, *candidate);
            let Some(seconds) = self.time(&batches, begin)? else {
                is_whole = false;
                break;
            };
            if seconds < GAIN * best.1 {
                best = (*candidate, seconds);
            }
        }
        set(self, best.0);
        Ok(is_whole)
    }

    /// Geometric mean of the batches' best times, in seconds; `None` if the budget is spent.
    fn time(
        &mut self,
        batches: &[BatchInputs],
        begin: Instant,
    ) -> Result<Option<f64>, BackendError> {
        let mut product = 1.0_f64;
        for inputs in batches {
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
        Ok(Some(product.powf(1.0 / batches.len().max(1) as f64)))
    }

    fn set_tuning(&mut self, tuning: Tuning) {
        if self.gpu.profile.tuning != tuning {
            self.gpu.profile.tuning = tuning;
            self.caps = super::caps(&self.gpu);
            self.recordings.clear();
        }
    }
}

/// Adds a choice to a file. A full file starts anew.
fn keep(path: &Path, shapes: String, choice: Choice) {
    let mut choices = read(path);
    if choices.len() >= ENTRIES_MAX {
        choices.clear();
    }
    choices.insert(shapes, choice);
    let data = serde_json::to_vec(&choices).expect("strings and numbers are JSON");
    pipeline_cache::write_sealed(path, &data);
}

#[cfg(test)]
mod tests;
