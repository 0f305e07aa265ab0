//! Operands of the steps of a plan: row buffers, weights, layers of the KV pool and of the state slots, each an id with
//! a spec.

use super::format::{KvFormat, Storage, WeightFormat};

/// A row buffer of the plan: `rows × columns`, allocated once, at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// A tensor loaded from the checkpoint, or a constant that the model computes from its config.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// Kind of rows of a buffer; determines how many rows it has in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rows {
    /// One row per scheduled token.
    Tokens,
    /// One row per gathered logits row. A backend may run a tail in groups of these rows, in order.
    Samples,
    /// `n` rows per scheduled token, one for each expert that it is routed to: token t has rows t · n to t · n + n − 1.
    Routes(u32),
}

impl Rows {
    /// Number of rows in a batch of `tokens` token rows and `samples` gathered rows.
    pub fn count(self, tokens: u32, samples: u32) -> u32 {
        match self {
            Self::Tokens => tokens,
            Self::Samples => samples,
            Self::Routes(per_token) => tokens.saturating_mul(per_token),
        }
    }
}

/// Shape and storage of a [`BufferId`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferSpec {
    /// Unique within the plan: the label in GPU debuggers and in the printed plan.
    pub name: &'static str,
    /// Kind of rows; the count is known per batch.
    pub rows: Rows,
    /// Elements per row.
    pub columns: u32,
    /// Element type. The CPU reference rounds to it exactly where a step writes.
    pub storage: Storage,
}

impl BufferSpec {
    /// Bytes of one row.
    pub fn row_bytes(&self) -> u64 {
        u64::from(self.columns) * u64::from(self.storage.bytes())
    }
}

/// Shape and format of a [`WeightId`]: row-major `rows × columns`, `rows` = 1 for vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightSpec {
    /// Unique within the plan, for example `layers.3.qkv`.
    pub name: String,
    /// Output rows.
    pub rows: u32,
    /// Elements per row.
    pub columns: u32,
    /// Consecutive runs of rows with one format each; adjacent runs differ in format. There are several if the
    /// checkpoint stores q, k and v in different formats.
    pub sections: Vec<Section>,
    /// Number of experts whose rows are stacked in this weight; 1 for other weights. A device that shards the weight
    /// cuts between experts.
    pub experts: u32,
}

/// Consecutive rows of a weight, in one format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// Number of rows.
    pub rows: u32,
    /// Format of each row.
    pub format: WeightFormat,
}

impl WeightSpec {
    /// The format of a row.
    pub fn format_of(&self, row: u32) -> WeightFormat {
        debug_assert!(
            row < self.rows,
            "row {row} is one of the {} rows of {}",
            self.rows,
            self.name
        );
        let mut end = 0;
        self.sections
            .iter()
            .find(|section| {
                end += section.rows;
                row < end
            })
            .map_or(WeightFormat::F32, |section| section.format)
    }

    /// Bytes of one row in its format.
    pub fn row_bytes(&self, row: u32) -> u64 {
        self.format_of(row).row_bytes(self.columns)
    }

    /// Bytes of the longest row.
    pub fn row_bytes_max(&self) -> u64 {
        self.sections
            .iter()
            .map(|section| section.format.row_bytes(self.columns))
            .max()
            .unwrap_or(0)
    }

    /// Bytes of the rows before `row`.
    pub fn bytes_before(&self, row: u32) -> u64 {
        debug_assert!(
            row <= self.rows,
            "row {row} is one of the {} rows of {}, or their end",
            self.rows,
            self.name
        );
        let (mut left, mut bytes) = (row, 0);
        for section in &self.sections {
            let rows = left.min(section.rows);
            bytes += u64::from(rows) * section.format.row_bytes(self.columns);
            left -= rows;
        }
        bytes
    }

    /// Bytes of the whole tensor.
    pub fn bytes(&self) -> u64 {
        self.bytes_before(self.rows)
    }

