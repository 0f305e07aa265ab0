//! Baselines of an adapter for `folio bench`: its measured peaks, and attention without a paged kernel.
//!
//! Nothing here runs in an engine. Kernels are `shaders/bench_*.wgsl`; each is timed as a whole submission, best of a
//! few, with enough work that the cost of submitting is negligible.

use super::super::{BackendError, Peaks};
use super::device::{Gpu, WgpuOptions};
use super::matrices::{self, Matrices};
use super::single::{self, Dispatch};
use super::texels;
use crate::platform::Instant;

/// Timed submissions: as many as fit this time, within these bounds; the best one counts. On a busy machine, fewer
/// submissions than the kernel under test gets would be an unfair comparison.
const ATTEMPTS: std::ops::Range<u32> = 5..50;
const SECONDS: f64 = 0.4;
/// The same, if an estimate is enough.
const SECONDS_BRIEF: f64 = 0.05;
/// Bytes of the buffers that bandwidth is measured on: well beyond the size of caches, if the binding limit allows.
const BYTES_MAX: u64 = 512 << 20;
/// Half-precision 1.0, twice: the contents of the baseline's V.
const ONES: u32 = 0x3c00_3c00;

/// The shape of one decode step of one layer over a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttendShape {
    /// Number of sequences, with one query row each.
    pub batch: u32,
    /// Keys per sequence; a whole number of blocks.
    pub context: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// Number of query heads.
    pub query_heads: u32,
    /// Number of KV heads.
    pub kv_heads: u32,
    /// Elements per head; a multiple of 8.
    pub head_dim: u32,
}

impl AttendShape {
    /// Number of blocks of all sequences.
    fn blocks(&self) -> u32 {
        self.batch * (self.context / self.block_size)
    }

    /// Bytes of K and V together, in f16.
    pub fn kv_bytes(&self) -> u64 {
        4 * u64::from(self.batch)
            * u64::from(self.context)
            * u64::from(self.kv_heads)
            * u64::from(self.head_dim)
    }
}

/// Times of the gather-then-attend baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Baseline {
    /// Seconds to copy K and V out of the pool.
    pub gather_seconds: f64,
    /// Seconds for copy and attention together.
    pub total_seconds: f64,
}

/// An adapter opened for measurements.
pub struct Yardstick {
    gpu: Gpu,
    seconds: f64,
}

/// A buffer, and the image of the same bytes if kernels read images.
struct Region {
    buffer: wgpu::Buffer,
    texels: Option<wgpu::TextureView>,
}

impl Region {
    fn texels(&self) -> wgpu::BindingResource<'_> {
        let view = self
            .texels
            .as_ref()
            .expect("regions have images where the profile says so");
        wgpu::BindingResource::TextureView(view)
    }

    fn read(&self, texels: bool) -> wgpu::BindingResource<'_> {
        if texels {
            self.texels()
        } else {
            self.buffer.as_entire_binding()
        }
    }
}

impl Yardstick {
    /// Opens the adapter selected by the options.
    pub async fn open(options: &WgpuOptions) -> Result<Self, BackendError> {
        Ok(Self {
            gpu: Gpu::open(options).await?,
            seconds: SECONDS,
        })
    }

    /// Use fewer measurements, for estimates.
    pub fn brief(self) -> Self {
        Self {
            seconds: SECONDS_BRIEF,
            ..self
        }
    }

    /// Measures all three peaks; takes a few seconds.
    pub fn peaks(&self) -> Result<Peaks, BackendError> {
        // A power of two is a whole number of iterations of the kernels' loops.
        let bytes = 1 << self.gpu.profile.binding_bytes_max.min(BYTES_MAX).ilog2();
        let copy = self.bandwidth(
            "copy",
            include_str!("../../../shaders/bench_copy.wgsl"),
            bytes,
            false,
        )?;
        let copy = copy.max(self.transfer(bytes)?);
        let read = self.read_gbps(bytes)?;
        let fused = self.arithmetic("fma", include_str!("../../../shaders/bench_fma.wgsl"))?;
        let separate = self.arithmetic(
            "mul add",
            include_str!("../../../shaders/bench_mul_add.wgsl"),
        )?;
        let matrices = self
            .gpu
            .profile
            .matrices
            .map_or(Ok(0.0), |matrices| self.matrix_gflops(matrices))?;
        Ok(Peaks {
            copy_gbps: 2.0 * copy,
            read_gbps: read,
            fma_gflops: fused.max(separate).max(matrices),
        })
    }

