//! Scenario `steps`: each kernel alone with the model's shapes, as a plan that repeats one step over different data, so
//! that caches help no more than in a model.

use super::Subject;
use super::generate::Numbers;
use super::report::{Bound, Report, Row, percentile, rounded};
use crate::cli::device::Device;
use crate::cli::terminal::output::note;
use anyhow::Result;
use bytes::Bytes;
use folio::backend::cpu::CpuBackend;
#[cfg(feature = "cuda")]
use folio::backend::cuda::CudaBackend;
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::WgpuBackend;
use folio::backend::wgpu::bench::{AttendShape, Yardstick};
use folio::backend::{Backend, BackendError, Capacity};
use folio::config::Config;
use folio::plan::inputs::{BatchInputs, GroupInputs, NONE, SequenceRows};
use folio::plan::{
    AttendPaged, Embed, KvFormat, KvGroup, KvLayer, MatMul, Plan, RowId, Rows, Section, Step,
    Storage, Tail, WeightFormat, WeightId,
};
use folio::platform::{self, Instant};
use serde_json::json;
use std::sync::Arc;

/// Minimum bytes that a case reads before it repeats the same data.
const BYTES_MIN: u64 = 256 << 20;
/// Maximum copies of a small tensor. If they are still below [`BYTES_MIN`], no share of a peak is reported.
const COPIES_MAX: u64 = 256;
/// Default numbers of rows of the products: a vector, a few rows, a chunk of a prompt.
const ROWS: [u32; 3] = [1, 8, 64];
/// Batch size of the attention cases.
const ATTEND_BATCH: u32 = 16;
/// Number of layers of the attention cases.
const ATTEND_LAYERS: u32 = 4;
/// Time for the submissions of a case, and bounds on their number.
const SECONDS: f64 = 1.0;
const SUBMISSIONS: std::ops::Range<usize> = 3..50;

/// Seconds of one step, sorted.
struct Times(Vec<f64>);

impl Times {
    fn best(&self) -> f64 {
        self.0.first().copied().unwrap_or(f64::INFINITY)
    }

    fn row(mut self, shape: String, batch: u32) -> Row {
        let (p50, p99) = (percentile(&mut self.0, 0.5), percentile(&mut self.0, 0.99));
        Row {
            scenario: "steps",
            shape,
            batch,
            p50_ms: ms(p50),
            p99_ms: ms(p99),
            ..Row::default()
        }
    }
}

fn ms(seconds: Option<f64>) -> Option<f64> {
    seconds.map(|seconds| 1e3 * seconds)
}

/// A plan of `steps` equal steps, and its inputs.
struct Case {
    plan: Plan,
    capacity: Capacity,
    inputs: BatchInputs,
    blocks: Vec<u32>,
    steps: u32,
}

pub(super) fn measure(
    device: &Device,
    subject: &Subject<'_>,
    config: &Config,
    report: &mut Report,
) -> Result<()> {
    products(device, subject, config, report)?;
    attention(device, subject, config, report)
}

/// A matrix of the model, and how many matrices of this shape a token is multiplied with.
struct Matrix {
    name: String,
    columns: u32,
    sections: Vec<Section>,
    uses: u32,
}

impl Matrix {
    fn rows(&self) -> u32 {
        self.sections.iter().map(|section| section.rows).sum()
    }

    fn bytes(&self) -> u64 {
        self.sections
            .iter()
            .map(|section| u64::from(section.rows) * section.format.row_bytes(self.columns))
            .sum()
    }

    fn formats(&self) -> String {
        let formats: Vec<String> = self
            .sections
            .iter()
            .map(|section| section.format.to_string())
            .collect();
        formats.join("+")
    }
}

