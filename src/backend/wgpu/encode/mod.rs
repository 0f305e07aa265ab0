//! Steps → dispatches. The kernel, tile and grid of a step are chosen only here.
//!
//! A batch is replayed from a [`Program`]: a flat list of (pipeline, bind group, params offset, grid). A program is
//! recorded once per [`BatchShape`] (the counts of a batch) and cached; in steady decoding no shape logic runs at all.
//! Hence the one rule: **an encoder may depend on the shape, the plan, the capacity and the profile, never on the
//! contents of a batch**. Kernels read everything that depends on the contents from the metadata buffer
//! (`backend/metadata.rs`).
//!
//! Conventions for a kernel:
//! - `shaders/<stem>.wgsl`, entry point `main`, group 0: binding 0 is the `params` uniform, then the storage buffers in
//!   the order of the dispatch's bindings (inputs first, outputs last); at most 8 storage buffers.
//! - its params are declared with [`params!`], which makes a `#[repr(C)]` struct of u32 and f32 and lists its fields
//!   for `tests/kernels`. Equal params share a slot of the arena, so they should hold nothing that differs by layer.
//! - the grid is a number of workgroups, spread over x and y: the shader uses
//!   `workgroup_id.x + workgroup_id.y * num_workgroups.x` as its index and does nothing past its own count (without an
//!   early return before a barrier).
//! - each step has a file here, with `encode` and `variants`; the latter lists every variant it can use, so that the
//!   tests parse, validate and translate them all without a device.
//! - work that must be planned per batch (attention's work list) is appended to the metadata by a function of the
//!   batch; only its counts are part of the shape.

pub(crate) mod attend_paged;
mod attend_rows;
mod copy_blocks;
mod embed;
mod gated_activation;
mod gated_norm;
mod gather_rows;
mod join_rows;
pub(crate) mod matmul;
pub(crate) mod matmul_experts;
pub(crate) mod pool;
mod rms_norm;
mod rope_store_kv;
mod rope_store_latent;
mod rotate_rows;
mod route_adapters;
mod route_experts;
pub(crate) mod sample;
mod scale_logits;
mod short_convolution;
mod state_scan;
mod variant;
mod weight;

pub use variant::Variant;
pub(crate) use variant::{test_profile, weight_variants};
pub(crate) use weight::{RowParams, for_weight};

use super::super::metadata::{self, Context};
use super::super::scan_shape::ScanShape;
use super::super::{BackendError, Capacity};
use super::arena::{Arena, Binding, DeviceWeight, GpuBuffer};
use super::device::{Gpu, Profile, Tier};
use super::pipelines::{Access, Kernel, PARAMS_SLOT_BYTES, Pipelines, Wanted};
use crate::plan::fuse;
use crate::plan::inputs::{BatchInputs, SampleShape};
use crate::plan::work::StepWork;
use crate::plan::{BufferId, Part, Plan, Step, Tail, WeightId};
use bytemuck::Pod;
use std::collections::HashMap;
use std::sync::Arc;

/// Every variant that any encoder can use.
pub fn variants() -> Vec<Variant> {
    let all = [
        attend_paged::variants(),
        attend_rows::variants(),
        copy_blocks::variants(),
        embed::variants(),
        gated_activation::variants(),
        gated_norm::variants(),
        gather_rows::variants(),
        join_rows::variants(),
        matmul::variants(),
        matmul_experts::variants(),
        pool::variants(),
        rms_norm::variants(),
        rope_store_kv::variants(),
        rope_store_latent::variants(),
        rotate_rows::variants(),
        route_adapters::variants(),
        route_experts::variants(),
        sample::variants(),
        scale_logits::variants(),
        short_convolution::variants(),
        state_scan::variants(),
    ];
    all.into_iter().flatten().collect()
}

