//! What a decoder does, as data.
//!
//! Model code records a [`Plan`] once per loaded model; a backend runs it once per batch. A [`Step`] says *what* is
//! computed, never how: kernels, tiles and grids belong to the backend. Row counts are symbolic ([`Rows`]) and arrive
//! with each batch in [`inputs::BatchInputs`].
//!
//! A plan has a body, run for every batch, and tails, run when the batch asks for them. Buffers and weights are ids
//! with a shape and a storage type; nothing here knows a device, a checkpoint or a scheduler.

pub mod check;
pub mod format;
pub mod inputs;
pub mod print;

pub use format::{KvFormat, Layout, Storage, WeightFormat};

/// A row buffer of the plan: `rows × columns`, all of it allocated once, at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// A tensor that the checkpoint fills, or a constant the model computes from its config.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// How many rows a buffer has in a given batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rows {
    /// One row per scheduled token.
    Tokens,
    /// One row per gathered logits row. A backend may run a tail in groups of these rows, in order.
    Samples,
    /// So many rows per scheduled token, one for each expert that works on it: token t has rows t · n and on.
    Routes(u32),
}

impl Rows {
    /// Rows of a batch of `tokens` token rows and `samples` gathered rows.
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
    /// Row count, known per batch.
    pub rows: Rows,
    /// Elements a row.
    pub columns: u32,
    /// Element type; the twin rounds to it exactly where a step writes.
    pub storage: Storage,
}

/// Shape and format of a [`WeightId`]: row-major `rows × columns`, `rows` = 1 for vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightSpec {
    /// Unique within the plan, for example `layers.3.qkv`.
    pub name: String,
    /// Output rows.
    pub rows: u32,
    /// Elements a row.
    pub columns: u32,
    /// Runs of rows of one format, from the first row to the last; neighbours differ. Where q, k and v are stored in
    /// several formats, so is their matrix.
    pub sections: Vec<Section>,
    /// Experts whose rows lie one below the other; 1 for other weights. A device that cuts a weight cuts between them.
    pub experts: u32,
}

/// Consecutive rows of a weight, in one format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// Rows.
    pub rows: u32,
    /// Byte layout of each.
    pub format: WeightFormat,
}

impl WeightSpec {
    /// The format of a row.
    pub fn format_of(&self, row: u32) -> WeightFormat {
        let mut end = 0;
        let holds = |section: &&Section| {
            end += section.rows;
            row < end
        };
        self.sections.iter().find(holds).map_or(WeightFormat::F32, |section| section.format)
    }

    /// Bytes of one row in its format.
    pub fn row_bytes(&self, row: u32) -> u64 {
        self.format_of(row).row_bytes(self.columns)
    }

    /// Bytes of the longest row.
    pub fn row_bytes_max(&self) -> u64 {
        self.sections.iter().map(|section| section.format.row_bytes(self.columns)).max().unwrap_or(0)
    }

    /// Bytes of the rows before `row`.
    pub fn bytes_before(&self, row: u32) -> u64 {
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

    /// How many rows `bytes` bytes from `first_row` on are, if they are whole rows of one section, and at least one.
    pub fn whole_rows(&self, first_row: u32, bytes: u64) -> Option<u32> {
        let row_bytes = self.row_bytes(first_row).max(1);
        let mut end = 0;
        let section_end = self.sections.iter().find_map(|section| {
            end += section.rows;
            (first_row < end).then_some(end)
        })?;
        let rows = u32::try_from(bytes / row_bytes).ok()?;
        (bytes.is_multiple_of(row_bytes) && rows > 0 && rows <= section_end - first_row).then_some(rows)
    }
}

/// Layers that share block ids: one for full attention, one for each window size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvGroup {
    /// A query at position p sees keys in `(p - window, p]`; `None` sees all keys up to p.
    pub window: Option<u32>,
}

/// Where one decoder layer keeps its keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayer {
    /// Index into [`Plan::kv_groups`].
    pub group: u32,
    /// Key/value heads.
    pub heads: u32,
    /// Elements of one head.
    pub head_dim: u32,
}