/// The dense matrices that a token is multiplied with, in the model's formats; then a large one for comparisons between
/// devices.
fn matrices(plan: &Plan) -> Vec<Matrix> {
    let mut found: Vec<Matrix> = Vec::new();
    let samples = plan
        .tails
        .iter()
        .filter(|(tail, _)| *tail == Tail::Sample)
        .flat_map(|(_, steps)| steps);
    let steps = plan
        .body
        .iter()
        .map(|step| (step, None))
        .chain(samples.map(|step| (step, Some("lm_head"))));
    for (step, name) in steps {
        let Step::MatMul(MatMul { weight, .. }) = step else {
            continue;
        };
        let spec = plan.weight_spec(*weight);
        let name = name.or(spec.name.rsplit('.').next()).unwrap_or_default();
        match found.iter_mut().find(|known| {
            known.name == name && known.columns == spec.columns && known.sections == spec.sections
        }) {
            Some(known) => known.uses += 1,
            None => found.push(Matrix {
                name: name.into(),
                columns: spec.columns,
                sections: spec.sections.clone(),
                uses: 1,
            }),
        }
    }
    let format = found
        .first()
        .map_or(WeightFormat::Bf16, |matrix| matrix.sections[0].format);
    let sections = vec![Section { rows: 4096, format }];
    found.push(Matrix {
        name: "16M".into(),
        columns: 4096,
        sections,
        uses: 0,
    });
    found
}

pub(super) fn products(
    device: &Device,
    subject: &Subject<'_>,
    config: &Config,
    report: &mut Report,
) -> Result<()> {
    let mut token_seconds = 0.0;
    let asked = &subject.args.batch[..];
    let row_counts = if asked.is_empty() { &ROWS } else { asked };
    let activations = device.caps()?.activations;
    for matrix in matrices(&subject.model()?.record(activations)) {
        let (outputs, columns) = (matrix.rows(), matrix.columns);
        let title = format!(
            "matmul {} {outputs}x{columns} {}",
            matrix.name,
            matrix.formats()
        );
        for &rows in row_counts {
            note(format_args!("steps, {title}, {rows} rows …"));
            let case = product(config, &matrix, rows, activations);
            let beyond_caches = case.plan.weight_bytes() >= BYTES_MIN;
            let times = run(device, case)?;
            let gbps = matrix.bytes() as f64 / times.best() / 1e9;
            let operations = 2.0 * f64::from(rows) * f64::from(outputs) * f64::from(columns);
            let gflops = operations / times.best() / 1e9;
            if rows == 1 {
                token_seconds += times.best() * f64::from(matrix.uses);
            }
            let bound = if rows < 64 {
                Bound::Read
            } else {
                Bound::Arithmetic
            };
            report.push(Row {
                gbps: Some(gbps),
                gflops: Some(gflops),
                bound: beyond_caches.then_some(bound),
                ..times.row(title.clone(), rows)
            })?;
        }
    }
    report.matvec_tokens_per_s = Some(1.0 / token_seconds);
    report.set("matvec_tokens_per_s", json!(rounded(1.0 / token_seconds)));
    Ok(())
}

fn product(config: &Config, matrix: &Matrix, rows: u32, activations: Storage) -> Case {
    let copies = BYTES_MIN.div_ceil(matrix.bytes()).min(COPIES_MAX);
    let mut plan = Plan {
        vocab: 2,
        positions_max: rows + 1,
        ..Plan::default()
    };
    let x = plan.buffer("x", Rows::Tokens, matrix.columns, activations);
    let out = plan.buffer("out", Rows::Tokens, matrix.rows(), activations);
    // As in a model, x has been written: memory that never was is one page of zeros at many addresses, which some
    // processors read from the first-level cache at half the speed.
    let table = plan.weight("table", plan.vocab, matrix.columns, WeightFormat::F16);
    plan.body.push(Step::Embed(Embed {
        table,
        id: RowId::Token,
        accumulate: false,
        scale: 1.0,
        out: x,
    }));
    for copy in 0..copies {
        let weight =
            plan.weight_in_sections(format!("weight.{copy}"), matrix.columns, &matrix.sections);
        plan.body.push(Step::MatMul(MatMul {
            x,
            weight,
            bias: None,
            accumulate: false,
            out,
        }));
    }
    let sequence = SequenceRows {
        row_start: 0,
        row_count: rows,
        context_len: rows,
    };
    let inputs = BatchInputs {
        token_ids: vec![0; rows as usize],
        positions: (0..rows).collect(),
        sequences: vec![sequence],
        ..BatchInputs::default()
    };
    Case {
        capacity: capacity(config, rows, 1, 1),
        plan,
        inputs,
        blocks: Vec::new(),
        steps: copies as u32,
    }
}

fn capacity(config: &Config, tokens: u32, sequences: u32, table_entries: u32) -> Capacity {
    Capacity {
        tokens_max: tokens,
        sequences_max: sequences,
        samples_max: sequences,
        feed_slots: sequences,
        state_slots: 0,
        table_entries_max: table_entries,
        history_max: 1,
        bias_max: 1,
        mask_words_max: 1,
        copies_max: 1,
        block_size: config.block_size,
        kv_format: config.kv_format,
        deterministic: config.deterministic,
    }
}