/// Declares the params of a kernel: u32 and f32 only, so Rust and WGSL agree on every offset.
macro_rules! params {
    ($(#[$meta:meta])* $name:ident { $($field:ident: $kind:ty),* $(,)? }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
        pub(super) struct $name { $(pub(super) $field: $kind),* }
        impl $name {
            /// Name and byte offset of each field.
            pub(super) const FIELDS: &'static [(&'static str, usize)] =
                &[$((stringify!($field), std::mem::offset_of!($name, $field))),*];
        }
    };
}
pub(crate) use params;

/// The counts of a batch: all that encoders may depend on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BatchShape {
    /// Number of token rows.
    pub(crate) tokens: u32,
    /// Number of sequences.
    pub(crate) sequences: u32,
    /// Number of logits rows.
    pub(crate) logits_rows: u32,
    /// Number of block copies of each KV group.
    pub(crate) copies: Vec<u32>,
    /// Counts of attention's work lists of each KV group.
    pub(crate) attend: Vec<Vec<attend_paged::AttendShape>>,
    /// Sampling options used by any row.
    pub(crate) sample: SampleShape,
    /// Whether any row is drawn from its whole vocabulary.
    pub(crate) open_rows: bool,
    /// Runs of the sampling tail; empty when nothing is sampled.
    pub(crate) sample_groups: Vec<SampleGroup>,
    /// Numbers of rows of the sequences, as recurrences tell them apart.
    pub(crate) scan: ScanShape,
    /// Number of pool rows.
    pub(crate) pools: u32,
    /// The part of the plan that it runs.
    pub(crate) part: Part,
    /// Whether any token row stands for a row of an image.
    pub(crate) images: bool,
    /// Number of dispatches that one layer's attention is divided among.
    pub(crate) attend_slices: u32,
}

/// Logits rows computed by one run of a tail, and the sample rows that read them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct SampleGroup {
    /// First logits row, among those of the batch.
    pub(crate) logits_start: u32,
    /// Number of rows of `Rows::Samples` buffers in this run.
    pub(crate) logits_rows: u32,
    /// First sample row.
    pub(crate) sample_start: u32,
    /// Number of sample rows.
    pub(crate) samples: u32,
}

/// Writes a batch to `words` and returns its shape; a tail runs in groups of `group_rows` rows.
pub(crate) fn flatten(
    context: &Context<'_>,
    profile: &Profile,
    inputs: &BatchInputs,
    group_rows: u32,
    words: &mut Vec<u32>,
) -> Result<BatchShape, BackendError> {
    let mut attends = Vec::new();
    let of_part = Context {
        plan: context.plan.for_batch(inputs),
        ..*context
    };
    metadata::flatten(
        context,
        inputs,
        words,
        |group: usize, words: &mut Vec<u32>| {
            attends.push(attend_paged::work(&of_part, profile, inputs, group, words));
        },
    )?;
    let count = |count: usize| u32::try_from(count).expect("checked against the capacity");
    let sampling = inputs.tails.contains(&Tail::Sample) && !inputs.samples.is_empty();
    Ok(BatchShape {
        tokens: count(inputs.token_ids.len()),
        sequences: count(inputs.sequences.len()),
        logits_rows: count(inputs.logits_rows.len()),
        copies: inputs
            .groups
            .iter()
            .map(|group| count(group.copies.len()))
            .collect(),
        attend: attends,
        sample: SampleShape::of(&inputs.samples),
        open_rows: sample::has_open_rows(inputs),
        sample_groups: if sampling {
            sample_groups(inputs, group_rows)
        } else {
            Vec::new()
        },
        scan: ScanShape::of(
            of_part.plan,
            inputs.sequences.iter().map(|sequence| sequence.row_count),
        ),
        pools: if inputs.tails.contains(&Tail::Pool) {
            count(inputs.pools.len())
        } else {
            0
        },
        part: inputs.part(),
        images: inputs.has_image_rows(),
        attend_slices: 1,
    })
}

