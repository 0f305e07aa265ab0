//! What one step of the engine hands to a backend: flat arrays, immutable once submitted.
//!
//! Rows are tokens, grouped by sequence in [`BatchInputs::sequences`]. Everything that depends on a KV group (tables,
//! slots, copies) is an array per group, in the order of [`super::Plan::kv_groups`].

use super::Tail;

/// No such block, slot, range or row.
pub const NONE: u32 = u32::MAX;
/// A token id with this bit set is `feed[id & !FEED]`: the token that the device sampled into that slot.
pub const FEED: u32 = 1 << 31;
/// Most alternatives a row may ask for.
pub const TOP_LOGPROBS_MAX: u32 = 20;
/// The id of a sampled row whose logits were NaN or all −∞.
pub const NUMERICAL_ERROR: u32 = u32::MAX;

/// The rows of one sequence in this batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceRows {
    /// First token row.
    pub row_start: u32,
    /// Token rows; they are consecutive positions.
    pub row_count: u32,
    /// Tokens in the KV pool once this batch has run: the last row's position + 1.
    pub context_len: u32,
}

/// Tables, slots and copies of one KV group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupInputs {
    /// `block_tables[table_starts[s] + i]` is the block of positions `[i · block_size, (i + 1) · block_size)` of
    /// sequence `s`; [`NONE`] where a window has passed.
    pub block_tables: Vec<u32>,
    /// One entry per sequence.
    pub table_starts: Vec<u32>,
    /// Per token row: `block · block_size + offset` where its K and V go; [`NONE`] skips the write.
    pub slot_mapping: Vec<u32>,
    /// Blocks to copy (source, target) before anything is written.
    pub copies: Vec<(u32, u32)>,
}

/// Slice of one of the side arrays of [`BatchInputs`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// First entry.
    pub start: u32,
    /// Entries.
    pub len: u32,
}

/// The numbers that say how a token is drawn: declared here, carried by a request's parameters and by each of its
/// [`SampleRow`]s, which also says what each of them does. Defaults are vLLM's; every option is off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DrawParams {
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// In (0, 1]; 1 keeps all.
    pub top_p: f32,
    /// In [0, 1]; 0 keeps all.
    pub min_p: f32,
    /// In (0, 2]; 1 is off.
    pub repetition_penalty: f32,
    /// In [-2, 2]; 0 is off.
    pub presence_penalty: f32,
    /// In [-2, 2]; 0 is off.
    pub frequency_penalty: f32,
}

impl Default for DrawParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
        }
    }
}

impl DrawParams {
    /// The most likely token, with every option off.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Whether tokens of the past change what is drawn.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

/// How one token is drawn.
///
/// In this order: logit bias; penalties (repetition: divide positive, multiply negative logits of tokens seen in prompt
/// or output; frequency: subtract `count · frequency`; presence: subtract once; both over generated tokens only); mask;
/// divide by temperature; min-p: keep `p ≥ min_p · p_max`; top-k: keep values not below the k-th largest (ties stay);
/// top-p on what is left: with integer weights `round(p / p_max · 2²⁴)`, the smallest set of largest values, ties
/// included, whose sum reaches `top_p` of the total; then Gumbel-max over the kept set with Philox4x32-10:
/// key = (low seed word, choice), counter = (position, candidate id / 4, high seed word, 0), lane = id mod 4.
/// Temperature 0 is argmax. Ties go to the lowest id.
/// A row with a given token draws nothing and looks at none of this.
///
/// Logprobs are those of the raw logits, before bias and penalties.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleRow {
    /// Index into [`BatchInputs::logits_rows`]; rows of one batch are sorted by it, several may share one.
    pub logits_row: u32,
    /// Where the drawn id is kept on the device for the next step, or [`NONE`].
    pub feed_slot: u32,
    /// A 64-bit seed.
    pub seed: u64,
    /// Choice index of the request.
    pub choice: u32,
    /// Position that the drawn token will have.
    pub position: u32,
    /// Temperature, thresholds and penalties.
    pub draw: DrawParams,
    /// Slice of [`BatchInputs::history`].
    pub history: Range,
    /// Feed slot of a generated token that the history lacks because it has not been read yet, or [`NONE`].
    pub pending_slot: u32,
    /// Slice of [`BatchInputs::bias`].
    pub bias: Range,
    /// Start of `⌈vocab / 32⌉` words in [`BatchInputs::masks`] (bit set: allowed), or [`NONE`].
    pub mask_start: u32,
    /// This token instead of a drawn one: only logprobs are wanted, those of a prompt. [`NONE`]: draw.
    pub given: u32,
    /// Report the token's logprob.
    pub logprob: bool,
    /// How many of the most likely tokens to report, at most [`TOP_LOGPROBS_MAX`].
    pub top_logprobs: u32,
}

