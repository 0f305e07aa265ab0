//! Runs plans on any GPU: WGSL through wgpu, natively (Vulkan, Metal, DX12) and in a browser (WebGPU).
//!
//! [`WgpuBackend`] opens an adapter ([`device`]) and allocates every buffer once ([`arena`]). For each batch, it writes
//! one metadata buffer ([`metadata`]), replays a recorded program in one compute pass and one submission ([`encode`]),
//! and copies the sampled ids into a ring of mapped buffers ([`readback`]). Kernels are compiled before the first
//! request, or on first use ([`pipelines`]), from preprocessed WGSL ([`preprocess`]). Two batches may be in flight:
//! uploads are ordered with the submissions on the queue, so only the readback needs a ring.
//!
//! The backend handles plans and batches; it does not depend on requests, sequences, checkpoints or text.

#[cfg(target_arch = "wasm32")]
mod ahead;
pub(crate) mod arena;
pub mod bench;
mod copies;
pub(crate) mod device;
pub(crate) mod encode;
mod facts;
mod hardware;
mod inspect;
mod matrices;
mod matrices_check;
#[cfg(not(target_arch = "wasm32"))]
mod pipeline_cache;
pub(crate) mod pipelines;
pub(crate) mod preprocess;
pub(crate) mod readback;
mod side;
mod single;
#[cfg(any(target_os = "linux", target_os = "android", windows))]
pub(crate) mod spirv;
#[cfg(test)]
mod tests;
mod texels;
#[cfg(not(target_arch = "wasm32"))]
mod tune;

pub use device::{
    AdapterReport, Class, FXC, FXC_IS_SLOW, Int8Activations, Tier, Tuning, WgpuOptions,
    exclude_vulkan,
};
pub use encode::{Variant, variants};
pub use readback::Ticket;
#[cfg(not(target_arch = "wasm32"))]
pub use tune::{Choices, choices};

use super::layout::{Layout, PoolLayout};
use super::throttle::{self, Load, Throttle};
use super::{Allocation, Backend, BackendError, BlockRef, Capacity, Caps, SideBuffers};
use super::{metadata, warm_up};
use crate::plan::inputs::{BatchInputs, Results};
use crate::plan::work::{Reach, StepWork, Work};
use crate::plan::{Plan, Step, Storage, WeightId};
use crate::platform;
use arena::{Arena, SideBytes};
use bytes::Bytes;
use copies::{Saves, Staging};
use device::{Gpu, Profile};
use encode::{BatchShape, Recordings, pool};
use futures_util::FutureExt as _;
use pipelines::Wanted;
use readback::{Counts, Ring};
use std::collections::HashMap;
use std::sync::Arc;

/// Shader texts by stem, with imported files under `common/`, for the tests of `shaders/`.
pub fn shader_sources() -> &'static [(&'static str, &'static str)] {
    preprocess::SOURCES
}

/// A batch that is ready to be submitted.
struct Prepared {
    shape: BatchShape,
    program: Arc<encode::Program>,
    reach: Vec<Reach>,
}

/// A plan with its buffers.
struct LoadedPlan {
    plan: Arc<Plan>,
    capacity: Capacity,
    arena: Arena,
    ring: Ring,
    staging: Staging,
}

/// A [`Backend`] that runs WGSL kernels.
pub struct WgpuBackend {
    options: WgpuOptions,
    caps: Caps,
    gpu: Gpu,
    recordings: Recordings,
    loaded: Option<LoadedPlan>,
    throttle: Throttle,
    /// Dispatches of the last batch, once there was one.
    dispatches: Option<u32>,
    /// Metadata words of the batch being submitted; kept to reuse the allocation.
    words: Vec<u32>,
    /// Kernels that compile behind other work.
    #[cfg(target_arch = "wasm32")]
    ahead: ahead::Ahead,
}