/// Which rotation `RopeStoreKv` applies. The frequencies are a weight vector of `rotary_dim / 2` f32 values
/// (radians a position, computed in f64), so every scaling kind is data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// `[1 × rotary_dim / 2]` f32.
    pub frequencies: WeightId,
    /// Leading elements of a head that rotate; the rest pass through.
    pub rotary_dim: u32,
    /// Pairs are `(i, i + rotary_dim / 2)` (NeoX style, Hugging Face) or `(2i, 2i + 1)` (GPT-J style).
    pub interleaved: bool,
    /// Multiplies cos and sin (YaRN's attention factor); 1 otherwise.
    pub scale: f32,
}

/// RMS norm of q or k before the rotation: over each head, or over all heads of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadNorm {
    /// `[1 × head_dim]`, or `[1 × heads · head_dim]` with `whole_row`.
    pub weight: WeightId,
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// Multiply by `1 + w` instead of `w`.
    pub one_plus: bool,
    /// The mean is over all heads of a token's q (or k), not over each head.
    pub whole_row: bool,
}

/// The activation of a gated MLP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `silu(gate) · up`.
    Silu,
    /// `gelu(gate) · up` with the tanh approximation.
    GeluTanh,
    /// gpt-oss: gate ≤ limit, up in ±limit, `gate · sigmoid(alpha · gate) · (up + 1)`.
    ClampedSwiglu {
        /// Slope inside the sigmoid (1.702 for gpt-oss).
        alpha: f32,
        /// Clamp (7 for gpt-oss).
        limit: f32,
    },
}

/// One operation of a decoder. All arithmetic is f32 or wider; results are rounded once, to the storage written.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Copies KV blocks source → target in every layer, as the batch's lists say (copy-on-write).
    CopyBlocks,
    /// `out[t] = table[id(t)] · scale`; the id comes from the batch or from the feed slot the sampler wrote.
    Embed {
        /// `[vocab × hidden]`.
        table: WeightId,
        /// Multiplies every element.
        scale: f32,
        /// Rows Tokens.
        out: BufferId,
    },
    /// Optional `x += delta`; `out (=, +=) x / sqrt(mean(x²) + epsilon) · w`, or `· (1 + w)`.
    RmsNorm {
        /// Read; written too when `delta` is given.
        x: BufferId,
        /// Added to `x` first; same shape as `x`.
        delta: Option<BufferId>,
        /// `[1 × columns]`.
        weight: WeightId,
        /// Added to the mean of squares.
        epsilon: f32,
        /// Multiply by `1 + w` instead of `w`.
        one_plus: bool,
        /// Add to `out` instead of replacing it.
        accumulate: bool,
        /// Same shape as `x`, another buffer.
        out: BufferId,
    },
    /// `out (=, +=) x · Wᵀ + bias`.
    MatMul {
        /// `[rows × W.columns]`.
        x: BufferId,
        /// `[out.columns × x.columns]`, any weight format.
        weight: WeightId,
        /// `[1 × out.columns]`.
        bias: Option<WeightId>,
        /// Add to `out` instead of replacing it.
        accumulate: bool,
        /// `[rows × W.rows]`.
        out: BufferId,
    },
    /// Splits `qkv` rows into q, k and v heads; optional q/k head norm; rotates q and k by position; writes K and V to
    /// the pool by slot mapping and q to `q`.
    RopeStoreKv {
        /// `[tokens × (query_heads + 2 · kv_heads) · head_dim]`, in that order.
        qkv: BufferId,
        /// Index into [`Plan::kv_layers`].
        layer: u32,
        /// Query heads.
        query_heads: u32,
        /// Per-head norm of q.
        q_norm: Option<HeadNorm>,
        /// Per-head norm of k.
        k_norm: Option<HeadNorm>,
        /// `None`: a layer without rotation.
        rope: Option<Rope>,
        /// `[tokens × query_heads · head_dim]`.
        q: BufferId,
    },
    /// For each query row and head: `softmax(q · Kᵀ · scale)` over the visible keys, times V, through the block table.
    /// Scores pass, in this order, through scale, softcap, ALiBi; sinks join the softmax's denominator.
    AttendPaged {
        /// `[tokens × query_heads · head_dim]`.
        q: BufferId,
        /// Index into [`Plan::kv_layers`]; its group gives table and window.
        layer: u32,
        /// Query heads; a multiple of the layer's KV heads.
        query_heads: u32,
        /// Multiplies q · k.
        scale: f32,
        /// `c · tanh(score / c)`.
        softcap: Option<f32>,
        /// `[1 × query_heads]` f32 slopes: score += slope · (key position − query position).
        alibi: Option<WeightId>,
        /// `[1 × query_heads]` f32 logits of a virtual key without value.
        sinks: Option<WeightId>,
        /// `[tokens × query_heads · head_dim]`.
        out: BufferId,
    },
    /// `out = act(gate) · up`, row by row.
    GatedActivation {
        /// `[rows × 2 · out.columns]`: gate, then up.
        gate_up: BufferId,
        /// Which activation.
        activation: Activation,
        /// `[rows × columns]`.
        out: BufferId,
    },
    /// Chooses the experts of each token: those of the largest logits, largest first, ties by lowest id (by the order
    /// of the bits: −0 is below 0, a NaN above all). A weight is the expert's share in the softmax over all logits, or
    /// over the chosen ones.
    RouteExperts {
        /// `[tokens × experts]`, f32.
        logits: BufferId,
        /// The weights of a token add up to 1.
        renormalize: bool,
        /// Rows Routes(n), 2 columns, f32: the id of the expert as a number, and its weight.
        routes: BufferId,
    },
    /// The product of each route's row with its expert's matrix: `W_e · x + bias_e`. Into rows Routes it is written as
    /// it is; into rows Tokens, the products of a token are multiplied by their weights and added up.
    MatMulExperts {
        /// `[tokens × W.columns]`, a row for all experts of its token; or `[routes × W.columns]`.
        x: BufferId,
        /// As [`Step::RouteExperts`] writes it.
        routes: BufferId,
        /// `[experts · out.columns × W.columns]`, any weight format; its spec says how many experts.
        weight: WeightId,
        /// `[1 × experts · out.columns]`.
        bias: Option<WeightId>,
        /// Add to `out` instead of replacing it; only into rows Tokens.
        accumulate: bool,
        /// `[routes × n]`, or `[tokens × n]`.
        out: BufferId,
    },
    /// `out[s] = x[logits_rows[s]]`: the rows that will be sampled.
    GatherRows {
        /// Rows Tokens.
        x: BufferId,
        /// Rows Samples, same columns.
        out: BufferId,
    },
    /// In place: `logits = softcap · tanh(scale · logits / softcap)`, or `scale · logits` without a cap.
    ScaleLogits {
        /// `[samples × vocab]`.
        logits: BufferId,
        /// Multiplies every logit.
        scale: f32,
        /// Bounds them smoothly; positive.
        softcap: Option<f32>,
    },
    /// Draws one token per sample row of the batch from its logits row; see [`inputs::SampleRow`] for the exact rule.
    Sample {
        /// `[samples × vocab]`, f32. Not changed: bias, penalties and mask act on the fly.
        logits: BufferId,
    },
    /// For each of the batch's [`inputs::PoolRow`]s, the sum of its rows of `x`, read back in f32. One row is the state
    /// of a token; to take the mean over all chunks of a prompt, and to normalise, is the host's work.
    Pool {
        /// Rows Tokens.
        x: BufferId,
    },
}

