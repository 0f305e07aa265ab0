// Normalizes and rotates the q and k heads of rows, without storing them in a pool.
//
//   h' = h / sqrt(mean(h²) + ε) · w                      (optional; w or 1 + w)
//   (h'[i], h'[i + r/2]), or interleaved (h'[2i], h'[2i + 1]), rotated by position · frequency[i] and scaled,
//   the position being that of the row, or along the axis of the frequency
//
// qkv [tokens][query + 2 · kv heads][head_dim], out [tokens][query + kv heads][head_dim]. Invocation: 4 elements of a
// head. Each sums the squares of the whole head itself, which needs no barrier.
// Variants: NORM, ROPE_VECTORS (halves of whole vectors), AXES (those of the frequencies follow them).
// Twin: backend/reference/rotate_rows.rs

#import invocation
#import metadata

struct Params {
    tokens: u32,
    query_heads: u32,
    heads: u32,   // of q and k
    vectors: u32, // head_dim / 4
    rotary_dim: u32,
    interleaved: u32,
    rope_scale: f32,
    q_epsilon: f32,
    q_offset: f32, // 1 for 1 + w
    k_epsilon: f32,
    k_offset: f32,
    norm_after: u32, // 0
    row_vectors: u32, // of qkv
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> metadata: array<u32>;
@group(0) @binding(2) var<storage, read> qkv: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> q_weight: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> k_weight: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> frequencies: array<f32>;
@group(0) @binding(6) var<storage, read_write> out: array<vec4<f32>>;

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

// One head of one token.
struct Unit {
    base: u32, // first vector in qkv
    position: u32, // of the row; with AXES, its index
    is_key: bool,
    is_normed: bool,
    norm_vector: u32, // 0: all heads have the same weights
    inverse: f32,     // 1 / root of the mean square
    offset: f32,
}

// The position by which a pair of elements turns.
fn position_of(unit: Unit, pair: u32) -> u32 {
#ifdef AXES
    let axis = u32(frequencies[params.rotary_dim / 2u + pair]);
    return metadata_at(META_PLACES, unit.position * PLACE_WORDS + axis);
#else
    return unit.position;
#endif
}

#import head_norm
#import rotated

@compute @workgroup_size(64)
fn main(at: Invocation) {
    let item = flat_workgroup(at) * 64u + at.local;
    let vector = item % params.vectors;
    let head = item / params.vectors % params.heads;
    let token = item / params.vectors / params.heads;
    if token >= params.tokens {
        return;
    }
    var unit: Unit;
    unit.base = token * params.row_vectors + head * params.vectors;
#ifdef AXES
    unit.position = token;
#else
    unit.position = metadata_at(META_POSITIONS, token);
#endif
    unit.is_key = head >= params.query_heads;
#ifdef NORM
    unit.is_normed = true;
    unit.offset = select(params.q_offset, params.k_offset, unit.is_key);
    let epsilon = select(params.q_epsilon, params.k_epsilon, unit.is_key);
    unit.inverse = inverse_rms(unit.base, params.vectors, epsilon, at.local);
#endif
    out[item] = rotated(unit, vector);
}