impl WgpuBackend {
    /// Opens the adapter that `options` name, or the best GPU; fails with [`BackendError::Unavailable`].
    pub async fn open(options: &WgpuOptions) -> Result<Self, BackendError> {
        let gpu = Gpu::open(options).await?;
        let caps = caps(&gpu);
        let mut recordings = Recordings::default();
        restore_cache(&gpu, options, &mut recordings);
        let options = options.clone();
        let caps_of_submissions = if cfg!(target_arch = "wasm32") {
            throttle::TAB
        } else {
            throttle::NATIVE
        };
        let is_watched = gpu.profile.class != Class::Software;
        let (throttle, words) = (
            Throttle::new(is_watched.then_some(caps_of_submissions)),
            Vec::new(),
        );
        let mut backend = Self {
            options,
            caps,
            gpu,
            recordings,
            loaded: None,
            throttle,
            dispatches: None,
            words,
            #[cfg(target_arch = "wasm32")]
            ahead: ahead::Ahead::default(),
        };
        backend.check_matrices().await?;
        Ok(backend)
    }

    /// All adapters, in the order of [`WgpuOptions::adapter`]. Empty in a browser, which cannot list adapters.
    pub fn adapters() -> Vec<AdapterReport> {
        device::reports().now_or_never().unwrap_or_default()
    }

    fn loaded(&self) -> Result<&LoadedPlan, BackendError> {
        self.loaded.as_ref().ok_or_else(BackendError::not_loaded)
    }

    /// Flattens a batch and returns its program.
    fn prepare(&mut self, inputs: &BatchInputs) -> Result<Prepared, BackendError> {
        self.or_portable(|backend| backend.find_program(inputs))
    }

    /// Does what may need new kernels. If the driver rejects one of them, those of a lower tier are used from then on,
    /// on this device and on those that replace it.
    fn or_portable<T>(
        &mut self,
        mut work: impl FnMut(&mut Self) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        loop {
            match (work(self), self.gpu.profile.tier.lower()) {
                (Err(error @ BackendError::Kernel { .. }), Some(tier)) => {
                    tracing::warn!("{error}; continuing with the kernels of tier {tier:?}");
                    self.restrict(tier);
                }
                (outcome, _) => return outcome,
            }
        }
    }

    /// Uses only kernels of this tier from now on.
    fn restrict(&mut self, tier: Tier) {
        self.options.tier = Some(tier);
        self.gpu.profile.restrict(tier);
        self.caps = caps(&self.gpu);
        self.recordings.clear();
    }

    fn find_program(&mut self, inputs: &BatchInputs) -> Result<Prepared, BackendError> {
        let loaded = self.loaded.as_ref().ok_or_else(BackendError::not_loaded)?;
        let (gpu, arena) = (&self.gpu, &loaded.arena);
        let context = metadata::Context {
            plan: &loaded.plan,
            capacity: &loaded.capacity,
            blocks: &arena.blocks,
        };
        let mut shape = encode::flatten(
            &context,
            &gpu.profile,
            inputs,
            arena.group_rows,
            &mut self.words,
        )?;
        let reach = Reach::of(&loaded.plan, inputs);
        shape.attend_slices = self
            .throttle
            .slices(shape.tokens, longest_attention(loaded, &shape, &reach));
        let program =
            self.recordings
                .program(gpu, &loaded.plan, &loaded.capacity, arena, &shape)?;
        Ok(Prepared {
            shape,
            program,
            reach,
        })
    }

    /// Compiles the kernels that batches of the plan may need: all of them, but in a browser only those that most
    /// requests need.
    fn compile(&mut self, progress: &mut dyn FnMut(u32, u32)) -> Result<(), BackendError> {
        #[cfg(not(target_arch = "wasm32"))]
        let wanted = self.wanted(|plan, capacity, blocks| {
            [
                warm_up::usual_kinds(plan, capacity, blocks),
                warm_up::rare_kinds(plan, capacity),
            ]
            .concat()
        })?;
        #[cfg(target_arch = "wasm32")]
        let wanted = self.wanted(warm_up::usual_kinds)?;
        self.recordings
            .pipelines
            .compile(&self.gpu, wanted, progress)
    }

    /// The kernels that these batches need.
    fn wanted(
        &mut self,
        kinds: impl Fn(&Plan, &Capacity, &[u32]) -> Vec<BatchInputs>,
    ) -> Result<Wanted, BackendError> {
        let loaded = self.loaded.as_ref().ok_or_else(BackendError::not_loaded)?;
        let (gpu, arena) = (&self.gpu, &loaded.arena);
        let context = metadata::Context {
            plan: &loaded.plan,
            capacity: &loaded.capacity,
            blocks: &arena.blocks,
        };
        let mut wanted = HashMap::new();
        for inputs in kinds(&loaded.plan, &loaded.capacity, &arena.blocks) {
            let shape = encode::flatten(
                &context,
                &gpu.profile,
                &inputs,
                arena.group_rows,
                &mut self.words,
            )?;
            self.recordings.collect(
                gpu,
                &loaded.plan,
                &loaded.capacity,
                arena,
                &shape,
                &mut wanted,
            )?;
        }
        Ok(wanted)
    }

