//! Steps → launches. This is the only place that chooses a step's kernel, tile and grid.
//!
//! A program is recorded once per [`BatchShape`], a bucket of batches, and replayed for every batch in that bucket:
//! decode batches as a CUDA graph, others launch by launch. Hence one rule: **an encoder may depend on the shape, the
//! plan, the capacity and the device, never on the contents or counts of a batch**. Kernels read those from the
//! metadata.
//!
//! Conventions for a kernel:
//! - `cuda/<stem>.cu` has one function, `<stem>`. Its only argument is its params: addresses first, then u32 and f32,
//!   declared here with [`params!`] in the same order and without padding.
//! - Row buffers are f32 or bfloat16, chosen by a define (`X_TYPE`, `OUT_TYPE`); vectors are f32.
//! - Rows beyond the batch's own count never reach the pool and cause no out-of-bounds reads.

pub(super) mod attend_paged;
mod attend_rows;
mod copy_blocks;
mod embed;
mod gated_activation;
mod gated_norm;
mod gather_rows;
mod join_rows;
mod matmul;
pub(super) mod matmul_experts;
pub(super) mod matmul_tile;
pub(super) mod pool;
mod rms_norm;
mod rope_store_kv;
mod rope_store_latent;
mod rotate_rows;
mod route_adapters;
mod route_experts;
pub(super) mod sample;
mod scale_logits;
mod short_convolution;
mod state_scan;
mod tile;

use super::super::metadata::{META_LOGITS_COUNT, META_TOKEN_COUNT};
use super::super::scan_shape::ScanShape;
use super::super::{BackendError, Capacity};
use super::arena::{Arena, DeviceWeight};
use super::driver::{Command, Facts, Launch};
pub(super) use super::kernel::Kernel;
use super::modules::Modules;
use crate::plan::fuse;
use crate::plan::inputs::{BatchInputs, GroupInputs, NONE, SampleShape};
use crate::plan::{BufferId, Part, Plan, Rows, Step, Storage, Tail, WeightId};
use bytemuck::Pod;

/// Declares the params of a kernel: addresses first, then an even total of u32 and f32.
macro_rules! params {
    ($(#[$meta:meta])* $name:ident { $($field:ident: $kind:ty),* $(,)? }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
        pub(super) struct $name { $(pub(super) $field: $kind),* }
    };
}
pub(super) use params;

/// What is added to every weight of a norm.
pub(super) fn weight_offset(one_plus: bool) -> f32 {
    if one_plus { 1.0 } else { 0.0 }
}

/// A bucket of batches: the maximum of each count.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct BatchShape {
    /// Token rows.
    pub(super) tokens: u32,
    /// Sequences.
    pub(super) sequences: u32,
    /// Logits rows; 0 if nothing is sampled or merged.
    pub(super) logits_rows: u32,
    /// Sample rows.
    pub(super) samples: u32,
    /// Pooled output rows.
    pub(super) pools: u32,
    /// Every sequence has one row.
    pub(super) decode: bool,
    /// In a decode batch: no row sees keys of another one. Drafts see those before them.
    pub(super) apart: bool,
    /// The batch copies blocks.
    pub(super) copies: bool,
    /// The part of the plan that it runs.
    pub(super) part: Part,
    /// A token row stands for a row of an image.
    pub(super) images: bool,
    /// Numbers of rows of the sequences, as recurrences tell them apart.
    pub(super) scan: ScanShape,
    /// Which sampling options any row uses.
    pub(super) sample: SampleShape,
}

/// Decode batches of up to this many sequences are recorded and their products timed at start; larger ones are recorded
/// when they first occur, and products that are new then are not timed, while a request waits.
const USUAL_DECODE_MAX: u32 = 256;

/// The bucket of a decode batch: fine steps, since every row costs time.
fn decode_bucket(rows: u32) -> u32 {
    match rows {
        0..=2 => rows,
        3..=8 => rows.next_power_of_two(),
        9..=64 => rows.next_multiple_of(8),
        65..=256 => rows.next_multiple_of(16),
        _ => rows.next_multiple_of(64),
    }
}

/// The bucket of any other batch: coarse steps, since each bucket needs a program and cuBLASLt plans.
fn mixed_bucket(rows: u32) -> u32 {
    match rows {
        0..=128 => rows.next_multiple_of(16),
        129..=512 => rows.next_multiple_of(64),
        513..=2048 => rows.next_multiple_of(128),
        _ => rows.next_multiple_of(512),
    }
}

