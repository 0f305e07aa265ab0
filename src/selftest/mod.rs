//! Kernel checks: every step × option × difficult shape on a device, compared with the CPU reference.
//!
//! A [`Fixture`] is a small plan around the step under test, with its weights; its runs are batches with all buffers,
//! pool and feed slots filled. Reference and device run the same batch on the same bytes, and all outputs are compared
//! within one table of tolerances ([`compare`]). `tests/kernels` and `folio selftest` share this module.
//!
//! Outputs are filled with NaN before a run, and so is every slot of the pool that no query may read. Each run has
//! mutants (for example, two rows, heads or blocks of the reference's inputs are swapped): [`blind_spots`] lists those
//! that the comparison would not detect.

mod adapters;
mod attention;
mod compare;
mod cover;
mod dense;
mod experts;
mod fixture;
mod latent;
mod layer;
mod matmul;
mod moves;
mod rows;
mod sampling;
mod scans;
mod states;
mod stored;
mod weights;

use crate::backend::reference::ReferenceBackend;
use crate::backend::{BackendError, Capacity, Caps, Inspect, KvHalf};
use crate::plan::Storage;
use crate::plan::inputs::Sampled;
use compare::{Worst, compare_run};
use cover::Case;
use fixture::{Fixture, Run};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// Options of the kernel checks.
#[derive(Clone, Debug, Default)]
pub struct SelftestOptions {
    /// Selects cases whose `step/option/shape` contains this text, or one of several texts separated by `|`. With a
    /// leading `!`, selects cases that contain none of them.
    pub filter: Option<String>,
    /// Element types of row buffers besides f32; the device's own is always checked.
    pub activations: Vec<Storage>,
    /// The shapes of each step and option.
    pub shapes: Shapes,
    /// Number of tokens that the sampling checks draw.
    pub draws: Draws,
    /// With several devices, run every case on each device instead of a pairwise cover.
    pub product: bool,
    /// Numbers of checks that are left out, as an earlier run [told](Told::Begins) them.
    pub skip: BTreeSet<usize>,
    /// Told what is checked, and what came of it.
    pub observer: Observer,
}

/// What is told while the checks run. A check is all cases of one step, option and type of rows; its number depends on
/// the options alone.
#[derive(Clone, Copy, Debug)]
pub enum Told<'a> {
    /// A check begins on a device.
    Begins {
        /// Its number, from 0.
        number: usize,
        /// Step and option.
        name: &'a str,
    },
    /// A check has ended.
    Ends {
        /// Its number, from 0.
        number: usize,
        /// Its own results.
        row: &'a ReportRow,
    },
    /// So many cases have run.
    Progress {
        /// The number of these.
        done: usize,
        /// The number of all.
        total: usize,
    },
}

/// Called with what is [`Told`].
pub type OnTold = dyn Fn(&Told<'_>) + Send + Sync;

/// Who is told, if anybody is.
#[derive(Clone, Default)]
pub struct Observer(pub Option<Arc<OnTold>>);

impl Observer {
    fn tell(&self, told: &Told<'_>) {
        if let Some(tell) = &self.0 {
            tell(told);
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Observer").finish_non_exhaustive()
    }
}

/// The shapes that each step and option is checked with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shapes {
    /// The middle one of each list, which is rarely a multiple of a vector or tile: for emulators of a processor.
    One,
    /// All.
    #[default]
    All,
}

impl Shapes {
    /// The entries of an ascending list that are checked.
    fn of<T>(self, list: &[T]) -> &[T] {
        match self {
            Self::One => &list[list.len() / 2..][..1],
            Self::All => list,
        }
    }
}

/// Number of tokens that the sampling checks draw per option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Draws {
    /// 10³: for emulators, which run the threads of a kernel one by one.
    Few,
    /// 10⁴.
    #[default]
    Usual,
    /// 10⁵.
    Many,
}

/// The results of one run on one device.
struct Outcome {
    sampled: Vec<Sampled>,
    /// Values read back, in the order of the run's checks; empty for [`fixture::Check::Sampled`].
    values: Vec<Vec<f32>>,
    feed: Vec<u32>,
}

