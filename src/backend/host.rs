//! What backends in host memory have in common: a batch is validated before it runs, and its buffers are overwritten by
//! kernel checks. These backends index with the ids of the batch, so an invalid index must give an error with a clear
//! message, not a panic or another sequence's data.

use super::{BackendError, BlockRef, Capacity, KvHalf};
use crate::plan::inputs::{
    self, BatchInputs, FEED, GroupInputs, IMAGE_ROW, NONE, SECOND_TEXT, SampleRow, TOP_LOGPROBS_MAX,
};
use crate::plan::{BufferSpec, Plan, Rows, StateLayer};
use std::ops::Range;

/// Fails with the message unless the condition holds.
macro_rules! require {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}

/// The keys or the values of a layer in `pool`, which has those of each layer.
pub(crate) fn half_of<'a, T>(
    pool: &'a mut [[T; 2]],
    plan: &Plan,
    layer: u32,
    half: KvHalf,
) -> Result<&'a mut T, BackendError> {
    if layer as usize >= plan.kv_layers.len() {
        return Err(BackendError::no_kv_layer(layer));
    }
    let halves = pool
        .get_mut(layer as usize)
        .ok_or_else(BackendError::no_pool)?;
    Ok(&mut halves[usize::from(half == KvHalf::Value)])
}

/// Fails unless a block or state slot exists and a copy of it, if given, has its size. `blocks` has the number of
/// blocks of each KV group.
pub(crate) fn check_block(
    plan: &Plan,
    capacity: &Capacity,
    blocks: &[u32],
    BlockRef { group, block }: BlockRef,
    copy: Option<&[u8]>,
) -> Result<(), BackendError> {
    let is_state = plan.state_group() == Some(group);
    let known = if is_state {
        Some(&capacity.state_slots)
    } else {
        blocks.get(group)
    };
    let count = *known.ok_or_else(BackendError::no_pool)?;
    let what = if is_state {
        "state slot".to_owned()
    } else {
        format!("block of KV group {group}")
    };
    if block >= count {
        return Err(BackendError::Validation(format!(
            "{what} {block}; there are {count}"
        )));
    }
    let needed = plan.block_bytes(group, capacity.block_size, capacity.kv_format);
    match copy {
        Some(bytes) if bytes.len() as u64 != needed => {
            let message = format!("a copy of {} bytes for a {what} of {needed}", bytes.len());
            Err(BackendError::Validation(message))
        }
        _ => Ok(()),
    }
}

