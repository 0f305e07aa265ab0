//! Sizes of all buffers that a device allocates for a plan, used both to predict memory and to allocate it.
//!
//! [`Layout`] lists the buffers of weights, rows, states and scratch; [`PoolLayout`] lists those of keys and values.
//! Both keep to the limits in [`Caps`]. The arenas create exactly these buffers; `engine::fit` adds them up before
//! anything is loaded. So a plan that is predicted to fit does fit, unless the memory has been taken meanwhile.
//!
//! A weight matrix is cut by output rows into shards within the binding limit: between experts, or within an expert
//! that exceeds the limit. A layer's K and V are cut by KV heads. Buffers of `Rows::Samples` hold as many rows as fit,
//! and tails run in groups of that many rows. Token rows are not cut: instead, a batch has fewer of them.

use super::{BackendError, Capacity, Caps, SideBuffer};
use crate::plan::{KvLayer, Plan, Rows, WeightFormat, WeightSpec};
use std::fmt;

/// A limit of the device that a plan exceeds, whatever the size of its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Excess {
    /// A buffer that is larger than the device allows.
    Buffer {
        /// Name of the buffer.
        what: String,
        /// Bytes needed.
        needed: u64,
        /// Maximum bytes of a buffer or binding.
        limit: u64,
    },
    /// More KV groups than the kernels' metadata has room for.
    KvGroups {
        /// KV groups of the plan.
        groups: usize,
        /// Maximum KV groups.
        limit: usize,
    },
}

impl Excess {
    /// Converts to an error of this device.
    fn on(self, caps: &Caps) -> BackendError {
        match self {
            Self::Buffer {
                what,
                needed,
                limit,
            } => BackendError::Limit {
                what,
                needed,
                limit,
                device: caps.name.clone(),
            },
            Self::KvGroups { groups, limit } => too_many_groups(groups, limit),
        }
    }
}

fn too_many_groups(groups: usize, limit: usize) -> BackendError {
    let (what, message) = (
        format!("a plan with {groups} KV groups"),
        format!("the kernels support at most {limit}"),
    );
    BackendError::Unsupported { what, message }
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Buffer {
                what,
                needed,
                limit,
            } => {
                write!(
                    f,
                    "{what} needs {needed} bytes in one binding; the device's limit is {limit}"
                )
            }
            Self::KvGroups { groups, limit } => too_many_groups(*groups, *limit).fmt(f),
        }
    }
}

/// Consecutive rows of a weight that share one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightShard {
    /// First row.
    pub row_start: u32,
    /// Number of rows.
    pub rows: u32,
    /// Format of each row.
    pub format: WeightFormat,
    /// Bytes of the buffer.
    pub bytes: u64,
}

/// Consecutive KV heads of one layer, with one buffer for keys and one for values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShard {
    /// First head.
    pub head_start: u32,
    /// Number of heads.
    pub heads: u32,
    /// Bytes of each buffer.
    pub bytes: u64,
    /// Buffers: keys and values, or one for both.
    pub halves: u32,
}

/// All buffers except the KV pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Shards of each weight, from the first row to the last.
    pub weights: Vec<Vec<WeightShard>>,
    /// Bytes of each row buffer.
    pub rows: Vec<u64>,
    /// Bytes of the states of each state layer, in all slots.
    pub states: Vec<u64>,
    /// Rows of a `Rows::Samples` buffer; a tail runs in groups of this many rows.
    pub group_rows: u32,
    /// Other buffers that the backend needs.
    pub side: Vec<SideBuffer>,
    /// The first limit that is exceeded, if any.
    pub excess: Option<Excess>,
}

/// The buffers of the KV pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolLayout {
    /// Shards of each layer, from the first head to the last.
    pub layers: Vec<Vec<KvShard>>,
    /// The first buffer that is too large, if any.
    pub excess: Option<Excess>,
}

