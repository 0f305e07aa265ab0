//! Test fixtures: plan, weights, batches, buffer contents, and mutants of them.

use super::weights::{self, ScaleSizes};
use crate::backend::{Capacity, KvHalf};
use crate::plan::check::check_filled;
use crate::plan::error::PlanError;
use crate::plan::inputs::{BatchInputs, GroupInputs, NONE, SampleRow, SequenceRows, StateRows};
use crate::plan::{
    BufferId, KvFormat, KvGroup, KvLayer, Plan, Rows, Sample, Section, Step, Storage, Tail,
    WeightFormat, WeightId, Window,
};
use bytes::Bytes;

/// A plan with its weights and the batches to run.
pub(super) struct Fixture {
    /// File stem of the step under test.
    pub(super) step: &'static str,
    /// Options of the case, for its name.
    pub(super) option: String,
    pub(super) plan: Plan,
    /// Bytes of the weights, indexed like the plan's weights.
    pub(super) weights: Vec<Bytes>,
    /// How large the scales of weights are that are added.
    pub(super) scale_sizes: ScaleSizes,
    pub(super) block_size: u32,
    pub(super) kv_format: KvFormat,
    /// KV format of the reference, if it must differ from the device's: then values are compared before quantization.
    pub(super) kv_expected: Option<KvFormat>,
    /// Number of blocks of each KV group.
    pub(super) blocks: Vec<u32>,
    pub(super) feed_slots: u32,
    pub(super) state_slots: u32,
    pub(super) runs: Vec<Run>,
}

/// Maps expected values to their tolerances (in addition to rounding); [`EXACT`] requires equality.
pub(super) type Allowed = Box<dyn Fn(&[f32]) -> Vec<f64>>;

/// Tolerance that allows no deviation, not even rounding.
pub(super) const EXACT: f64 = -1.0;

/// An output to compare, with its tolerance.
pub(super) enum Check {
    /// The first rows of a buffer.
    Rows {
        buffer: BufferId,
        rows: u32,
        allowed: Allowed,
    },
    /// Keys or values of a layer.
    Kv {
        layer: u32,
        half: KvHalf,
        allowed: Allowed,
    },
    /// The states of a layer in all slots.
    State { layer: u32, allowed: Allowed },
    /// Sampled rows and feed slots.
    Sampled,
    /// Pooled rows.
    Pooled { allowed: Allowed },
}

/// One batch with the initial contents of the device.
pub(super) struct Run {
    /// Sizes, for the report.
    pub(super) shape: String,
    pub(super) buffers: Vec<(BufferId, Vec<f32>)>,
    /// Keys and values of each layer.
    pub(super) kv: Vec<[Vec<f32>; 2]>,
    /// States of each state layer, in all slots.
    pub(super) states: Vec<Vec<f32>>,
    pub(super) feed: Vec<u32>,
    pub(super) inputs: BatchInputs,
    pub(super) checks: Vec<Check>,
    pub(super) mutants: Vec<Mutant>,
    /// Logits that sampling reads, to detect near-ties; `None`: no decision is a near-tie.
    pub(super) logits: Option<Vec<f32>>,
    /// Whether every decision is compared because ties are decided by rule, not by rounding.
    pub(super) exact: bool,
}

/// A change to the reference's inputs that the comparison must detect.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mutant {
    /// Swaps two rows of a buffer.
    SwapRows(BufferId, u32, u32),
    /// Swaps two heads of this many elements in each row of a buffer.
    SwapHeads(BufferId, u32, u32, u32),
    /// Swaps two rows of a weight.
    SwapWeightRows(WeightId, u32, u32),
    /// Replaces subnormal scales of a weight by zeros.
    FlushScales(WeightId),
    /// Swaps two entries of a block table.
    SwapBlocks(usize, u32, u32),
    /// Swaps two token ids.
    SwapTokens(u32, u32),
    /// Swaps two slots.
    SwapSlots(usize, u32, u32),
    /// Swaps the scales of adjacent rows of this many elements, in the keys or values of a layer.
    SwapScales(u32, KvHalf, u32),
    /// Drops a block copy.
    DropCopy(usize),
    /// Swaps two logits rows.
    SwapLogitsRows(u32, u32),
    /// Swaps the adapter slots of two sequences.
    SwapAdapters(u32, u32),
    /// Swaps the slots that two sequences read.
    SwapStates(u32, u32),
    /// All sequences start with the batch, or none does.
    StartAgain,
    /// Changes the seed of every row.
    OtherSeed,
    /// Removes the last token row of the first pool row.
    ShorterPool,
}