    /// Read bandwidth of the best kernel, in 10⁹ bytes per second, on a buffer of at most `bytes_max` bytes.
    pub fn read_gbps(&self, bytes_max: u64) -> Result<f64, BackendError> {
        let bytes = 1 << self.gpu.profile.binding_bytes_max.min(bytes_max).ilog2();
        let read = self.bandwidth(
            "read",
            include_str!("../../../shaders/bench_read.wgsl"),
            bytes,
            false,
        )?;
        if !self.gpu.profile.texels {
            return Ok(read);
        }
        let text = include_str!("../../../shaders/bench_read_texel.wgsl");
        Ok(read.max(self.bandwidth("read texels", text, bytes, true)?))
    }

    /// Bandwidth of the API's copy command, in 10⁹ bytes per second; on some devices it is faster than any kernel.
    fn transfer(&self, bytes: u64) -> Result<f64, BackendError> {
        let (source, target) = (self.filled(bytes, 0x3f80_0001)?, self.filled(bytes, 0)?);
        let seconds = self.best_seconds(|encoder| {
            encoder.copy_buffer_to_buffer(&source.buffer, 0, &target.buffer, 0, bytes);
        })?;
        Ok(bytes as f64 / seconds / 1e9)
    }

    /// Source bytes, 10⁹ per second: the best over a few thread counts, as the best count differs by device.
    fn bandwidth(
        &self,
        name: &str,
        text: &str,
        bytes: u64,
        texels: bool,
    ) -> Result<f64, BackendError> {
        let (source, target) = (self.filled(bytes, 0x3f80_0001)?, self.filled(bytes, 0)?);
        let source = source.read(texels);
        let elements = u32::try_from(bytes / 16).expect("a binding holds less than 2³² elements");
        let mut best = f64::INFINITY;
        // An iteration processes eight elements per thread.
        for workgroups in [64, 512, 4096]
            .into_iter()
            .filter(|workgroups| workgroups * 256 * 8 <= elements)
        {
            let params = [elements, workgroups * 256];
            let bindings = [source.clone(), target.buffer.as_entire_binding()];
            let dispatch = single::dispatch(
                &self.gpu,
                name,
                text,
                &params,
                &bindings,
                [workgroups, 1, 1],
            )?;
            best = best.min(self.seconds(&[&dispatch])?);
        }
        Ok(bytes as f64 / best / 1e9)
    }

    /// Multiplications and additions, 10⁹ per second.
    fn arithmetic(&self, name: &str, text: &str) -> Result<f64, BackendError> {
        let (source, target) = (self.filled(256, 0x3f00_0000)?, self.filled(256, 0)?);
        self.operations(
            name,
            text,
            [&source, &target],
            1024,
            256.0 * 16.0 * 12.0 * 2.0,
        )
    }

    /// The same by cooperative matrices.
    fn matrix_gflops(&self, matrices: Matrices) -> Result<f64, BackendError> {
        let Matrices { height, size, .. } = matrices;
        let text = matrices.named_in(include_str!("../../../shaders/bench_matrices.wgsl"));
        let workgroups = 512;
        // Sums of as many subgroups as a workgroup can have.
        let sums = u64::from(workgroups) * u64::from(matrices::WORKGROUP / 4) * 256 * 4;
        let (source, target) = (self.filled(6 * 256 * 2, ONES)?, self.filled(sums, 0)?);
        let per_turn = 8.0 * 2.0 * f64::from(height * size * size);
        self.operations("matrices", &text, [&source, &target], workgroups, per_turn)
    }

    /// Operations, 10⁹ per second, of a kernel that does so many in a turn of a workgroup.
    fn operations(
        &self,
        name: &str,
        text: &str,
        [source, target]: [&Region; 2],
        workgroups: u32,
        per_turn: f64,
    ) -> Result<f64, BackendError> {
        // Iterations double until a submission takes long enough to be timed on this adapter.
        let mut turns = 32;
        loop {
            let bindings = [
                source.buffer.as_entire_binding(),
                target.buffer.as_entire_binding(),
            ];
            let dispatch = single::dispatch(
                &self.gpu,
                name,
                text,
                &[turns, 0],
                &bindings,
                [workgroups, 1, 1],
            )?;
            let seconds = self.seconds(&[&dispatch])?;
            if seconds > 0.1 || turns >= 1 << 20 {
                return Ok(f64::from(workgroups) * per_turn * f64::from(turns) / seconds / 1e9);
            }
            turns *= 2;
        }
    }