impl Layout {
    /// Lays out `plan`. A buffer that is too large is included and also recorded in `excess`.
    pub fn new(plan: &Plan, capacity: &Capacity, caps: &Caps) -> Self {
        let mut limits = Limits::new(caps);
        limits.kv_groups(plan.kv_groups.len());
        let group_rows = group_rows(plan, capacity, caps);
        let rows = plan.buffers.iter().map(|spec| {
            let count = spec.rows.count(capacity.tokens_max, group_rows);
            limits.binding(u64::from(count) * spec.row_bytes(), || {
                format!("row buffer {} ({count} rows)", spec.name)
            })
        });
        let rows = rows.collect();
        let states = plan.state_layers.iter().enumerate().map(|(index, layer)| {
            let bytes = u64::from(capacity.state_slots) * layer.bytes();
            limits.binding(bytes, || {
                format!("state layer {index} ({} slots)", capacity.state_slots)
            })
        });
        let states = states.collect();
        let weights = plan
            .weights
            .iter()
            .map(|spec| weight_shards(spec, &mut limits))
            .collect();
        let side = caps.allocation.side.of(plan, capacity).into_iter().map(
            |SideBuffer { name, bytes }| SideBuffer {
                name,
                bytes: limits.buffer(bytes, || name.to_owned()),
            },
        );
        let side = side.collect();
        Self {
            weights,
            rows,
            states,
            group_rows,
            side,
            excess: limits.excess,
        }
    }

    /// Like [`Self::new`], but fails if a limit is exceeded.
    pub fn checked(plan: &Plan, capacity: &Capacity, caps: &Caps) -> Result<Self, BackendError> {
        let mut layout = Self::new(plan, capacity, caps);
        layout
            .excess
            .take()
            .map_or(Ok(layout), |excess| Err(excess.on(caps)))
    }

    /// Bytes of the weights in device memory.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.iter().flatten().map(|shard| shard.bytes).sum()
    }

    /// Bytes of all state slots.
    pub fn state_bytes(&self) -> u64 {
        self.states.iter().sum()
    }

    /// Bytes of row buffers and side buffers.
    pub fn work_bytes(&self) -> u64 {
        self.rows.iter().sum::<u64>() + self.side.iter().map(|side| side.bytes).sum::<u64>()
    }
}

impl PoolLayout {
    /// Lays out a pool of `blocks[g]` blocks for KV group `g`.
    pub fn new(plan: &Plan, capacity: &Capacity, caps: &Caps, blocks: &[u32]) -> Self {
        assert_eq!(
            blocks.len(),
            plan.kv_groups.len(),
            "one block count per KV group"
        );
        let mut limits = Limits::new(caps);
        let layers = plan.kv_layers.iter().enumerate().map(|(index, layer)| {
            let head_bytes =
                u64::from(blocks[layer.group as usize]) * head_block_bytes(layer, capacity);
            let heads_max = limits.room(head_bytes).min(layer.heads).max(1);
            let starts = (0..layer.heads).step_by(heads_max as usize);
            starts
                .map(|head_start| {
                    let heads = heads_max.min(layer.heads - head_start);
                    let bytes = limits.binding(u64::from(heads) * head_bytes, || {
                        format!("one KV head of layer {index} over all blocks")
                    });
                    KvShard {
                        head_start,
                        heads,
                        bytes,
                        halves: layer.halves(),
                    }
                })
                .collect()
        });
        let layers = layers.collect();
        Self {
            layers,
            excess: limits.excess,
        }
    }

    /// Like [`Self::new`], but fails if a buffer is too large, or `blocks` is for another number of KV groups.
    pub fn checked(
        plan: &Plan,
        capacity: &Capacity,
        caps: &Caps,
        blocks: &[u32],
    ) -> Result<Self, BackendError> {
        if blocks.len() != plan.kv_groups.len() {
            return Err(BackendError::pool_sizes(blocks.len(), plan.kv_groups.len()));
        }
        let mut layout = Self::new(plan, capacity, caps, blocks);
        layout
            .excess
            .take()
            .map_or(Ok(layout), |excess| Err(excess.on(caps)))
    }

    /// Bytes of all keys and values.
    pub fn bytes(&self) -> u64 {
        self.layers
            .iter()
            .flatten()
            .map(|shard| u64::from(shard.halves) * shard.bytes)
            .sum()
    }
}

/// Maximum token rows of a batch for which every row buffer fits one binding.
pub fn tokens_max(plan: &Plan, caps: &Caps) -> u64 {
    let buffers = plan
        .buffers
        .iter()
        .map(|buffer| u64::from(buffer.rows.count(1, 0)) * buffer.row_bytes())
        .filter(|bytes| *bytes > 0);
    buffers
        .map(|bytes| usable(caps.binding_bytes_max, caps) / bytes)
        .min()
        .unwrap_or(u64::MAX)
}