impl Mutant {
    /// The fixture's weights and the run with the mutation applied.
    pub(super) fn apply(self, fixture: &Fixture, run: &Run) -> (Vec<Bytes>, Run) {
        let mut weights = fixture.weights.clone();
        let mut run = run.copy_for_mutation(fixture.rounds_to_codes());
        match self {
            Self::SwapRows(buffer, first, second) => {
                let columns = fixture.plan.buffer_spec(buffer).columns;
                swap_runs(run.buffer(buffer), columns, first, second);
            }
            Self::SwapHeads(buffer, dim, first, second) => {
                let columns = fixture.plan.buffer_spec(buffer).columns as usize;
                swap_heads(run.buffer(buffer), columns, dim, [first, second]);
            }
            Self::SwapWeightRows(weight, first, second) => {
                weights[weight.0 as usize] = fixture.with_swapped_rows(weight, first, second);
            }
            Self::FlushScales(weight) => {
                weights[weight.0 as usize] = fixture.with_flushed_scales(weight);
            }
            Self::SwapScales(layer, half, dim) => {
                let half = usize::from(half != KvHalf::Key);
                swap_scales(&mut run.kv[layer as usize][half], dim as usize);
            }
            _ => self.change(&mut run.inputs),
        }
        (weights, run)
    }

    /// Applies a mutation of a batch.
    fn change(self, inputs: &mut BatchInputs) {
        match self {
            Self::SwapBlocks(group, first, second) => {
                swap(&mut inputs.groups[group].block_tables, first, second);
            }
            Self::SwapTokens(first, second) => swap(&mut inputs.token_ids, first, second),
            Self::SwapSlots(group, first, second) => {
                swap(&mut inputs.groups[group].slot_mapping, first, second);
            }
            Self::DropCopy(group) => _ = inputs.groups[group].copies.pop(),
            Self::SwapLogitsRows(first, second) => swap(&mut inputs.logits_rows, first, second),
            Self::SwapAdapters(first, second) => swap(&mut inputs.adapters, first, second),
            Self::ShorterPool => inputs.pools[0].row_count -= 1,
            Self::SwapStates(first, second) => swap_sources(&mut inputs.states, first, second),
            Self::StartAgain => start_again(&mut inputs.states),
            Self::OtherSeed => inputs.samples.iter_mut().for_each(|row| row.seed ^= 1),
            _ => unreachable!("{self:?} changes no batch"),
        }
    }
}

fn swap<T>(values: &mut [T], first: u32, second: u32) {
    values.swap(first as usize, second as usize);
}

/// Swaps two runs of `length` values.
fn swap_runs<T>(values: &mut [T], length: u32, first: u32, second: u32) {
    for offset in 0..length {
        swap(values, first * length + offset, second * length + offset);
    }
}

/// Swaps two runs of `length` values in each row.
fn swap_heads<T>(values: &mut [T], columns: usize, length: u32, [first, second]: [u32; 2]) {
    for row in values.chunks_exact_mut(columns) {
        swap_runs(row, length, first, second);
    }
}

/// Swaps the slots that two sequences read.
fn swap_sources(states: &mut [StateRows], first: u32, second: u32) {
    let [first, second] = [first, second].map(|index| index as usize);
    let from = states[first].from;
    states[first].from = states[second].from;
    states[second].from = from;
}

/// Lets all sequences start with the batch; if all do, none.
fn start_again(states: &mut [StateRows]) {
    let some_continue = states.iter().any(|state| state.from != NONE);
    for state in states {
        state.from = if some_continue { NONE } else { state.to };
    }
}

/// Swaps the scales of adjacent rows: a different scale multiplies all elements. Rows of zeros are unchanged.
fn swap_scales(values: &mut [f32], dim: usize) {
    for pair in values.chunks_exact_mut(2 * dim) {
        let (first, second) = pair.split_at_mut(dim);
        let factor = largest(second) / largest(first);
        if factor.is_finite() && factor > 0.0 {
            first.iter_mut().for_each(|value| *value *= factor);
            second.iter_mut().for_each(|value| *value /= factor);
        }
    }
}

/// The largest magnitude.
pub(super) fn largest(row: &[f32]) -> f32 {
    row.iter()
        .fold(0.0, |max, value| f32::max(max, value.abs()))
}

