//! Cooperative matrices are used only after they have computed a product and attention whose results are known, and as
//! many of them at once as the driver runs subgroups.

use super::super::{Backend as _, BackendError, Capacity, Inspect as _, KvHalf};
use super::WgpuBackend;
use super::device::Tier;
use super::encode::Recordings;
use super::matrices::{self, Matrices};
use super::single;
use crate::plan::inputs::{BatchInputs, GroupInputs, SequenceRows};
use crate::plan::{
    AttendPaged, BufferId, KvFormat, KvGroup, KvLayer, MatMul, Plan, Rows, Step, Storage,
    WeightFormat, WeightId,
};
use std::sync::Arc;

/// The product's rows, columns and outputs, which fill no tile.
const ROWS: u32 = 70;
const COLUMNS: u32 = 72;
const OUTPUTS: u32 = 150;

/// Prompts whose rows attend, and the blocks of each.
const PROMPTS: [(u32, &[u32]); 2] = [(40, &[4, 0, 3]), (30, &[1, 2])];
const BLOCKS: u32 = 5;
const BLOCK_SIZE: u32 = 16;
/// Heads of the queries, of one head of keys and values.
const HEADS: u32 = 2;
/// Elements of a head: more than a prompt has keys.
const HEAD_DIM: u32 = 64;

impl WgpuBackend {
    /// Computes a product and attention of small integers, so that their results are known and no rounding can change
    /// them. If the device computes one wrongly, its matrices are not used.
    pub(super) async fn check_matrices(&mut self) -> Result<(), BackendError> {
        let Some(matrices) = self.gpu.profile.matrices else {
            return Ok(());
        };
        let are_right = match self.matrix_lanes(matrices) {
            Ok(lanes) => {
                self.gpu.profile.matrices = Some(Matrices { lanes, ..matrices });
                self.matrices_are_right().await
            }
            Err(error) => Err(error),
        };
        self.loaded = None;
        let cache = self.recordings.pipelines.cache.take();
        self.recordings = Recordings::default();
        self.recordings.pipelines.cache = cache;
        match are_right {
            Ok(true) => return Ok(()),
            Ok(false) => tracing::warn!(
                "{}: results of cooperative matrices are wrong",
                self.caps.name
            ),
            Err(error) if error.is_loss() => return Err(error),
            Err(error) => tracing::warn!("{error}; continuing without cooperative matrices"),
        }
        self.restrict(Tier::T1);
        Ok(())
    }

    /// The lanes of a subgroup of kernels with matrices, as the driver runs them: it chooses for each kernel, and wgpu
    /// cannot ask for a number.
    fn matrix_lanes(&self, matrices: Matrices) -> Result<u32, BackendError> {
        if self.gpu.expects_matrix_lanes {
            return Ok(matrices.lanes);
        }
        let buffer = |words: u64| {
            self.gpu.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("probe"),
                size: 4 * words,
                usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: false,
            })
        };
        // Two matrices of halves; the number, and sums of as many subgroups as a workgroup can have.
        let source = buffer(256);
        let results = buffer(256 * (1 + u64::from(matrices::WORKGROUP / 4)));
        let text = matrices.named_in(include_str!("../../../shaders/probe_matrices.wgsl"));
        let bindings = [&source, &results].map(|buffer| buffer.as_entire_binding());
        let probe = single::dispatch(&self.gpu, "probe matrices", &text, &[0], &bindings, [1; 3])?;
        let descriptor = wgpu::CommandEncoderDescriptor::default();
        let mut encoder = self.gpu.device.create_command_encoder(&descriptor);
        probe.record(&mut encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default()));
        self.gpu.queue.submit([encoder.finish()]);
        let subgroups = single::read(&self.gpu, &results)?[0] as u32;
        Ok((matrices::WORKGROUP / subgroups.max(1)).clamp(8, 128))
    }

    async fn matrices_are_right(&mut self) -> Result<bool, BackendError> {
        let problem = Problem::new();
        self.load(Arc::clone(&problem.plan), &capacity())?;
        self.write_weight(
            problem.weight,
            0,
            bytemuck::cast_slice(&weight_values()).to_vec().into(),
        )?;
        self.allocate_pool(&[BLOCKS])?;
        self.write_buffer(problem.x, &x_values())?;
        self.write_buffer(problem.q, &queries())?;
        for half in [KvHalf::Key, KvHalf::Value] {
            self.write_kv(0, half, &pool_values(half))?;
        }
        let ticket = self.submit(&inputs())?;
        self.read(ticket).await?;
        let product = self.read_buffer(problem.product, ROWS).await?;
        let attended = self.read_buffer(problem.attended, ROWS).await?;
        // The weights of other keys are below 1e-27.
        Ok(product == expected_product()
            && attended
                .iter()
                .zip(&expected_attention())
                .all(|(got, expected)| (got - expected).abs() < 1e-6))
    }
}

struct Problem {
    plan: Arc<Plan>,
    x: BufferId,
    weight: WeightId,
    product: BufferId,
    q: BufferId,
    attended: BufferId,
}

