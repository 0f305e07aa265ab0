//! Sizes: the capacity of a step, the number of pool blocks, the longest sequence. Pure arithmetic over [`Config`],
//! [`Plan`] and [`Caps`]; the backend computes buffer sizes ([`layout`]).

use crate::backend::{Capacity, Caps, DeviceKind, MACHINE_MEMORY, layout};
use crate::config::Config;
use crate::engine::request::{EOS_TOKEN_IDS_MAX, LOGIT_BIAS_MAX, STOP_TOKEN_IDS_MAX};
use crate::engine::states;
use crate::model::adapters::AdapterRoom;
use crate::plan::Plan;

/// The room that adapters have on the device, if there may be any.
pub fn adapter_room(config: &Config) -> Option<AdapterRoom> {
    (config.max_loras > 0).then(|| AdapterRoom {
        slots: config.max_loras,
        rank: config.max_lora_rank.next_multiple_of(8),
        format: config.lora_format,
    })
}

/// Pool bytes for a [`DeviceKind::Software`], whose memory belongs to other programs.
const KV_BYTES_SOFTWARE: u64 = 512 << 20;
/// Pool bytes to try first on a GPU that does not report its memory, as in a browser. What it refuses is halved.
const KV_BYTES_TRIED: u64 = 2 << 30;
/// Maximum entries in each side array of a step, unless one sequence alone needs more.
const SIDE_ENTRIES_MAX: u64 = 1 << 20;
/// See [`scores_max`].
const SCORES_MAX: u32 = 32;
/// Maximum bias entries of one row: the request's own, plus the end and stop tokens that `min_tokens` forbids.
const BIAS_MAX: usize = LOGIT_BIAS_MAX + STOP_TOKEN_IDS_MAX + EOS_TOKEN_IDS_MAX;
/// Blocks needed beyond those of the longest sequence: one to copy into, and one that a step in flight still uses.
const BLOCKS_SPARE: u32 = 2;

/// The requested context length: the setting, or the model's own.
pub(super) fn model_len_requested(config: &Config, plan: &Plan) -> u32 {
    config
        .max_model_len
        .unwrap_or(plan.positions_max)
        .min(plan.positions_max)
}

/// Maximum prompt tokens whose logprobs one step computes. Each needs a row of logits.
pub(super) fn scores_max(config: &Config) -> u32 {
    SCORES_MAX.min(config.max_num_batched_tokens)
}

/// Maximum sequences per step: those that run, and the drafts of one of them beside as many others as may run then. A
/// draft is a row of its own, like that of another sequence. A step with fewer sequences has room for more drafts.
fn sequences_max(config: &Config) -> u32 {
    let sequences = config.max_num_seqs;
    let with_drafts = config.speculation.map_or(0, |settings| {
        settings.sequences_max(sequences) + settings.num_speculative_tokens
    });
    with_drafts.max(sequences)
}

/// Maximum rows of logits per step: one per draw, plus the prompt logprobs.
fn samples_max(config: &Config) -> u32 {
    sequences_max(config) + scores_max(config)
}

/// Maximum tokens computed per step: the configured number, or fewer if a row buffer would not fit one binding. It
/// stays large enough for prefill to progress beside a full decode batch; if that does not fit, the model does not fit.
fn tokens_max(config: &Config, plan: &Plan, caps: &Caps) -> u32 {
    let bound = u32::try_from(layout::tokens_max(plan, caps)).unwrap_or(u32::MAX);
    let least = config.max_num_seqs.saturating_add(config.block_size);
    // The longest sequence of a model that computes it whole is one step.
    let wanted = if plan.computes_whole_sequences() {
        config
            .max_num_batched_tokens
            .max(model_len_requested(config, plan))
    } else {
        config.max_num_batched_tokens
    };
    wanted.min(bound.max(least))
}

/// The capacity that all device buffers are allocated for. A batch never exceeds it.
pub(super) fn capacity(config: &Config, plan: &Plan, caps: &Caps) -> Capacity {
    let sequences = sequences_max(config);
    let length = model_len_requested(config, plan);
    let bounded = |one: u32| {
        let all = u64::from(sequences) * u64::from(one);
        u32::try_from(all.min(SIDE_ENTRIES_MAX.max(u64::from(one))))
            .expect("side arrays are bounded")
    };
    Capacity {
        tokens_max: tokens_max(config, plan, caps),
        sequences_max: sequences,
        samples_max: samples_max(config),
        feed_slots: 2 * config.max_num_seqs,
        state_slots: states::slots(config, plan, caps, memory_for_states(config, caps)),
        table_entries_max: bounded(length.div_ceil(config.block_size)),
        history_max: bounded(length.min(plan.vocab)),
        bias_max: bounded(u32::try_from(BIAS_MAX).expect("the limits are small")),
        // All rows of a step may be constrained.
        mask_words_max: plan.vocab.div_ceil(32) * sequences,
        copies_max: config.max_num_seqs,
        block_size: config.block_size,
        kv_format: config.kv_format,
        deterministic: config.deterministic,
    }
}