/// Splits the logits rows into runs of `group_rows`, each with the sample rows that read them.
fn sample_groups(inputs: &BatchInputs, group_rows: u32) -> Vec<SampleGroup> {
    let logits = u32::try_from(inputs.logits_rows.len()).expect("checked against the capacity");
    assert!(group_rows > 0, "a tail runs in groups of at least one row");
    debug_assert!(
        inputs.samples.is_sorted_by_key(|sample| sample.logits_row),
        "sample rows follow their logits rows"
    );
    let below = |row: u32| {
        inputs
            .samples
            .partition_point(|sample| sample.logits_row < row) as u32
    };
    debug_assert!(
        inputs
            .samples
            .iter()
            .all(|sample| sample.logits_row < logits),
        "every sample row has its logits"
    );
    let starts = (0..logits).step_by(group_rows as usize);
    starts
        .map(|logits_start| {
            let logits_rows = group_rows.min(logits - logits_start);
            let sample_start = below(logits_start);
            let samples = below(logits_start + logits_rows) - sample_start;
            SampleGroup {
                logits_start,
                logits_rows,
                sample_start,
                samples,
            }
        })
        .collect()
}

/// One dispatch, ready to be encoded.
pub(crate) struct Command {
    pipeline: u32,
    raw: wgpu::ComputePipeline,
    bind_group: wgpu::BindGroup,
    params_offset: u32,
    grid: (u32, u32),
    /// Its share of its step's work.
    pub(crate) work: StepWork,
}

/// The dispatches of one batch shape.
pub(crate) struct Program {
    commands: Vec<Command>,
}

impl Program {
    /// All dispatches, in order.
    pub(crate) fn commands(&self) -> &[Command] {
        &self.commands
    }

    /// Number of dispatches of one batch.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.commands.len()).expect("a plan has few steps")
    }
}

/// Encodes dispatches.
pub(crate) fn replay(commands: &[Command], pass: &mut wgpu::ComputePass<'_>) {
    let mut pipeline = None;
    for command in commands {
        if pipeline != Some(command.pipeline) {
            pass.set_pipeline(&command.raw);
            pipeline = Some(command.pipeline);
        }
        pass.set_bind_group(0, &command.bind_group, &[command.params_offset]);
        pass.dispatch_workgroups(command.grid.0, command.grid.1, 1);
    }
}

/// Maximum storage buffers of a dispatch.
const BINDINGS_MAX: usize = 8;
/// Slots of the params arena, and maximum cached programs.
pub(crate) const PARAMS_SLOTS: u32 = 4096;
const PROGRAMS_MAX: usize = 256;

/// Cached objects that recording creates and replaying reuses.
#[derive(Default)]
pub(crate) struct Recordings {
    pub(crate) pipelines: Pipelines,
    programs: HashMap<BatchShape, Arc<Program>>,
    bind_groups: HashMap<(Vec<Access>, Vec<u32>), wgpu::BindGroup>,
    params: HashMap<Vec<u8>, u32>,
    /// Bytes of new params slots that are not uploaded yet.
    fresh: Vec<u8>,
}

impl Recordings {
    /// Drops everything that refers to buffers of the pool; compiled kernels are kept.
    pub(crate) fn clear(&mut self) {
        self.programs.clear();
        self.bind_groups.clear();
        self.params.clear();
        self.fresh.clear();
    }

