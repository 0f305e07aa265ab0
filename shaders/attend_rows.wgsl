// Attention of the rows of a batch to the rows of their own sequences, in both directions.
//
//   out = Σ p_j · v_j / Σ p_j,  p_j = exp(s_j − m),  s_j = scale · q · k_j − slope · |i − j|,  |i − j| ≤ radius
//
// qk [tokens][row_vectors]: q heads, then k heads; v [tokens][v_row_vectors], from v_start on; out [tokens][query
// heads][head_dim]. Workgroup: 16 rows of one query head, in tiles of 32 keys. The rows may be of several sequences;
// then each key is hidden from the rows of others. Scores: an invocation has one key and 8 rows. Values: 4 invocations
// share a row, each with every fourth vector of it.
// Numbers: VECTORS = head_dim / 4; VECTORS_EACH, a quarter of it, rounded up. Variants: ALIBI.
// Twin: backend/reference/attend_rows.rs

#import invocation
#import metadata
#import share

struct Params {
    tokens: u32,
    query_heads: u32,
    group: u32, // query heads of a key head
    qk_row_vectors: u32,
    v_row_vectors: u32,
    v_start: u32, // vector of the first value head
    scale: f32,
    radius: u32,
}

const ROWS: u32 = 16u;
const KEYS: u32 = 32u;
const SLICE: u32 = 8u; // vectors of queries and keys that are staged at once
const KEY_STRIDE: u32 = 9u;
const SCORE_STRIDE: u32 = 33u;
const MASKED: f32 = -3.0e38;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> metadata: array<u32>;
@group(0) @binding(2) var<storage, read> qk: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> v: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> slopes: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<vec4<f32>>;

var<workgroup> firsts: array<u32, ROWS>; // first key that a row sees
var<workgroup> ends: array<u32, ROWS>;
var<workgroup> queries: array<vec4<f32>, 128>; // [row][vector of the slice]
var<workgroup> keys: array<vec4<f32>, 288>;    // [key][vector of the slice]
var<workgroup> scores: array<f32, 528>;        // [row][key]

// The sequence of a token row.
fn sequence_of(row: u32) -> u32 {
    var low = 0u;
    var high = metadata_word(META_SEQUENCE_COUNT);
    while high - low > 1u {
        let middle = (low + high) / 2u;
        if metadata_at(META_SEQUENCES, middle * SEQUENCE_WORDS + SEQUENCE_ROW_START) <= row {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low * SEQUENCE_WORDS;
}

// The keys that a row sees: from x up to y.
fn seen_by(row: u32) -> vec2<u32> {
    let sequence = sequence_of(row);
    let start = metadata_at(META_SEQUENCES, sequence + SEQUENCE_ROW_START);
    let end = start + metadata_at(META_SEQUENCES, sequence + SEQUENCE_ROW_COUNT);
    let first = row - min(params.radius, row - start);
    return vec2<u32>(first, row + min(params.radius, end - 1u - row) + 1u);
}

@compute @workgroup_size(64)
fn main(at: Invocation) {
    let local = at.local;
    let flat = flat_workgroup(at);
    let head = flat % params.query_heads;
    let row_start = flat / params.query_heads * ROWS;
    // No early return before a barrier: rows beyond the last repeat it and are not written.
    if local < ROWS {
        let seen = seen_by(min(row_start + local, params.tokens - 1u));
        firsts[local] = seen.x;
        ends[local] = seen.y;
    }
    workgroupBarrier();
    // What rows see begins and ends in their order.
    let range = share(local, vec4<u32>(firsts[0], ends[ROWS - 1u], 0u, 0u));
    let key_head = params.query_heads + head / params.group;
#ifdef ALIBI
    let slope = slopes[head];
#endif

    let own_key = local & 31u;
    let own_rows = (local >> 5u) * 8u;
    let row = local >> 2u;
    let lane = local & 3u;
    var largest = MASKED;
    var total = 0.0;
    var sums: array<vec4<f32>, VECTORS_EACH>;
#for j VECTORS_EACH
    sums[j] = vec4<f32>();
#endfor

    for (var tile = range.x; tile < range.y; tile += KEYS) {
        var dots = array<f32, 8>();
        for (var slice = 0u; slice < VECTORS; slice += SLICE) {
            for (var i = local; i < ROWS * SLICE; i += 64u) {
                let vector = slice + i % SLICE;
                let source = min(row_start + i / SLICE, params.tokens - 1u);
                let index = source * params.qk_row_vectors + head * VECTORS + min(vector, VECTORS - 1u);
                queries[i] = select(vec4<f32>(), qk[index], vector < VECTORS);
            }
            for (var i = local; i < KEYS * SLICE; i += 64u) {
                let source = min(tile + i / SLICE, range.y - 1u);
                let vector = min(slice + i % SLICE, VECTORS - 1u);
                let index = source * params.qk_row_vectors + key_head * VECTORS + vector;
                keys[i / SLICE * KEY_STRIDE + i % SLICE] = qk[index];
            }
            workgroupBarrier();
            for (var i = 0u; i < SLICE; i++) {
                let key = keys[own_key * KEY_STRIDE + i];
#for n 8
                dots[n] += dot(queries[(own_rows + n) * SLICE + i], key);
#endfor
            }
            workgroupBarrier();
        }
        let key = tile + own_key;
#for n 8
        {
            let own_row = own_rows + n;
            var score = dots[n] * params.scale;
#ifdef ALIBI
            let query = row_start + own_row;
            score -= slope * f32(max(query, key) - min(query, key));
#endif
            let is_seen = key >= firsts[own_row] && key < ends[own_row];
            scores[own_row * SCORE_STRIDE + own_key] = select(MASKED, score, is_seen);
        }
#endfor
        workgroupBarrier();
        var top = largest;
        for (var i = 0u; i < KEYS; i++) {
            top = max(top, scores[row * SCORE_STRIDE + i]);
        }
        let shrink = exp(largest - top);
        total *= shrink;
#for j VECTORS_EACH
        sums[j] *= shrink;
#endfor
        let count = min(KEYS, range.y - tile);
        for (var i = 0u; i < count; i++) {
            let score = scores[row * SCORE_STRIDE + i];
            let weight = select(exp(score - top), 0.0, score == MASKED);
            total += weight;
            let source = (tile + i) * params.v_row_vectors + params.v_start + head / params.group * VECTORS;
#for j VECTORS_EACH
            sums[j] += weight * v[source + min(lane + 4u * j, VECTORS - 1u)];
#endfor
        }
        largest = top;
        workgroupBarrier();
    }
    if row_start + row < params.tokens {
        let to = ((row_start + row) * params.query_heads + head) * VECTORS;
#for j VECTORS_EACH
        if lane + 4u * j < VECTORS {
            out[to + lane + 4u * j] = sums[j] / total;
        }
#endfor
    }
}