/// Maximum blocks of a KV group: the keys of one head of a layer, which are never cut, fit one binding, and slot
/// numbers fit a `u32`.
pub fn blocks_max(plan: &Plan, capacity: &Capacity, caps: &Caps) -> u64 {
    let slots = u64::from(u32::MAX - 1) / u64::from(capacity.block_size);
    let block_bytes = plan
        .kv_layers
        .iter()
        .map(|layer| head_block_bytes(layer, capacity))
        .max()
        .unwrap_or(0);
    (usable(caps.binding_bytes_max, caps) / block_bytes.max(1)).min(slots)
}

/// Bytes of a block in the buffer of one head.
fn head_block_bytes(layer: &KvLayer, capacity: &Capacity) -> u64 {
    u64::from(capacity.block_size) * capacity.kv_format.row_bytes(layer.head_dim)
}

/// Maximum logits rows for which the widest `Rows::Samples` buffer fits one binding.
fn group_rows(plan: &Plan, capacity: &Capacity, caps: &Caps) -> u32 {
    let samples = plan
        .buffers
        .iter()
        .filter(|spec| spec.rows == Rows::Samples);
    samples
        .map(|spec| Limits::new(caps).room(spec.row_bytes()))
        .min()
        .unwrap_or(u32::MAX)
        .min(capacity.samples_max)
        .max(1)
}

fn weight_shards(spec: &WeightSpec, limits: &mut Limits<'_>) -> Vec<WeightShard> {
    let expert_rows = spec.rows / spec.experts;
    let (mut shards, mut row_start) = (Vec::new(), 0);
    for section in &spec.sections {
        let wide = spec.rows == 1 && limits.caps.allocation.wide_vectors;
        let format = if wide {
            WeightFormat::F32
        } else {
            section.format
        };
        let row_bytes = format.row_bytes(spec.columns);
        let rows_max = limits.room(row_bytes).max(1);
        let section_end = row_start + section.rows;
        while row_start < section_end {
            let room = rows_max.min(section_end - row_start);
            // A shard has whole experts, or rows of a single expert.
            let into_expert = row_start % expert_rows;
            let rows = match spec.experts {
                1 => room,
                _ if into_expert == 0 && room >= expert_rows => room / expert_rows * expert_rows,
                _ => room.min(expert_rows - into_expert),
            };
            let bytes = limits.binding(u64::from(rows) * row_bytes, || {
                format!("a row of weight {}", spec.name)
            });
            shards.push(WeightShard {
                row_start,
                rows,
                format,
                bytes,
            });
            row_start += rows;
        }
    }
    debug_assert_eq!(row_start, spec.rows, "the sections cover all rows");
    shards
}

/// The limit, rounded down to whole granules.
fn usable(limit: u64, caps: &Caps) -> u64 {
    limit - limit % caps.allocation.granule
}

/// Pads buffer sizes and records the first limit that is exceeded.
struct Limits<'a> {
    caps: &'a Caps,
    excess: Option<Excess>,
}

impl<'a> Limits<'a> {
    fn new(caps: &'a Caps) -> Self {
        Self { caps, excess: None }
    }

    fn kv_groups(&mut self, groups: usize) {
        let limit = self.caps.allocation.kv_groups_max;
        if groups > limit && self.excess.is_none() {
            self.excess = Some(Excess::KvGroups { groups, limit });
        }
    }

    /// Number of pieces of this many bytes that fit one binding.
    fn room(&self, bytes: u64) -> u32 {
        u32::try_from(usable(self.caps.binding_bytes_max, self.caps) / bytes.max(1))
            .unwrap_or(u32::MAX)
    }

    /// Padded size of a buffer under the binding limit: a shard, or a row buffer.
    fn binding(&mut self, bytes: u64, what: impl FnOnce() -> String) -> u64 {
        self.within(bytes, self.caps.binding_bytes_max, what)
    }

    /// Padded size of a buffer that is never sharded.
    fn buffer(&mut self, bytes: u64, what: impl FnOnce() -> String) -> u64 {
        self.within(bytes, self.caps.allocation.buffer_bytes_max, what)
    }

    fn within(&mut self, bytes: u64, limit: u64, what: impl FnOnce() -> String) -> u64 {
        let granule = self.caps.allocation.granule;
        let needed = bytes.max(1).next_multiple_of(granule);
        if needed > limit && self.excess.is_none() {
            self.excess = Some(Excess::Buffer {
                what: what(),
                needed,
                limit,
            });
        }
        needed
    }
}
