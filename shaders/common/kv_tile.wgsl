// Where K and V of a (block, head) tile lie in the pool, counted in runs of 8 elements; plan/format/kv.rs defines the
// bytes. Variants: KV_F16, KV_Q8; neither: f32.

struct Run {
    low: vec4<f32>,
    high: vec4<f32>,
}

#ifdef KV_Q8
// Runs of a tile: its rows, then a word for each slot.
fn tile_runs(row_runs: u32, block_shift: u32) -> u32 {
    return ((2u * row_runs + 1u) << block_shift) >> 1u;
}

// The word with the scale of a slot, in the tile that starts at run `tile`.
fn scale_word(tile: u32, row_runs: u32, block_shift: u32, slot: u32) -> u32 {
    return 2u * (tile + (row_runs << block_shift)) + slot;
}
#else
fn tile_runs(row_runs: u32, block_shift: u32) -> u32 {
    return row_runs << block_shift;
}
#endif
