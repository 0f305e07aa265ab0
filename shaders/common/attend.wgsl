// The params of the attention kernels. The words of their work list (ITEM_…) are constants of the metadata.
//
// The work list of a KV group is in the metadata, at the group's GROUP_WORK; its parts start at params.item_start.
// A packed row is one query head of one token row: p = token · group + head, for the query heads of one KV head.

// Finite, because a device may assume that no infinities occur.
const MASKED: f32 = -3.0e38;

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
    window: u32, // tokens of a window or chunk; NONE: no window
    scale: f32,
    softcap: f32,
}