    /// Attention without a paged kernel: copies K and V of every sequence out of the pool, then computes scores,
    /// softmax and weighted values over blocks that are now contiguous.
    pub fn gather_then_attend(&self, shape: &AttendShape) -> Result<Baseline, BackendError> {
        assert_eq!(
            shape.context % shape.block_size,
            0,
            "the baseline copies whole blocks"
        );
        let half = shape.kv_bytes() / 2;
        let pools = [self.filled(half, ONES)?, self.filled(half, ONES)?];
        let gathered = [self.filled(half, 0)?, self.filled(half, 0)?];
        let kernel = self.gather_kernels(shape, &pools, &gathered)?;
        let by_kernel = self.seconds(&[&kernel[0], &kernel[1]])?;
        let by_transfer =
            self.best_seconds(|encoder| transfer_blocks(encoder, shape, &pools, &gathered))?;
        let rows = shape.batch * shape.query_heads;
        let out = self.filled(u64::from(rows) * u64::from(shape.head_dim) * 4, 0)?;
        let attend = self.attend_kernels(shape, &gathered, &out)?;
        let attend_seconds = self.seconds(&attend.iter().collect::<Vec<_>>())?;
        self.expect_ones(&out.buffer)?;
        let gather_seconds = by_kernel.min(by_transfer);
        Ok(Baseline {
            gather_seconds,
            total_seconds: gather_seconds + attend_seconds,
        })
    }

    fn gather_kernels(
        &self,
        shape: &AttendShape,
        pools: &[Region; 2],
        gathered: &[Region; 2],
    ) -> Result<[Dispatch; 2], BackendError> {
        let tables = self.filled(u64::from(shape.blocks()) * 4, 0)?;
        let scattered: Vec<u32> = (0..shape.blocks())
            .map(|index| scatter(index, shape.blocks()))
            .collect();
        self.gpu
            .queue
            .write_buffer(&tables.buffer, 0, bytemuck::cast_slice(&scattered));
        let params = [shape.kv_heads, shape.block_size * shape.head_dim / 8];
        let text = include_str!("../../../shaders/bench_gather_kv.wgsl");
        let half = |half: usize| {
            let bindings = [&tables, &pools[half], &gathered[half]]
                .map(|region| region.buffer.as_entire_binding());
            single::dispatch(
                &self.gpu,
                "gather",
                text,
                &params,
                &bindings,
                [shape.blocks(), shape.kv_heads, 1],
            )
        };
        Ok([half(0)?, half(1)?])
    }

    fn attend_kernels(
        &self,
        shape: &AttendShape,
        [keys, values]: &[Region; 2],
        out: &Region,
    ) -> Result<[Dispatch; 3], BackendError> {
        let texels = self.gpu.profile.texels;
        let (score_text, weigh_text) = if texels {
            let scores = include_str!("../../../shaders/bench_attend_scores_texel.wgsl");
            (
                scores,
                include_str!("../../../shaders/bench_attend_values_texel.wgsl"),
            )
        } else {
            let scores = include_str!("../../../shaders/bench_attend_scores.wgsl");
            (
                scores,
                include_str!("../../../shaders/bench_attend_values.wgsl"),
            )
        };
        let rows = shape.batch * shape.query_heads;
        let q = self.filled(u64::from(rows) * u64::from(shape.head_dim) * 4, 0x3e00_0000)?;
        let scores = self.filled(u64::from(rows) * u64::from(shape.context) * 4, 0)?;
        let written = scores.buffer.as_entire_binding();
        let chunks = shape.head_dim / 8;
        let block_shift = shape.block_size.trailing_zeros();
        let params = [
            shape.context,
            shape.query_heads,
            shape.kv_heads,
            chunks,
            rows,
            block_shift,
        ];
        let bindings = [q.read(texels), keys.read(texels), written.clone()];
        let grid = [shape.context.div_ceil(64), rows, 1];
        let score = single::dispatch(&self.gpu, "scores", score_text, &params, &bindings, grid)?;
        let text = include_str!("../../../shaders/bench_attend_softmax.wgsl");
        let softmax = single::dispatch(
            &self.gpu,
            "softmax",
            text,
            &params,
            &[written],
            [rows, 1, 1],
        )?;
        let bindings = [
            scores.read(texels),
            values.read(texels),
            out.buffer.as_entire_binding(),
        ];
        let grid = [(rows * chunks).div_ceil(64), 1, 1];
        let weigh = single::dispatch(&self.gpu, "values", weigh_text, &params, &bindings, grid)?;
        Ok([score, softmax, weigh])
    }

