// Offsets of the K and V tiles of a (block, head) in the pool, in runs of 8 elements; plan/format/kv.rs defines the
// byte layout. Variants: KV_F16; KV_CODES: bytes with a scale per row, which are q8, or E4M3 with KV_FP8; neither: f32.

struct Run {
    low: vec4<f32>,
    high: vec4<f32>,
}

#ifdef KV_CODES
// Runs per tile: its rows, then one word per slot.
fn tile_runs(row_runs: u32, block_shift: u32) -> u32 {
    return ((2u * row_runs + 1u) << block_shift) >> 1u;
}

// Index of the word with the scale of a slot, in the tile that starts at run `tile`.
fn scale_word(tile: u32, row_runs: u32, block_shift: u32, slot: u32) -> u32 {
    return 2u * (tile + (row_runs << block_shift)) + slot;
}
#else
fn tile_runs(row_runs: u32, block_shift: u32) -> u32 {
    return row_runs << block_shift;
}
#endif