    /// Runs a small and a larger batch, so that the time of the first request's batches can be predicted.
    #[cfg(not(target_arch = "wasm32"))]
    fn calibrate(&mut self) -> Result<(), BackendError> {
        let loaded = self.loaded()?;
        for inputs in warm_up::calibration(&loaded.plan, &loaded.capacity) {
            // The first run of a kernel may take longer than the later ones.
            for _ in 0..2 {
                let ticket = self.submit(&inputs)?;
                platform::block_on(self.read(ticket))?;
            }
        }
        Ok(())
    }
}

/// A browser cannot wait for a batch here, and has no folder.
#[cfg(target_arch = "wasm32")]
impl WgpuBackend {
    fn calibrate(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    fn recall_tuning(&mut self) -> bool {
        true
    }

    fn tune(&mut self) -> Result<bool, BackendError> {
        Ok(false)
    }
}

impl Backend for WgpuBackend {
    type Ticket = Ticket;
    type Saves = Saves;

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn load(&mut self, plan: Arc<Plan>, capacity: &Capacity) -> Result<(), BackendError> {
        self.gpu.errors.check()?;
        self.recordings.clear();
        self.loaded = None;
        let layout = Layout::checked(&plan, capacity, &self.caps)?;
        let side = SideBytes::new(&plan, capacity, &self.gpu.profile);
        let arena = Arena::new(&self.gpu, &plan, &layout, &side)?;
        let ring = Ring::new(
            &self.gpu,
            capacity.samples_max,
            pool::words_max(&plan, capacity),
        );
        self.gpu.errors.check()?;
        self.loaded = Some(LoadedPlan {
            plan,
            capacity: capacity.clone(),
            arena,
            ring,
            staging: Staging::default(),
        });
        Ok(())
    }

    fn write_weight(
        &mut self,
        weight: WeightId,
        first_row: u32,
        rows: Bytes,
    ) -> Result<(), BackendError> {
        let loaded = self.loaded.as_mut().ok_or_else(BackendError::not_loaded)?;
        let spec = loaded.plan.weights.get(weight.0 as usize);
        let spec = spec.ok_or_else(|| BackendError::no_weight(weight))?;
        loaded
            .arena
            .write_weight(&self.gpu, spec, weight, first_row, &rows)
    }

    fn allocate_pool(&mut self, blocks: &[u32]) -> Result<(), BackendError> {
        self.recordings.clear();
        let loaded = self.loaded.as_mut().ok_or_else(BackendError::not_loaded)?;
        let layout = PoolLayout::checked(&loaded.plan, &loaded.capacity, &self.caps, blocks)?;
        loaded.arena.allocate_pool(&self.gpu, &layout, blocks)?;
        #[cfg(target_arch = "wasm32")]
        {
            let wanted = self.wanted(warm_up::usual_kinds)?;
            self.ahead = ahead::Ahead::default();
            self.ahead.ask(&self.gpu, &wanted);
        }
        Ok(())
    }

    async fn warm_up(&mut self, progress: &mut dyn FnMut(u32, u32)) -> Result<(), BackendError> {
        let is_tuned = self.recall_tuning();
        #[cfg(target_arch = "wasm32")]
        self.ahead.wait(progress).await;
        self.or_portable(|backend| backend.compile(progress))?;
        // The others compile while the first requests are answered.
        #[cfg(target_arch = "wasm32")]
        {
            let wanted = self.wanted(|plan, capacity, _| warm_up::rare_kinds(plan, capacity))?;
            self.ahead.ask_in_turn(&self.gpu, wanted);
        }
        if self.throttle.is_on() {
            self.calibrate()?;
        }
        if !is_tuned && self.tune()? {
            self.or_portable(|backend| backend.compile(progress))?;
        }
        store_cache(&self.gpu, &self.options, &self.recordings);
        Ok(())
    }