impl Run {
    /// A run without checks.
    pub(super) fn new(shape: impl Into<String>, inputs: BatchInputs) -> Self {
        Self {
            shape: shape.into(),
            buffers: Vec::new(),
            kv: Vec::new(),
            states: Vec::new(),
            feed: Vec::new(),
            inputs,
            checks: Vec::new(),
            mutants: Vec::new(),
            logits: None,
            exact: false,
        }
    }

    fn buffer(&mut self, buffer: BufferId) -> &mut Vec<f32> {
        let filled = self.buffers.iter_mut().find(|(id, _)| *id == buffer);
        &mut filled
            .expect("a mutant changes a buffer that the run fills")
            .1
    }

    /// A copy of the run with the same contents and checks but mutant tolerances.
    fn copy_for_mutation(&self, rounds_to_codes: bool) -> Self {
        let allowed = || generous(if rounds_to_codes { 1e-2 } else { 1e-3 });
        let checks = self.checks.iter().map(|check| match check {
            Check::Rows { buffer, rows, .. } => Check::Rows {
                buffer: *buffer,
                rows: *rows,
                allowed: allowed(),
            },
            Check::Kv { layer, half, .. } => Check::Kv {
                layer: *layer,
                half: *half,
                allowed: allowed(),
            },
            Check::State { layer, .. } => Check::State {
                layer: *layer,
                allowed: allowed(),
            },
            Check::Sampled => Check::Sampled,
            Check::Pooled { .. } => Check::Pooled { allowed: allowed() },
        });
        Self {
            shape: self.shape.clone(),
            buffers: self.buffers.clone(),
            kv: self.kv.clone(),
            states: self.states.clone(),
            feed: self.feed.clone(),
            inputs: self.inputs.clone(),
            checks: checks.collect(),
            mutants: Vec::new(),
            logits: self.logits.clone(),
            exact: self.exact,
        }
    }
}

/// Tolerance for mutants: far wider than any entry of the table, so that the table detects at least as much.
fn generous(share: f64) -> Allowed {
    Box::new(move |expected| {
        let max = expected
            .iter()
            .filter(|value| value.is_finite())
            .fold(0.0, |max, v| f64::max(max, f64::from(v.abs())));
        vec![share * max; expected.len()]
    })
}

impl Fixture {
    /// A fixture without weights, KV groups or runs.
    pub(super) fn new(step: &'static str, option: impl Into<String>) -> Self {
        Self {
            step,
            option: option.into(),
            plan: Plan {
                vocab: 256,
                positions_max: 4096,
                ..Plan::default()
            },
            weights: Vec::new(),
            scale_sizes: ScaleSizes::Usual,
            block_size: 16,
            kv_format: KvFormat::F16,
            kv_expected: None,
            blocks: Vec::new(),
            feed_slots: 64,
            state_slots: 0,
            runs: Vec::new(),
        }
    }

    /// `step/option`.
    pub(super) fn name(&self) -> String {
        format!("{}/{}", self.step, self.option)
    }

    /// Adds a weight with these values, encoded in its format.
    pub(super) fn weight(
        &mut self,
        name: &str,
        rows: u32,
        format: WeightFormat,
        values: &[f32],
    ) -> WeightId {
        let columns = u32::try_from(values.len()).expect("a test weight is small") / rows;
        self.weights
            .push(weights::encode(format, columns as usize, values, self.scale_sizes).into());
        self.plan.weight(name, rows, columns, format)
    }

    /// Like [`Fixture::weight`], with rows in several formats.
    pub(super) fn weight_in_sections(
        &mut self,
        name: &str,
        sections: &[Section],
        values: &[f32],
    ) -> WeightId {
        let rows: u32 = sections.iter().map(|section| section.rows).sum();
        let columns = values.len() / rows as usize;
        let (mut bytes, mut values) = (Vec::new(), values);
        for section in sections {
            let (own, rest) = values.split_at(section.rows as usize * columns);
            bytes.extend(weights::encode(
                section.format,
                columns,
                own,
                self.scale_sizes,
            ));
            values = rest;
        }
        self.weights.push(bytes.into());
        self.plan.weight_in_sections(
            name,
            u32::try_from(columns).expect("a test weight is small"),
            sections,
        )
    }

