//! The inputs of one batch, which the engine submits to a backend: flat arrays, immutable once submitted.
//!
//! Rows are tokens, grouped by sequence in [`BatchInputs::sequences`]. Everything that depends on a KV group (block
//! tables, slots, copies) is an array per group, in the order of [`super::Plan::kv_groups`].

use super::{Part, Tail};

/// Means "none" where a block, slot, range, row or token is optional.
pub const NONE: u32 = u32::MAX;
/// Marks a token id that is not known to the host yet: it stands for `feed[id & !FEED]`, the token that the device
/// sampled into that feed slot.
pub const FEED: u32 = 1 << 31;
/// Marks the id of a token of the second text of a pair, whose token type is 1. Only models with a table of types have
/// such tokens.
pub const SECOND_TEXT: u32 = 1 << 30;
/// Marks a token that stands for a part of an image: `IMAGE_ROW | row` has that row of
/// [`Plan::image_rows`](super::Plan::image_rows) in place of an embedding.
pub const IMAGE_ROW: u32 = 1 << 29;
/// Axes along which a row of an image has a position: time, row and column.
pub const AXES: usize = 3;
/// A position along each of the [`AXES`]. Their number is written here: rustc 1.95 fails where a closure moves the rest
/// of a struct with an array whose length is a named constant.
pub type Place = [u32; 3];
/// Maximum of [`SampleRow::top_logprobs`]. Beam search needs as many for 16 beams of a model whose answers end in many
/// ways; a request that samples may ask for 20.
pub const TOP_LOGPROBS_MAX: u32 = 256;
/// Token id reported for a row whose logits were NaN or all −∞.
pub const NUMERICAL_ERROR: u32 = u32::MAX;

/// The rows of one sequence in this batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceRows {
    /// First token row.
    pub row_start: u32,
    /// Number of token rows; their positions are consecutive.
    pub row_count: u32,
    /// Tokens of the sequence in the KV pool after this batch: the last row's position + 1.
    pub context_len: u32,
}

/// State slots of one sequence: where its state before this batch is, and where its state after it belongs. Both are
/// usually the same slot, whose state is then updated in place; a state that is still needed is left as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateRows {
    /// Slot to read; [`NONE`]: the sequence starts with this batch, and its state is zero. Several sequences may read
    /// one slot.
    pub from: u32,
    /// Slot to write. No other sequence of the batch reads or writes it.
    pub to: u32,
}

/// Block tables, slots and block copies of one KV group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupInputs {
    /// `block_tables[table_starts[s] + i]` is the block of positions `[i · block_size, (i + 1) · block_size)` of
    /// sequence `s`; [`NONE`] if the block has left the attention window.
    pub block_tables: Vec<u32>,
    /// Start of each sequence's block table in `block_tables`.
    pub table_starts: Vec<u32>,
    /// Per token row: the slot for its K and V, `block · block_size + offset`; [`NONE`] skips the write.
    pub slot_mapping: Vec<u32>,
    /// Blocks to copy, as (source, target), before K and V are written.
    pub copies: Vec<(u32, u32)>,
}

/// Range of entries in one of the side arrays of [`BatchInputs`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// First entry.
    pub start: u32,
    /// Number of entries.
    pub len: u32,
}

/// Numeric sampling parameters, carried by a request and by each of its [`SampleRow`]s; [`SampleRow`] defines their
/// effect. Defaults are vLLM's: every option is off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DrawParams {
    /// Temperature; 0 is greedy.
    pub temperature: f32,
    /// Keeps the `top_k` most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps the most likely tokens whose probabilities sum to `top_p`, in (0, 1]; 1 keeps all.
    pub top_p: f32,
    /// Minimum probability relative to the most likely token, in [0, 1]; 0 keeps all.
    pub min_p: f32,
    /// Repetition penalty, in (0, 2]; 1 is off.
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
    /// Greedy: the most likely token, with every option off.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            ..Self::default()
        }
    }

    /// The same with all penalties off.
    pub fn without_penalties(self) -> Self {
        let off = Self::default();
        Self {
            repetition_penalty: off.repetition_penalty,
            presence_penalty: off.presence_penalty,
            frequency_penalty: off.frequency_penalty,
            ..self
        }
    }

    /// Whether any penalty is on, so that earlier tokens change the logits.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
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
/// A row with a [`scored_token`](Self::scored_token) draws nothing and ignores all of these options.
///
/// Logprobs are those of the raw logits, before bias and penalties.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleRow {
    /// Index into [`BatchInputs::logits_rows`]. The sample rows of a batch are sorted by it; several may share one.
    pub logits_row: u32,
    /// Feed slot on the device that keeps the drawn id for the next batch, or [`NONE`].
    pub feed_slot: u32,
    /// 64-bit seed of the random generator.
    pub seed: u64,
    /// Choice index of the request.
    pub choice: u32,
    /// Position of the drawn token in its sequence.
    pub position: u32,
    /// Temperature, thresholds and penalties.
    pub draw: DrawParams,
    /// The row's entries in [`BatchInputs::history`].
    pub history: Range,
    /// Feed slot of a generated token that is missing from the history because the host has not read it yet, or
    /// [`NONE`].
    pub pending_slot: u32,
    /// The row's entries in [`BatchInputs::bias`].
    pub bias: Range,
    /// Start of `⌈vocab / 32⌉` words in [`BatchInputs::masks`] (bit set: allowed), or [`NONE`].
    pub mask_start: u32,
    /// Known token of the prompt, which is reported with its logprob instead of a drawn one; [`NONE`] to draw.
    pub scored_token: u32,
    /// Report the token's logprob.
    pub logprob: bool,
    /// Number of most likely tokens to report, at most [`TOP_LOGPROBS_MAX`].
    pub top_logprobs: u32,
    /// Whether these are the most likely of the tokens that the mask allows, instead of all. Only for rows without
    /// bias, penalties and scored token.
    pub top_allowed: bool,
}