/// A part of the plan that a batch runs only when it names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tail {
    /// Final norm, LM head and sampling of the gathered rows; a row may bring its token and want its logprob only.
    Sample,
    /// Final norm of all token rows, and sums of them: embeddings.
    Pool,
}

/// What one loaded model computes, recorded once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Indexed by [`BufferId`].
    pub buffers: Vec<BufferSpec>,
    /// Indexed by [`WeightId`].
    pub weights: Vec<WeightSpec>,
    /// KV groups; a batch carries tables, slots and copies for each.
    pub kv_groups: Vec<KvGroup>,
    /// One entry per decoder layer that keeps keys and values.
    pub kv_layers: Vec<KvLayer>,
    /// Steps of every batch, in order.
    pub body: Vec<Step>,
    /// Steps of a tail, in order.
    pub tails: Vec<(Tail, Vec<Step>)>,
    /// Token ids are below this.
    pub vocab: u32,
    /// Positions are below this.
    pub positions_max: u32,
}

impl Plan {
    /// Adds a buffer.
    pub fn buffer(&mut self, name: &'static str, rows: Rows, columns: u32, storage: Storage) -> BufferId {
        let id = BufferId(u32::try_from(self.buffers.len()).expect("a plan has few buffers"));
        self.buffers.push(BufferSpec { name, rows, columns, storage });
        id
    }