/// Decode attention through the block table, and on a GPU also without a block table.
fn attention(
    device: &Device,
    subject: &Subject<'_>,
    config: &Config,
    report: &mut Report,
) -> Result<()> {
    let (spec, layer) = (&subject.spec, &subject.spec.layers[0]);
    let latent = spec.latent.is_some();
    for context in [512, 2048] {
        note(format_args!(
            "steps, attend_paged, batch {ATTEND_BATCH}, context {context} …"
        ));
        let shape = AttendShape {
            batch: ATTEND_BATCH,
            context,
            block_size: config.block_size,
            query_heads: layer.query_heads,
            kv_heads: layer.kv_heads,
            head_dim: layer.head_dim,
        };
        let times = run(
            device,
            attend(config, &shape, latent, device.caps()?.activations),
        )?;
        let rows = if latent { 1 } else { 2 }
            * u64::from(shape.batch)
            * u64::from(context)
            * u64::from(shape.kv_heads);
        let bytes = (rows * config.kv_format.row_bytes(shape.head_dim)) as f64;
        let (gbps, best) = (bytes / times.best() / 1e9, times.best());
        // A pool that fits in caches may be read faster than memory, so no share is reported.
        let beyond_caches = bytes * f64::from(ATTEND_LAYERS) >= BYTES_MIN as f64 / 2.0;
        report.push(Row {
            context: Some(context),
            gbps: Some(gbps),
            bound: beyond_caches.then_some(Bound::Read),
            ..times.row(
                format!(
                    "attend_paged {}/{}x{}",
                    layer.query_heads, layer.kv_heads, layer.head_dim
                ),
                ATTEND_BATCH,
            )
        })?;
        if let (Device::Wgpu(options), KvFormat::F16, false) = (device, config.kv_format, latent) {
            let yardstick = platform::block_on(Yardstick::open(options))?;
            baseline(&yardstick, &shape, best, report)?;
        }
    }
    Ok(())
}

fn baseline(
    yardstick: &Yardstick,
    shape: &AttendShape,
    paged_seconds: f64,
    report: &mut Report,
) -> Result<()> {
    let baseline = match yardstick.gather_then_attend(shape) {
        Ok(baseline) => baseline,
        Err(BackendError::Kernel { kernel, message }) => {
            // The baseline kernels are plain WGSL. An adapter without f16 conversion has no baseline, which is not an
            // error.
            note(format_args!(
                "no baseline on this adapter: {kernel}: {}",
                message.lines().next().unwrap_or_default()
            ));
            return Ok(());
        }
        Err(fault) => return Err(fault.into()),
    };
    let copied = 2.0 * shape.kv_bytes() as f64 / baseline.gather_seconds / 1e9;
    let row = |name: &str, seconds: f64| Row {
        context: Some(shape.context),
        ..Times(vec![seconds]).row(
            format!(
                "{name} {}/{}x{}",
                shape.query_heads, shape.kv_heads, shape.head_dim
            ),
            shape.batch,
        )
    };
    let gather = Row {
        gbps: Some(copied),
        bound: Some(Bound::Copy),
        ..row("baseline: gather", baseline.gather_seconds)
    };
    report.push(gather)?;
    report.push(row("baseline: gather, then attend", baseline.total_seconds))?;
    // Two variants without paging: the three plain kernels, or the paged kernel itself over the gathered copy.
    let plain = rounded(baseline.total_seconds / paged_seconds);
    let itself = rounded((baseline.gather_seconds + paged_seconds) / paged_seconds);
    report.set(
        &format!("attend_paged_gain_at_{}", shape.context),
        json!({"plain": plain, "itself": itself}),
    );
    Ok(())
}