/// Whether no row of a decode batch sees a key of another one, in one KV group. Only the last block of a sequence is
/// written, and no two sequences share it; so only rows of one sequence, which are drafts, see each other.
fn are_apart(inputs: &BatchInputs, group: &GroupInputs, block_size: u32) -> bool {
    let rows = || inputs.sequences.iter().zip(&group.table_starts);
    let slots = rows().map(|(sequence, _)| group.slot_mapping[sequence.row_start as usize]);
    let mut written: Vec<(u32, u32)> = slots
        .zip(0..)
        .filter(|(slot, _)| *slot != NONE)
        .map(|(slot, row)| (slot / block_size, row))
        .collect();
    written.sort_unstable();
    // The drafts of a sequence are consecutive, so one of them has the last key of a block in sight in the next.
    let sees_others = |row: u32, entry: u32| {
        let block = group.block_tables[entry as usize];
        let from = written.partition_point(|(other, _)| *other < block);
        let mut writers = written[from..]
            .iter()
            .take_while(|(other, _)| *other == block);
        writers.any(|(_, writer)| *writer != row)
    };
    rows().zip(0..).all(|((sequence, start), row)| {
        let last = (sequence.context_len - 1) / block_size;
        (last.saturating_sub(1)..=last).all(|entry| !sees_others(row, start + entry))
    })
}

/// Rows of the bucket that a tower merges; 0 if the plan is no tower's.
fn merged_rows(plan: &Plan, inputs: &BatchInputs, capacity: &Capacity) -> u32 {
    if !plan.pools_merged_rows() || inputs.pools.is_empty() {
        return 0;
    }
    let rows = u32::try_from(inputs.logits_rows.len()).expect("checked against the capacity");
    rows.next_power_of_two().min(capacity.samples_max)
}

impl BatchShape {
    /// The bucket of a batch.
    pub(super) fn of(plan: &Plan, inputs: &BatchInputs, capacity: &Capacity) -> Self {
        let count = |count: usize| u32::try_from(count).expect("checked against the capacity");
        let decode = inputs
            .sequences
            .iter()
            .all(|sequence| sequence.row_count == 1);
        let bucket = if decode { decode_bucket } else { mixed_bucket };
        let sampling = inputs.tails.contains(&Tail::Sample) && !inputs.samples.is_empty();
        let pools = if inputs.tails.contains(&Tail::Pool) {
            count(inputs.pools.len())
        } else {
            0
        };
        let sampled = |rows: usize| match (sampling, decode) {
            (false, _) => 0,
            (true, true) => decode_bucket(count(rows)).min(capacity.samples_max),
            (true, false) => count(rows).next_power_of_two().min(capacity.samples_max),
        };
        let shape = Self {
            tokens: bucket(count(inputs.token_ids.len())).min(capacity.tokens_max),
            sequences: bucket(count(inputs.sequences.len())).min(capacity.sequences_max),
            logits_rows: sampled(inputs.logits_rows.len()).max(merged_rows(plan, inputs, capacity)),
            samples: sampled(inputs.samples.len()),
            pools: pools.next_power_of_two().min(capacity.pools_max(plan)) * pools.min(1),
            decode,
            apart: decode
                && inputs
                    .groups
                    .iter()
                    .all(|group| are_apart(inputs, group, capacity.block_size)),
            copies: inputs.groups.iter().any(|group| !group.copies.is_empty()),
            part: inputs.part(),
            images: inputs.has_image_rows(),
            scan: ScanShape::of(
                plan.for_batch(inputs),
                inputs.sequences.iter().map(|sequence| sequence.row_count),
            ),
            sample: if sampling {
                SampleShape::of(&inputs.samples)
            } else {
                SampleShape::default()
            },
        };
        debug_assert!(
            shape.tokens as usize >= inputs.token_ids.len(),
            "a bucket holds the batch: {shape:?}"
        );
        debug_assert!(
            !sampling || shape.samples as usize >= inputs.samples.len(),
            "and its sample rows: {shape:?}"
        );
        shape
    }
}