/// The results of all cases of one step and option.
#[derive(Clone, Debug)]
pub struct ReportRow {
    /// Step and option.
    pub name: String,
    /// Number of batches run.
    pub cases: usize,
    /// Largest deviation, as a multiple of its tolerance.
    pub worst: f64,
    /// The case of the largest deviation.
    pub worst_shape: String,
    /// Number of values compared, and of sampled rows left out because their decision is a near-tie.
    pub compared: (usize, usize),
    /// Mismatches, one line per case.
    pub misses: Vec<String>,
}

/// The result of [`run`].
#[derive(Clone, Debug)]
pub struct Report {
    /// Device name, API and tier.
    pub device: String,
    /// Results in the order checked.
    pub rows: Vec<ReportRow>,
}

impl Report {
    fn new(caps: &Caps) -> Self {
        Self {
            device: format!("{} ({}, {})", caps.name, caps.api, caps.tier),
            rows: Vec::new(),
        }
    }

    /// Adds the results of a check to those of the same step and option with other rows.
    fn add(&mut self, row: ReportRow) {
        let Some(known) = self.rows.iter_mut().find(|known| known.name == row.name) else {
            self.rows.push(row);
            return;
        };
        known.cases += row.cases;
        known.compared.0 += row.compared.0;
        known.compared.1 += row.compared.1;
        known.misses.extend(row.misses);
        if row.worst > known.worst {
            known.worst = row.worst;
            known.worst_shape = row.worst_shape;
        }
    }

    /// Whether at least one case was checked and all passed.
    pub fn passed(&self) -> bool {
        !self.rows.is_empty() && self.rows.iter().all(|row| row.misses.is_empty())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.device)?;
        writeln!(
            f,
            "{:<52} {:>5} {:>10} {:>7}",
            "step/option", "cases", "values", "worst"
        )?;
        for row in &self.rows {
            let verdict = if row.misses.is_empty() { "ok" } else { "MISS" };
            let (compared, left_out) = row.compared;
            write!(
                f,
                "{:<52} {:>5} {compared:>10} {:>7.3} {verdict}",
                row.name, row.cases, row.worst
            )?;
            if left_out > 0 {
                write!(f, " ({left_out} near-ties left out)")?;
            }
            writeln!(f)?;
            for miss in row.misses.iter().take(4) {
                writeln!(f, "    {miss}")?;
            }
        }
        let (cases, missed) = self.rows.iter().fold((0, 0), |(cases, missed), row| {
            (cases + row.cases, missed + row.misses.len())
        });
        write!(f, "{cases} cases, {missed} missed")
    }
}

/// Checks a device. A case that the device rejects counts as failed; a lost device ends the check.
pub async fn run<B: Inspect>(
    device: &mut B,
    options: &SelftestOptions,
) -> Result<Report, BackendError> {
    let mut reports = run_all(std::slice::from_mut(device), options).await?;
    Ok(reports.pop().expect("a device has a report"))
}

/// Loads and submits every case without comparing anything, for devices that compile kernels and run none. The report
/// has the number of cases only.
pub async fn touch<B: Inspect>(
    device: &mut B,
    options: &SelftestOptions,
) -> Result<Report, BackendError> {
    let mut report = Report::new(device.caps());
    for fixture in fixtures(options, RowKind::of(device.caps())).flatten() {
        load(device, &fixture, &fixture.weights, &fixture.capacity())?;
        let mut row = ReportRow::of(fixture.name());
        for run in selected_runs(options, &fixture) {
            execute(device, &fixture, run).await?;
            row.cases += 1;
        }
        report.add(row);
    }
    Ok(report)
}