    fn submit(&mut self, inputs: &BatchInputs) -> Result<Ticket, BackendError> {
        self.gpu.errors.check()?;
        let Prepared {
            shape,
            program,
            reach,
        } = self.prepare(inputs)?;
        self.dispatches = Some(program.len());
        let loaded = self.loaded.as_mut().ok_or_else(BackendError::not_loaded)?;
        let samples = shape.sample_groups.iter().map(|group| group.samples).sum();
        let stride = metadata::result_stride(inputs);
        let counts = Counts {
            samples,
            stride,
            pools: shape.pools,
            columns: loaded.plan.pooled_columns(),
        };
        let slot = loaded.ring.reserve()?;
        let gpu = &self.gpu;
        gpu.queue.write_buffer(
            &loaded.arena.metadata.raw,
            0,
            bytemuck::cast_slice(&self.words),
        );
        let commands = program.commands();
        let load = Load {
            tokens: shape.tokens,
            work: commands.iter().map(|command| command.work.at(&reach)).sum(),
        };
        let mut parts = self
            .throttle
            .cut(commands, shape.tokens, |command| command.work.at(&reach))
            .peekable();
        loop {
            let part = parts.next().unwrap_or_default();
            let mut encoder = gpu
                .device
                .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            encode::replay(
                part,
                &mut encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default()),
            );
            if parts.peek().is_some() {
                gpu.queue.submit([encoder.finish()]);
                continue;
            }
            loaded.ring.copy(slot, &mut encoder, &loaded.arena, counts);
            let submission = gpu.queue.submit([encoder.finish()]);
            // Before the slot is taken: nobody would read a failed batch, and thus free it.
            gpu.errors.check()?;
            return Ok(loaded.ring.map(slot, submission, inputs, counts, load));
        }
    }

    async fn settle(&mut self) -> Result<(), BackendError> {
        self.gpu.settle().await
    }

    fn token_budget_hint(&self) -> Option<u32> {
        self.throttle.tokens_max()
    }

    fn dispatches(&self) -> Option<u32> {
        self.dispatches
    }

    async fn read(&mut self, ticket: Ticket) -> Result<Results, BackendError> {
        let loaded = self.loaded.as_mut().ok_or_else(BackendError::not_loaded)?;
        let (load, submitted) = (ticket.load, ticket.submitted);
        let results = loaded.ring.read(&self.gpu, ticket).await?;
        self.throttle.note(load, submitted.elapsed());
        Ok(results)
    }

    fn save_blocks(&mut self, blocks: &[BlockRef]) -> Result<Saves, BackendError> {
        let loaded = self.loaded.as_mut().ok_or_else(BackendError::not_loaded)?;
        loaded.save_blocks(&self.gpu, blocks)
    }

    async fn saved_blocks(&mut self, saves: Saves) -> Result<Vec<Bytes>, BackendError> {
        let loaded = self.loaded.as_mut().ok_or_else(BackendError::not_loaded)?;
        loaded.saved_blocks(&self.gpu, saves).await
    }

    fn restore_blocks(&mut self, blocks: &[(BlockRef, Bytes)]) -> Result<(), BackendError> {
        self.loaded()?.restore_blocks(&self.gpu, blocks)
    }

    async fn reset(&mut self) -> Result<(), BackendError> {
        self.loaded = None;
        self.throttle.note_loss();
        self.recordings = Recordings::default();
        self.gpu.device.destroy();
        self.gpu = Gpu::open(&self.options).await?;
        self.caps = caps(&self.gpu);
        restore_cache(&self.gpu, &self.options, &mut self.recordings);
        Ok(())
    }
}

/// The work of the layer whose attention takes longest.
fn longest_attention(loaded: &LoadedPlan, shape: &BatchShape, reach: &[Reach]) -> Work {
    let plan = loaded.plan.part(shape.part);
    let kv_format = loaded.capacity.kv_format;
    let attends = plan
        .body
        .iter()
        .filter(|step| matches!(step, Step::AttendPaged(_)));
    attends
        .map(|step| StepWork::of(plan, step, shape.tokens, shape.logits_rows, kv_format).at(reach))
        .fold(Work::default(), |longest, other| {
            if other.operations > longest.operations {
                other
            } else {
                longest
            }
        })
}

