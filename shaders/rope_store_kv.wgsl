// Splits qkv rows into heads; normalizes and rotates q and k; writes K and V to the pool by slot, and q. By params, the
// norms follow the rotation, v is normalized without weights, q grows with its position, or qkv has q only.
//
//   h' = h / sqrt(mean(h²) + ε) · w                      (q and k, optional; w or 1 + w; h a head or all heads)
//   (h'[i], h'[i + r/2]), or interleaved (h'[2i], h'[2i + 1]), rotated by position · frequency[i] and scaled
//
// qkv [tokens][query + 2 · kv heads][head_dim], q [tokens][query heads][head_dim];
// pools [block][kv head of this shard][slot][head_dim]. One dispatch serves the heads of one pool shard.
// A unit is one head of one token; `lanes` threads share it, each processing every lanes-th run of 8 elements. Each
// thread sums the squares of the whole head (or row) itself: this needs no barrier, and the order of the sum never
// depends on `lanes`.
// KV_CODES: the threads of a unit share the largest magnitude of their runs through workgroup memory.
// TEXELS: a unit is 8 lanes, which sum their squares by shuffles; inputs are bound as images.
// Variants: NORM, ROPE, ROPE_VECTORS (halves of whole vectors), KV_F16, KV_CODES, KV_FP8, SOFT_HALF; TEXELS (with
// SUBGROUPS).
// Twin: backend/reference/rope_store_kv.rs

#import invocation
#import kv_store
#import metadata

struct Params {
    tokens: u32,
    group_header: u32,
    query_heads: u32,
    kv_heads: u32,
    head_first: u32,
    head_count: u32,
    runs: u32, // head_dim / 8
    block_shift: u32,
    lanes: u32,
    rotary_dim: u32,
    interleaved: u32,
    rope_scale: f32,
    q_norm: u32, // NORM_HEAD, NORM_ROW or 0
    q_epsilon: f32,
    q_offset: f32, // 1 for 1 + w
    k_norm: u32,
    k_epsilon: f32,
    k_offset: f32,
    norm_after: u32, // norms follow the rotation
    v_norm: u32, // NORM_HEAD or 0
    v_epsilon: f32,
    q_slope: f32, // q *= 1 + q_slope * log(1 + floor((position + q_ahead) / q_positions))
    q_positions: u32,
    q_ahead: u32,
    stored: u32, // 0 if qkv has q only, else 1
    row_vectors: u32, // of qkv
}

@group(0) @binding(0) var<uniform> params: Params;
#ifdef TEXELS
const THREADS: u32 = 32u; // 4 units of 8 lanes
@group(0) @binding(1) var metadata: texture_storage_2d<rgba32uint, read>;
@group(0) @binding(2) var qkv: texture_storage_2d<rgba32uint, read>;
@group(0) @binding(3) var q_weight: texture_storage_2d<rgba32uint, read>;
@group(0) @binding(4) var k_weight: texture_storage_2d<rgba32uint, read>;
@group(0) @binding(5) var frequencies: texture_storage_2d<rgba32uint, read>;

fn qkv_vector(index: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(textureLoad(qkv, texel(index)));
}

fn weight_vector(index: u32, is_key: bool) -> vec4<f32> {
    // Both are read: on a CPU driver, both sides of a branch are executed anyway.
    let words = select(textureLoad(q_weight, texel(index)), textureLoad(k_weight, texel(index)), is_key);
    return bitcast<vec4<f32>>(words);
}

fn frequency(index: u32) -> f32 {
    return bitcast<f32>(textureLoad(frequencies, texel(index >> 2u))[index & 3u]);
}
#else
const THREADS: u32 = 64u;
@group(0) @binding(1) var<storage, read> metadata: array<u32>;
@group(0) @binding(2) var<storage, read> qkv: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> q_weight: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> k_weight: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> frequencies: array<f32>;

fn qkv_vector(index: u32) -> vec4<f32> {
    return qkv[index];
}

fn weight_vector(index: u32, is_key: bool) -> vec4<f32> {
    if is_key {
        return k_weight[index];
    }
    return q_weight[index];
}

fn frequency(index: u32) -> f32 {
    return frequencies[index];
}
#endif
@group(0) @binding(8) var<storage, read_write> q: array<vec4<f32>>;

// Values of q_norm and k_norm: over each head, or over all heads of the row.
const NORM_HEAD: u32 = 1u;
const NORM_ROW: u32 = 2u;

// One head of one token.
struct Unit {
    base: u32, // first vector in qkv
    position: u32,
    is_key: bool,
    is_turned: bool, // rotated: a query or key head
    is_normed: bool,
    norm_vector: u32, // first vector of the norm weights of this head
    inverse: f32, // 1 / root of the mean square
    offset: f32,
    scale: f32, // factor of a value, or of a rotated query
}

