// The keys of a tile of the kernels that attend to many rows. Variants: KV_F16, KV_CODES, KV_FP8.

#import attend_item

const KEYS: u32 = 64u;

var<workgroup> bases: array<u32, KEYS>; // first run of a key's head row in the pools

#ifdef KV_CODES
var<workgroup> scales: array<vec2<f32>, KEYS>; // scales of a key's K and V

fn scale_of(key: u32, is_key: bool) -> f32 {
    return select(scales[key].y, scales[key].x, is_key);
}
#else
fn scale_of(key: u32, is_key: bool) -> f32 {
    return 1.0;
}
#endif

fn scaled(run: Packed, factor: f32) -> Run {
    let values = unpacked(run);
    return Run(values.low * factor, values.high * factor);
}

// The first run of every key of the tile. What no row sees repeats the last key: its score is masked, and its V is
// finite.
fn find_keys(local: u32, item: u32, head: u32, tile: u32, end: u32) {
    if local < KEYS {
        var key = min(tile + local, end - 1u);
        var block = block_at(item, head, key);
        if block == NONE {
            key = end - 1u;
            block = block_at(item, head, key);
        }
        let slot = key & ((1u << params.block_shift) - 1u);
        bases[local] = block + slot * HEAD_CHUNKS;
#ifdef KV_CODES
        scales[local] = vec2<f32>(k_scale(block, slot), v_scale(block, slot));
#endif
    }
}
