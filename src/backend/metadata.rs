//! The metadata of a batch: one buffer of u32 that GPU kernels read, written once per submission.
//!
//! [`TABLE`] defines its layout: the header's counts and array offsets, the records of KV groups, sequences and sample
//! rows, and the result record of a sampled row. These numbers are written nowhere else. [`flatten`] uses them as Rust
//! constants, the WGSL preprocessor emits them for `#constants`, and the CUDA kernels include them as
//! `common/metadata_constants.cuh`, all under the same names.
//!
//! The header has the word offset of every array, so that a recorded program does not depend on where arrays start.
//! Batches are checked here, against capacity and pool: the kernels run without bounds checks.

use super::host::adapter_of_rows;
use super::{BackendError, Capacity};
use crate::plan::Plan;
use crate::plan::inputs::{
    self, BatchInputs, FEED, GroupInputs, IMAGE_ROW, NONE, Range, SECOND_TEXT, SampleRow, Sampled,
    SequenceRows, TOP_LOGPROBS_MAX,
};

/// Declares each number as a Rust constant and as an entry of [`TABLE`].
macro_rules! table {
    (use $($imported:ident)* ; $($(#[$doc:meta])* $name:ident = $value:expr;)*) => {
        $($(#[$doc])* pub(crate) const $name: u32 = $value;)*

        /// Every number that the kernels share with [`flatten`], by name; WGSL and CUDA use the same names.
        pub const TABLE: &[(&str, u32)] = &[
            $((stringify!($imported), inputs::$imported),)*
            $((stringify!($name), $name),)*
        ];
    };
}

table! {
    use NONE FEED SECOND_TEXT IMAGE_ROW TOP_LOGPROBS_MAX NUMERICAL_ERROR;

    // The header: counts, offsets of the arrays that all KV groups share, then one record per KV group.

    /// Header word: number of token rows.
    META_TOKEN_COUNT = 0;
    /// Header word: number of sequences.
    META_SEQUENCE_COUNT = 1;
    /// Header word: number of logits rows.
    META_LOGITS_COUNT = 2;
    /// Header word: number of sample rows.
    META_SAMPLE_COUNT = 3;
    /// Header word: offset of the token ids.
    META_TOKEN_IDS = 4;
    /// Header word: offset of the positions.
    META_POSITIONS = 5;
    /// Header word: offset of the sequence records.
    META_SEQUENCES = 6;
    /// Header word: offset of the logits rows; each is the index of its token row.
    META_LOGITS_ROWS = 7;
    /// Header word: offset of the sample records.
    META_SAMPLES = 8;
    /// Header word: offset of the history entries.
    META_HISTORY = 9;
    /// Header word: offset of the bias entries.
    META_BIAS = 10;
    /// Header word: offset of the masks.
    META_MASKS = 11;
    /// Header word: offset of the pool records.
    META_POOLS = 12;
    /// Header word: number of pool rows.
    META_POOL_COUNT = 13;
    /// Header word: words of a result record with its list, the same for all sample rows.
    META_RESULT_STRIDE = 14;
    /// Header word: offset of the records of the sequences' states.
    META_STATES = 15;
    /// Header word: offset of a number per token row. In a batch of the model it is the slot of the adapter, and there
    /// are none if no sequence has one; in a batch of the predictor it is the row that the token's row reads.
    META_ADAPTERS = 16;
    /// Header word: offset of the places of token rows, of plans that rotate by axis.
    META_PLACES = 17;
    /// Header word: start of the record of KV group 0; see [`group_header`].
    META_GROUPS = 18;
    /// Words of the header; the first array starts here.
    META_WORDS = META_GROUPS + GROUPS_MAX as u32 * GROUP_WORDS;

    // The record of a KV group, in the header.

    /// Word of a KV group: offset of the block tables.
    GROUP_TABLES = 0;
    /// Word of a KV group: offset of the table starts, one per sequence.
    GROUP_TABLE_STARTS = 1;
    /// Word of a KV group: offset of the slots, one per token row.
    GROUP_SLOTS = 2;
    /// Word of a KV group: offset of the block copies.
    GROUP_COPIES = 3;
    /// Word of a KV group: number of block copies.
    GROUP_COPY_COUNT = 4;
    /// Word of a KV group: offset of attention's work list, whose layout depends on the backend.
    GROUP_WORK = 5;
    /// Words of a KV group.
    GROUP_WORDS = 8;

    /// Word of a block copy: the source block.
    COPY_SOURCE = 0;
    /// Word of a block copy: the target block.
    COPY_TARGET = 1;
    /// Words of a block copy.
    COPY_WORDS = 2;

    /// Words of a place: the position along each axis.
    PLACE_WORDS = inputs::AXES as u32;

    /// Word of a sequence: its first token row.
    SEQUENCE_ROW_START = 0;
    /// Word of a sequence: its number of token rows.
    SEQUENCE_ROW_COUNT = 1;
    /// Word of a sequence: its number of tokens in the KV pool after this batch.
    SEQUENCE_CONTEXT_LEN = 2;
    /// Words of a sequence.
    SEQUENCE_WORDS = 4;

    /// Word of a sequence's state: the slot to read, or NONE.
    STATE_FROM = 0;
    /// Word of a sequence's state: the slot to write.
    STATE_TO = 1;
    /// Words of a sequence's state.
    STATE_WORDS = 2;

    // Attention's work list, which each backend plans as its kernels need it. The first words of an item are the same.

    /// Word of a work item: token row of packed row 0.
    ITEM_ROW = 0;
    /// Word of a work item: its first packed row.
    ITEM_PACKED = 1;
    /// Word of a work item: its number of packed rows.
    ITEM_COUNT = 2;
    /// Word of a work item: position of the token row of packed row 0.
    ITEM_POSITION = 3;
    /// Word of a work item: first key that any of the rows may see.
    ITEM_KEY_BEGIN = 4;
    /// Word of a work item: end of the keys that any of the rows may see.
    ITEM_KEY_END = 5;
    /// Word of a work item: start of the sequence's table among the group's tables.
    ITEM_TABLE = 6;
    /// Word of a work item: slot of the partial results (of a merge item: the first one), or NONE if the item has all
    /// keys of its rows.
    ITEM_SLOT = 7;
    /// Words of an item of WGSL.
    ITEM_WORDS = 8;
    /// Word of a merge item of WGSL, instead of a position: its number of slots.
    MERGE_ITEM_SPLITS = ITEM_POSITION;
    /// Word of a lane item: first slot of the set of rows that was cut into parts.
    LANE_ITEM_SLOT_FIRST = ITEM_WORDS;
    /// Word of a lane item: number of parts.
    LANE_ITEM_PARTS = ITEM_WORDS + 1;
    /// Word of a lane item: index of the counter of the parts.
    LANE_ITEM_COUNTER = ITEM_WORDS + 2;
    /// Words of an item of CUDA, in a lane or a tile.
    LANE_ITEM_WORDS = 12;
    /// Word of a list of CUDA: number of lanes.
    LANE_LIST_LANES = 0;
    /// Word of a list of CUDA: number of items in lanes.
    LANE_LIST_ITEMS = 1;
    /// Word of a list of CUDA: number of items in tiles.
    LANE_LIST_TILES = 2;
    /// Words of a list of CUDA before its first lane.
    LANE_LIST_WORDS = 4;

    // The record of a sample row: the fields of `SampleRow` and `DrawParams`; floats are stored as their bits.

    /// Word of a sample row.
    SAMPLE_LOGITS_ROW = 0;
    /// Word of a sample row.
    SAMPLE_FEED_SLOT = 1;
    /// Word of a sample row: the low half of the seed.
    SAMPLE_SEED_LOW = 2;
    /// Word of a sample row: the high half of the seed.
    SAMPLE_SEED_HIGH = 3;
    /// Word of a sample row.
    SAMPLE_CHOICE = 4;
    /// Word of a sample row.
    SAMPLE_POSITION = 5;
    /// Word of a sample row: f32.
    SAMPLE_TEMPERATURE = 6;
    /// Word of a sample row.
    SAMPLE_TOP_K = 7;
    /// Word of a sample row: f32.
    SAMPLE_TOP_P = 8;
    /// Word of a sample row: f32.
    SAMPLE_MIN_P = 9;
    /// Word of a sample row: f32.
    SAMPLE_REPETITION_PENALTY = 10;
    /// Word of a sample row: f32.
    SAMPLE_PRESENCE_PENALTY = 11;
    /// Word of a sample row: f32.
    SAMPLE_FREQUENCY_PENALTY = 12;
    /// Word of a sample row: its first history entry.
    SAMPLE_HISTORY_START = 13;
    /// Word of a sample row: its number of history entries.
    SAMPLE_HISTORY_LEN = 14;
    /// Word of a sample row.
    SAMPLE_PENDING_SLOT = 15;
    /// Word of a sample row: its first bias entry.
    SAMPLE_BIAS_START = 16;
    /// Word of a sample row: its number of bias entries.
    SAMPLE_BIAS_LEN = 17;
    /// Word of a sample row.
    SAMPLE_MASK_START = 18;
    /// Word of a sample row: 0 or 1.
    SAMPLE_LOGPROB = 19;
    /// Word of a sample row.
    SAMPLE_TOP_LOGPROBS = 20;
    /// Word of a sample row.
    SAMPLE_SCORED_TOKEN = 21;
    /// Word of a sample row: 0 or 1.
    SAMPLE_TOP_ALLOWED = 22;
    /// Words of a sample row.
    SAMPLE_WORDS = 24;

    /// Word of a history entry.
    HISTORY_TOKEN_ID = 0;
    /// Word of a history entry: how often the token was generated.
    HISTORY_GENERATED = 1;
    /// Words of a history entry.
    HISTORY_WORDS = 2;

    /// Word of a bias entry.
    BIAS_TOKEN_ID = 0;
    /// Word of a bias entry: f32, added to the logit.
    BIAS_VALUE = 1;
    /// Words of a bias entry.
    BIAS_WORDS = 2;

    /// Word of a pool row: its first token row.
    POOL_ROW_START = 0;
    /// Word of a pool row: its number of token rows.
    POOL_ROW_COUNT = 1;
    /// Words of a pool row.
    POOL_WORDS = 2;

    // The result record of a sample row.

    /// Word of a result: the token id, or NUMERICAL_ERROR.
    RESULT_TOKEN_ID = 0;
    /// Word of a result: f32, the token's logprob.
    RESULT_LOGPROB = 1;
    /// Word of a result: the token's rank by its raw logit, 1 for the likeliest.
    RESULT_RANK = 2;
    /// Words of a result before its list of likely tokens, which is as long as the batch's longest.
    RESULT_WORDS = 3;

    /// Word of a likely token: its id, most likely first; NONE ends a shorter list.
    LIKELY_ID = 0;
    /// Word of a likely token: f32, its logprob.
    LIKELY_LOGPROB = 1;
    /// Words of a likely token.
    LIKELY_WORDS = 2;
}

/// Maximum words of a result record with its list.
pub(crate) const RESULT_STRIDE_MAX: u32 = RESULT_WORDS + LIKELY_WORDS * TOP_LOGPROBS_MAX;

/// Maximum number of KV groups in the header.
pub(crate) const GROUPS_MAX: usize = 8;

/// Header word where the record of KV group `group` starts: `group_header` in a kernel's params.
pub(crate) fn group_header(group: u32) -> u32 {
    debug_assert!(
        (group as usize) < GROUPS_MAX,
        "a plan with more KV groups is rejected when it is loaded"
    );
    META_GROUPS + group * GROUP_WORDS
}

/// Maximum words of a batch, where attention's work list takes up to `work_words_max` per KV group.
pub(crate) fn words_max(plan: &Plan, capacity: &Capacity, work_words_max: u64) -> u64 {
    let c = capacity;
    // A batch has adapters or carried rows.
    let of_rows = if plan.adapters.is_some() || plan.predictor.is_some() {
        3
    } else {
        2
    };
    let places = if plan.rotates_by_axis() {
        PLACE_WORDS
    } else {
        0
    };
    let shared = wide(c.tokens_max) * (of_rows + wide(places))
        + wide(c.sequences_max) * wide(SEQUENCE_WORDS)
        + wide(c.sequences_max) * wide(STATE_WORDS)
        + wide(c.samples_max) * wide(1 + SAMPLE_WORDS)
        + wide(c.history_max) * wide(HISTORY_WORDS)
        + wide(c.bias_max) * wide(BIAS_WORDS)
        + wide(c.mask_words_max)
        + wide(c.pools_max(plan)) * wide(POOL_WORDS);
    let group = wide(c.table_entries_max)
        + wide(c.sequences_max)
        + wide(c.tokens_max)
        + wide(c.copies_max) * wide(COPY_WORDS)
        + work_words_max;
    wide(META_WORDS) + shared + group * plan.kv_groups.len() as u64
}

fn wide(count: u32) -> u64 {
    u64::from(count)
}

/// Inputs of [`flatten`] besides the batch.
pub(crate) struct Context<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) capacity: &'a Capacity,
    /// Number of blocks of each KV group.
    pub(crate) blocks: &'a [u32],
}

/// Writes `inputs` to `words` (cleared first). `work` appends attention's work list of a KV group; its offset is
/// already in the group's header.
pub(crate) fn flatten(
    context: &Context<'_>,
    inputs: &BatchInputs,
    words: &mut Vec<u32>,
    mut work: impl FnMut(usize, &mut Vec<u32>),
) -> Result<(), BackendError> {
    check(context, inputs)?;
    words.clear();
    words.resize(META_WORDS as usize, 0);
    for (header, count) in [
        (META_TOKEN_COUNT, inputs.token_ids.len()),
        (META_SEQUENCE_COUNT, inputs.sequences.len()),
        (META_LOGITS_COUNT, inputs.logits_rows.len()),
        (META_SAMPLE_COUNT, inputs.samples.len()),
        (META_POOL_COUNT, inputs.pools.len()),
    ] {
        words[header as usize] = u32::try_from(count).expect("checked against the capacity");
    }
    words[META_RESULT_STRIDE as usize] = result_stride(inputs);
    begin(words, META_TOKEN_IDS);
    words.extend_from_slice(&inputs.token_ids);
    begin(words, META_POSITIONS);
    words.extend_from_slice(&inputs.positions);
    begin(words, META_PLACES);
    if context.plan.rotates_by_axis() {
        let rows = 0..inputs.positions.len();
        words.extend(rows.flat_map(|row| inputs.place(row)));
    }
    begin(words, META_SEQUENCES);
    words.extend(inputs.sequences.iter().flat_map(sequence_record));
    begin(words, META_STATES);
    words.extend(inputs.states.iter().flat_map(|state| {
        record::<{ STATE_WORDS as usize }>(&[(STATE_FROM, state.from), (STATE_TO, state.to)])
    }));
    begin(words, META_ADAPTERS);
    words.extend(adapter_of_rows(inputs));
    words.extend_from_slice(&inputs.carried);
    begin(words, META_LOGITS_ROWS);
    words.extend_from_slice(&inputs.logits_rows);
    push_samples(inputs, words);
    for (group, arrays) in (0..).zip(&inputs.groups) {
        push_group(group, arrays, words);
        begin(words, group_header(group) + GROUP_WORK);
        work(group as usize, words);
    }
    Ok(())
}

/// Records in the header that an array starts at the current end of `words`.
fn begin(words: &mut [u32], header: u32) {
    debug_assert!(header < META_WORDS, "array offsets are header words");
    words[header as usize] =
        u32::try_from(words.len()).expect("a batch is far smaller than 2^32 words");
}

/// A record with these words at these offsets and 0 elsewhere.
pub(crate) fn record<const WORDS: usize>(fields: &[(u32, u32)]) -> [u32; WORDS] {
    let mut record = [0; WORDS];
    for (at, word) in fields {
        record[*at as usize] = *word;
    }
    record
}

fn sequence_record(rows: &SequenceRows) -> [u32; SEQUENCE_WORDS as usize] {
    record(&[
        (SEQUENCE_ROW_START, rows.row_start),
        (SEQUENCE_ROW_COUNT, rows.row_count),
        (SEQUENCE_CONTEXT_LEN, rows.context_len),
    ])
}

fn sample_record(row: &SampleRow) -> [u32; SAMPLE_WORDS as usize] {
    let draw = &row.draw;
    record(&[
        (SAMPLE_LOGITS_ROW, row.logits_row),
        (SAMPLE_FEED_SLOT, row.feed_slot),
        (SAMPLE_SEED_LOW, row.seed as u32),
        (SAMPLE_SEED_HIGH, (row.seed >> 32) as u32),
        (SAMPLE_CHOICE, row.choice),
        (SAMPLE_POSITION, row.position),
        (SAMPLE_TEMPERATURE, draw.temperature.to_bits()),
        (SAMPLE_TOP_K, draw.top_k),
        (SAMPLE_TOP_P, draw.top_p.to_bits()),
        (SAMPLE_MIN_P, draw.min_p.to_bits()),
        (SAMPLE_REPETITION_PENALTY, draw.repetition_penalty.to_bits()),
        (SAMPLE_PRESENCE_PENALTY, draw.presence_penalty.to_bits()),
        (SAMPLE_FREQUENCY_PENALTY, draw.frequency_penalty.to_bits()),
        (SAMPLE_HISTORY_START, row.history.start),
        (SAMPLE_HISTORY_LEN, row.history.len),
        (SAMPLE_PENDING_SLOT, row.pending_slot),
        (SAMPLE_BIAS_START, row.bias.start),
        (SAMPLE_BIAS_LEN, row.bias.len),
        (SAMPLE_MASK_START, row.mask_start),
        (SAMPLE_LOGPROB, u32::from(row.logprob)),
        (SAMPLE_TOP_LOGPROBS, row.top_logprobs),
        (SAMPLE_SCORED_TOKEN, row.scored_token),
        (SAMPLE_TOP_ALLOWED, u32::from(row.top_allowed)),
    ])
}

/// Appends the sample rows and the arrays that only they use.
fn push_samples(inputs: &BatchInputs, words: &mut Vec<u32>) {
    begin(words, META_SAMPLES);
    words.extend(inputs.samples.iter().flat_map(sample_record));
    begin(words, META_HISTORY);
    words.extend(inputs.history.iter().flat_map(|entry| {
        record::<{ HISTORY_WORDS as usize }>(&[
            (HISTORY_TOKEN_ID, entry.token_id),
            (HISTORY_GENERATED, entry.generated),
        ])
    }));
    begin(words, META_BIAS);
    words.extend(inputs.bias.iter().flat_map(|entry| {
        record::<{ BIAS_WORDS as usize }>(&[
            (BIAS_TOKEN_ID, entry.token_id),
            (BIAS_VALUE, entry.bias.to_bits()),
        ])
    }));
    begin(words, META_MASKS);
    words.extend_from_slice(&inputs.masks);
    begin(words, META_POOLS);
    words.extend(inputs.pools.iter().flat_map(|pool| {
        record::<{ POOL_WORDS as usize }>(&[
            (POOL_ROW_START, pool.row_start),
            (POOL_ROW_COUNT, pool.row_count),
        ])
    }));
}

/// Appends the arrays of a KV group, except attention's work list.
fn push_group(group: u32, arrays: &GroupInputs, words: &mut Vec<u32>) {
    let header = group_header(group);
    begin(words, header + GROUP_TABLES);
    words.extend_from_slice(&arrays.block_tables);
    begin(words, header + GROUP_TABLE_STARTS);
    words.extend_from_slice(&arrays.table_starts);
    begin(words, header + GROUP_SLOTS);
    words.extend_from_slice(&arrays.slot_mapping);
    begin(words, header + GROUP_COPIES);
    words.extend(arrays.copies.iter().flat_map(|(source, target)| {
        record::<{ COPY_WORDS as usize }>(&[(COPY_SOURCE, *source), (COPY_TARGET, *target)])
    }));
    words[(header + GROUP_COPY_COUNT) as usize] =
        u32::try_from(arrays.copies.len()).expect("checked against the capacity");
}

/// The results requested by a sample row.
#[derive(Clone, Copy)]
pub(crate) struct Requested {
    logprob: bool,
    top: u32,
}

/// The results requested by each sample row of a batch.
pub(crate) fn requested(inputs: &BatchInputs) -> Vec<Requested> {
    inputs
        .samples
        .iter()
        .map(|row| Requested {
            logprob: row.logprob,
            top: row.top_logprobs,
        })
        .collect()
}

/// Words of each result record of a batch: with the longest list that a row requests.
pub(crate) fn result_stride(inputs: &BatchInputs) -> u32 {
    stride_of(inputs.samples.iter().map(|row| row.top_logprobs))
}

fn stride_of(lists: impl Iterator<Item = u32>) -> u32 {
    RESULT_WORDS + LIKELY_WORDS * lists.max().unwrap_or(0)
}

/// Decodes `rows` pooled rows.
pub(crate) fn pooled(words: &[u32], rows: usize, columns: usize) -> Vec<Vec<f32>> {
    let rows = words.chunks_exact(columns.max(1)).take(rows);
    rows.map(|row| row.iter().map(|bits| f32::from_bits(*bits)).collect())
        .collect()
}

/// Decodes the result records of the sample rows.
pub(crate) fn sampled(words: &[u32], requested: &[Requested]) -> Vec<Sampled> {
    let stride = stride_of(requested.iter().map(|requested| requested.top)) as usize;
    words
        .chunks_exact(stride)
        .zip(requested)
        .map(|(row, requested)| {
            let list = row[RESULT_WORDS as usize..].chunks_exact(LIKELY_WORDS as usize);
            let top = list.map(|likely| {
                (
                    likely[LIKELY_ID as usize],
                    f32::from_bits(likely[LIKELY_LOGPROB as usize]),
                )
            });
            Sampled {
                token_id: row[RESULT_TOKEN_ID as usize],
                logprob: if requested.logprob {
                    f32::from_bits(row[RESULT_LOGPROB as usize])
                } else {
                    0.0
                },
                rank: if requested.logprob {
                    row[RESULT_RANK as usize]
                } else {
                    0
                },
                top: top
                    .take(requested.top as usize)
                    .take_while(|(id, _)| *id != NONE)
                    .collect(),
            }
        })
        .collect()
}

/// Checks that the batch stays within capacity, pool and its own arrays.
fn check(context: &Context<'_>, inputs: &BatchInputs) -> Result<(), BackendError> {
    check_counts(context.plan, context.capacity, inputs)?;
    check_rows(context, inputs)?;
    check_states(context, inputs)?;
    check_adapters(context.plan, inputs)?;
    check_carried(context, inputs)?;
    require(
        inputs.groups.len() == context.plan.kv_groups.len(),
        "inputs for the wrong number of KV groups",
    )?;
    for (group, blocks) in inputs.groups.iter().zip(context.blocks) {
        check_group(context, inputs, group, *blocks)?;
    }
    check_samples(context, inputs)
}

fn check_counts(
    plan: &Plan,
    capacity: &Capacity,
    inputs: &BatchInputs,
) -> Result<(), BackendError> {
    let tokens = inputs.token_ids.len();
    for (what, len, max) in [
        ("token rows", tokens, capacity.tokens_max),
        ("sequences", inputs.sequences.len(), capacity.sequences_max),
        (
            "logits rows",
            inputs.logits_rows.len(),
            capacity.samples_max,
        ),
        ("sample rows", inputs.samples.len(), capacity.samples_max),
        (
            "history entries",
            inputs.history.len(),
            capacity.history_max,
        ),
        ("bias entries", inputs.bias.len(), capacity.bias_max),
        ("pool rows", inputs.pools.len(), capacity.pools_max(plan)),
        ("mask words", inputs.masks.len(), capacity.mask_words_max),
    ] {
        fits(what, len, max)?;
    }
    Ok(())
}

/// Checks token rows, and what refers to them.
fn check_rows(context: &Context<'_>, inputs: &BatchInputs) -> Result<(), BackendError> {
    let tokens = inputs.token_ids.len();
    let rows = if context.plan.pools_merged_rows() {
        inputs.logits_rows.len()
    } else {
        tokens
    };
    let pooled = inputs.pools.iter().all(|pool| {
        let end = u64::from(pool.row_start) + u64::from(pool.row_count);
        pool.row_count > 0 && end <= rows as u64
    });
    require(pooled, "a pool row has no rows, or rows outside the batch")?;
    let images = context.plan.image_row_count();
    let ids = inputs.token_ids.iter().all(|id| match id {
        id if id & FEED != 0 => (id & !FEED) < context.capacity.feed_slots,
        id if id & IMAGE_ROW != 0 => (id & !IMAGE_ROW) < images,
        id => id & !SECOND_TEXT < context.plan.vocab || context.plan.vocab == 0,
    });
    require(
        ids,
        "a token id is neither in the vocabulary, a feed slot nor a row of an image",
    )?;
    require(
        inputs.positions.len() == tokens,
        "positions and token rows differ in number",
    )?;
    require(
        inputs.places.is_empty() || inputs.places.len() == tokens,
        "places and token rows differ in number",
    )?;
    let run = context.plan.gathered_run() as usize;
    let mut logits_rows = inputs.logits_rows.iter();
    require(
        logits_rows.all(|row| *row as usize + run <= tokens),
        "a logits row is not a token row",
    )?;
    let is_whole = context.plan.computes_whole_sequences();
    let mut sequences = inputs.sequences.iter();
    require(
        sequences.all(|rows| {
            if is_whole {
                is_within_context(rows, &inputs.positions)
            } else {
                ends_context(rows, &inputs.positions)
            }
        }),
        "a sequence's rows are not the last positions of its context, or not within it",
    )
}

/// Whether the rows of a sequence are at positions of its context, in any order.
fn is_within_context(sequence: &SequenceRows, positions: &[u32]) -> bool {
    let start = sequence.row_start as usize;
    let rows = positions.get(start..start + sequence.row_count as usize);
    let is_within = |position: &u32| *position < sequence.context_len;
    rows.is_some_and(|rows| rows.iter().all(is_within))
}

/// Whether the rows of a sequence are the last positions of its context.
fn ends_context(sequence: &SequenceRows, positions: &[u32]) -> bool {
    let start = sequence.row_start as usize;
    let rows = positions.get(start..start + sequence.row_count as usize);
    let first = sequence.context_len.checked_sub(sequence.row_count);
    rows.zip(first)
        .is_some_and(|(rows, first)| rows.iter().copied().eq(first..sequence.context_len))
}

fn check_states(context: &Context<'_>, inputs: &BatchInputs) -> Result<(), BackendError> {
    let states = if context.plan.for_batch(inputs).state_layers.is_empty() {
        0
    } else {
        inputs.sequences.len()
    };
    require(
        inputs.states.len() == states,
        "states and sequences differ in number",
    )?;
    let is_slot = |slot: u32| slot < context.capacity.state_slots;
    let are_known = inputs
        .states
        .iter()
        .all(|state| (state.from == NONE || is_slot(state.from)) && is_slot(state.to));
    require(are_known, "a state slot is unknown")
}

fn check_adapters(plan: &Plan, inputs: &BatchInputs) -> Result<(), BackendError> {
    if inputs.adapters.is_empty() {
        return Ok(());
    }
    require(
        inputs.adapters.len() == inputs.sequences.len(),
        "adapters and sequences differ in number",
    )?;
    let slots = plan.adapters.as_ref().map_or(0, |slots| slots.count);
    require(
        inputs.adapters.iter().all(|slot| *slot < slots),
        "an adapter slot is unknown",
    )
}

fn check_carried(context: &Context<'_>, inputs: &BatchInputs) -> Result<(), BackendError> {
    if inputs.carried.is_empty() {
        return Ok(());
    }
    require(
        context.plan.predictor.is_some() && inputs.adapters.is_empty(),
        "carried rows in a batch of the model",
    )?;
    require(
        inputs.carried.len() == inputs.token_ids.len(),
        "carried rows and token rows differ in number",
    )?;
    let rows = context.capacity.tokens_max;
    require(
        inputs.carried.iter().all(|row| *row < rows),
        "a carried row is unknown",
    )
}

fn fits(what: &str, len: usize, max: u32) -> Result<(), BackendError> {
    match len <= max as usize {
        true => Ok(()),
        false => Err(refused(format!(
            "{len} {what} exceed the capacity of {max}"
        ))),
    }
}

fn check_group(
    context: &Context<'_>,
    inputs: &BatchInputs,
    group: &GroupInputs,
    blocks: u32,
) -> Result<(), BackendError> {
    let capacity = context.capacity;
    require(
        group.block_tables.len() <= capacity.table_entries_max as usize,
        "the block tables exceed the capacity",
    )?;
    require(
        group.copies.len() <= capacity.copies_max as usize,
        "the block copies exceed the capacity",
    )?;
    require(
        group.slot_mapping.len() == inputs.token_ids.len(),
        "slots and token rows differ in number",
    )?;
    require(
        group.table_starts.len() == inputs.sequences.len(),
        "tables and sequences differ in number",
    )?;
    require(
        group
            .block_tables
            .iter()
            .all(|id| *id == NONE || *id < blocks),
        "a table contains an unknown block",
    )?;
    let slots = u64::from(blocks) * u64::from(capacity.block_size);
    require(
        group
            .slot_mapping
            .iter()
            .all(|slot| *slot == NONE || u64::from(*slot) < slots),
        "a slot is unknown",
    )?;
    require(
        group.copies.iter().all(|(from, to)| from.max(to) < &blocks),
        "a block copy contains an unknown block",
    )?;
    let tables = group
        .table_starts
        .iter()
        .zip(&inputs.sequences)
        .all(|(start, sequence)| {
            let entries = sequence.context_len.div_ceil(capacity.block_size);
            *start as usize + entries as usize <= group.block_tables.len()
        });
    require(tables, "a block table is shorter than its sequence")
}

fn check_samples(context: &Context<'_>, inputs: &BatchInputs) -> Result<(), BackendError> {
    let slot = |slot: u32| slot == NONE || slot < context.capacity.feed_slots;
    let mask_words = context.plan.vocab.div_ceil(32) as usize;
    for row in &inputs.samples {
        let mask =
            row.mask_start == NONE || row.mask_start as usize + mask_words <= inputs.masks.len();
        let whole = (row.logits_row as usize) < inputs.logits_rows.len()
            && slot(row.feed_slot)
            && slot(row.pending_slot)
            && is_inside(row.history, inputs.history.len())
            && is_inside(row.bias, inputs.bias.len())
            && mask
            && (row.scored_token == NONE || row.scored_token < context.plan.vocab)
            && row.top_logprobs <= TOP_LOGPROBS_MAX
            && (!row.top_allowed || row.lists_allowed());
        require(
            whole,
            "a sample row refers to an unknown row, slot or range",
        )?;
    }
    let sorted = inputs.samples.is_sorted_by_key(|row| row.logits_row);
    require(sorted, "the sample rows are not sorted by logits row")?;
    let ids = inputs
        .history
        .iter()
        .map(|e| e.token_id)
        .chain(inputs.bias.iter().map(|e| e.token_id));
    require(
        ids.into_iter().all(|id| id < context.plan.vocab),
        "a history or bias entry has an unknown token id",
    )
}

fn is_inside(range: Range, len: usize) -> bool {
    range.start as usize + range.len as usize <= len
}

fn require(holds: bool, otherwise: &str) -> Result<(), BackendError> {
    if holds {
        Ok(())
    } else {
        Err(refused(otherwise.to_owned()))
    }
}

fn refused(message: String) -> BackendError {
    BackendError::Validation(message)
}

#[cfg(test)]
mod tests;