    /// Checks the baseline: V is all ones and weights sum to one, so every result must be one.
    fn expect_ones(&self, out: &wgpu::Buffer) -> Result<(), BackendError> {
        let values = single::read(&self.gpu, out)?;
        match values.iter().find(|value| (**value - 1.0).abs() > 1e-3) {
            Some(value) => Err(BackendError::Validation(format!(
                "the attention baseline gave {value}, not 1"
            ))),
            None => Ok(()),
        }
    }

    /// A buffer filled with `word`; its pages are touched now, so that page faults are not timed.
    fn filled(&self, bytes: u64, word: u32) -> Result<Region, BackendError> {
        let descriptor = wgpu::BufferDescriptor {
            label: Some("bench"),
            size: bytes,
            usage: wgpu::BufferUsages::STORAGE
                | wgpu::BufferUsages::COPY_DST
                | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        };
        let region = if self.gpu.profile.texels {
            let aliased = texels::create(&self.gpu.device, &descriptor).ok_or_else(|| {
                BackendError::OutOfMemory {
                    what: "bench".into(),
                    bytes,
                }
            })?;
            Region {
                buffer: aliased.buffer,
                texels: Some(aliased.texels),
            }
        } else {
            Region {
                buffer: self.gpu.device.create_buffer(&descriptor),
                texels: None,
            }
        };
        let chunk = vec![word; (bytes.min(16 << 20) / 4) as usize];
        let mut at = 0;
        while at < bytes {
            let length = (bytes - at).min(16 << 20) / 4;
            self.gpu.queue.write_buffer(
                &region.buffer,
                at,
                bytemuck::cast_slice(&chunk[..length as usize]),
            );
            at += length * 4;
        }
        Ok(region)
    }

    /// Seconds for one submission of these dispatches.
    fn seconds(&self, dispatches: &[&Dispatch]) -> Result<f64, BackendError> {
        self.best_seconds(|encoder| {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            for dispatch in dispatches {
                dispatch.record(&mut pass);
            }
        })
    }

    /// Seconds for one submission, the best of a few after a warm-up. Encoding is not timed.
    fn best_seconds(
        &self,
        encode: impl Fn(&mut wgpu::CommandEncoder),
    ) -> Result<f64, BackendError> {
        let mut best = f64::INFINITY;
        let begin = Instant::now();
        for attempt in 0..=ATTEMPTS.end {
            if attempt > ATTEMPTS.start && begin.elapsed().as_secs_f64() > self.seconds {
                break;
            }
            let mut encoder = self
                .gpu
                .device
                .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            encode(&mut encoder);
            let commands = encoder.finish();
            let start = Instant::now();
            self.gpu.queue.submit([commands]);
            self.gpu.wait()?;
            if attempt > 0 {
                best = best.min(start.elapsed().as_secs_f64());
            }
        }
        Ok(best)
    }
}

/// The gather by copy commands of the API, one per block.
fn transfer_blocks(
    encoder: &mut wgpu::CommandEncoder,
    shape: &AttendShape,
    pools: &[Region; 2],
    gathered: &[Region; 2],
) {
    let block_bytes = shape.kv_bytes() / 2 / u64::from(shape.blocks());
    let at = |block: u32| u64::from(block) * block_bytes;
    for (pool, gathered) in pools.iter().zip(gathered) {
        for index in 0..shape.blocks() {
            let source = at(scatter(index, shape.blocks()));
            encoder.copy_buffer_to_buffer(
                &pool.buffer,
                source,
                &gathered.buffer,
                at(index),
                block_bytes,
            );
        }
    }
}

/// A fixed block order in which consecutive blocks are not adjacent.
fn scatter(index: u32, blocks: u32) -> u32 {
    let stride = (1..)
        .map(|step| blocks / 2 + step)
        .find(|stride| gcd(*stride, blocks) == 1);
    let stride = stride.expect("every number has a coprime above its half");
    (u64::from(index) * u64::from(stride) % u64::from(blocks)) as u32
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