    /// Number of rows in `bytes` bytes starting at `first_row`, if these are one or more whole rows of one section.
    pub fn whole_rows(&self, first_row: u32, bytes: u64) -> Option<u32> {
        let mut end = 0;
        let section_end = self.sections.iter().find_map(|section| {
            end += section.rows;
            (first_row < end).then_some(end)
        })?;
        let row_bytes = self.row_bytes(first_row).max(1);
        let rows = u32::try_from(bytes / row_bytes).ok()?;
        (bytes.is_multiple_of(row_bytes) && rows > 0 && rows <= section_end - first_row)
            .then_some(rows)
    }
}

/// Which of the keys up to its own a query sees, if not all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Window {
    /// The last so many, its own included: at position p, those in `(p - tokens, p]`.
    Last(u32),
    /// Those of its chunk: positions are cut into chunks of so many tokens, from 0 on.
    Chunk(u32),
}

impl Window {
    /// Most keys that a query sees.
    pub fn tokens(self) -> u32 {
        match self {
            Self::Last(tokens) | Self::Chunk(tokens) => tokens,
        }
    }

    /// Position of the first key that a query at `position` sees.
    pub fn first_visible(self, position: u32) -> u32 {
        match self {
            Self::Last(tokens) => (position + 1).saturating_sub(tokens),
            Self::Chunk(tokens) => position - position % tokens,
        }
    }

    /// Whether a query sees, at every position, all keys that it would see of `other`.
    pub fn covers(self, other: Self) -> bool {
        self == other || matches!(self, Self::Last(tokens) if tokens >= other.tokens())
    }
}

/// Layers that share block ids: one group for full attention, and one for each window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvGroup {
    /// `None`: a query sees all keys up to its own.
    pub window: Option<Window>,
}

/// Keys and values of one decoder layer in the KV pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayer {
    /// Index into [`Plan::kv_groups`](super::Plan::kv_groups).
    pub group: u32,
    /// Key/value heads.
    pub heads: u32,
    /// Elements of one head.
    pub head_dim: u32,
    /// A latent: the values are the keys, and only these are stored.
    pub latent: bool,
}

impl KvLayer {
    /// What is stored of a head: keys and values, or the keys alone.
    pub fn halves(&self) -> u32 {
        if self.latent { 1 } else { 2 }
    }

    /// Bytes that one token takes.
    pub fn token_bytes(&self, format: KvFormat) -> u64 {
        u64::from(self.halves() * self.heads) * format.row_bytes(self.head_dim)
    }
}

/// What one decoder layer keeps of a sequence instead of keys and values: a state of fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateLayer {
    /// Elements of the state of one sequence, f32.
    pub elements: u32,
}

impl StateLayer {
    /// Bytes of the state of one sequence.
    pub fn bytes(&self) -> u64 {
        4 * u64::from(self.elements)
    }
}

/// The tables that the ids in a step refer to, borrowed from a [`Plan`](super::Plan).
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// Indexed by [`BufferId`].
    pub buffers: &'a [BufferSpec],
    /// Indexed by [`WeightId`].
    pub weights: &'a [WeightSpec],
    /// One entry per decoder layer that keeps keys and values.
    pub kv_layers: &'a [KvLayer],
    /// One entry per decoder layer that keeps a state.
    pub state_layers: &'a [StateLayer],
    /// Vocabulary size: token ids are below this.
    pub vocab: u32,
    /// Maximum number of positions: positions are below this.
    pub positions_max: u32,
}

impl<'a> Operands<'a> {
    /// The spec of a buffer, if it exists.
    pub fn buffer(&self, id: BufferId) -> Option<&'a BufferSpec> {
        self.buffers.get(id.0 as usize)
    }

    /// The spec of a weight, if it exists.
    pub fn weight(&self, id: WeightId) -> Option<&'a WeightSpec> {
        self.weights.get(id.0 as usize)
    }

    /// Name of a buffer, or its number if it is unknown, so that an invalid plan can be printed too.
    pub fn buffer_name(&self, id: BufferId) -> String {
        self.buffer(id)
            .map_or_else(|| format!("buffer#{}", id.0), |buffer| buffer.name.into())
    }

    /// Name of a weight, or its number if it is unknown.
    pub fn weight_name(&self, id: WeightId) -> String {
        self.weight(id)
            .map_or_else(|| format!("weight#{}", id.0), |weight| weight.name.clone())
    }
}
