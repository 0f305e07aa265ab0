//! A batch as the kernels of a GPU read it: one buffer of u32, the metadata, written once per submission.
//!
//! A header of [`HEADER_WORDS`] holds counts and the word offset of every array, so that nothing in a recorded program
//! depends on where an array lies. `shaders/common/metadata.wgsl` and `cuda/common/metadata.cuh` name the same offsets.
//! Everything is checked here, against capacity and pool: the kernels run without bounds checks.
//!
//! A sampled row comes back as a record of [`SAMPLE_WORDS`].

use super::{BackendError, Capacity};
use crate::plan::Plan;
use crate::plan::inputs::{BatchInputs, FEED, GroupInputs, NONE, Range, Sampled, SequenceRows, TOP_LOGPROBS_MAX};

/// Words before the first array.
pub(crate) const HEADER_WORDS: u32 = 80;
/// Header word of KV group 0.
pub(crate) const GROUP_HEADER: u32 = 16;
/// Header words of one KV group.
pub(crate) const GROUP_WORDS: u32 = 8;
/// KV groups that the header has room for.
pub(crate) const GROUPS_MAX: usize = 8;
/// Words of one sample row.
pub(crate) const SAMPLE_ROW_WORDS: u32 = 24;
/// Words of one sampled row in the results: id, logprob, then [`TOP_LOGPROBS_MAX`] ids and as many logprobs (f32 bits),
/// most likely first; [`NONE`] ends a list that is shorter.
pub(crate) const SAMPLE_WORDS: u32 = 2 + 2 * TOP_LOGPROBS_MAX;
/// Words of one sequence: row_start, row_count, context_len, 0.
pub(crate) const SEQUENCE_WORDS: u32 = 4;

/// Header words: offsets of the arrays that all KV groups share.
const TOKEN_IDS: usize = 4;
const POSITIONS: usize = 5;
const SEQUENCES: usize = 6;
const LOGITS_ROWS: usize = 7;
const SAMPLES: usize = 8;
const HISTORY: usize = 9;
const BIAS: usize = 10;
const MASKS: usize = 11;
const POOLS: usize = 12;
/// Header word: how many of these.
const POOL_ROWS: usize = 13;

/// Header word of KV group `group`: the `group_header` of a kernel's params.
pub(crate) fn group_header(group: u32) -> u32 {
    GROUP_HEADER + group * GROUP_WORDS
}

/// Most words a batch can take, of which attention's work takes `work_words_max` for each KV group.
pub(crate) fn words_max(plan: &Plan, capacity: &Capacity, work_words_max: u64) -> u64 {
    let c = capacity;
    let wide = |count: u32| u64::from(count);
    let shared = wide(c.tokens_max) * 2
        + wide(c.sequences_max) * wide(SEQUENCE_WORDS)
        + wide(c.samples_max) * wide(1 + SAMPLE_ROW_WORDS)
        + wide(c.history_max) * 2
        + wide(c.bias_max) * 2
        + wide(c.mask_words_max)
        + wide(c.sequences_max) * 2;
    let group = wide(c.table_entries_max)
        + wide(c.sequences_max)
        + wide(c.tokens_max)
        + wide(c.copies_max) * 2
        + work_words_max;
    wide(HEADER_WORDS) + shared + group * plan.kv_groups.len() as u64
}

/// What flattening needs to know besides the batch.
pub(crate) struct Context<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) capacity: &'a Capacity,
    /// Blocks of each KV group.
    pub(crate) blocks: &'a [u32],
}

/// Writes `inputs` to `words` (cleared first). `work` appends the work of attention in a KV group; its offset is in the
/// group's header already.
pub(crate) fn flatten(
    context: &Context<'_>,
    inputs: &BatchInputs,
    words: &mut Vec<u32>,
    mut work: impl FnMut(usize, &mut Vec<u32>),
) -> Result<(), BackendError> {
    check(context, inputs)?;
    words.clear();
    words.resize(HEADER_WORDS as usize, 0);
    let counts = [inputs.token_ids.len(), inputs.sequences.len(), inputs.logits_rows.len(), inputs.samples.len()];
    for (word, count) in words.iter_mut().zip(counts) {
        *word = u32::try_from(count).expect("checked against the capacity");
    }
    begin(words, TOKEN_IDS);
    words.extend_from_slice(&inputs.token_ids);
    begin(words, POSITIONS);
    words.extend_from_slice(&inputs.positions);
    begin(words, SEQUENCES);
    words.extend(inputs.sequences.iter().flat_map(|s| [s.row_start, s.row_count, s.context_len, 0]));
    begin(words, LOGITS_ROWS);
    words.extend_from_slice(&inputs.logits_rows);
    push_samples(inputs, words);
    words[POOL_ROWS] = u32::try_from(inputs.pools.len()).expect("checked against the capacity");
    for (index, group) in inputs.groups.iter().enumerate() {
        push_group(index, group, words);
        begin(words, group_header(index as u32) as usize + 5);
        work(index, words);
    }
    Ok(())
}