impl SampleRow {
    /// Whether the row may have [`Self::top_allowed`].
    pub(crate) fn lists_allowed(&self) -> bool {
        self.bias.len == 0 && !self.draw.has_penalties() && self.scored_token == NONE
    }

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
            scored_token: NONE,
            logprob: false,
            top_logprobs: 0,
            top_allowed: false,
        }
    }
}

/// Token rows of one sequence whose final hidden states are summed, or rows that a tower has merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolRow {
    /// First row.
    pub row_start: u32,
    /// Number of consecutive rows, at least one.
    pub row_count: u32,
}

/// An earlier token of a sequence and its count, for penalties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    /// Token id; each id once per row.
    pub token_id: u32,
    /// How often it was generated; 0 if it occurs only in the prompt.
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
    /// Per token row: a token id, which [`SECOND_TEXT`] may mark, [`FEED`]` | slot` or [`IMAGE_ROW`]` | row`.
    pub token_ids: Vec<u32>,
    /// Position of each token row in its sequence. Where sequences are computed whole, they may come in any order.
    pub positions: Vec<u32>,
    /// Per token row: its position along each axis, for rotations [by axis](super::Rope::by_axis). Empty: that of
    /// [`Self::positions`] along all of them.
    pub places: Vec<Place>,
    /// Sequences of the batch; their rows cover all token rows in order.
    pub sequences: Vec<SequenceRows>,
    /// One entry per sequence if the plan has state layers, else empty.
    pub states: Vec<StateRows>,
    /// Per sequence: the slot of its adapter, 0 for none. Empty if no sequence has one: such a batch runs the steps
    /// of [`AdapterSlots::unused`](super::AdapterSlots::unused).
    pub adapters: Vec<u32>,
    /// Per token row of a batch of the predictor: the row of the batch before, of the model or the predictor, whose
    /// result it reads. Its token is the one after that row's. Empty: a batch of the model.
    pub carried: Vec<u32>,
    /// One entry per KV group.
    pub groups: Vec<GroupInputs>,
    /// Token rows whose hidden state goes through the LM head, or that begin the runs that a tower merges.
    pub logits_rows: Vec<u32>,
    /// Tokens to draw, sorted by `logits_row`.
    pub samples: Vec<SampleRow>,
    /// Sums of hidden states to read back, at most one per sequence.
    pub pools: Vec<PoolRow>,
    /// Entries that [`SampleRow::history`] refers to.
    pub history: Vec<HistoryEntry>,
    /// Entries that [`SampleRow::bias`] refers to.
    pub bias: Vec<BiasEntry>,
    /// Words that [`SampleRow::mask_start`] refers to.
    pub masks: Vec<u32>,
    /// Tails to run after the body; a tail without rows costs nothing.
    pub tails: Vec<Tail>,
}

impl BatchInputs {
    /// The part of a plan that the batch runs.
    pub fn part(&self) -> Part {
        match (self.carried.is_empty(), self.adapters.is_empty()) {
            (false, _) => Part::Predictor,
            (true, false) => Part::Adapted,
            (true, true) => Part::Model,
        }
    }

    /// The position of a token row along each axis.
    pub fn place(&self, row: usize) -> Place {
        let place = self.places.get(row).copied();
        place.unwrap_or([self.positions[row]; AXES])
    }

    /// Whether a token row stands for a row of an image.
    pub fn has_image_rows(&self) -> bool {
        let mut ids = self.token_ids.iter();
        ids.any(|id| id & (FEED | IMAGE_ROW) == IMAGE_ROW)
    }
}

/// The result of one [`SampleRow`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampled {
    /// The drawn or scored id, or [`NUMERICAL_ERROR`].
    pub token_id: u32,
    /// Natural logarithm of its raw probability; 0 unless requested.
    pub logprob: f32,
    /// One more than the number of ids whose raw logits are larger; 0 unless the logprob is requested.
    pub rank: u32,
    /// The requested number of most likely tokens, most likely first, ties by lowest id.
    pub top: Vec<(u32, f32)>,
}

/// The results of one batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// One entry per [`SampleRow`], in order.
    pub sampled: Vec<Sampled>,
    /// One entry per [`PoolRow`], in order: a vector of the model's hidden size.
    pub pooled: Vec<Vec<f32>>,
}

/// Which kinds of sample rows a batch contains. A backend skips the kernels that no row needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SampleShape {
    /// Some rows are plain greedy: no other option, no logprobs.
    pub plain: bool,
    /// Some rows are not plain greedy.
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
            let plain =
                row.draw.temperature == 0.0 && !adjust && !logprobs && row.scored_token == NONE;
            shape.plain |= plain;
            shape.full |= !plain;
            shape.adjust |= adjust;
            shape.logprobs |= logprobs;
        }
        shape
    }
}