/// Like [`run`], for several ways to open one adapter. The reference computes expected results once for all of them.
/// Unless [`SelftestOptions::product`] is set, the cases are distributed over them; see [`cover`].
pub async fn run_all<B: Inspect>(
    devices: &mut [B],
    options: &SelftestOptions,
) -> Result<Vec<Report>, BackendError> {
    let Some(rows) = devices.first().map(|device| RowKind::of(device.caps())) else {
        return Ok(Vec::new());
    };
    assert!(
        devices
            .iter()
            .all(|device| RowKind::of(device.caps()) == rows),
        "the devices have one kind of rows"
    );
    let mut reports: Vec<Report> = devices
        .iter()
        .map(|device| Report::new(device.caps()))
        .collect();
    // Only for a report of progress are all cases made twice.
    let total = options.observer.0.as_ref().map_or(0, |_| {
        fixtures(options, rows)
            .map(|fixtures| cases(options, &fixtures).len())
            .sum()
    });
    let mut done = 0;
    let mut number = 0;
    for fixtures in fixtures(options, rows) {
        let mut shares = shares(options, &fixtures, devices.len()).into_iter();
        for fixture in fixtures {
            let runs = selected_runs(options, &fixture);
            let shares: Vec<BTreeSet<usize>> = shares.by_ref().take(runs.len()).collect();
            options.observer.tell(&Told::Progress { done, total });
            done += runs.len();
            if !options.skip.contains(&number) {
                let expected = expected(&fixture, &runs, rows.int8).await?;
                for (index, (device, report)) in devices.iter_mut().zip(&mut reports).enumerate() {
                    let all = runs.iter().copied().zip(&expected).zip(&shares);
                    let own: Vec<(&Run, &Outcome)> = all
                        .filter(|(_, share)| share.contains(&index))
                        .map(|(case, _)| case)
                        .collect();
                    if !own.is_empty() {
                        let told = (&options.observer, number);
                        report.add(check_and_tell(device, &fixture, &own, told).await?);
                    }
                }
            }
            number += 1;
        }
    }
    options.observer.tell(&Told::Progress { done, total });
    Ok(reports)
}

/// The selected runs of a fixture.
fn selected_runs<'a>(options: &SelftestOptions, fixture: &'a Fixture) -> Vec<&'a Run> {
    let runs = fixture.runs.iter();
    runs.filter(|run| selected(options, fixture, run)).collect()
}

/// Runs [`check`] and tells the observer when the check of this number begins and ends.
async fn check_and_tell<B: Inspect>(
    device: &mut B,
    fixture: &Fixture,
    cases: &[(&Run, &Outcome)],
    (observer, number): (&Observer, usize),
) -> Result<ReportRow, BackendError> {
    let mut row = ReportRow::of(fixture.name());
    observer.tell(&Told::Begins {
        number,
        name: &row.name,
    });
    check(device, fixture, cases, &mut row).await?;
    observer.tell(&Told::Ends { number, row: &row });
    Ok(row)
}

/// How [`run_all`] distributes the cases over this many devices: the number of cases, of runs, and of sets of kernels
/// that devices compile; and gaps: one line for each case that no device runs and for each value of a step that a
/// device does not run.
pub fn cover_gaps(options: &SelftestOptions, devices: usize) -> ([usize; 3], Vec<String>) {
    let (mut cases, mut shares) = (Vec::new(), Vec::new());
    for fixtures in fixtures(options, RowKind::default()) {
        cases.extend(self::cases(options, &fixtures));
        shares.extend(self::shares(options, &fixtures, devices));
    }
    let (mut all, mut met, mut gaps) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    for (Case { step, values, .. }, share) in cases.iter().zip(&shares) {
        gaps.extend(
            share
                .is_empty()
                .then(|| format!("{step}: no device runs {values:?}")),
        );
        for value in values {
            all.extend((0..devices).map(|device| (step, value, device)));
            met.extend(share.iter().map(|device| (step, value, *device)));
        }
    }
    gaps.extend(
        all.difference(&met)
            .map(|(step, value, device)| format!("{step}: device {device} misses {value}")),
    );
    let compiled = cases.iter().zip(&shares);
    let compiled: BTreeSet<_> = compiled
        .flat_map(|(case, share)| share.iter().map(|device| (*device, &case.kernels)))
        .collect();
    let runs = shares.iter().map(BTreeSet::len).sum();
    ([cases.len(), runs, compiled.len()], gaps)
}

/// Each selected run of all fixtures, in order.
fn cases(options: &SelftestOptions, fixtures: &[Fixture]) -> Vec<Case> {
    let mut cases = Vec::new();
    for fixture in fixtures {
        let runs = selected_runs(options, fixture).into_iter();
        cases.extend(runs.map(|run| Case::new(fixture, run)));
    }
    cases
}

/// For each of the [`cases`]: the devices that run it.
fn shares(options: &SelftestOptions, fixtures: &[Fixture], devices: usize) -> Vec<BTreeSet<usize>> {
    let cases = cases(options, fixtures);
    if options.product {
        vec![(0..devices).collect(); cases.len()]
    } else {
        cover::pairwise(&cases, devices)
    }
}