impl SampleRow {
    /// A greedy row over `logits_row` with every option off.
    pub fn greedy(logits_row: u32, position: u32) -> Self {
        Self {
            logits_row,
            feed_slot: NONE,
            seed: 0,
            choice: 0,
            position,
            draw: DrawParams::greedy(),
            history: Range::default(),
            pending_slot: NONE,
            bias: Range::default(),
            mask_start: NONE,
            given: NONE,
            logprob: false,
            top_logprobs: 0,
        }
    }
}

/// Token rows of one sequence whose final hidden states are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolRow {
    /// First token row.
    pub row_start: u32,
    /// Consecutive rows, at least one.
    pub row_count: u32,
}

/// A token of a sequence's past, for penalties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    /// Token id; each id once per row.
    pub token_id: u32,
    /// How often it was generated; 0 if only the prompt has it.
    pub generated: u32,
}

/// An entry of a row's logit bias.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BiasEntry {
    /// Token id; each id once per row.
    pub token_id: u32,
    /// Added to the logit.
    pub bias: f32,
}

/// One batch, flattened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BatchInputs {
    /// Per token row: an id, or [`FEED`]` | slot`.
    pub token_ids: Vec<u32>,
    /// Per token row.
    pub positions: Vec<u32>,
    /// Cover all token rows in order.
    pub sequences: Vec<SequenceRows>,
    /// One entry per KV group.
    pub groups: Vec<GroupInputs>,
    /// Token rows whose hidden state goes through the LM head.
    pub logits_rows: Vec<u32>,
    /// Tokens to draw, sorted by `logits_row`.
    pub samples: Vec<SampleRow>,
    /// Sums to read back; at most one for each sequence.
    pub pools: Vec<PoolRow>,
    /// Side array of [`SampleRow::history`].
    pub history: Vec<HistoryEntry>,
    /// Side array of [`SampleRow::bias`].
    pub bias: Vec<BiasEntry>,
    /// Side array of [`SampleRow::mask_start`].
    pub masks: Vec<u32>,
    /// Tails to run; one without rows costs nothing.
    pub tails: Vec<Tail>,
}

/// What came of one [`SampleRow`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampled {
    /// The drawn or given id, or [`NUMERICAL_ERROR`].
    pub token_id: u32,
    /// Natural logarithm of its raw probability; 0 unless asked for.
    pub logprob: f32,
    /// Most likely first, ties by lowest id; as many as asked for.
    pub top: Vec<(u32, f32)>,
}

/// What came of one batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// One entry per [`SampleRow`], in order.
    pub sampled: Vec<Sampled>,
    /// One entry per [`PoolRow`], in order: a vector of the model's hidden size.
    pub pooled: Vec<Vec<f32>>,
}

/// Which kinds of rows the sampler has to serve in a batch, so that a backend runs no kernel that no row needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SampleShape {
    /// Some rows are greedy and ask for nothing else.
    pub plain: bool,
    /// Some rows are not.
    pub full: bool,
    /// Some rows have a bias, penalties or a mask.
    pub adjust: bool,
    /// Some rows report logprobs.
    pub logprobs: bool,
}

impl SampleShape {
    /// The kinds of rows in `rows`.
    pub fn of(rows: &[SampleRow]) -> Self {
        let mut shape = Self::default();
        for row in rows {
            let adjust = row.draw.has_penalties() || row.bias.len > 0 || row.mask_start != NONE;
            let logprobs = row.logprob || row.top_logprobs > 0;
            let plain = row.draw.temperature == 0.0 && !adjust && !logprobs && row.given == NONE;
            shape.plain |= plain;
            shape.full |= !plain;
            shape.adjust |= adjust;
            shape.logprobs |= logprobs;
        }
        shape
    }
}