    /// Returns the program of `shape`, recording it if it is new.
    pub(crate) fn program(
        &mut self,
        gpu: &Gpu,
        plan: &Plan,
        capacity: &Capacity,
        arena: &Arena,
        shape: &BatchShape,
    ) -> Result<Arc<Program>, BackendError> {
        debug_assert!(
            shape.tokens <= capacity.tokens_max && shape.sequences <= capacity.sequences_max,
            "{shape:?}"
        );
        if let Some(program) = self.programs.get(shape) {
            return Ok(Arc::clone(program));
        }
        if self.programs.len() >= PROGRAMS_MAX || self.params.len() as u32 >= PARAMS_SLOTS / 2 {
            // Queue order makes this safe: a slot is overwritten only after every batch submitted so far has read it.
            self.clear();
        }
        let first_slot = self.params.len() as u64;
        let mut recorder = Recorder::new(gpu, plan, capacity, arena, shape, self);
        let outcome = recorder.record();
        let commands = recorder.commands;
        if !self.fresh.is_empty() {
            gpu.queue.write_buffer(
                &arena.params.raw,
                first_slot * u64::from(PARAMS_SLOT_BYTES),
                &self.fresh,
            );
            self.fresh.clear();
        }
        outcome?;
        gpu.errors.check()?;
        let program = Arc::new(Program { commands });
        self.programs.insert(shape.clone(), Arc::clone(&program));
        Ok(program)
    }

    /// Adds the kernels of `shape` to `wanted`, with how they use their buffers, and compiles and creates nothing.
    pub(crate) fn collect(
        &mut self,
        gpu: &Gpu,
        plan: &Plan,
        capacity: &Capacity,
        arena: &Arena,
        shape: &BatchShape,
        wanted: &mut Wanted,
    ) -> Result<(), BackendError> {
        let mut recorder = Recorder::new(gpu, plan, capacity, arena, shape, self);
        recorder.wanted = Some(wanted);
        recorder.record()
    }

    fn params_offset(&mut self, bytes: &[u8]) -> Result<u32, BackendError> {
        assert!(
            bytes.len() <= PARAMS_SLOT_BYTES as usize,
            "params fit a slot"
        );
        let slots = u32::try_from(self.params.len()).expect("the arena has few slots");
        let slot = match self.params.get(bytes) {
            Some(slot) => *slot,
            None if slots == PARAMS_SLOTS => {
                let (what, message) = (
                    "a batch with so many dispatches",
                    format!("at most {PARAMS_SLOTS} sets of params"),
                );
                return Err(BackendError::Unsupported {
                    what: what.into(),
                    message,
                });
            }
            None => {
                self.params.insert(bytes.to_vec(), slots);
                self.fresh.extend_from_slice(bytes);
                self.fresh.resize(
                    self.fresh
                        .len()
                        .next_multiple_of(PARAMS_SLOT_BYTES as usize),
                    0,
                );
                slots
            }
        };
        Ok(slot * PARAMS_SLOT_BYTES)
    }
}

/// Records the steps of one batch shape.
pub(crate) struct Recorder<'a> {
    gpu: &'a Gpu,
    /// The loaded plan.
    pub(crate) plan: &'a Plan,
    /// The capacity that the buffers were allocated for.
    pub(crate) capacity: &'a Capacity,
    /// The buffers.
    pub(crate) arena: &'a Arena,
    /// The shape of the batch.
    pub(crate) shape: &'a BatchShape,
    /// Tier, class and limits.
    pub(crate) profile: &'a Profile,
    /// The run of the tail being recorded; all logits rows while the body is recorded.
    pub(crate) group: SampleGroup,
    commands: Vec<Command>,
    recordings: &'a mut Recordings,
    /// Where kernels are only listed, not compiled.
    wanted: Option<&'a mut Wanted>,
    /// The steps being recorded; several if they are fused. Their dispatches may bind only the operands of the plan
    /// that they declare.
    running: &'a [Step],
}

impl<'a> Recorder<'a> {
    fn new(
        gpu: &'a Gpu,
        plan: &'a Plan,
        capacity: &'a Capacity,
        arena: &'a Arena,
        shape: &'a BatchShape,
        recordings: &'a mut Recordings,
    ) -> Self {
        Self {
            gpu,
            plan: plan.part(shape.part),
            capacity,
            arena,
            shape,
            profile: &gpu.profile,
            group: SampleGroup::default(),
            commands: Vec::new(),
            recordings,
            wanted: None,
            running: &[],
        }
    }