/// A copy of a state slot; `states` has the states of each layer, slot by slot.
pub(crate) fn save_state(plan: &Plan, states: &[Vec<f32>], slot: u32) -> Vec<u8> {
    plan.state_layers
        .iter()
        .zip(states)
        .flat_map(|(layer, states)| {
            let elements = states[state_range(layer, slot)].iter();
            elements
                .flat_map(|element| element.to_le_bytes())
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Overwrites a state slot with a copy of its size.
pub(crate) fn restore_state(plan: &Plan, states: &mut [Vec<f32>], slot: u32, copy: &[u8]) {
    let (elements, _) = copy.as_chunks::<4>();
    let mut elements = elements.iter().map(|bytes| f32::from_le_bytes(*bytes));
    for (layer, states) in plan.state_layers.iter().zip(states) {
        states[state_range(layer, slot)]
            .iter_mut()
            .zip(&mut elements)
            .for_each(|(own, element)| *own = element);
    }
}

fn state_range(layer: &StateLayer, slot: u32) -> Range<usize> {
    let (slot, elements) = (slot as usize, layer.elements as usize);
    slot * elements..(slot + 1) * elements
}

/// Overwrites the first rows of a row buffer, rounded to its storage.
pub(crate) fn overwrite_rows(
    spec: &BufferSpec,
    elements: &mut [f32],
    values: &[f32],
) -> Result<(), BackendError> {
    if values.len() > elements.len() {
        return Err(BackendError::values(
            values.len(),
            spec.name,
            elements.len(),
        ));
    }
    for (element, value) in elements.iter_mut().zip(values) {
        *element = spec.storage.round(*value);
    }
    Ok(())
}

/// Overwrites all states of a layer.
pub(crate) fn overwrite_states(states: &mut [f32], values: &[f32]) -> Result<(), BackendError> {
    if values.len() != states.len() {
        return Err(BackendError::values(
            values.len(),
            "the states of a layer",
            states.len(),
        ));
    }
    states.copy_from_slice(values);
    Ok(())
}

/// Writes token ids to the first feed slots.
pub(crate) fn overwrite_feed(feed: &mut [u32], token_ids: &[u32]) -> Result<(), BackendError> {
    let slots = feed.len();
    let part = feed.get_mut(..token_ids.len()).ok_or_else(|| {
        BackendError::Validation(format!(
            "{} token ids for {slots} feed slots",
            token_ids.len()
        ))
    })?;
    part.copy_from_slice(token_ids);
    Ok(())
}

/// Fails with a message that says what is wrong with a batch. `blocks` has the number of blocks of each KV group.
pub(crate) fn check_batch(
    plan: &Plan,
    capacity: &Capacity,
    blocks: &[u32],
    inputs: &BatchInputs,
) -> Result<(), String> {
    Limits {
        plan,
        capacity,
        blocks,
    }
    .check(inputs)
}

/// The adapter slot of each token row of a batch; none if no sequence has an adapter.
pub(crate) fn adapter_of_rows(inputs: &BatchInputs) -> impl Iterator<Item = u32> {
    let sequences = inputs.sequences.iter().zip(&inputs.adapters);
    sequences.flat_map(|(rows, &slot)| std::iter::repeat_n(slot, rows.row_count as usize))
}

/// What a batch must keep to.
struct Limits<'a> {
    plan: &'a Plan,
    capacity: &'a Capacity,
    blocks: &'a [u32],
}

impl Limits<'_> {
    fn check(&self, inputs: &BatchInputs) -> Result<(), String> {
        self.check_rows(inputs)?;
        self.check_states(inputs)?;
        self.check_adapters(inputs)?;
        self.check_carried(inputs)?;
        require!(
            inputs.groups.len() == self.plan.kv_groups.len(),
            "{} KV groups of inputs",
            inputs.groups.len()
        );
        for (index, group) in inputs.groups.iter().enumerate() {
            self.check_group(inputs, index, group)
                .map_err(|message| format!("KV group {index}: {message}"))?;
        }
        for (index, row) in inputs.samples.iter().enumerate() {
            self.check_sample(inputs, row)
                .map_err(|message| format!("sample row {index}: {message}"))?;
        }
        let (pools, most) = (inputs.pools.len(), self.capacity.pools_max(self.plan));
        require!(
            pools <= most as usize,
            "{pools} pool rows, the capacity is {most}"
        );
        let rows = if self.plan.pools_merged_rows() {
            inputs.logits_rows.len()
        } else {
            inputs.token_ids.len()
        };
        for (index, row) in inputs.pools.iter().enumerate() {
            let end = u64::from(row.row_start) + u64::from(row.row_count);
            let whole = row.row_count > 0 && end <= rows as u64;
            require!(
                whole,
                "pool row {index} has no rows, or rows outside the batch"
            );
        }
        let sorted = inputs.samples.is_sorted_by_key(|row| row.logits_row);
        require!(sorted, "sample rows are not sorted by logits row");
        Ok(())
    }

    fn check_states(&self, inputs: &BatchInputs) -> Result<(), String> {
        let wanted = if self.plan.for_batch(inputs).state_layers.is_empty() {
            0
        } else {
            inputs.sequences.len()
        };
        require!(
            inputs.states.len() == wanted,
            "{} state slots for {wanted} states",
            inputs.states.len()
        );
        let slots = self.capacity.state_slots;
        for (index, state) in inputs.states.iter().enumerate() {
            let known = (state.from < slots || state.from == NONE) && state.to < slots;
            require!(
                known,
                "the state of sequence {index} has an unknown slot; there are {slots}"
            );
        }
        Ok(())
    }

    fn check_adapters(&self, inputs: &BatchInputs) -> Result<(), String> {
        let slots = self.plan.adapters.as_ref().map_or(0, |slots| slots.count);
        let count = inputs.adapters.len();
        require!(
            count == 0 || count == inputs.sequences.len(),
            "{count} adapter slots for {} sequences",
            inputs.sequences.len()
        );
        let known = inputs.adapters.iter().all(|slot| *slot < slots);
        require!(known, "an adapter slot is unknown; there are {slots}");
        Ok(())
    }

    fn check_carried(&self, inputs: &BatchInputs) -> Result<(), String> {
        let (count, rows) = (inputs.carried.len(), inputs.token_ids.len());
        if count == 0 {
            return Ok(());
        }
        require!(
            self.plan.predictor.is_some(),
            "carried rows for a model that predicts no further tokens"
        );
        require!(count == rows, "{count} carried rows for {rows} token rows");
        let most = self.capacity.tokens_max;
        let known = inputs.carried.iter().all(|row| *row < most);
        require!(known, "a carried row is unknown; there are {most}");
        Ok(())
    }

    fn check_rows(&self, inputs: &BatchInputs) -> Result<(), String> {
        let (rows, capacity) = (inputs.token_ids.len(), self.capacity);
        require!(
            rows <= capacity.tokens_max as usize,
            "{rows} token rows, the capacity is {}",
            capacity.tokens_max
        );
        require!(
            inputs.positions.len() == rows,
            "{} positions for {rows} token rows",
            inputs.positions.len()
        );
        let (sequences, sequences_max) = (inputs.sequences.len(), capacity.sequences_max);
        require!(
            sequences <= sequences_max as usize,
            "{sequences} sequences, the capacity is {sequences_max}"
        );
        let mut covered = 0;
        for sequence in &inputs.sequences {
            require!(
                sequence.row_start == covered,
                "rows {covered}.. belong to no sequence"
            );
            covered += sequence.row_count;
            require!(
                covered as usize <= rows,
                "a sequence ends at row {covered} of {rows}"
            );
            let positions = &inputs.positions[sequence.row_start as usize..covered as usize];
            let within = positions
                .iter()
                .all(|position| *position < sequence.context_len);
            require!(
                within,
                "a position is not below its context of {}",
                sequence.context_len
            );
        }
        require!(
            covered as usize == rows,
            "rows {covered}.. belong to no sequence"
        );
        for &id in &inputs.token_ids {
            let (what, id, limit) = if id & FEED != 0 {
                ("feed slot", id & !FEED, capacity.feed_slots)
            } else if id & IMAGE_ROW != 0 {
                ("image row", id & !IMAGE_ROW, self.plan.image_row_count())
            } else {
                ("token", id & !SECOND_TEXT, self.plan.vocab)
            };
            require!(id < limit, "{what} {id} is not below {limit}");
        }
        let logits_rows = inputs.logits_rows.len();
        let needs_capacity = self
            .plan
            .buffers
            .iter()
            .any(|buffer| buffer.rows == Rows::Samples);
        let fits = logits_rows <= capacity.samples_max as usize || !needs_capacity;
        require!(
            fits,
            "{logits_rows} logits rows, the capacity is {}",
            capacity.samples_max
        );
        let run = self.plan.gathered_run() as usize;
        for &row in &inputs.logits_rows {
            require!(
                row as usize + run <= rows,
                "logits row {row} of {rows} token rows"
            );
        }
        Ok(())
    }

    fn check_group(
        &self,
        inputs: &BatchInputs,
        index: usize,
        group: &GroupInputs,
    ) -> Result<(), String> {
        let (blocks, size) = (self.blocks[index], self.capacity.block_size);
        let (starts, sequences) = (group.table_starts.len(), inputs.sequences.len());
        require!(
            starts == sequences,
            "{starts} table starts for {sequences} sequences"
        );
        let (slots, rows) = (group.slot_mapping.len(), inputs.token_ids.len());
        require!(slots == rows, "{slots} slots for {rows} token rows");
        let (entries, entries_max) = (
            group.block_tables.len(),
            self.capacity.table_entries_max as usize,
        );
        require!(
            entries <= entries_max,
            "{entries} table entries, the capacity is {entries_max}"
        );
        let (copies, copies_max) = (group.copies.len(), self.capacity.copies_max as usize);
        require!(
            copies <= copies_max,
            "{copies} copies, the capacity is {copies_max}"
        );
        for (sequence, &start) in inputs.sequences.iter().zip(&group.table_starts) {
            let end = start as usize + sequence.context_len.div_ceil(size) as usize;
            require!(
                end <= entries,
                "a context of {} needs table entries up to {end}",
                sequence.context_len
            );
        }
        require!(
            group
                .block_tables
                .iter()
                .all(|block| *block < blocks || *block == NONE),
            "a table names an unknown block; there are {blocks}"
        );
        require!(
            group
                .slot_mapping
                .iter()
                .all(|slot| *slot / size < blocks || *slot == NONE),
            "a slot lies in an unknown block; there are {blocks}"
        );
        require!(
            group
                .copies
                .iter()
                .all(|(source, target)| *source < blocks && *target < blocks),
            "a copy names an unknown block; there are {blocks}"
        );
        Ok(())
    }

    fn check_sample(&self, inputs: &BatchInputs, row: &SampleRow) -> Result<(), String> {
        let logits_rows = inputs.logits_rows.len();
        require!(
            (row.logits_row as usize) < logits_rows,
            "logits row {} of {logits_rows}",
            row.logits_row
        );
        for slot in [row.feed_slot, row.pending_slot] {
            let slots = self.capacity.feed_slots;
            require!(
                slot < slots || slot == NONE,
                "feed slot {slot} is not below {slots}"
            );
        }
        require!(
            is_within(row.history, inputs.history.len()),
            "its history range is outside the batch's"
        );
        require!(
            is_within(row.bias, inputs.bias.len()),
            "its bias range is outside the batch's"
        );
        let vocab = self.plan.vocab;
        let history = inputs.history.iter().all(|entry| entry.token_id < vocab);
        require!(
            history && inputs.bias.iter().all(|entry| entry.token_id < vocab),
            "an entry has an unknown id"
        );
        let mask = inputs::Range {
            start: row.mask_start,
            len: self.plan.vocab.div_ceil(32),
        };
        require!(
            row.mask_start == NONE || is_within(mask, inputs.masks.len()),
            "its mask range is outside the batch's"
        );
        require!(
            row.scored_token < vocab || row.scored_token == NONE,
            "its scored token {} is not below {vocab}",
            row.scored_token
        );
        require!(
            row.top_logprobs <= TOP_LOGPROBS_MAX,
            "{} top logprobs, more than the maximum",
            row.top_logprobs
        );
        require!(
            !row.top_allowed || row.lists_allowed(),
            "a list of allowed tokens with other adjustments"
        );
        let finite = row.draw.temperature.is_finite() && row.draw.temperature.is_sign_positive();
        require!(finite, "temperature {}", row.draw.temperature);
        Ok(())
    }
}

fn is_within(range: inputs::Range, entries: usize) -> bool {
    range.start as usize + range.len as usize <= entries
}