/// Notes in the header that an array begins here.
fn begin(words: &mut [u32], header: usize) {
    words[header] = u32::try_from(words.len()).expect("a batch is far smaller than 2^32 words");
}

fn push_samples(inputs: &BatchInputs, words: &mut Vec<u32>) {
    begin(words, SAMPLES);
    for row in &inputs.samples {
        words.extend_from_slice(&[
            row.logits_row,
            row.feed_slot,
            row.seed as u32,
            (row.seed >> 32) as u32,
            row.choice,
            row.position,
            row.temperature.to_bits(),
            row.top_k,
            row.top_p.to_bits(),
            row.min_p.to_bits(),
            row.repetition_penalty.to_bits(),
            row.presence_penalty.to_bits(),
            row.frequency_penalty.to_bits(),
            row.history.start,
            row.history.len,
            row.pending_slot,
            row.bias.start,
            row.bias.len,
            row.mask_start,
            u32::from(row.logprob),
            row.top_logprobs,
            row.given,
            0,
            0,
        ]);
    }
    begin(words, HISTORY);
    words.extend(inputs.history.iter().flat_map(|entry| [entry.token_id, entry.generated]));
    begin(words, BIAS);
    words.extend(inputs.bias.iter().flat_map(|entry| [entry.token_id, entry.bias.to_bits()]));
    begin(words, MASKS);
    words.extend_from_slice(&inputs.masks);
    begin(words, POOLS);
    words.extend(inputs.pools.iter().flat_map(|pool| [pool.row_start, pool.row_count]));
}

/// Header words of a group: tables, table starts, slots, copies, copy count, attention work (5 to 7).
fn push_group(index: usize, group: &GroupInputs, words: &mut Vec<u32>) {
    let header = group_header(index as u32) as usize;
    begin(words, header);
    words.extend_from_slice(&group.block_tables);
    begin(words, header + 1);
    words.extend_from_slice(&group.table_starts);
    begin(words, header + 2);
    words.extend_from_slice(&group.slot_mapping);
    begin(words, header + 3);
    words.extend(group.copies.iter().flat_map(|(source, target)| [*source, *target]));
    words[header + 4] = u32::try_from(group.copies.len()).expect("checked against the capacity");
}

/// What a row asked for.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    logprob: bool,
    top: u32,
}

/// What each sample row of a batch asked for.
pub(crate) fn wanted(inputs: &BatchInputs) -> Vec<Wanted> {
    inputs.samples.iter().map(|row| Wanted { logprob: row.logprob, top: row.top_logprobs }).collect()
}

/// Reads pooled rows: as many as `rows`, of so many elements each.
pub(crate) fn pooled(words: &[u32], rows: usize, columns: usize) -> Vec<Vec<f32>> {
    let rows = words.chunks_exact(columns.max(1)).take(rows);
    rows.map(|row| row.iter().map(|bits| f32::from_bits(*bits)).collect()).collect()
}

/// Reads the records of the rows.
pub(crate) fn sampled(words: &[u32], wanted: &[Wanted]) -> Vec<Sampled> {
    let decode = |(row, wanted): (&[u32], &Wanted)| {
        let (ids, logprobs) = row[2..].split_at(TOP_LOGPROBS_MAX as usize);
        let top = ids.iter().zip(logprobs).map(|(id, bits)| (*id, f32::from_bits(*bits)));
        Sampled {
            token_id: row[0],
            logprob: if wanted.logprob { f32::from_bits(row[1]) } else { 0.0 },
            top: top.take(wanted.top as usize).take_while(|(id, _)| *id != NONE).collect(),
        }
    };
    words.chunks_exact(SAMPLE_WORDS as usize).zip(wanted).map(decode).collect()
}