    /// The decoded values of a weight.
    pub(super) fn weight_values(&self, weight: WeightId) -> Vec<f32> {
        let spec = self.plan.weight_spec(weight);
        let columns = spec.columns as usize;
        (0..spec.rows)
            .flat_map(|row| {
                let bytes = &self.weights[weight.0 as usize][spec.bytes_before(row) as usize..];
                (0..columns).map(move |index| spec.format_of(row).decode(bytes, columns, index))
            })
            .collect()
    }

    /// The bytes of a weight with two rows swapped.
    fn with_swapped_rows(&self, weight: WeightId, first: u32, second: u32) -> Bytes {
        let spec = self.plan.weight_spec(weight);
        assert_eq!(
            spec.format_of(first),
            spec.format_of(second),
            "swapped rows have the same format"
        );
        let [first_at, second_at] = [first, second].map(|row| spec.bytes_before(row) as usize);
        let mut bytes = self.weights[weight.0 as usize].to_vec();
        for offset in 0..spec.row_bytes(first) as usize {
            bytes.swap(first_at + offset, second_at + offset);
        }
        bytes.into()
    }

    /// The bytes of a weight with zeros for its subnormal scales.
    fn with_flushed_scales(&self, weight: WeightId) -> Bytes {
        let spec = self.plan.weight_spec(weight);
        let mut bytes = self.weights[weight.0 as usize].to_vec();
        for row in 0..spec.rows {
            let at = spec.bytes_before(row) as usize;
            let row_bytes = &mut bytes[at..][..spec.row_bytes(row) as usize];
            weights::flush_scales(spec.format_of(row), spec.columns as usize, row_bytes);
        }
        bytes.into()
    }

    /// Adds a KV group with one layer.
    pub(super) fn layer(
        &mut self,
        heads: u32,
        head_dim: u32,
        window: Option<Window>,
        blocks: u32,
    ) -> u32 {
        let group = u32::try_from(self.plan.kv_groups.len()).expect("a plan has few KV groups");
        self.plan.kv_groups.push(KvGroup { window });
        self.plan.kv_layers.push(KvLayer {
            group,
            heads,
            head_dim,
            latent: false,
        });
        self.blocks.push(blocks);
        u32::try_from(self.plan.kv_layers.len() - 1).expect("a plan has few layers")
    }

    /// Adds a buffer.
    pub(super) fn buffer(
        &mut self,
        name: &'static str,
        rows: Rows,
        columns: u32,
        storage: Storage,
    ) -> BufferId {
        self.plan.buffer(name, rows, columns, storage)
    }

    /// Adds a step to the body.
    pub(super) fn push(&mut self, step: Step) {
        self.plan.body.push(step);
    }

    /// Whether a step quantizes keys and values, so that the table must allow for an adjacent code.
    fn rounds_to_codes(&self) -> bool {
        let stores = self
            .plan
            .body
            .iter()
            .any(|step| matches!(step, Step::RopeStoreKv(_) | Step::RopeStoreLatent(_)));
        self.kv_format.is_coded() && stores
    }

    /// The capacity that the largest run needs.
    pub(super) fn capacity(&self) -> Capacity {
        let most = |count: &dyn Fn(&BatchInputs) -> usize| {
            let most = self
                .runs
                .iter()
                .map(|run| count(&run.inputs))
                .max()
                .unwrap_or(0);
            u32::try_from(most).expect("a test batch is small").max(1)
        };
        let groups = |count: fn(&GroupInputs) -> usize| {
            most(&|inputs| inputs.groups.iter().map(count).max().unwrap_or(0))
        };
        Capacity {
            tokens_max: most(&|inputs| inputs.token_ids.len()),
            sequences_max: most(&|inputs| inputs.sequences.len().max(inputs.pools.len())),
            samples_max: most(&|inputs| inputs.samples.len().max(inputs.logits_rows.len())),
            feed_slots: self.feed_slots,
            state_slots: self.state_slots,
            table_entries_max: groups(|group| group.block_tables.len()),
            history_max: most(&|inputs| inputs.history.len()),
            bias_max: most(&|inputs| inputs.bias.len()),
            mask_words_max: most(&|inputs| inputs.masks.len()),
            copies_max: groups(|group| group.copies.len()),
            block_size: self.block_size,
            kv_format: self.kv_format,
            deterministic: false,
        }
    }

    /// Checks the plan as the engine does at start; the runs fill buffers and pool.
    pub(super) fn check_plan(&self) -> Result<(), PlanError> {
        let filled: Vec<BufferId> = self
            .runs
            .iter()
            .flat_map(|run| run.buffers.iter().map(|(id, _)| *id))
            .collect();
        check_filled(&self.plan, &filled)
    }