    fn record(&mut self) -> Result<(), BackendError> {
        let plan = self.plan;
        self.group = SampleGroup {
            logits_rows: self.shape.logits_rows,
            ..SampleGroup::default()
        };
        self.steps(&plan.body)?;
        for group in &self.shape.sample_groups {
            self.group = *group;
            self.steps(plan.tail(Tail::Sample))?;
        }
        if self.shape.pools > 0 {
            self.steps(plan.tail(Tail::Pool))?;
        }
        Ok(())
    }

    fn steps(&mut self, mut steps: &'a [Step]) -> Result<(), BackendError> {
        while let Some(first) = steps.first() {
            let mut taken = 1;
            let first_command = self.commands.len();
            if let Some(fused) = fuse::find(self.plan, steps) {
                self.running = &steps[..fused.steps()];
                if matmul::encode_fused(self, &fused)? {
                    taken = fused.steps();
                }
            }
            if taken == 1 {
                self.running = &steps[..1];
                self.step(first)?;
            }
            self.share_work(first_command);
            steps = &steps[taken..];
        }
        Ok(())
    }

    /// Divides the work of the running steps among their dispatches, from the given one on, by workgroups.
    fn share_work(&mut self, first_command: usize) {
        let (plan, tokens, samples) = (self.plan, self.shape.tokens, self.group.logits_rows);
        let work = |step| StepWork::of(plan, step, tokens, samples, self.capacity.kv_format);
        let work = self
            .running
            .iter()
            .map(work)
            .fold(StepWork::default(), StepWork::with);
        let commands = &mut self.commands[first_command..];
        let all: f64 = commands.iter().map(workgroups).sum();
        for command in commands {
            command.work = work.share(workgroups(command) / all);
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), BackendError> {
        match step {
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

    /// Number of rows of `buffer` in this batch, or in this run of the tail.
    pub(crate) fn rows(&self, buffer: BufferId) -> u32 {
        self.plan
            .buffer_spec(buffer)
            .rows
            .count(self.shape.tokens, self.group.logits_rows)
    }

    /// A row buffer of the step.
    pub(crate) fn row_buffer(&self, id: BufferId) -> &'a GpuBuffer {
        debug_assert!(
            self.running
                .iter()
                .flat_map(Step::buffers)
                .any(|(named, _)| named == id)
        );
        self.arena.row_buffer(id)
    }

    /// A weight of the step.
    pub(crate) fn weight(&self, id: WeightId) -> &'a DeviceWeight {
        debug_assert!(self.running.iter().any(|step| step.weights().contains(&id)));
        self.arena.weight(id)
    }

    /// The buffer of a vector of the step (f32, one row), which always has a single shard.
    pub(crate) fn vector(&self, id: WeightId) -> &'a GpuBuffer {
        let [shard] = &self.weight(id).shards[..] else {
            unreachable!("a vector fits one binding")
        };
        &shard.buffer
    }

