// Latent attention: stores a token's latent, normalized, and the rotated elements beside it; makes the heads of q to
// match. By params, q grows with its position.
//
//   stored = [l / sqrt(mean(l²) + ε) · w, turn(k)] with (l, k) = latent;  q = [absorbed, turn(last elements of query)]
//
// query [tokens][heads][query_runs · 8], absorbed [tokens][heads][rank], latent [tokens][rank + r],
// q [tokens][heads][rank + r]; pool [block][slot][rank + r]. Pairs as in rope_store_kv.
// A unit is one head of one token, or its latent; `lanes` threads share it, each processing every lanes-th run of 8
// elements. Each thread of a latent sums all squares itself: this needs no barrier.
// KV_CODES: the threads of a unit share the largest magnitude of their runs through workgroup memory.
// Variants: LATENT always, KV_F16, KV_CODES, KV_FP8, SOFT_HALF. Twin: backend/reference/rope_store_latent.rs

#import invocation
#import kv_store
#import metadata
#import rope_angles

struct Params {
    tokens: u32,
    group_header: u32,
    heads: u32,
    block_shift: u32,
    lanes: u32,
    runs: u32,       // (rank + r) / 8
    rank_runs: u32,
    query_runs: u32, // of a head of `query`
    interleaved: u32,
    rope_scale: f32,
    epsilon: f32,
    q_slope: f32, // q *= 1 + q_slope * log(1 + floor((position + q_ahead) / q_positions))
    q_positions: u32,
    q_ahead: u32,
}

const THREADS: u32 = 64u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> metadata: array<u32>;
@group(0) @binding(2) var<storage, read> query: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> absorbed: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> latent: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read> frequencies: array<f32>;
@group(0) @binding(8) var<storage, read_write> q: array<vec4<f32>>;

// One head of one token, or its latent.
struct Unit {
    is_key: bool,
    base: u32,    // first vector in `absorbed`, or in `latent`
    rotated: u32, // first rotated vector in `query`, or in `latent`
    position: u32,
    inverse: f32, // 1 / root of the mean square of the latent
}

fn rotated_vector(unit: Unit, vector: u32) -> vec4<f32> {
    if unit.is_key {
        return latent[unit.rotated + vector];
    }
    return query[unit.rotated + vector];
}

// A vector of the rotated part. Halves are whole vectors, so that a partner is in the same vector or in another one.
fn turned(unit: Unit, vector: u32) -> vec4<f32> {
    let own = rotated_vector(unit, vector);
    let half = params.runs - params.rank_runs; // vectors of half the rotated elements
    var other = vec4<f32>(own.y, own.x, own.w, own.z);
    var first = vec4<bool>(true, false, true, false);
    var pairs = vec4<u32>(0u, 0u, 1u, 1u) + vec4<u32>(2u * vector);
    if params.interleaved == 0u {
        let is_first = vector < half;
        other = rotated_vector(unit, select(vector - half, vector + half, is_first));
        first = vec4<bool>(is_first);
        pairs = vec4<u32>(0u, 1u, 2u, 3u) + vec4<u32>(4u * select(vector - half, vector, is_first));
    }
    var result: vec4<f32>;
    for (var i = 0u; i < 4u; i++) {
        let turn = cos_sin(unit.position, frequencies[pairs[i]]) * params.rope_scale;
        result[i] = own[i] * turn.x + select(other[i], -other[i], first[i]) * turn.y;
    }
    return result;
}

fn stored_vector(unit: Unit, vector: u32) -> vec4<f32> {
    if vector >= 2u * params.rank_runs {
        return turned(unit, vector - 2u * params.rank_runs);
    }
    if unit.is_key {
        return latent[unit.base + vector] * unit.inverse * weight[vector];
    }
    return absorbed[unit.base + vector];
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

fn inverse_rms(base: u32) -> f32 {
    var sum = 0.0;
    for (var i = 0u; i < 2u * params.rank_runs; i++) {
        sum += dot(latent[base + i], latent[base + i]);
    }
    return inverseSqrt(sum / f32(8u * params.rank_runs) + params.epsilon);
}

@compute @workgroup_size(THREADS)
fn main(invocation: Invocation) {
    let thread = flat_workgroup(invocation) * THREADS + invocation.local;
    let lane = thread % params.lanes;
    let units = params.heads + 1u;
    // No early return before a barrier: a unit beyond the last token repeats that token and writes nothing.
    let row_token = thread / params.lanes / units;
    let token = min(row_token, params.tokens - 1u);
    let head = thread / params.lanes % units;
    let pool_slot = metadata_at(params.group_header + GROUP_SLOTS, token);
    let rotated_runs = params.runs - params.rank_runs;

    var unit: Unit;
    unit.is_key = head == params.heads;
    unit.position = metadata_at(META_POSITIONS, token);
    let query_head = token * params.heads + head;
    unit.base = query_head * params.rank_runs * 2u;
    unit.rotated = ((query_head + 1u) * params.query_runs - rotated_runs) * 2u;
    if unit.is_key {
        unit.base = token * params.runs * 2u;
        unit.rotated = unit.base + params.rank_runs * 2u;
        unit.inverse = inverse_rms(unit.base);
    }
    let is_live = row_token < params.tokens && (!unit.is_key || pool_slot != NONE);
    let slot = pool_slot & ((1u << params.block_shift) - 1u);
    let tile = (pool_slot >> params.block_shift) * tile_runs(params.runs, params.block_shift);
    let row = tile + slot * params.runs;
    let grown = growth(unit.position);
#ifdef KV_CODES
    var largest = 0u;
#endif
    if is_live {
        for (var run = lane; run < params.runs; run += params.lanes) {
            let values = stored_run(unit, run);
            if !unit.is_key {
                let at = (query_head * params.runs + run) * 2u;
                q[at] = values.low * grown;
                q[at + 1u] = values.high * grown;
            } else {
#ifdef KV_CODES
                largest = max(largest, magnitude(values));
#else
                store(true, row + run, values);
#endif
            }
        }
    }
#ifdef KV_CODES
    // Elements are recomputed rather than stored.
    let scale = row_scale(unit_largest(largest, invocation.local, params.lanes));
    if is_live && unit.is_key {
        for (var run = lane; run < params.runs; run += params.lanes) {
            store(true, row + run, stored_run(unit, run), scale.y);
        }
        if lane == 0u {
            store_scale(true, scale_word(tile, params.runs, params.block_shift, slot), scale.x);
        }
    }
#endif
}
