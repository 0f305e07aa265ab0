//! Cooperative matrices: small products that a subgroup computes as one, on a GPU's matrix units.
//!
//! Products of many rows use them where Vulkan has them for halves with sums of f32 (`shaders/matmul_matrices.wgsl`).
//! wgpu calls them experimental, so a device that has them first computes a product whose result is known.

use super::super::{Backend as _, BackendError, Capacity, Inspect as _};
use super::WgpuBackend;
use super::device::Tier;
use crate::plan::inputs::{BatchInputs, SequenceRows};
use crate::plan::{KvFormat, MatMul, Plan, Rows, Step, Storage, WeightFormat};
use std::sync::Arc;

/// What [`Matrices`] need.
pub(crate) const FEATURES: wgpu::Features = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX
    .union(wgpu::Features::PASSTHROUGH_SHADERS)
    .union(wgpu::Features::SHADER_F16);

/// Workgroup memory of their kernels: more than WebGPU's default limit, less than any GPU with matrix units has.
pub(crate) const WORKGROUP_BYTES: u32 = 32 << 10;

/// The cooperative matrices of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Matrices {
    /// Rows and columns: 8 or 16.
    pub(crate) size: u32,
    /// Lanes that a subgroup of their kernels is expected to have. If it has another number, they take more passes.
    pub(crate) lanes: u32,
}

impl Matrices {
    /// Those of most GPUs.
    pub(crate) const USUAL: Self = Self { size: 16, lanes: 32 };

    /// Those of an adapter, if its kernels may use them.
    pub(crate) fn of(adapter: &wgpu::Adapter) -> Option<Self> {
        let (info, limits) = (adapter.get_info(), adapter.limits());
        let is_usable = cfg!(any(target_os = "linux", target_os = "android", windows))
            && info.backend == wgpu::Backend::Vulkan
            && adapter.features().contains(FEATURES)
            && limits.max_compute_workgroup_storage_size >= WORKGROUP_BYTES;
        if !is_usable {
            return None;
        }
        let halves = |found: &wgpu::CooperativeMatrixProperties| {
            let types = (found.ab_type, found.cr_type);
            types == (wgpu::CooperativeScalarType::F16, wgpu::CooperativeScalarType::F32)
        };
        let square = |found: wgpu::CooperativeMatrixProperties| {
            let sizes = [found.m_size, found.n_size, found.k_size];
            [16, 8].into_iter().find(|size| sizes == [*size; 3])
        };
        let size = adapter.cooperative_matrix_properties().into_iter().filter(halves).filter_map(square).max()?;
        Some(Self { size, lanes: expected_lanes(&info) })
    }
}

/// AMD's drivers choose between 32 and 64 lanes, and mostly choose 64; Intel's between 8 and 32.
fn expected_lanes(info: &wgpu::AdapterInfo) -> u32 {
    const AMD: u32 = 0x1002;
    let usual = if info.vendor == AMD { 64 } else { 32 };
    usual.clamp(info.subgroup_min_size, info.subgroup_max_size).clamp(8, 128)
}

const ROWS: u32 = 70;
const COLUMNS: u32 = 72;
const OUTPUTS: u32 = 150;

impl WgpuBackend {
    /// Computes a product of small integers, so that its result is known and no rounding can change it, with rows,
    /// columns and outputs that fill no tile. If the device computes it wrongly, its matrices are not used.
    pub(super) async fn check_matrices(&mut self) -> Result<(), BackendError> {
        if self.gpu.profile.matrices.is_none() {
            return Ok(());
        }
        let are_right = self.matrices_are_right().await;
        self.loaded = None;
        self.recordings.clear();
        match are_right {
            Ok(true) => return Ok(()),
            Ok(false) => tracing::warn!("{}: products of cooperative matrices are wrong", self.caps.name),
            Err(error) if error.is_loss() => return Err(error),
            Err(error) => tracing::warn!("{error}; continuing without cooperative matrices"),
        }
        self.restrict(Tier::T1);
        Ok(())
    }

    async fn matrices_are_right(&mut self) -> Result<bool, BackendError> {
        let mut plan = Plan::default();
        let x = plan.buffer("x", Rows::Tokens, COLUMNS, Storage::F32);
        let out = plan.buffer("out", Rows::Tokens, OUTPUTS, Storage::F32);
        let weight = plan.weight("weight", OUTPUTS, COLUMNS, WeightFormat::F32);
        plan.body.push(Step::MatMul(MatMul { x, weight, bias: None, accumulate: false, out }));
        let x_value = |row: u32, column: u32| f32::from((5 * row + 3 * column) as u8 % 17) - 8.0;
        let weight_value = |row: u32, column: u32| f32::from((7 * row + column) as u8 % 15) - 7.0;
        let values = |rows: u32, value: &dyn Fn(u32, u32) -> f32| -> Vec<f32> {
            (0..rows * COLUMNS).map(|index| value(index / COLUMNS, index % COLUMNS)).collect()
        };
        let capacity = Capacity {
            tokens_max: ROWS,
            sequences_max: 1,
            samples_max: 1,
            feed_slots: 1,
            state_slots: 0,
            table_entries_max: 1,
            history_max: 0,
            bias_max: 0,
            mask_words_max: 0,
            copies_max: 0,
            block_size: 16,
            kv_format: KvFormat::F16,
            deterministic: false,
        };
        self.load(Arc::new(plan), &capacity)?;
        let weights: Vec<u8> = bytemuck::cast_slice(&values(OUTPUTS, &weight_value)).to_vec();
        self.write_weight(weight, 0, weights.into())?;
        self.allocate_pool(&[])?;
        self.write_buffer(x, &values(ROWS, &x_value))?;
        let inputs = BatchInputs {
            token_ids: vec![0; ROWS as usize],
            positions: (0..ROWS).collect(),
            sequences: vec![SequenceRows { row_start: 0, row_count: ROWS, context_len: ROWS }],
            ..BatchInputs::default()
        };
        let ticket = self.submit(&inputs)?;
        self.read(ticket).await?;
        let product = |row, output| (0..COLUMNS).map(|k| x_value(row, k) * weight_value(output, k)).sum::<f32>();
        let expected: Vec<f32> = (0..ROWS * OUTPUTS).map(|index| product(index / OUTPUTS, index % OUTPUTS)).collect();
        Ok(self.read_buffer(out, ROWS).await? == expected)
    }
}