impl BatchShape {
    /// The buckets recorded at start: decode batches, greedy and sampled, up to [`USUAL_DECODE_MAX`] sequences, and a
    /// full step.
    pub(super) fn usual(plan: &Plan, capacity: &Capacity) -> Vec<Self> {
        let most = capacity
            .sequences_max
            .min(capacity.samples_max)
            .min(capacity.tokens_max);
        let mut shapes: Vec<Self> = Vec::new();
        for rows in 1..=most.min(USUAL_DECODE_MAX) {
            let bucket = decode_bucket(rows).min(most);
            for sample in sample::usual_shapes() {
                let (tokens, sequences, logits_rows, samples) = (bucket, bucket, bucket, bucket);
                let (pools, copies, part) = (0, false, Part::Model);
                let scan = ScanShape::of(plan, std::iter::once(1));
                let (decode, apart) = (true, true);
                let shape = Self {
                    tokens,
                    sequences,
                    logits_rows,
                    samples,
                    pools,
                    decode,
                    apart,
                    copies,
                    part,
                    images: false,
                    scan,
                    sample,
                };
                if !shapes.contains(&shape) {
                    shapes.push(shape);
                }
            }
        }
        let (tokens, sequences) = (capacity.tokens_max, 1);
        shapes.extend(
            sample::usual_shapes()
                .into_iter()
                .take(1)
                .map(|sample| Self {
                    tokens,
                    sequences: mixed_bucket(sequences).min(capacity.sequences_max),
                    logits_rows: 1,
                    samples: 1,
                    pools: 0,
                    decode: false,
                    apart: false,
                    copies: false,
                    part: Part::Model,
                    images: false,
                    scan: ScanShape::of(plan, std::iter::once(tokens)),
                    sample,
                }),
        );
        let others = [
            (Part::Adapted, plan.adapters.is_some()),
            (Part::Predictor, plan.predictor.is_some()),
        ];
        let model = shapes.clone();
        for (part, _) in others.into_iter().filter(|(_, has_part)| *has_part) {
            shapes.extend(model.iter().map(|shape| Self {
                part,
                scan: match part {
                    Part::Predictor => ScanShape::of(plan.part(part), std::iter::empty()),
                    _ => shape.scan,
                },
                ..shape.clone()
            }));
        }
        shapes
    }
}

/// Records the steps of one shape.
pub(super) struct Recorder<'a> {
    /// The loaded plan.
    pub(super) plan: &'a Plan,
    /// The capacity that the buffers were allocated for.
    pub(super) capacity: &'a Capacity,
    /// The buffers.
    pub(super) arena: &'a Arena,
    /// The bucket.
    pub(super) shape: &'a BatchShape,
    /// The device.
    pub(super) device: &'a Facts,
    modules: &'a mut Modules,
    commands: Vec<Command>,
    /// The steps being recorded; several if they are fused. Launches may use only the buffers and weights that these
    /// name.
    running: &'a [Step],
}

/// How a kernel computes its number of rows: a word of the metadata's header, times a factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowCount {
    pub(super) header: u32,
    pub(super) times: u32,
}

/// What programs are recorded for.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) plan: &'a Plan,
    pub(super) capacity: &'a Capacity,
    pub(super) arena: &'a Arena,
    pub(super) device: &'a Facts,
}

/// Records the commands of a shape. Launches whose kernels are not loaded are left out and noted in `modules`.
pub(super) fn record(
    modules: &mut Modules,
    subject: Subject<'_>,
    shape: &BatchShape,
) -> Result<Vec<Command>, BackendError> {
    let Subject {
        plan,
        capacity,
        arena,
        device,
    } = subject;
    let mut recorder = Recorder {
        plan: plan.part(shape.part),
        capacity,
        arena,
        shape,
        device,
        modules,
        commands: Vec::new(),
        running: &[],
    };
    recorder.record()?;
    Ok(recorder.commands)
}

impl<'a> Recorder<'a> {
    fn record(&mut self) -> Result<(), BackendError> {
        let plan = self.plan;
        self.steps(&plan.body)?;
        if self.shape.samples > 0 {
            self.steps(plan.tail(Tail::Sample))?;
        }
        if self.shape.pools > 0 {
            self.steps(plan.tail(Tail::Pool))?;
        }
        Ok(())
    }

    fn steps(&mut self, mut steps: &'a [Step]) -> Result<(), BackendError> {
        while let Some(first) = steps.first() {
            let fused = self.fused(steps)?;
            if fused == 0 {
                self.running = &steps[..1];
                self.step(first)?;
            }
            steps = &steps[fused.max(1)..];
        }
        Ok(())
    }

    /// Records the first steps as one launch, if they can be one; returns their number.
    fn fused(&mut self, steps: &'a [Step]) -> Result<usize, BackendError> {
        if let Some(fused) = fuse::find(self.plan, steps) {
            self.running = &steps[..fused.steps()];
            return Ok(if matmul::encode_fused(self, &fused)? {
                fused.steps()
            } else {
                0
            });
        }
        if let Some((store, attend)) = fuse::find_attention(self.plan, steps) {
            self.running = &steps[..2];
            return Ok(if attend_paged::encode_fused(self, &store, &attend)? {
                2
            } else {
                0
            });
        }
        Ok(0)
    }