fn attend(config: &Config, shape: &AttendShape, latent: bool, activations: Storage) -> Case {
    let mut plan = Plan {
        vocab: 2,
        positions_max: shape.context + 1,
        ..Plan::default()
    };
    plan.kv_groups.push(KvGroup { window: None });
    let columns = shape.query_heads * shape.head_dim;
    let q = plan.buffer("q", Rows::Tokens, columns, activations);
    let out = plan.buffer("out", Rows::Tokens, columns, activations);
    for layer in 0..ATTEND_LAYERS {
        plan.kv_layers.push(KvLayer {
            group: 0,
            heads: shape.kv_heads,
            head_dim: shape.head_dim,
            latent,
        });
        plan.body.push(Step::AttendPaged(AttendPaged {
            q,
            layer,
            query_heads: shape.query_heads,
            scale: 1.0 / (shape.head_dim as f32).sqrt(),
            softcap: None,
            alibi: None,
            sinks: None,
            out,
        }));
    }
    let per_sequence = shape.context.div_ceil(shape.block_size);
    let blocks = per_sequence * shape.batch;
    let inputs = BatchInputs {
        token_ids: vec![0; shape.batch as usize],
        positions: vec![shape.context - 1; shape.batch as usize],
        sequences: (0..shape.batch)
            .map(|row| SequenceRows {
                row_start: row,
                row_count: 1,
                context_len: shape.context,
            })
            .collect(),
        groups: vec![GroupInputs {
            block_tables: shuffled(blocks),
            table_starts: (0..shape.batch)
                .map(|sequence| sequence * per_sequence)
                .collect(),
            slot_mapping: vec![NONE; shape.batch as usize],
            copies: Vec::new(),
        }],
        ..BatchInputs::default()
    };
    let capacity = capacity(config, shape.batch, shape.batch, blocks);
    Case {
        plan,
        capacity,
        inputs,
        blocks: vec![blocks],
        steps: ATTEND_LAYERS,
    }
}

/// Block ids in random order, as after a long run.
fn shuffled(blocks: u32) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..blocks).collect();
    let mut numbers = Numbers(1);
    for last in (1..blocks).rev() {
        ids.swap(last as usize, numbers.below(last + 1) as usize);
    }
    ids
}

fn run(device: &Device, case: Case) -> Result<Times> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(options) => run_on(CudaBackend::open(options)?, case),
        Device::Wgpu(options) => run_on(platform::block_on(WgpuBackend::open(options))?, case),
        Device::Cpu(options) => run_on(CpuBackend::new(options), case),
        Device::Reference | Device::Fake(_) => run_on(ReferenceBackend::new(), case),
    }
}

fn run_on<B: Backend>(mut backend: B, case: Case) -> Result<Times> {
    let plan = Arc::new(case.plan);
    backend.load(plan.clone(), &case.capacity)?;
    fill(&mut backend, &plan)?;
    backend.allocate_pool(&case.blocks)?;
    let mut seconds = Vec::new();
    let begin = Instant::now();
    // The first submission is a warm-up (it compiles kernels and touches memory) and is not counted.
    while seconds.len() <= SUBMISSIONS.start
        || begin.elapsed().as_secs_f64() < SECONDS && seconds.len() < SUBMISSIONS.end
    {
        let start = Instant::now();
        let ticket = backend.submit(&case.inputs)?;
        platform::block_on(backend.read(ticket))?;
        seconds.push(start.elapsed().as_secs_f64() / f64::from(case.steps));
    }
    seconds.remove(0);
    seconds.sort_by(f64::total_cmp);
    Ok(Times(seconds))
}

/// Writes random rows into every weight, in chunks that each lie in one section.
fn fill(backend: &mut impl Backend, plan: &Plan) -> Result<(), BackendError> {
    for (index, spec) in (0..).zip(&plan.weights) {
        let mut first = 0;
        for section in &spec.sections {
            let row_bytes = section.format.row_bytes(spec.columns);
            let (end, chunk) = (first + section.rows, ((16 << 20) / row_bytes).max(1) as u32);
            while first < end {
                let rows = chunk.min(end - first);
                let bytes = random_bytes(u64::from(index), u64::from(rows) * row_bytes);
                backend.write_weight(WeightId(index), first, bytes)?;
                first += rows;
            }
        }
    }
    Ok(())
}

/// Random bytes that are finite numbers of ordinary size in every format, for codes and scales alike.
fn random_bytes(seed: u64, bytes: u64) -> Bytes {
    let mut numbers = Numbers(seed);
    let pattern: Vec<u8> = (0..8191)
        .map(|_| numbers.below(256) as u8 & 0x2b | 0x10)
        .collect();
    Bytes::from(
        pattern
            .into_iter()
            .cycle()
            .take(bytes as usize)
            .collect::<Vec<u8>>(),
    )
}

#[cfg(test)]
mod tests;
