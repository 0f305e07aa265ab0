// The params of the attention kernels, and the words of their work list.
//
// The work list of a KV group lies in the metadata, at the group's GROUP_WORK; its parts start at params.item_start.
// A packed row is one query head of one token row: p = token · group + head, for the query heads of one KV head.

// Finite, because a device may assume that no infinity occurs.
const MASKED: f32 = -3.0e38;

const ITEM_WORDS: u32 = 8u;
const ITEM_ROW: u32 = 0u; // token row of packed row 0
const ITEM_PACKED: u32 = 1u; // first packed row
const ITEM_COUNT: u32 = 2u; // packed rows
const ITEM_SLOT: u32 = 3u; // of the partial results (a merge item: the first); NONE writes the result itself
const ITEM_SPLITS: u32 = 4u; // a merge item: slots to join
const ITEM_POSITION: u32 = 4u; // position of the token row of packed row 0
const ITEM_KV_BEGIN: u32 = 5u; // keys [begin, end) that any of the rows may see
const ITEM_KV_END: u32 = 6u;
const ITEM_TABLE: u32 = 7u; // where the sequence's table starts among the group's tables

// A slot of the partial buffer has this many packed rows of every KV head.
const PARTIAL_ROWS: u32 = 8u;

struct Params {
    items: u32,
    item_start: u32,
    group_header: u32, // of the layer's KV group in the metadata
    kv_heads: u32, // of the layer
    head_first: u32, // of this pool shard
    head_count: u32, // of this pool shard
    group: u32, // query heads a KV head
    block_shift: u32,
    window: u32, // NONE: no window
    scale: f32,
    softcap: f32,
}