/// Number of blocks per KV group, before any allocation is tried. `taken` is the bytes of everything else.
pub(super) fn pool_blocks(
    config: &Config,
    plan: &Plan,
    caps: &Caps,
    capacity: &Capacity,
    taken: u64,
) -> Vec<u32> {
    let block_bytes = |group| plan.block_bytes(group, config.block_size, config.kv_format);
    let groups = plan.kv_groups.len();
    let all_groups_bytes = (0..groups).map(block_bytes).sum::<u64>().max(1);
    let demand = demand_blocks(config, plan);
    let bytes = pool_bytes(config, caps, taken, demand.saturating_mul(all_groups_bytes));
    let limit = layout::blocks_max(plan, capacity, caps);
    let share = bytes / all_groups_bytes;
    let mut blocks: Vec<u64> = vec![share; groups];
    if plan.kv_groups.iter().any(|group| group.window.is_none()) {
        // A window group never needs more than the windows of all sequences; the other groups get the rest.
        for (group, blocks) in blocks.iter_mut().enumerate() {
            *blocks = share.min(window_blocks_max(config, plan, group));
        }
        let windows = (0..groups).filter(|&group| plan.kv_groups[group].window.is_some());
        let taken: u64 = windows
            .map(|group| blocks[group] * block_bytes(group))
            .sum();
        let full: Vec<_> = (0..groups)
            .filter(|&group| plan.kv_groups[group].window.is_none())
            .collect();
        let full_bytes = full
            .iter()
            .map(|&group| block_bytes(group))
            .sum::<u64>()
            .max(1);
        full.iter()
            .for_each(|&group| blocks[group] = (bytes - taken) / full_bytes);
    }
    let clamped = blocks
        .into_iter()
        .map(|count| u32::try_from(count.min(limit)).expect("the limit is a u32"));
    clamped.collect()
}

/// Blocks per KV group of the smallest pool that holds a sequence.
pub(super) fn blocks_least(plan: &Plan) -> Vec<u32> {
    vec![BLOCKS_SPARE + 1; plan.kv_groups.len()]
}

/// The next smaller pool to try after an allocation failed: three quarters, or half if its size was a guess because the
/// device's memory is unknown. `None` if it would be too small for any sequence.
pub(super) fn shrink(blocks: &[u32], is_guess: bool) -> Option<Vec<u32>> {
    let parts = if is_guess { 2 } else { 4 };
    let smaller: Vec<_> = blocks
        .iter()
        .map(|&count| count - count.div_ceil(parts))
        .collect();
    smaller
        .iter()
        .all(|&count| count > BLOCKS_SPARE)
        .then_some(smaller)
}

/// The longest sequence that this pool can hold, at most `requested`.
pub(super) fn model_len_held(requested: u32, block_size: u32, plan: &Plan, blocks: &[u32]) -> u32 {
    plan.kv_groups
        .iter()
        .zip(blocks)
        .map(|(group, &count)| match group.window {
            Some(window) if count >= window.tokens().div_ceil(block_size) + 1 + BLOCKS_SPARE => {
                requested
            }
            _ => count
                .saturating_sub(BLOCKS_SPARE)
                .saturating_mul(block_size),
        })
        .min()
        .unwrap_or(requested)
        .min(requested)
}

/// Number of sequences of `length` tokens that this pool holds at once, at most `max_num_seqs`.
pub(super) fn sequences_held(config: &Config, plan: &Plan, blocks: &[u32], length: u32) -> u32 {
    blocks
        .iter()
        .enumerate()
        .map(|(group, &count)| {
            count.saturating_sub(BLOCKS_SPARE) / sequence_blocks(config, plan, group, length).max(1)
        })
        .min()
        .unwrap_or(u32::MAX)
        .min(config.max_num_seqs)
}

/// Bytes of the smallest pool that holds one sequence of `length` tokens.
pub(super) fn kv_bytes_min(config: &Config, plan: &Plan, length: u32) -> u64 {
    let groups = 0..plan.kv_groups.len();
    let blocks: Vec<u32> = groups
        .map(|group| sequence_blocks(config, plan, group, length).saturating_add(BLOCKS_SPARE))
        .collect();
    kv_bytes(config, plan, &blocks)
}