impl Problem {
    fn new() -> Self {
        let mut plan = Plan::default();
        let mut buffer = |name, columns| plan.buffer(name, Rows::Tokens, columns, Storage::F32);
        let [x, product] = [buffer("x", COLUMNS), buffer("product", OUTPUTS)];
        let [q, attended] = ["q", "attended"].map(|name| buffer(name, HEADS * HEAD_DIM));
        let weight = plan.weight("weight", OUTPUTS, COLUMNS, WeightFormat::F32);
        plan.kv_groups.push(KvGroup { window: None });
        plan.kv_layers.push(KvLayer {
            group: 0,
            heads: 1,
            head_dim: HEAD_DIM,
            latent: false,
        });
        plan.body.push(Step::MatMul(MatMul {
            x,
            weight,
            bias: None,
            accumulate: false,
            out: product,
        }));
        plan.body.push(Step::AttendPaged(AttendPaged {
            q,
            layer: 0,
            query_heads: HEADS,
            scale: 1.0,
            softcap: None,
            alibi: None,
            sinks: None,
            out: attended,
        }));
        Self {
            plan: Arc::new(plan),
            x,
            weight,
            product,
            q,
            attended,
        }
    }
}

fn capacity() -> Capacity {
    Capacity {
        tokens_max: ROWS,
        sequences_max: PROMPTS.len() as u32,
        samples_max: 1,
        feed_slots: 1,
        state_slots: 0,
        table_entries_max: BLOCKS,
        history_max: 0,
        bias_max: 0,
        mask_words_max: 0,
        copies_max: 0,
        block_size: BLOCK_SIZE,
        kv_format: KvFormat::F16,
        deterministic: false,
    }
}

fn inputs() -> BatchInputs {
    let mut inputs = BatchInputs {
        token_ids: vec![0; ROWS as usize],
        ..BatchInputs::default()
    };
    let mut group = GroupInputs::default();
    let mut row_start = 0;
    for (row_count, blocks) in PROMPTS {
        inputs.sequences.push(SequenceRows {
            row_start,
            row_count,
            context_len: row_count,
        });
        inputs.positions.extend(0..row_count);
        group.table_starts.push(group.block_tables.len() as u32);
        group.block_tables.extend(blocks);
        group
            .slot_mapping
            .extend((0..row_count).map(|position| slot(blocks, position)));
        row_start += row_count;
    }
    inputs.groups.push(group);
    inputs
}

/// Where a position of a prompt is in the pool.
fn slot(blocks: &[u32], position: u32) -> u32 {
    blocks[(position / BLOCK_SIZE) as usize] * BLOCK_SIZE + position % BLOCK_SIZE
}

fn x_value(row: u32, column: u32) -> f32 {
    f32::from((5 * row + 3 * column) as u8 % 17) - 8.0
}

fn weight_value(output: u32, column: u32) -> f32 {
    f32::from((7 * output + column) as u8 % 15) - 7.0
}

fn x_values() -> Vec<f32> {
    (0..ROWS * COLUMNS)
        .map(|index| x_value(index / COLUMNS, index % COLUMNS))
        .collect()
}

fn weight_values() -> Vec<f32> {
    (0..OUTPUTS * COLUMNS)
        .map(|index| weight_value(index / COLUMNS, index % COLUMNS))
        .collect()
}

fn expected_product() -> Vec<f32> {
    (0..ROWS * OUTPUTS)
        .map(|index| product(index / OUTPUTS, index % OUTPUTS))
        .collect()
}

fn product(row: u32, output: u32) -> f32 {
    (0..COLUMNS)
        .map(|k| x_value(row, k) * weight_value(output, k))
        .sum()
}

/// The only key that a query finds: its score is 64, and that of all others is 0.
fn target(position: u32, head: u32) -> u32 {
    (7 * position + 5 * head + 3) % (position + 1)
}

/// The key of a position has one element, another than the keys of all other positions.
fn key(position: u32, element: u32) -> f32 {
    if position == element { 8.0 } else { 0.0 }
}

fn value(slot: u32, element: u32) -> f32 {
    f32::from((3 * slot + 5 * element) as u8 % 13) - 6.0
}

/// What `of` says of each prompt's blocks, a position of it, a head and an element.
fn rows_of(of: impl Fn(&[u32], u32, u32, u32) -> f32) -> Vec<f32> {
    let mut values = Vec::new();
    for (rows, blocks) in PROMPTS {
        for (position, head) in
            (0..rows).flat_map(|position| (0..HEADS).map(move |head| (position, head)))
        {
            values.extend((0..HEAD_DIM).map(|element| of(blocks, position, head, element)));
        }
    }
    values
}

fn queries() -> Vec<f32> {
    rows_of(|_, position, head, element| key(target(position, head), element))
}

fn expected_attention() -> Vec<f32> {
    rows_of(|blocks, position, head, element| value(slot(blocks, target(position, head)), element))
}

fn pool_values(half: KvHalf) -> Vec<f32> {
    let mut values = vec![0.0; (BLOCKS * BLOCK_SIZE * HEAD_DIM) as usize];
    for (rows, blocks) in PROMPTS {
        for (position, element) in
            (0..rows).flat_map(|position| (0..HEAD_DIM).map(move |element| (position, element)))
        {
            let slot = slot(blocks, position);
            values[(slot * HEAD_DIM + element) as usize] = match half {
                KvHalf::Key => key(position, element),
                KvHalf::Value => value(slot, element),
            };
        }
    }
    values
}