    /// Number of elements of a layer's keys, and of its values.
    pub(super) fn pool_elements(&self, layer: u32) -> usize {
        let KvLayer {
            group,
            heads,
            head_dim,
            ..
        } = self.plan.kv_layers[layer as usize];
        (self.blocks[group as usize] * heads * self.block_size * head_dim) as usize
    }
}

/// Seeded random values (SplitMix64) with difficult cases: zeros, negatives, subnormals, outliers 20 times as large.
pub(super) struct Noise(u64);

impl Noise {
    /// A separate stream for each name.
    pub(super) fn new(name: &str) -> Self {
        // FNV-1a hash of the name.
        Self(name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        }))
    }

    /// 64 random bits.
    pub(super) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A random integer below `limit`.
    pub(super) fn below(&mut self, limit: u32) -> u32 {
        u32::try_from(((self.bits() >> 32) * u64::from(limit)) >> 32)
            .expect("the product is below the limit")
    }

    /// A uniform random value in ±1.
    pub(super) fn uniform(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// A random value with the difficult cases mixed in.
    pub(super) fn value(&mut self) -> f32 {
        let value = self.uniform();
        match self.bits() % 128 {
            0..2 => value * 20.0,
            2..6 => 0.0,
            6 => value * 1e-40,
            _ => value,
        }
    }

    /// `count` such values.
    pub(super) fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.value()).collect()
    }

    /// `count` such values, rounded to `storage`.
    pub(super) fn rounded(&mut self, storage: Storage, count: usize) -> Vec<f32> {
        (0..count).map(|_| storage.round(self.value())).collect()
    }

    /// The integers below `count`, shuffled.
    pub(super) fn shuffled(&mut self, count: u32) -> Vec<u32> {
        let mut numbers: Vec<u32> = (0..count).collect();
        for last in (1..count).rev() {
            numbers.swap(last as usize, self.below(last + 1) as usize);
        }
        numbers
    }
}

/// The names of the options that are on.
pub(super) fn names_of(options: &[(bool, &str)]) -> String {
    let names = options.iter().filter(|(is_on, _)| *is_on);
    names.map(|(_, name)| *name).collect()
}

/// `rows` rows in `format`, of which the last `other_rows` are bf16 instead.
pub(super) fn sections(format: WeightFormat, rows: u32, other_rows: u32) -> Vec<Section> {
    let mut sections = vec![Section {
        rows: rows - other_rows,
        format,
    }];
    if other_rows > 0 {
        sections.push(Section {
            rows: other_rows,
            format: WeightFormat::Bf16,
        });
    }
    sections
}

/// NaN, the initial content of everything that a step must write.
pub(super) fn unwritten(count: usize) -> Vec<f32> {
    vec![f32::NAN; count]
}

/// A batch of one sequence without KV groups.
pub(super) fn plain_batch(rows: u32) -> BatchInputs {
    BatchInputs {
        token_ids: (0..rows).map(|row| row * 7 % 256).collect(),
        positions: (0..rows).collect(),
        sequences: vec![SequenceRows {
            row_start: 0,
            row_count: rows,
            context_len: rows,
        }],
        ..BatchInputs::default()
    }
}

/// A batch of (rows, context) sequences over shuffled blocks. Each group has `blocks[g]` blocks; the tables of a
/// window group have [`NONE`] for blocks that no row sees any more.
pub(super) fn paged_batch(
    fixture: &Fixture,
    sequences: &[(u32, u32)],
    noise: &mut Noise,
) -> BatchInputs {
    let mut inputs = BatchInputs::default();
    for &(row_count, context_len) in sequences {
        let row_start = u32::try_from(inputs.positions.len()).expect("a test batch is small");
        inputs.sequences.push(SequenceRows {
            row_start,
            row_count,
            context_len,
        });
        inputs
            .positions
            .extend(context_len - row_count..context_len);
    }
    inputs.token_ids = inputs
        .positions
        .iter()
        .map(|position| position % fixture.plan.vocab)
        .collect();
    for (group, &blocks) in fixture.plan.kv_groups.iter().zip(&fixture.blocks) {
        inputs.groups.push(group_inputs(
            *group,
            blocks,
            fixture.block_size,
            sequences,
            noise,
        ));
    }
    inputs
}