    /// Adds a weight of one format.
    pub fn weight(&mut self, name: impl Into<String>, rows: u32, columns: u32, format: WeightFormat) -> WeightId {
        self.weight_in_sections(name, columns, &[Section { rows, format }])
    }

    /// Adds a weight whose rows may differ in format.
    pub fn weight_in_sections(&mut self, name: impl Into<String>, columns: u32, parts: &[Section]) -> WeightId {
        let id = WeightId(u32::try_from(self.weights.len()).expect("a plan has few weights"));
        let mut sections: Vec<Section> = Vec::with_capacity(parts.len());
        for part in parts {
            match sections.last_mut() {
                Some(last) if last.format == part.format => last.rows += part.rows,
                _ => sections.push(*part),
            }
        }
        let rows = sections.iter().map(|section| section.rows).sum();
        self.weights.push(WeightSpec { name: name.into(), rows, columns, sections, experts: 1 });
        id
    }

    /// Says that the rows of a weight are those of `experts`, one below the other.
    pub fn stack_experts(&mut self, weight: WeightId, experts: u32) {
        self.weights[weight.0 as usize].experts = experts;
    }

    /// The spec of a buffer of this plan.
    pub fn buffer_spec(&self, id: BufferId) -> &BufferSpec {
        &self.buffers[id.0 as usize]
    }

    /// The spec of a weight of this plan.
    pub fn weight_spec(&self, id: WeightId) -> &WeightSpec {
        &self.weights[id.0 as usize]
    }

    /// The steps of `tail`, empty when the plan has none.
    pub fn tail(&self, tail: Tail) -> &[Step] {
        self.tails.iter().find(|(name, _)| *name == tail).map_or(&[], |(_, steps)| steps)
    }

    /// Elements of a row that the pool tail adds up; 0 when the plan has none.
    pub fn pooled_columns(&self) -> u32 {
        let pooled = self.tail(Tail::Pool).iter().find_map(|step| match step {
            Step::Pool { x } => Some(self.buffer_spec(*x).columns),
            _ => None,
        });
        pooled.unwrap_or(0)
    }

    /// Bytes of all weights as the device holds them.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.iter().map(WeightSpec::bytes).sum()
    }

    /// Bytes of weights that a sequence alone reads for each token: every matrix once, one row of an embedding table,
    /// of stacked experts those that a token is routed to.
    pub fn token_weight_bytes(&self) -> u64 {
        let mut bytes: Vec<u64> = self.weights.iter().map(WeightSpec::bytes).collect();
        let steps = || self.body.iter().chain(self.tails.iter().flat_map(|(_, steps)| steps));
        for step in steps() {
            match step {
                Step::Embed { table, .. } => bytes[table.0 as usize] = self.weight_spec(*table).row_bytes_max(),
                Step::MatMulExperts { weight, routes, .. } => {
                    let spec = self.weight_spec(*weight);
                    let routed = self.buffer_spec(*routes).rows.count(1, 1).min(spec.experts);
                    bytes[weight.0 as usize] = spec.bytes() / u64::from(spec.experts.max(1)) * u64::from(routed);
                }
                _ => {}
            }
        }
        // A table may be the LM head too.
        for step in steps() {
            if let Step::MatMul { weight, .. } = step {
                bytes[weight.0 as usize] = self.weight_spec(*weight).bytes();
            }
        }
        bytes.iter().sum()
    }

    /// Bytes of K and V that a token reads whose sequence has `context` tokens, as far as windows let it see them.
    pub fn token_kv_bytes(&self, context: u32, format: KvFormat) -> u64 {
        let bytes = |layer: &KvLayer| {
            let window = self.kv_groups[layer.group as usize].window.unwrap_or(u32::MAX);
            2 * u64::from(layer.heads) * format.row_bytes(layer.head_dim) * u64::from(context.min(window))
        };
        self.kv_layers.iter().map(bytes).sum()
    }

    /// Bytes that one block of KV group `group` takes over all its layers, K and V together.
    pub fn block_bytes(&self, group: usize, block_size: u32, format: KvFormat) -> u64 {
        let layers = self.kv_layers.iter().filter(|layer| layer.group as usize == group);
        layers.map(|layer| 2 * u64::from(layer.heads) * u64::from(block_size) * format.row_bytes(layer.head_dim)).sum()
    }
}
