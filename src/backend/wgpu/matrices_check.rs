//! Cooperative matrices are used only after they have computed a product whose result is known.

use super::super::{Backend as _, BackendError, Capacity, Inspect as _};
use super::WgpuBackend;
use super::device::Tier;
use super::encode::Recordings;
use crate::plan::inputs::{BatchInputs, SequenceRows};
use crate::plan::{KvFormat, MatMul, Plan, Rows, Step, Storage, WeightFormat};
use std::sync::Arc;

/// The product's rows, columns and outputs, which fill no tile.
const ROWS: u32 = 70;
const COLUMNS: u32 = 72;
const OUTPUTS: u32 = 150;

impl WgpuBackend {
    /// Computes a product of small integers, so that its result is known and no rounding can change it. If the device
    /// computes it wrongly, its matrices are not used.
    pub(super) async fn check_matrices(&mut self) -> Result<(), BackendError> {
        if self.gpu.profile.matrices.is_none() {
            return Ok(());
        }
        let are_right = self.matrices_are_right().await;
        self.loaded = None;
        let cache = self.recordings.pipelines.cache.take();
        self.recordings = Recordings::default();
        self.recordings.pipelines.cache = cache;
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