/// The expected results, from the reference.
async fn expected(
    fixture: &Fixture,
    runs: &[&Run],
    int8: bool,
) -> Result<Vec<Outcome>, BackendError> {
    let mut outcomes = Vec::new();
    if !runs.is_empty() {
        let mut reference = ReferenceBackend::with_int8_activations(int8);
        let kv_format = fixture.kv_expected.unwrap_or(fixture.kv_format);
        load(
            &mut reference,
            fixture,
            &fixture.weights,
            &Capacity {
                kv_format,
                ..fixture.capacity()
            },
        )?;
        for run in runs {
            outcomes.push(execute(&mut reference, fixture, run).await?);
        }
    }
    Ok(outcomes)
}

/// Runs the cases of one fixture on a device and compares each with its expected results.
async fn check<B: Inspect>(
    device: &mut B,
    fixture: &Fixture,
    cases: &[(&Run, &Outcome)],
    row: &mut ReportRow,
) -> Result<(), BackendError> {
    fixture.check_plan().map_err(|error| {
        BackendError::Validation(format!("the plan of {}: {error}", fixture.name()))
    })?;
    if let Err(error) = load(device, fixture, &fixture.weights, &fixture.capacity()) {
        row.misses.push(error.to_string());
        return device.reset().await;
    }
    for (run, expected) in cases {
        let result = execute(device, fixture, run).await;
        if let Err(error) = &result
            && error.is_loss()
        {
            return Err(error.clone());
        }
        row.cases += 1;
        match result
            .map_err(|error| error.to_string())
            .and_then(|found| compare_run(fixture, run, expected, &found))
        {
            Ok(worst) => row.note(&run.shape, &worst),
            Err(message) => {
                let kernels = device.kernels();
                let of = if kernels.is_empty() {
                    String::new()
                } else {
                    format!(" by {}", kernels.join(", "))
                };
                row.misses.push(format!("{}: {message}{of}", run.shape));
            }
        }
    }
    Ok(())
}

impl ReportRow {
    fn of(name: String) -> Self {
        let (worst_shape, misses) = (String::new(), Vec::new());
        Self {
            name,
            cases: 0,
            worst: 0.0,
            worst_shape,
            compared: (0, 0),
            misses,
        }
    }

    fn note(&mut self, shape: &str, worst: &Worst) {
        self.compared.0 += worst.compared;
        self.compared.1 += worst.left_out;
        if worst.ratio > self.worst {
            self.worst = worst.ratio;
            self.worst_shape = shape.to_owned();
        }
    }
}

/// The mutants that the comparison does not detect, each as `step/option/shape: mutant`.
pub async fn blind_spots(options: &SelftestOptions) -> Result<(usize, Vec<String>), BackendError> {
    let (mut mutants, mut unnoticed) = (0, Vec::new());
    for fixture in fixtures(options, RowKind::default()).flatten() {
        let (mut reference, mut device) = (ReferenceBackend::new(), ReferenceBackend::new());
        load(&mut device, &fixture, &fixture.weights, &fixture.capacity())?;
        for run in selected_runs(options, &fixture) {
            let found = execute(&mut device, &fixture, run).await?;
            for mutant in &run.mutants {
                let (weights, mutated) = mutant.apply(&fixture, run);
                load(&mut reference, &fixture, &weights, &fixture.capacity())?;
                let expected = execute(&mut reference, &fixture, &mutated).await?;
                mutants += 1;
                if compare_run(&fixture, &mutated, &expected, &found).is_ok() {
                    unnoticed.push(format!("{}/{}: {mutant:?}", fixture.name(), run.shape));
                }
            }
        }
    }
    Ok((mutants, unnoticed))
}

/// A device's rows of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RowKind {
    storage: Storage,
    /// Whether a single row is rounded to bytes for quantized products: see [`Caps::int8_activations`].
    int8: bool,
    /// Whether products of many rows round to halves: see [`Caps::half_products`].
    halves: bool,
}

impl RowKind {
    fn of(caps: &Caps) -> Self {
        Self {
            storage: caps.activations,
            int8: caps.int8_activations,
            halves: caps.half_products,
        }
    }
}

impl Default for RowKind {
    fn default() -> Self {
        Self {
            storage: Storage::F32,
            int8: false,
            halves: false,
        }
    }
}