#import head_norm

#ifdef ROPE
fn position_of(unit: Unit, pair: u32) -> u32 {
    return unit.position;
}

#import rotated
#else
fn rotated(unit: Unit, vector: u32) -> vec4<f32> {
    return normed(unit, vector);
}
#endif

// A vector of a head as it is stored.
fn stored_vector(unit: Unit, vector: u32) -> vec4<f32> {
    if !unit.is_turned {
        return qkv_vector(unit.base + vector) * unit.scale;
    }
    let turned = rotated(unit, vector) * unit.scale;
#ifdef NORM
    if unit.is_normed && params.norm_after != 0u {
        return turned * norm_weight(unit, vector);
    }
#endif
    return turned;
}

fn stored_run(unit: Unit, run: u32) -> Run {
    return Run(stored_vector(unit, run * 2u), stored_vector(unit, run * 2u + 1u));
}

// How much a query has grown at its position.
fn growth(position: u32) -> f32 {
    if params.q_slope == 0.0 {
        return 1.0;
    }
    return 1.0 + params.q_slope * log(1.0 + f32((position + params.q_ahead) / params.q_positions));
}

@compute @workgroup_size(THREADS)
fn main(invocation: Invocation) {
    let thread = flat_workgroup(invocation) * THREADS + invocation.local;
    let lane = thread % params.lanes;
    let group = params.query_heads / params.kv_heads;
    let query_count = group * params.head_count;
    let units = query_count + 2u * params.head_count * params.stored;
    // No early return before a barrier: a unit beyond the last token repeats that token and writes nothing.
    let row_token = thread / params.lanes / units;
    let token = min(row_token, params.tokens - 1u);
    let index = thread / params.lanes % units;
    let is_query = index < query_count;
    let is_key = !is_query && index < query_count + params.head_count;
    var pool_head = 0u;
    var head = params.head_first * group + index;
    if !is_query {
        pool_head = (index - query_count) % params.head_count;
        head = params.query_heads + select(params.kv_heads, 0u, is_key) + params.head_first + pool_head;
    }
    let pool_slot = metadata_at(params.group_header + GROUP_SLOTS, token);
    let is_live = row_token < params.tokens && (is_query || pool_slot != NONE);

    var unit: Unit;
    unit.base = token * params.row_vectors + head * params.runs * 2u;
    unit.position = metadata_at(META_POSITIONS, token);
    unit.is_key = is_key;
    unit.is_turned = is_query || is_key;
    unit.scale = select(1.0, growth(unit.position), is_query);
#ifdef NORM
    let kind = select(params.v_norm, select(params.q_norm, params.k_norm, is_key), unit.is_turned);
    unit.is_normed = kind != 0u && unit.is_turned;
    unit.offset = select(params.q_offset, params.k_offset, is_key);
    var squares = params.runs * 2u;
    var first = unit.base;
    if kind == NORM_ROW {
        unit.norm_vector = select(head, head - params.query_heads, is_key) * params.runs * 2u;
        first = unit.base - unit.norm_vector;
        squares *= select(params.query_heads, params.kv_heads, is_key);
    }
    let epsilon = select(params.v_epsilon, select(params.q_epsilon, params.k_epsilon, is_key), unit.is_turned);
    unit.inverse = inverse_rms(first, squares, epsilon, invocation.local);
    unit.scale *= select(1.0, unit.inverse, kind != 0u && !unit.is_turned);
#endif
    let slot = pool_slot & ((1u << params.block_shift) - 1u);
    let tile_index = (pool_slot >> params.block_shift) * params.head_count + pool_head;
    let tile = tile_index * tile_runs(params.runs, params.block_shift);
    let row = tile + slot * params.runs;
#ifdef KV_CODES
    var largest = 0u;
#endif
    if is_live {
        for (var run = lane; run < params.runs; run += params.lanes) {
            let values = stored_run(unit, run);
            if is_query {
                let at = ((token * params.query_heads + head) * params.runs + run) * 2u;
                q[at] = values.low;
                q[at + 1u] = values.high;
            } else {
#ifdef KV_CODES
                largest = max(largest, magnitude(values));
#else
                store(is_key, row + run, values);
#endif
            }
        }
    }
#ifdef KV_CODES
    // Elements are recomputed rather than stored: most often a thread has one run.
    let scale = row_scale(unit_largest(largest, invocation.local, params.lanes));
    if is_live && !is_query {
        for (var run = lane; run < params.runs; run += params.lanes) {
            store(is_key, row + run, stored_run(unit, run), scale.y);
        }
        if lane == 0u {
            store_scale(is_key, scale_word(tile, params.runs, params.block_shift, slot), scale.x);
        }
    }
#endif
}
