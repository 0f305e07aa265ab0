// The params of the attention kernels, and the words of their work list.
//
// The work list of a KV group is in the metadata, at the group's GROUP_WORK; its parts start at params.item_start.
// A packed row is one query head of one token row: p = token · group + head, for the query heads of one KV head.

// Finite, because a device may assume that no infinities occur.
const MASKED: f32 = -3.0e38;

const ITEM_WORDS: u32 = 8u;
const ITEM_ROW: u32 = 0u; // token row of packed row 0
const ITEM_PACKED: u32 = 1u; // first packed row
const ITEM_COUNT: u32 = 2u; // packed rows
const ITEM_SLOT: u32 = 3u; // slot of the partial results (merge item: the first slot); NONE: write the result directly
const ITEM_SPLITS: u32 = 4u; // merge item: number of slots to join
const ITEM_POSITION: u32 = 4u; // position of the token row of packed row 0
const ITEM_KV_BEGIN: u32 = 5u; // keys [begin, end) that any of the rows may see
const ITEM_KV_END: u32 = 6u;
const ITEM_TABLE: u32 = 7u; // start of the sequence's table among the group's tables

// Packed rows of every KV head per slot of the partial buffer.
const PARTIAL_ROWS: u32 = 8u;

struct Params {
    items: u32,
    item_start: u32,
    group_header: u32, // header word where the record of the layer's KV group starts
    kv_heads: u32, // KV heads of the layer
    head_first: u32, // first KV head of this pool shard
    head_count: u32, // KV heads of this pool shard
    group: u32, // query heads per KV head
    block_shift: u32,
    window: u32, // window size; NONE: no window
    scale: f32,
    softcap: f32,
}