fn group_inputs(
    group: KvGroup,
    blocks: u32,
    size: u32,
    sequences: &[(u32, u32)],
    noise: &mut Noise,
) -> GroupInputs {
    let mut free = noise.shuffled(blocks).into_iter();
    let mut inputs = GroupInputs::default();
    for &(rows, context) in sequences {
        let first_seen = group
            .window
            .map_or(0, |window| window.first_visible(context - rows));
        let start = inputs.block_tables.len();
        inputs
            .table_starts
            .push(u32::try_from(start).expect("a test batch is small"));
        for entry in 0..context.div_ceil(size) {
            let passed = (entry + 1) * size <= first_seen;
            let block = if passed {
                NONE
            } else {
                free.next().expect("the pool holds the batch")
            };
            inputs.block_tables.push(block);
        }
        for position in context - rows..context {
            let block = inputs.block_tables[start + (position / size) as usize];
            inputs.slot_mapping.push(block * size + position % size);
        }
    }
    inputs
}

/// Pool content of a layer: noise in the slots of the batch's contexts, NaN where no query may read.
pub(super) fn pool_content(
    fixture: &Fixture,
    layer: u32,
    inputs: &BatchInputs,
    noise: &mut Noise,
) -> [Vec<f32>; 2] {
    let KvLayer {
        group,
        heads,
        head_dim,
        ..
    } = fixture.plan.kv_layers[layer as usize];
    let (size, group) = (fixture.block_size, &inputs.groups[group as usize]);
    let mut halves = [
        unwritten(fixture.pool_elements(layer)),
        unwritten(fixture.pool_elements(layer)),
    ];
    for (sequence, &start) in inputs.sequences.iter().zip(&group.table_starts) {
        for position in 0..sequence.context_len {
            let block = group.block_tables[(start + position / size) as usize];
            if block == NONE {
                continue;
            }
            for head in 0..heads {
                let at = (((block * heads + head) * size + position % size) * head_dim) as usize;
                for half in &mut halves {
                    half[at..at + head_dim as usize].fill_with(|| noise.value());
                }
            }
        }
    }
    halves
}

/// Fills `buffer` with NaN before the run and compares its rows afterwards.
pub(super) fn expect_rows(
    fixture: &Fixture,
    run: &mut Run,
    buffer: BufferId,
    rows: u32,
    allowed: Allowed,
) {
    run.buffers.push((
        buffer,
        unwritten((rows * fixture.plan.buffer_spec(buffer).columns) as usize),
    ));
    run.checks.push(Check::Rows {
        buffer,
        rows,
        allowed,
    });
}

/// Adds `step` and a draw from its output, without which a device may skip the tail. Logits are f32.
pub(super) fn sampled_tail(step: Step, logits: BufferId, storage: Storage) -> Vec<Step> {
    let sample = (storage == Storage::F32).then_some(Step::Sample(Sample { logits }));
    std::iter::once(step).chain(sample).collect()
}

/// A greedy sample row for every logits row.
pub(super) fn sample_all(inputs: &mut BatchInputs) {
    inputs.tails = vec![Tail::Sample];
    inputs.samples = (0..)
        .zip(&inputs.logits_rows)
        .map(|(row, _)| SampleRow::greedy(row, 0))
        .collect();
}

/// Tolerance of `factor` times each expected value.
pub(super) fn relative(factor: f64) -> Allowed {
    Box::new(move |expected| {
        expected
            .iter()
            .map(|value| factor * f64::from(value.abs()))
            .collect()
    })
}

/// Tolerance of `steps` codes of a format in each row of `dim` elements, plus 0.1 % for the error of the scale.
pub(super) fn codes(format: KvFormat, steps: f64, dim: u32) -> Allowed {
    Box::new(move |expected| {
        let rows = expected.chunks_exact(dim as usize);
        rows.flat_map(|row| {
            let largest = largest(row);
            row.iter()
                .map(move |value| 1.001 * steps * f64::from(format.code_step(*value, largest)))
        })
        .collect()
    })
}

/// The sum of two tolerances.
pub(super) fn either(first: Allowed, second: Allowed) -> Allowed {
    Box::new(move |expected| {
        first(expected)
            .iter()
            .zip(second(expected))
            .map(|(a, b)| a + b)
            .collect()
    })
}

/// Requires the same bits.
pub(super) fn exact() -> Allowed {
    Box::new(|expected| vec![EXACT; expected.len()])
}

/// One given tolerance per value.
pub(super) fn each(allowed: Vec<f64>) -> Allowed {
    Box::new(move |_| allowed.clone())
}
