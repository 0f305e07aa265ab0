// Bindings and common functions of the paged attention kernels: find rows and keys, turn a dot product into a score,
// write a finished row. Numbers: HEAD_CHUNKS = head_dim / 8. Variants: KV_F16, KV_CODES, KV_FP8, SOFTCAP, ALIBI, SINKS,
// CHUNKS (options are variants because a driver that runs shaders on a CPU executes both sides of an `if`); TEXELS:
// read-only buffers, except small vectors, are bound as images.

#import attend
#import kv_load
#import metadata

@group(0) @binding(0) var<uniform> params: Params;
#ifdef TEXELS
@group(0) @binding(1) var metadata: texture_storage_2d<rgba32uint, read>;
@group(0) @binding(2) var q: texture_storage_2d<rgba32uint, read>;
@group(0) @binding(3) var k_pool: texture_storage_2d<rgba32uint, read>;
@group(0) @binding(4) var v_pool: texture_storage_2d<rgba32uint, read>;

fn q_vector(index: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(textureLoad(q, texel(index)));
}

fn k_vector(index: u32) -> vec4<u32> {
    return textureLoad(k_pool, texel(index));
}

fn v_vector(index: u32) -> vec4<u32> {
    return textureLoad(v_pool, texel(index));
}
#else
@group(0) @binding(1) var<storage, read> metadata: array<u32>;
@group(0) @binding(2) var<storage, read> q: array<vec4<f32>>;
#ifdef KV_CODES
@group(0) @binding(3) var<storage, read> k_pool: array<vec2<u32>>;
@group(0) @binding(4) var<storage, read> v_pool: array<vec2<u32>>;
#else
@group(0) @binding(3) var<storage, read> k_pool: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> v_pool: array<vec4<u32>>;

fn k_vector(index: u32) -> vec4<u32> {
    return k_pool[index];
}

fn v_vector(index: u32) -> vec4<u32> {
    return v_pool[index];
}
#endif

fn q_vector(index: u32) -> vec4<f32> {
    return q[index];
}
#endif
@group(0) @binding(5) var<storage, read> slopes: array<f32>;
@group(0) @binding(6) var<storage, read> sinks: array<f32>;
@group(0) @binding(7) var<storage, read_write> partials: array<vec4<f32>>;
@group(0) @binding(8) var<storage, read_write> out: array<vec4<f32>>;

// A query head of a token row.
struct Row {
    head: u32,
    token: u32,
    position: u32,
    slope: f32,
}

// Destination of a finished row, in vectors, and the factor of its sums.
struct Target {
    at: u32,
    is_partial: bool,
    factor: f32,
}

fn item_word(item: u32, word: u32) -> u32 {
    return metadata_at(params.group_header + GROUP_WORK, params.item_start + item * ITEM_WORDS + word);
}

fn packed_row(item: u32, head: u32, row: u32) -> Row {
    let packed = item_word(item, ITEM_PACKED) + row;
    let token = packed / params.group;
    let query_head = (params.head_first + head) * params.group + packed % params.group;
    var slope = 0.0;
#ifdef ALIBI
    slope = slopes[query_head];
#endif
    return Row(query_head, item_word(item, ITEM_ROW) + token, item_word(item, ITEM_POSITION) + token, slope);
}

// First vector of a row in q and out.
fn row_at(row: Row) -> u32 {
    return (row.token * params.kv_heads * params.group + row.head) * HEAD_CHUNKS * 2u;
}

// First run of the (block, head) tile that holds `key`, or NONE.
fn block_at(item: u32, head: u32, key: u32) -> u32 {
    let entry = item_word(item, ITEM_TABLE) + (key >> params.block_shift);
    let block = metadata_at(params.group_header + GROUP_TABLES, entry);
    let tile = (block * params.head_count + head) * tile_runs(HEAD_CHUNKS, params.block_shift);
    return select(tile, NONE, block == NONE);
}

// Keys (position − window, position] are visible; with CHUNKS, those of the position's chunk of `window` tokens.
fn is_visible(key: u32, position: u32) -> bool {
    // `&`, not `&&`: a branch costs more than a comparison.
#ifdef CHUNKS
    return (key <= position) & (position - key <= position % params.window);
#else
    return (key <= position) & (position - key < params.window);
#endif
}

// The first visible key.
fn first_visible(position: u32) -> u32 {
#ifdef CHUNKS
    return position - position % params.window;
#else
    return position + 1u - min(params.window, position + 1u);
#endif
}

// The score for a scaled q · k.
fn score(scaled: f32, row: Row, key: u32) -> f32 {
    var s = scaled;
#ifdef SOFTCAP
    // tanh overflows on some devices beyond 44.
    s = params.softcap * tanh(clamp(s / params.softcap, -20.0, 20.0));
#endif
#ifdef ALIBI
    s -= row.slope * (f32(row.position) - f32(key));
#endif
    return s;
}

// Destination of a row with maximum `largest` and sum `total`.
fn target_of(item: u32, head: u32, row: u32, largest: f32, total: f32) -> Target {
    let slot = item_word(item, ITEM_SLOT);
    if (slot != NONE) {
        let share = (slot * params.kv_heads + params.head_first + head) * PARTIAL_ROWS + row;
        return Target(share * (HEAD_CHUNKS * 2u + 1u), true, 1.0);
    }
    let own = packed_row(item, head, row);
    var top = largest;
    var sum = total;
#ifdef SINKS
    let sink = sinks[own.head];
    top = max(largest, sink);
    sum = total * exp(largest - top) + exp(sink - top);
#endif
    return Target(row_at(own), false, exp(largest - top) / max(sum, 1e-37));
}

// Writes vector `index` of a row.
fn write_vector(to: Target, index: u32, sums: vec4<f32>) {
    if (to.is_partial) {
        partials[to.at + index] = sums;
    } else {
        out[to.at + index] = sums * to.factor;
    }
}

// The maximum and the total of a partial row follow its sums.
fn write_state(to: Target, largest: f32, total: f32) {
    if (to.is_partial) {
        partials[to.at + HEAD_CHUNKS * 2u] = vec4<f32>(largest, total, 0.0, 0.0);
    }
}