fn caps(gpu: &Gpu) -> Caps {
    let (low, high) = (gpu.info.subgroup_min_size, gpu.info.subgroup_max_size);
    let tier = match gpu.profile.tier {
        Tier::T0 => "T0".into(),
        Tier::T1 => format!("T1 (subgroups {low}..{high})"),
        Tier::T2 => format!("T2 (matrices, subgroups {low}..{high})"),
    };
    let class = match gpu.profile.class {
        class if class == Class::of(device::profile_kind(&gpu.info)) => String::new(),
        forced => format!(
            ", kernels of the {} class",
            format!("{forced:?}").to_lowercase()
        ),
    };
    let tuned = tuned(gpu.profile.tuning);
    let bytes = if gpu.profile.int8_activations {
        ", activations in bytes"
    } else {
        ""
    };
    let kind = device::profile_kind(&gpu.info);
    Caps {
        name: gpu.info.name.clone(),
        api: device::api_name(gpu.info.backend),
        kind,
        tier: tier + bytes + &class + &tuned,
        activations: Storage::F32,
        int8_activations: gpu.profile.int8_activations,
        half_products: gpu.profile.matrices.is_some(),
        binding_bytes_max: gpu.profile.binding_bytes_max,
        memory_bytes: gpu.memory.map(|(bytes, _)| bytes),
        memory_source: gpu.memory.map_or("", |(_, source)| source),
        // A tab's own memory is not where the browser keeps buffers.
        machine_bytes: (kind.shares_memory() && !cfg!(target_arch = "wasm32"))
            .then(platform::memory_available)
            .flatten(),
        allocation: allocation(&gpu.profile),
    }
}

/// What was measured to be better than usual, for display.
fn tuned(tuning: Tuning) -> String {
    let usual = Tuning::USUAL;
    let numbers = [
        (
            "workgroups of products per core",
            tuning.product_workgroups,
            usual.product_workgroups,
        ),
        (
            "outputs at once",
            tuning.product_outputs,
            usual.product_outputs,
        ),
        ("rows of a tile", tuning.tile_rows, usual.tile_rows),
        ("rows without matrices", tuning.few_rows, usual.few_rows),
        (
            "workgroups of attention per core",
            tuning.attention_workgroups,
            usual.attention_workgroups,
        ),
    ];
    let changed = numbers
        .into_iter()
        .filter(|(_, number, usual)| number != usual);
    let mut changed: Vec<String> = changed
        .map(|(what, number, _)| format!("{number} {what}"))
        .collect();
    if tuning.matrices == 0 {
        changed.push("no matrices".to_owned());
    }
    if changed.is_empty() {
        String::new()
    } else {
        format!(", tuned: {}", changed.join(", "))
    }
}

/// The allocation of a typical discrete GPU with this binding limit, for a device that is not present.
pub fn usual_allocation(binding_bytes_max: u64) -> Allocation {
    allocation(&Profile {
        tier: Tier::T1,
        class: Class::Discrete,
        binding_bytes_max,
        buffer_bytes_max: binding_bytes_max,
        half_conversion: true,
        texels: false,
        subgroup_size_min: 32,
        matrices: None,
        cores: Class::Discrete.usual_cores(),
        int8_activations: false,
        tuning: Tuning::USUAL,
    })
}

fn allocation(profile: &Profile) -> Allocation {
    let buffer_bytes_max = profile.buffer_bytes_max;
    let profile = profile.clone();
    let side =
        SideBuffers::new(move |plan, capacity| SideBytes::new(plan, capacity, &profile).list());
    let (granule, kv_groups_max) = (arena::GRANULE, metadata::GROUPS_MAX);
    Allocation {
        granule,
        buffer_bytes_max,
        kv_groups_max,
        wide_vectors: true,
        side,
    }
}

#[cfg(not(target_arch = "wasm32"))]
fn restore_cache(gpu: &Gpu, options: &WgpuOptions, recordings: &mut Recordings) {
    recordings.pipelines.cache = pipeline_cache::restore(gpu, options);
}

#[cfg(target_arch = "wasm32")]
fn restore_cache(_gpu: &Gpu, _options: &WgpuOptions, _recordings: &mut Recordings) {}

#[cfg(not(target_arch = "wasm32"))]
fn store_cache(gpu: &Gpu, options: &WgpuOptions, recordings: &Recordings) {
    if let Some(cache) = &recordings.pipelines.cache {
        pipeline_cache::store(gpu, options, cache);
    }
}

#[cfg(target_arch = "wasm32")]
fn store_cache(_gpu: &Gpu, _options: &WgpuOptions, _recordings: &Recordings) {}