/// Number of blocks in a KV group that a sequence of `length` tokens holds between two steps.
fn sequence_blocks(config: &Config, plan: &Plan, group: usize, length: u32) -> u32 {
    let all = length.div_ceil(config.block_size);
    plan.kv_groups[group].window.map_or(all, |window| {
        all.min(window.tokens().div_ceil(config.block_size) + 1)
    })
}

/// Bytes of a pool with this many blocks per group.
pub(super) fn kv_bytes(config: &Config, plan: &Plan, blocks: &[u32]) -> u64 {
    blocks
        .iter()
        .enumerate()
        .map(|(group, &count)| {
            plan.block_bytes(group, config.block_size, config.kv_format) * u64::from(count)
        })
        .sum()
}

/// Bytes of a block of each KV group, and of a state slot if the plan has states.
pub(super) fn block_bytes(config: &Config, plan: &Plan) -> Vec<u64> {
    let groups = (0..plan.kv_groups.len()).chain(plan.state_group());
    groups
        .map(|group| plan.block_bytes(group, config.block_size, config.kv_format))
        .collect()
}

/// Bytes of the machine's memory for blocks that leave the pool.
pub(super) fn host_bytes(config: &Config) -> u64 {
    if config.prefix_caching {
        config.kv_host_bytes
    } else {
        0
    }
}

/// Number of blocks worth having: twice what all sequences need at their longest. The other half is for cached
/// prefixes.
fn demand_blocks(config: &Config, plan: &Plan) -> u64 {
    let longest = model_len_requested(config, plan).div_ceil(config.block_size);
    2 * u64::from(config.max_num_seqs) * u64::from(longest) + u64::from(BLOCKS_SPARE)
}

fn pool_bytes(config: &Config, caps: &Caps, taken: u64, demand_bytes: u64) -> u64 {
    if let Some(bytes) = config.kv_cache_bytes {
        return bytes;
    }
    let Some(usable) = budget_bytes(config, caps) else {
        let bytes = if is_guess(config, caps) {
            KV_BYTES_TRIED
        } else {
            KV_BYTES_SOFTWARE
        };
        return bytes.min(demand_bytes);
    };
    let left = usable.saturating_sub(taken);
    caps.kind.pool_share(left).min(demand_bytes)
}

/// Bytes of which states take a share.
fn memory_for_states(config: &Config, caps: &Caps) -> u64 {
    budget_bytes(config, caps).unwrap_or(KV_BYTES_SOFTWARE)
}

/// Whether the size of the pool is a guess: a GPU that does not report its memory is asked for much.
pub(super) fn is_guess(config: &Config, caps: &Caps) -> bool {
    config.kv_cache_bytes.is_none()
        && caps.memory_bytes.is_none()
        && caps.kind != DeviceKind::Software
}

/// Memory of which [`budget_bytes`] is a share, and where its size comes from; `None` if unknown. With an explicit pool
/// size, a device that shares the machine's memory may use what the machine has available; what an integrated GPU
/// itself reports is only a guess.
pub(super) fn memory(config: &Config, caps: &Caps) -> Option<(u64, &'static str)> {
    let reported = caps.memory_bytes.map(|bytes| (bytes, caps.memory_source));
    let machine = caps.machine_bytes.map(|bytes| (bytes, MACHINE_MEMORY));
    match (config.kv_cache_bytes, caps.kind) {
        (None, _) => reported,
        (Some(_), DeviceKind::Integrated) => machine,
        (Some(_), _) => machine.or(reported),
    }
}

/// Bytes that weights, row buffers and pool may use together; `None` if unknown. With an explicit pool size, they may
/// use all of the memory; else a share of it.
pub(super) fn budget_bytes(config: &Config, caps: &Caps) -> Option<u64> {
    let (memory, _) = memory(config, caps)?;
    match (config.kv_cache_bytes, caps.kind) {
        (Some(_), _) => Some(memory),
        (None, DeviceKind::Software) => None,
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a byte count"
        )]
        (None, _) => Some((memory as f64 * f64::from(config.gpu_memory_utilization)) as u64),
    }
}

fn window_blocks_max(config: &Config, plan: &Plan, group: usize) -> u64 {
    let blocks_for = |tokens: u32| u64::from(tokens.div_ceil(config.block_size));
    let step = 2 * (blocks_for(config.max_num_batched_tokens) + u64::from(config.max_num_seqs));
    plan.kv_groups[group].window.map_or(u64::MAX, |window| {
        u64::from(config.max_num_seqs) * (blocks_for(window.tokens()) + 2) + step
    })
}