/// The batch stays within capacity, pool and its own arrays.
fn check(context: &Context<'_>, inputs: &BatchInputs) -> Result<(), BackendError> {
    let capacity = context.capacity;
    let tokens = inputs.token_ids.len();
    let fits = |what: &str, len: usize, max: u32| match len <= max as usize {
        true => Ok(()),
        false => Err(refused(format!("{len} {what} exceed the capacity of {max}"))),
    };
    fits("token rows", tokens, capacity.tokens_max)?;
    fits("sequences", inputs.sequences.len(), capacity.sequences_max)?;
    fits("logits rows", inputs.logits_rows.len(), capacity.samples_max)?;
    fits("sample rows", inputs.samples.len(), capacity.samples_max)?;
    fits("history entries", inputs.history.len(), capacity.history_max)?;
    fits("bias entries", inputs.bias.len(), capacity.bias_max)?;
    fits("pool rows", inputs.pools.len(), capacity.sequences_max)?;
    let pooled = inputs.pools.iter().all(|pool| {
        let end = u64::from(pool.row_start) + u64::from(pool.row_count);
        pool.row_count > 0 && end <= tokens as u64
    });
    require(pooled, "a pool row has no token rows, or some that are not there")?;
    fits("mask words", inputs.masks.len(), capacity.mask_words_max)?;
    let ids = inputs.token_ids.iter().all(|id| match id & FEED {
        0 => *id < context.plan.vocab || context.plan.vocab == 0,
        _ => (id & !FEED) < capacity.feed_slots,
    });
    require(ids, "a token id is neither below the vocabulary nor a feed slot")?;
    require(inputs.positions.len() == tokens, "there is one position per token row")?;
    require(inputs.logits_rows.iter().all(|row| (*row as usize) < tokens), "a logits row is not a token row")?;
    let rows = |s: &SequenceRows| {
        let rows = inputs.positions.get(s.row_start as usize..s.row_start as usize + s.row_count as usize);
        let first = s.context_len.checked_sub(s.row_count);
        rows.zip(first).is_some_and(|(rows, first)| rows.iter().zip(first..).all(|(row, expected)| *row == expected))
    };
    require(inputs.sequences.iter().all(rows), "a sequence's rows are not the last positions of its context")?;
    require(inputs.groups.len() == context.plan.kv_groups.len(), "there is one group input per KV group")?;
    for (group, blocks) in inputs.groups.iter().zip(context.blocks) {
        check_group(context, inputs, group, *blocks)?;
    }
    check_samples(context, inputs)
}

fn check_group(
    context: &Context<'_>,
    inputs: &BatchInputs,
    group: &GroupInputs,
    blocks: u32,
) -> Result<(), BackendError> {
    let capacity = context.capacity;
    require(group.block_tables.len() <= capacity.table_entries_max as usize, "the block tables exceed the capacity")?;
    require(group.copies.len() <= capacity.copies_max as usize, "the block copies exceed the capacity")?;
    require(group.slot_mapping.len() == inputs.token_ids.len(), "there is one slot per token row")?;
    require(group.table_starts.len() == inputs.sequences.len(), "there is one block table per sequence")?;
    require(group.block_tables.iter().all(|id| *id == NONE || *id < blocks), "a block table names no block")?;
    let slots = u64::from(blocks) * u64::from(capacity.block_size);
    require(group.slot_mapping.iter().all(|slot| *slot == NONE || u64::from(*slot) < slots), "a slot is not there")?;
    require(group.copies.iter().all(|(from, to)| from.max(to) < &blocks), "a copy names no block")?;
    let tables = group.table_starts.iter().zip(&inputs.sequences).all(|(start, sequence)| {
        let entries = sequence.context_len.div_ceil(capacity.block_size);
        *start as usize + entries as usize <= group.block_tables.len()
    });
    require(tables, "a block table is shorter than its sequence")
}

fn check_samples(context: &Context<'_>, inputs: &BatchInputs) -> Result<(), BackendError> {
    let inside = |range: Range, len: usize| range.start as usize + range.len as usize <= len;
    let slot = |slot: u32| slot == NONE || slot < context.capacity.feed_slots;
    let mask_words = context.plan.vocab.div_ceil(32) as usize;
    for row in &inputs.samples {
        let mask = row.mask_start == NONE || row.mask_start as usize + mask_words <= inputs.masks.len();
        let whole = (row.logits_row as usize) < inputs.logits_rows.len()
            && slot(row.feed_slot)
            && slot(row.pending_slot)
            && inside(row.history, inputs.history.len())
            && inside(row.bias, inputs.bias.len())
            && mask
            && (row.given == NONE || row.given < context.plan.vocab)
            && row.top_logprobs <= TOP_LOGPROBS_MAX;
        require(whole, "a sample row names a row, slot or range that is not there")?;
    }
    let sorted = inputs.samples.is_sorted_by_key(|row| row.logits_row);
    require(sorted, "the sample rows are not sorted by logits row")?;
    let ids = inputs.history.iter().map(|e| e.token_id).chain(inputs.bias.iter().map(|e| e.token_id));
    require(ids.into_iter().all(|id| id < context.plan.vocab), "a history or bias entry names no token")
}

fn require(holds: bool, otherwise: &str) -> Result<(), BackendError> {
    if holds { Ok(()) } else { Err(refused(otherwise.to_owned())) }
}

fn refused(message: String) -> BackendError {
    BackendError::Validation(message)
}