    /// The same of a vector that the step may lack: then a buffer that can be bound, but is not read.
    pub(crate) fn optional_vector(&self, id: Option<WeightId>) -> &'a GpuBuffer {
        id.map_or(&self.arena.metadata, |id| self.vector(id))
    }

    /// Columns of `buffer`.
    pub(crate) fn columns(&self, buffer: BufferId) -> u32 {
        self.plan.buffer_spec(buffer).columns
    }

    /// `kernel` with `SUBGROUPS` defined if the tier has subgroup operations.
    pub(crate) fn tiered(&self, kernel: Kernel) -> Kernel {
        kernel.define_if(self.profile.tier >= Tier::T1, "SUBGROUPS")
    }

    /// Whether to bind images. A buffer may still have one from before the driver rejected a kernel that reads images.
    fn access(&self, binding: &Binding<'_>) -> Access {
        match binding.access {
            Access::Texels if !self.profile.texels => Access::Read,
            access => access,
        }
    }

    /// Adds one dispatch of `workgroups` workgroups, or none if `workgroups` is 0.
    pub(crate) fn dispatch<P: Pod>(
        &mut self,
        kernel: &Kernel,
        params: &P,
        bindings: &[Binding<'_>],
        workgroups: u32,
    ) -> Result<(), BackendError> {
        if workgroups == 0 {
            return Ok(());
        }
        debug_assert!(
            bindings.len() <= BINDINGS_MAX,
            "{kernel}: WebGPU promises {BINDINGS_MAX} storage buffers"
        );
        let gpu = self.gpu;
        let access: Vec<Access> = bindings
            .iter()
            .map(|binding| self.access(binding))
            .collect();
        if let Some(wanted) = &mut self.wanted {
            if !wanted.contains_key(kernel) {
                wanted.insert(kernel.clone(), access);
            }
            return Ok(());
        }
        let pipeline = self.recordings.pipelines.get(gpu, kernel, &access)?;
        let params_offset = self.recordings.params_offset(bytemuck::bytes_of(params))?;
        let ids = bindings.iter().map(|binding| binding.buffer.id).collect();
        let params_buffer = &self.arena.params.raw;
        let bind_group = self
            .recordings
            .bind_groups
            .entry((access.clone(), ids))
            .or_insert_with(|| bind_group(gpu, &pipeline.layout, params_buffer, bindings, &access))
            .clone();
        let grid = spread(workgroups);
        let (pipeline, raw) = (pipeline.id, pipeline.raw);
        self.commands.push(Command {
            pipeline,
            raw,
            bind_group,
            params_offset,
            grid,
            work: StepWork::default(),
        });
        Ok(())
    }
}

fn workgroups(command: &Command) -> f64 {
    f64::from(command.grid.0) * f64::from(command.grid.1)
}

fn bind_group(
    gpu: &Gpu,
    layout: &wgpu::BindGroupLayout,
    params: &wgpu::Buffer,
    bindings: &[Binding<'_>],
    access: &[Access],
) -> wgpu::BindGroup {
    debug_assert_eq!(
        bindings.len(),
        access.len(),
        "every binding has its kind of access"
    );
    let params = wgpu::BufferBinding {
        buffer: params,
        offset: 0,
        size: wgpu::BufferSize::new(u64::from(PARAMS_SLOT_BYTES)),
    };
    let mut entries = vec![wgpu::BindGroupEntry {
        binding: 0,
        resource: wgpu::BindingResource::Buffer(params),
    }];
    entries.extend(
        (1..)
            .zip(bindings.iter().zip(access))
            .map(|(binding, (bound, access))| {
                let resource = match (access, &bound.buffer.texels) {
                    (Access::Texels, Some(view)) => wgpu::BindingResource::TextureView(view),
                    _ => bound.buffer.raw.as_entire_binding(),
                };
                wgpu::BindGroupEntry { binding, resource }
            }),
    );
    gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout,
        entries: &entries,
    })
}

/// What is added to every weight of a norm.
pub(crate) fn weight_offset(one_plus: bool) -> f32 {
    if one_plus { 1.0 } else { 0.0 }
}

/// A grid of at least `workgroups` workgroups whose sides are within WebGPU's limit.
pub(crate) fn spread(workgroups: u32) -> (u32, u32) {
    const SIDE_MAX: u32 = 65_535;
    let y = workgroups.div_ceil(SIDE_MAX);
    debug_assert!(
        y <= SIDE_MAX,
        "{workgroups} workgroups exceed the largest grid"
    );
    (workgroups.div_ceil(y.max(1)), y)
}

/// Number of 4-element vectors per row; row buffers are read in such vectors.
pub(crate) fn vectors_of(step: &str, columns: u32) -> Result<u32, BackendError> {
    if columns.is_multiple_of(4) {
        return Ok(columns / 4);
    }
    Err(BackendError::columns(step, columns, 4))
}