    fn step(&mut self, step: &Step) -> Result<(), BackendError> {
        match step {
            // Most batches copy no blocks; they have programs of their own.
            Step::CopyBlocks(_) if !self.shape.copies => Ok(()),
            Step::CopyBlocks(_) => copy_blocks::encode(self),
            Step::Embed(step) => embed::encode(self, step),
            Step::RmsNorm(step) => rms_norm::encode(self, step),
            Step::MatMul(step) => matmul::encode(self, step),
            Step::RopeStoreKv(step) => rope_store_kv::encode(self, step),
            Step::RopeStoreLatent(step) => rope_store_latent::encode(self, step),
            Step::AttendPaged(step) => attend_paged::encode(self, step),
            Step::RotateRows(step) => rotate_rows::encode(self, step),
            Step::AttendRows(step) => attend_rows::encode(self, step),
            Step::ShortConvolution(step) => short_convolution::encode(self, step),
            Step::StateScan(step) => state_scan::encode(self, step),
            Step::GatedNorm(step) => gated_norm::encode(self, step),
            Step::GatedActivation(step) => gated_activation::encode(self, step),
            Step::RouteExperts(step) => route_experts::encode(self, step),
            Step::RouteAdapters(step) => route_adapters::encode(self, step),
            Step::MatMulExperts(step) => matmul_experts::encode(self, step),
            Step::GatherRows(step) => gather_rows::encode(self, step),
            Step::ScaleLogits(step) => scale_logits::encode(self, step),
            Step::Sample(step) => sample::encode(self, step),
            Step::Pool(step) => pool::encode(self, step),
            Step::JoinRows(step) => join_rows::encode(self, step),
        }
    }

    /// Maximum rows of `buffer` in a batch of this shape.
    pub(super) fn rows(&self, buffer: BufferId) -> u32 {
        self.plan
            .buffer_spec(buffer)
            .rows
            .count(self.shape.tokens, self.shape.logits_rows)
    }

    /// Where a kernel reads the number of rows of `buffer`.
    pub(super) fn row_count(&self, buffer: BufferId) -> RowCount {
        match self.plan.buffer_spec(buffer).rows {
            Rows::Tokens => RowCount {
                header: META_TOKEN_COUNT,
                times: 1,
            },
            Rows::Samples => RowCount {
                header: META_LOGITS_COUNT,
                times: 1,
            },
            Rows::Routes(per_token) => RowCount {
                header: META_TOKEN_COUNT,
                times: per_token,
            },
        }
    }

    /// The address of a row buffer that the running steps name.
    pub(super) fn row_buffer(&self, id: BufferId) -> u64 {
        debug_assert!(
            self.running
                .iter()
                .flat_map(Step::buffers)
                .any(|(named, _)| named == id)
        );
        self.arena.row_buffer(id)
    }

    /// A weight that the running steps name.
    pub(super) fn weight(&self, id: WeightId) -> &'a DeviceWeight {
        debug_assert!(self.running.iter().any(|step| step.weights().contains(&id)));
        self.arena.weight(id)
    }

    /// The address of a vector that the running steps name: f32, one row.
    pub(super) fn vector(&self, id: WeightId) -> u64 {
        let [section] = self.weight(id).sections[..] else {
            unreachable!("a vector has one format")
        };
        section.address
    }

    /// The address of a vector; 0 if there is none.
    pub(super) fn optional(&self, id: Option<WeightId>) -> u64 {
        id.map_or(0, |id| self.vector(id))
    }

    /// Elements per row of `buffer`.
    pub(super) fn columns(&self, buffer: BufferId) -> u32 {
        self.plan.buffer_spec(buffer).columns
    }

    /// Element type of `buffer`.
    pub(super) fn storage(&self, buffer: BufferId) -> Storage {
        self.plan.buffer_spec(buffer).storage
    }

    /// Adds a launch, unless the grid is empty.
    pub(super) fn launch<P: Pod>(
        &mut self,
        kernel: &Kernel,
        params: &P,
        grid: [u32; 3],
        threads: u32,
        shared_bytes: u32,
    ) -> Result<(), BackendError> {
        debug_assert!(
            threads > 0 && threads <= 1024 && threads.is_multiple_of(32),
            "{kernel}: whole warps"
        );
        debug_assert!(
            shared_bytes <= self.device.shared_bytes_max,
            "{kernel}: {shared_bytes} bytes of shared memory"
        );
        if grid.contains(&0) {
            return Ok(());
        }
        let params: Box<[u8]> = bytemuck::bytes_of(params).into();
        if let Some(function) = self.modules.get(kernel, params.len()) {
            self.commands.push(Command::Kernel(Launch {
                function,
                params,
                grid,
                threads,
                shared_bytes,
            }));
        }
        Ok(())
    }

    /// Adds a cuBLASLt product.
    pub(super) fn product(&mut self, product: super::blas::Product) {
        self.commands.push(Command::Product(product));
    }
}

/// Columns in units of eight elements, which the row kernels require.
pub(super) fn eights_of(step: &str, columns: u32) -> Result<u32, BackendError> {
    if columns.is_multiple_of(8) {
        return Ok(columns / 8);
    }
    Err(BackendError::columns(step, columns, 8))
}

#[cfg(test)]
mod tests;