/// The fixtures of each file, made when they are needed: all of them at once take gigabytes.
fn fixtures(options: &SelftestOptions, rows: RowKind) -> impl Iterator<Item = Vec<Fixture>> {
    const FILES: [fn(RowKind, Shapes) -> Vec<Fixture>; 11] = [
        dense::fixtures,
        |rows, shapes| moves::fixtures(rows.storage, shapes),
        experts::fixtures,
        |_, shapes| adapters::fixtures(shapes),
        attention::fixtures,
        rows::fixtures,
        |rows, _| layer::fixtures(rows),
        stored::fixtures,
        |rows, shapes| latent::fixtures(rows.storage, shapes),
        |rows, shapes| states::fixtures(rows.storage, shapes),
        |rows, shapes| scans::fixtures(rows.storage, shapes),
    ];
    let mut storages = vec![Storage::F32];
    for storage in options.activations.iter().chain([&rows.storage]) {
        if !storages.contains(storage) {
            storages.push(*storage);
        }
    }
    let (draws, shapes) = (options.draws, options.shapes);
    let sampling = std::iter::once_with(move || sampling::fixtures(draws, shapes));
    storages
        .into_iter()
        .flat_map(move |storage| {
            FILES
                .iter()
                .map(move |file| file(RowKind { storage, ..rows }, shapes))
        })
        .chain(sampling)
        .map(move |mut fixtures| {
            if shapes == Shapes::One {
                for fixture in &mut fixtures {
                    let middle = fixture.runs.len() / 2;
                    fixture.runs = vec![fixture.runs.swap_remove(middle)];
                }
            }
            fixtures
        })
}

fn selected(options: &SelftestOptions, fixture: &Fixture, run: &Run) -> bool {
    let Some(filter) = &options.filter else {
        return true;
    };
    let name = format!("{}/{}", fixture.name(), run.shape);
    let contains = |filter: &str| filter.split('|').any(|part| name.contains(part));
    filter
        .strip_prefix('!')
        .map_or_else(|| contains(filter), |others| !contains(others))
}

/// Loads plan, weights (in three chunks, the last first) and pool.
fn load<B: Inspect>(
    device: &mut B,
    fixture: &Fixture,
    weights: &[bytes::Bytes],
    capacity: &Capacity,
) -> Result<(), BackendError> {
    device.load(Arc::new(fixture.plan.clone()), capacity)?;
    for (index, bytes) in (0..).zip(weights) {
        let spec = &fixture.plan.weights[index as usize];
        let mut chunks = Vec::new();
        let mut first = 0;
        for section in &spec.sections {
            let (end, part) = (first + section.rows, section.rows.div_ceil(3).max(1));
            while first < end {
                chunks.push((first, (first + part).min(end)));
                first = (first + part).min(end);
            }
        }
        for (first, end) in chunks.into_iter().rev() {
            let rows =
                bytes.slice(spec.bytes_before(first) as usize..spec.bytes_before(end) as usize);
            device.write_weight(crate::plan::WeightId(index), first, rows)?;
        }
    }
    device.allocate_pool(&fixture.blocks)
}

/// Fills all buffers, runs the batch and reads the values to check.
async fn execute<B: Inspect>(
    device: &mut B,
    fixture: &Fixture,
    run: &Run,
) -> Result<Outcome, BackendError> {
    for (buffer, values) in &run.buffers {
        device.write_buffer(*buffer, values)?;
    }
    for (layer, halves) in (0..).zip(&run.kv) {
        device.write_kv(layer, KvHalf::Key, &halves[0])?;
        // A latent has no values of its own.
        if !halves[1].is_empty() {
            device.write_kv(layer, KvHalf::Value, &halves[1])?;
        }
    }
    for (layer, states) in (0..).zip(&run.states) {
        device.write_state(layer, states)?;
    }
    device.write_feed(&run.feed)?;
    let ticket = device.submit(&run.inputs)?;
    let results = device.read(ticket).await?;
    let mut values = Vec::new();
    for check in &run.checks {
        values.push(match check {
            fixture::Check::Rows { buffer, rows, .. } => device.read_buffer(*buffer, *rows).await?,
            fixture::Check::Kv { layer, half, .. } => device.read_kv(*layer, *half).await?,
            fixture::Check::State { layer, .. } => device.read_state(*layer).await?,
            fixture::Check::Sampled => Vec::new(),
            fixture::Check::Pooled { .. } => results.pooled.concat(),
        });
    }
    let feed = device.read_feed(fixture.feed_slots).await?;
    Ok(Outcome {
        sampled: results.sampled,
        values,
        feed,
    })
}
